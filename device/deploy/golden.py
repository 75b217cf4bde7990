"""The last word before a switch: the release's own agent checks every golden vector, on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import AgentError, CheckFailedError
from quarl.policy.json_values import JsonValueError, read
from quarl.policy.spec import Precision, RuntimeName, executions

OWN_FAULTS = ("golden", "bundle", "spec", "runtime")
"""The agent's codes of what is wrong with a release itself."""
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
    connection: Connection,
    policy: str,
    folder: str,
    precisions: Sequence[Precision],
    runtimes: Sequence[RuntimeName],
    tell: Progress,
) -> tuple[GoldenCheck, ...]:
    """Start the release's own agent on the device and let it check every golden vector.

    One agent for each runtime: a process that has loaded one runtime refuses another.

    Args:
        connection: to the device.
        policy: name of the release's policy.
        folder: ``incoming/ID`` or ``releases/ID``.
        precisions: what to try, each in all of ``runtimes``.
        runtimes: in which.
        tell: told about each.

    Raises:
        CheckFailedError: the agent did not start, or refused one of them, or there is nothing to check.
    """
    from quarl.device.deploy.agent_session import AgentSession  # numpy comes with it

    checks: list[GoldenCheck] = []
    wanted = executions(precisions, runtimes)
    total = len(wanted)
    for runtime in runtimes:
        try:
            with AgentSession(connection, policy, folder=f"quarl/policies/{policy}/{folder}") as agent:
                agent.request("hello", timeout=CHECK_TIMEOUT_S)
                for precision in (candidate for candidate, executed_by in wanted if executed_by is runtime):
                    tell(Step("check on the device", len(checks), total))
                    reply = agent.request(
                        "load", precision=precision.value, runtime=runtime.value, timeout=CHECK_TIMEOUT_S
                    )
                    golden = read(Mapping[str, Any], reply["golden"], "golden")
                    values = {**golden, "precision": precision.value, "runtime": runtime.value}
                    checks.append(read(GoldenCheck, values))
        except (KeyError, JsonValueError) as error:
            raise CheckFailedError(
                f"The reply of the agent on {connection.name} about its golden vectors is not as expected: {error}. "
                "The release was not activated.",
                "Deploy again; if this happens again, the device runs another version of the agent.",
            ) from error
        except AgentError as error:
            failed = CheckFailedError(
                f"The release failed its check on {connection.name} and was not activated. {error.message}",
                error.next_step,
            )
            failed.blames_release = error.agent_code in OWN_FAULTS
            raise failed from error
    if not checks or any(check.vectors < 1 for check in checks):
        raise CheckFailedError(
            f"No golden vector of the release was checked on {connection.name}, so that it was not activated.",
            "Deploy the policy again.",
        )
    tell(Step("check on the device", len(checks), total))
    return tuple(checks)
