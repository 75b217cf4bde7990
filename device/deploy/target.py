"""TARGET: which device, as the user writes it."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.errors import TargetError, VerificationError
from quarl.policy.json_values import POLICY_NAMES_ALLOWED, is_policy_name

LOCAL = "local"
_FORMS = "local, host, user@host, user@host:port, user@[ipv6]:port"
# Letters, digits and the signs of host names, IPv4, IPv6 and its %zone; never a leading '-' or a space.
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")  # Python reads no number of thousands of digits
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")


@dataclass(frozen=True)
class Target:
    """A device as it was named: ``local``, or a host with the user and port that were given."""

    host: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``local``, ``user@host[:port]`` or an IPv6 form of it.

        Raises:
            TargetError: the text is none of these forms.
        """

        def refuse(reason: str) -> TargetError:
            return TargetError(
                f"TARGET={text[:200]!r} is not valid: {reason}. Allowed: {_FORMS}.",
                "Type TARGET=pi@raspberrypi, for example.",
            )

        if not text.strip():
            raise TargetError(
                f"TARGET must not be empty. Allowed: {_FORMS}.",
                "Leave TARGET out for the local device, or type TARGET=pi@raspberrypi.",
            )
        if text.startswith("@"):
            raise TargetError(
                f"TARGET={text!r} is a group of fleet.toml, but this command takes one device.",
                f"For the group, type make deploy TARGET={text}, make bench TARGET={text}, or a command such as "
                f"quarl releases --target {text}.",
            )
        rest = text.strip().removeprefix("ssh://")
        user: str | None = None
        if "@" in rest:
            user, rest = rest.rsplit("@", 1)
            if not _USER.match(user):
                raise refuse(f"{user!r} is not a user name")
        port_text: str | None = None
        if rest.startswith("["):
            host, bracket, after = rest[1:].partition("]")
            if not bracket or (after and not after.startswith(":")):
                raise refuse("the bracket around the address is not closed, or something other than :port follows")
            port_text = after[1:] if after else None
        elif rest.count(":") == 1:
            host, port_text = rest.split(":")
        else:  # no colon: a name or IPv4; two and more: a bare IPv6 address, which has no room for a port
            host = rest
        if not _HOST.match(host):
            raise refuse(f"{host!r} is not a host name or address")
        port: int | None = None
        if port_text is not None:
            port = port_in(port_text)
            if not port:
                raise refuse(f"the port must be 1 to 65535, got {port_text[:20]!r}")
        if host == LOCAL and (user is not None or port is not None):
            raise refuse("local is the embedded device and takes no user and no port")
        return cls(host, user, port)

    @property
    def is_local(self) -> bool:
        """Whether this is the embedded device that the command starts itself."""
        return self.host == LOCAL

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port is not None else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + (f":{self.port}" if self.port is not None else "")


def port_in(text: str) -> int:
    """Return the number of a port; 0 where a text is none."""
    port = int(text) if _PORT.match(text) else 0
    return port if port <= 65535 else 0


def with_home(path: Path) -> Path:
    """Return a path with the home folder in place of its ``~`` or ``~user``.

    Raises:
        TargetError: there is no such user.
    """
    try:
        return path.expanduser()
    except (RuntimeError, ValueError):  # ValueError: a name that no user can have
        raise TargetError(
            f"{str(path)[:200]!r} begins with the home folder of a user who does not exist on this machine.",
            "Type ~/… for your own home folder, or an absolute path.",
        ) from None


def user_name() -> str:
    """Who runs this command; a container's user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


def check_policy_name(name: str) -> str:
    """Return a policy's name becomes a folder on the device: the rule of ``policy.json_values``.

    Raises:
        VerificationError: it has other signs.
    """
    if not is_policy_name(name):
        raise VerificationError(
            f"The policy's name must be {POLICY_NAMES_ALLOWED}, got {name!r}.",
            "Rename it in policy.json and manifest.json, or train it under another name.",
        )
    return name
