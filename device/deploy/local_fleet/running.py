"""An embedded fleet as a block of a Python program, whose devices can be made to fail and healed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from quarl.device.deploy.local_device import LocalFolder, served
from quarl.device.deploy.local_fleet.faults import Fault, FaultKind, remove_fault, write_fault
from quarl.device.deploy.local_fleet.layout import FleetFolder, device_names


class LocalFleet:
    """A running fleet.

    Attributes:
        names: of its devices, which are hosts by these names.
        fleet_file: the fleet, as a rollout reads it.
        pid: of the server.
    """

    def __init__(self, root: Path, names: Sequence[str], small: Collection[str], pid: int) -> None:
        self._folder = FleetFolder(root)
        self._small = frozenset(small)
        self.names = tuple(names)
        self.fleet_file = self._folder.fleet_file
        self.pid = pid

    def folder(self, name: str) -> LocalFolder:
        """The folder of a device. A small disk in it is only seen from the device.

        Raises:
            ValueError: the fleet has no such device.
        """
        if name not in self.names:
            raise ValueError(f"No device is called {name!r}; allowed are {self.names[0]} to {self.names[-1]}.")
        return self._folder.device(name)

    def set_fault(self, name: str, fault: Fault | FaultKind) -> None:
        """Give a device a fault, in place of the one it has; it counts from its next connection on.

        Raises:
            ValueError: the fleet has no such device, or the disk to be filled is not a small one of its own.
        """
        fault = Fault(fault) if isinstance(fault, FaultKind) else fault
        folder = self.folder(name)
        if fault.kind is FaultKind.FULL and name not in self._small:
            raise ValueError(
                f"The disk of {name} is this machine's own, which is not filled; allowed: "
                f"{', '.join(sorted(self._small)) or 'none, start the fleet with small=[...]'}."
            )
        write_fault(folder.root, fault)

    def heal(self, name: str) -> None:
        """Take a device's fault away; it is well from its next connection on.

        Raises:
            ValueError: the fleet has no such device.
        """
        remove_fault(self.folder(name).root)


@contextlib.contextmanager
def running_local_fleet(
    root: Path,
    devices: int,
    *,
    small: Sequence[str] = (),
    command_prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[LocalFleet]:
    """Start the embedded fleet of ``root`` and end it, with all that runs on it, at the end of the block.

    Args:
        root: its folder, made when missing. Faults in it that nobody healed are still there.
        devices: how many.
        small: names of those that have a disk of 12 MB, which can be filled; needs a mount namespace.
        command_prefix: put before the server's command: ``unshare --mount``, for example.
        environment: of the server; where XDG_STATE_HOME points, the devices are registered.

    Raises:
        ConnectionFailedError: it did not start.
        ValueError: a fleet cannot have so many devices.
    """
    names = device_names(devices)
    root = root.resolve()
    words = ["-m", "quarl.device.deploy.local_fleet", "--devices", str(devices), "--root", str(root)]
    words += ["--small", ",".join(small)] if small else []
    with served("fleet", root, words, command_prefix=command_prefix, environment=environment) as reply:
        yield LocalFleet(root, names, small, reply["pid"])
