"""A release on its way through a fleet: canaries, then batches; each phase soaks, and a failure takes it back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.deploy import install
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import CheckFailedError, HostError, ServiceError, VerificationError
from quarl.device.deploy.fleet.identity import DeviceInRolloutError, Identity, Mark, in_rollout
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.journal import Journal, Memory
from quarl.device.deploy.fleet.payloads import Payloads
from quarl.device.deploy.fleet.plan import CANARY, USUAL_BATCH, BatchSize, batches
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.fleet.soak import Health, ReplacedError, SoakError, build_replaced_error, look
from quarl.device.deploy.fleet.states import COUNTED, State
from quarl.device.deploy.fleet.worker_pool import StoppedError, WorkerPool, error_facts
from quarl.device.deploy.golden import Progress, Step
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import remove_releases, rollback
from quarl.device.deploy.signing.record import USUAL, Signing
from quarl.device.deploy.switching import begin

LOOK_EVERY_S, LOOKS = 5.0, 6
LAST_TRIES, PAUSE_S = 3, 2.0
"""How often a device that cannot be reached is tried at the end of its soak, and the seconds in between."""


@dataclass(frozen=True)
class Settings:
    """How a rollout goes about.

    Attributes:
        canaries: devices that are changed and soaked before all others; 0: none.
        batch: devices changed at a time after them.
        max_fail: devices on which the release may fail before the rollout stops.
        soak_s: seconds for which each phase is watched.
        deadline_ms: of one decision, for the 99th percentile.
        wait_s: how long to wait for another deployment on a device to end.
        signing: by which key, with which serial.
        take_over: go on although devices are in another rollout.
    """

    canaries: int = 1
    batch: BatchSize = USUAL_BATCH
    max_fail: int = 0
    soak_s: float = 10.0
    deadline_ms: float = 100.0
    wait_s: float = 0.0
    signing: Signing = USUAL
    take_over: bool = False


@dataclass(frozen=True)
class _Device:
    """A device of the phase at work, on which the release serves now.

    Attributes:
        previous: what served before; "": nothing; None: no rollout brought the release, so none takes it back.
        is_proved: it stood its soak here in an earlier rollout.
        is_new: it was switched on just now.
        sent_bytes: that this took.
    """

    member: Member
    release: str
    previous: str | None
    digest: str
    is_proved: bool = False
    is_new: bool = False
    sent_bytes: int = 0


class Rollout:
    """One rollout of one policy."""

    def __init__(
        self,
        members: Sequence[Member],
        payloads: Payloads,
        settings: Settings,
        journal: Journal,
        memory: Memory,
        pool: WorkerPool,
    ) -> None:
        self.members, self.payloads, self.settings = tuple(members), payloads, settings
        self.journal, self.memory, self.pool = journal, memory, pool
        self.policy = payloads.bundle.spec.name
        self.result = Result(self.policy, dict.fromkeys((member.target for member in members), State.NOT_BEGUN))
        self._begun: set[str] = set()
        self._switching: set[str] = set()
        self._failed_devices: set[str] = set()
        """Devices on which the release failed, whatever became of them since."""
        self.identity = Identity(memory.rollouts)
        self._seen: set[str] = set()

    def run(self) -> Result:
        """Bring the release to all devices, or to none more after the phase that failed.

        At the end each device that was changed or proved itself is looked at once more.

        Raises:
            DeviceInRolloutError: devices are in another rollout; nothing was begun.
            KeyboardInterrupt: after no device is at work any more; ``result`` says how far it came.
        """
        begun = time.monotonic()
        self._look_for_others()
        devices, rollout = list(self.result.states), self.identity.rollout
        self.journal.write(event="begin", policy=self.policy, devices=devices, rollout=rollout)
        try:
            for name, members in batches(self._canaries(), self.settings.batch.of(len(self.members))):
                if not self.result.stopped:
                    self._phase(name, members)
            self._last_look()
        except BaseException as error:
            self.result.stopped = "interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)
            raise
        finally:
            self.result.seconds, self.result.kinds = time.monotonic() - begun, self.payloads.kinds
            facts = {name: getattr(self.result, name) for name in ("stopped", "counts", "states", "seconds")}
            self.journal.write(event="end", policy=self.policy, **facts)
        return self.result

    def _look_for_others(self) -> None:
        """See that no device is in another rollout, or note those that are taken over."""
        self.pool.board.phase("who rolls out", len(self.members))

        def work(member: Member, tell: Progress) -> Mark | None:
            tell(Step("look", 0, 0))
            with (
                connect(member.target, identity=member.identity) as connection,
                open_device(connection) as session,
            ):
                mark = _read_deployed_policy(session, self.policy).get("rollout")
            self._seen.add(member.target)
            return mark if isinstance(mark, dict) else None

        # One that cannot be looked at says why when its turn comes.
        marks = {member.target: mark for member, mark in self.pool.each(self.members, work, lambda *_: None) if mark}
        others = {target: mark for target, mark in marks.items() if self.identity.is_at_work(mark)}
        if others and not self.settings.take_over:
            raise in_rollout(dict(sorted(others.items())))
        self.identity.known |= {str(mark.get("rollout")) for mark in marks.values()}

    def _last_look(self) -> None:
        """See what serves at the end, and say on the devices that the rollout is over."""
        looked_at = (State.PROVED, State.ROLLED_BACK)
        states = self.result.states
        members = [
            candidate
            for candidate in self.members
            if candidate.target in self._switching or states[candidate.target] in looked_at
        ]
        if not members:
            return
        self.pool.go_on()
        self.pool.board.phase("last look", len(members))

        def work(member: Member, tell: Progress) -> None:
            tell(Step("look", 0, 0))
            with (
                connect(member.target, identity=member.identity) as connection,
                open_device(connection) as session,
            ):
                deployed = _read_deployed_policy(session, self.policy)
                release = self.result.releases.get(member.target) or None
                if states[member.target] in looked_at and deployed.get("current") != release:
                    self._event(
                        "last look", member, State.REPLACED, **error_facts(build_replaced_error(deployed, release))
                    )
                mark = deployed.get("rollout") or {}
                if self.identity.is_own(mark) and not mark["ended"]:
                    with contextlib.suppress(HostError):  # it is over after a day
                        begin(session, self.policy, None, LOOK_EVERY_S)
                        session.end_rollout(mark["rollout"])

        def record_failure(member: Member, error: Exception) -> None:
            if states[member.target] is State.PROVED:
                self.result.unseen[member.target] = error_facts(error)["error"]

        for _ in self.pool.each(members, work, record_failure):
            pass

    def _canaries(self) -> tuple[Member, ...]:
        """Change the first devices; returns those that were not tried. Others step in for those out of reach."""
        waiting = list(self.members)
        missing = min(self.settings.canaries, len(self.members))
        proved = 0
        while proved < missing and waiting and not self.result.stopped:
            count = missing - proved
            members, waiting = waiting[:count], waiting[count:]
            proved += self._phase(CANARY, members)
        if missing and not proved and not self.result.stopped:
            self.result.stopped = "no device could be changed"
        return tuple(waiting)

    def _phase(self, name: str, members: Sequence[Member]) -> int:
        """Change some devices and soak them; returns how many proved it.

        Those on which the release fails are taken back, and all of them when too many fail.
        """
        self.pool.board.phase(name, len(members))
        changed: list[_Device] = []
        work = self.pool.each(members, partial(self._change, name), partial(self._not_changed, name))
        for _, device in work:
            if device is not None:
                changed.append(device)
                self.result.sent_bytes += device.sent_bytes
            if self._too_many:
                self.pool.stop()  # of this phase, those that wait are not begun
        changed = self._exclude_replaced(
            changed_device for changed_device in changed if changed_device.member.target not in self._failed_devices
        )
        if not self._too_many:
            self._soak(name, [changed_device for changed_device in changed if not changed_device.is_proved])
        changed = self._exclude_replaced(changed)
        failed_devices = [
            changed_device for changed_device in changed if changed_device.member.target in self._failed_devices
        ]
        if self._too_many:
            count, allowed = len(self._failed_devices), self.settings.max_fail
            devices, are = "device" if count == 1 else "devices", "is" if allowed == 1 else "are"
            self.result.stopped = f"the release failed on {count} {devices} up to {name}, {allowed} {are} allowed"
            self._take_back(name, [changed_device for changed_device in changed if not changed_device.is_proved])
            self.result.phases.append((name, "rolled back"))
            return 0
        self._take_back(name, failed_devices)
        proved = [changed_device for changed_device in changed if changed_device not in failed_devices]
        for changed_device in proved:
            self._event(
                name, changed_device.member, State.PROVED, release=changed_device.release, digest=changed_device.digest
            )
        self.result.phases.append((name, "passed" if proved else "changed nobody"))
        return len(proved)

    def _exclude_replaced(self, devices: Iterable[_Device]) -> list[_Device]:
        """Those that nobody else's release has replaced."""
        return [device for device in devices if self.result.states[device.member.target] is not State.REPLACED]

    @property
    def _too_many(self) -> bool:
        return len(self._failed_devices) > self.settings.max_fail

    def _event(self, phase: str, member: Member, state: State, **facts: Any) -> None:
        """Write, show and keep the state that a device has come to."""
        target = member.target
        self.journal.write(policy=self.policy, device=target, phase=phase, state=state, **facts)
        if state in COUNTED:
            self._failed_devices.add(target)
        if state in (State.BEGUN, State.SWITCHING):
            (self._begun if state is State.BEGUN else self._switching).add(target)
            return
        self.result.states[target] = state
        if error := facts.get("error"):
            self.result.errors[target] = error
        else:
            self.result.errors.pop(target, None)
        if "release" in facts and state in (State.UNCHANGED, State.SWITCHED, State.PROVED, State.ROLLED_BACK):
            self.result.releases[target] = facts["release"]

    def _change(self, phase: str, member: Member, tell: Progress) -> _Device:
        """Deploy to one device."""
        begun, target = time.monotonic(), member.target
        tell(Step("connect", 0, 0))
        self._event(phase, member, State.BEGUN)
        with connect(target, identity=member.identity) as connection:
            payload, wheel_set = self.payloads.of(member, probe(connection))

            def check_rollout_mark(state: Mapping[str, Any]) -> None:
                self.identity.require_free(target, state.get("rollout"), target in self._seen)

            def before_switch(release: str, serving: str | None) -> None:
                # Deployed before, and doubted since: what served before that is not known any more.
                previous = self.memory.find_previous_release(target, release) if serving == release else serving
                self._event(
                    phase, member, State.SWITCHING, release=release, digest=payload.digest, previous=previous or ""
                )

            done = install(
                connection,
                payload,
                wheel_set,
                wait_s=self.settings.wait_s,
                progress=tell,
                signing=self.settings.signing,
                begun_with=check_rollout_mark,
                before_switch=before_switch,
                rollout=self.identity.mark(),
            )
        facts: dict[str, Any] = {"release": done.release, "digest": payload.digest}
        facts["seconds"] = round(time.monotonic() - begun, 3)
        if done.warnings:
            facts["warnings"] = list(done.warnings)
        previous = (
            self.memory.find_previous_release(target, done.release)
            if done.previous == done.release
            else done.previous or ""
        )
        if done.unchanged:
            self._event(phase, member, State.UNCHANGED, **facts)
            proved = self.memory.has_passed_soak(target, payload.digest)
            return _Device(member, done.release, previous, payload.digest, proved)
        self._event(phase, member, State.SWITCHED, previous=previous, sent_bytes=done.sent_bytes, **facts)
        return _Device(member, done.release, previous, payload.digest, is_new=True, sent_bytes=done.sent_bytes)

    def _not_changed(self, phase: str, member: Member, error: Exception) -> None:
        """Note that the deployment to one device failed: it serves what it served, unless nobody knows."""
        if isinstance(error, StoppedError) and member.target not in self._begun:
            return
        state = state_after(error)
        if isinstance(error, DeviceInRolloutError):  # who goes on would be replaced, or replace what proves itself
            self.result.stopped = f"{member.target} came into another rollout"
        if member.target in self._switching and not isinstance(error, HostError):
            state = State.UNKNOWN  # of no kind that says what serves now
        self._event(phase, member, state, **error_facts(error))

    def _soak(self, phase: str, devices: Sequence[_Device]) -> None:
        """Watch the devices that were changed, until the time is over or too many have failed_devices."""
        # A switch starts the loop again: from then on it has no restarts.
        seen = {watched_device.member.target: Health() for watched_device in devices if watched_device.is_new}
        watched = {watched_device.member.target: watched_device for watched_device in devices}
        end = time.monotonic() + self.settings.soak_s
        every = max(LOOK_EVERY_S, self.settings.soak_s / LOOKS)
        if watched:
            self.pool.board.phase(f"{phase}, watched for {self.settings.soak_s:g} s", len(devices))
        while watched and not self._too_many:
            last = end - time.monotonic() <= 0 or not self.settings.soak_s

            def work(member: Member, tell: Progress, tries: int = LAST_TRIES if last else 1) -> Health | Exception:
                return self._look_with_retries(watched[member.target], seen.get(member.target), tell, tries)

            members = [watched_device.member for watched_device in watched.values()]
            for member, outcome in self.pool.each(members, work, self._error):
                if isinstance(outcome, Health):
                    seen[member.target] = outcome
                elif not isinstance(outcome, StoppedError) and (last or isinstance(outcome, SoakError)):
                    device = watched.pop(member.target)
                    state = State.REPLACED if isinstance(outcome, ReplacedError) else State.FAILED
                    self._event(phase, member, state, release=device.release, **error_facts(outcome))
                    if state is State.REPLACED:
                        self.result.stopped = f"somebody else changed {member.target} meanwhile"
                if self._too_many:
                    self.pool.stop()
            if last:
                return
            self.pool.rest(min(every, max(0.0, end - time.monotonic())))

    @staticmethod
    def _error(member: Member, error: Exception) -> Health | Exception:
        return error

    def _look_with_retries(self, device: _Device, before: Health | None, tell: Progress, tries: int) -> Health:
        while True:
            tries -= 1
            try:
                tell(Step("look", 0, 0))
                with connect(device.member.target, identity=device.member.identity) as connection:
                    return look(connection, self.policy, device.release, self.settings.deadline_ms, before, tell)
            except HostError as error:
                if isinstance(error, SoakError | StoppedError) or tries <= 0:
                    raise
                self.pool.rest(PAUSE_S)

    def _take_back(self, phase: str, devices: Sequence[_Device]) -> None:
        """Let devices serve what they served before this release; not those that no rollout brought it to."""
        of = {candidate.member.target: candidate for candidate in devices if candidate.previous is not None}
        if not of:
            return
        self.pool.go_on()
        self.pool.board.phase(f"{phase}, taken back", len(of))

        def work(member: Member, tell: Progress) -> None:
            device, has_failed = of[member.target], member.target in self._failed_devices
            tell(Step("go back", 0, 0))
            with connect(member.target, identity=member.identity) as connection:
                serving, warnings = self._roll_back_device(connection, device, has_failed)
            facts: dict[str, Any] = {"warnings": warnings} if warnings else {}
            if has_failed:
                facts["error"] = self.result.errors[member.target]
            self._event(phase, member, State.ROLLED_BACK, release=serving, **facts)

        def record_failure(member: Member, error: Exception) -> None:
            release = of[member.target].release
            self._event(phase, member, State.ROLLBACK_FAILED, release=release, **error_facts(error))

        for _ in self.pool.each([candidate.member for candidate in of.values()], work, record_failure):
            pass

    def _roll_back_device(self, connection: Connection, device: _Device, has_failed: bool) -> tuple[str, list[str]]:
        """Go back on one device where it still serves the release; returns what serves then, and warnings."""
        wait_s = self.settings.wait_s
        if not device.previous:
            remove_releases(connection, self.policy, device.release, withdraw=True, wait_s=wait_s)
            return "", []
        done = rollback(
            connection,
            self.policy,
            device.previous,
            mark_bad_too=has_failed,
            only_from=device.release,
            wait_s=wait_s,
        )
        return done.release, list(done.warnings)


def _read_deployed_policy(session: Device, policy: str) -> Mapping[str, Any]:
    """Return what a device says of one policy; nothing where it has none."""
    deployed: Mapping[str, Any] = session.read().describe()["policies"].get(policy, {})
    return deployed


def state_after(error: Exception) -> State:
    """Return the state of a device whose deployment ended with an error."""
    if isinstance(error, HostError) and error.serving_unknown:
        return State.UNKNOWN
    if isinstance(error, StoppedError):
        return State.STOPPED
    refused = isinstance(error, CheckFailedError | ServiceError | VerificationError)
    return State.REFUSED if refused else State.NOT_CHANGED
