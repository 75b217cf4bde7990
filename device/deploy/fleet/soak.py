"""Whether a release that was switched on proves itself: it serves, is punctual, and its device is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.device import open_device
from quarl.device.deploy.errors import AgentError, HostError
from quarl.device.deploy.fleet.identity import describe_mark
from quarl.device.deploy.golden import Progress, Step
from quarl.device.deploy.loops import serving
from quarl.device.deploy.releases import serving_record

TIMED_RUNS = 700
"""Enough for a 99th percentile, which needs 662."""
NOT_AS_EXPECTED = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading a device's reply may raise where it is of another version, or damaged."""


class SoakError(HostError):
    """The release does not serve as it must: it was replaced, its loop fell or missed deadlines, or it is too slow."""


class ReplacedError(SoakError):
    """Somebody else's release serves in its place: no failure of the release."""


@dataclass(frozen=True)
class Health:
    """What one look at a device found.

    Attributes:
        pid: process of the policy's loop there; 0: not known, or not served in a loop.
        restarts: of that loop, as its manager counts them.
        p99_ms: 99th percentile of one decision; None where the loop itself is watched.
    """

    pid: int = 0
    restarts: int = 0
    p99_ms: float | None = None


def look(
    connection: Connection, policy: str, release: str, deadline_ms: float, before: Health | None, tell: Progress
) -> Health:
    """See that a release serves and keeps its deadline.

    Where it is served in a loop, the loop is looked at: it must be the process it was, and miss no more deadlines than
    it may. Elsewhere its agent is started: that verifies signature and files, checks all golden vectors, and then times
    decisions.

    Args:
        connection: to the device.
        policy: whose release.
        release: that must serve.
        deadline_ms: of one decision, for the 99th percentile.
        before: what the look before this one found.
        tell: told about each step.

    Raises:
        SoakError: it does not; says why.
        HostError: the device could not be looked at.
    """
    with open_device(connection) as session:
        deployed = session.read().describe()["policies"].get(policy, {})
        if deployed.get("current") != release:
            raise build_replaced_error(deployed, release)
        state = serving(session, policy)
    try:
        if state["settings"] is not None:
            return _loop(state, before)
        record = serving_record(deployed) or {}
        with AgentSession(connection, policy, release=release) as agent:
            tell(Step("golden vectors", 0, 0))
            agent.request("load", precision=record["precisions"][0], runtime=record["runtimes"][0])
            tell(Step("time decisions", 0, 0))
            timed = agent.request("latency", runs=TIMED_RUNS, warmup=20, path="decide")
            p99_ms = float(timed["percentiles"]["p99"]) / 1e6
    except AgentError as error:
        raise SoakError(f"Its agent does not serve: {error.message}", error.next_step) from None
    except NOT_AS_EXPECTED as error:
        raise SoakError(f"The device's reply does not say which release serves: {error!r}.") from None
    if p99_ms > deadline_ms:
        raise SoakError(
            f"One decision in a hundred takes {p99_ms:.3g} ms or longer; at most {deadline_ms:g} ms are allowed.",
            "Raise the limit with --deadline-ms, or deploy fewer bits.",
        )
    return Health(p99_ms=p99_ms)


def build_replaced_error(deployed: Mapping[str, Any], release: str | None) -> ReplacedError:
    """Return the error for a device on which another release serves than the one that was brought.

    Args:
        deployed: of the policy, as the device replies it: ``current``, ``releases`` and ``rollout``.
        release: that must serve; None: none.
    """
    record = serving_record(deployed) if deployed else None
    by = f", deployed by {record['by']}" if record and record.get("by") else ""
    mark = deployed.get("rollout")
    came = ""
    if isinstance(mark, dict):
        came = f"; the last there is {describe_mark(mark)}, which {'has ended' if mark.get('ended') else 'goes on'}"
    serving = f"Release {record['release']}{by}, serves" if record else "No release serves"
    return ReplacedError(
        f"{serving} in place of {release or 'none'}{came}. The device was left as it is.",
        "Agree on one host that rolls out, then run the same command again.",
    )


def loop_fault(state: Mapping[str, Any]) -> str:
    """Return what is wrong with a loop, as ``serving`` of loops.py returns it; empty: nothing."""
    if state["state"] != "active" or state["loop"] is None:
        return f"is {state['state']}: {state['why'] or 'it does not answer'}"
    missed, most = state["loop"]["counts"]["missed_per_million"], state["settings"]["most_missed"]
    if missed is not None and missed > most:
        return f"missed {missed:.0f} deadlines in a million; {most:g} are allowed"
    return ""


def _loop(state: Mapping[str, Any], before: Health | None) -> Health:
    if fault := loop_fault(state):
        raise SoakError(f"Its loop {fault}.")
    now = Health(state["pid"], state["restarts"])
    if before is not None and (now.restarts > before.restarts or before.pid not in (0, now.pid)):
        raise SoakError(f"Its loop was restarted ({state['why'] or 'process ended'}).")
    return now
