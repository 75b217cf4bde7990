"""What is said while a command works."""

from __future__ import annotations

import errno
import sys
import time
from pathlib import Path

import pytest

from quarl.policy import console
from quarl.policy.console import as_typed, disk_full_hint, heartbeat, say


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose programs are not on PATH, and its checkout as the current folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "quarl").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_is_named_as_it_works_in_this_shell(
    elsewhere: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert as_typed("Type: quarl convert --policy I") == "Type: bin/quarl convert --policy I"
    assert as_typed("see ~/quarl/lock, quarl 0.1.0") == "see ~/quarl/lock, quarl 0.1.0"
    monkeypatch.chdir(tmp_path_factory.mktemp("other"))
    assert as_typed("`quarl accept-host-key`") == f"`{elsewhere}/bin/quarl accept-host-key`"
    monkeypatch.setenv("PATH", str(elsewhere / "bin"))
    assert as_typed("quarl status") == "quarl status"


def test_a_line_at_least_every_so_many_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "EVERY_S", 0.5)
    with heartbeat():
        say("converting …")
        time.sleep(2.5)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "converting …" and all(line.endswith(" s") for line in said[1:]) and len(said) >= 2


def test_a_full_disk_is_told_from_other_errors() -> None:
    assert "disk is full" in disk_full_hint(OSError(errno.ENOSPC, "No space left on device"))
    assert disk_full_hint(OSError(errno.EACCES, "Permission denied"), "another folder") == "another folder"
