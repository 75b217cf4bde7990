"""Fly episodes with a policy, in the embedded simulator or in AirSim, and say how often it reached the goal.

        quarl fly --policy III --episodes 100 --preset hard
        quarl fly --policy III --simulator airsim --address 127.0.0.1:41451 --episodes 100

The policy is ``blind``, ``random``, or a bundle (``III``, or its folder), which is flown with the numpy forward pass.
--simulator airsim needs AirSim, Colosseum or Cosys-AirSim, or the server that stands in for them:
``quarl airsim``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from quarl import cli
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.flights import CutShortError, FlightResults, fly
from quarl.airlearning_envs.record import check_film, draw_film, fly_scenes, load_decide, progress_bar
from quarl.airlearning_envs.render import Scene
from quarl.airlearning_envs.simulators.opening import (
    SimulatorOptions,
    json_object,
    open_simulator,
    simulator_options,
)
from quarl.airlearning_envs.task import NavigationTask

BATCH = 64
"""Drones at once in the embedded simulator."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(SimulatorOptions):
    """Fly a navigation policy.

    Attributes:
        policy: blind, random, or a bundle's name or folder
        preset: an arena: easy, medium, shipped, hard
        episodes: to fly
        seed: of the episodes
        settings: of the task as JSON, e.g. '{"latency": 0.2}'
        record: film the first episode: a .gif or .mp4
        json: print the result as JSON
    """

    policy: str = "blind"
    preset: str = "hard"
    episodes: PositiveInt = 100
    seed: int = 7
    settings: Annotated[dict[str, Any], cli.reads(json_object, "JSON", accepts_keys=False, show_default=False)] = field(
        default_factory=dict
    )
    record: Annotated[Path | None, Parameter(metavar="FILE")] = None
    json: bool = False


def report(arguments: Options, simulator: Any, results: FlightResults) -> dict[str, Any]:
    """Return what came of the flights, as JSON values."""
    low, high = results.interval()
    reached = results.success
    return {
        "policy": arguments.policy,
        "preset": arguments.preset,
        "settings": arguments.settings,
        "simulator": arguments.simulator,
        "through": getattr(simulator, "through", "numpy"),
        "seed": arguments.seed,
        "episodes": results.episodes,
        "successes": int(reached.sum()),
        "rate": results.success_rate(),
        "interval": [low, high],
        "causes": results.causes(),
        "mean_flight_time_s": float(results.flight_time_s[reached].mean()) if reached.any() else None,
        "mean_distance_m": float(results.distance_m[reached].mean()) if reached.any() else None,
        "not_counted": dict(Counter(results.spoiled)),
        "notes": list(getattr(simulator, "notes", [])),
    }


def in_words(found: dict[str, Any]) -> str:
    """Return the report for a person."""
    low, high = found["interval"]
    causes = ", ".join(f"{cause.replace('_', ' ')} {count}" for cause, count in found["causes"].items() if count)
    lines = [
        f"{found['policy']} on {found['preset']}, {found['simulator']} ({found['through']}):",
        f"  {found['successes']} of {found['episodes']} episodes reached the goal: {100 * found['rate']:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %)",
        f"  ended by: {causes}",
    ]
    if found["mean_flight_time_s"] is not None:
        lines.append(f"  to the goal: {found['mean_flight_time_s']:.1f} s, {found['mean_distance_m']:.1f} m on average")
    lines += [f"  not counted, flown again: {count} x {reason}" for reason, count in found["not_counted"].items()]
    lines += [f"  note: {note}" for note in found["notes"]]
    return "\n".join(lines)


@cli.verb(left="nothing was flown.")
def run(options: Options) -> int:
    """Fly episodes with a policy and print how often it reached the goal.

        quarl fly --policy III --episodes 100 --preset hard
        quarl fly --policy III --simulator airsim --address 127.0.0.1:41451 --episodes 100

    Exit status: 0 done, 1 cut short (the finished episodes are printed), 2 wrong arguments, 130 interrupted.
    """
    if options.record is not None:
        check_film("--record", options.record)
    config = NavigationConfig.from_settings({"preset": options.preset, **options.settings})
    decide, observe = load_decide(options.policy, config, options.seed)
    simulator = open_simulator(options.simulator, config, simulator_options(options))
    film = _Film()
    status = 0
    try:
        with progress_bar(f"flying {options.policy}", options.episodes) as progress:
            try:
                one: dict[str, Any] = {"batch": BATCH, "observe": observe}
                if simulator is not None:
                    one |= {"batch": 1, "simulator": simulator, "watch": film.watch}
                results = fly(config, decide, options.episodes, options.seed, progress=progress, **one)
            except CutShortError as error:
                results = error.finished
                status = cli.EXIT_FAILED
                if isinstance(error.reason, KeyboardInterrupt):
                    status = cli.EXIT_INTERRUPTED
                else:
                    print(f"fly: {error}", file=sys.stderr)
    finally:
        if simulator is not None:
            simulator.close()
    summary = report(options, simulator, results)
    if options.record is not None:
        # The embedded simulator flies the episode once more.
        scenes = film.scenes or fly_scenes(config, decide, 0, options.seed, observe)
        draw_film(
            options.record, config, scenes, f"{options.preset}, policy {Path(options.policy).name}, {options.simulator}"
        )
        summary["record"] = str(options.record)
    print(json.dumps(summary, indent=1) if options.json else in_words(summary))
    return status


class _Film:
    """The scenes of the first episode."""

    def __init__(self) -> None:
        self.scenes: list[Scene] = []

    def watch(self, core: NavigationTask) -> None:
        """Keep what is seen now; a flight that does not count is begun again."""
        if core.episode_id[0] == 0:
            if not core.steps[0]:
                self.scenes = []
            self.scenes.append(Scene.of(core, 0))


main = cli.of("fly")

if __name__ == "__main__":
    raise SystemExit(main())
