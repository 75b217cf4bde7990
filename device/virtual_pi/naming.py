"""What makes a running machine a host by name: a stanza as in ~/.ssh/config, and its host key in known_hosts."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from device.host.hostkeys.known_hosts import HostKey, KnownHosts, Verdict
from device.host.places import state_folder
from device.host.target import LOCAL, ssh_config_folder
from device.virtual_pi.errors import MachineNameError
from device.virtual_pi.recipe import USER
from policy.files import locked, write_atomically

DEFAULT_NAME = "virtual"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")


def check_name(name: str) -> str:
    """A machine's name becomes a host's name and a folder's.

    Raises:
        MachineNameError: it cannot.
    """
    if not _NAME.match(name) or name == LOCAL:
        raise MachineNameError(
            f"A machine cannot be called {name!r}; allowed are up to 31 small letters, digits and '-', "
            f"a letter first, and not {LOCAL!r}.",
            "--name second, for example; it is then pi@second.",
        )
    return name


def host_key_alias(name: str) -> str:
    """The name in known_hosts: the port changes with every start, the machine does not."""
    return f"quarl-virtual-pi-{name}"


def config_file(name: str) -> Path:
    """The file with the machine's stanza, there while it runs."""
    return ssh_config_folder() / f"{name}.conf"


def stanza(name: str, port: int, client_key: Path, known_hosts: Path) -> str:
    """What ``ssh -F FILE pi@NAME`` and this project both understand."""
    return f"""# Written when the virtual Pi started; removed when it stops.
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {USER}
  IdentityFile "{client_key}"
  IdentitiesOnly yes
  HostKeyAlias {host_key_alias(name)}
  UserKnownHostsFile "{known_hosts}"
  StrictHostKeyChecking yes
"""


def register(name: str, port: int, client_key: Path, host_key: str) -> bool:
    """Make ``pi@NAME`` resolve to the machine. Returns whether another host key was on record.

    The key is taken from the image that was built on this machine, never from the network, which is why it may
    take the place of the one of an earlier build.

    Args:
        name: of the machine.
        port: on 127.0.0.1.
        client_key: the private key file that is let in.
        host_key: ``ssh-ed25519 AAAA…``.
    """
    kind, encoded = host_key.split()
    key = HostKey(kind, base64.b64decode(encoded, validate=True))
    with locked(state_folder(), mode=0o700):
        known_hosts = KnownHosts.of_user()
        verdict = known_hosts.check(host_key_alias(name), key).verdict
        if verdict is not Verdict.KNOWN:
            known_hosts.accept(host_key_alias(name), key, replace=True)
        file = config_file(name)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, stanza(name, port, client_key, known_hosts.own).encode())
    return verdict is Verdict.CHANGED


def unregister(name: str) -> None:
    """The name no longer resolves; the host key stays known."""
    config_file(name).unlink(missing_ok=True)
