"""The moment in which a device changes from one release to another, and what is known of it when the line breaks."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.device import SILENCE_S, Device, open_device
from quarl.device.deploy.errors import CheckFailedError, ConnectionLostError, HostError
from quarl.device.deploy.target import user_name

ASKED_AGAIN, PAUSE_S = 3, 1.0
"""How often a device whose line was cut in a switch is queried for what serves, and the seconds in between."""


def begin(session: Device, policy: str, digest: str | None, wait_s: float) -> dict[str, Any]:
    """Take the device's lock under our name."""
    return session.begin(policy, digest, holder(policy), wait_s)


def holder(policy: str) -> dict[str, Any]:
    """Return what others are shown of us while we hold a device's lock."""
    return {"user": user_name(), "host": socket.gethostname(), "pid": os.getpid(), "policy": policy}


@contextlib.contextmanager
def still_serving(release: str | None) -> Iterator[None]:
    """Errors within the block say that this release (None: no release) serves as before."""
    try:
        yield
    except HostError as error:
        error.also(f"Release {release} still serves." if release else "No release was serving before.")
        raise


def mark_bad(session: Device, release: str, reason: str) -> None:
    """Mark a release that failed; whatever prevents that is less than the failure itself, and not told."""
    with contextlib.suppress(HostError):
        session.set_mark(release, "bad", reason)


@contextlib.contextmanager
def mark_bad_when_refused(session: Device, release: str) -> Iterator[None]:
    """Mark a release bad that the device's own agent refuses within the block."""
    try:
        yield
    except CheckFailedError as error:
        if error.blames_release:
            mark_bad(session, release, error.message)
        raise


def switch_on(
    connection: Connection,
    session: Device,
    policy: str,
    release: str,
    serving: str | None,
    silence_s: int = SILENCE_S,
    rollout: Mapping[str, Any] | None = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Switch to a release; when no clear answer comes, ask again what serves, over a new connection if need be.

    Args:
        connection: to the device.
        session: holds the lock.
        policy: name of the release's policy.
        release: to serve from now on.
        serving: the one that serves until now.
        silence_s: seconds after which the device gives up a host that it does not hear.
        rollout: whose rollout it is, to be written on the device; None: of nobody's.

    Returns:
        The release that served before, and a warning when the answer had to be asked for again.

    Raises:
        HostError: the message says which release serves, or that it is unknown and what to type.
    """
    try:
        return session.switch(release, rollout, lambda done, total: None), ()
    except HostError as error:
        # Also an error that the device reports may come after the link was renamed.
        failed = error
    try:
        session.close()
        lost = isinstance(failed, ConnectionLostError) or not connection.alive
        for again in range(ASKED_AGAIN):
            try:
                now = _serves_now(connection, lost, policy, silence_s)
                break
            except HostError:
                if not lost or again == ASKED_AGAIN - 1:
                    raise
                time.sleep(PAUSE_S)  # what cut the line may not be over yet
    except HostError as why:
        failed.serving_unknown = True
        either = f"{serving} or {release}" if serving else f"{release} or none"
        failed.also(f"Whether {either} serves is unknown (asked again: {why.message})")
        command = f"quarl releases --target {connection.target} --policy {policy}"
        failed.advise(f"Look which one serves before you start it: {command}")
        raise failed from None
    if now == release and now != serving:
        return serving, (f"{failed.message} Asked again, the device says that release {release} serves.",)
    with still_serving(now):
        raise failed


def _serves_now(connection: Connection, lost: bool, policy: str, silence_s: int) -> str | None:
    """Return the release that serves, read under the lock: no switch of ours can be on its way any more."""
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(connection.again()) if lost else connection
        fresh = stack.enter_context(open_device(line))
        current = begin(fresh, policy, None, silence_s + 5.0)["current"]
        return str(current) if current is not None else None
