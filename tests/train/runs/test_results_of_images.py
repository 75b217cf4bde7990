"""What is recorded of an image task: few images, as uint8, and the same greedy actions as the reference."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quarl.policy.bundle import Bundle, npz, write_bundle
from quarl.policy.errors import BundleError
from quarl.policy.reading import CALIBRATION_FILE, GOLDEN_FILE, MANIFEST_FILE, FileRecord
from quarl.policy.reference import choose_actions, forward_float
from quarl.policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    weight_shapes,
)
from quarl.train.deciding import greedy
from quarl.train.networks.weights import initial_weights
from quarl.train.runs.results import record_images, record_observations, versions
from quarl.train.suites.episodes import Actions, Decide, Observations, StepResult, evaluate_episodes
from quarl.train.suites.task import Evaluation, Task
from tests.refusals import refused

SHAPE = (12, 12, 2)
NETWORK = NetworkSpec((16,), convolutions=(Convolution(4, 4, 2), Convolution(8, 3, 1)))
EPISODE_STEPS = 40


class Pictures:
    """Episodes of EPISODE_STEPS random images; every action but the first pays 1."""

    def __init__(self, environments: int, seed: int) -> None:
        self.environments, self._seed = environments, seed
        self._ids, self._ages = np.zeros(environments, np.int64), np.zeros(environments, np.int64)

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        self._ids[mask], self._ages[mask] = episode_ids[mask], 0
        return self._images()

    def step(self, actions: Actions) -> StepResult:
        self._ages += 1
        no = np.zeros(self.environments, np.bool_)
        return StepResult(self._images(), (actions > 0).astype(np.float32), no, self._ages >= EPISODE_STEPS, None)

    def _images(self) -> Observations:
        return np.stack(
            [
                np.random.default_rng([self._seed, number, age]).integers(0, 237, SHAPE, np.uint8)
                for number, age in zip(self._ids, self._ages, strict=True)
            ]
        )


def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
    judged = evaluate_episodes(Pictures(2, seed), decide, episodes)
    mean = float(judged.returns.mean())
    return Evaluation(preset, episodes, None, None, mean, (mean, mean), float(judged.lengths.mean()))


TASK = Task(
    name="pictures", environment=EnvironmentSpec("Pictures-v0"),
    observation=(ObservationField("screen", SHAPE, "grey level"),), head=DiscreteHead(("stay", "left", "right")),
    control_period_s=1 / 15, presets=("",), make=Pictures, evaluate=evaluate,
)  # fmt: skip
SPEC = PolicySpec(
    name="pictures", observation=TASK.observation, normaliser=Normaliser((0.0,), (255.0,), float("inf")),
    network=NETWORK, head=TASK.head, control_period_s=TASK.control_period_s, environment=TASK.environment,
)  # fmt: skip
WEIGHTS = initial_weights(np.random.default_rng(3), NETWORK, SHAPE, 3, 1.0)


def test_the_compiled_greedy_policy_is_the_reference() -> None:
    images = Pictures(50, 9).reset(np.ones(50, np.bool_), np.arange(50))
    wanted = choose_actions(SPEC, forward_float(SPEC, WEIGHTS, images))
    np.testing.assert_array_equal(greedy(SPEC, WEIGHTS)(images), wanted)
    # Flat rows and floats, as a bundle's golden file has them, give the same actions.
    flat = images.reshape(50, -1).astype(np.float32)
    np.testing.assert_array_equal(greedy(SPEC, WEIGHTS)(flat), wanted)
    np.testing.assert_array_equal(choose_actions(SPEC, forward_float(SPEC, WEIGHTS, flat)), wanted)
    assert len(np.unique(wanted)) > 1


def test_a_greedy_policy_of_images_and_vectors_is_the_reference() -> None:
    fields = (*SPEC.observation, ObservationField("velocity", (3,), "m/s"))
    spec = replace(SPEC, observation=fields, normaliser=Normaliser((0.0,), (100.0,), 3.0))
    random = np.random.default_rng(3)
    weights = {name: random.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}
    observations = random.uniform(0.0, 200.0, (50, spec.observation_size)).astype(np.float32)
    wanted = choose_actions(spec, forward_float(spec, weights, observations))
    np.testing.assert_array_equal(greedy(spec, weights)(observations), wanted)
    assert len(np.unique(wanted)) > 1


def test_images_are_drawn_evenly_from_all_steps_of_the_episodes() -> None:
    decide = greedy(SPEC, WEIGHTS)
    drawn = record_observations(TASK, decide, seed=4, purpose="calibration", rows=24)
    assert drawn.dtype == np.uint8 and drawn.shape == (24, 288)
    np.testing.assert_array_equal(drawn, record_images(TASK, decide, 4, "calibration", 24))
    assert not np.array_equal(drawn, record_images(TASK, decide, 4, "golden", 24))
    assert len(np.unique(drawn, axis=0)) == 24, "no image twice"
    everything = record_images(TASK, decide, 4, "calibration", 10_000)
    assert len(everything) == 4 * EPISODE_STEPS, "four episodes, every step of them once"


def test_an_image_bundle_stores_grey_levels_and_reads_floats(tmp_path: Path) -> None:
    decide = greedy(SPEC, WEIGHTS)
    calibration, golden = (record_images(TASK, decide, 4, purpose, rows) for purpose, rows in (("c", 32), ("g", 8)))
    bundle = write_bundle(tmp_path / "pictures", SPEC, WEIGHTS, calibration, golden)
    for name in (CALIBRATION_FILE, GOLDEN_FILE):
        with np.load(bundle.path / name) as arrays:
            assert arrays["observations"].dtype == np.uint8
    read = Bundle.load(bundle.path)
    assert read.calibration().dtype == np.float32
    np.testing.assert_array_equal(read.calibration(), calibration.astype(np.float32))
    # Behind them stand those of the calibration's that excite what they do not.
    np.testing.assert_array_equal(read.golden().observations[: len(golden)], golden.astype(np.float32))
    wanted = forward_float(SPEC, WEIGHTS, read.golden().observations, exact=True)
    np.testing.assert_array_equal(read.golden().outputs, wanted)


def test_images_that_are_no_grey_levels_are_kept_as_they_are(tmp_path: Path) -> None:
    between = np.linspace(0.0, 255.0, 3 * 288, dtype=np.float32).reshape(3, 288)
    bundle = write_bundle(tmp_path / "pictures", SPEC, WEIGHTS, between, between)
    np.testing.assert_array_equal(bundle.calibration(), between)


def test_a_vector_observation_in_uint8_is_refused(tmp_path: Path) -> None:
    network = NetworkSpec((4,))
    spec = replace(SPEC, observation=(ObservationField("state", (3,), "1"),), network=network)
    weights = initial_weights(np.random.default_rng(3), network, (3,), 3, 1.0)
    rows = np.ones((4, 3), np.float32)
    bundle = write_bundle(tmp_path / "vector", spec, weights, rows, rows)
    forged = npz(observations=rows.astype(np.uint8))
    (bundle.path / CALIBRATION_FILE).write_bytes(forged)
    manifest = json.loads((bundle.path / MANIFEST_FILE).read_text())
    record = FileRecord.of(forged)
    manifest["files"][CALIBRATION_FILE] = {"bytes": record.size, "sha256": record.sha256}
    (bundle.path / MANIFEST_FILE).write_text(json.dumps(manifest))
    with refused(BundleError, "bundle", shows=["'observations'"]):
        Bundle.load(bundle.path)


def test_versions_name_the_suites_that_were_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", types.ModuleType("ale_py"))
    monkeypatch.setattr("quarl.train.runs.results.metadata.version", lambda name: f"{name} 1.0")
    assert versions()["ale-py"] == "ale-py 1.0"
    monkeypatch.delitem(sys.modules, "ale_py")
    assert "ale-py" not in versions() and versions()["numpy"] == "numpy 1.0"
