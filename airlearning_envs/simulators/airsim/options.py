"""How a server is reached and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quarl.airlearning_envs.simulators.airsim import links
from quarl.airlearning_envs.simulators.airsim.dialects import Dialect
from quarl.airlearning_envs.simulators.airsim.rpc import AIRSIM_PORT


@dataclass(frozen=True)
class AirSimOptions:
    """How a server is reached and used.

    Attributes:
        address: host:port.
        client: which Python client to use, see :data:`~airlearning_envs.simulators.airsim.links.CLIENTS`.
        dialect: which server it is; found out where None.
        assets: names of the assets for ``box`` and ``cylinder``.
        origin_m: where the arena's centre is, from the vehicle's start.
        timeout_s: an answer comes within this time.
        reconnect_s: a connection that is lost is tried again for so long; the flight under way does not count then.
    """

    address: str = f"127.0.0.1:{AIRSIM_PORT}"
    client: str = links.AUTO
    dialect: Dialect | None = None
    assets: Mapping[str, str] = field(default_factory=dict)
    origin_m: tuple[float, float] = (0.0, 0.0)
    timeout_s: float = 30.0
    reconnect_s: float = 5.0
