"""Serve a policy in a robot's loop: ``python -m device.agent.loop --bundle PATH --socket PATH --rate 50``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# Before numpy is imported: one thread is enough for what the loop does with it, and each may disturb it.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from device.agent.loop import real_time  # noqa: E402
from device.agent.loop.pacing import OnMiss, Pace  # noqa: E402
from device.agent.loop.service import MOST_HERTZ, Service, Settings  # noqa: E402
from policy.contract.enums import Precision, RuntimeName  # noqa: E402
from policy.errors import PolicyError  # noqa: E402

EXIT_REFUSED = 1
"""The policy cannot be served as it is: starting it again will not help."""
EXIT_MISSED = 75
"""A deadline was missed and ``--on-miss stop`` was given."""


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number from {low:g} to {high:g}")
        return value

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed is an integer from {low} to {high}")
        return int(text)

    return read


def _action(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is an action's index, or numbers: 0,0,0") from None


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a whole path, for example /run/user/1000/III.sock")
    return path


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that a host passes on to the device as they are typed."""
    add = parser.add_argument
    add("--rate", type=_number(0.01, MOST_HERTZ), metavar="HZ", help="decisions a second; default: the policy's own")
    add("--deadline-ms", type=_number(0.01, 1e6), metavar="MS", help="an action is late after this; default: a period")
    add("--stale-ms", type=_number(0.01, 1e6), metavar="MS", help="an observation is stale then; default: 2.5 periods")
    add("--pace", type=Pace, default=Pace.CLOCK, metavar="clock|observation", help="what a decision waits for")
    add("--on-miss", type=OnMiss, default=OnMiss.HOLD, metavar="hold|fallback|stop", help="where an action is late")
    add("--fallback", type=_action, default=(), metavar="ACTION", help="index or numbers; default: the policy's own")
    add("--priority", type=_integer(0, 99), default=50, help="of SCHED_FIFO, default 50; 0: the ordinary scheduler")
    add("--core", type=_integer(0, 1023), help="the only core to run on; default: any")
    add("--spin-us", type=_integer(0, 10**6), default=0, metavar="US", help="poll so long before each wait ends")
    add("--threads", type=_integer(1, 64), default=1, help="of the inference runtime (default 1)")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 0, EXIT_REFUSED, EXIT_MISSED, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m device.agent.loop", description=__doc__)
    parser.add_argument("--bundle", required=True, type=Path, help="folder of the policy's bundle")
    parser.add_argument("--socket", required=True, type=_absolute, help="path of the SEQPACKET socket that is made")
    parser.add_argument("--precision", type=Precision, default=Precision.INT8, help="int8 (default), fp32, fp16, …")
    parser.add_argument("--runtime", type=RuntimeName, help="default: the preferred one that is installed")
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        service = Service(Settings(**vars(options)))
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(service.title(), file=sys.stderr)
    missing = [each for each in service.granted() if not each.granted]
    for each in missing:
        print(f"not granted: {each.name}: {each.reason}", file=sys.stderr)
    if missing:
        print(f"What grants it:\n{real_time.DROP_IN}", file=sys.stderr, end="", flush=True)
    if why := service.run():
        print(f"ended: {why}", file=sys.stderr)
        return EXIT_MISSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
