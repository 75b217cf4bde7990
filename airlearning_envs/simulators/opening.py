"""Simulators by name, and the options of the commands that fly in them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.airlearning_envs.errors import SettingsError

if TYPE_CHECKING:
    from quarl.airlearning_envs.config import NavigationConfig
    from quarl.airlearning_envs.simulators.simulator import Simulator

EMBEDDED: Literal["embedded"] = "embedded"
AIRSIM: Literal["airsim"] = "airsim"
SIMULATORS = (EMBEDDED, AIRSIM)


def open_simulator(name: str, config: "NavigationConfig", options: Mapping[str, Any]) -> "Simulator | None":
    """Return a simulator of one drone, or None for the embedded one, which the task makes itself.

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
    from quarl.airlearning_envs.simulators.airsim.simulator import AirSimOptions, AirSimSimulator

    if unknown := set(options) - set(AirSimOptions.__dataclass_fields__):
        allowed = ", ".join(AirSimOptions.__dataclass_fields__)
        name = sorted(unknown)[0]
        raise SettingsError(
            f"simulator option {name!r} is not known; allowed are {allowed}.",
            code="unknown_simulator_option",
            name=name,
        )
    return AirSimSimulator(config, AirSimOptions(**options))


def json_object(text: str) -> dict[str, Any]:
    """Return settings of the task as they are typed.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is no JSON object")
    return value


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals and value for name, equals, value in pairs):
        raise ValueError(f"{text!r} is not like box=NAME,cylinder=NAME")
    return {name: value for name, _, value in pairs}


def _place(text: str) -> tuple[float, float]:
    try:
        x, y = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not like 100,-50") from None
    return x, y


@dataclass(kw_only=True)
class SimulatorOptions:
    """Which simulator, and how AirSim is reached: read by :func:`simulator_options`.

    Attributes:
        simulator: that flies
        address: with --simulator airsim: of its RPC server (default 127.0.0.1:41451)
        client: with --simulator airsim: auto, own, or theirs: whose Python client (default auto)
        dialect: with --simulator airsim: airsim, colosseum or cosys (default: found out)
        assets: with --simulator airsim: assets of one metre, also cylinder=NAME
        origin: with --simulator airsim: the arena's centre from the vehicle's start, m
        timeout: with --simulator airsim: seconds to wait for an answer (default 30)
    """

    simulator: Literal["embedded", "airsim"] = EMBEDDED
    address: Annotated[str | None, Parameter(metavar="HOST:PORT")] = None
    client: str | None = None
    dialect: str | None = None
    assets: Annotated[dict[str, str] | None, cli.reads(_pairs, "box=NAME", accepts_keys=False)] = None
    origin: Annotated[tuple[float, float] | None, cli.reads(_place, "X,Y", allow_leading_hyphen=True)] = None
    timeout: Annotated[float | None, Parameter(metavar="S")] = None


def simulator_options(arguments: Any) -> dict[str, Any]:
    """Return the options that were given, as :func:`open_simulator` takes them.

    Args:
        arguments: has the attributes of :class:`SimulatorOptions`.

    Raises:
        SettingsError: the dialect is not known.
    """
    names = {"origin": "origin_m", "timeout": "timeout_s"}
    values = {
        name: getattr(arguments, name) for name in ("address", "client", "dialect", "assets", "origin", "timeout")
    }
    options = {names.get(name, name): value for name, value in values.items() if value is not None}
    if "dialect" in options:
        from quarl.airlearning_envs.simulators.airsim.dialects import Dialect

        try:
            options["dialect"] = Dialect(options["dialect"])
        except ValueError:
            known = ", ".join(dialect.value for dialect in Dialect)
            raise SettingsError(f"--dialect is {options['dialect']!r}; allowed are {known}.") from None
    return options
