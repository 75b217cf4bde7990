"""A policy's loop as a service on the device: set up, tried for some seconds, taken back when it fails.

systemd's user manager keeps it running. On a device without one, ``policy-agent supervise`` does, started by cron.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import time
from dataclasses import dataclass, fields
from typing import Any

from quarl.device.agent import building
from quarl.device.deploy.errors import HostError, ReleaseError, ServiceError, UnsupportedDeviceError
from quarl.device.deploy.records import Record, one_line
from quarl.device.deploy.shell import VERIFIER, DeviceShell, Progress
from quarl.device.deploy.state import TRIAL_LINK, DeviceState

START_S, POLL_S = 130.0, 0.2
HINDERED = 74
"""Exit status of launch.sh where starting it again may help, as there was no room: no fault of the release."""
LAUNCHER, TOOL = "services/launch.sh", "services/policy-agent"
"""What verifies and starts a loop, and what keeps it running and asks it, on the device."""
_OLD_SCRIPTS = "services/launch.py", "services/supervise.py"
_KINDS = ("settings", "json", "lock", "log", "loop", "notify", "state")
"""What a policy has in services/, by the ends of the names."""
_NO_STATE: dict[str, Any] = {"state": "stopped", "pid": 0, "restarts": 0, "why": ""}
UNIT = """\
# Written by quarl serve; unserve removes it.
[Unit]
Description=Policy {policy} in the robot's loop
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart=/bin/sh %h/quarl/services/launch.sh loop {policy}
Restart=always
RestartSec=0.5
# One that is stopped or hangs takes no other signal.
WatchdogSignal=SIGKILL
# Refused, wrong usage, --on-miss stop: starting it again would not help.
RestartPreventExitStatus=1 2 75
TimeoutStartSec=120
WatchdogSec={watchdog_s:g}
MemoryMax={memory_bytes}
# What is swapped out is late.
MemorySwapMax=0
# As far as the user manager's own limits allow, which root sets: docs/running.md.
LimitRTPRIO=99
LimitMEMLOCK=infinity
{affinity}
[Install]
WantedBy=default.target
"""


@dataclass(frozen=True)
class Settings:
    """How a policy is served.

    Attributes:
        arguments: of the agent's loop.
        enable: start it at each boot.
        core: of the processor; None: any.
        watchdog_s: seconds without a heartbeat after which it is killed.
        memory_bytes: beyond which it is started again.
        trial_s: seconds that a new release is watched.
        most_missed: deadlines that it may miss meanwhile, of a million.
    """

    arguments: tuple[str, ...]
    enable: bool
    core: int | None
    watchdog_s: float
    memory_bytes: int
    trial_s: float
    most_missed: float

    @property
    def text(self) -> str:
        """The file on the device; launch.sh reads the arguments in it."""
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "arguments"}
        lines = [
            *(f"argument {argument}" for argument in self.arguments),
            *(f"{key} {json.dumps(rest[key])}" for key in rest),
        ]
        return "".join(f"{line}\n" for line in lines)

    def to_json(self) -> dict[str, Any]:
        """As ``serving --json`` prints them."""
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "arguments": list(self.arguments)}


def settings_of(state: DeviceState, policy: str, device: str) -> Settings | None:
    """Return how a policy is served, or None where it is not.

    Raises:
        ServiceError: the file cannot be read.
    """
    new, older = f"services/{policy}.settings", f"services/{policy}.json"
    for path in (new, older):
        if path not in state.items:
            continue
        text = state.content(path)
        try:
            if path == older:
                data = json.loads(text)
                return Settings(**{**data, "arguments": tuple(data["arguments"])})
            lines = [line.partition(" ")[::2] for line in text.splitlines() if line]
            arguments = tuple(value for key, value in lines if key == "argument")
            return Settings(arguments, **{key: json.loads(value) for key, value in lines if key != "argument"})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ServiceError(
                f"The service settings ~/quarl/{path} on {device} are damaged: {one_line(error)}.",
                "Write them again with quarl serve, or stop the loop and remove them with quarl unserve.",
            ) from None
    return None


class Systemd:
    """A unit of the user's own manager."""

    name = "systemd"

    def __init__(self, device: DeviceShell, policy: str) -> None:
        self.device, self.policy, self.unit = device, policy, f"quarl-{policy}.service"
        self.file = f'"$HOME"/.config/systemd/user/{self.unit}'

    def install(self, settings: Settings) -> None:
        """Write the unit, and have it started at boot where that is asked for."""
        affinity = "" if settings.core is None else f"CPUAffinity={settings.core}\n"
        text = UNIT.format(
            policy=self.policy,
            watchdog_s=settings.watchdog_s,
            memory_bytes=settings.memory_bytes,
            affinity=affinity,
        )
        self.write_unit(text)
        self._control(f"{'enable' if settings.enable else 'disable'} {self.unit}")
        self.device.run("sync")
        if settings.enable:
            linger = self.device.run(
                'user=$(id -un); [ -e "/var/lib/systemd/linger/$user" ] || loginctl enable-linger "$user" '
                '|| echo "no $user"',
                check=False,
            )
            if user := linger.rpartition("no ")[2].strip() if "no " in linger else "":
                raise ServiceError(
                    f"On {self.device.connection.name}, services of this user do not start at boot, and the user may "
                    f"not change that: {one_line(linger)}.",
                    f"On the device, as root: loginctl enable-linger {user}",
                )

    def unit_text(self) -> str:
        """Return the unit as it is now; empty where there is none."""
        return self.device.run(f"cat {self.file} 2> /dev/null", check=False)

    def write_unit(self, text: str) -> None:
        """Write the unit and have systemd read it."""
        if self.unit_text().strip() != text.strip():  # else it needs no room
            self.device.run(f'mkdir -p "$HOME/.config/systemd/user" && put {self.file} {shlex.quote(text)}')
        self._control("daemon-reload")

    def warnings(self) -> list[str]:
        """Return what the unit asks for and this machine does not do."""
        if "memory" in self.device.run("cat /sys/fs/cgroup/cgroup.controllers 2> /dev/null", check=False).split():
            return []
        return [
            "its memory is not limited, since this kernel was started without the memory controller; add "
            "cgroup_enable=memory to /boot/firmware/cmdline.txt and reboot"
        ]

    def restart(self, settings: Settings | None = None) -> None:
        """Start it, or start it again; whether it has become active is seen in its state."""
        self.device.run(f"{self.restart_command}; :", timeout=300.0)  # it waits until it is ready or has failed

    @property
    def restart_command(self) -> str:
        """What starts it again, for the device to do by itself."""
        return f"systemctl --user reset-failed {self.unit}; systemctl --user restart {self.unit}"

    def state(self) -> dict[str, Any]:
        """``state`` (starting, active, failed, stopped, unwatched), ``pid``, ``restarts`` and ``why``."""
        names = ("ActiveState", "SubState", "MainPID", "NRestarts", "Result", "ExecMainStatus")
        output = self.device.run(f"systemctl --user show {self.unit} --property={','.join(names)}", check=False)
        properties = dict(line.partition("=")[::2] for line in output.splitlines())
        states = {"active": "active", "failed": "failed", "inactive": "stopped"}
        result = properties.get("Result", "")
        return {
            "state": states.get(properties.get("ActiveState", ""), "starting"),
            "pid": int(properties.get("MainPID") or 0),
            "restarts": int(properties.get("NRestarts") or 0),
            "why": "" if result == "success" else f"{result}, it ended with status {properties.get('ExecMainStatus')}",
        }

    def log(self) -> str:
        """Return the last lines that it wrote."""
        return self.device.run(
            f"journalctl --user --unit={self.unit} --lines=8 --output=cat --no-pager 2> /dev/null", check=False
        )

    def remove(self) -> None:
        """Stop it, and forget it."""
        # First of all, and by itself: `disable --now` stops nothing on a disk that takes no changes.
        self.device.run(
            f"systemctl --user stop {self.unit}; systemctl --user disable {self.unit}; rm -f {self.file}; "
            f"systemctl --user daemon-reload; sync_disk; [ ! -e {self.file} ] || echo left",
            check=False,
            timeout=300.0,
        )
        if self.device.run(f"[ ! -e {self.file} ] || echo left").strip() == "left":
            raise ServiceError(
                f"On {self.device.connection.name}, the loop was ended, but {self.unit} cannot be removed, so that it "
                "may start again at boot.",
                "Check the device's disk (`mount`, `dmesg`), then run quarl unserve again.",
            )

    def _control(self, words: str) -> None:
        done = self.device.run(f"systemctl --user {words} || echo failed", timeout=300.0)
        if done.rstrip().endswith("failed"):
            raise ServiceError(
                f"On {self.device.connection.name}, systemctl --user {words} failed: {one_line(done)}.",
                "Serve without --enable.",
            )


class Supervised:
    """A process of ours, started at boot by cron."""

    name = "supervisor"

    def __init__(self, device: DeviceShell, policy: str) -> None:
        self.device, self.policy = device, policy
        self.root = device.state.root
        self.mark = f"# quarl {policy}"
        self._settings: Settings | None = None

    def install(self, settings: Settings) -> None:
        """Have it started at boot where that is asked for."""
        self._settings = settings
        if self._is_users_home():
            self._at_boot(settings.enable)
        elif settings.enable:
            raise ServiceError(
                f"{self.device.state.facts['home']} is not a user's home folder on {self.device.connection.name}, so "
                "that nothing in it can start at boot.",
                "Serve without --enable.",
            )

    def _is_users_home(self) -> bool:
        """Return whether the home folder is the one that a boot knows, not a stand-in of a local device."""
        known = self.device.run(
            'sed -n "s,^$(id -un):[^:]*:[^:]*:[^:]*:[^:]*:\\([^:]*\\):.*,\\1,p" /etc/passwd', check=False
        )
        return known.strip() in (self.device.state.facts["home"], self.device.state.facts["HOME"])

    def command(self) -> str:
        """Return what keeps the loop running."""
        settings = self._settings or settings_of(self.device.state, self.policy, self.device.connection.name)
        assert settings is not None
        services = shlex.quote(f"{self.root}/services")
        return (
            f"{services}/policy-agent supervise {services} {self.policy} --watchdog={settings.watchdog_s:g} "
            f"--memory={settings.memory_bytes} -- /bin/sh {services}/launch.sh loop {self.policy}"
        )

    def warnings(self) -> list[str]:
        """None: the supervisor watches the memory itself."""
        return []

    def _at_boot(self, enable: bool) -> None:
        wanted = f"@reboot exec {self.command()} {self.mark}" if enable else ""
        done = self.device.run(
            f"mark={shlex.quote(self.mark)} wanted={shlex.quote(wanted)}\n"
            "kept=$(crontab -l 2> /dev/null | while IFS= read -r line; do "
            'case $line in *"$mark") ;; *) printf "%s\\n" "$line" ;; esac; done)\n'
            '[ "$(printf "%s\\n%s" "$kept" "$wanted")" = "$(crontab -l 2> /dev/null)" ] || '
            '[ -z "$wanted$(crontab -l 2> /dev/null)" ] || '
            '{ [ -z "$kept" ] || printf "%s\\n" "$kept"; [ -z "$wanted" ] || printf "%s\\n" "$wanted"; } | crontab - '
            "|| echo failed; sync",
            check=False,
        )
        if done.rstrip().endswith("failed") and enable:
            raise ServiceError(
                f"{self.device.connection.name} has neither systemd nor cron to start the loop at boot: "
                f"{one_line(done)}.",
                "Install cron there (apt-get install cron), or serve without --enable.",
            )

    @property
    def restart_command(self) -> str:
        """What starts it again, for the device to do by itself."""
        lock, loop = f"services/{self.policy}.lock", f"services/{self.policy}.loop"
        return (
            f"end_holders {lock}; end_holders {loop}; rm -f services/{self.policy}.state; "
            f"(cd / && exec {self.command()}) < /dev/null > /dev/null 2>&1 9<&- &"
        )

    def restart(self, settings: Settings | None = None) -> None:
        """Start it, or start it again, with the settings that hold now."""
        self._settings = settings or self._settings
        self.device.run(self.restart_command, timeout=300.0)

    def state(self) -> dict[str, Any]:
        """As :meth:`Systemd.state`."""
        text = self.device.run(
            f"state_of {self.policy}; printf '\\n%s|%s\\n' \"$(holders services/{self.policy}.lock | tr '\\n' ' ')\" "
            f"\"$(holders services/{self.policy}.loop | tr '\\n' ' ')\"",
            check=False,
        )
        report, _, last = text.rstrip().rpartition("\n")
        supervisors, _, loops = last.partition("|")
        state = dict(_NO_STATE)
        with contextlib.suppress(ValueError, TypeError):
            state |= json.loads(report)
        if supervisors.strip():
            if state["state"] == "stopped":  # it has not said anything yet
                state["state"] = "starting"
            return state
        if state["state"] != "failed":  # it was killed, or the power was cut
            state |= {"state": "stopped", "pid": 0}
        if pids := loops.split():
            why = "its supervisor has ended, so that nobody watches it; serve starts it again, unserve ends it"
            state |= {"state": "unwatched", "pid": int(pids[0]), "why": why}
        return state

    def log(self) -> str:
        """Return the last lines that it wrote."""
        return self.device.run(f"tail -c 2000 services/{self.policy}.log 2> /dev/null", check=False)

    def remove(self) -> None:
        """Stop it, and forget it."""
        end_processes(self.device, "the supervisor", f"services/{self.policy}.lock")
        if self._is_users_home():
            self._at_boot(False)


Manager = Systemd | Supervised


def choose_manager(device: DeviceShell, policy: str) -> Manager:
    """Return who keeps a loop running on this device: a user manager that has this home, or a supervisor of ours."""
    environment = device.run("systemctl --user show-environment 2> /dev/null", check=False).splitlines()
    is_here = any(f"HOME={device.state.facts[name]}" in environment for name in ("home", "HOME"))
    return Systemd(device, policy) if is_here else Supervised(device, policy)


def manager_of(device: DeviceShell, policy: str) -> Manager | None:
    """Return who keeps a policy's loop running; None where it is not served."""
    is_served = any(f"services/{policy}.{kind}" in device.state.items for kind in ("settings", "json"))
    return choose_manager(device, policy) if is_served else None


def end_processes(device: DeviceShell, what: str, file: str) -> None:
    """End who holds a file, by SIGTERM and if that does not by SIGKILL.

    Raises:
        ServiceError: one is left.
    """
    if left := device.run(f"end_holders {file}", timeout=60.0).split():
        raise ServiceError(
            f"On {device.connection.name}, {what} cannot be stopped: process {', '.join(left)}.",
            f"On the device: kill -9 {' '.join(left)}; then run the same command again.",
        )


def write_launcher(device: DeviceShell, *, is_needed: bool) -> None:
    """Write what verifies and starts loops there, as this version has it, and what keeps them running.

    What is there goes on where the disk takes no other: going back to another release needs no room.

    Args:
        device: under its lock.
        is_needed: a loop is served; else launch.sh alone is written, for what starts one there by itself.

    Raises:
        UnsupportedDeviceError: nothing is executed there.
        ServiceError: it is built for no such machine.
    """
    state = device.state
    machine = state.facts["class"].rpartition("/")[2]
    wanted = {LAUNCHER: VERIFIER.read_bytes()}
    if is_needed:
        if machine not in building.TARGETS:
            raise ServiceError(
                f"The loop is built for {', '.join(building.TARGETS)}, but {device.connection.name} is {machine}.",
                "Send requests to the agent from your own program instead (docs/running.md).",
            )
        _require_execution(device)
        wanted[TOOL] = building.agent(machine).read_bytes()
    for path, content in wanted.items():
        digest = hashlib.sha256(content).hexdigest()
        if state.sha256.get(path) == digest:
            continue
        try:
            device.run("mkdir -p services run && chmod 700 services run")
            device.send(f"{path}.part", content)
            device.run(f"chmod 700 {path}.part && move {path}.part {path}")
            state.sha256[path] = digest
        except HostError:
            device.run(f"rm -f {path}.part", check=False)
            if is_needed and path not in state.sha256:
                raise


def _require_execution(device: DeviceShell) -> None:
    tried = f"{TOOL}.part"
    status = device.run(
        f"mkdir -p services && printf '#!/bin/sh\\n' > {tried} && chmod 700 {tried} && {{ {tried}; echo $?; }} "
        f"2> /dev/null; rm -f {tried}",
        check=False,
    )
    if status.strip() == "126":
        raise UnsupportedDeviceError(
            f"~/quarl on {device.connection.name} is on a file system mounted noexec, but the loop must execute "
            f"{TOOL} from it. Nothing was changed.",
            "On the device: sudo mount -o remount,exec MOUNT (the one that `df ~/quarl` prints), then run the same "
            "command again.",
        )


def require_artifact(device: DeviceShell, settings: Settings, record: Record) -> None:
    """Refuse a release that lacks what the loop decides with: it would fail its trial without being bad.

    Raises:
        ServiceError: it lacks the precision or the runtime.
    """
    for option, there in (("precision", record.precisions), ("runtime", record.runtimes)):
        for argument in settings.arguments:
            name, is_given, wanted = argument.partition("=")
            if is_given and name == f"--{option}" and wanted not in there:
                raise ServiceError(
                    f"On {device.connection.name}, {device.name} is served with the {option} {wanted}, but the "
                    f"release has {', '.join(there)}.",
                    "Deploy both (quarl deploy --bits …), serve with one that the release has, or run quarl unserve "
                    "first.",
                )


def ask(device: DeviceShell, policy: str, reset: bool) -> dict[str, Any]:
    """Return what a loop counted, asked over its socket.

    Raises:
        ServiceError: it does not answer, or refuses.
    """
    if TOOL not in device.state.sha256:
        raise ServiceError(
            f"On {device.connection.name}, {policy} is served by an older version, whose loop this version cannot "
            "query.",
            "Update the loop: quarl deploy",
        )
    request = shlex.quote(json.dumps({"op": "loop", "reset": reset}))
    answer = device.run(f"{TOOL} ask run/{policy}.sock {request}", check=False)
    try:
        reply: dict[str, Any] = json.loads(answer.strip().splitlines()[-1])
        answered = bool(reply.get("ok"))
    except (ValueError, IndexError, AttributeError):
        answered = False
    if not answered:
        raise ServiceError(
            f"On {device.connection.name}, the loop does not answer: {one_line(answer)}.",
            "Look at its state: quarl serving",
        )
    return reply


class TrialError(ServiceError):
    """A loop failed its trial."""


def try_loop(
    device: DeviceShell, manager: Manager, settings: Settings, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Wait until the loop is active, and see for some seconds that it stays so and is punctual.

    Raises:
        TrialError: golden vectors, deadlines or health failed; says which.
    """
    deadline, policy = time.monotonic() + START_S, manager.policy

    def build_trial_error(why: str) -> TrialError:
        log = [line.strip() for line in manager.log().splitlines() if line.strip()]
        tail = " / ".join(line for line in log[-4:] if not line.startswith("INFO"))[:600]
        error = TrialError(f"{why}. {tail}".rstrip(), "Look at what is served: quarl serving")
        error.blames_release = f"status {HINDERED})" not in why
        return error

    begun_at = time.monotonic()
    while (state := manager.state())["state"] != "active":
        is_over = state["state"] in ("failed", "unwatched") or state["restarts"]
        # A supervisor that was started a moment ago may hold nothing yet.
        is_over = is_over or (state["state"] == "stopped" and time.monotonic() - begun_at > 5.0)
        if is_over or time.monotonic() > deadline:
            raise build_trial_error(f"it did not start ({state['why'] or state['state']})")
        time.sleep(POLL_S)
    if seconds <= 0:
        return {"seconds": seconds, **state}
    try:
        begun, end = ask(device, policy, True), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            progress(round(10 * (seconds - left)), round(10 * seconds))
            time.sleep(min(left, 1.0))
        after, report = manager.state(), ask(device, policy, False)
    except ServiceError as error:
        raise build_trial_error(error.message.rstrip(".")) from None
    counts = report["counts"]
    if after["pid"] != state["pid"] or after["state"] != "active":
        raise build_trial_error(f"it ended within {seconds:g} s ({after['why']})")
    missed = counts["missed_per_million"]
    if missed is not None and missed > settings.most_missed:
        raise build_trial_error(
            f"it missed {missed:.0f} deadlines in a million within {seconds:g} s; {settings.most_missed:g} are allowed"
        )
    return {"release": begun["release"], "seconds": seconds, **after, "loop": report}


def serve(device: DeviceShell, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Serve the policy in a loop from now on; what was served before goes on when this fails its trial.

    Raises:
        ReleaseError: no release is deployed, or the one that is was deployed by an older version.
        ServiceError: it failed its trial, or cannot be kept running.
    """
    name, connection = device.name, device.connection.name
    if device.policy.current is None:
        raise ReleaseError(
            f"No release of {name} is deployed on {connection}; there is nothing to serve.", "quarl deploy"
        )
    record = device.find(device.policy.current)
    device.verify(f"releases/{record.release}")
    before = None
    with contextlib.suppress(ServiceError):  # what is damaged is written again
        before = settings_of(device.state, name, connection)
    write_launcher(device, is_needed=True)
    manager = choose_manager(device, name)
    try:
        return _serve_with(device, manager, settings, progress)
    except HostError:
        with contextlib.suppress(HostError):  # serving says what is left
            if before is None:
                unserve(device)
            else:
                _serve_with(device, manager, before, progress)
        raise


def _serve_with(device: DeviceShell, manager: Manager, settings: Settings, progress: Progress) -> dict[str, Any]:
    write_settings(device, settings)
    manager.install(settings)
    manager.restart(settings)
    trial = try_loop(device, manager, settings, settings.trial_s, progress)
    forget_older_service(device)
    return {"manager": manager.name, "warnings": manager.warnings(), **trial}


def write_settings(device: DeviceShell, settings: Settings) -> None:
    """Write how the policy is served, unless that stands there already: then it needs no room."""
    path = f"services/{device.name}.settings"
    if device.state.content(path).strip() != settings.text.strip():
        device.put(path, settings.text)
        device.state.items[path] = type(device.state.items["lock"])("file", settings.text)


def unserve(device: DeviceShell) -> bool:
    """Stop the loop and forget it; return whether there was one.

    Raises:
        ServiceError: it does not end, or is not forgotten.
    """
    name = device.name
    was_served = manager_of(device, name) is not None
    choose_manager(device, name).remove()
    end_processes(device, "the loop", f"services/{name}.loop")  # of a supervisor that was killed, or that nobody keeps
    paths = [f"services/{name}.{kind}{part}" for kind in _KINDS for part in ("", ".part")]
    left = device.run(
        f"rm -rf {' '.join(paths)} run/{name}.sock 2> /dev/null; sync_disk; for path in {' '.join(paths)}; do "
        '[ ! -e "$path" ] || echo "$path"; done'
    ).split()
    if left:
        raise ServiceError(
            f"On {device.connection.name}, the loop was ended, but {left[0]} cannot be removed, so that it may start "
            "again at boot.",
            "Check the device's disk (`mount`, `dmesg`), then run quarl unserve again.",
        )
    for path in paths:
        device.state.items.pop(path, None)
    return was_served


def serving(device: DeviceShell, policy: str) -> dict[str, Any]:
    """Return how a policy is served, the state of its loop, and what it counted; needs no lock."""
    settings = settings_of(device.read(), policy, device.connection.name)
    if settings is None:
        return {"settings": None}
    manager = choose_manager(device, policy)
    state, counted = manager.state(), None
    if state["state"] == "failed":
        state["why"] = f"{state['why']}. {one_line(manager.log())}"
    if state["state"] in ("active", "unwatched"):
        try:
            counted = ask(device, policy, False)
        except ServiceError as error:  # it hangs, and the watchdog has not seen it yet
            state["why"] = f"{state['why']}. {error.message}" if state["why"] else error.message
    return {"settings": settings.to_json(), "manager": manager.name, **state, "loop": counted}


def on_trial(device: DeviceShell, manager: Manager, record: Record, progress: Progress) -> None:
    """Switch to a release and try it in the policy's loop; one that fails is switched back.

    Where this host or its line is lost meanwhile, the device goes back by itself.

    Raises:
        ServiceError: it failed, and what served before serves again; or it lacks what the loop decides with.
    """
    name, before, release = device.name, device.policy.current, record.release
    settings = settings_of(device.state, name, device.connection.name)
    assert settings is not None
    require_artifact(device, settings, record)
    back = manager.restart_command
    goes_back = before not in (None, release)
    if goes_back:
        device.point(TRIAL_LINK, str(before))
        device.run(f"undo={shlex.quote(back)}")
    try:
        write_settings(device, settings)
        manager.install(settings)
        device.point("current", release)
        manager.restart(settings)
        try_loop(device, manager, settings, settings.trial_s, progress)
    except HostError as error:
        if not device.connection.alive:
            raise
        also = ""
        if goes_back:
            try:
                device.run(f"move policies/{name}/{TRIAL_LINK} policies/{name}/current; undo=; {back}", timeout=300.0)
                device.policy.current, device.policy.trial = before, None
                also = f"; {before} serves in the loop again"
                try_loop(device, manager, settings, 0.0, progress)
            except HostError as worse:
                also = f"; going back to {before}: {worse.message}"
            if isinstance(error, TrialError) and error.blames_release:
                with contextlib.suppress(HostError):
                    device.set_mark(release, "bad", one_line(f"failed its trial in the loop: {error.message}"))
        raise ServiceError(
            f"On {device.connection.name}, release {release} failed its trial in the loop: {error.message}{also}.",
            error.next_step or "Look at what is served: quarl serving",
        ) from None
    if goes_back:
        device.run(f"undo=; erase policies/{name}/{TRIAL_LINK}")
        device.policy.trial = None
    forget_older_service(device)


def forget_older_service(device: DeviceShell) -> None:
    """Remove how an older version served the policy, and its programs once no other is served so."""
    if device.state.items.pop(f"services/{device.name}.json", None) is not None:
        others = any(path.startswith("services/") and path.endswith(".json") for path in device.state.items)
        programs = "" if others else " ".join(_OLD_SCRIPTS)
        device.run(f"erase services/{device.name}.json {programs}")
