"""Devices of this machine's own as hosts by name: a stanza as in ~/.ssh/config, and the host key in known_hosts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.hostkeys.known_hosts import HostKey, KnownHosts, Verdict
from quarl.device.deploy.ssh_config import ssh_config_folder
from quarl.policy.files import lock_folder, write_atomically
from quarl.policy.places import state_folder


@dataclass(frozen=True)
class NamedHost:
    """A device that listens on 127.0.0.1.

    Attributes:
        name: the host's.
        port: where it listens.
        user: who logs in.
        client_key: the private key file that is let in.
        host_key: ``ssh-ed25519 AAAA…``.
        alias: its name in known_hosts; the port changes with every start, the device does not.
    """

    name: str
    port: int
    user: str
    client_key: Path
    host_key: str
    alias: str

    def stanza(self, origin: str, known_hosts: Path) -> str:
        """Return what ``ssh -F FILE NAME`` and this project both understand; ``origin`` is its first line."""
        return f"""# {origin}
Host {self.name}
  HostName 127.0.0.1
  Port {self.port}
  User {self.user}
  IdentityFile "{self.client_key}"
  IdentitiesOnly yes
  HostKeyAlias {self.alias}
  UserKnownHostsFile "{known_hosts}"
  StrictHostKeyChecking yes
"""


def config_file(name: str) -> Path:
    """Return the file with the host's stanza, there while it runs."""
    return ssh_config_folder() / f"{name}.conf"


def register(hosts: Sequence[NamedHost], origin: str) -> list[str]:
    """Make names resolve to devices. Returns those for which another host key was on record.

    The keys come from files of this machine, never from the network, which is why they may take the place of those
    of an earlier build.

    Args:
        hosts: the devices.
        origin: who wrote the stanzas, and when they are removed; one line.
    """
    keys = {}
    for host in hosts:
        kind, encoded = host.host_key.split()
        keys[host.alias] = HostKey(kind, base64.b64decode(encoded, validate=True))
    with lock_folder(state_folder(), mode=0o700):
        known_hosts = KnownHosts.of_user()
        verdicts = {alias: known_hosts.check(alias, key).verdict for alias, key in keys.items()}
        new = {alias: key for alias, key in keys.items() if verdicts[alias] is not Verdict.KNOWN}
        if new:
            known_hosts.accept_all(new, replace=True)
        ssh_config_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        for host in hosts:
            write_atomically(config_file(host.name), host.stanza(origin, known_hosts.own).encode())
    return [host.name for host in hosts if verdicts[host.alias] is Verdict.CHANGED]


def unregister(name: str) -> None:
    """Make the name unknown; the host key stays known."""
    config_file(name).unlink(missing_ok=True)
