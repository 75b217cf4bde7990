"""An embedded fleet in a folder of its own, with one policy at several precisions; nothing of the user's is touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.command_line import BenchError

if TYPE_CHECKING:
    from device.host.local_fleet import LocalFleet

BITS = (8, 4, 6)
OF_THE_USER = ("QUARL_SIGN_KEY", "QUARL_FLEET", "QUARL_LOCAL_DEVICE")


@dataclass(frozen=True)
class Arena:
    """A running fleet and what is brought to it.

    Attributes:
        fleet: its devices.
        bundle: folder of the policy.
        apart: another fleet.toml of the same devices, so with a journal of its own.
        policy: its name.
        environment: of every command that is typed.
        small: devices with a disk that may be filled.
        server_root: where the files of these are seen: in the mount namespace of the server.
    """

    fleet: LocalFleet
    bundle: Path
    apart: Path
    policy: str
    environment: Mapping[str, str]
    small: tuple[str, ...]
    server_root: Path

    def folder(self, name: str) -> Path:
        """The folder of the policy on a device."""
        home = self.fleet.folder(name).home
        if name in self.small:
            home = self.server_root / home.relative_to(home.anchor)
        return home / "quarl" / "policies" / self.policy


@contextlib.contextmanager
def running(policy: str, devices: int, small: Sequence[str], prefix: Sequence[str]) -> Iterator[Arena]:
    """Convert the policy, start a fleet, and end and remove both with the block.

    Args:
        policy: a shipped one.
        devices: how many.
        small: names of those that have a small disk.
        prefix: put before the server's command, for a mount namespace.

    Raises:
        BenchError: the policy cannot be converted.
        ConnectionFailedError: the fleet did not start.
    """
    from device.host.local_fleet import running_local_fleet
    from policy.bundle import Bundle
    from policy.bundle_writer import copy_bundle
    from policy.locate import shipped_folder

    source = shipped_folder(policy)
    if source is None:
        raise BenchError(f"There is no shipped policy {policy!r}.")
    with tempfile.TemporaryDirectory(prefix="quarl-fleet-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        environment = {key: value for key, value in os.environ.items() if key not in OF_THE_USER}
        environment |= {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
        bundle = copy_bundle(Bundle.load(source), folder / "bundle" / policy, "zoo")
        _convert(bundle.path, environment)
        with running_local_fleet(
            folder / "fleet", devices, small=small, command_prefix=prefix, environment=environment
        ) as fleet:
            seen = Path(f"/proc/{fleet.pid}/root")
            apart = folder / "apart" / "fleet.toml"
            apart.parent.mkdir()
            apart.write_bytes(fleet.fleet_file.read_bytes())
            yield Arena(fleet, bundle.path, apart, bundle.spec.name, environment, tuple(small), seen)


def _convert(bundle: Path, environment: Mapping[str, str]) -> None:
    """In a process of its own: what a process has had in memory counts in the peak of those that it starts."""
    bits = ",".join(map(str, BITS))
    words = ["-m", "convert", "--policy", str(bundle), "--bits", bits, "--format", "native", "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=dict(environment))
    if done.returncode != 0:
        raise BenchError(f"The policy cannot be converted: {done.stderr.strip()[-600:]}")
