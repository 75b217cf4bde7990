"""Installing with pip: in place from a checkout, and from what ``make wheel`` makes of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from quarl.device.deploy.payload import code_files
from quarl.device.engine import MACHINES

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("policy", "airlearning_envs", "train", "convert", "device", "bench")
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--ignore-installed")
BINARIES = {
    f"quarl/device/engine/prebuilt/{name}"
    for each in MACHINES
    for name in (f"engine-{each}.so", f"loop-{each}.so", f"agent-{each}")
}


def install(*words: str | Path) -> None:
    typed = [sys.executable, "-m", "pip", "install", *OFFLINE, *map(str, words)]
    done = subprocess.run(typed, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def printed_there(packages: Path, script: str, folder: Path, *others: Path) -> list[str]:
    """What a script prints that finds the package in these site-packages, and others in further folders."""
    # A .pth file or finder works in a site folder only, so this one is made one; the tests' own is none.
    command = [sys.executable, "-S", "-c", f"import site; site.addsitedir({str(packages)!r})\n{script}"]
    variables = {"XDG_CACHE_HOME": str(folder), "PYTHONPATH": ":".join(map(str, others))}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_in_place_the_rooms_are_found_in_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "quarl", checkout / "quarl", symlinks=True)
    for name in (*ROOMS, "zoo/I", "zoo/II"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    install("--prefix", tmp_path / "there", "-e", checkout)
    packages = next((tmp_path / "there").rglob("site-packages"))
    found = printed_there(packages, "import quarl.policy.errors as found; print(found.__file__)", tmp_path)
    assert found == [str(checkout / "quarl" / "policy" / "errors.py")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that is built of it when unpacked."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "setup" / "wheel.py", folder], check=True, timeout=600)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_rooms_two_bundles_and_the_compiled_engine(made: Path) -> None:
    with zipfile.ZipFile(next(made.glob("*.whl"))) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "quarl").glob("*.*")} | BINARIES
    for name in ROOMS:
        wanted |= {f"quarl/{path.relative_to(ROOT)}" for path in (ROOT / name).rglob("*") if path.is_file()}
    wanted |= {f"quarl/{path.relative_to(ROOT)}" for name in ("I", "II") for path in (ROOT / "zoo" / name).iterdir()}
    assert found == {name for name in wanted if "__pycache__" not in name}


@pytest.mark.slow
def test_the_sdist_holds_files_only(made: Path) -> None:
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    assert [each.name for each in members if not (each.isfile() or each.isdir())] == []
    assert {each.name.partition("/")[2] for each in members} >= BINARIES


@pytest.mark.slow
def test_installed_it_uses_what_the_wheel_brings(made: Path, tmp_path: Path) -> None:
    install("--prefix", tmp_path / "there", next(made.glob("*.whl")))
    packages = next((tmp_path / "there").rglob("site-packages"))
    script = """
from quarl.device.deploy.payload import code_files
from quarl.device.agent.building import agent
from quarl.device.engine import building
from quarl.policy.locate import find_shipped
print(building.library("armv6l"), agent("armv6l"), building.KEPT, find_shipped("II"), sep="\\n")
print(*sorted(file.path for file in code_files()), sep="\\n")
"""
    library, agent, kept, bundle, *sent = printed_there(packages, script, tmp_path, Path(pytest.__file__).parents[1])
    prebuilt = packages / "quarl" / "device" / "engine" / "prebuilt"
    assert [library, agent] == [str(prebuilt / "engine-armv6l.so"), str(prebuilt / "agent-armv6l")]
    assert (kept, bundle) == (str(tmp_path / "quarl" / "native"), str(packages / "quarl" / "zoo" / "II"))
    assert sent == sorted(file.path for file in code_files()), "nothing of other packages is sent"


def test_pip_refuses_no_pinned_package_for_its_python() -> None:
    """uv and ``pip --no-deps`` install such a package all the same; ``pip install -e .`` ends at it."""
    refused = []
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if not (text := line.partition("#")[0].strip()):
            continue
        pinned = Requirement(text)
        if pinned.marker is None or pinned.marker.evaluate():
            wants = distribution(pinned.name).metadata["Requires-Python"]
            if not SpecifierSet(wants or "").contains("3.11.0"):
                refused.append(f"{pinned} wants Python {wants}")
    assert refused == []
