"""Installing with pip: in place it works; every other way is refused in one line, before anything is written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--ignore-installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the build reads of this checkout."""
    copy = tmp_path / "checkout"
    for name in ("setup", "policy", "bench", "airlearning_envs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def install(*words: str | Path) -> subprocess.CompletedProcess[str]:
    typed = [sys.executable, "-m", "pip", "install", *OFFLINE, *map(str, words)]
    return subprocess.run(typed, capture_output=True, text=True, timeout=120)


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_a_copy_in_site_packages_is_refused_in_one_line(checkout: Path, tmp_path: Path) -> None:
    there, before = tmp_path / "there", files_below(checkout)
    done = install("--prefix", there, checkout)
    assert done.returncode == 1
    printed = [line.strip() for line in done.stderr.splitlines()]
    assert "This project is used from its checkout, not from site-packages. Type: make setup" in printed
    assert "Traceback" not in done.stderr
    assert not files_below(there)
    assert files_below(checkout) == before


def test_in_place_it_is_installed_with_what_others_find_it_by(checkout: Path, tmp_path: Path) -> None:
    done = install("--prefix", tmp_path / "there", "-e", checkout)
    assert done.returncode == 0, done.stderr
    packages = next((tmp_path / "there").rglob("site-packages"))
    # A .pth file or finder works in a site folder only, so this one is made one.
    ask = f"import site; site.addsitedir({str(packages)!r}); import policy; print(policy.__path__[0])"
    found = subprocess.run([sys.executable, "-S", "-c", ask], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip() == str(checkout / "policy"), found.stderr
    # Whoever lets pip fetch them gets the tested versions: tflite-runtime breaks with numpy 2.
    needed = next(packages.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert re.search(r"^Requires-Dist: numpy==1\.", needed, re.MULTILINE)


def test_pip_refuses_no_pinned_package_for_its_python() -> None:
    """uv and ``pip --no-deps`` install such a package all the same; ``pip install -e .`` ends at it."""
    refused = []
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if not (text := line.partition("#")[0].strip()):
            continue
        pinned = Requirement(text)
        if pinned.marker is None or pinned.marker.evaluate(default_environment()):
            wants = distribution(pinned.name).metadata["Requires-Python"]
            if not SpecifierSet(wants or "").contains("3.11.0"):
                refused.append(f"{pinned} wants Python {wants}")
    assert refused == []
