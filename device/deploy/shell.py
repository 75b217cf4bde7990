"""What a host does on a device, under the device's lock: one shell there, with Python on it and without.

The host decides, by what :mod:`state` has read; the device verifies, by on_device/verify.sh alone, and does what
on_device/session.sh has functions for. Its shell reads one command after the other from this host.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import (
    ConnectionLostError,
    DeviceFullError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    UnsupportedDeviceError,
    VerificationError,
)
from quarl.device.deploy.records import (
    MARK_FILE,
    Record,
    one_line,
)
from quarl.device.deploy.remote_process import EndOfOutputError, LineTimeoutError, RemoteProcess
from quarl.device.deploy.state import (
    TRIAL_LINK,
    DeviceState,
    Policy,
    parse_snapshot,
)

HEARTBEAT_S = 5.0
SILENCE_S = 30  # the device gives the lock back when it hears nothing for so long
STEP_TIMEOUT_S, LONG_TIMEOUT_S = 120.0, 600.0  # an SD card takes its time over a thousand small files
VERIFIER = Path(__file__).with_name("on_device") / "verify.sh"
_SESSION = VERIFIER.with_name("session.sh")
GREETING = "quarl-launch "
"""In front of what the verifier says of a release: ``ok``, or a code and a message."""
SHELL = "exec sh -c 'cd -P \"$HOME\" && exec sh -s'"
Progress = Callable[[int, int], None]


def refusal(device: str, verdict: str) -> HostError:
    """Return the error for what the verifier says against a release.

    Args:
        device: as messages call it.
        verdict: a code and a message.
    """
    code, _, message = verdict.partition(" ")
    again = "Deploy the policy again, or switch to another release; quarl releases shows which are good."
    if code == "trust":
        who = "See who may sign there with quarl signers, then deploy the release again to sign it."
        return TrustError(f"{device} does not trust the release: {message}.", who)
    if code == "damaged":
        return VerificationError(f"On {device}, {message}.", again)
    if code == "old":
        return ReleaseError(f"On {device}, {message}.", "quarl deploy")
    if code == "no-space":
        return DeviceFullError(f"On {device}, {message}.", "Make room on the device (`df -h ~`), then try again.")
    if code == "unsupported":
        return UnsupportedDeviceError(
            f"On {device}, {message}.",
            "On the device: sudo apt-get install openssh-client util-linux (OpenWrt: opkg install openssh-keygen "
            "flock); if nothing can be executed there: sudo mount -o remount,exec /dev/shm",
        )
    return RemoteCommandError(
        f"On {device}, {message or verdict}.", "Check the device's load and disk (`uptime`, `df -h ~`), then try again."
    )


class Shell:
    """A shell on the device that has the functions of verify.sh and session.sh."""

    def __init__(self, connection: Connection, silence_s: int = SILENCE_S) -> None:
        self.connection, self._silence_s = connection, silence_s
        self._mark, self._count = f"quarl-{secrets.token_hex(8)}", 0
        self._process: RemoteProcess = connection.start(SHELL)
        self._closed, self._at_work = threading.Event(), threading.Lock()
        self._heart: threading.Thread | None = None
        try:
            output = self.run(f'{VERIFIER.read_text()}{_SESSION.read_text()}echo; echo "$$ $root"')
            *messages, last = output.splitlines()
            pid, _, root = last.partition(" ")
            self.pid = int(pid)
            if not root:
                raise self.build_command_error("\n".join(messages))
        except BaseException:
            self._process.close()
            raise

    def watch(self) -> None:
        """Have the device end this shell where it is not heard any more, and let it be heard."""
        self.run(f"watch {self._silence_s}")
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._heart.start()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            with self._at_work, contextlib.suppress(HostError):  # the next command will say so
                if not self._closed.is_set():
                    self._process.send(b"hear yes\n")

    def run(
        self, script: str, *, timeout: float = STEP_TIMEOUT_S, progress: Progress | None = None, check: bool = True
    ) -> str:
        """Run commands there, one after the other, and return what they wrote.

        Args:
            script: for the shell; quote with ``shlex.quote``.
            timeout: seconds until the connection is given up.
            progress: called with the numbers of lines ``progress DONE TOTAL``, which are not returned.
            check: raise where the last one fails.

        Raises:
            DeviceFullError: it failed, and the disk is full.
            RemoteCommandError: it failed, or the shell ended.
            ConnectionLostError: the connection ended, or nothing came in time.
        """
        self._count += 1
        mark = f"{self._mark}-{self._count}"
        watched = self._heart is not None
        before, after = ("hear working\n", "; hear yes") if watched else ("", "")
        # Nothing that runs reads the script that follows.
        text = f"{before}{{\n{script}\n}} 2>&1 < /dev/null\nprintf '\\n%s %s\\n' {mark} \"$?\"{after}\n"
        deadline = time.monotonic() + timeout
        doing = f"the device worked on `{script.splitlines()[0][:60] if script else ''}`"
        lines: list[bytes] = []
        with self._at_work:
            try:
                self._process.send(text.encode())
                while True:
                    line = self._process.read_line(max(0.1, deadline - time.monotonic()))
                    if line.startswith(mark.encode()):
                        break
                    words = line.split()
                    if progress is not None and len(words) == 3 and words[0] == b"progress":
                        progress(int(words[1]), int(words[2]))
                        continue
                    lines.append(line)
            except LineTimeoutError:
                self._process.close()  # what comes now would be taken for the answer to the next command
                raise self.connection.build_lost_error(f"{doing} (no answer within {timeout:g} s)") from None
            except (EndOfOutputError, ConnectionLostError):
                if not self.connection.alive:
                    raise self.connection.build_lost_error(doing) from None
                last_lines = [line.decode(errors="replace") for line in lines[-3:]] + self._process.stderr_lines(3)
                tail = " / ".join(filter(None, last_lines)) or "it wrote nothing"
                if self._count == 1:  # it has not begun
                    raise self.connection.no_shell(tail) from None
                raise RemoteCommandError(
                    f"The shell on {self.connection.name} ended while {doing}: {tail}.",
                    "Run the command again; unfinished work is discarded.",
                ) from None
        output = b"\n".join(lines[:-1] if lines and not lines[-1] else lines).decode(errors="replace")
        status = int(line.split()[-1])
        if status and check:
            raise self.build_command_error(output)
        return output

    def build_command_error(self, output: str) -> HostError:
        """Return the error for a command that failed: the disk takes nothing, has no room, or what it wrote."""
        message = one_line(output.strip()[-300:])
        if "Read-only file system" in output:
            return RemoteCommandError(
                f"The disk of {self.connection.name} is read-only: {message}.",
                "On the device: sudo mount -o remount,rw / (or the mount that `df ~` prints), then run the same "
                "command again.",
            )
        room = parse_snapshot(self.run("room", check=False))
        if room.free_inodes == 0:
            return DeviceFullError(
                f"The disk of {self.connection.name} has no inode left for another file ({message}).",
                "Remove files on the device (`df -i ~`), then run the same command again.",
            )
        if ("free_kib" in room.facts and room.free_bytes < 1 << 16) or "No space left" in output:
            return DeviceFullError(
                f"The disk of {self.connection.name} is full ({room.free_bytes / 1e6:.1f} MB free): {message}. The "
                "files written so far were removed.",
                "Make room on the device (`df -h ~`, `du -sh ~/*`), then run the same command again.",
            )
        return RemoteCommandError(
            f"A command failed on {self.connection.name}: {message}.",
            "Check the permissions of the home folder on the device: ls -ld ~ ~/quarl",
        )

    def put(self, path: str, text: str) -> None:
        """Write a small file whole, or not at all; raises as :meth:`run`.

        Args:
            path: as a word of the shell.
            text: its content.
        """
        self.run(f"put {path} {shlex.quote(text)}")

    def close(self) -> None:
        """Hang up; the device discards what was not published and gives the lock back."""
        self._closed.set()
        self._process.close_input()
        self._process.wait(5.0)
        self._process.close()
        if self._heart is not None:
            self._heart.join(1.0)


class DeviceShell(Shell):
    """A shell that knows what is deployed on its device."""

    def __init__(self, connection: Connection, python: str = "", silence_s: int = SILENCE_S) -> None:
        """Start a shell there.

        Args:
            connection: to the device.
            python: its interpreter, which unpacks wheels; "" where it has none.
            silence_s: seconds without a heartbeat after which the device gives up on a host that holds the lock.
        """
        super().__init__(connection, silence_s)
        self.python, self.name = python, ""
        self.state = DeviceState({}, {}, {}, {})

    @property
    def policy(self) -> Policy:
        """The state of the policy that is worked on."""
        return self.state.of(self.name)

    def read(self, verdicts: bool = False) -> DeviceState:
        """Read what is there now; needs no lock.

        Args:
            verdicts: have each release's record verified, too.
        """
        text = self.run(f"snapshot{' verdicts' * verdicts}", timeout=LONG_TIMEOUT_S)
        self.state = parse_snapshot(text)
        if self.name:
            self.state.policies.setdefault(self.name, Policy())
        return self.state

    def find(self, release: str) -> Record:
        """Return the record of one release.

        Raises:
            ReleaseError: no release has that name.
            VerificationError: its record cannot be used.
        """
        releases = self.policy.releases
        for record in releases:
            if record.release == release:
                if record.damage:
                    raise refusal(self.connection.name, f"damaged release {release} of {self.name}: {record.damage}")
                return record
        names = ", ".join(record.release for record in releases) or "none"
        raise ReleaseError(
            f"{self.connection.name} has no release {release} of {self.name}; it has {names}.",
            f"List them: quarl releases --target {self.connection.target}",
        )

    def verify(self, folder: str, mode: str = "check") -> None:
        """Have the device verify a release, as at its start.

        Args:
            folder: ``releases/ID`` or ``incoming/ID`` of the policy.
            mode: ``check``, or ``record`` alone.

        Raises:
            TrustError, VerificationError, ReleaseError, …: as :func:`refusal`.
        """
        path = f"policies/{self.name}/{folder}"
        self._judge(self.run(f"(verify {mode} {quote_words([self.name, path])})", timeout=LONG_TIMEOUT_S, check=False))

    def _judge(self, output: str) -> None:
        for line in reversed(output.splitlines()):
            if line.startswith(GREETING):
                verdict = line.removeprefix(GREETING)
                if verdict != "ok":
                    raise refusal(self.connection.name, verdict)
                return
        raise self.build_command_error(output or "the verifier wrote nothing")

    def set_mark(self, release: str, kind: str, reason: str) -> None:
        """Mark a release: bad and left until it is deployed again, or good."""
        self.find(release)
        text = json.dumps({"kind": kind, "reason": one_line(reason)}, indent=1, sort_keys=True)
        self.put(f"policies/{self.name}/releases/{release}/{MARK_FILE}", text)

    def point(self, link: str, release: str) -> None:
        """Have ``current`` or ``trial`` lead to a release."""
        self.run(f"point {link} {shlex.quote(release)}")
        if link == TRIAL_LINK:
            self.policy.trial = release
        else:
            self.policy.current = release

    def send(self, path: str, data: bytes | Path, progress: Callable[[int], None] = lambda count: None) -> int:
        """Write one file below ~/quarl and return its bytes; raises as :meth:`run`."""
        quoted = shlex.quote(path)
        content = data.read_bytes() if isinstance(data, Path) else data
        self._stream(f'cat > {quoted} && [ "$(wc -c < {quoted})" -eq {len(content)} ]', content, progress)
        return len(content)

    def _stream(self, command: str, data: bytes, progress: Callable[[int], None]) -> None:
        failed = self.connection.stream(f"cd -P quarl && {command}", data, progress)
        if failed is not None:
            raise self.build_command_error(failed)


def quote_words(words: Iterable[str]) -> str:
    """Return words as a shell reads them."""
    return " ".join(map(shlex.quote, words))
