"""Checkpoints: exact, atomic, and refused when damaged."""

import json
from pathlib import Path

import numpy as np
import pytest

from quarl.train.algorithms.common.replay import Replay
from quarl.train.runs.checkpoint import (
    FILE_NAME,
    Checkpoint,
    CheckpointError,
    flatten_groups,
    gather_state,
    load_checkpoint,
    save_checkpoint,
)


def example() -> Checkpoint:
    policy: dict[str, np.ndarray] = {"head/bias": np.array([1.5], np.float32)}
    groups = {"policy": policy, "stream": {"ids": np.array([2**40], np.int64)}}
    return Checkpoint(flatten_groups(groups), {"step": 3})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, example())
    loaded = load_checkpoint(tmp_path)
    assert loaded.facts == {"step": 3}
    assert loaded.group("stream")["ids"].tolist() == [2**40]
    assert loaded.group("policy")["head/bias"].dtype == np.float32


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


class Counter:
    """An object with one array."""

    def __init__(self, count: int) -> None:
        self.count = np.array([count])

    def state(self) -> dict[str, np.ndarray]:
        return {"count": self.count}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        (self.count,) = [state["count"]]


def resumable() -> tuple[Checkpoint, np.random.Generator]:
    generator = np.random.default_rng(5)
    generator.random(3, dtype=np.float32)  # leaves half a word in the generator's buffer
    learned = {"policy": {"head/bias": np.array([1.5], np.float32)}}
    return Checkpoint(*gather_state(learned, {"counter": Counter(7)}, 9, generator)), generator


def test_a_run_is_put_back_as_it_was_gathered() -> None:
    checkpoint, generator = resumable()
    checkpoint, counter = Checkpoint(checkpoint.arrays, json.loads(json.dumps(checkpoint.facts))), Counter(0)
    fresh = {"policy": {"head/bias": np.zeros(1, np.float32)}}
    learned, updates, restored = checkpoint.put_back(fresh, {"counter": counter})
    assert learned["policy"]["head/bias"].tolist() == [1.5]
    assert updates == 9
    assert counter.count.tolist() == [7]
    np.testing.assert_array_equal(generator.random(9, dtype=np.float32), restored.random(9, dtype=np.float32))
    assert generator.integers(1 << 40) == restored.integers(1 << 40)


@pytest.mark.parametrize(("group", "name", "shape", "part"), [
    ("policy", "head/bias", (2,), "policy/head/bias"),
    ("policy", "log_std", (1,), "policy/"),
    ("value", "head/bias", (1,), "value/head/bias"),
])  # fmt: skip
def test_a_learner_of_another_layout_is_refused(group: str, name: str, shape: tuple[int, ...], part: str) -> None:
    checkpoint, _ = resumable()
    with pytest.raises(CheckpointError, match=rf"older format: its {part}.* Start over with --fresh"):
        checkpoint.put_back({group: {name: np.zeros(shape, np.float32)}}, {})


def test_a_replay_of_an_older_layout_is_refused_by_its_name() -> None:
    # Before observations were kept once, a replay had both of every transition, and no tape.
    shape = (4, 2, 3)
    old = {name: np.zeros(shape, np.float32) for name in ("observation", "next_observation")}
    old |= {name: np.zeros(shape[:2], np.float32) for name in ("action", "reward", "done", "terminated")}
    _, facts = gather_state({}, {}, 0, np.random.default_rng())
    for written in ([4], [4, 9]):
        checkpoint = Checkpoint(flatten_groups({"replay": {**old, "written": np.array(written)}}), facts)
        with pytest.raises(CheckpointError, match=r"older format: its replay .* Start over with --fresh"):
            checkpoint.put_back({}, {"replay": Replay(8, 2, (3,))})
