"""Fly episodes with a policy, in the embedded simulator or in AirSim, and say how often it reached the goal.

    python -m airlearning_envs.fly --policy III --episodes 100 --preset hard
    python -m airlearning_envs.fly --policy III --simulator airsim --address 127.0.0.1:41451 --episodes 100

The policy is ``blind``, ``random``, or a bundle (``III``, or its folder), which is flown with the numpy forward pass.
--simulator airsim needs AirSim, Colosseum or Cosys-AirSim, or the server that stands in for them:
``python -m airlearning_envs.simulators.airsim.server``.
"""

from __future__ import annotations

if __name__ == "__main__":  # by whatever Python it was typed: go on with the project's
    from quarl.policy import interruption, project_python

    project_python.ensure()
    interruption.loading()

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quarl.airlearning_envs.config import PRESETS, NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import CutShortError, FlightResults, Observe, fly
from quarl.airlearning_envs.progress import progress_bar
from quarl.airlearning_envs.record import frames, load_decide, save_film
from quarl.airlearning_envs.render import Scene
from quarl.airlearning_envs.simulators.opening import (
    add_simulator_arguments,
    json_object,
    open_simulator,
    simulator_options,
)
from quarl.airlearning_envs.task import NavigationTask
from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import as_typed

EXIT_FAILED, EXIT_WRONG = 1, 2
BATCH = 64
"""Drones at once in the embedded simulator."""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m airlearning_envs.fly",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, 1 cut short (the finished episodes are shown), 2 wrong arguments, 130 interrupted",
    )
    parser.add_argument("--policy", default="blind", help="blind, random, or a bundle's name or folder (default blind)")
    parser.add_argument("--preset", default="hard", help=f"one of {', '.join(PRESETS)} (default hard)")
    parser.add_argument("--episodes", type=_positive, default=100, help="default 100")
    parser.add_argument("--seed", type=int, default=7, help="seed of the episodes (default 7)")
    parser.add_argument(
        "--settings", type=json_object, default={}, help="of the task as JSON, e.g. '{\"latency\": 0.2}'"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="film the first episode: a .gif or .mp4")
    parser.add_argument("--json", action="store_true", help="print what came of it as JSON")
    add_simulator_arguments(parser)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of episodes; allowed is 1 or more")
    return int(text)


def report(arguments: argparse.Namespace, simulator: Any, results: FlightResults) -> dict[str, Any]:
    """What came of the flights, as JSON values."""
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
    """The report for a person."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Fly; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        with interruption.interruptible():
            return _run(arguments)
    except (SettingsError, PolicyError, OSError) as error:
        print(as_typed(f"fly: {error}\n  next: {parser.prog} --help"), file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        print("fly: interrupted.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    if arguments.record is not None and arguments.record.suffix.lower() not in (".gif", ".mp4"):
        raise SettingsError(f"--record is {str(arguments.record)!r}; allowed are names that end in .gif or .mp4.")
    config = NavigationConfig.from_settings({"preset": arguments.preset, **arguments.settings})
    decide, observe = load_decide(arguments.policy, config, arguments.seed)
    simulator = open_simulator(arguments.simulator, config, simulator_options(arguments))
    film = _Film()
    status = 0
    try:
        with progress_bar(f"flying {arguments.policy}", arguments.episodes) as progress:
            try:
                one: dict[str, Any] = {"batch": BATCH, "observe": observe}
                if simulator is not None:
                    one |= {"batch": 1, "simulator": simulator, "watch": film.watch}
                results = fly(config, decide, arguments.episodes, arguments.seed, progress=progress, **one)
            except CutShortError as error:
                results = error.finished
                status = EXIT_FAILED
                if isinstance(error.reason, KeyboardInterrupt):
                    status = interruption.EXIT_INTERRUPTED
                else:
                    print(as_typed(f"fly: {error}"), file=sys.stderr)
    finally:
        if simulator is not None:
            simulator.close()
    found = report(arguments, simulator, results)
    if arguments.record is not None:
        film.save(config, decide, observe, arguments)
        found["record"] = str(arguments.record)
    print(json.dumps(found, indent=1) if arguments.json else in_words(found))
    return status


class _Film:
    """The scenes of the first episode."""

    def __init__(self) -> None:
        self._scenes: list[Scene] = []

    def watch(self, core: NavigationTask) -> None:
        """Keep what is seen now; a flight that does not count is begun again."""
        if core.episode_id[0] == 0:
            if not core.steps[0]:
                self._scenes = []
            self._scenes.append(Scene.of(core, 0))

    def save(
        self, config: NavigationConfig, decide: Callable[..., Any], observe: Observe, arguments: argparse.Namespace
    ) -> None:
        """Draw and write it; the embedded simulator flies the episode once more."""
        if not self._scenes:
            fly(config, decide, 1, arguments.seed, 1, None, _embedded(config), self.watch, observe)
        caption = f"{arguments.preset}, policy {Path(arguments.policy).name}, {arguments.simulator}"
        with progress_bar("drawing", len(self._scenes)) as progress:
            pictures = frames(config, self._scenes, caption, progress=progress)
        save_film(arguments.record, pictures)


def _embedded(config: NavigationConfig) -> Any:
    from quarl.airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator

    return EmbeddedSimulator(config, 1)


if __name__ == "__main__":
    sys.exit(main())
