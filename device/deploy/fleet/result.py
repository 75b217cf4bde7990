"""What a rollout has come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from quarl.device.deploy.fleet.states import State


@dataclass
class Result:
    """What a rollout has come to.

    Attributes:
        states: the last state of each device, by target; those it never came to are ``not begun``.
        errors: why, where something went wrong.
        releases: what serves, where the rollout knows.
        unseen: why, of those that proved it and could not be looked at once more at the end.
        phases: name and outcome of each, ``passed`` or ``rolled back``.
        stopped: why it ended early; empty: it did not.
        sent_bytes: over all devices.
        seconds: that it took.
        kinds: of devices, each with a payload of its own.
    """

    policy: str
    states: dict[str, State]
    errors: dict[str, str] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    phases: list[tuple[str, str]] = field(default_factory=list)
    stopped: str = ""
    sent_bytes: int = 0
    seconds: float = 0.0
    kinds: int = 0

    @property
    def counts(self) -> dict[State, int]:
        """Devices by state."""
        return dict(Counter(self.states.values()))

    @property
    def complete(self) -> bool:
        """Whether the release has proved itself on every device."""
        return set(self.states.values()) <= {State.PROVED}
