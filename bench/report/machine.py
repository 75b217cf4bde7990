"""The machine that this process runs on, in the words that stand beside every number measured on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bench.report import text as words
from device.agent.fingerprint import fingerprint

IDENTITY = ("machine", "cpu_model", "cores", "memory_total_bytes", "kernel")


@dataclass(frozen=True)
class Machine:
    """What a reader must know about a machine to compare its numbers with others.

    Attributes:
        cpu_model: as the kernel names it, e.g. ``"AMD EPYC"`` or ``"Cortex-A53"``; None where it does not.
        machine: instruction set, e.g. ``"x86_64"``.
        cores: cores that this process may use.
        memory_total_bytes: physical memory, in bytes; None where the kernel does not say.
        kernel: name and release.
        python: version of Python.
        virtual: whether a hypervisor is beneath; None where nothing tells.
    """

    cpu_model: str | None
    machine: str | None
    cores: int
    memory_total_bytes: int | None
    kernel: str
    python: str
    virtual: bool | None

    def sentence(self) -> str:
        """``"AMD EPYC, x86_64, 2 cores, 8.0 GB, Linux 6.1 (virtual machine)"``."""
        return words.machine(vars(self)) + (" (virtual machine)" if self.virtual else "")


def describe_machine() -> Machine:
    """What the agent would say of this machine."""
    said = fingerprint()
    return Machine(
        cpu_model=said["cpu_model"],
        machine=said["machine"],
        cores=len(os.sched_getaffinity(0)),
        memory_total_bytes=said["memory_total_bytes"],
        kernel=said["kernel"],
        python=said["python"],
        virtual=said["virtualised"],
    )


def is_this_machine(device: dict[str, Any]) -> bool:
    """Whether a device's description is of the machine that this runs on.

    A tunnel or a virtual machine is reached over loopback, too, and is another machine.
    """
    said = fingerprint()
    return all(device.get(key) == said[key] for key in IDENTITY)
