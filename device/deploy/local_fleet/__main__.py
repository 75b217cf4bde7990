"""Serve an embedded fleet: ``python -m device.deploy.local_fleet --devices 20``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.local_fleet.layout import MAX_DEVICES, default_root, device_names
from quarl.device.deploy.local_fleet.server import serve
from quarl.policy.hints import Parser, as_typed


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices; allowed are 1 to {MAX_DEVICES}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a fleet of devices on loopback, hosts device-001 and so on, until standard input ends."""
    parser = Parser(prog="python -m device.deploy.local_fleet", description=main.__doc__)
    add = parser.add_argument
    add("--devices", type=_count, required=True, metavar="N", help=f"how many, 1 to {MAX_DEVICES}")
    add("--root", type=Path, default=default_root(), help="the fleet's folder, made when missing (%(default)s)")
    add("--small", default="", metavar="NAME,NAME", help="these have a disk of 12 MB, in a mount namespace of yours")
    arguments = parser.parse_args(argv)
    small = [name for name in arguments.small.split(",") if name]
    names = device_names(arguments.devices)
    if unknown := sorted(set(small) - set(names)):
        parser.error(f"argument --small: no device is called {unknown[0]}; allowed are {names[0]} to {names[-1]}")
    root = arguments.root.resolve()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.umask(0o077)
        logging.basicConfig(filename=root / "server.log", level=logging.WARNING, format="%(asctime)s %(message)s")
        if sys.stdin is not None and sys.stdin.isatty():
            print("The fleet runs until Ctrl-D or Ctrl-C is typed here.", file=sys.stderr)
        asyncio.run(serve(root, arguments.devices, small))
    except HostError as error:
        print(as_typed(f"error: {error}"), file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: The fleet cannot be served from {root}: {error}.\n"
            "  next: Name a folder that may be written: --root FOLDER.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
