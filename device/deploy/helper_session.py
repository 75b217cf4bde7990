"""The host's end of ``on_device.helper``: start it on the device, keep it alive, turn its errors into ours."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import (
    DeviceFullError,
    DeviceLockedError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    ServiceError,
    TrustError,
    VerificationError,
)
from quarl.device.deploy.on_device import (
    files,
    launch,
    managers,
    records,
    services,
    signatures,
    store,
    supervise,
    trust,
    upkeep,
    wire,
)
from quarl.device.deploy.on_device import helper as helper_module
from quarl.device.deploy.remote_process import (
    ISOLATED,
    EndOfOutputError,
    LineTimeoutError,
    NoReplyError,
    RemoteProcess,
    program_of,
)
from quarl.device.deploy.without_python.session import ShellHelper

HEARTBEAT_S = 5.0
SILENCE_S = 30.0  # the device gives the lock back when it hears nothing for so long
STEP_TIMEOUT_S = 120.0
UNPACK_TIMEOUT_S = 600.0  # an SD card takes its time over a thousand small files
# Reads exactly as many bytes as the first line says and runs them; the host then waits for the greeting.
BOOTSTRAP = 'import sys;b=sys.stdin.buffer;exec(compile(b.read(int(b.readline())),"quarl-helper","exec"))'


class HelperSession:
    """A running helper on the device."""

    def __init__(self, connection: Connection, process: RemoteProcess | ShellHelper) -> None:
        self._connection = connection
        self._process = process
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            try:
                self._process.send(b"\n")
            except HostError:
                return  # the next request will say so

    def call(
        self,
        op: str,
        *,
        timeout: float = STEP_TIMEOUT_S,
        progress: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """One request to the helper and its reply.

        Raises:
            HostError: the subclass says what went wrong on the device.
        """
        doing = f"the device worked on `{op}`"
        try:
            reply = self._process.ask({"op": op, **fields}, timeout, progress)
        except LineTimeoutError:
            raise self._connection.lost(f"{doing} (no answer within {timeout:g} s)") from None
        except EndOfOutputError:
            if not self._connection.alive:
                raise self._connection.lost(doing) from None
            tail = " / ".join(self._process.stderr_lines(3)) or "it said nothing"
            raise RemoteCommandError(
                f"The helper on {self._connection.name} ended while {doing}: {tail}.",
                "Run the command again; what was half done is discarded.",
            ) from None
        except NoReplyError:
            raise RemoteCommandError(f"The helper on {self._connection.name} answered with nonsense.") from None
        if not reply.get("ok"):
            raise helper_error(self._connection.name, reply.get("error"))
        return reply

    def close(self) -> None:
        """Hang up; the helper discards what was not published and gives the lock back."""
        self._closed.set()
        self._process.close_input()
        self._process.wait(5.0)
        self._process.close()
        self._heart.join(1.0)


def helper_error(device: str, failure: Any) -> HostError:
    """The error for what a program of ``on_device`` reports: a code, a message, and what belongs to them."""
    error: Mapping[str, Any] = failure if isinstance(failure, dict) else {"message": str(failure)[:200]}
    code, message = error.get("code"), error.get("message", "no reason given")
    if code == "locked":
        holder = error.get("holder")
        holder = holder if isinstance(holder, dict) else {}
        who = f"{holder.get('user', 'somebody')}@{holder.get('host', 'unknown')} (pid {holder.get('pid', '?')})"
        return DeviceLockedError(
            f"{device} is being deployed to by {who}, policy {holder.get('policy', '?')}, "
            f"since {holder.get('since', '?')}. Nothing was changed.",
            "Wait for it to end, or add --wait 120.",
        )
    if code == "no-space":
        found = error.get("free_bytes")
        free = found / 1e6 if isinstance(found, int) else 0.0
        return DeviceFullError(
            f"The disk of {device} is full ({free:.1f} MB free): {message}. What was written is removed.",
            "Make room on the device (`df -h ~`, `du -sh ~/*`), then run the same command again.",
        )
    if code == "verify":
        return VerificationError(
            f"What arrived on {device} is not what was sent: {message}. It was removed.",
            "Run the command again; if it happens twice, test the device's disk and memory.",
        )
    if code == "trust":
        return TrustError(
            f"{device} does not trust it: {message}.",
            "quarl signers shows who may sign there; a deployment signs the release anew.",
        )
    if code == "release":
        return ReleaseError(f"On {device} {message}.", "quarl releases shows them.")
    if code == "damaged":
        return VerificationError(
            f"On {device} {message}.",
            "Deploy the policy again, or go to another release; quarl releases shows which are good.",
        )
    if code == "serving":
        return ReleaseError(
            f"On {device} {message}. Nothing was removed.",
            "quarl rollback first, or remove --all for the whole policy.",
        )
    if code == "in-use":
        return ReleaseError(f"On {device} {message}. Nothing was removed.", "End it first, or add --force.")
    if code in ("trial", "service"):
        known = {"trial": "quarl serving shows what serves.", "service": "Serve without --enable."}
        return ServiceError(f"On {device} {message}.", str(error.get("next") or known[code]))
    if code == "layout":
        return RemoteCommandError(
            f"{device} is not as a deployment left it: {message}. Nothing was changed.",
            "Look at it on the device; when nothing in it is needed, remove it there with `rm`, then try again.",
        )
    return RemoteCommandError(
        f"{device} could not do it: {message}.", "Look at the device's home folder and its rights."
    )


LAUNCHER = (files, signatures, records, trust, launch)
"""What verifies a release before it is started; each module after those it imports."""


def device_program(parts: Iterable[Any], then: str) -> bytes:
    """A program for the device: modules of ``on_device`` as text, each after those it imports, then what to do."""
    modules = {part.__name__: Path(str(part.__file__)).read_text("utf-8") for part in parts}
    return program_of(modules, then)


def service_scripts() -> dict[str, str]:
    """What starts loops on a device, by the name of its file there."""
    return {
        "launch.py": device_program(LAUNCHER, "sys.exit(module.main())\n").decode(),
        "supervise.py": Path(str(supervise.__file__)).read_text("utf-8"),
    }


def _script(silence_s: float) -> bytes:
    parts = (wire, files, signatures, records, trust, store, upkeep, managers, services, helper_module)
    return device_program(parts, f"module.main({silence_s!r})\n")


@contextlib.contextmanager
def helper(connection: Connection, python: str, *, silence_s: float = SILENCE_S) -> Iterator[HelperSession]:
    """The helper running on the device for the length of the block.

    Args:
        connection: to the device.
        python: the interpreter there (``probe`` knows it); where there is none, "": it is done from here then.
        silence_s: seconds without a heartbeat after which the device gives up on us.
    """
    if not python:
        session = HelperSession(connection, ShellHelper(connection))
        try:
            yield session
        finally:
            session.close()
        return
    script = _script(silence_s)
    process = connection.start(f"exec {shlex.quote(python)} {ISOLATED} -c {shlex.quote(BOOTSTRAP)}")
    try:
        process.send(f"{len(script)}\n".encode() + script)
        while True:  # a login shell's start-up files may print before the helper speaks
            line = process.read_line(STEP_TIMEOUT_S)
            if line.startswith(b'{"quarl-helper"'):
                break
    except (EndOfOutputError, LineTimeoutError):
        if not connection.alive:
            raise connection.lost("the helper started") from None
        tail = " / ".join(process.stderr_lines(3)) or "it said nothing"
        process.close()
        raise RemoteCommandError(
            f"{python} on {connection.name} does not start: {tail}.", "Try `python3 -V` on the device."
        ) from None
    session = HelperSession(connection, process)
    try:
        yield session
    finally:
        session.close()
