"""What can go wrong with the virtual Pi, each with what to type next."""

from __future__ import annotations

from quarl.device.deploy.errors import HostError


class VirtualPiError(HostError):
    """Base of everything this room raises on purpose."""

    code = "virtual_pi"


class MissingProgramsError(VirtualPiError):
    """Debian packages are not installed."""

    code = "virtual_pi_programs"


class BuildError(VirtualPiError):
    """The image could not be built; nothing half-built is left."""

    code = "virtual_pi_build"


class StartError(VirtualPiError):
    """The machine did not start, or SSH did not answer; no process of it is left."""

    code = "virtual_pi_start"


class MachineNameError(VirtualPiError):
    """No machine can be called that."""

    code = "virtual_pi_name"
