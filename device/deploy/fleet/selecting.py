"""Which fleet and which of its devices a command means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import ALL, FLEET_FILE, GROUP_SIGN, Fleet, Member
from quarl.device.deploy.fleet.worker_pool import PARALLEL
from quarl.policy.places import PROJECT_ROOT

VARIABLE = "QUARL_FLEET"
WHICH = Parameter(group="Devices")


@Parameter(name="*")
@dataclass(kw_only=True)
class Chosen:
    """Devices of a fleet.

    Attributes:
        fleet: its file; default: QUARL_FLEET, or fleet.toml in this folder
        group: of the file; default: all of them
        label: NAME=VALUE, only devices that have it; may be repeated
        only: TARGET, only this device of the group; may be repeated
        parallel: devices at a time
        json: print JSON, an object a line
    """

    fleet: Annotated[Path | None, WHICH] = None
    group: Annotated[str, WHICH] = ALL
    label: Annotated[tuple[str, ...], WHICH] = ()
    only: Annotated[tuple[str, ...], WHICH] = ()
    parallel: Annotated[PositiveInt, WHICH] = PARALLEL
    json: bool = False


def load_fleet(file: Path | None) -> Fleet:
    """Return the fleet of a file that was named, or of QUARL_FLEET, or of fleet.toml here or in the checkout.

    Raises:
        FleetFileError: there is none, or it cannot be read.
    """
    here, root = Path(FLEET_FILE), PROJECT_ROOT / FLEET_FILE
    if file is None and os.environ.get(VARIABLE):
        file = Path(os.environ[VARIABLE])
    return Fleet.load(file or (root if root.exists() and not here.exists() else here))


def select_devices(options: Chosen) -> tuple[Fleet, tuple[Member, ...]]:
    """Return the fleet and the devices that were chosen.

    Raises:
        FleetFileError, HostError: there is none; or a label cannot be read.
    """
    labels: dict[str, str] = {}
    for text in options.label:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise HostError(f"The label must be NAME=VALUE, got {text!r}.", "Type --label hall=3, for example.")
        labels[name] = value
    fleet = load_fleet(options.fleet)
    return fleet, fleet.select_members(options.group.removeprefix(GROUP_SIGN), labels, options.only)
