"""Flights that this process simulates: a device's decisions, a precision's numpy reference, the blind baseline."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quarl.airlearning_envs.simulators.opening import EMBEDDED
from quarl.bench.command_line import Progress, say
from quarl.bench.report.document import BASELINES, BLIND, RANDOM, Kind, Report, Success, Where
from quarl.policy.spec import Precision

if TYPE_CHECKING:
    from quarl.airlearning_envs.config import NavigationConfig
    from quarl.airlearning_envs.flights import FlightResults, Observe
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import PolicySpec

LOOP_BATCH = 64
"""Drones simulated at a time when the host simulates and the device decides."""
MEANS = ("flight_time_s", "distance_m", "energy_j")
"""Figures of a report that are means over the successful flights."""


@dataclass(frozen=True)
class Flights:
    """Which episodes to fly.

    Attributes:
        preset, settings: of the task; the settings are those that differ from the preset.
        episodes: how many, with the ids 0, 1, …
        seed: with an episode's id it fixes everything about that episode.
        simulator, options: where, see :func:`airlearning_envs.simulators.opening.open_simulator`.
    """

    preset: str = "hard"
    episodes: int = 1000
    seed: int = 7
    settings: Mapping[str, Any] | None = None
    simulator: str = EMBEDDED
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return dict(self.settings or {})


def fly_on_host(
    decide: Callable[[Any], Any],
    flights: Flights,
    where: Where = Where.HOST,
    progress: Progress = lambda done, total: None,
    spec: PolicySpec | None = None,
) -> Success:
    """Fly with any policy; the embedded simulator runs in this process.

    Where another one is lost after some episodes, the success is that of those, and a line on stderr says why.

    Args:
        decide: observations (E, N) to actions (E,).
        flights: which, and where.
        where: the decisions are made.
        progress: is told of each episode.
        spec: of the policy: whether it is shown range rays or depth pictures; None: rays.

    Raises:
        SpecError: the policy does not fly this task.
    """
    import numpy as np

    from quarl.airlearning_envs.config import preset
    from quarl.airlearning_envs.flights import as_it_is, select_observation

    config = preset(flights.preset).with_settings(flights.settings_dict)
    observe: Observe = as_it_is
    if spec is not None:
        fields, observe = select_observation(spec.observation, config)
        spec.check_observation(fields)
    results, through = _fly(config, decide, flights, progress, observe)
    low, high = results.interval()
    reached = results.success
    means = {name: getattr(results, name)[reached].mean(dtype=np.float64) if reached.any() else None for name in MEANS}
    return Success(
        where=where,
        preset=flights.preset,
        settings=flights.settings_dict,
        task=config.digest(),
        simulator=through,
        episodes=results.episodes,
        seed=flights.seed,
        successes=int(reached.sum()),
        rate=results.success_rate(),
        low=low,
        high=high,
        outcomes=base64.b64encode(np.packbits(reached).tobytes()).decode(),
        causes=results.causes(),
        decide_p50_ns=None,
        **{name: None if mean is None else float(mean) for name, mean in means.items()},
    )


def _fly(
    config: NavigationConfig,
    decide: Callable[[Any], Any],
    flights: Flights,
    progress: Progress,
    observe: Observe,
) -> tuple[FlightResults, str | None]:
    """Return the flights, and which simulator's they are, in words; None for the embedded one."""
    from quarl.airlearning_envs.flights import CutShortError, fly
    from quarl.airlearning_envs.simulators.opening import open_simulator

    simulator = open_simulator(flights.simulator, config, flights.options)
    if simulator is None:
        return fly(config, decide, flights.episodes, flights.seed, LOOP_BATCH, progress, observe=observe), None
    with closing(simulator):
        try:
            results = fly(config, decide, flights.episodes, flights.seed, 1, progress, simulator, observe=observe)
        except CutShortError as error:
            results = error.finished
            say(f"cut short after {results.episodes} episodes: {error}")
    for note in getattr(simulator, "notes", []):
        say(f"note: {note}")
    for reason, count in Counter(results.spoiled).items():
        say(f"not counted, flown again: {count} x {reason}")
    return results, str(getattr(simulator, "through", flights.simulator))


def baseline_reports(flights: Flights, target: str, run: str) -> list[Report]:
    """Flying straight to the goal, and any action, on the same episodes; they need no device."""
    from quarl.airlearning_envs.flights import blind_policy, random_policy
    from quarl.device.agent.fingerprint import fingerprint

    policies = {BLIND: blind_policy, RANDOM: random_policy(flights.seed)}
    return [
        Report(
            kind=Kind.SUCCESS,
            run=run,
            policy=name,
            runtime="none",
            target=target,
            device=fingerprint(),
            success=fly_on_host(policies[name], flights),
        )
        for name in BASELINES
    ]


def host_success(bundle: Bundle, precision: Precision, flights: Flights, run: str, progress: Progress) -> Report:
    """Fly the numpy reference: what an artifact of this precision would do if its runtime rounded as policy/ does.

    Raises:
        SpecError: the policy does not fly this task.
    """
    import numpy as np

    from quarl.device.agent.fingerprint import fingerprint
    from quarl.train.deciding import reference

    return Report(
        kind=Kind.SUCCESS,
        run=run,
        policy=bundle.spec.name,
        precision=precision.value,
        runtime="numpy",
        runtime_version=np.__version__,
        target="local",
        device=fingerprint(),
        success=fly_on_host(reference(bundle, precision), flights, progress=progress, spec=bundle.spec),
        notes=("numpy reference on the host; no artifact was executed",),
    )
