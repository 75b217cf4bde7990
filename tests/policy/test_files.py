"""Files are written whole or not at all, and hashed as they lie on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quarl.policy.files import lock_folder, write_atomically
from quarl.policy.reading import FileRecord
from tests.policy.small_bundle import files


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new and longer")
    assert files(tmp_path) == {"file": b"old"}


def test_a_private_file_is_private_whatever_the_mask_allows(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        write_atomically(tmp_path / "program", b"#!/bin/sh", mode=0o755)
        os.umask(0o000)
        write_atomically(tmp_path / "key", b"secret", mode=0o600)
    finally:
        os.umask(mask)
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_held_folder_is_made_as_asked_and_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_folder(tmp_path / "held", mode=0o700):
            pass
    assert (tmp_path / "held").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", [0, 1, 2**20 + 1])
def test_the_record_of_a_file_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    (tmp_path / "file").write_bytes(data)
    assert FileRecord.of_file(tmp_path / "file") == FileRecord.of(data)
