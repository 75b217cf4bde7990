"""Every command as it is typed with a Python that is not the project's: handed over, or told what to type."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("policy", "airlearning_envs", "train", "convert", "device", "bench")
COMMANDS = (
    "-m train", "-m train.evaluate", "-m train.list", "-m train.actorq", "-m convert", "-m device.deploy",
    "-m device.virtual_pi", "-m airlearning_envs.record", "-m bench.study actorq-trainings", "-m bench.latency",
    "bench/latency.py",
)  # fmt: skip


def run(python: str | Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), *words], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def foreign() -> Path:
    """A Python that does not have the project installed."""
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    probe = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('quarl', 'rich'))))"
    if not python.exists() or subprocess.run([python, "-c", probe], cwd="/", check=False).returncode:
        pytest.skip("the Python that this environment was made from has the project's packages too")
    return python


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without .venv, in a folder with a space in its name."""
    root = tmp_path / "a checkout"
    for room in ROOMS:
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "quarl", root / "quarl", symlinks=True)
    shutil.copy(ROOT / "Makefile", root)
    return root


@pytest.mark.parametrize("command", COMMANDS)
def test_the_projects_own_python_goes_on(command: str, foreign: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("this checkout has no .venv")
    done = run(foreign, *command.split(), "--help", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_from_another_folder_with_its_arguments(foreign: Path, tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("this checkout has no .venv")
    absent = tmp_path / "none.jsonl"
    done = run(foreign, str(ROOT / "bench" / "table.py"), "case-study", "--results", str(absent), cwd=tmp_path)
    assert done.returncode == 1
    assert "none.jsonl does not exist" in done.stderr


def test_a_missing_package_of_an_extra_is_named_in_a_line(tmp_path: Path) -> None:
    script = "from quarl.policy.project_python import ensure; ensure(); raise ModuleNotFoundError(name='scipy.stats')"
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, 'error: scipy is not installed. Type: pip install "quarl[report]"\n')


@pytest.mark.parametrize("command", COMMANDS)
def test_without_an_environment_the_one_command_is_printed(command: str, foreign: Path, bare: Path) -> None:
    done = run(foreign, *command.split(), "--policy", "I", cwd=bare)
    assert done.returncode == 3
    printed, next_step = done.stderr.splitlines()
    assert "lacks" in printed and "rich" in printed
    assert next_step == f"  next: make -C '{bare}' setup"


@pytest.mark.parametrize("command", ["-m train", "bench/table.py"])
def test_a_broken_environment_does_not_start_itself_for_ever(command: str, foreign: Path, bare: Path) -> None:
    (bare / ".venv" / "bin").mkdir(parents=True)
    (bare / ".venv" / "bin" / "python").symlink_to(foreign)
    assert run(foreign, *command.split(), cwd=bare).returncode == 3


def test_importing_a_package_starts_nothing(foreign: Path) -> None:
    done = run(foreign, "-c", "import quarl.convert, quarl.train; print('imported')", cwd=ROOT)
    assert done.stdout == "imported\n"
