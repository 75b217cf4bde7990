"""The machine that this process runs on, in the words that stand beside every number measured on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from quarl.bench.report import text as words
from quarl.device.agent.fingerprint import fingerprint

IDENTITY = ("machine", "cpu_model", "cores", "memory_total_bytes", "kernel")


def this_machine() -> str:
    """``"AMD EPYC, x86_64, 2 cores, 8.0 GB, Linux 6.1 (virtual machine)"``; cores that this process may use."""
    here = fingerprint()
    facts = {name: here[name] for name in IDENTITY} | {"cores": len(os.sched_getaffinity(0))}
    return words.machine(facts) + (" (virtual machine)" if here["virtualised"] else "")


def is_this_machine(device: Mapping[str, Any]) -> bool:
    """Return whether a device's description is of the machine that this runs on.

    A tunnel or a virtual machine is reached over loopback, too, and is another machine.
    """
    here = fingerprint()
    return all(device.get(key) == here[key] for key in IDENTITY)
