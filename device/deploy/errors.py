"""What can go wrong between a host and its device, each as its own class.

Every message says what was received and what is allowed; ``next_step`` is what to type or do now. The
command line prints both, and with ``--json`` sends them as ``{"ok": false, "error": {...}}``.
"""

from __future__ import annotations

from typing import Any

from quarl.device.deploy.text import printable
from quarl.policy.errors import QuarlError


class HostError(QuarlError, RuntimeError):
    """Base of everything this room raises on purpose."""

    separator = "\n  next: "
    serving_unknown = False
    """Whether the line broke in a switch, and nobody could find out which release serves now."""

    def __init__(self, message: str, next_step: str = "", **values: Any) -> None:
        # Much of it was said by a device or its server: it is shown, and does nothing to the terminal.
        super().__init__(printable(message, "\n\t"), printable(next_step, "\n\t"), **values)

    def also(self, more: str) -> None:
        """Add a sentence to the message, in front of the next step."""
        HostError.__init__(self, f"{self.message} {more}", self.next_step, code=self.code, **self.values)

    def advise(self, next_step: str) -> None:
        """Say another next step."""
        HostError.__init__(self, self.message, next_step, code=self.code, **self.values)


class TargetError(HostError):
    """TARGET cannot be read."""


class ConnectionFailedError(HostError):
    """No SSH connection came about: the name, the port, the network or the server is not there."""


class IncompatibleServerError(ConnectionFailedError):
    """The SSH server and this program have no algorithm in common."""


class ConnectionLostError(HostError):
    """The connection ended, or stood still for too long, in the middle of something."""


class UnknownHostKeyError(HostError):
    """The device shows a host key that nobody accepted yet."""


class ChangedHostKeyError(HostError):
    """The device shows another host key than the one accepted earlier, or a revoked one."""


class LoginError(HostError):
    """The device is the right one but lets us in with none of the keys we have."""


class SecondFactorError(LoginError):
    """A key was accepted, and the server wants something besides that a person has to type.

    Attributes:
        methods: what it would take, as SSH calls them.
    """


class RemoteCommandError(HostError):
    """A command ran on the device and failed, or did not end in time."""


class SessionLimitError(RemoteCommandError):
    """The SSH server opens no further session on this connection."""


class UnsupportedDeviceError(HostError):
    """The device lacks what is needed: Python 3, an architecture or a glibc with wheels."""


class DeviceFullError(HostError):
    """The device's disk has no room, found out before or while writing."""


class DeviceLockedError(HostError):
    """Another deployment is working on this device."""


class VerificationError(HostError):
    """What arrived on the device is not what was sent, or what was sent is not what the manifest says."""

    blames_release = True


class DamagedWheelsError(VerificationError):
    """Wheels on the device, which releases share, are not as they were unpacked."""

    blames_release = False


class WheelError(HostError):
    """A pinned wheel does not exist for the device, or could not be fetched."""


class ReleaseError(HostError):
    """There is no such release, or none at all."""


class CheckFailedError(HostError):
    """The release's own agent refused it on the device, so it was not switched on.

    ``blames_release``: whether what it refused is the release's own, not the device's: memory, wheels, a lost line.
    """

    blames_release = False


class TrustError(HostError):
    """A release is signed by nobody whom the device trusts, is not what was signed, or is an older one sent again.

    Or others can write a list of who is trusted, on the device or here.
    """

    blames_release = False


class ServiceError(HostError):
    """The policy's loop did not start on the device, failed its trial, or cannot be kept running there."""

    blames_release = True


class AgentError(HostError):
    """The agent on the device answered with an error, with nonsense, not in time, or died.

    ``agent_code`` is the code of the agent's own error reply, or ``died``, ``timeout``, ``protocol``;
    ``exit_status`` is the agent's exit status where it ended.
    """

    def __init__(
        self, message: str, next_step: str = "", *, agent_code: str = "", exit_status: int | None = None
    ) -> None:
        super().__init__(message, next_step)
        self.agent_code = agent_code
        self.exit_status = exit_status

    def to_json(self) -> dict[str, str]:
        """Return the error as a program reads it, with the agent's own code."""
        return {**super().to_json(), "agent_code": self.agent_code}
