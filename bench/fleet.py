"""What does a rollout to a fleet take, and what becomes of each device when things go wrong?

    python bench/fleet.py
    python bench/fleet.py --devices 12 --soak 1
    python bench/fleet.py --fleet fleet.toml            # to devices of yours, three virtual Pis for example

The embedded fleet, over SSH on loopback, in a folder of its own. Seven rollouts: to a fleet that is well; to one with
faults; again once they are healed, and once more; one that is killed, and the same command again; one whose canaries
fall. Of each the time, processor time, memory and bytes of the command, what it tells of the devices, and what their
own files say. Exit status 1 where a device is half done or something was told that its files do not say. To devices of
a fleet.toml: a first rollout, the same again, another precision, and one whose canary falls.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line
from bench.answer_command import AnswerCommand

POLICY = "I"
FEWEST, MOST = 6, 999

_devices = command_line.checked(int, lambda value: FEWEST <= value <= MOST, f"is none of {FEWEST} to {MOST} devices")
_seconds = command_line.checked(float, lambda value: 0 <= value <= 3600, "is no number of seconds from 0 to 3600")


def main(argv: Sequence[str] | None = None) -> int:
    """Roll out, look, print, keep."""
    parser = answer_command.parser(__doc__, "bench/fleet.py")
    parser.add_argument("--devices", type=_devices, default=200, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--parallel", type=command_line.positive, default=16, metavar="N", help="devices at a time, default %(default)s"
    )
    parser.add_argument("--soak", type=_seconds, default=5.0, metavar="S", help="of each phase, default %(default)g s")
    parser.add_argument("--fleet", type=Path, metavar="FILE", help="the devices of this fleet.toml instead")
    arguments = parser.parse_args(argv)
    return (ANSWER if arguments.fleet is None else NAMED).run(arguments)


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    from bench.fleet_rollout import arena, ill, steps
    from device.host.local_fleet.layout import device_names
    from device.host.local_fleet.namespaces import own_namespace

    names = device_names(arguments.devices)
    prefix, why = own_namespace("mount")
    if why:
        command_line.say(f"No disk is filled, which needs a mount namespace: {why}.")
    faults = ill.chosen(names, steps.CANARIES, [ill.FULL] if why else [])
    small = [name for name, what in faults.items() if what == ill.FULL]
    command_line.say(f"starting {len(names)} devices …")
    with arena.running(POLICY, len(names), small, prefix if small else []) as made:
        run = steps.Run(made, faults, arguments.parallel, arguments.soak, command_line.say)
        compared, rows = list(run.compared()), list(run.rows())
    counted = Counter(faults.values())
    return {
        "policy": POLICY,
        "devices": len(names),
        "parallel": arguments.parallel,
        "canaries": steps.CANARIES,
        "batch": steps.BATCH,
        "soak_s": arguments.soak,
        "faults": {what: counted[what] for what in ill.SHARES if counted[what]},
        "left_out": {ill.FULL: why} if why else {},
        "slow": {"bytes_per_s": ill.SLOW_BYTES_PER_S, "delay_s": ill.SLOW_DELAY_S},
        "killed_at": run.third,
        "steps": rows,
        "compared": compared,
        "wrong": run.wrong,
    }


def _tables() -> dict[str, Any]:
    from bench.tables import fleet

    return {"fleet": fleet.FLEET.table}


def _amounts(document: answer_command.Document) -> dict[tuple[str, ...], int]:
    steps: dict[tuple[str, ...], int] = {(each["step"],): document["devices"] for each in document["steps"]}
    return {**steps, **{(what,): count for what, count in document["faults"].items()}}


def _ask_named(arguments: argparse.Namespace) -> dict[str, Any]:
    from bench.fleet_rollout import named

    return named.rollouts(arguments.fleet, POLICY, arguments.soak, command_line.say)


def _named_tables() -> dict[str, Any]:
    from bench.tables import fleet

    return {"fleet-pis": fleet.NAMED.table}


ANSWER = AnswerCommand(
    name="fleet",
    command="bench/fleet.py",
    ask=_ask,
    tables=_tables,
    amounts=_amounts,
    unit="devices",
    holds=lambda document: not document["wrong"],
)
NAMED = AnswerCommand(
    name="fleet-pis",
    command="bench/fleet.py --fleet fleet.toml",
    ask=_ask_named,
    tables=_named_tables,
    amounts=lambda document: {(each["step"],): document["devices"] for each in document["steps"]},
    unit="devices",
    holds=lambda document: bool(document["holds"]),
)


if __name__ == "__main__":
    raise SystemExit(main())
