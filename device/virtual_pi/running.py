"""Start, stop, status. A machine is a folder: its card (a copy-on-write overlay), its serial log, what runs.

The card is kept from start to start, as a Pi's is; whatever happens to a machine, the image below is only read.
While it runs, a stanza as in ~/.ssh/config and its host key in known_hosts make it a host by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.connection import connect
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.hostkeys import named_hosts
from quarl.device.deploy.local_device import free_port
from quarl.device.deploy.target import LOCAL, Target
from quarl.device.virtual_pi import programs
from quarl.device.virtual_pi.errors import MachineNameError, StartError
from quarl.device.virtual_pi.image import Image, Tell, base_folder, ensure_image
from quarl.device.virtual_pi.machine import MachineSettings, command
from quarl.device.virtual_pi.recipe import USER, Init, MachineKind
from quarl.policy.files import lock_folder

DEFAULT_NAME = "virtual"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
BOOT_TIMEOUT_S = 180.0
POWEROFF_TIMEOUT_S = 20.0
_PORT_TRIES = 5
_POWER_OFF = "if [ -d /run/systemd/system ]; then systemctl poweroff; else poweroff; fi"
_LISTENS = b"Server listening on"  # sshd's first words, on the serial console


@dataclass(frozen=True)
class Running:
    """A machine that runs."""

    name: str
    settings: MachineSettings
    pid: int
    pid_started: int
    """When the process started, in ticks after boot: an id together with this is never another process."""
    port: int
    build: str
    """Which build of the image its card lies on."""

    @property
    def target(self) -> str:
        """The machine as TARGET."""
        return f"{USER}@{self.name}"

    @property
    def alive(self) -> bool:
        """Whether its process is still that process, and runs."""
        with contextlib.suppress(ChildProcessError):  # a child of ours that was killed is a zombie until asked for
            os.waitpid(self.pid, os.WNOHANG)
        return read_start_time(self.pid) == self.pid_started


@dataclass(frozen=True)
class Started:
    """The results of a start."""

    machine: Running
    seconds: float
    """Seconds from the command to SSH answering; 0 when it ran already."""
    already: bool
    new_card: bool
    host_key_replaced: bool
    serial: Path


def machines_folder() -> Path:
    """Where all machines are."""
    return base_folder() / "machines"


def folder_of(name: str) -> Path:
    """The folder of one machine, whose name becomes a host's and a folder's.

    Raises:
        MachineNameError: it cannot.
    """
    if not _NAME.match(name) or name == LOCAL:
        raise MachineNameError(
            f"A machine cannot be called {name!r}; allowed are up to 31 small letters, digits and '-', "
            f"a letter first, and not {LOCAL!r}.",
            "--name second, for example; it is then pi@second.",
        )
    return machines_folder() / name


def host_key_alias(name: str) -> str:
    """The name in known_hosts: the port changes with every start, the machine does not."""
    return f"quarl-virtual-pi-{name}"


def register(name: str, port: int, client_key: Path, host_key: str) -> bool:
    """Make ``pi@NAME`` resolve to the machine. Returns whether another host key was on record.

    The key is taken from the image that was built on this machine, never from the network.

    Args:
        name: of the machine.
        port: on 127.0.0.1.
        client_key: the private key file that is let in.
        host_key: ``ssh-ed25519 AAAA…``.
    """
    host = named_hosts.NamedHost(name, port, USER, client_key, host_key, host_key_alias(name))
    return bool(named_hosts.register([host], "Written when the virtual Pi started; removed when it stops."))


def read_start_time(pid: int) -> int | None:
    """Start time of a process that is alive: field 22 of its stat, counted after the name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def find(name: str) -> Running | None:
    """The machine of that name if it runs."""
    try:
        facts = json.loads((folder_of(name) / "machine.json").read_text())
        kinds = {"kind": MachineKind(facts.pop("kind")), "init": Init(facts.pop("init", Init.BUSYBOX.value))}
        settings = MachineSettings(**{**facts.pop("settings"), **kinds})
        machine = Running(settings=settings, **facts)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return machine if machine.alive else None


def all_running() -> list[Running]:
    """Every machine that runs."""
    folder = machines_folder()
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [machine for name in names if (machine := find(name)) is not None]


def start(
    name: str = DEFAULT_NAME,
    settings: MachineSettings | None = None,
    *,
    fresh: bool = False,
    tell: Tell = lambda text: None,
) -> Started:
    """Start a machine and wait until SSH lets us in.

    Args:
        name: it becomes ``pi@NAME``.
        settings: which machine; default a Pi 3b's.
        fresh: with an empty card instead of its own.
        tell: is told what is being done.

    Raises:
        MissingProgramsError, BuildError: there is no image and none can be built.
        StartError: it runs already in another way, or did not come up; nothing is left running.
    """
    settings = settings or MachineSettings()
    begun = time.monotonic()
    folder = folder_of(name)
    programs.require(programs.RUNNING)
    image = ensure_image(tell)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_folder(folder):
        running = find(name)
        if running is not None:
            if running.settings != settings or fresh:
                raise StartError(
                    f"{running.target} runs already, as another machine ({running.settings.description}).",
                    f"quarl pi stop --name {name}, or --name second for one beside it.",
                )
            return Started(running, 0.0, True, False, False, folder / "serial.log")
        new_card = prepare_card(folder, image, fresh, tell)
        tell(f"starting {settings.description} …")
        machine, replaced = _launch(name, settings, image, folder)
        try:
            _wait_for_ssh(machine, folder)
        except BaseException:
            _end(machine)
            _forget(name)
            raise
        return Started(machine, time.monotonic() - begun, False, new_card, replaced, folder / "serial.log")


def prepare_card(folder: Path, image: Image, fresh: bool, tell: Tell) -> bool:
    """Make sure that there is a card which lies on this very build of the image. Returns whether it is new."""
    card, note = folder / "card.qcow2", folder / "card.json"
    try:
        build = json.loads(note.read_text())["build"] if card.is_file() else None
    except (OSError, ValueError, KeyError):
        build = None
    if build == image.build and not fresh:
        return False
    if build is not None and not fresh:
        tell("the image was rebuilt, so the machine gets an empty card …")
    note.unlink(missing_ok=True)
    part = folder / "card.part"
    result = subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.card), str(part)],
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise StartError(f"qemu-img could not make a card: {result.stderr.strip()}", f"Is there room in {folder}?")
    part.replace(card)
    note.write_text(json.dumps({"build": image.build}))
    return True


def _launch(name: str, settings: MachineSettings, image: Image, folder: Path) -> tuple[Running, bool]:
    card, serial = folder / "card.qcow2", folder / "serial.log"
    if serial.exists():
        serial.replace(folder / "serial.before.log")  # what a machine said before it was killed
    for _ in range(_PORT_TRIES):
        port = free_port()
        with (folder / "qemu.log").open("wb") as log:
            process = subprocess.Popen(
                command(settings, image, card, serial, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends this command, not the machine
            )
        time.sleep(0.3)
        if process.poll() is None:
            break
        if b"hostfwd" not in (folder / "qemu.log").read_bytes():  # else somebody took the port in between
            break
    started = read_start_time(process.pid)
    if process.poll() is not None or started is None:
        raise StartError(f"QEMU ended at once: {_tail(folder / 'qemu.log')}", f"Look at {folder / 'qemu.log'}.")
    machine = Running(name, settings, process.pid, started, port, image.build)
    try:
        facts = dataclasses.asdict(machine)
        facts |= {name: facts["settings"].pop(name).value for name in ("kind", "init")}
        (folder / "machine.json").write_text(json.dumps(facts))
        # A copy: the image may be rebuilt, with another key, while this machine runs.
        key = folder / image.client_key.name
        key.unlink(missing_ok=True)
        shutil.copy2(image.client_key, key)
        return machine, register(name, port, key, image.host_key)
    except BaseException:
        _end(machine)
        _forget(name)
        raise


def _tail(file: Path, lines: int = 6) -> str:
    try:
        return " / ".join(file.read_text(errors="replace").strip().splitlines()[-lines:]) or "(nothing was written)"
    except OSError:
        return "(nothing was written)"


def _wait_for_ssh(machine: Running, folder: Path) -> None:
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    serial = folder / "serial.log"
    error = "SSH did not answer"
    while time.monotonic() < deadline:
        if not machine.alive:
            raise StartError(
                f"The machine ended while it booted: {_tail(folder / 'qemu.log', 2)}; its console: {_tail(serial)}",
                f"--fresh gives it an empty card. Look at {serial}.",
            )
        if serial.is_file() and _LISTENS in serial.read_bytes():
            try:
                with connect(Target.parse(machine.target)):
                    return
            except HostError as problem:
                error = problem.message
        time.sleep(0.1)
    raise StartError(
        f"{machine.target} was not reached within {BOOT_TIMEOUT_S:g} s: {error} Its console: {_tail(serial)}",
        f"Is this machine busy? Look at {serial}.",
    )


def _forget(name: str) -> None:
    named_hosts.unregister(name)
    (folder_of(name) / "machine.json").unlink(missing_ok=True)


def _wait_for_end(machine: Running, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while machine.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _end(machine: Running) -> None:
    """End the process, at the latest by force."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if not machine.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.pid, kind)
        _wait_for_end(machine, 5.0)


def stop(name: str = DEFAULT_NAME) -> bool:
    """Shut a machine down in good order, by force if it does not answer. Returns whether it ran."""
    folder = folder_of(name)
    if not folder.is_dir():
        return False
    with lock_folder(folder):
        machine = find(name)
        if machine is not None:
            with contextlib.suppress(HostError), connect(Target.parse(f"root@{name}")) as connection:
                connection.run(_POWER_OFF, timeout=POWEROFF_TIMEOUT_S, check=False)
            if not _wait_for_end(machine, POWEROFF_TIMEOUT_S):
                _end(machine)
        _forget(name)
    return machine is not None


def reboot(name: str = DEFAULT_NAME) -> Started:
    """Shut a machine down in good order and start the same one again: same card, name and host key.

    Raises:
        StartError: it does not run, or did not come up again.
    """
    machine = find(name)
    if machine is None:
        raise StartError(f"{USER}@{name} does not run.", f"quarl pi start --name {name}")
    stop(name)
    return start(name, machine.settings)


def clean() -> list[str]:
    """Remove the images and the cards of all machines that do not run. Returns what was removed."""
    removed = []
    running = {machine.name for machine in all_running()}
    for folder in sorted(machines_folder().glob("*")):
        if folder.name not in running and folder.is_dir():
            shutil.rmtree(folder)
            removed.append(f"machine {folder.name}")
    if not running:
        for folder in sorted((base_folder() / "images").glob("[!.]*")):
            shutil.rmtree(folder)
            removed.append(f"image {folder.name}")
    return removed
