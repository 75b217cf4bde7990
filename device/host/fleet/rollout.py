"""A release on its way through a fleet: canaries, then batches; each phase soaks, and a failure takes it back.

begun ─> unchanged ─────────┐
      ├> switched ─> soak ──┴> proved
      │                └> failed ─> rolled back | rollback failed
      ├> failed         the release was refused by its own agent there; the old one serves
      ├> not changed    the device's own affair: out of reach, full, locked, another host key
      ├> stopped        the rollout ended before it
      └> unknown        the line broke in the switch; the next rollout looks
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from device.host.connection import connect
from device.host.deploy import install
from device.host.errors import CheckFailedError, HostError, ServiceError, VerificationError
from device.host.fleet.crew import Crew, StoppedError
from device.host.fleet.inventory import Member
from device.host.fleet.journal import NOT_BEGUN, Journal, Memory
from device.host.fleet.payloads import Payloads
from device.host.fleet.plan import CANARY, USUAL_BATCH, BatchSize, batches
from device.host.fleet.soak import Health, SoakError, look
from device.host.golden import Progress, Step
from device.host.probe import probe
from device.host.releases import remove_releases, rollback
from device.host.signing.record import USUAL, Signing
from policy.errors import PolicyError

LOOK_EVERY_S, LOOKS = 5.0, 6
LAST_TRIES, PAUSE_S = 3, 2.0
"""How often a device that cannot be reached is tried at the end of its soak, and the seconds in between."""
FAILED = ("failed", "unknown")
"""States that count against ``max_fail``."""


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
    """

    canaries: int = 1
    batch: BatchSize = USUAL_BATCH
    max_fail: int = 0
    soak_s: float = 10.0
    deadline_ms: float = 100.0
    wait_s: float = 0.0
    signing: Signing = USUAL


@dataclass
class Result:
    """What a rollout has come to.

    Attributes:
        states: the last state of each device, by target; those it never came to are ``not begun``.
        errors: why, where something went wrong.
        releases: what serves, where the rollout knows.
        phases: name and outcome of each, ``passed`` or ``rolled back``.
        stopped: why it ended early; empty: it did not.
        sent_bytes: over all devices.
        seconds: that it took.
        kinds: of devices, each with a payload of its own.
    """

    policy: str
    states: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    phases: list[tuple[str, str]] = field(default_factory=list)
    stopped: str = ""
    sent_bytes: int = 0
    seconds: float = 0.0
    kinds: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Devices by state."""
        return dict(Counter(self.states.values()))

    @property
    def complete(self) -> bool:
        """Whether the release has proved itself on every device."""
        return set(self.states.values()) <= {"proved"}


@dataclass(frozen=True)
class _Device:
    """A device of the phase at work, on which the release serves now."""

    member: Member
    release: str
    previous: str | None
    """What served before; "": nothing; None: nobody knows."""
    digest: str
    is_proved: bool = False
    is_ours: bool = True
    """Whether a rollout brought it here, which a failure then takes back; not what somebody deployed by hand."""


class Rollout:
    """One rollout of one policy."""

    def __init__(
        self,
        members: Sequence[Member],
        payloads: Payloads,
        settings: Settings,
        journal: Journal,
        memory: Memory,
        crew: Crew,
    ) -> None:
        self.members, self.payloads, self.settings = tuple(members), payloads, settings
        self.journal, self.memory, self.crew = journal, memory, crew
        self.policy = payloads.bundle.spec.name
        self.result = Result(self.policy, dict.fromkeys((each.target for each in members), NOT_BEGUN))

    def run(self) -> Result:
        """Bring the release to all devices, or to none more after the phase that failed.

        Raises:
            KeyboardInterrupt: after no device is at work any more; ``result`` says how far it came.
        """
        begun = time.monotonic()
        self.journal.write(event="begin", policy=self.policy, devices=list(self.result.states))
        try:
            rest = self._canaries()
            if not self.result.stopped:
                for name, members in batches(rest, self.settings.batch.of(len(self.members))):
                    self._phase(name, members)
                    if self.result.stopped:
                        break
        except KeyboardInterrupt:
            self.result.stopped = "interrupted"
            raise
        finally:
            self.result.seconds, self.result.kinds = time.monotonic() - begun, self.payloads.kinds
            facts = {name: getattr(self.result, name) for name in ("stopped", "counts", "states", "seconds")}
            self.journal.write(event="end", policy=self.policy, **facts)
        return self.result

    def _canaries(self) -> tuple[Member, ...]:
        """Change the first devices; returns those that were not tried. Others step in for those out of reach."""
        waiting = list(self.members)
        missing = min(self.settings.canaries, len(self.members))
        while missing and waiting and not self.result.stopped:
            members, waiting = waiting[:missing], waiting[missing:]
            missing -= self._phase(CANARY, members, may_be_empty=bool(waiting))
        return tuple(waiting)

    def _phase(self, name: str, members: Sequence[Member], may_be_empty: bool = False) -> int:
        """Change some devices, soak them, and take all of them back when too many fail; returns how many proved it."""
        self.crew.board.phase(name, len(members))
        changed: list[_Device] = []
        for _, device in self.crew.each(members, lambda member, tell: self._change(name, member, tell)):
            if device is not None:
                changed.append(device)
            if self._too_many():
                self.crew.stop()  # of this phase, those that wait are not begun
        doubtful = [] if self._too_many() else [each for each in changed if not each.is_proved]
        fallen = self._soak(name, doubtful)
        if self._too_many():
            self._take_back(name, changed, fallen, Counter(self.result.states.values()))
            self.result.phases.append((name, "rolled back"))
            return 0
        if fallen:
            self._back(name, [each for each in changed if each.member.target in fallen and each.is_ours], fallen)
        proved = [each for each in changed if each.member.target not in fallen]
        for each in proved:
            self._event(name, each.member, "proved", release=each.release, digest=each.digest)
        self.result.phases.append((name, "passed" if proved else "reached nobody"))
        if not proved and not may_be_empty:
            self.result.stopped = f"no device of {name} could be changed"
        return len(proved)

    def _too_many(self) -> bool:
        return sum(state in FAILED for state in self.result.states.values()) > self.settings.max_fail

    def _event(self, phase: str, member: Member, state: str, **facts: Any) -> None:
        """A device has come to a state: it is written, shown and kept."""
        self.journal.write(policy=self.policy, device=member.target, phase=phase, state=state, **facts)
        target = member.target
        if state != "begun":
            self.result.states[target] = state
        if error := facts.get("error"):
            self.result.errors[target] = error
        elif state != "begun":
            self.result.errors.pop(target, None)
        if "release" in facts and state in ("unchanged", "switched", "proved", "rolled back"):
            self.result.releases[target] = facts["release"]

    def _change(self, phase: str, member: Member, tell: Progress) -> _Device | None:
        """Deploy to one device; None: it serves what it served."""
        begun = time.monotonic()
        try:
            tell(Step("connect", 0, 0))
            self._event(phase, member, "begun")
            with connect(member.target, identity=member.identity) as connection:
                payload, wheel_set = self.payloads.of(member, probe(connection))
                signing, wait_s = self.settings.signing, self.settings.wait_s
                done = install(connection, payload, wheel_set, wait_s=wait_s, progress=tell, signing=signing)
        except (HostError, PolicyError, OSError) as error:
            if not isinstance(error, StoppedError) or self.result.states[member.target] != NOT_BEGUN:
                self._event(phase, member, state_after(error), **told(error))
            return None
        seconds = time.monotonic() - begun
        facts = {"release": done.release, "digest": payload.digest, "seconds": round(seconds, 3)}
        if done.unchanged:
            self._event(phase, member, "unchanged", **facts)
            previous = self.memory.before(member.target, done.release)
            proved = self.memory.proved(member.target, payload.digest)
            ours = previous is not None or self.memory.was_cut(member.target)
            return _Device(member, done.release, previous, payload.digest, proved, ours)
        self.result.sent_bytes += done.sent_bytes
        self._event(phase, member, "switched", previous=done.previous, sent_bytes=done.sent_bytes, **facts)
        return _Device(member, done.release, done.previous or "", payload.digest)

    def _soak(self, phase: str, devices: Sequence[_Device]) -> dict[str, str]:
        """Watch the devices that were changed; why each of those fell that did."""
        fallen: dict[str, str] = {}
        if not devices:
            return fallen
        seen: dict[str, Health] = {}
        of = {each.member.target: each for each in devices}
        end = time.monotonic() + self.settings.soak_s
        every = max(LOOK_EVERY_S, self.settings.soak_s / LOOKS)
        self.crew.board.phase(f"{phase}, soak", len(devices))
        while True:
            last = end - time.monotonic() <= 0 or not self.settings.soak_s
            work = self._looker(of, seen, LAST_TRIES if last else 1)
            for member, found in self.crew.each([each.member for each in of.values()], work):
                if isinstance(found, Health):
                    seen[member.target] = found
                elif found is not None and (last or isinstance(found, SoakError)):
                    facts = told(found)
                    fallen[member.target] = facts["error"]
                    self._event(phase, member, "failed", release=of.pop(member.target).release, **facts)
                if self._too_many():
                    self.crew.stop()
            if last or self._too_many() or not of:
                return fallen
            self.crew.rest(min(every, max(0.0, end - time.monotonic())))

    def _looker(
        self, of: dict[str, _Device], seen: dict[str, Health], tries: int
    ) -> Callable[[Member, Progress], Health | HostError | None]:
        def work(member: Member, tell: Progress) -> Health | HostError | None:
            device, before = of[member.target], seen.get(member.target)
            for left in reversed(range(tries)):
                try:
                    tell(Step("look", 0, 0))
                    with connect(member.target, identity=member.identity) as connection:
                        return look(connection, self.policy, device.release, self.settings.deadline_ms, before, tell)
                except StoppedError:
                    return None
                except HostError as error:
                    if isinstance(error, SoakError) or not left:
                        return error
                    self.crew.rest(PAUSE_S)
            raise AssertionError("there is at least one try")

        return work

    def _take_back(self, phase: str, changed: Sequence[_Device], fallen: dict[str, str], counts: Counter[str]) -> None:
        failed = sum(counts[state] for state in FAILED)
        allowed = self.settings.max_fail
        self.result.stopped = f"the release failed on {failed} {'device' if failed == 1 else 'devices'} in {phase}"
        self.result.stopped += f", {allowed} {'is' if allowed == 1 else 'are'} allowed"
        self._back(phase, [each for each in changed if each.is_ours and not each.is_proved], fallen)

    def _back(self, phase: str, devices: Sequence[_Device], fallen: Iterable[str]) -> None:
        """Let devices serve what they served before this release."""
        self.crew.go_on()
        of = {each.member.target: each for each in devices}
        bad = set(fallen)
        self.crew.board.phase(f"{phase}, rolled back", len(devices))

        def work(member: Member, tell: Progress) -> None:
            device = of[member.target]
            why = {"error": self.result.errors[member.target]} if member.target in bad else {}
            try:
                with connect(member.target, identity=member.identity) as connection:
                    if device.previous == "":
                        remove_releases(connection, self.policy, whole=True, wait_s=self.settings.wait_s)
                        serving = ""
                    else:
                        done = rollback(
                            connection,
                            self.policy,
                            device.previous,
                            mark_bad_too=member.target in bad,
                            wait_s=self.settings.wait_s,
                        )
                        serving = done.release
            except HostError as error:
                self._event(phase, member, "rollback failed", **told(error))
            else:
                self._event(phase, member, "rolled back", release=serving, **why)

        for _ in self.crew.each([each.member for each in devices], work):
            pass


def state_after(error: Exception) -> str:
    """The state of a device whose deployment ended with an error."""
    if isinstance(error, HostError) and error.serving_unknown:
        return "unknown"
    if isinstance(error, StoppedError):
        return "stopped"
    return "failed" if isinstance(error, CheckFailedError | ServiceError | VerificationError) else "not changed"


def told(error: BaseException) -> dict[str, str]:
    """An error as an event has it: the message, what to do, and its code."""
    if isinstance(error, HostError):
        return {"error": error.message, "next": error.next_step, "code": error.code}
    return {"error": str(error), "next": "", "code": "policy" if isinstance(error, PolicyError) else "os"}
