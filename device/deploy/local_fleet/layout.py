"""The folder of an embedded fleet, and the names of its devices."""

from __future__ import annotations

from pathlib import Path

from quarl.device.deploy.local_device import LocalFolder
from quarl.policy.places import ARTIFACTS

MAX_DEVICES = 999  # names have three digits


def device_names(devices: int) -> list[str]:
    """``device-001`` and so on.

    Raises:
        ValueError: a fleet cannot have so many devices, or so few.
    """
    if not 1 <= devices <= MAX_DEVICES:
        raise ValueError(f"A fleet of {devices} devices cannot be: allowed are 1 to {MAX_DEVICES}.")
    return [f"device-{number:03}" for number in range(1, devices + 1)]


def default_root() -> Path:
    """The folder of the fleet where none is named."""
    return ARTIFACTS / "local-fleet"


class FleetFolder:
    """The folder of an embedded fleet.

    Attributes:
        root: the folder; each device has a folder of its own in it, of its name.
        keys: the one client key that every device lets in.
        bin: the programs of all devices: their python3 has one path, so they are of one kind.
        fleet_file: the fleet, as a rollout reads it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys, self.bin, self.fleet_file = root / "keys", root / "bin", root / "fleet.toml"

    def device(self, name: str) -> LocalFolder:
        """The folder of one device."""
        return LocalFolder(self.root / name, self.root)


def fleet_text(names: list[str]) -> str:
    """What ``fleet.toml`` says: one group with every device."""
    first, last = names[0].rpartition("-")[2], names[-1].rpartition("-")[2]
    targets = f"device-[{first}-{last}]" if len(names) > 1 else names[0]
    return f'# Written at each start of the embedded fleet.\n[groups.all]\ntargets = ["{targets}"]\n'
