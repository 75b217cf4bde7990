"""A recurrent policy in the loop: its state goes on with each new period, waits with a held one, begins with START."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quarl.convert.pipeline import convert_all
from quarl.device.agent import serving as serving_module
from quarl.device.agent.loop import pacing
from quarl.device.agent.loop.deciding import Decider, Inbox
from quarl.device.agent.loop.frames import HEADER, MAGIC, Flag, Kind
from quarl.device.agent.loop.notifying import Notifier
from quarl.device.agent.loop.options import OnMiss, Pace
from quarl.device.agent.loop.pacing import Loop, Timing
from quarl.device.agent.memory import MemoryLog
from quarl.device.agent.operations import Load
from quarl.device.agent.serving import load
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.history import History
from quarl.policy.reference import forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.convert.importers.test_opaque import imported, integrator
from tests.device_agent.conftest import add_artifacts
from tests.recurrent_policies import episodes, recurrent_spec, weights_of

Feed = Callable[..., int]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = recurrent_spec("gru")
    weights = weights_of(spec)
    rows = episodes(spec, weights, 300)
    return add_artifacts(write_bundle(tmp_path_factory.mktemp("gru") / "gru", spec, weights, rows[:240], rows[240:]))


@pytest.fixture
def decider(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Decider:
    monkeypatch.setattr(serving_module, "imported_runtime", lambda: None)  # another test of this process may have one
    serving = load(bundle.path, Load(Precision.INT8, RuntimeName.NATIVE), 1, MemoryLog())
    return Decider(serving, (0.0,), 1, stale_ns=10**12)


def feed(decider: Decider, inbox: Inbox, values: np.ndarray, flags: int = 0) -> bool:
    """An observation frame of now."""
    now = time.monotonic_ns()
    HEADER.pack_into(inbox.room, 0, MAGIC, int(Kind.OBSERVATION), flags, len(values), 1, 0, now, 0, 0, 0)
    inbox.room[HEADER.size : HEADER.size + 4 * len(values)] = values.astype(np.float32).tobytes()
    return decider.take(inbox, HEADER.size + 4 * len(values))


def outputs(decider: Decider) -> np.ndarray:
    decider.finish(0, 0)
    return np.frombuffer(bytes(decider.frame[HEADER.size :]), np.float32)


def test_each_period_goes_on_where_the_last_one_ended(bundle: Bundle, decider: Decider) -> None:
    spec, weights = bundle.spec, bundle.weights()
    network, history = quantize_network(spec, weights, bundle.calibration()), History(spec.observation)
    inbox, rng = decider.inbox(0), np.random.default_rng(8)
    for period in range(12):
        start = period in (0, 7)
        values = rng.standard_normal(7).astype(np.float32)
        assert feed(decider, inbox, values, int(Flag.START) if start else 0)
        assert decider.decide(time.monotonic_ns()) == 0
        if start:
            history.reset()
        wanted = forward_integer(spec, network, np.array(history.observe(values), np.float32))[0]
        np.testing.assert_allclose(outputs(decider), wanted[:3], atol=2e-2)
        history.acted((), wanted[3:])


def test_the_state_of_an_opaque_program_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "imported_runtime", lambda: None)
    bundle = imported(integrator(tmp_path))
    convert_all([bundle], [Precision.FP32], [ArtifactFormat.ONNX])
    serving = load(bundle.path, Load(Precision.FP32, RuntimeName.ONNXRUNTIME), 1, MemoryLog())
    decider = Decider(serving, (0.0, 0.0), 1, stale_ns=10**12)
    history, inbox, rng = History(bundle.spec.observation), decider.inbox(0), np.random.default_rng(8)
    for _ in range(12):
        values = rng.standard_normal(5).astype(np.float32)
        assert feed(decider, inbox, values)
        assert decider.decide(time.monotonic_ns()) == 0
        wanted = forward_float(bundle.spec, bundle.weights(), np.array(history.observe(values), np.float32))[0]
        np.testing.assert_allclose(outputs(decider), wanted[:2], atol=1e-5)
        history.acted((), wanted[2:])


def test_a_held_period_does_not_move_the_state(decider: Decider) -> None:
    values, inbox = np.linspace(-1.0, 1.0, 7), decider.inbox(0)

    def played(holds: int) -> np.ndarray:
        for period in range(4):
            feed(decider, inbox, values * (period + 1), int(Flag.START) if period == 0 else 0)
            assert decider.decide(time.monotonic_ns()) == 0
            for _ in range(holds):
                assert decider.decide(time.monotonic_ns()) & int(Flag.HELD)
        return outputs(decider)

    np.testing.assert_array_equal(played(0), played(3))


def test_a_repeated_action_does_not_prolong_its_being_held(decider: Decider, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, hold_ns, deadline_ns = time.monotonic_ns(), 10**9, 10**6
    clock = [begun]
    monkeypatch.setattr(pacing, "_clock", lambda: clock[0])
    timing = Timing(10**7, deadline_ns, 10**12, hold_ns, 0, Pace.CLOCK, OnMiss.HOLD)
    connections: Any = SimpleNamespace(controller=object(), send=lambda client, packet: True)
    loop = Loop(timing, decider, connections, Notifier(), lambda line: line)

    def flags(at_ns: int, late_ns: int = 0) -> Flag:
        clock[0] = begun + at_ns + 10**10  # after the observation, whose time is the real clock's
        loop._decide(clock[0], clock[0] - late_ns)
        return Flag(decider.flags)

    values, inbox = np.linspace(-1.0, 1.0, 7), decider.inbox(0)
    feed(decider, inbox, values, int(Flag.START))
    assert flags(0) == Flag(0)
    assert flags(hold_ns // 2) == Flag.HELD  # on time, without a new observation
    feed(decider, inbox, values)
    assert flags(hold_ns, deadline_ns + 1) == Flag.HELD | Flag.MISSED
    feed(decider, inbox, values)
    assert flags(hold_ns + 1, deadline_ns + 1) == Flag.FALLBACK | Flag.MISSED
    feed(decider, inbox, values)
    assert flags(hold_ns + 2) == Flag(0)
    assert loop.punctuality.hold_expired == 1


def test_an_episode_that_was_not_begun_is_noticed(decider: Decider) -> None:
    values, inbox = np.linspace(-1.0, 1.0, 7), decider.inbox(0)
    made = []
    for flags in (int(Flag.START), int(Flag.START), 0):
        feed(decider, inbox, values, flags)
        decider.decide(time.monotonic_ns())
        made.append(outputs(decider))
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[2] - made[1]).max() > 1e-2


def test_a_state_is_not_sent(bundle: Bundle, decider: Decider) -> None:
    assert decider.sizes == [7]
    assert not feed(decider, decider.inbox(0), np.zeros(bundle.spec.observation_size))


def test_a_period_that_is_not_finite_falls_back_and_leaves_the_state(decider: Decider) -> None:
    values, inbox = np.linspace(-1.0, 1.0, 7), decider.inbox(0)

    def second(between: bool) -> np.ndarray:
        feed(decider, inbox, values, int(Flag.START))
        decider.decide(time.monotonic_ns())
        if between:
            feed(decider, inbox, np.full(7, np.nan))
            assert decider.decide(time.monotonic_ns()) & int(Flag.FALLBACK)
        feed(decider, inbox, values)
        assert decider.decide(time.monotonic_ns()) == 0
        return outputs(decider)

    np.testing.assert_array_equal(second(False), second(True))
