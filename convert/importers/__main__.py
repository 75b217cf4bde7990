"""``python -m convert.importers``: a policy that another program trained becomes a bundle, if it acts as the original.

It prints what it read, what it left out and what it took for granted, compares the bundle's outputs with the original's
in numpy and in every runtime, near the recorded observations and far from them, and writes nothing that differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quarl.convert.importers.chain import ForeignError, Input
from quarl.convert.importers.sources import ACTIONS, KINDS
from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import Parser, refused
from quarl.policy.locate import shown

EXAMPLES = """examples:
  python -m convert.importers ppo.zip --vecnormalize vecnormalize.pkl --task Pendulum-v1 --name swing
  python -m convert.importers policy.onnx --observations rollouts.npz --actions as-is --period 0.02 --name go2
  python -m convert.importers policy.onnx --observations rollouts.npz --fields "speed:3:m/s,joints:12:rad" --dry-run"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="python -m convert.importers", description=__doc__, epilog=EXAMPLES)
    add = made.add_argument
    add("file", type=Path, metavar="FILE", help=f"what the other program wrote: {KINDS}")
    add("--name", help="of the bundle in artifacts/ (default: the file's)")
    add("--task", metavar="ID", help="it flies this task: observations are recorded there, and returns compared")
    add("--observations", type=Path, metavar="NPZ", help="array 'observations', recorded from rollouts, without a task")
    add("--vecnormalize", type=Path, metavar="PKL", help="the statistics beside a Stable-Baselines3 zip")
    add("--actions", choices=ACTIONS, help="what the outputs mean, where the file does not say")
    add("--bounds", metavar="LOW:HIGH", help="of --actions clip or scale: one pair, or one for each output, by commas")
    add("--spec", type=Path, metavar="JSON", help="of a plain file of weights: how they are used (docs/import.md)")
    add("--output", help="of an ONNX graph or a Keras model with several outputs: the one that acts")
    add("--fields", help='the observation: "NAME:SIZE:UNIT,…"; a size is 3 or 84x84x4')
    add("--period", type=float, metavar="SECONDS", help="between two decisions (default: the task's, or the file's)")
    add(
        "--delay", type=float, default=0.0, metavar="SECONDS", help="from observation to effect, as it was trained with"
    )
    add("--golden", type=Path, metavar="NPZ", help="'observations' and 'outputs' of the original, to compare with")
    add("--episodes", type=int, default=20, help="with --task: so many of original and artifacts (default 20; 0: none)")
    add("--output-path", type=Path, metavar="FOLDER", help="of the bundle (default: artifacts/NAME)")
    add("--dry-run", action="store_true", help="read, compare and print; write nothing")
    add("--json", action="store_true", help="print one JSON document")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Import; the exit code is 0, or 1 when something was refused (and then not written)."""
    arguments = parser().parse_args(argv)
    from quarl.convert.importers.importing import import_policy
    from quarl.convert.importers.words import words
    from quarl.train.suites.errors import TaskError

    try:
        with interruption.interruptible():
            done = import_policy(arguments, fields(arguments.fields), bounds(arguments.bounds))
    except (PolicyError, TaskError, OSError) as error:
        return refused("convert.importers", error, "the bundle")
    except KeyboardInterrupt:
        print("convert.importers: interrupted; nothing was written.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    if arguments.json:
        print(json.dumps(as_json(done), indent=2, allow_nan=False))
    else:
        print(words(done))
    return 0


def as_json(done: Any) -> dict[str, Any]:
    """What was read and found, as JSON values."""
    policy = done.policy
    return {
        "source": policy.source,
        "bundle": None if done.path is None else str(shown(done.path)),
        "spec": {name: value for name, value in done.spec.to_dict().items() if name != "provenance"},
        "ignored": list(policy.ignored),
        "assumed": list(policy.assumed),
        "warnings": list(done.warnings),
        "proof": asdict(done.proof),
        "returns": done.returns,
    }


def fields(text: str | None) -> tuple[Input, ...]:
    """The fields of --fields; none where it is not given."""
    found = []
    for part in (text or "").split(",") if text else []:
        name, _, rest = part.strip().partition(":")
        sides, _, unit = rest.partition(":")
        try:
            shape = tuple(int(side) for side in sides.split("x"))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise ForeignError(f"--fields has {part!r}; allowed is NAME:SIZE or NAME:SIZE:UNIT, e.g. joints:12:rad.")
        found.append(Input(name, shape, unit or "1"))
    return tuple(found)


def bounds(text: str | None) -> tuple[tuple[float, float], ...]:
    """The pairs of --bounds; none where it is not given."""
    found = []
    for part in text.split(",") if text else []:
        try:
            low, high = map(float, part.split(":"))
        except ValueError:
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ForeignError(f"--bounds has {part!r}; allowed is LOW:HIGH, two numbers, the smaller one first.")
        found.append((low, high))
    return tuple(found)


if __name__ == "__main__":
    raise SystemExit(main())
