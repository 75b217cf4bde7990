"""The simulator flown on the device: each decision goes through the runtime, one observation at a time, as deployed."""

from __future__ import annotations

import base64
import dataclasses
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.device.agent import conditions
from quarl.device.agent.measure import Statistics
from quarl.device.agent.operations import FlyEpisodes
from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.device.agent.serving import Serving
from quarl.policy.history import remembers
from quarl.policy.pilot import Histories
from quarl.policy.spec import ContinuousHead, DiscreteHead

CONFIDENCE = 0.95
MAX_TIMED = 200_000
MEANS = ("flight_time_s", "distance_m", "energy_j", "episode_return")


class TimedPilot:
    """Decides for a batch of drones row by row, and keeps the time of each inference in ns.

    A drone that has ended stays in its row while the rest of the batch flies on; such a row is not decided again.

    Attributes:
        decisions: inferences.
        times_ns: time of each of the first MAX_TIMED of them; more would fill a small device's memory.
    """

    def __init__(self, serving: Serving) -> None:
        spec = serving.bundle.spec
        self._serving, self._executor = serving, serving.executor
        self._histories = Histories(spec.observation) if remembers(spec.observation) else None
        self._flying: NDArray[np.bool_] = np.ones(0, bool)
        self._actions: NDArray[Any] = np.zeros(0, np.int64)
        self._states = np.zeros((0, spec.state_size), np.float32)
        self.decisions = 0
        self.times_ns = array("q")

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Episodes begin in the rows (E,) of the mask."""
        if len(mask) != len(self._flying):
            self._flying = np.ones(len(mask), bool)
            self._states = np.zeros((len(mask), self._states.shape[1]), np.float32)
        if self._histories is not None:
            self._histories.begin(mask)

    def end(self, mask: NDArray[np.bool_]) -> None:
        """No more episodes are flown in the rows (E,) of the mask."""
        self._flying = ~mask

    def __call__(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return what this period brings of each drone, (E, …) float32, to actions: int64 (E,), or float32 (E, A)."""
        observations = values if self._histories is None else self._histories.observe(values)
        decided, clock = [], time.perf_counter_ns
        rows = np.flatnonzero(self._flying)
        for row in rows:
            observation = np.ascontiguousarray(observations[row : row + 1])
            start = clock()
            action = self._executor.decide(observation)
            elapsed = clock() - start
            self._serving.finite_outputs("an observation of these flights")
            self._states[row] = self._executor.state()
            if len(self.times_ns) < MAX_TIMED:
                self.times_ns.append(elapsed)
            decided.append(action)
        self.decisions += len(rows)
        if len(rows) == len(observations):
            self._actions = np.asarray(decided)
        elif decided:
            self._actions[rows] = decided
        if self._histories is not None:
            self._histories.record_action(self._actions, self._states)
        return self._actions.copy()


def fly_episodes(serving: Serving, request: FlyEpisodes, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Fly episodes; returns the reply of the ``episodes`` operation.

    Raises:
        AgentError: the simulator is not installed, or a setting is not known to it.
        SpecError: the settings make another observation than the policy's; names the field.
    """
    try:
        from quarl.airlearning_envs.config import preset
        from quarl.airlearning_envs.errors import SettingsError
        from quarl.airlearning_envs.flights import FlightResults, fly, select_observation
        from quarl.airlearning_envs.rules import ACTION_NAMES
    except ImportError as error:
        raise AgentError(
            ErrorCode.UNAVAILABLE, f"the simulator is missing on this device ({error}).", "Deploy again: quarl deploy."
        ) from error
    try:
        config = preset(request.preset).with_settings(request.settings)
    except (SettingsError, OverflowError) as error:
        raise AgentError(ErrorCode.BAD_FIELD, str(error), 'Type {"op": "help"} for an example.') from error
    spec = serving.bundle.spec
    fields, observe = select_observation(spec.observation, config)
    spec.check_observation(fields)
    if (type(spec.head), spec.output_size) not in ((DiscreteHead, len(ACTION_NAMES)), (ContinuousHead, 3)):
        raise AgentError(
            ErrorCode.SPEC,
            f"policy {spec.name!r} must choose one of {len(ACTION_NAMES)} actions or give 3 continuous commands to "
            f"fly in the simulator, got {spec.output_size} outputs.",
            "Load a policy that was trained on the navigation task.",
        )
    pilot = TimedPilot(serving)
    begin, before = time.perf_counter(), conditions.look()
    results: FlightResults = fly(
        config, pilot, request.episodes, request.seed, request.batch, progress, observe=observe
    )
    after, wall = conditions.look(), time.perf_counter() - begin
    serving.decisions += pilot.decisions
    reasons = conditions.invalid_reasons([before, after])
    return {
        "loaded": serving.to_dict(),
        "preset": request.preset,
        "settings": dict(request.settings),
        "task": config.digest(),
        "episodes": request.episodes,
        "seed": request.seed,
        "batch": request.batch,
        "success": {
            "count": int(results.success.sum()),
            "rate": results.success_rate(),
            "interval": list(results.interval()),
            "confidence": CONFIDENCE,
        },
        "causes": results.causes(),
        "mean": _means(results, np.ones(request.episodes, bool)),
        "mean_of_successes": _means(results, results.success),
        "success_bits": base64.b64encode(np.packbits(results.success).tobytes()).decode(),
        "decisions": pilot.decisions,
        "decision_ns": vars(Statistics.of(sorted(pilot.times_ns))),
        "wall_s": round(wall, 3),
        "throttled_before": dataclasses.asdict(before)["throttled"],
        "throttled_after": dataclasses.asdict(after)["throttled"],
        "valid": not reasons,
        "invalid_reasons": reasons,
    }


def _means(results: Any, mask: NDArray[np.bool_]) -> dict[str, float | None]:
    arrays = dataclasses.asdict(results)
    return {
        name.removeprefix("episode_"): float(arrays[name][mask].mean(dtype=np.float64)) if mask.any() else None
        for name in MEANS
    }
