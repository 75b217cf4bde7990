"""Which fleet and which of its devices a command means."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.crew import PARALLEL
from quarl.device.deploy.fleet.inventory import ALL, FLEET_FILE, GROUP_SIGN, Fleet, Member
from quarl.policy.hints import Parser
from quarl.policy.places import PROJECT_ROOT

VARIABLE = "QUARL_FLEET"


def selection() -> Parser:
    """The options that choose devices, for a command's parser."""
    which = Parser(add_help=False)
    add = which.add_argument
    add("--fleet", type=Path, metavar="FILE", help=f"default: {VARIABLE}, or {FLEET_FILE} in this folder")
    add("--group", default=ALL, help="default: all of them")
    add("--label", action="append", default=[], metavar="NAME=VALUE", help="only devices that have it; may be repeated")
    add("--only", action="append", default=[], metavar="TARGET", help="only this device of the group; may be repeated")
    add("--parallel", type=positive, default=PARALLEL, metavar="N", help="devices at a time, default %(default)s")
    return which


def named_fleet(file: Path | None) -> Fleet:
    """The fleet of a file that was named, or of QUARL_FLEET, or of fleet.toml here or in the checkout.

    Raises:
        FleetFileError: there is none, or it cannot be read.
    """
    here, root = Path(FLEET_FILE), PROJECT_ROOT / FLEET_FILE
    if file is None and os.environ.get(VARIABLE):
        file = Path(os.environ[VARIABLE])
    return Fleet.load(file or (root if root.exists() and not here.exists() else here))


def chosen(options: argparse.Namespace) -> tuple[Fleet, tuple[Member, ...]]:
    """The fleet and the devices that the options of :func:`selection` mean.

    Raises:
        FleetFileError, HostError: there is none; or a label cannot be read.
    """
    labels: dict[str, str] = {}
    for text in options.label:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise HostError(f"The label is {text!r}; allowed is NAME=VALUE.", "--label hall=3")
        labels[name] = value
    fleet = named_fleet(options.fleet)
    return fleet, fleet.selected(options.group.removeprefix(GROUP_SIGN), labels, options.only)


def count(text: str) -> int:
    """Read 0, 1, 2 and so on, for argparse."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Read 1, 2, 3 and so on, for argparse."""
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be {least}, {least + 1}, {least + 2} …")
    return number


def seconds(text: str) -> float:
    """Read a time that is not negative, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be a number from 0 on")
    return number
