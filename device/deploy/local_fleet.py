"""``quarl local-fleet``: many embedded SSH devices in one process on loopback, to try ``quarl fleet`` with.

The fleet's folder holds a folder for each device (``local_server``), of its name, and

    bin/         the programs of all devices: their python3 has one path, so they are of one kind
    keys/        the one client key that every device lets in
    fleet.toml   the fleet, as a rollout reads it
    server.log   what the devices have to say
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from quarl import cli
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.hostkeys import named_hosts
from quarl.device.deploy.local_device import LocalFolder
from quarl.device.deploy.local_server import LocalServer, stop_on_signals, until_stopped
from quarl.device.deploy.ssh_config import ssh_config_folder
from quarl.device.deploy.target import user_name
from quarl.policy.files import lock_folder, write_atomically
from quarl.policy.places import ARTIFACTS, state_folder

MAX_DEVICES = 999  # names have three digits
FLEET_FILE = "fleet.toml"
ALIAS = "quarl-local-fleet-"  # in front of a device's name in known_hosts
LOCK_FILE = "local-fleet.lock"
OPEN_FILES = 1 << 16
_ORIGIN = "Written when the embedded fleet started; removed when it stops."


class LocalFleetError(HostError):
    """The fleet cannot be served from its folder."""


def device_names(devices: int) -> list[str]:
    """``device-001`` and so on."""
    return [f"device-{number:03}" for number in range(1, devices + 1)]


def device_folder(root: Path, name: str) -> LocalFolder:
    """Return the folder of one device of the fleet in ``root``."""
    return LocalFolder(root / name, root)


def fleet_text(names: Sequence[str]) -> str:
    """Return what ``fleet.toml`` says: one group with every device."""
    first, last = names[0].rpartition("-")[2], names[-1].rpartition("-")[2]
    targets = f"device-[{first}-{last}]" if len(names) > 1 else names[0]
    return f'# Written at each start of the embedded fleet.\n[groups.all]\ntargets = ["{targets}"]\n'


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Hold the devices' names: two fleets would take them from each other.

    Raises:
        HostError: another fleet of this user has them.
    """
    state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_folder() / LOCK_FILE).open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise HostError(
                f"An embedded fleet is already running: {stream.read().strip()}. Only one can use the device names "
                "at a time.",
                "Use that one, or stop it first.",
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()}, in {root}\n")
        stream.flush()
        yield


def unregister_all() -> None:
    """Remove the names of every fleet, also of one that was killed and could not remove them itself."""
    for file in ssh_config_folder().glob("device-*.conf"):
        if file.read_text(encoding="utf-8", errors="replace").startswith(f"# {_ORIGIN}"):
            named_hosts.unregister(file.stem)


@contextlib.asynccontextmanager
async def _running(root: Path, devices: dict[str, LocalServer]) -> AsyncIterator[None]:
    """Let every device listen under its name until the end of the block; the names are gone first."""
    try:
        named_hosts.register(
            [
                named_hosts.NamedHost(
                    name,
                    await device.start(),
                    user_name(),
                    device_folder(root, name).client_key_file,
                    device.public_host_key,
                    ALIAS + name,
                )
                for name, device in devices.items()
            ],
            _ORIGIN,
        )
        yield
    finally:
        unregister_all()
        await asyncio.gather(*(device.stop() for device in devices.values()))


async def _serve(root: Path, names: Sequence[str], made: Callable[[LocalFolder], LocalServer]) -> None:
    stop = stop_on_signals()  # from here on the names are removed, however it is stopped
    with only_one(root):
        unregister_all()
        taken_name = next((name for name in names if named_hosts.config_file(name).exists()), None)
        if taken_name is not None:
            raise HostError(
                f"{taken_name} is already the name of another device, in {named_hosts.config_file(taken_name)}.",
                "Stop that device first, or remove the file if the device no longer exists.",
            )
        with lock_folder(root):
            devices = {name: made(device_folder(root, name)) for name in names}
            write_atomically(root / FLEET_FILE, fleet_text(names).encode())
        async with _running(root, devices):
            print(json.dumps({"devices": len(names), "fleet": str(root / FLEET_FILE), "pid": os.getpid()}), flush=True)
            await until_stopped(stop)


def _allow_open_files() -> None:
    """Each connection and each command takes a handful; the usual 1024 are for some fifty devices at work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def serve(root: Path, devices: int, made: Callable[[LocalFolder], LocalServer] = LocalServer) -> None:
    """Serve a fleet until standard input ends or a signal comes; when it is ready it prints a line of JSON.

    Args:
        root: its folder, made when missing.
        devices: how many.
        made: makes the device of a folder.

    Raises:
        HostError: another fleet or another device has the names.
        OSError: the folder cannot be written.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.umask(0o077)
    logging.basicConfig(filename=root / "server.log", level=logging.WARNING, format="%(asctime)s %(message)s")
    _allow_open_files()
    asyncio.run(_serve(root, device_names(devices), made))


@Parameter(name="*")
@dataclass(kw_only=True)
class LocalFleet:
    """An embedded fleet.

    Attributes:
        devices: how many, 1 to 999
        root: the fleet's folder, made when missing
    """

    devices: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MAX_DEVICES))]
    root: Path = field(default_factory=lambda: ARTIFACTS / "local-fleet")


@cli.verb(left="the fleet is off.")
def local_fleet(options: LocalFleet) -> int:
    """Serve a fleet of devices on loopback, hosts device-001 and so on, until standard input ends.

    quarl local-fleet --devices 20
    quarl local-fleet --devices 3 --root /tmp/fleet
    """
    root = options.root.resolve()
    if sys.stdin is not None and sys.stdin.isatty():
        print("The fleet runs until Ctrl-D or Ctrl-C is typed here.", file=sys.stderr)
    try:
        serve(root, options.devices)
    except OSError as error:
        raise LocalFleetError(
            f"The fleet cannot be served from {root}: {error}.", "Type a folder that you can write: --root FOLDER."
        ) from error
    return 0


main = cli.of("local-fleet")

if __name__ == "__main__":
    raise SystemExit(main())
