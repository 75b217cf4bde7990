"""Debian's arm64 Python and C library, unpacked into a folder that qemu-aarch64 looks into first (``-L``).

Nothing is installed and nothing of arm64 is executed: mmdebstrap fetches and unpacks, in seconds and without root.
What a Raspberry Pi 3b's kernel says of its processor is written beside it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from quarl.bench.command_line import say
from quarl.bench.qemu_counter.building import cache_path, make_once
from quarl.bench.qemu_counter.unpacking import unpack
from quarl.device.virtual_pi.sources import own_sources

SUITE = "bookworm"
"""Debian 12, what Raspberry Pi OS bookworm is made of: Python 3.11, glibc 2.36."""
PYTHON, SERIES = "usr/bin/python3.11", "3.11"
PACKAGES = ("python3.11", "libc6", "libstdc++6", "libgcc-s1", "libgomp1", "libatomic1")
CORES = 4

_CPUINFO = """processor\t: {core}
BogoMIPS\t: 38.40
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd03
CPU revision\t: 4

"""
# A fixed size: the real text's length changes from run to run, and with it where Python's objects lie.
_STATUS = "Name:\tpython3.11\nVmHWM:\t{0}\nVmRSS:\t{0}\nRssAnon:\t{0}\nRssFile:\t{0}\nVmSwap:\t{0}\n".format(
    "   30000 kB"
)
_CACHES = ((1, "Data", 32, 4), (1, "Instruction", 32, 2), (2, "Unified", 512, 16))
"""Level, type, KB, ways: Arm DDI 0500; sizes of the BCM2837."""


def describe_processor() -> dict[str, str]:
    """Return the files, by path, in which Linux describes a Raspberry Pi 3b's processor."""
    cpu = "sys/devices/system/cpu"
    every = f"0-{CORES - 1}\n"
    files = {
        "proc/cpuinfo": "".join(_CPUINFO.format(core=core) for core in range(CORES)),
        "proc/self/status": _STATUS,
        **{f"{cpu}/{name}": every for name in ("possible", "present", "online")},
        f"{cpu}/kernel_max": f"{CORES - 1}\n",
    }
    for core in range(CORES):
        here = f"{cpu}/cpu{core}"
        files |= {f"{here}/cpufreq/cpuinfo_max_freq": "1200000\n", f"{here}/cpufreq/cpuinfo_min_freq": "600000\n"}
        topology = {"physical_package_id": "0\n", "cluster_id": "0\n", "core_id": f"{core}\n", "cluster_cpus": "f\n"}
        topology |= dict.fromkeys(("cluster_cpus_list", "core_siblings_list", "package_cpus_list"), every)
        topology |= dict.fromkeys(("core_cpus_list", "thread_siblings_list"), f"{core}\n")
        files |= {f"{here}/topology/{name}": text for name, text in topology.items()}
        for index, (level, kind, size, ways) in enumerate(_CACHES):
            cache = {
                "level": f"{level}\n",
                "type": f"{kind}\n",
                "size": f"{size}K\n",
                "ways_of_associativity": f"{ways}\n",
                "coherency_line_size": "64\n",
                "number_of_sets": f"{size * 1024 // 64 // ways}\n",
                "shared_cpu_list": every if level == 2 else f"{core}\n",
            }
            files |= {f"{here}/cache/index{index}/{name}": text for name, text in cache.items()}
    return files


def place() -> Path:
    """Return where the folder of this recipe is, made or not."""
    recipe = json.dumps([SUITE, PACKAGES, describe_processor()]).encode()
    return cache_path(f"sysroot-{hashlib.sha256(recipe).hexdigest()[:12]}")


def sysroot() -> Path:
    """Return the folder; made now if there is none of this recipe.

    Raises:
        BenchError: with mmdebstrap's last words.
    """
    return make_once(place(), _make)


def _make(root: Path) -> None:
    say("Unpacking Debian's arm64 Python for counting (30 MB) …")
    unpack(root, "arm64", SUITE, PACKAGES, own_sources(SUITE))
    for name, text in describe_processor().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
