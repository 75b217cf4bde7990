"""``quarl local-fleet``: an embedded fleet, to try ``quarl fleet`` with."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from quarl import cli
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.local_fleet.layout import MAX_DEVICES, default_root, device_names
from quarl.device.deploy.local_fleet.server import serve


class LocalFleetError(HostError):
    """The fleet cannot be served from its folder."""


@Parameter(name="*")
@dataclass(kw_only=True)
class LocalFleet:
    """An embedded fleet.

    Attributes:
        devices: how many, 1 to 200
        root: the fleet's folder, made when missing
        small: NAME,NAME, these have a disk of 12 MB, in a mount namespace of yours
    """

    devices: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MAX_DEVICES))]
    root: Path = field(default_factory=default_root)
    small: str = ""

    def __post_init__(self) -> None:
        names = device_names(self.devices) if 1 <= self.devices <= MAX_DEVICES else []
        if unknown := sorted(set(self.small_names) - set(names)):
            raise ValueError(f"no device is called {unknown[0]}; allowed are {names[0]} to {names[-1]}")

    @property
    def small_names(self) -> list[str]:
        """Devices with a small disk."""
        return [name for name in self.small.split(",") if name]


@cli.verb(left="the fleet is off.")
def local_fleet(options: LocalFleet) -> int:
    """Serve a fleet of devices on loopback, hosts device-001 and so on, until standard input ends."""
    root = options.root.resolve()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.umask(0o077)
        logging.basicConfig(filename=root / "server.log", level=logging.WARNING, format="%(asctime)s %(message)s")
        if sys.stdin is not None and sys.stdin.isatty():
            print("The fleet runs until Ctrl-D or Ctrl-C is typed here.", file=sys.stderr)
        asyncio.run(serve(root, options.devices, options.small_names))
    except OSError as error:
        raise LocalFleetError(
            f"The fleet cannot be served from {root}: {error}.", "Name a folder that may be written: --root FOLDER."
        ) from error
    return 0


main = cli.of("local-fleet")

if __name__ == "__main__":
    raise SystemExit(main())
