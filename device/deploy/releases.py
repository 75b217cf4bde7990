"""Releases that are on a device already: which there are, going back to a good one, removing some."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import (
    CheckFailedError,
    DamagedWheelsError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    VerificationError,
)
from quarl.device.deploy.golden import GoldenCheck, Progress, golden_checks
from quarl.device.deploy.probe import probe
from quarl.device.deploy.state import TRUSTED
from quarl.device.deploy.switching import begin, mark_bad, still_serving, switch_on
from quarl.device.deploy.target import check_policy_name, user_name
from quarl.policy.json_values import JsonValueError, null_is, read, rename_in_json
from quarl.policy.spec import Precision, RuntimeName


@dataclass(frozen=True)
class Release:
    """One release on a device."""

    name: str = field(metadata=rename_in_json("release"))
    created: str = field(metadata=null_is(""))
    """When it was deployed, by the host's clock (a Pi without network has none)."""
    by: str = field(metadata=null_is(""))
    precisions: tuple[str, ...] = field(metadata=null_is(()))
    runtimes: tuple[str, ...] = field(metadata=null_is(()))
    digest: str = field(metadata=null_is(""))
    signer: str = field(default="", metadata=null_is(""))
    """Fingerprint of the key that signed it; empty: an older version deployed it unsigned."""
    damage: str = ""
    """Why its record cannot be used; nothing of the above is known then."""
    bad: str = ""
    """Why it is known to be bad: it failed a check on this device, or a person said so."""
    left: str = ""
    """When and by whom it was rolled back from; deploying it again, or going to it by name, ends that."""
    good: str = ""
    """When and by whom it was gone back to; the newest of these is never pruned."""
    trust: str = ""
    """``trusted``, or why the device does not trust it; empty: it was not asked."""
    is_old: bool = False
    """An older version of this project deployed it, and this one does not start it."""

    @property
    def why_not(self) -> str:
        """Why a rollback without a name does not go there; empty for a good one."""
        bad = f"marked bad ({self.bad})" if self.bad else ""
        old = "of an older version: deploy it again" if self.is_old else ""
        distrust = "" if self.trust in ("", TRUSTED) else f"not trusted ({self.trust})"
        return (f"damaged ({self.damage})" if self.damage else "") or bad or self.left or old or distrust


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
    problems: tuple[str, ...] = ()
    """Sentences on what lies in the place of something of ours."""


@dataclass(frozen=True)
class RollbackResult:
    """The requested rollback (``requested`` is None for "the last good one before") and what was done."""

    policy: str
    requested: str | None
    release: str
    previous: str | None
    checks: tuple[GoldenCheck, ...]
    seconds: float
    marked_bad: bool = False
    """Whether the one that served before is marked bad now."""
    warnings: tuple[str, ...] = ()
    """Releases that were passed over on the way, and what went wrong after the switch."""


@dataclass(frozen=True)
class RemoveResult:
    """What was removed from a device."""

    policy: str
    removed: tuple[str, ...]
    environments: tuple[str, ...]
    """Unpacked wheels that no release needs any more."""
    serving: str | None


def list_releases(connection: Connection) -> DeviceReleases:
    """Return what is deployed on the device. Changes nothing and needs no lock."""
    with open_device(connection) as session:
        report = session.show()
    releases: DeviceReleases = _read(connection, DeviceReleases, report)
    return releases


def serving_record(deployed: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is known of the release that serves; None: none does.

    Args:
        deployed: of one policy, as the device replies it: ``current``, and ``releases``.
    """
    return next((record for record in deployed["releases"] if record["release"] == deployed["current"]), None)


def _read(connection: Connection, kind: Any, found: Any) -> Any:
    """Return the device's report on its releases, checked."""
    try:
        return read(kind, found, "releases")
    except (JsonValueError, KeyError) as error:
        raise RemoteCommandError(
            f"{connection.name} did not report its releases as expected: {error}.",
            f"Try again: quarl releases --target {connection.target}",
        ) from error


def rollback(
    connection: Connection,
    policy: str,
    release: str | None = None,
    *,
    mark_bad_too: bool = False,
    only_from: str | None = None,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> RollbackResult:
    """Switch back to an older release, after its files and golden vectors were checked again on the device.

    Without a name, it is the newest good one before the current one: not damaged, not marked bad, not rolled back from.
    One that fails its check now is marked bad, and the next older one is tried.

    Args:
        connection: to the device.
        policy: name of the release's policy.
        release: which; default the last good one before the current one. Named, also one that is marked: if it passes
            its check, the mark is gone.
        mark_bad_too: mark the release that served until now as bad; without it, it is only noted that it was left.
        only_from: go back from this release alone; where another serves, nothing is done.
        wait_s: how long to wait for a deployment to end.
        progress: told about the checks.

    Raises:
        ReleaseError: there is no such release, or no good one before the current one.
        TrustError: its signer was revoked, or nobody signed it.
        VerificationError, CheckFailedError: the older release is damaged; the current one still serves.
    """
    begun = time.monotonic()
    check_policy_name(policy)
    tell = progress if progress is not None else lambda step: None
    python = probe(connection).python.path
    with open_device(connection, python) as session:
        state = begin(session, policy, None, wait_s)
        serving = state["current"]
        _require_serving(connection, only_from, serving)
        known: Sequence[Release] = _read(connection, tuple[Release, ...], state["releases"])
        warnings: list[str] = []
        with still_serving(serving):
            candidates = [release] if release else _before(known, serving, policy, connection)
            wanted, checks = _first_good(connection, session, policy, candidates, warnings, tell)
        previous, asked_again = switch_on(connection, session, policy, wanted, serving)
        warnings += asked_again
        marked = False
        back = previous is not None and _is_before(known, wanted, previous)
        if not asked_again and back:
            _mark(session, wanted, "good", "rolled back to", warnings)
        if not asked_again and previous not in (None, wanted) and (mark_bad_too or back):
            marked = _mark(session, previous, "bad" if mark_bad_too else "left", "rolled back from", warnings)
            marked = marked and mark_bad_too
        if asked_again and mark_bad_too:
            warnings.append(f"Release {previous} was not marked bad: the line was lost before.")
    done = time.monotonic() - begun
    return RollbackResult(policy, release, wanted, previous, checks, done, marked, tuple(warnings))


def _require_serving(connection: Connection, wanted: str | None, serving: str | None) -> None:
    if wanted not in (None, serving):
        raise ReleaseError(
            f"{connection.name} must serve {wanted} to be rolled back, but serves {serving or 'no release'}: "
            "somebody else changed it. Nothing was changed.",
            f"List the releases: quarl releases --target {connection.target}",
            code="changed_meanwhile",
        )


def _first_good(
    connection: Connection,
    session: Device,
    policy: str,
    candidates: Sequence[str],
    warnings: list[str],
    tell: Progress,
) -> tuple[str, tuple[GoldenCheck, ...]]:
    """Return the first candidate that passes its check; those before it are named in the warnings, and marked bad where
    what is wrong is their own."""
    for wanted in candidates:
        try:
            return wanted, _check_release(connection, session, policy, wanted, tell)
        except (VerificationError, CheckFailedError, TrustError) as error:
            own = error.blames_release
            if own:  # wheels are shared, and memory may be free tomorrow
                mark_bad(session, wanted, error.message)
            if wanted == candidates[-1]:
                for warning in warnings:
                    error.also(warning)
                raise
            warnings.append(f"Release {wanted} was passed over{' and is marked bad' * own}: {error.message}")
    raise AssertionError("there is at least one candidate")


def _check_release(
    connection: Connection, session: Device, policy: str, wanted: str, tell: Progress
) -> tuple[GoldenCheck, ...]:
    """Check a release's files, the wheels it needs, and its golden vectors."""
    report = session.check(wanted)
    if report["missing_environments"]:
        raise DamagedWheelsError(
            f"Wheels of release {wanted} of {policy} on {connection.name} are damaged: "
            f"{', '.join(report['missing_environments'])}.",
            "Deploy the release again, or roll back to another: --to RELEASE.",
        )
    try:
        precisions = [Precision(name) for name in report["precisions"]]
        runtimes = [RuntimeName(name) for name in report["runtimes"]]
    except ValueError as error:
        raise VerificationError(
            f"The record of release {wanted} of {policy} on {connection.name} names a precision or runtime that this "
            f"version does not know: {error}.",
            "Deploy the policy again, or roll back to another: --to RELEASE.",
        ) from None
    return golden_checks(connection, policy, f"releases/{wanted}", precisions, runtimes, tell)


def _before(known: Sequence[Release], serving: str | None, policy: str, connection: Connection) -> list[str]:
    """Return the good releases before the one that serves, newest first; where none is older, as after an old content
    was deployed again, the newer ones."""
    names = [release.name for release in known]
    older = known[: names.index(serving)] if serving in names else known
    for some in (older, known):
        good = [release.name for release in reversed(some) if not release.why_not and release.name != serving]
        if good:
            return good
    look = f"quarl releases --target {connection.target}"
    if not older:
        raise ReleaseError(
            f"{connection.name} has no release of {policy} before {serving or 'the first'}.",
            f"List the releases: {look}",
            code="no_earlier_release",
        )
    reasons = "; ".join(f"{release.name} is {release.why_not}" for release in older)
    raise ReleaseError(
        f"{connection.name} has no good release of {policy} before {serving or 'the first'}: {reasons}.",
        f"Deploy a good release, or type --to RELEASE for one of these, which is then checked again; {look} lists all.",
        code="no_good_release",
    )


def _is_before(known: Sequence[Release], wanted: str, previous: str) -> bool:
    names = [release.name for release in known]
    return wanted in names and previous in names and names.index(wanted) < names.index(previous)


def _mark(session: Device, release: str, kind: str, what: str, warnings: list[str]) -> bool:
    """Mark a release with what was done, when and by whom. Returns whether that succeeded."""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    reason = f"{what} {when} by {user_name()}@{socket.gethostname()}"
    try:
        session.set_mark(release, kind, reason)
    except VerificationError:  # its record is damaged: no rollback goes there anyway
        return False
    except HostError as error:
        warnings.append(f"Release {release} could not be marked {kind}: {error.message}")
        return False
    return True


def remove_releases(
    connection: Connection,
    policy: str,
    release: str | None = None,
    *,
    whole: bool = False,
    withdraw: bool = False,
    force: bool = False,
    wait_s: float = 0.0,
) -> RemoveResult:
    """Remove releases of a policy from the device: one, or all but the one that serves, or all.

    Args:
        connection: to the device.
        policy: whose releases.
        release: only this one.
        whole: the whole policy, with the release that serves.
        withdraw: ``release``, which has to serve; none serves then.
        force: also what an agent runs from.
        wait_s: how long to wait for a deployment to end.

    Raises:
        ReleaseError: there is no such policy or release, or it serves, or an agent runs from it. Nothing was removed.
    """
    check_policy_name(policy)
    with open_device(connection) as session:
        serving = begin(session, policy, None, wait_s)["current"]
        if withdraw:
            _require_serving(connection, release, serving)
        done = session.drop(release, whole=whole, withdraw=withdraw, force=force)
    return RemoveResult(policy, tuple(done["releases"]), tuple(done["environments"]), done["current"])
