"""One payload for each kind of device: gathered once, sent to all that have the same processor, Python and runtime."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import replace

from quarl.device.deploy.deploy import gather_payload, wheels_for
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.payload import Payload
from quarl.device.deploy.probe import TargetFacts
from quarl.device.deploy.wheels import WheelSet, parse_runtimes
from quarl.policy.bundle import Bundle
from quarl.policy.errors import PolicyError
from quarl.policy.ladder import Ladder, choose_precisions, read_ladder, require_artifact
from quarl.policy.spec import Precision, RuntimeName, executions


class Payloads:
    """What is sent to the devices of a fleet.

    Attributes:
        bundle: the policy.
        accept: also what agrees with the policy in too few decisions.
    """

    def __init__(self, bundle: Bundle, accept: bool = False) -> None:
        self.bundle, self.accept, self.ladder = bundle, accept, read_ladder(bundle)
        self._lock = threading.Lock()
        self._made: dict[Hashable, Payload | HostError | PolicyError] = {}

    @property
    def kinds(self) -> int:
        """Kinds of devices met so far."""
        return len(self._made)

    def require_artifacts(self, members: tuple[Member, ...]) -> None:
        """See that every artifact is there, before a device is asked anything.

        Raises:
            BundleError: one is not; says how to make it.
            AcceptanceError: it agrees with the policy in too few decisions.
        """
        for precisions, runtimes, _ in dict.fromkeys(parse_member_settings(member, self.ladder) for member in members):
            for precision, runtime in executions(precisions, runtimes):
                require_artifact(self.bundle, self.ladder, precision, runtime.artifact_format, self.accept)

    def of(self, member: Member, facts: TargetFacts) -> tuple[Payload, WheelSet]:
        """Return what a device gets.

        Raises:
            UnsupportedDeviceError, WheelError, BundleError: as ``deploy``.
        """
        precisions, runtimes, without_python = parse_member_settings(member, self.ladder)
        wheel_set = wheels_for(facts, runtimes, without_python)
        kind = (precisions, runtimes, without_python, wheel_set)
        with self._lock:
            outcome = self._made.get(kind)
            if outcome is None:
                try:
                    outcome = gather_payload(self.bundle, precisions, runtimes, wheel_set, without_python)
                except (HostError, PolicyError) as error:
                    outcome = error
                self._made[kind] = outcome
        if isinstance(outcome, Payload):
            return outcome, wheel_set
        raise outcome


def parse_member_settings(
    member: Member, ladder: Ladder | None = None
) -> tuple[tuple[Precision, ...], tuple[RuntimeName, ...], bool]:
    """Precisions and runtimes of a device, and whether it gets the agent without Python.

    Raises:
        PolicyError, HostError: one of them is not known; says what is allowed.
    """
    without_python = member.agent == "native"
    if member.agent not in (None, "python", "native"):
        raise HostError(f"The agent of {member.target} must be python or native, got {member.agent!r}.")
    runtimes = (RuntimeName.NATIVE,) if without_python else tuple(parse_runtimes(member.runtime or "litert"))
    precisions = choose_precisions(ladder, member.bits or "8", [runtime.artifact_format for runtime in runtimes])
    return precisions, runtimes, without_python


def override_settings(
    members: Iterable[Member], runtime: str | None, agent: str | None, bits: str | None
) -> tuple[Member, ...]:
    """Return the devices with what was typed in the place of what fleet.toml says; None: nothing was."""
    new_members = []
    for member in members:
        if runtime or agent:  # one of them decides about both
            member = replace(member, runtime=runtime, agent=agent)
        new_members.append(replace(member, bits=bits) if bits else member)
    return tuple(new_members)
