"""Serve a policy in a robot's loop: ``python -m device.agent.loop --bundle PATH --socket PATH --rate 50``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

# Before numpy is imported: one thread is enough for what the loop does with it, and each may disturb it.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from quarl.device.agent.loop import real_time  # noqa: E402
from quarl.device.agent.loop.options import LoopOptions, add_options  # noqa: E402
from quarl.device.agent.loop.service import EXIT_MISSED, EXIT_REFUSED, Service  # noqa: E402
from quarl.policy.errors import PolicyError  # noqa: E402
from quarl.policy.spec import Precision, RuntimeName  # noqa: E402


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a whole path, for example /run/user/1000/III.sock")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 0, EXIT_REFUSED, EXIT_MISSED, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m device.agent.loop", description=__doc__)
    parser.add_argument("--bundle", required=True, type=Path, help="folder of the policy's bundle")
    parser.add_argument("--manifest", default="", metavar="SHA256", help="refuse a bundle with another manifest.json")
    parser.add_argument("--socket", required=True, type=_absolute, help="path of the SEQPACKET socket that is made")
    parser.add_argument("--precision", type=Precision, default=Precision.INT8, help="int8 (default), fp32, fp16, …")
    parser.add_argument("--runtime", type=RuntimeName, help="default: the preferred one that is installed")
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        loop = LoopOptions(**{each.name: getattr(options, each.name) for each in fields(LoopOptions)})
    except ValueError as error:
        parser.error(str(error))
    try:
        service = Service(options.bundle, options.socket, loop, options.manifest, options.precision, options.runtime)
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(service.title(), file=sys.stderr)
    missing = [each for each in service.granted() if not each.granted]
    for each in missing:
        print(f"not granted: {each.name}: {each.reason}", file=sys.stderr)
    if missing:
        print(f"What grants it:\n{real_time.what_grants_it()}", file=sys.stderr, end="", flush=True)
    if why := service.run():
        print(f"ended: {why}", file=sys.stderr)
        return EXIT_MISSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
