"""What each device of a fleet serves, whether that is what was rolled out, and how the device is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quarl.device.deploy.connection import connect
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.journal import Memory
from quarl.device.deploy.fleet.soak import NOT_AS_EXPECTED, loop_fault
from quarl.device.deploy.fleet.states import CHANGING, UNTOUCHED, State
from quarl.device.deploy.fleet.worker_pool import error_facts
from quarl.device.deploy.golden import Progress, Step
from quarl.device.deploy.loops import serving
from quarl.device.deploy.probe import TargetFacts, probe
from quarl.device.deploy.releases import serving_record
from quarl.device.deploy.state import TRUSTED

LEAST_DISK_BYTES = 100 << 20
LEAST_MEMORY = 0.05
"""Share of a device's memory that should be available."""
HOT_C = 80.0
"""A Raspberry Pi 3b lowers its clock at 80 °C (soft limit 60 °C on the 3b+)."""


@dataclass(frozen=True)
class DeviceStatus:
    """One policy on one device.

    Attributes:
        device: its target.
        policy: empty where there is none, or where the device was not reached.
        release: that serves; empty: none.
        digest: of its content: the same content has the same digest on every device.
        drift: how it differs from what was rolled out last; empty: it does not, or nothing was.
        health: what is wrong with the device; empty: nothing.
        reached: whether it answered.
        labels: of the fleet.toml.
    """

    device: str
    policy: str = ""
    release: str = ""
    digest: str = ""
    drift: str = ""
    health: tuple[str, ...] = ()
    reached: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether nothing is to be done about it."""
        return not self.drift and not self.health


def status_of(member: Member, tell: Progress, memories: Mapping[str, Memory], only: str | None) -> list[DeviceStatus]:
    """Return the policies on one device.

    Args:
        member: the device.
        tell: told about each step.
        memories: what the journal says, by policy.
        only: this policy alone; then there is one entry in any case.

    Raises:
        HostError: it could not be looked at; :func:`not_seen` says what was known of it.
    """
    tell(Step("connect", 0, 0))
    loops: dict[str, list[str]] = {}
    with connect(member.target, identity=member.identity) as connection:
        tell(Step("look", 0, 0))
        facts = probe(connection)
        with open_device(connection) as session:
            report = session.show()
            policies = report["policies"]
            names = [only] if only else sorted(policies)
            for name in names:
                if name in policies:
                    loops[name] = _as_health(partial(_loop, session, name))
        ailments = _ailments(facts, report)
    statuses = []
    for name in names or [""]:
        current, digest, wrong = _serving(policies.get(name))
        drift = _drift(memories[name], member.target, current, digest) if name in memories else ""
        health = (*ailments, *wrong, *loops.get(name, []))
        statuses.append(
            DeviceStatus(member.target, name, current or "", digest or "", drift, health, True, member.labels)
        )
    return statuses


def not_seen(member: Member, error: Exception, memories: Mapping[str, Memory], only: str | None) -> list[DeviceStatus]:
    """Return what was known last of a device that could not be looked at."""
    known = {name: memory.last(member.target) for name, memory in memories.items() if only in (None, name)}
    drifts = {
        name: f"not seen; last {last.get('state')} {last.get('release') or ''}".rstrip()
        for name, last in known.items()
        if last is not None
    }
    health = (error_facts(error)["error"],)
    return [
        DeviceStatus(member.target, name, drift=drift, health=health, reached=False, labels=member.labels)
        for name, drift in (drifts or {only or "": ""}).items()
    ]


def _as_health(look: Callable[[], list[str]]) -> list[str]:
    """Return what a look found wrong; where it fails, that."""
    try:
        return look()
    except (HostError, *NOT_AS_EXPECTED) as error:
        return [error_facts(error)["error"]]


def _serving(entry: Mapping[str, Any] | None) -> tuple[str | None, str | None, list[str]]:
    """Return the release that serves, its digest, and what is known against it."""
    record = serving_record(entry) if entry else None
    if record is None:
        return None, None, []
    wrong = [
        f"release {record['release']} is {word}: {record[key]}"
        for key, word in (("damage", "damaged"), ("bad", "bad"))
        if record.get(key)
    ]
    if record["trust"] not in ("", TRUSTED):
        wrong.append(f"release {record['release']} is not trusted: {record['trust']}")
    return record["release"], record["digest"], wrong


def _drift(memory: Memory, device: str, current: str | None, digest: str | None) -> str:
    """Return how a device differs from what the journal says of it."""
    last = memory.last(device)
    if last is not None and last["state"] in UNTOUCHED:
        if digest in memory.newest:
            return ""
        if memory.newest:
            return f"behind: {last['state']}"
        last = memory.last(device, *CHANGING)  # the newest rollout came to no device
    if last is None:
        return ""
    state, release = last["state"], last.get("release") or "nothing"
    if state == State.PROVED:
        return "" if digest == last.get("digest") else f"changed: {release} was rolled out"
    if state == State.ROLLED_BACK:
        return str(State.ROLLED_BACK) if (current or "nothing") == release else f"changed: rolled back to {release}"
    if state in (State.SWITCHED, State.UNCHANGED):
        return "not proved yet"
    return "cut off in the rollout" if state in (State.BEGUN, State.SWITCHING) else f"behind: {state}"


def _ailments(facts: TargetFacts, shown: Mapping[str, Any]) -> list[str]:
    ailments = [str(problem) for problem in shown["problems"]]
    if facts.free_disk_bytes < LEAST_DISK_BYTES:
        ailments.append(f"{facts.free_disk_bytes / 1e6:.0f} MB of disk left")
    if facts.memory_available_bytes < LEAST_MEMORY * facts.memory_total_bytes:
        ailments.append(f"{facts.memory_available_bytes / 1e6:.0f} MB of memory left")
    if facts.temperature_c is not None and facts.temperature_c >= HOT_C:
        ailments.append(f"{facts.temperature_c:.0f} °C")
    ailments += facts.throttled.now if facts.throttled else ()
    if holder := shown["locked_by"]:
        ailments.append(f"being deployed to by {holder.get('user')}@{holder.get('host')}")
    return ailments


def _loop(session: Device, policy: str) -> list[str]:
    state = serving(session, policy)
    fault = loop_fault(state) if state["settings"] is not None else ""
    return [f"its loop {fault}"] if fault else []
