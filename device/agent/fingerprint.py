"""Which device this is, from what its kernel says. None where it is unknown: nothing is invented."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

from quarl.device.agent.conditions import CPU, ROOT, look, number, read_cpuinfo, read_number, read_text

ARM_PARTS = {
    "0xc07": "Cortex-A7",
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd4f": "Neoverse-V2",
}
"""CPU parts of implementer 0x41 (Arm) in /proc/cpuinfo, from Linux' arch/arm64/include/asm/cputype.h."""

X86_CLOCKS = {"tsc", "hpet", "acpi_pm", "kvm-clock"}
"""Clock sources of x86 kernels; a program that sees them and calls itself Arm runs under qemu-user."""

QEMU_BOGOMIPS = 125.0
"""QEMU's generic timer runs at 62.5 MHz, so that an emulated Arm core shows this; a Pi 3's 19.2 MHz shows 38.40."""


def fingerprint(root: Path = ROOT) -> dict[str, Any]:
    """Return the DEVICE of the protocol. ``root`` is where proc, sys and etc are."""
    cpuinfo = read_cpuinfo(root)
    system = os.uname()
    emulated, virtualised, evidence = emulation(root, cpuinfo, system.machine, system.release)
    return {
        "model": _model(root, cpuinfo),
        "machine": system.machine or None,
        "cores": os.cpu_count(),
        "cpu_model": _cpu_model(cpuinfo),
        "mhz_nominal": mhz_nominal(root, cpuinfo),
        "memory_total_bytes": _memory_total(root),
        "kernel": f"{system.sysname} {system.release}",
        "os": _os_name(root),
        "python": ".".join(map(str, sys.version_info[:3])),
        "glibc": _glibc(),
        "emulated": emulated,
        "virtualised": virtualised,
        "evidence": evidence,
        **dataclasses.asdict(look(root)),
    }


def _model(root: Path, cpuinfo: dict[str, str]) -> str | None:
    tree = read_text(root / "proc/device-tree/model")
    if tree:
        return tree
    maker, product = (read_text(root / f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return " ".join(filter(None, (maker, product))) or cpuinfo.get("Model")


def _cpu_model(cpuinfo: dict[str, str]) -> str | None:
    if cpuinfo.get("CPU implementer") == "0x41":
        part = cpuinfo.get("CPU part", "")
        return ARM_PARTS.get(part, f"Arm part {part}")
    return cpuinfo.get("model name")


def mhz_nominal(root: Path, cpuinfo: dict[str, str]) -> float | None:
    """Return the clock that the first core is made for, MHz."""
    khz = read_number(root / CPU / "cpu0/cpufreq/cpuinfo_max_freq")
    if khz is not None:
        return khz / 1000.0
    stated = re.search(r"@ ([0-9.]+)GHz", cpuinfo.get("model name", ""))  # Intel's brand string
    return float(stated[1]) * 1000.0 if stated else None


def _memory_total(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _os_name(root: Path) -> str | None:
    text = read_text(root / "etc/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match[1] if match else None


def _glibc() -> str | None:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
    except (ValueError, OSError, AttributeError):
        return None


def emulation(
    root: Path, cpuinfo: dict[str, str], machine: str, release: str = ""
) -> tuple[bool | None, bool | None, list[str]]:
    """(emulated, virtualised, evidence): whether the processor is imitated in software, or shared by a hypervisor."""
    evidence: list[str] = []
    arm = machine in ("aarch64", "armv7l", "armv6l")
    if arm and ("amd64" in release or "x86_64" in release):
        return True, None, [f"the machine is {machine} but its kernel is {release}: qemu-user"]
    if arm and cpuinfo and "CPU implementer" not in cpuinfo:
        return True, None, [f"the machine is {machine} but /proc/cpuinfo describes another processor: qemu-user"]
    clocks = (read_text(root / "sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split()
    foreign = X86_CLOCKS.intersection(clocks)
    if arm and foreign:
        return (
            True,
            None,
            [f"the machine is {machine} but its kernel keeps time by {', '.join(sorted(foreign))}: qemu-user"],
        )
    compatible = read_text(root / "proc/device-tree/compatible") or ""
    if arm and number(cpuinfo.get("BogoMIPS")) == QEMU_BOGOMIPS:
        evidence.append("BogoMIPS 125.00 is QEMU's timer of 62.5 MHz")
        return True, True, evidence
    hypervisor = "hypervisor" in cpuinfo.get("flags", "").split()
    maker = read_text(root / "sys/class/dmi/id/sys_vendor") or ""
    if "QEMU Virtual CPU" in cpuinfo.get("model name", "") or "TCG" in cpuinfo.get("model name", ""):
        return True, True, [f"the processor calls itself {cpuinfo['model name']}"]
    if "kvm-clock" in clocks:
        evidence.append("the kernel offers kvm-clock: a virtual machine on this processor")
        return False, True, evidence
    if "linux,dummy-virt" in compatible:
        return None, True, ["the device tree is QEMU's virt machine"]
    if hypervisor:
        evidence.append("the processor's flags name a hypervisor")
        return None if "QEMU" in maker else False, True, evidence
    if compatible.startswith("raspberrypi,") or (cpuinfo.get("flags") and not hypervisor):
        evidence.append("nothing hints at a hypervisor or an emulator")
        return False, False, evidence
    return None, None, evidence
