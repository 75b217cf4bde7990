"""Debian's packages unpacked into a folder, for any processor: nothing is installed, nothing of them is executed.

Also the Pythons as other systems bring them, without numpy, on which the agent for the native engine is tried.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl.bench.command_line import BenchError, say
from quarl.bench.qemu_counter.building import cache_path, make_once
from quarl.device.virtual_pi.sources import own_sources

TIMEOUT_S = 600


@dataclass(frozen=True)
class StockPython:
    """An interpreter as a system brings it.

    Attributes:
        machine: as ``uname -m`` names the processor.
        architecture, suite: Debian's names.
        series: of Python.
        triplet: of its libraries' folder.
        linker: the dynamic linker, by whose path the program is started where the processor is this one's.
        emulator: QEMU's command for a program of it.
    """

    machine: str
    architecture: str
    suite: str
    series: str
    triplet: str
    linker: str
    emulator: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies, unpacked or not."""
        return cache_path(f"stock-python-{self.series}-{self.machine}")

    def fetch(self) -> Path:
        """Return the folder; unpacked now if it is not there.

        Raises:
            BenchError: with mmdebstrap's last words.
        """

        def make(root: Path) -> None:
            say(f"Unpacking Debian's Python {self.series} for {self.machine} (25 MB) …")
            packages = ("python3-minimal", f"libpython{self.series}-stdlib")
            lines = [line for line in own_sources(self.suite) if f" {self.suite} main" in line]  # no updates
            unpack(root, self.architecture, self.suite, packages, lines)
            if not (root / "lib").exists():  # where /usr is merged, a package of the base system makes the link
                (root / "lib").symlink_to("usr/lib")

        return make_once(self.folder, make)

    def command(self, machine: str) -> list[str]:
        """Return what starts it on a host of this processor, without its own packages.

        Args:
            machine: the host's, as ``uname -m`` names it.
        """
        root, python = self.folder, str(self.folder / "usr/bin" / f"python{self.series}")
        libraries = ":".join(str(root / place / self.triplet) for place in ("usr/lib", "lib"))
        start = (
            [str(root / self.linker), "--library-path", libraries]
            if machine == self.machine
            else [*self.emulator, "-L", str(root)]
        )
        return ["env", f"PYTHONHOME={root / 'usr'}", *start, python, "-S"]


STOCK_PYTHONS = (
    StockPython("x86_64", "amd64", "bullseye", "3.9", "x86_64-linux-gnu", "lib/x86_64-linux-gnu/ld-2.31.so", ()),
    StockPython(
        "armv7l", "armhf", "bookworm", "3.11", "arm-linux-gnueabihf", "lib/ld-linux-armhf.so.3",
        ("qemu-arm", "-cpu", "cortex-a7"),
    ),
    StockPython(
        "aarch64", "arm64", "trixie", "3.13", "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1",
        ("qemu-aarch64", "-cpu", "cortex-a53"),
    ),
)  # fmt: skip


def unpack(root: Path, architecture: str, suite: str, packages: Sequence[str], sources: Sequence[str]) -> None:
    """Fetch packages with what they need, and unpack them.

    Args:
        root: the folder, which is made.
        architecture, suite: Debian's names.
        packages: which.
        sources: lines of apt's sources; none: mmdebstrap's own.

    Raises:
        BenchError: with mmdebstrap's last words.
    """
    command = [
        *("mmdebstrap", "--mode=chrootless", f"--architectures={architecture}", "--variant=extract"),
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--include={','.join(packages)}", suite, str(root), *sources),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        error_text, failed = done.stderr.strip(), done.returncode != 0
    except subprocess.TimeoutExpired:
        error_text, failed = f"no end after {TIMEOUT_S} s", True
    if failed:
        raise BenchError(
            f"mmdebstrap failed: {error_text[-800:]}",
            "Check that `apt-get update` works here: mmdebstrap downloads from the same servers.",
        )
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var"):
        shutil.rmtree(root / unused, ignore_errors=True)
