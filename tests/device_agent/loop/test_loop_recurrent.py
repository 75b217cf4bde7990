"""A recurrent policy in the loop: its state goes on with each new period, waits with a held one, begins with START."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.pipeline import convert_all
from quarl.device.agent.loop.client import Client, LoopError
from quarl.device.agent.loop.frames import Flag
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.history import History
from quarl.policy.reference import forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision
from tests.convert.importers.test_opaque import imported, integrator
from tests.device_agent.conftest import add_artifacts
from tests.device_agent.loop.loops import PATIENCE_S, LoopProcess, in_python, next_where
from tests.recurrent_policies import episodes, recurrent_spec, weights_of

NATIVE = ("--precision=int8", "--runtime=native", "--fallback=0", "--priority=0", "--stale-ms=60000")
EVENT = ("--pace=observation", "--rate=0.1")
CLOCK = ("--pace=clock", "--rate=50", "--deadline-ms=100000")
VALUES = np.linspace(-1.0, 1.0, 7).astype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = recurrent_spec("gru")
    weights = weights_of(spec)
    rows = episodes(spec, weights, 300)
    return add_artifacts(write_bundle(tmp_path_factory.mktemp("gru") / "gru", spec, weights, rows[:240], rows[240:]))


@pytest.fixture
def served(bundle: Bundle, start_any: Callable[..., LoopProcess]) -> Iterator[Client]:
    """A controller of a loop that answers each period at once."""
    with start_any(in_python(bundle.path), *NATIVE, *EVENT).connect() as client:
        yield client


def decide(client: Client, values: Any, *, start: bool = False) -> tuple[Flag, np.ndarray]:
    """The flags and outputs of the action for one period."""
    sequence = client.send(values, start=start)
    action = next_where(client, lambda a: a.sequence == sequence)
    return action.flags, np.array(action.outputs)


def test_each_period_goes_on_where_the_last_one_ended(bundle: Bundle, served: Client) -> None:
    spec, weights = bundle.spec, bundle.weights()
    network, history = quantize_network(spec, weights, bundle.calibration()), History(spec.observation)
    rng = np.random.default_rng(8)
    for period in range(12):
        start = period in (0, 7)
        values = rng.standard_normal(7).astype(np.float32)
        flags, outputs = decide(served, values, start=start)
        if start:
            history.reset()
        wanted = forward_integer(spec, network, np.array(history.observe(values), np.float32))[0]
        np.testing.assert_allclose(outputs, wanted[:3], atol=2e-2)
        assert flags == Flag(0)
        history.record_action((), wanted[3:])


def test_the_state_of_an_opaque_program_goes_on(tmp_path: Path, start_any: Callable[..., LoopProcess]) -> None:
    bundle = imported(integrator(tmp_path))
    convert_all([bundle], [Precision.FP32], [ArtifactFormat.ONNX])
    loop = start_any(in_python(bundle.path), "--precision=fp32", "--fallback=0,0", "--priority=0", *EVENT)
    history, rng = History(bundle.spec.observation), np.random.default_rng(8)
    with loop.connect() as client:
        for _ in range(12):
            values = rng.standard_normal(5).astype(np.float32)
            flags, outputs = decide(client, values)
            wanted = forward_float(bundle.spec, bundle.weights(), np.array(history.observe(values), np.float32))[0]
            np.testing.assert_allclose(outputs, wanted[:2], atol=1e-5)
            assert flags == Flag(0)
            history.record_action((), wanted[2:])


def test_a_held_period_does_not_move_the_state(
    bundle: Bundle, served: Client, start_any: Callable[..., LoopProcess]
) -> None:
    at_once = [decide(served, VALUES * (period + 1), start=period == 0)[1] for period in range(4)]
    loop = start_any(in_python(bundle.path), *NATIVE, *CLOCK)
    with loop.connect() as client:
        for period, wanted in enumerate(at_once):
            flags, outputs = decide(client, VALUES * (period + 1), start=period == 0)
            assert not flags & ~Flag.MISSED  # under a load, a tick may have been skipped before it
            np.testing.assert_array_equal(outputs, wanted)
            held = next_where(client, lambda a: bool(a.flags & Flag.HELD))
            np.testing.assert_array_equal(np.array(held.outputs), wanted)


def test_a_repeated_action_does_not_prolong_its_being_held(
    bundle: Bundle, start_any: Callable[..., LoopProcess]
) -> None:
    always_late = ("--pace=clock", "--rate=50", "--deadline-ms=0.01", "--hold-for-ms=200")
    loop = start_any(in_python(bundle.path), *NATIVE, *always_late)
    with loop.connect() as client:
        client.send(VALUES, start=True)
        over = next_where(client, lambda a: a.sequence == 1 and bool(a.flags & Flag.FALLBACK))
        assert over.flags & Flag.MISSED
        assert loop.status()["counts"]["hold_expired"] >= 1


def test_an_episode_that_was_not_begun_is_noticed(served: Client) -> None:
    made = [decide(served, VALUES, start=start)[1] for start in (True, True, False)]
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[2] - made[1]).max() > 1e-2


def test_a_state_is_not_sent(bundle: Bundle, served: Client) -> None:
    assert served.description.brought_size == 7
    served.send(np.zeros(bundle.spec.observation_size, np.float32))
    with pytest.raises(LoopError, match="7 float32 values"):
        served.receive(PATIENCE_S)


def test_a_period_that_is_not_finite_falls_back_and_leaves_the_state(served: Client) -> None:
    def second(between: bool) -> np.ndarray:
        decide(served, VALUES, start=True)
        if between:
            assert decide(served, np.full(7, np.nan, np.float32))[0] & Flag.FALLBACK
        flags, outputs = decide(served, VALUES)
        assert flags == Flag(0)
        return outputs

    np.testing.assert_array_equal(second(False), second(True))
