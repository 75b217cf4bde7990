"""All devices of an embedded fleet: made, registered as hosts by name, served until the fleet is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import resource
from collections.abc import Collection, Iterator
from pathlib import Path

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.hostkeys import named_hosts
from quarl.device.deploy.local_device import write_programs
from quarl.device.deploy.local_fleet.device_server import FleetDevice
from quarl.device.deploy.local_fleet.layout import FleetFolder, device_names, fleet_text
from quarl.device.deploy.local_server import prepare_key, stopped_by_signals, until_stopped
from quarl.device.deploy.target import ssh_config_folder, user_name
from quarl.policy.files import locked, write_atomically
from quarl.policy.places import state_folder

ALIAS = "quarl-local-fleet-"  # in front of a device's name in known_hosts
LOCK_FILE = "local-fleet.lock"
OPEN_FILES = 1 << 16
_ORIGIN = "Written when the embedded fleet started; removed when it stops."


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
                f"An embedded fleet runs already: {stream.read().strip()}. One at a time can have the names.",
                "Use that one, or end it first.",
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()}, in {root}\n")
        stream.flush()
        yield


class Fleet:
    """The devices of one folder."""

    def __init__(self, root: Path, names: list[str], small: Collection[str]) -> None:
        """Make what is missing.

        Args:
            root: the fleet's folder.
            names: of its devices.
            small: those of them whose disk is small.
        """
        self._folder = FleetFolder(root)
        for path in (root, self._folder.keys, self._folder.bin):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(root):
            write_programs(self._folder.bin)
            self._client_key = self._folder.device(names[0]).client_key_file
            key = prepare_key(self._client_key)
            self._devices = {name: FleetDevice(self._folder.device(name), key, small=name in small) for name in names}
            write_atomically(self._folder.fleet_file, fleet_text(names).encode())

    async def start(self) -> None:
        """Let every device listen, under its name.

        Raises:
            HostError: a name is another device's, or a small disk cannot be had.
        """
        taken = [name for name in self._devices if named_hosts.config_file(name).exists()]
        if taken:
            raise HostError(
                f"{taken[0]} is another device's name already, in {named_hosts.config_file(taken[0])}.",
                "Stop that device first, or remove the file when the device is gone.",
            )
        ports = {name: await device.start() for name, device in self._devices.items()}
        named_hosts.register(
            [
                named_hosts.NamedHost(
                    name, ports[name], user_name(), self._client_key, device.public_host_key, ALIAS + name
                )
                for name, device in self._devices.items()
            ],
            _ORIGIN,
        )

    async def stop(self) -> None:
        """End every device; the names are gone first."""
        unregister_all()
        await asyncio.gather(*(device.stop() for device in self._devices.values()))


def unregister_all() -> None:
    """Remove the names of every fleet, also of one that was killed and could not remove them itself."""
    for file in ssh_config_folder().glob("device-*.conf"):
        if file.read_text(encoding="utf-8", errors="replace").startswith(f"# {_ORIGIN}"):
            named_hosts.unregister(file.stem)


def _allow_open_files() -> None:
    """Each connection and each command takes a handful; the usual 1024 are for some fifty devices at work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(root: Path, devices: int, small: Collection[str] = ()) -> None:
    """Serve a fleet until standard input ends or a signal comes.

    Raises:
        HostError: another fleet has the names, or a small disk cannot be had.
        OSError: the folder cannot be written.
    """
    names = device_names(devices)
    _allow_open_files()
    stop = stopped_by_signals()  # from here on the names are removed, however it is stopped
    with only_one(root):
        unregister_all()
        fleet = Fleet(root, names, small)
        try:
            await fleet.start()
            ready = {"devices": devices, "fleet": str(FleetFolder(root).fleet_file), "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
            await until_stopped(stop)
        finally:
            await fleet.stop()
