"""The last word before a switch: the release's own agent checks every golden vector, on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device.host.agent_session import AgentSession
from device.host.connection import Connection
from device.host.errors import AgentError, CheckFailedError
from device.host.payload import GoldenRun

CHECK_TIMEOUT_S = 300.0  # a Pi loads a runtime from its SD card


@dataclass(frozen=True)
class Step:
    """Where a deployment is: ``done`` of ``total``, in bytes when ``unit`` is "B"."""

    name: str
    done: int
    total: int
    unit: str = ""


Progress = Callable[[Step], None]


@dataclass(frozen=True)
class GoldenCheck:
    """What the release's own agent found on the device."""

    precision: str
    runtime: str
    vectors: int
    max_error: float
    tolerance: float
    action_agreement: float


def golden_checks(
    connection: Connection, policy: str, folder: str, runs: Sequence[GoldenRun], tell: Progress
) -> tuple[GoldenCheck, ...]:
    """Start the release's own agent on the device and let it check every golden vector.

    One agent for each runtime: a process that has loaded one runtime refuses another.

    Args:
        connection: to the device.
        policy: whose release.
        folder: ``incoming/ID`` or ``releases/ID``.
        runs: what to try.
        tell: told about each.

    Raises:
        CheckFailedError: the agent did not start, or refused one of them.
    """
    checks: list[GoldenCheck] = []
    for runtime in dict.fromkeys(run.runtime for run in runs):
        try:
            with AgentSession(connection, policy, folder=f"quarl/policies/{policy}/{folder}") as agent:
                agent.request("hello", timeout=CHECK_TIMEOUT_S)
                for run in (run for run in runs if run.runtime is runtime):
                    name = runtime.value if runtime else None
                    tell(Step("check on the device", len(checks), len(runs)))
                    reply = agent.request("load", precision=run.precision.value, runtime=name, timeout=CHECK_TIMEOUT_S)
                    checks.append(_golden_check(run, reply))
        except AgentError as error:
            raise CheckFailedError(
                f"The release did not pass its check on {connection.name} and was not switched on. {error.message}",
                error.next_step,
            ) from error
    tell(Step("check on the device", len(checks), len(runs)))
    return tuple(checks)


def _golden_check(run: GoldenRun, reply: Mapping[str, Any]) -> GoldenCheck:
    golden = reply.get("golden", {})
    runtime = run.runtime.value if run.runtime else str(reply.get("loaded", {}).get("runtime", ""))
    return GoldenCheck(
        precision=run.precision.value,
        runtime=runtime,
        vectors=int(golden.get("vectors", 0)),
        max_error=float(golden.get("max_error", 0.0)),
        tolerance=float(golden.get("tolerance", 0.0)),
        action_agreement=float(golden.get("action_agreement", 0.0)),
    )
