"""A process on the device that we talk to in lines: what a deployment's shell and the agent have in common."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import paramiko

from quarl.device.deploy.errors import ConnectionLostError, HostError
from quarl.device.deploy.text import may_act, printable, printable_reply

ISOLATED = "-IS"
"""How a Python with nothing but its standard library starts on a device: what lies in the home folder is no module."""
_CHUNK = 1 << 16
_STDERR_LINES = 200
_MAX_LINE = 64 << 20  # bytes; a reply longer than this is a fault, not a reply

_NONSENSE = (ValueError, RecursionError, AttributeError, KeyError, TypeError, OverflowError)
"""What reading a device's line may raise where it is no reply: no JSON, no object, progress without numbers."""


class EndOfOutputError(HostError):
    """The process has closed its output: it ended, or is about to."""


class LineTimeoutError(HostError):
    """No whole line came in the time given."""


class NoReplyError(HostError):
    """A line came that is no JSON object; the message is its beginning."""


def program_of(modules: Mapping[str, str], then: str) -> bytes:
    """Return a Python program for a device on which nothing is installed: modules as text, entered by name, then what
    to do.

    Args:
        modules: text by name, each after those that it imports.
        then: the last statements; ``sys`` is imported, and ``module`` is the last module.
    """
    return f"""
import sys, types
for name, text in {dict(modules)!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), vars(module))
{then}""".encode()


def _log_line(line: bytes) -> str:
    return printable(line.decode(errors="replace"), "\t")


class RemoteProcess:
    """One command running on the device, with its input, output lines and the tail of its error output.

    Standard error is drained by a thread all the time: a process whose error output nobody reads stops
    when the SSH window is full.
    """

    def __init__(self, channel: paramiko.Channel, command: str, device: str) -> None:
        self._channel = channel
        self.command = command
        self._device = device
        self._buffer = bytearray()
        self._send_lock = threading.Lock()
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._drain = threading.Thread(target=self._drain_stderr, name="stderr", daemon=True)
        self._drain.start()

    def _drain_stderr(self) -> None:
        rest = b""
        while True:
            try:
                chunk = self._channel.recv_stderr(_CHUNK)
            except TimeoutError:
                continue  # the channel's timeout is for the replies, silence here is normal
            except (OSError, paramiko.SSHException):
                break
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            self._stderr.extend(_log_line(line) for line in lines)
        if rest:
            self._stderr.append(_log_line(rest))

    def stderr_lines(self, last: int = _STDERR_LINES) -> list[str]:
        """Return the last lines the process wrote to standard error."""
        return list(self._stderr)[-last:]

    def send(self, data: bytes, timeout: float = 30.0) -> None:
        """Write to the process's standard input.

        Raises:
            EndOfOutputError: the process no longer reads.
            ConnectionLostError: nothing could be sent for ``timeout`` seconds.
        """
        with self._send_lock:
            self._channel.settimeout(timeout)
            try:
                self._channel.sendall(data)
            except TimeoutError:
                raise ConnectionLostError(
                    f"{self._device} accepted no data for {timeout:g} s.",
                    "Look at the network and try again.",
                ) from None
            except (OSError, EOFError, paramiko.SSHException):
                raise EndOfOutputError("the process no longer reads its input") from None

    def read_line(self, timeout: float) -> bytes:
        """Return the next line of standard output, without its end.

        Raises:
            LineTimeoutError: no whole line within ``timeout`` seconds.
            EndOfOutputError: the process closed its output.
        """
        deadline = time.monotonic() + timeout
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            if len(self._buffer) > _MAX_LINE:
                raise EndOfOutputError(f"the process wrote a line longer than {_MAX_LINE} bytes")
            if not self._receive(deadline):
                raise EndOfOutputError("the process closed its output")

    def ask(
        self, request: Mapping[str, Any], timeout: float, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Send a JSON object as a line and read the one that answers it; late replies, of another id, are skipped.

        Args:
            request: what is asked.
            timeout: seconds without a line after which no more is waited for.
            progress: called with (done, total) for each progress line.

        Raises:
            EndOfOutputError, LineTimeoutError, NoReplyError, ConnectionLostError.
        """
        # What the device says is made printable here, where it enters the host.
        self.send(json.dumps(request, allow_nan=False).encode() + b"\n")
        while True:
            line = self.read_line(timeout)
            try:
                reply = json.loads(line)
                if may_act(line):
                    reply = printable_reply(reply)
                reported = reply.get("progress")
                done, total = (0, 0) if reported is None else (int(reported["done"]), int(reported["total"]))
            except _NONSENSE:
                raise NoReplyError(repr(line[:120])) from None
            if reported is not None:
                if progress is not None:
                    progress(done, total)
            elif reply.get("id", request.get("id")) == request.get("id"):
                return reply

    def read_rest(self, timeout: float) -> bytes:
        """Return all of standard output to its end.

        Raises:
            LineTimeoutError: it has not ended within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while self._receive(deadline):
            pass
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _receive(self, deadline: float) -> bool:
        """Wait for more output; False at its end."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise LineTimeoutError("no answer in time")
        self._channel.settimeout(left)
        try:
            chunk = self._channel.recv(_CHUNK)
        except TimeoutError:
            raise LineTimeoutError("no answer in time") from None
        except (OSError, EOFError, paramiko.SSHException):
            return False
        self._buffer += chunk
        return bool(chunk)

    def close_input(self) -> None:
        """Tell the process that nothing more will come."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def wait(self, timeout: float) -> int | None:
        """Return the exit status; -1 when a signal ended it, None when it still runs after ``timeout`` seconds."""
        if not self._channel.status_event.wait(timeout):
            return None
        self._drain.join(1.0)
        return int(self._channel.exit_status)

    @property
    def connection_alive(self) -> bool:
        """Whether the SSH connection below is still there."""
        transport = self._channel.get_transport()
        return bool(transport is not None and transport.is_active())

    def close(self) -> None:
        """Close the channel; whether the process ends by that is up to it."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()
