"""make wheel: sdist and wheel of the package, with the engine and the static agent compiled for every processor.

The sdist is made of a copy of quarl/ in which the links to the rooms are folders, and the wheel of the unpacked sdist:
whoever builds one of it needs no compiler. What is compiled lies in the copy alone; a checkout compiles its own.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from quarl.device.agent.building import agent, loop_library
from quarl.device.engine import PREBUILT, building

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def main() -> int:
    """Run the command; returns its exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("output", type=Path, nargs="?", default=ROOT / "dist", help="folder (default: dist)")
    output = options.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy, unpacked = Path(scratch, "copy"), Path(scratch, "unpacked")
        copy_sources(copy)
        add_binaries(copy)
        sdist = build("build_sdist", copy, output)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked)  # just made here; Python 3.11.2 knows no filter
        wheel = build("build_wheel", next(unpacked.iterdir()), output)
    for made in (sdist, wheel):
        print(f"{made}  {made.stat().st_size / 1e6:.1f} MB")
    return 0


def copy_sources(folder: Path) -> None:
    """Copy what the distribution is made of, folders in place of links."""
    shutil.copytree(ROOT / "quarl", folder / "quarl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


def add_binaries(folder: Path) -> None:
    """Compile engine, loop and policy-agent for every processor into the copy."""
    prebuilt = folder / "quarl" / "device" / "engine" / PREBUILT.name
    prebuilt.mkdir()
    for machine in building.TARGETS:
        shutil.copy(building.library(machine), prebuilt / f"engine-{machine}.so")
        shutil.copy(loop_library(machine), prebuilt / f"loop-{machine}.so")
        shutil.copy(agent(machine), prebuilt / f"agent-{machine}")


def build(step: str, folder: Path, output: Path) -> Path:
    """Run a step of setuptools in a folder and return the file that it made.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    done = subprocess.run([sys.executable, "-c", BUILD, step, output], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return output / done.stdout.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
