"""The machine that this process runs on, in the words that stand beside every number measured on it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """What a reader must know about a machine to compare its numbers with others.

    Attributes:
        cpu_model: as the kernel names it, e.g. ``"AMD EPYC"`` or ``"Cortex-A53"``.
        machine: instruction set, e.g. ``"x86_64"``.
        cores: cores that this process may use.
        memory_total_bytes: physical memory, in bytes; 0 where the kernel does not say.
        kernel: release of the kernel.
        python: version of Python.
        virtual: whether the processor says that a hypervisor is beneath; None where it cannot say.
    """

    cpu_model: str
    machine: str
    cores: int
    memory_total_bytes: int
    kernel: str
    python: str
    virtual: bool | None

    def sentence(self) -> str:
        """``"AMD EPYC, x86_64, 2 cores, 8.0 GB, Linux 6.1 (virtual machine)"``."""
        memory = f", {self.memory_total_bytes / 1e9:.1f} GB" if self.memory_total_bytes else ""
        cores = f"{self.cores} core" + ("s" if self.cores != 1 else "")
        virtual = " (virtual machine)" if self.virtual else ""
        return f"{self.cpu_model}, {self.machine}, {cores}{memory}, Linux {self.kernel}{virtual}"


def describe_machine(proc: Path = Path("/proc")) -> Machine:
    """Read the machine from /proc; what is not there is left unsaid."""
    fields = _cpu_fields(proc / "cpuinfo")
    names = (fields.get(key) for key in ("model name", "Model", "Hardware", "cpu model"))
    flags = fields.get("flags", "").split()
    memory = 0
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemTotal:"):
            memory = int(line.split()[1]) * 1024
    return Machine(
        cpu_model=next((name for name in names if name), platform.processor() or "unknown processor"),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory,
        kernel=platform.release(),
        python=platform.python_version(),
        virtual=("hypervisor" in flags) if flags else None,
    )


def _cpu_fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _lines(path))
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
