"""Does a policy fly through MAVLink as it flies without? The same episodes both ways, over one served loop.

    make robots
    python bench/mavlink.py --policy I,II,III --episodes 100

The embedded simulator is the vehicle: it speaks MAVLink over UDP on the loopback with examples/mavlink.py, which joins
the policy's loop as a companion computer does. Time is simulated: each period waits for its setpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line
from bench.answer_command import AnswerCommand


def main(argv: Sequence[str] | None = None) -> int:
    """Fly both ways, print, keep."""
    parser = answer_command.parser(__doc__, "bench/mavlink.py")
    parser.add_argument("--policy", type=command_line.words, default=["I"], help="one or several (default: I)")
    parser.add_argument("--precision", type=command_line.read_precisions, default="int8", help="one; default: int8")
    parser.add_argument("--preset", type=_presets, default="shipped,hard", help="default: %(default)s")
    parser.add_argument("--episodes", type=command_line.positive, default=100, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=7, help="default: %(default)s")
    return ANSWER.run(parser.parse_args(argv))


def _presets(text: str) -> list[str]:
    from airlearning_envs.config import PRESETS

    if unknown := [name for name in command_line.words(text) if name not in PRESETS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; allowed are {', '.join(PRESETS)}")
    return command_line.words(text)


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    requested = {"episodes": arguments.episodes, "seed": arguments.seed, "precision": arguments.precision[0].value}
    return {**requested, "flown": list(_flown(arguments))}


def _flown(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from bench.device_session.access import bundle_with
    from bench.flight_controller.flying import flown_through, flown_without, served
    from policy.spec import RuntimeName

    for name in arguments.policy:
        bundle = bundle_with(name, arguments.precision, RuntimeName.LITERT)
        for preset in arguments.preset:
            task = preset, arguments.episodes, arguments.seed
            with served(bundle, arguments.precision[0]) as path:
                command_line.say(f"Policy {name}: {arguments.episodes} episodes of {preset} as they are …")
                without = [asdict(flight) for flight in flown_without(path, *task)]
                command_line.say(f"Policy {name}: the same through MAVLink …")
                through = [asdict(flight) for flight in flown_through(path, *task)]
            yield {"policy": name, "preset": preset, "without": without, "through": through}


def _tables() -> dict[str, Any]:
    from bench.tables import mavlink

    return {"mavlink": mavlink.MAVLINK.table}


ANSWER = AnswerCommand(
    name="mavlink",
    command="bench/mavlink.py",
    ask=_ask,
    tables=_tables,
    amounts=lambda document: {(each["policy"], each["preset"]): document["episodes"] for each in document["flown"]},
    unit="episodes",
)

if __name__ == "__main__":
    raise SystemExit(main())
