"""What makes a running machine a host by name: a stanza as in ~/.ssh/config, and its host key in known_hosts."""

from __future__ import annotations

import re
from pathlib import Path

from quarl.device.deploy.hostkeys import named_hosts
from quarl.device.deploy.hostkeys.named_hosts import config_file, unregister
from quarl.device.deploy.target import LOCAL
from quarl.device.virtual_pi.errors import MachineNameError
from quarl.device.virtual_pi.recipe import USER

__all__ = ["DEFAULT_NAME", "check_name", "config_file", "host_key_alias", "register", "unregister"]

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


def register(name: str, port: int, client_key: Path, host_key: str) -> bool:
    """Make ``pi@NAME`` resolve to the machine. Returns whether another host key was on record.

    The key is taken from the image that was built on this machine, never from the network.

    Args:
        name: of the machine.
        port: on 127.0.0.1.
        client_key: the private key file that is let in.
        host_key: ``ssh-ed25519 AAAA…``.
    """
    host = named_hosts.NamedHost(name, port, USER, client_key, host_key, host_key_alias(name))
    return bool(named_hosts.register([host], "Written when the virtual Pi started; removed when it stops."))
