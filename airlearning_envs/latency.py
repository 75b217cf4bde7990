"""Command latency: the time between an observation and the moment the command chosen from it takes effect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.errors import SettingsError

Floats = NDArray[np.float32]


class LatencyKind(Enum):
    """Shape of a latency distribution; the value is its name in settings."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    EMPIRICAL = "empirical"


class DrawnFor(Enum):
    """How often a latency is drawn; the value is its name in settings."""

    COMMAND = "command"
    """Drawn for each command again: a device's jitter."""
    EPISODE = "episode"
    """Drawn once for all commands of an episode: devices differ, each is steady."""


LONGEST_S = 10.0
"""No command is later than this: the queue keeps every command under way, a quarter of a second each."""

_PARAMETERS = {
    LatencyKind.FIXED: "[seconds]",
    LatencyKind.UNIFORM: "[low, high] in seconds",
    LatencyKind.NORMAL: "[mean, standard deviation] in seconds",
    LatencyKind.EMPIRICAL: "[sample, sample, ...] in seconds",
}


@dataclass(frozen=True)
class CommandLatency:
    """A distribution from which each command's latency is drawn.

    Attributes:
        kind: FIXED, UNIFORM, NORMAL (cut to [0, mean + 4 standard deviations]) or EMPIRICAL (measured samples,
            each equally likely), so that the latencies measured on a device can be flown.
        values_s: the distribution's parameters in seconds: one value; low and high; mean and standard
            deviation; or the samples.
        drawn_for: each command, or each episode.
    """

    kind: LatencyKind
    values_s: tuple[float, ...]
    drawn_for: DrawnFor = DrawnFor.COMMAND

    def __post_init__(self) -> None:
        wanted = {LatencyKind.FIXED: 1, LatencyKind.UNIFORM: 2, LatencyKind.NORMAL: 2}.get(self.kind)
        good = len(self.values_s) == wanted if wanted else len(self.values_s) >= 1
        good = good and all(math.isfinite(v) and v >= 0.0 for v in self.values_s)
        if self.kind is LatencyKind.UNIFORM and good:
            good = self.values_s[0] <= self.values_s[1]
        if not good:
            raise SettingsError(
                f"latency {self.kind.value!r} has the values {list(self.values_s)}; it takes {_PARAMETERS[self.kind]}, "
                "finite, none negative."
            )
        if self.longest_s > LONGEST_S:
            raise SettingsError(
                f"latency reaches {self.longest_s:g} s; allowed is up to {LONGEST_S:g} s.",
                code="latency_too_long",
                longest_s=self.longest_s,
            )

    @property
    def longest_s(self) -> float:
        """Upper bound of the latency, s."""
        if self.kind is LatencyKind.NORMAL:
            return self.values_s[0] + 4.0 * self.values_s[1]
        return max(self.values_s)

    def __str__(self) -> str:
        """Return the latency in words: ``commands 0 to 400 ms late, drawn for each episode``."""
        values = [f"{1000 * value:g}" for value in self.values_s]
        late = {
            LatencyKind.FIXED: f"{values[0]} ms",
            LatencyKind.UNIFORM: f"{' to '.join(values)} ms",
            LatencyKind.NORMAL: f"{' ± '.join(values)} ms",
            LatencyKind.EMPIRICAL: f"{min(self.values_s) * 1000:g} to {self.longest_s * 1000:g} ms, as measured,",
        }[self.kind]
        return f"commands {late} late" + (
            "" if self.kind is LatencyKind.FIXED else f", drawn for each {self.drawn_for.value}"
        )

    def draw(self, uniform: Floats, normal: Floats) -> Floats:
        """Latencies in seconds from uniform [0, 1) and standard normal numbers of the same shape."""
        if self.kind is LatencyKind.FIXED:
            return np.full(uniform.shape, self.values_s[0], dtype=np.float32)
        if self.kind is LatencyKind.UNIFORM:
            low, high = self.values_s
            return np.float32(low) + uniform * np.float32(high - low)
        if self.kind is LatencyKind.NORMAL:
            mean, deviation = self.values_s
            return np.clip(np.float32(mean) + np.float32(deviation) * normal, 0.0, np.float32(self.longest_s))
        samples = np.array(self.values_s, dtype=np.float32)
        return samples[(uniform * np.float32(len(samples))).astype(np.int64)]

    def to_settings(self) -> dict[str, Any]:
        """Return the latency as JSON values."""
        values: dict[str, Any] = {"kind": self.kind.value, "values_s": list(self.values_s)}
        return values if self.drawn_for is DrawnFor.COMMAND else {**values, "drawn_for": self.drawn_for.value}

    @classmethod
    def from_settings(cls, data: object) -> CommandLatency | None:
        """Read what :meth:`to_settings` wrote; a plain number is a fixed latency in seconds, None or 0 is none."""
        if data is None or data == 0:
            return None
        if isinstance(data, CommandLatency):
            return data
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return cls(LatencyKind.FIXED, (float(data),))
        allowed = ", ".join(kind.value for kind in LatencyKind)
        if not isinstance(data, Mapping) or set(data) - {"drawn_for"} != {"kind", "values_s"}:
            raise SettingsError(
                f"latency is {data!r}; allowed are seconds as a number, or "
                f'{{"kind": one of {allowed}, "values_s": [...]}}, and "drawn_for": "command" or "episode".'
            )
        try:
            values_s = tuple(float(v) for v in data["values_s"])
            return cls(LatencyKind(data["kind"]), values_s, DrawnFor(data.get("drawn_for", "command")))
        except (TypeError, ValueError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(
                f"latency is {data!r}; kind must be one of {allowed}, values_s numbers, drawn_for command or episode."
            ) from error


class CommandQueue:
    """The commands on their way: at any moment the newest one that has arrived is in force.

    A command decided at time t with latency L arrives at t + L. A command that arrives after a newer one is
    dropped. Latencies may be longer than the control period, then several commands are under way at once.

    Args:
        num_envs: batch size E.
        longest_s: no latency is longer.
        period_s: control period.
    """

    def __init__(self, num_envs: int, longest_s: float, period_s: float) -> None:
        self._period = np.float32(period_s)
        depth = math.ceil(longest_s / period_s) + 1
        # Oldest first; arrival times count from the current period's start.
        self._commands = np.zeros((depth, 3, num_envs), dtype=np.float32)
        self._arrivals = np.zeros((depth, num_envs), dtype=np.float32)

    def clear(self, rows: NDArray[np.integer]) -> None:
        """Begin new episodes: no command is under way."""
        self._arrivals[:, rows] = -np.inf

    def push(self, command: Floats, latency: Floats) -> None:
        """Begin a period: ``command`` (3, E) has been decided and will arrive after ``latency`` (E,) seconds."""
        self._commands[:-1] = self._commands[1:]
        self._arrivals[:-1] = self._arrivals[1:] - self._period
        self._commands[-1], self._arrivals[-1] = command, latency
        # An older command that would arrive later than this one is never in force.
        np.minimum(self._arrivals[:-1], latency, out=self._arrivals[:-1])

    def arriving(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the commands (3, E) that arrive in this period for any drone, oldest first, and when (E,); for the
        others that is before or after the period: negative, or as long as it or longer."""
        for command, arrival in zip(self._commands, self._arrivals, strict=True):
            if ((arrival >= 0.0) & (arrival < self._period)).any():
                yield command, arrival
