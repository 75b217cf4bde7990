"""Commands that messages name, as they work in the shell and the folder of whoever reads them."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.policy.hints import Parser, as_typed, make_room

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(sys.executable).with_name("python")
DEBIAN = "/usr/local/bin:/usr/bin:/bin"  # has python3, and no python


@pytest.fixture(autouse=True)
def debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_in_an_active_environment_it_is_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{OWN.parent}:{DEBIAN}")
    assert as_typed("next: python -m train --help") == "next: python -m train --help"


def test_another_python_on_the_path_is_not_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(OWN)  # what pyenv's and conda's shims are: another environment
    monkeypatch.chdir(OWN.parent.parent)
    assert as_typed("python -m convert") == "bin/python -m convert"


def test_from_another_folder_interpreter_and_script_are_found_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = as_typed("next: python bench/latency.py --policy I, or python -m train")
    own, script = shlex.quote(str(OWN)), shlex.quote(str(ROOT / "bench" / "latency.py"))
    assert printed == f"next: {own} {script} --policy I, or {own} -m train"


def test_a_space_in_the_path_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "my folder" / ".venv" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    assert as_typed("python -m train") == f"'{python.with_name('python')}' -m train"


@pytest.mark.parametrize(
    "text", ["python -m venv .venv", ".venv/bin/python -m train", "mypython -m train", "python3 -m train", "a python"]
)
def test_other_words_stay(text: str) -> None:
    assert as_typed(text) == text


@pytest.mark.parametrize(
    ("command", "next_step"),
    [
        ("-m convert --policy absent", "-m train --task navigation --policy I --output-path artifacts/absent"),
        ("-m device.deploy deploy --policy absent", "-m train --task navigation --policy I"),
        ("bench/latency.py --policy absent", "-m train --task navigation --policy I"),
        ("-m train.evaluate --input-path absent", "-m train --task navigation --policy I"),
        ("-m train --task absent-v0", "-m train.list"),
        ("-m train --help", "-m train --task cartpole --method dqn"),
        ("bench/latency.py --help", "bench/latency.py --policy III"),
        ("bench/table.py case-study --results absent.jsonl", "bench/latency.py --policy I"),
    ],
)
def test_what_commands_say_can_be_typed_on_debian(command: str, next_step: str) -> None:
    typed = [sys.executable, *command.split()]
    done = subprocess.run(
        typed, cwd=ROOT, env={**os.environ, "PATH": DEBIAN}, capture_output=True, text=True, timeout=60
    )
    python = OWN.relative_to(ROOT) if OWN.is_relative_to(ROOT) else OWN
    assert f"{python} {next_step}" in done.stdout + done.stderr
    assert " python -m" not in done.stdout + done.stderr


def test_a_refusal_says_what_is_allowed_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="python -m train")
    parser.add_argument("--policy", choices=["I", "II"])
    with pytest.raises(SystemExit) as refused:
        parser.parse_args(["--policy", "IV"])
    assert refused.value.code == 2
    printed, next_step = capsys.readouterr().err.splitlines()
    assert printed == "error: argument --policy: invalid choice: 'IV' (choose from 'I', 'II')"
    assert next_step.endswith("python -m train --help")


def test_a_full_disk_is_named() -> None:
    assert "disk is full" in make_room(OSError(errno.ENOSPC, "No space left on device"))
    assert make_room(OSError(errno.EACCES, "Permission denied"), "another folder") == "another folder"
