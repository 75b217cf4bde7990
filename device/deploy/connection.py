"""An SSH connection to a device, as a context manager: strict about the host key, slow to trust, quick to tell.

    with connect("pi@raspberrypi") as connection:
        print(connection.run("uname -m").stdout)

Nothing here ever adds an unknown host key by itself. Every wait has an end.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from quarl.device.deploy.errors import (
    ConnectionLostError,
    HostError,
    RemoteCommandError,
    SessionLimitError,
    UnsupportedDeviceError,
)
from quarl.device.deploy.handshake import CONNECT_TIMEOUT_S, open_session
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.local_device import LOCAL_HOST_KEY_NAME, running_local_device
from quarl.device.deploy.remote_process import EndOfOutputError, LineTimeoutError, RemoteProcess
from quarl.device.deploy.ssh_config import Endpoint, resolve
from quarl.device.deploy.target import Target, user_name
from quarl.policy.places import local_device_folder

ACCEPT_TIMEOUT_S = 60.0
"""For a server that lets us in and then does not start a command, with its disk stuck for example."""
SESSION_WAIT_S = 3.0
_BEGIN = "quarl-begin"
"""Before what a command writes; what comes before it is of the shell's start-up files."""
_PACKET = 32 * 1024  # bytes between two calls of a progress callback


@dataclass(frozen=True)
class CommandResult:
    """A command of the device's shell, and what came of it."""

    command: str
    exit_status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.exit_status == 0


class Connection:
    """An authenticated connection. Made by ``connect``; not meant to be constructed elsewhere."""

    def __init__(
        self,
        transport: paramiko.Transport,
        target: Target,
        endpoint: Endpoint,
        fingerprint: str,
        again: Callable[[], contextlib.AbstractContextManager[Connection]],
    ) -> None:
        self._transport = transport
        self.target = target
        self.endpoint = endpoint
        self.host_key_fingerprint = fingerprint
        self.again = again
        """A new connection to the same device with the same keys, for when this one is lost."""

    @property
    def name(self) -> str:
        """The device as messages call it."""
        return "the local device" if self.target.is_local else f"{self.endpoint.user}@{self.target.host}"

    @property
    def transport_name(self) -> str:
        """``loopback`` when no network lies between, else ``ssh``; reports say it aloud."""
        hops, hop = list[Endpoint](), self.endpoint.jump
        while hop is not None:
            hops.append(hop)
            hop = hop.jump
        if not self.alive or any(endpoint.proxy_command for endpoint in (self.endpoint, *hops)):
            return "ssh"
        # The socket's peer is the first host on the way; each host but that one is reached from the one before.
        peers = [self._transport.getpeername()[0], *(endpoint.hostname for endpoint in (self.endpoint, *hops)[:-1])]
        return "loopback" if all(re.match(r"127\.|::1$|localhost$", str(peer)) for peer in peers) else "ssh"

    @property
    def alive(self) -> bool:
        """Whether the connection is still there, as far as we know."""
        return bool(self._transport.is_active())

    def build_lost_error(self, doing: str) -> ConnectionLostError:
        """Return the error for a connection that ended while ``doing`` something."""
        return ConnectionLostError(
            f"The connection to {self.name} was lost while {doing}.",
            "Look at the network and the device, then run the same command again; unfinished work is discarded.",
        )

    def no_shell(self, said: str) -> UnsupportedDeviceError:
        """Return the error for a user to whom the device gives no shell, with what it printed instead."""
        return UnsupportedDeviceError(
            f"{self.name} must give its user a shell that runs commands; it printed {said.strip()[-200:]!r}.",
            f"Check the login shell on the device (getent passwd {self.endpoint.user}); if it is nologin or false: "
            f"sudo chsh -s /bin/sh {self.endpoint.user}",
            printed=said,
        )

    @contextlib.contextmanager
    def _close_after(self, seconds: float) -> Iterator[None]:
        """End the connection when the block takes longer: paramiko waits for some answers without an end."""
        too_long = threading.Timer(seconds, self._transport.close)
        too_long.daemon = True
        too_long.start()
        try:
            yield
        finally:
            too_long.cancel()

    def _open_session(self, timeout: float) -> paramiko.Channel:
        deadline = time.monotonic() + SESSION_WAIT_S
        while True:
            try:
                return self._transport.open_session(timeout=timeout)
            except paramiko.ChannelException:
                # The one before counts until its process has ended, which may be a moment after we closed it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def start(self, command: str, timeout: float = CONNECT_TIMEOUT_S) -> RemoteProcess:
        """Start a command and talk to it in lines."""
        try:
            channel = self._open_session(timeout)
            channel.settimeout(timeout)
            with self._close_after(ACCEPT_TIMEOUT_S):
                channel.exec_command(command)
        except paramiko.ChannelException as error:
            raise SessionLimitError(
                f"{self.name} refused another session on this connection: {error.text}.",
                "Set MaxSessions to 2 or more in the device's sshd_config.",
            ) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not self.alive:
                raise self.build_lost_error(f"starting `{command[:60]}`") from None
            raise RemoteCommandError(
                f"{self.name} refused to start a command: {error}", "Allow exec requests in the device's SSH server."
            ) from None
        return RemoteProcess(channel, command, self.name)

    def run(
        self,
        command: str,
        *,
        timeout: float = 60.0,
        stdin: bytes = b"",
        progress: Callable[[int], None] = lambda count: None,
        check: bool = True,
    ) -> CommandResult:
        """Run a command to its end.

        Args:
            command: for the login shell of the device; quote with ``shlex.quote``.
            timeout: seconds for it to end after all was sent.
            stdin: what it reads.
            progress: called with the number of bytes that each packet of it added.
            check: raise when the exit status is not 0.

        Raises:
            RemoteCommandError: the status is not 0 and ``check``, or the time is over.
            UnsupportedDeviceError: the user has no shell there.
            ConnectionLostError: the connection ended meanwhile, or took nothing for 30 s.
        """
        begun, sent = time.monotonic(), 0
        process = self.start(f"echo; echo {_BEGIN}; {command}")
        try:
            with contextlib.suppress(EndOfOutputError):  # it may end without reading
                for start in range(0, len(stdin), _PACKET):
                    packet = stdin[start : start + _PACKET]
                    process.send(packet)
                    sent += len(packet)
                    progress(len(packet))
            process.close_input()
            output = process.read_rest(timeout)
            status = process.wait(timeout)
            if status is None:
                raise TimeoutError
        except (TimeoutError, LineTimeoutError):
            raise RemoteCommandError(
                f"`{command[:120]}` on {self.name} did not finish within {timeout:g} s.",
                "Check the device's load (`uptime`), then try again.",
            ) from None
        except (OSError, EOFError, paramiko.SSHException, HostError):
            if self.alive:
                raise
            status = -1
        finally:
            process.close()
        if status == -1 and not self.alive:
            raise self.build_lost_error(
                f"running `{command[:60]}`" if sent == len(stdin) else f"sending data (after {sent} bytes)"
            )
        greeting, mark, text = output.decode(errors="replace").partition(f"\n{_BEGIN}\n")
        if not mark:
            raise self.no_shell(greeting + "\n".join(process.stderr_lines()))
        result = CommandResult(
            command,
            status,
            text,
            "\n".join(process.stderr_lines()),
            time.monotonic() - begun,
        )
        if check and not result.ok:
            raise RemoteCommandError(
                f"`{command[:120]}` on {self.name} exited with status {status}: {result.stderr[-800:].strip()}",
                "Run the command on the device by hand.",
            )
        return result

    def stream(self, command: str, data: bytes, progress: Callable[[int], None] = lambda count: None) -> str | None:
        """Run a command in the home folder that reads ``data``; return None, or what it wrote if it failed.

        Raises:
            RemoteCommandError, ConnectionLostError: as :meth:`run`.
        """
        script = f'cd -P "$HOME" && umask 077 && {{ {command}; }} 2>&1'
        words = f"exec sh -c {shlex.quote(script)}"
        done = self.run(words, stdin=data, progress=progress, timeout=600.0, check=False)
        return None if done.ok else done.stdout

    def upload(self, data: bytes | Path, remote_path: str) -> None:
        """Write one file on the device, relative to its home or absolute. Not atomic by itself.

        Raises:
            OSError: the device did not write all of it (disk full, no permission); its message is what it wrote.
        """
        content, path = data.read_bytes() if isinstance(data, Path) else data, shlex.quote(remote_path)
        failed = self.stream(f'cat > {path} && [ "$(wc -c < {path})" -eq {len(content)} ]', content)
        if failed is not None:
            raise OSError(f"{remote_path} was not written: {failed.strip()[-200:]}")

    def close(self) -> None:
        """End the connection; what runs on the device sees the end of its input."""
        self._transport.close()


@contextlib.contextmanager
def connect(
    target: Target | str,
    *,
    identity: Path | None = None,
    known_hosts: KnownHosts | None = None,
    config_file: Path | None = None,
    local_folder: Path | None = None,
) -> Iterator[Connection]:
    """Connect to the device and close the connection at the end; for ``local`` the embedded device runs meanwhile.

    Args:
        target: which device; ``local``, ``user@host`` or ``user@host:port`` as text.
        identity: a private key file to offer first.
        known_hosts: whose host keys count, also of jump hosts; default the project's and those that ``ssh`` reads.
        config_file: instead of ``~/.ssh/config`` and the system's.
        local_folder: the folder of ``TARGET=local``; default artifacts/local-device.

    Raises:
        ConnectionFailedError, UnknownHostKeyError, ChangedHostKeyError, LoginError, TargetError.
        KeyboardInterrupt: also where the block ends with what was made of it on the way.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    with contextlib.ExitStack() as stack:
        if target.is_local:
            local = stack.enter_context(running_local_device(local_folder or local_device_folder()))
            known_hosts = KnownHosts(local.folder.known_hosts_file)
            endpoint = Endpoint(
                target, local.host, local.port, user_name(), LOCAL_HOST_KEY_NAME, local.folder.client_key_file,
                identities_only=True,
            )  # fmt: skip
        else:
            endpoint = resolve(target, identity, config_file)
        transport, key = open_session(endpoint, known_hosts, stack)
        again = functools.partial(
            connect,
            target,
            identity=identity,
            known_hosts=known_hosts,
            config_file=config_file,
            local_folder=local_folder,
        )
        yield Connection(transport, target, endpoint, key.fingerprint, again)


def require_reachable(target: Target | str, *, identity: Path | None = None) -> None:
    """See that a device answers, is the one that was accepted, and lets us in, before anything is worked for it.

    The embedded device is not started: it answers whenever it is.

    Raises:
        ConnectionFailedError, UnknownHostKeyError, ChangedHostKeyError, LoginError, TargetError.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    if not target.is_local:
        with connect(target, identity=identity):
            pass
