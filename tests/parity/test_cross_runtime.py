"""The same artifact in tflite-runtime, LiteRT and onnxruntime on 1,000 real observations: the same actions.

Real observations are those that a policy sees while it flies the navigation task on the hard preset. fp32 has to agree
always; fp16 and int8 on 99.5 %, and what disagrees has to be a near-tie, which is printed with its gap in output steps
(``pytest -rP tests/parity`` shows it).

The policies are those of the zoo, and three of the sizes of I, II and III whose random hidden layers carry a head that
is fitted to the blind policy's actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from quarl.airlearning_envs.config import preset
from quarl.airlearning_envs.flights import blind_policy, fly
from quarl.airlearning_envs.rules import ACTION_NAMES
from quarl.airlearning_envs.task import CONTROL_PERIOD_S, OBSERVATION_FIELDS
from quarl.convert.executor import ExecutionResult, RuntimeProcess, runtime_processes
from quarl.convert.pipeline import build, check_parities
from quarl.convert.reference import Reference
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.pilot import watch_observations
from quarl.policy.places import ZOO
from quarl.policy.reference import compute_activations, forward_float
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    Precision,
    RuntimeName,
    weight_shapes,
)
from quarl.train.deciding import reference

OBSERVATIONS = 1_000
EPISODES = 250
# Of the paired int8 artifacts' near-ties: the gap between the two chosen logits, in steps of the logits' scale.
WIDEST_TIE_STEPS = 3.0
SIZES = {"as-I": (64, 64, 64), "as-II": (256, 256, 256), "as-III": (4096, 512, 1024)}

Runtimes = dict[RuntimeName, RuntimeProcess]


@dataclass(frozen=True)
class Difference:
    """An observation on which two executions choose different actions; ``gap``: of the outputs of these actions."""

    observation: int
    here: int
    there: int
    gap: float


def differences(ours: ExecutionResult, theirs: ExecutionResult) -> Iterator[Difference]:
    for index in np.flatnonzero(ours.actions != theirs.actions):
        chosen = [int(ours.actions[index]), int(theirs.actions[index])]
        gap = max(float(np.ptp(outputs[index][chosen])) for outputs in (ours.outputs, theirs.outputs))
        yield Difference(int(index), chosen[0], chosen[1], gap)


def executed_everywhere(
    bundle: Bundle, precision: Precision, observations: np.ndarray, processes: Runtimes
) -> tuple[dict[RuntimeName, ExecutionResult], Reference]:
    """A precision's artifacts, judged on the golden vectors and then executed on the observations, in each runtime."""
    made = {kind: build(bundle, precision, kind) for kind in dict.fromkeys(each.artifact_format for each in processes)}
    for built in made.values():
        check_parities(bundle, built, processes)
    executed = {
        runtime: processes[runtime].execute(bundle.spec, made[runtime.artifact_format].data, observations)
        for runtime in processes
    }
    return executed, next(iter(made.values())).reference


def flown_observations(decide: Callable[[np.ndarray], np.ndarray], count: int, seed: int, episodes: int) -> np.ndarray:
    """Different observations (count, 32) of many episodes of the hard preset, spread evenly over all decisions."""
    seen: list[np.ndarray] = []
    fly(
        preset("hard"),
        watch_observations(decide, lambda each: seen.append(each.copy())),
        episodes,
        seed,
        batch=episodes,
    )
    flown = np.concatenate(seen)
    # A policy that hovers sees the same again and again.
    flown = flown[np.sort(np.unique(flown, axis=0, return_index=True)[1])]
    assert len(flown) >= count
    return flown[np.linspace(0, len(flown) - 1, count).astype(int)]


@pytest.fixture(scope="session")
def runtimes() -> Iterator[Runtimes]:
    with runtime_processes() as started:
        yield started


@pytest.fixture(scope="session")
def blind_observations() -> np.ndarray:
    return flown_observations(blind_policy, 4_000, seed=20, episodes=500)


def fitted_bundle(path: Path, name: str, observations: np.ndarray) -> Bundle:
    """Random hidden layers under a head that is fitted, by ridge regression, to what the blind policy does."""
    random = np.random.default_rng(7)
    mean, scale = observations.mean(axis=0), observations.std(axis=0) + 1e-3
    spec = PolicySpec(
        name=name,
        observation=OBSERVATION_FIELDS,
        normaliser=Normaliser(tuple(map(float, mean)), tuple(map(float, scale)), 10.0),
        network=NetworkSpec(SIZES[name]),
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/Navigation-v0", {"preset": "hard"}),
    )
    weights = {
        key: (random.normal(0.0, 1.0, shape) * (np.sqrt(2.0 / shape[0]) if len(shape) == 2 else 0.1)).astype(np.float32)
        for key, shape in weight_shapes(spec).items()
    }
    hidden = compute_activations(spec, weights, observations)[-2].astype(np.float64)
    wanted = 10.0 * np.eye(len(ACTION_NAMES))[blind_policy(observations)]
    design = np.column_stack([hidden, np.ones(len(hidden))])
    # (XᵀX + λ I) W = Xᵀ Y
    gram = design.T @ design + 1e-2 * len(hidden) * np.eye(design.shape[1])
    solved = np.linalg.solve(gram, design.T @ wanted).astype(np.float32)
    weights |= {"head/kernel": np.ascontiguousarray(solved[:-1]), "head/bias": np.ascontiguousarray(solved[-1])}
    return write_bundle(path, spec, weights, observations[:2_000], observations[2_000:2_200])


def left_to_all(name: str) -> object:
    """Random hidden layers, and the largest policy, are looked at by make test-all."""
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(scope="session", params=[*map(left_to_all, [*SIZES, "III"]), "I", "II"])
def policy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, blind_observations: np.ndarray
) -> tuple[Bundle, np.ndarray]:
    """(bundle, 1,000 observations from flights of its policy; of the blind policy, where it only imitates that)."""
    if request.param in SIZES:
        bundle = fitted_bundle(tmp_path_factory.mktemp("bundles") / "policy", request.param, blind_observations)
        return bundle, flown_observations(blind_policy, OBSERVATIONS, 30, EPISODES)
    bundle = Bundle.load(ZOO / request.param)
    return bundle, flown_observations(reference(bundle, Precision.FP32), OBSERVATIONS, 30, EPISODES)


def test_the_observations_are_real_and_various(policy: tuple[Bundle, np.ndarray]) -> None:
    bundle, observations = policy
    bundle.spec.check_observation(OBSERVATION_FIELDS)
    assert observations.shape == (OBSERVATIONS, 32)
    chosen = forward_float(bundle.spec, bundle.weights(), observations).argmax(axis=1)
    assert len(np.unique(chosen)) >= 3, "a policy that always does the same would agree with anything"
    assert len(np.unique(observations, axis=0)) == OBSERVATIONS


def test_fp32_chooses_the_same_action_in_every_runtime_always(
    policy: tuple[Bundle, np.ndarray], runtimes: Runtimes
) -> None:
    bundle, observations = policy
    results, _ = executed_everywhere(bundle, Precision.FP32, observations, runtimes)
    expected = forward_float(bundle.spec, bundle.weights(), observations).argmax(axis=1)
    for runtime, execution in results.items():
        np.testing.assert_array_equal(execution.actions, expected, err_msg=f"{bundle.spec.name} in {runtime.value}")


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_smaller_artifacts_disagree_only_on_near_ties(
    policy: tuple[Bundle, np.ndarray], runtimes: Runtimes, precision: Precision
) -> None:
    bundle, observations = policy
    results, reference = executed_everywhere(bundle, precision, observations, runtimes)
    assert set(results) == set(RuntimeName)
    first, *others = results.values()
    found = {each.observation: each for other in others for each in differences(first, other)}
    print(f"policy {bundle.spec.name}, {precision.value}: {len(found)} of {OBSERVATIONS} observations disagree")
    listed = "\n".join(f"  {each}" for each in found.values())
    print(listed)
    assert len(found) <= 0.005 * OBSERVATIONS, f"too many disagreements:\n{listed}"
    widest = 2 * reference.tolerance.max() if reference.step is None else WIDEST_TIE_STEPS * reference.step.max()
    assert all(disagreement.gap <= widest for disagreement in found.values()), (
        f"a disagreement that is no near-tie:\n{listed}"
    )
