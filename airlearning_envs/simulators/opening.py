"""Simulators by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airlearning_envs.config import NavigationConfig
from airlearning_envs.errors import SettingsError
from airlearning_envs.simulators.simulator import Simulator

EMBEDDED, AIRSIM = SIMULATORS = ("embedded", "airsim")


def open_simulator(name: str, config: NavigationConfig, options: Mapping[str, Any]) -> Simulator | None:
    """A simulator of one drone, or None for the embedded one, which the task makes itself.

    Args:
        name: one of :data:`SIMULATORS`.
        config: the task.
        options: of :class:`~airlearning_envs.simulators.airsim.simulator.AirSimOptions`.

    Raises:
        SettingsError: there is no such simulator or option, or it cannot be reached.
    """
    if name == EMBEDDED:
        if options:
            raise SettingsError(f"{', '.join(options)} mean nothing to the embedded simulator; add simulator='airsim'.")
        return None
    if name != AIRSIM:
        raise SettingsError(f"simulator is {name!r}; allowed are {', '.join(SIMULATORS)}.")
    # Needs msgpack, which a device does not.
    from airlearning_envs.simulators.airsim.simulator import AirSimOptions, AirSimSimulator

    if unknown := set(options) - set(AirSimOptions.__dataclass_fields__):
        allowed = ", ".join(AirSimOptions.__dataclass_fields__)
        raise SettingsError(f"simulator option {sorted(unknown)[0]!r} is not known; allowed are {allowed}.")
    return AirSimSimulator(config, AirSimOptions(**options))
