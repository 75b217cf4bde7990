"""The fleet of ``quarl local-fleet`` as a block of a test, and one whose devices can be made to fail and healed.

``python -m tests.device_deploy.fleet.faulty_fleet --devices 9 --root FOLDER`` serves the latter.
"""

import argparse
import asyncio
import contextlib
import json
import math
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import asyncssh

from quarl.device.deploy.local_device import LocalFolder
from quarl.device.deploy.local_fleet import device_folder, device_names, serve
from quarl.device.deploy.local_server import LISTEN, LocalServer
from quarl.policy.files import write_atomically

SHIPPED = "quarl.device.deploy.local_fleet"
FAULTY = "tests.device_deploy.fleet.faulty_fleet"
FAULT_FILE = "fault"
SLOW_BYTES_PER_S = 30e3
STOP_TIMEOUT_S = 30.0


class Fault(StrEnum):
    """What is wrong with a device, from its next connection on."""

    UNREACHABLE = "unreachable"
    """A connection is reset at once, as by a device that is off behind a router that says so."""
    SILENT = "silent"
    """A connection is taken and never answered."""
    SLOW = "slow"
    OTHER_KEY = "other-key"
    """It shows another host key than the one on record."""
    DIES_BEFORE_SWITCH = "dies-before-switch"
    """It loses its power as it is told to switch to another release, and is unreachable from then on."""
    DIES_AFTER_SWITCH = "dies-after-switch"
    """It has switched; the reply does not leave it."""


def tells_switch(sent: bytes) -> bool:
    """Whether what a host sent tells the device to switch.

    With ``reports_switch`` the one place that knows how a device is spoken to: commands to a shell, in braces.
    """
    return b"\n{\npoint current " in b"\n" + sent


def reports_switch(received: bytes) -> bool:
    """Whether what a device said after it was told to switch is the line that ends the reply to that."""
    return re.search(rb"quarl-[0-9a-f]{16}-[0-9]+ [0-9]+\n", received) is not None


class FaultyDevice(LocalServer):
    """A device behind a relay that has the fault that the device's folder names."""

    async def start(self) -> int:
        self._well = await super().start()
        self._relay = await asyncio.start_server(self._meet, LISTEN, 0)
        return int(self._relay.sockets[0].getsockname()[1])

    def fault(self) -> Fault | None:
        try:
            return Fault((self._folder.root / FAULT_FILE).read_text())
        except FileNotFoundError:
            return None

    def cut_power(self) -> None:
        """Kill all commands and break all lines, with no moment for anyone to end in order; it does not come back."""
        write_atomically(self._folder.root / FAULT_FILE, Fault.UNREACHABLE.encode())
        for command in self._commands:
            command.cancel()
        for connection in list(self._connections):
            connection.abort()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self.fault()
        with contextlib.suppress(OSError):
            if fault is Fault.UNREACHABLE:  # closed without lingering, a connection is reset
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif fault is Fault.SILENT:
                await reader.read()
            else:
                speed = SLOW_BYTES_PER_S if fault is Fault.SLOW else math.inf
                port = await self._other_key() if fault is Fault.OTHER_KEY else self._well
                there, back = await asyncio.open_connection(LISTEN, port)
                ways = [asyncio.create_task(_pass_on(*ends, speed)) for ends in ((reader, back), (there, writer))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                back.close()
        writer.close()

    async def _other_key(self) -> int:
        key = asyncssh.generate_private_key("ssh-ed25519")
        self._impostor = await asyncssh.listen(LISTEN, 0, **self.options(key))
        return int(self._impostor.get_port())

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        fault = self.fault()
        if fault in (Fault.DIES_BEFORE_SWITCH, Fault.DIES_AFTER_SWITCH):
            process = _Doomed(process, self, fault)  # type: ignore[assignment]
        await super()._run(process)


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, bytes_per_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(int(min(1 << 16, bytes_per_s / 20))):
            sink.write(data)
            await sink.drain()
            await asyncio.sleep(len(data) / bytes_per_s)


class _Doomed:
    """A command of a device that dies in the switch: the process, its input and its output in one."""

    def __init__(self, process: asyncssh.SSHServerProcess[bytes], device: FaultyDevice, fault: Fault) -> None:
        self._process, self._device, self._fault = process, device, fault
        self.stdin = self.stdout = self
        self._sent = self._received = b""
        self._told = self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def _die(self) -> None:
        self._dead = True
        self._device.cut_power()

    async def read(self, size: int) -> bytes:
        """What the command gets to read; nothing of a switch that the device does not live to see."""
        data: bytes = await self._process.stdin.read(size)
        self._sent = self._sent[-64:] + data  # the order may come in pieces
        if not self._told and tells_switch(self._sent):
            self._told = True
            if self._fault is Fault.DIES_BEFORE_SWITCH:
                self._die()
                await asyncio.Event().wait()  # until this command is killed: it does not see its input end
        return data

    def write(self, data: bytes) -> None:
        """Pass on what the command says, up to the reply to the switch."""
        if self._told:
            self._received = self._received[-64:] + data
            if not self._dead and reports_switch(self._received):
                self._die()
        if not self._dead:
            self._process.stdout.write(data)

    async def drain(self) -> None:
        await self._process.stdout.drain()


class LocalFleet:
    """A running fleet, whose devices are hosts by their names."""

    def __init__(self, root: Path, devices: int, pid: int) -> None:
        self.root, self.names, self.pid = root, device_names(devices), pid
        self.fleet_file = root / "fleet.toml"

    def folder(self, name: str) -> LocalFolder:
        return device_folder(self.root, name)

    def set_fault(self, name: str, fault: Fault) -> None:
        write_atomically(self.folder(name).root / FAULT_FILE, fault.encode())

    def heal(self, name: str) -> None:
        (self.folder(name).root / FAULT_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def running_fleet(root: Path, devices: int, module: str = FAULTY) -> Iterator[LocalFleet]:
    """Start a fleet and end it, with all that runs on it, at the end of the block."""
    command = [sys.executable, "-m", module, "--devices", str(devices), "--root", str(root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            ready = process.stdout.readline()
            assert ready, f"the fleet in {root} did not start"
            yield LocalFleet(root, devices, json.loads(ready)["pid"])
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {FAULTY}", description=__doc__)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    serve(**vars(parser.parse_args()), made=FaultyDevice)
