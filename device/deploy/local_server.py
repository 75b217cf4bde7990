"""The SSH server of ``TARGET=local``: real SSH on loopback, without root, for as long as one command runs.

``python -m device.deploy.local_server --root FOLDER`` listens on a free port of 127.0.0.1, prints one line of
JSON (where it listens) and serves until its standard input ends. The command that started it holds that
input open, so the server goes when the command goes, however it goes. The folder holds

    home/         what a device's home folder is: commands and SFTP start here
    bin/python3   the interpreter this project runs on, outside its virtual environment
    keys/         host key, the one client key that is let in, and the known_hosts file that names the host key
    server.log    what the server has to say

Commands run in their own process group with an environment of their own; when their channel goes, they get
the end of their input, then a few seconds, then SIGTERM and SIGKILL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import posixpath
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh

from quarl.device.deploy.local_device import HOST_KEY, LOCAL_HOST_KEY_NAME, LocalFolder, write_programs
from quarl.device.deploy.target import user_name
from quarl.policy.files import lock_folder, write_atomically

LISTEN = "127.0.0.1"
GRACE_S = 3.0  # between the end of a command's input and SIGTERM, and between SIGTERM and SIGKILL
_CHUNK = 1 << 16


class Door(asyncssh.SSHServer):
    """Accept every holder of the client key, under any name; keep the set of open connections."""

    def __init__(self, connections: set[asyncssh.connection.SSHConnection]) -> None:
        self._connections = connections
        self._own: asyncssh.connection.SSHConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Add a connection, before anybody has logged in."""
        self._own = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._own is not None:
            self._connections.discard(self._own)

    def begin_auth(self, username: str) -> bool:
        """Return whether a key has to be shown."""
        return True

    def password_auth_supported(self) -> bool:
        """No."""
        return False

    def kbdint_auth_supported(self) -> bool:
        """No."""
        return False


class Files(asyncssh.SFTPServer):
    """SFTP whose relative paths start at the device's home folder, as with OpenSSH."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        """Return where a path that a client named is on this machine."""
        return posixpath.join(self._home, path)  # an absolute path stays as it is


def prepare_key(path: Path) -> asyncssh.SSHKey:
    """Return the private key in a file, made when it is missing."""
    if path.exists():
        return asyncssh.read_private_key(str(path))
    key = asyncssh.generate_private_key("ssh-ed25519", comment=path.name)
    write_atomically(path, key.export_private_key(), mode=0o600)
    return key


def _public(key: asyncssh.SSHKey) -> str:
    """``ssh-ed25519 AAAA…``."""
    return " ".join(key.export_public_key().decode().split()[:2])


def prepare(folder: LocalFolder) -> tuple[asyncssh.SSHKey, asyncssh.SSHKey]:
    """Make what is missing: folders (0700), keys (0600), known_hosts, interpreter. Safe when two do it at once."""
    for path in (folder.root, folder.keys, folder.client_key_file.parent, folder.home, folder.bin):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_folder(folder.root):
        host_key, client_key = prepare_key(folder.keys / HOST_KEY), prepare_key(folder.client_key_file)
        if not folder.known_hosts_file.exists():
            # Recorded when the key is made, never later: a host key that changes afterwards is refused.
            line = f"{LOCAL_HOST_KEY_NAME} {_public(host_key)}\n"
            write_atomically(folder.known_hosts_file, line.encode(), mode=0o600)
        write_programs(folder.bin)
    return host_key, client_key


def device_environment(folder: LocalFolder) -> dict[str, str]:
    """Return what a command on the device finds in its environment; nothing of the host's."""
    user = user_name()
    return {
        "HOME": str(folder.home),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PATH": f"{folder.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }


class LocalServer:
    """Serves one folder; keeps the list of what it started, to end it all. A process may have several."""

    def __init__(self, folder: LocalFolder) -> None:
        """Prepare a device that does not listen yet; create what its folder lacks."""
        self._folder = folder
        self._host_key, self._client_key = prepare(folder)
        self._commands: set[asyncio.Task[None]] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.connection.SSHConnection] = set()

    @property
    def public_host_key(self) -> str:
        """``ssh-ed25519 AAAA…``."""
        return _public(self._host_key)

    def options(self, host_key: asyncssh.SSHKey) -> dict[str, Any]:
        """Return how asyncssh serves a connection to this device."""
        return {
            "server_factory": lambda: Door(self._connections),
            "server_host_keys": [host_key],
            "authorized_client_keys": asyncssh.import_authorized_keys(_public(self._client_key)),
            "process_factory": self._serve_command,
            "sftp_factory": lambda channel: Files(channel, self._folder.home),
            "encoding": None,
            "allow_scp": False,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "login_timeout": 30,
            # On loopback compression only costs time.
            "compression_algs": None,
        }

    async def start(self) -> int:
        """Listen; returns the port."""
        self._acceptor = await asyncssh.listen(LISTEN, 0, **self.options(self._host_key))
        return int(self._acceptor.get_port())

    async def stop(self) -> None:
        """Close the door, hang up, give commands a moment to see the end of their input, then end them."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()
        # Each command sees its channel go and ends its own processes; cancelling it half-way would leave them.
        if self._commands:
            await asyncio.wait(self._commands, timeout=3 * GRACE_S)

    async def _serve_command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._commands.add(task)
        try:
            await self._run(process)
        finally:
            self._commands.discard(task)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.command is None:
            process.stderr.write(b"This device runs commands and SFTP; it has no interactive shell.\n")
            process.exit(1)
            return
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder.home,
            env=device_environment(self._folder),
            start_new_session=True,
        )
        feeder = asyncio.create_task(self._feed(process, child))
        closed = asyncio.create_task(process.wait_closed())
        try:
            assert child.stdout is not None and child.stderr is not None
            outputs = asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            # Waiting for the outputs alone would hang on a grandchild that keeps them open.
            await asyncio.wait((asyncio.ensure_future(outputs), closed), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                await self._end(child)
                return
            status = await child.wait()
            if status < 0:
                process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                process.exit(status)
        finally:
            feeder.cancel()
            closed.cancel()
            _kill_group(child, signal.SIGKILL)

    async def _feed(self, process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
        assert child.stdin is not None
        try:
            while True:
                try:
                    data = await process.stdin.read(_CHUNK)
                except asyncssh.SignalReceived as received:
                    with contextlib.suppress(ValueError):
                        _kill_group(child, signal.Signals["SIG" + received.signal])
                    continue
                except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
                    continue
                child.stdin.write(data)
                await child.stdin.drain()
                if not data:
                    break
        except (OSError, asyncssh.Error):
            pass  # the client hung up or the command stopped reading: either way its input has ended
        finally:
            child.stdin.close()

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.stdin is not None:
            child.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                _kill_group(child, number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(child.wait(), GRACE_S)
                return


def _kill_group(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def _pump(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error):
        while await source.read(_CHUNK):
            pass  # nobody listens any more; keep reading so that the command can end by itself


async def _input_ends() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(_CHUNK):
        pass


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and SIGHUP set from now on, instead of ending this process at once."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until_stopped(stop: asyncio.Event) -> None:
    """Wait until standard input ends or the event is set."""
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(_input_ends())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()


async def serve(root: Path) -> None:
    """Serve ``root`` until standard input ends or a signal comes."""
    server = LocalServer(LocalFolder(root))
    port = await server.start()
    stop = stop_on_signals()
    print(json.dumps({"host": LISTEN, "port": port, "pid": os.getpid()}), flush=True)
    await until_stopped(stop)
    await server.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a folder as a device on loopback until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m device.deploy.local_server", description=main.__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the device's folder, made when missing")
    root = parser.parse_args(argv).root.resolve()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.umask(0o077)
    logging.basicConfig(filename=root / "server.log", level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(serve(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
