"""Modes of layers: what is measured is applied, changes no decision, and is kept for this artifact and engine alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from quarl.convert.native.writer import native_artifact
from quarl.device.agent.native_executor import NativeExecutor
from quarl.device.agent.protocol import AgentError
from quarl.device.agent.runtimes import open_artifact
from quarl.device.engine import engine as native_engine
from quarl.device.engine import modes
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, Mode
from quarl.device.engine.modes import (
    KEPT_FILE,
    Measured,
    find_kept_file,
    keep_modes,
    key_of,
    measure_modes,
    read_kept_modes,
)
from quarl.policy.spec import PolicySpec, RuntimeName
from tests.convert.native.networks import NETWORKS, levels_of, made, outputs_of
from tests.refusals import refused

KEY = {"artifact": "a" * 64, "library": "b" * 64, "kernels": "plain", "machine": "x"}


class Pretended:
    """An engine whose layers take as long as is said, by a clock of its own; nanoseconds for (dense, sparse)."""

    def __init__(self, usual: tuple[Mode, ...], times: list[tuple[float, float]]) -> None:
        self.modes, self.times, self.now, self.begun = usual, times, 0.0, 0

    def begin(self, observation: np.ndarray) -> None:
        self.begun += 1

    def repeat(self, layer: int, times: int) -> None:
        self.now += times * self.times[layer][self.modes[layer]]

    def clock(self) -> int:
        return int(self.now)

    def measured(self, observations: int, seconds: float) -> tuple[Measured, ...]:
        return measure_modes(cast(Engine, self), [np.zeros(1, np.float32)] * observations, seconds, self.clock)


def opened(name: str) -> tuple[Engine, PolicySpec, np.ndarray, list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    spec, network, rows = made(name)
    engine = Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size)
    return engine, spec, rows, levels_of(spec, network, rows), outputs_of(spec, network, rows)


def test_a_layer_leaves_its_mode_only_for_a_clearly_faster_one() -> None:
    usual = (Mode.DENSE, Mode.DENSE, Mode.SPARSE, Mode.SPARSE)
    pretended = Pretended(usual, [(1e6, 0.98e6), (1e6, 0.96e6), (0.98e6, 1e6), (0.96e6, 1e6)])
    found = pretended.measured(40, 60.0)
    assert [each.faster for each in found] == [Mode.DENSE, Mode.SPARSE, Mode.SPARSE, Mode.DENSE]
    assert found[0] == Measured(Mode.DENSE, 1e6, 0.98e6)
    assert pretended.modes == usual, "they stay as they are"


def test_measuring_ends() -> None:
    few = Pretended((Mode.DENSE,), [(1e9, 1e9)])
    few.measured(40, 0.1)
    assert few.begun == 2 + 2 * 2 * modes.TURNS, "two observations, however long they take"
    many = Pretended((Mode.DENSE,), [(1.0, 1.0)])
    many.measured(1000, 60.0)
    assert many.begun <= 2 + 2 * modes.TURNS * modes.OBSERVATIONS


@pytest.mark.parametrize("name", ["relu", "norm, tanh", "picture and vector", "wider than 4096, 2 bits"])
def test_timing_single_layers_changes_no_decision(name: str) -> None:
    engine, _, rows, levels, (outputs, choices) = opened(name)
    usual = engine.modes
    last = (levels[-1][0] + 128).astype(np.uint8).tobytes()  # as they are stored
    for mode in Mode:
        engine.modes = (mode,) * len(usual)
        engine.decide(rows[-1])
        assert last not in bytes(engine._memory.content)
        engine.begin(rows[0])
        for layer in range(len(usual)):
            engine.repeat(layer, 3)
        assert last in bytes(engine._memory.content)
    engine.modes = usual
    found = measure_modes(engine, list(rows), 0.02)
    assert engine.modes == usual and len(found) == len(usual)
    assert all(each.dense_ns > 0 and each.sparse_ns > 0 for each in found)
    engine.modes = tuple(each.faster for each in found)
    for row, wanted, choice in zip(rows, outputs, choices, strict=True):
        assert engine.decide(row) == choice
        np.testing.assert_array_equal(engine.outputs, wanted)


def test_what_was_kept_is_found_for_the_same_artifact_and_engine_alone(tmp_path: Path) -> None:
    path = tmp_path / KEPT_FILE
    assert read_kept_modes(path, KEY, 2) is None
    keep_modes(path, KEY, [Measured(Mode.SPARSE, 2.0, 1.0), Measured(Mode.DENSE, 1.0, 2.0)])
    assert read_kept_modes(path, KEY, 2) == (Mode.SPARSE, Mode.DENSE)
    for name in KEY:
        assert read_kept_modes(path, KEY | {name: "other"}, 2) is None
    assert read_kept_modes(path, KEY, 3) is None
    other = KEY | {"artifact": "c" * 64}
    keep_modes(path, other, [Measured(Mode.DENSE, 1.0, 2.0)])
    keep_modes(path, KEY, [Measured(Mode.DENSE, 1.0, 2.0)] * 2)
    assert read_kept_modes(path, KEY, 2) == (Mode.DENSE,) * 2 and read_kept_modes(path, other, 1) == (Mode.DENSE,)
    assert [each["artifact"][0] for each in json.loads(path.read_bytes())["measured"]] == ["a", "c"]
    for number in range(100):
        keep_modes(path, KEY | {"artifact": str(number)}, [Measured(Mode.DENSE, 1e9, 1e9)] * 64)
    assert len(json.loads(path.read_bytes())["measured"]) == modes.MOST_KEPT
    assert path.stat().st_size <= modes.MOST_BYTES and [each.name for each in tmp_path.iterdir()] == [KEPT_FILE]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"\xff\xfe", b"[" * 60_000, b'{"measured": 5}', b'{"measured": [5]}', b"{} " * 30_000),
        *(
            json.dumps({"measured": [KEY | {"modes": each}]}).encode()
            for each in (None, [0], [0, 2], [0, True], [0, "1"], [0, 1.0])
        ),
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / KEPT_FILE
    path.write_bytes(data)
    assert read_kept_modes(path, KEY, 2) is None
    keep_modes(path, KEY, [Measured(Mode.SPARSE, 2.0, 1.0)] * 2)
    assert read_kept_modes(path, KEY, 2) == (Mode.SPARSE,) * 2


def test_links_and_pipes_are_not_followed_and_read_only_is_no_error(tmp_path: Path) -> None:
    measured, elsewhere, path = [Measured(Mode.SPARSE, 2.0, 1.0)], tmp_path / "elsewhere", tmp_path / KEPT_FILE
    keep_modes(elsewhere, KEY, measured)
    path.symlink_to(elsewhere)
    assert read_kept_modes(elsewhere, KEY, 1) and read_kept_modes(path, KEY, 1) is None
    path.unlink()
    os.mkfifo(path)
    assert read_kept_modes(path, KEY, 1) is None
    path.unlink()
    path.mkdir()
    (path / "x").touch()
    keep_modes(path, KEY, measured)
    keep_modes(tmp_path / "missing" / KEPT_FILE, KEY, measured)
    assert read_kept_modes(path, KEY, 1) is None and (path / "x").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", KEPT_FILE]


def release(folder: Path) -> Path:
    """The bundle's folder of a release, as a deployment lays it out."""
    bundle = folder / "policies" / "III" / "releases" / "0001-abc" / "bundle"
    bundle.mkdir(parents=True)
    (bundle.parent / "release").touch()
    return bundle


def test_they_are_kept_beside_the_releases_and_nowhere_else(tmp_path: Path) -> None:
    bundle = release(tmp_path)
    wanted = tmp_path / "policies" / "III" / KEPT_FILE
    (wanted.parent / "current").symlink_to(Path("releases") / "0001-abc")
    assert find_kept_file(bundle) == find_kept_file(wanted.parent / "current" / "bundle") == wanted
    (bundle.parent / "release").unlink()
    assert find_kept_file(bundle) is None and find_kept_file(tmp_path) is None


@pytest.mark.parametrize("name", ["relu", "clipped", "picture, tanh"])
def test_an_executor_measures_once_and_reads_the_next_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, network, rows = made(name)
    artifact, observations, bundle = native_artifact(spec, network), [row[None] for row in rows], release(tmp_path)
    outputs, choices = outputs_of(spec, network, rows)

    def executor() -> NativeExecutor:
        opened = open_artifact(RuntimeName.NATIVE, artifact, spec)
        assert isinstance(opened, NativeExecutor)
        return opened

    usual = executor().modes
    flipped = tuple(Mode(mode == "dense") for mode in usual)
    monkeypatch.setattr(modes, "measure_modes", lambda *_: tuple(Measured(mode, 1.0, 1.0) for mode in flipped))
    first = executor()
    first.choose_modes(observations, bundle, "1" * 64)

    def measured_again(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(modes, "measure_modes", measured_again)
    second = executor()
    second.choose_modes(observations, bundle, "1" * 64)
    for each in (first, second):
        assert [Mode[mode.upper()] for mode in each.modes] == list(flipped)
        for observation, wanted, choice in zip(observations, outputs, choices, strict=True):
            decided = each.decide(observation)
            assert decided == choice if spec.is_discrete else (decided == wanted).all()
            np.testing.assert_array_equal(each.outputs(), wanted)
    for sha256, place in (("2" * 64, bundle), ("1" * 64, tmp_path)):
        with pytest.raises(AssertionError, match="measured again"):
            executor().choose_modes(observations, place, sha256)


def test_other_decisions_in_another_mode_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, network, rows = made("relu")
    executor = open_artifact(RuntimeName.NATIVE, native_artifact(spec, network), spec)
    assert isinstance(executor, NativeExecutor)
    outputs = iter(range(100))
    monkeypatch.setattr(executor, "outputs", lambda: np.array([next(outputs)], np.float32))
    with refused(AgentError, "runtime"):
        executor.choose_modes([row[None] for row in rows], tmp_path, "1" * 64)


def test_the_key_names_artifact_library_kernels_and_machine() -> None:
    engine, *_ = opened(next(iter(NETWORKS)))
    key = key_of(engine, library(), "1" * 64)
    assert key.keys() == KEY.keys() and key["kernels"] == engine.kernels[0]
    engine.use("plain")
    assert key_of(engine, library(), "1" * 64) == key | {"kernels": "plain"}
    assert native_engine.kernels_here(library()) == engine.kernels
