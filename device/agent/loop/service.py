"""A loaded artifact as the loop in C takes it: what decides, what answers, and what is served."""

from __future__ import annotations

import ctypes
import gc
import json
import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.device.agent.loop.frames import CONTINUOUS, Flag
from quarl.device.agent.loop.library import ANSWER, DECIDE, Engine, Library, Options, Policy
from quarl.device.agent.operations import Hello, Load, help_reply
from quarl.device.agent.server import Agent
from quarl.device.agent.serving import Serving
from quarl.policy.spec import ContinuousHead, DiscreteHead, MultiDiscreteHead, Precision, RuntimeName

NON_FINITE, UNTRAINED, FAILED = int(Flag.NON_FINITE), int(Flag.UNTRAINED), -1


class Decider:
    """One decision, as struct loop_policy's ``decide`` makes it.

    Args:
        serving: the verified artifact.

    Attributes:
        error: why the policy could not be executed, once it could not.
    """

    def __init__(self, serving: Serving) -> None:
        spec = serving.bundle.spec
        self._serving, self._executor, self._history = serving, serving.executor, serving.history
        self._is_discrete, self._state_size = isinstance(spec.head, DiscreteHead), spec.state_size
        self._to_action: Callable[[Any], Any] = spec.head.to_action
        self._are_several = isinstance(spec.head, MultiDiscreteHead)
        self._sizes = (spec.observation_size, serving.history.values_size)
        self._still = spec.normaliser.still
        self._inputs: dict[tuple[int, int], Any] = {}
        self.error: Exception | None = None

    def _input(self, address: int, is_period: int) -> Any:
        """Return the values at an address as the executor takes them, and as numbers: views, since the loop has few
        places."""
        key = (address, is_period)
        if key not in self._inputs:
            room = (ctypes.c_float * self._sizes[is_period]).from_address(address)
            values = memoryview(room).cast("B").cast("f")
            self._inputs[key] = (values, None if is_period else self._executor.input(values))
        return self._inputs[key]

    def decide(self, context: int, address: int, is_period: int, starts: int, outputs: int, action: Any) -> int:
        """Decide; see loop.h. Whatever goes wrong is kept in ``error``: no exception passes through C."""
        try:
            values, observation = self._input(address, is_period)
            if is_period:
                if starts:
                    self._history.reset()
                values = self._history.observe(values)
                observation = self._executor.input(values)
            choice = self._executor.decide(observation)
            results = self._executor.outputs()
            is_finite = math.isfinite(sum(results.tolist()))
            if not is_finite or (self._state_size and not self._executor.is_finite(self._executor.state())):
                return NON_FINITE
            if self._are_several:
                results = array("f", self._to_action(choice))
            content = results.tobytes()
            ctypes.memmove(outputs, content, len(content))
            action[0] = self._to_action(choice) if self._is_discrete else CONTINUOUS
            if is_period:
                self._serving.settle()
            self._serving.decisions += 1
            moved = any(abs(values[place] - value) > change for place, value, change in self._still)
            return UNTRAINED if moved else 0
        except Exception as error:
            self.error = error
            return FAILED


def serve(
    library: Library, options: Options, bundle: Path, manifest: str = "", release: str = ""
) -> tuple[int, Exception | None]:
    """Load an artifact and serve it in the loop until a signal.

    Args:
        library: the loop.
        options: as typed.
        bundle: the policy's folder.
        manifest: sha256 that the bundle's manifest must have; empty: any.
        release: name of what is served.

    Returns:
        The exit status, and why the policy could not be executed, if that ended it.

    Raises:
        PolicyError: the bundle, the artifact or its golden vectors are not right.
    """
    agent = Agent(bundle, options.threads, manifest=manifest)
    runtime = RuntimeName(options.runtime.decode()) if options.runtime else None
    precision = Precision(options.precision.decode()) if options.precision else Precision.INT8
    agent.load(Load(precision, runtime, options.threads))
    serving = agent.serving
    decider = Decider(serving)
    policy = describe(agent, serving)
    options.release = release.encode()
    callbacks = (DECIDE(decider.decide), ANSWER(answer_with(agent.handle)))
    policy.decide, policy.answer = (ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks)
    if engine := _engine_of(serving):
        policy.decide, policy.context = library.decide_native, ctypes.addressof(engine)
    gc.collect()
    gc.freeze()
    gc.disable()  # what answers makes no circles
    return library.serve(policy, options), decider.error


def _engine_of(serving: Serving) -> Engine | None:
    """Return the native engine where it decides alone: then Python is left out of the loop's path."""
    head, remembers = serving.bundle.spec.head, serving.history.values_size != serving.bundle.spec.observation_size
    if serving.runtime is not RuntimeName.NATIVE or remembers or isinstance(head, MultiDiscreteHead):
        return None
    from quarl.device.agent.native_executor import NativeExecutor

    assert isinstance(serving.executor, NativeExecutor)
    decide, has_moved, engine = serving.executor.in_c
    first = head.start if isinstance(head, DiscreteHead) else 0
    return Engine(decide, has_moved, engine, int(isinstance(head, DiscreteHead)), first)


def describe(agent: Agent, serving: Serving) -> Policy:
    """Return what is served as the loop in C takes it."""
    spec = serving.bundle.spec
    golden, fallback = array("f", serving.rows[0]), array("f", spec.fallback)
    head = spec.head
    bounds = array("d", head.low + head.high if isinstance(head, ContinuousHead) and spec.is_bounded else ())
    output_size = spec.output_size
    if isinstance(head, MultiDiscreteHead):
        output_size = len(head.counts)
        bounds = array("d", [numbers[end] for end in (0, -1) for numbers in head.numbers])
    policy = Policy(
        name=spec.name.encode(),
        served=f"{serving.entry.precision.value} in {serving.runtime.value}".encode(),
        loaded=json.dumps(serving.to_dict()).encode(),
        help=json.dumps(help_reply())[1:-1].encode(),
        hello=json.dumps(agent.answer(Hello()))[1:-1].encode(),
        observation_size=spec.observation_size,
        period_size=serving.history.values_size,
        output_size=output_size,
        state_size=spec.state_size,
        is_discrete=int(isinstance(head, DiscreteHead)),
        first=head.start if isinstance(head, DiscreteHead) else 0,
        are_whole=int(isinstance(head, MultiDiscreteHead)),
        locks_all=1,
        period_ns=round(1e9 * spec.control_period_s),
        golden=golden.buffer_info()[0],
        fallback=fallback.buffer_info()[0] if fallback else None,
        bounds=bounds.buffer_info()[0] if bounds else None,
    )
    policy.kept = (golden, fallback, bounds)  # its pointers point into them
    return policy


def answer_with(handle: Callable[[bytes], bytes]) -> Callable[..., int]:
    """Return struct loop_policy's ``answer``: one line to one reply, cut to the room that there is."""

    def answer(context: int, line: int, size: int, reply: int, room: int) -> int:
        content = handle(ctypes.string_at(line, size))[:room]
        ctypes.memmove(reply, content, len(content))
        return len(content)

    return answer
