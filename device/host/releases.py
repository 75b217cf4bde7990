"""Releases that are on a device already: which there are, and going back to one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from device.host.connection import Connection
from device.host.deploy import begin, still_serving
from device.host.errors import ReleaseError, RemoteCommandError, VerificationError
from device.host.golden import GoldenCheck, Progress, golden_checks
from device.host.helper_session import helper
from device.host.payload import check_policy_name
from device.host.probe import probe
from policy.json_values import JsonValueError, called, null_is, read
from policy.spec import Precision, RuntimeName


@dataclass(frozen=True)
class Release:
    """One release on a device."""

    name: str = field(metadata=called("release"))
    created: str = field(metadata=null_is(""))
    """When it was deployed, by the host's clock (a Pi without network has none)."""
    by: str = field(metadata=null_is(""))
    precisions: tuple[str, ...] = field(metadata=null_is(()))
    runtimes: tuple[str, ...] = field(metadata=null_is(()))
    digest: str = field(metadata=null_is(""))


@dataclass(frozen=True)
class PolicyReleases:
    """The releases of one policy, oldest first, and the one that serves."""

    current: str | None
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class DeviceReleases:
    """Everything deployed on a device."""

    root: str
    free_bytes: int
    environments: tuple[str, ...]
    locked_by: Mapping[str, Any] | None
    """Who is deploying now, or None."""
    policies: Mapping[str, PolicyReleases]


@dataclass(frozen=True)
class RollbackResult:
    """What was asked (``asked`` is None for "the one before") and what was done."""

    policy: str
    asked: str | None
    release: str
    previous: str | None
    checks: tuple[GoldenCheck, ...]
    seconds: float


def list_releases(connection: Connection) -> DeviceReleases:
    """What is deployed on the device. Changes nothing and needs no lock."""
    facts = probe(connection)
    with helper(connection, facts.python.path) as session:
        found = session.call("show")
    try:
        releases: DeviceReleases = read(DeviceReleases, found, "releases")
    except (JsonValueError, KeyError) as error:
        raise RemoteCommandError(
            f"{connection.name} told something else than its releases: {error}.",
            "Look into ~/quarl on the device: a release.json there is damaged; deploy the policy again.",
        ) from error
    return releases


def rollback(
    connection: Connection,
    policy: str,
    release: str | None = None,
    *,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> RollbackResult:
    """Switch back to an older release, after its files and golden vectors were checked again on the device.

    Args:
        connection: to the device.
        policy: whose release.
        release: which; default the one before the current one.
        wait_s: how long to wait for a deployment to end.
        progress: told about the checks.

    Raises:
        ReleaseError: there is no such release, or none before the current one.
        VerificationError, CheckFailedError: the older release is damaged; the current one still serves.
    """
    begun = time.monotonic()
    check_policy_name(policy)
    facts = probe(connection)
    with helper(connection, facts.python.path) as session:
        state = begin(session, policy, None, wait_s)
        serving, names = state["current"], state["releases"]
        wanted = release or _before(names, serving, policy, connection)
        with still_serving(serving):
            found = session.call("check", release=wanted)
            damaged = [*found["damaged"], *found["missing_environments"]]
            if damaged:
                raise VerificationError(
                    f"Release {wanted} of {policy} on {connection.name} is damaged: {', '.join(damaged)}.",
                    "Deploy it again, or roll back to another: --to RELEASE.",
                )
            record = found["record"]
            asked = (
                [Precision(name) for name in record["precisions"]],
                [RuntimeName(name) for name in record["runtimes"]],
            )
            tell = progress if progress is not None else lambda step: None
            checks = golden_checks(connection, policy, f"releases/{wanted}", *asked, tell)
            previous = session.call("switch", release=wanted)["previous"]
    return RollbackResult(policy, release, wanted, previous, checks, time.monotonic() - begun)


def _before(names: list[str], serving: str | None, policy: str, connection: Connection) -> str:
    older = names[: names.index(serving)] if serving in names else names
    if not older:
        raise ReleaseError(
            f"{connection.name} has no release of {policy} before {serving or 'the first'}.",
            f"python -m device.host releases --target {connection.target} shows what there is.",
        )
    return older[-1]
