"""Options of the verbs that work on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat

ON = Parameter(group="Device")
# What an interruption leaves:
HALF_DONE = "what was half done on the device is discarded; `quarl releases` shows which release serves."
NOTHING = "nothing was changed."


@Parameter(name="*")
@dataclass(kw_only=True)
class DeviceOptions:
    """A device.

    Attributes:
        target: local, user@host, user@host:port, or @group of fleet.toml
        identity: private key to offer first
        json: print JSON, an object a line
    """

    target: Annotated[str, ON] = "local"
    identity: Annotated[Path | None, ON] = None
    json: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Waiting(DeviceOptions):
    """A device that somebody else may be deploying to.

    Attributes:
        wait: seconds to wait for another deployment to end
    """

    wait: Annotated[NonNegativeFloat, ON] = 0.0
