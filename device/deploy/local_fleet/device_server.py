"""One device of the embedded fleet: its own port, its own host key, and whatever is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import subprocess
from pathlib import Path

import asyncssh

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.local_device import HOST_KEY, LocalFolder
from quarl.device.deploy.local_fleet.faults import Fault, FaultKind, read_fault, write_fault
from quarl.device.deploy.local_fleet.throttle import pass_slowly
from quarl.device.deploy.local_fleet.traffic import SwitchTraffic
from quarl.device.deploy.local_server import LISTEN, LocalServer, prepare_key
from quarl.device.deploy.local_sessions import Traffic

OTHER_KEY = "other_ed25519"
SMALL_DISK = "12m"
ROOM_LEFT = 64 << 10  # bytes that a full disk still has
BALLAST = ".ballast"
_CHUNK = 1 << 16


class FleetDevice(LocalServer):
    """Serves one folder of a fleet; the fault in it is looked up for each connection."""

    def __init__(self, folder: LocalFolder, client_key: asyncssh.SSHKey, *, small: bool = False) -> None:
        """A device that does not listen yet.

        Args:
            folder: its own.
            client_key: is let in.
            small: its home folder is on a disk of its own, of 12 MB, which is empty at each start.
        """
        super().__init__(folder)
        self._client_key, self._small = client_key, small
        self._mounted = False
        for path in (folder.root, folder.home, folder.keys):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.host_key = prepare_key(folder.keys / HOST_KEY)
        self._kinds = {HOST_KEY: self._prepared(self.host_key)}
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _prepared(self, host_key: asyncssh.SSHKey) -> asyncssh.SSHServerConnectionOptions:
        return asyncssh.SSHServerConnectionOptions(**self.options(host_key, self._client_key))

    @property
    def public_host_key(self) -> str:
        """``ssh-ed25519 AAAA…``."""
        return " ".join(self.host_key.export_public_key().decode().split()[:2])

    async def start(self) -> int:
        """Listen; returns the port."""
        if self._small and not self._folder.home.is_mount():
            _mount(self._folder.home)
            self._mounted = True
        self._listener = socket.create_server((LISTEN, 0), backlog=64)
        self._listener.setblocking(False)
        self._keep(asyncio.create_task(self._accept(self._listener)))
        return int(self._listener.getsockname()[1])

    async def stop(self) -> None:
        """End the connections and the commands, and give the small disk back."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        await super().stop()
        if self._mounted:
            subprocess.run(["umount", "-l", str(self._folder.home)], stderr=subprocess.DEVNULL)

    def traffic(self) -> Traffic:
        """Looks for the switch."""
        return SwitchTraffic(self._fault, self._die)

    def _die(self) -> None:
        """The power is gone, and does not come back before somebody heals the device."""
        write_fault(self._folder.root, Fault(FaultKind.UNREACHABLE))
        self.cut_power()

    def _fault(self) -> Fault | None:
        try:
            return read_fault(self._folder.root)
        except ValueError as error:
            logging.warning("%s", error)
            return None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # too many open files, for example: those who wait may get in later
                logging.warning("%s cannot take a connection: %s", self._folder.root.name, error)
                await asyncio.sleep(0.1)
                continue
            self._keep(asyncio.create_task(self._meet(sock)))

    async def _meet(self, sock: socket.socket) -> None:
        """One connection, as the device's fault has it."""
        fault = self._fault()
        kind = fault.kind if fault is not None else None
        if self._small:
            self._fill(kind is FaultKind.FULL)
        if kind is FaultKind.UNREACHABLE:
            # Closed without lingering, a connection is reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        elif kind is FaultKind.SILENT:
            await _ignore(sock)
        elif fault is not None and kind is FaultKind.SLOW:
            near, far = socket.socketpair()
            for each in (near, far):
                each.setblocking(False)
            self._keep(asyncio.create_task(pass_slowly(sock, near, fault.bytes_per_s, fault.delay_s)))
            await self._serve(far, HOST_KEY)
        else:
            await self._serve(sock, OTHER_KEY if kind is FaultKind.OTHER_KEY else HOST_KEY)

    async def _serve(self, sock: socket.socket, key: str) -> None:
        if key not in self._kinds:
            self._kinds[key] = self._prepared(prepare_key(self._folder.keys / key))
        with contextlib.suppress(OSError, asyncssh.Error):  # it hung up, or was not let in
            await asyncssh.run_server(sock, options=self._kinds[key])

    def _fill(self, full: bool) -> None:
        """Take all of the small disk but the room that a full one has, or give it back."""
        ballast = self._folder.home / BALLAST
        if not full:
            ballast.unlink(missing_ok=True)
            return
        disk = os.statvfs(self._folder.home)
        more = disk.f_bavail * disk.f_frsize - ROOM_LEFT
        if more > 0:
            with ballast.open("ab") as stream, contextlib.suppress(OSError):
                os.posix_fallocate(stream.fileno(), stream.tell(), more)


async def _ignore(sock: socket.socket) -> None:
    """Take what a client says, without an answer, until it hangs up."""
    try:
        with contextlib.suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(sock, _CHUNK):
                pass
    finally:
        sock.close()


def _mount(folder: Path) -> None:
    options = f"size={SMALL_DISK},mode=700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(
            f"A small disk cannot be mounted at {folder}: {done.stderr.strip()}.",
            "Start the fleet in a mount namespace of its own, unshare --user --map-root-user --mount, "
            "or leave --small out.",
        )
