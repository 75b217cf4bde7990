"""Checkpoints: exact, atomic, and refused when damaged."""

import json
from pathlib import Path

import numpy as np
import pytest

from train.checkpoint import (
    FILE_NAME,
    Checkpoint,
    CheckpointError,
    flattened,
    generator_facts,
    load_checkpoint,
    restored_generator,
    save_checkpoint,
)


def example() -> Checkpoint:
    groups = {"policy": {"head/bias": np.array([1.5], np.float32)}, "stream": {"ids": np.array([2**40], np.int64)}}
    return Checkpoint(flattened(groups), {"step": 3})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, example())
    loaded = load_checkpoint(tmp_path)
    assert loaded.facts == {"step": 3}
    assert loaded.group("stream")["ids"].tolist() == [2**40]
    assert loaded.group("policy")["head/bias"].dtype == np.float32


def test_a_generator_goes_on_where_it_was() -> None:
    generator = np.random.default_rng(5)
    generator.random(3, dtype=np.float32)  # leaves half a word in the generator's buffer
    copy = restored_generator(json.loads(json.dumps(generator_facts(generator))))
    np.testing.assert_array_equal(generator.random(9, dtype=np.float32), copy.random(9, dtype=np.float32))
    assert generator.integers(1 << 40) == copy.integers(1 << 40)


def test_a_broken_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, example())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, Checkpoint({"a": np.zeros(4)}, {"step": 4}))
    monkeypatch.undo()
    assert load_checkpoint(tmp_path).facts == {"step": 3}


@pytest.mark.parametrize("damage", ["absent", "truncated", "garbage", "pickle", "version"])
def test_a_bad_checkpoint_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = save_checkpoint(tmp_path, example())
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[:-3])
    elif damage == "garbage":
        path.write_bytes(b"\xff" * 200)
    elif damage == "pickle":
        path.write_bytes(b"\x80\x04\x95" + b"0" * 50)
    else:
        path.write_bytes(data.replace(b'\\"format_version\\": 1', b'\\"format_version\\": 9'))
    with pytest.raises(CheckpointError, match=FILE_NAME):
        load_checkpoint(tmp_path)
