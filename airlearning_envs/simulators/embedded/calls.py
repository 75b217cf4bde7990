"""The commands in force: what SimpleFlight follows at a moment, some milliseconds after it was called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quarl.airlearning_envs.simulators.embedded.dynamics import Integrator
from quarl.airlearning_envs.simulators.simulator import Bools, Call, Floats, Rows

_LONG_AGO_S = np.float32(-100.0)


class CallsInForce:
    """Goals of E drones: calls are turned into the world frame by the yaw at the call and followed after their delay.

    Args:
        integrator: the drones; their yaw, altitude and delay.
        times_s: (steps,) from a period's start to the end of each integration step.
        delays_differ: whether each drone has a delay of its own, from a call to the moment at which it is followed.
    """

    def __init__(self, integrator: Integrator, times_s: Floats, delays_differ: bool = False) -> None:
        flight = self._flight = integrator.flight
        self._integrator, self._step, self._delays_differ = integrator, times_s[0], delays_differ
        self._begins, self._ends = np.concatenate([np.zeros(1, np.float32), times_s[:-1]]), times_s
        self._followed = np.zeros((4, len(flight.yaw)), np.float32)
        # Called and not yet followed by all, oldest first: (goal (4, E), when it is followed in this period: (E,), or
        # one time for all).
        self._coming: list[tuple[Floats, Floats | np.float32]] = []
        # Of each step of this period, who is called in it: how long after its start (E,), and which drones (E,); or
        # neither, for all at its start.
        self._calls: list[list[tuple[Floats, Floats | None, Bools | None]]] = []
        self.rest(np.arange(len(flight.yaw)))

    def rest(self, rows: Rows) -> None:
        """Hover: no speed, no turn."""
        for goal in (self._followed, *(goal for goal, _ in self._coming)):
            goal[:, rows] = 0.0
            goal[2, rows] = self._flight.altitude[rows]

    def begin(self, calls: Sequence[Call], times_s: Floats | None = None) -> None:
        """A period begins, in which the drones will be called so; with steps of its own where they are given."""
        period = self._ends[-1]
        self._coming = [(goal, followed_s - period) for goal, followed_s in self._coming]
        if times_s is not None:
            self._step, self._ends = times_s[0], times_s
            self._begins = np.concatenate([np.zeros(1, np.float32), times_s[:-1]])
        self._calls = [[] for _ in self._ends]
        for call in calls:
            if call.at_s is None:
                self._calls[0].append((call.command, None, None))
                continue
            step = np.searchsorted(self._begins, call.at_s, side="right") - 1
            step[call.at_s >= period] = -1
            for k in range(max(int(step.min()), 0), int(step.max()) + 1):
                if (now := step == k).any():
                    self._calls[k].append((call.command, call.at_s - self._begins[k], None if now.all() else now))

    def goal(self, step: int) -> Floats:
        """Mean goal (4, E) over a step, counted from 0 within the period: world x and y m/s, z m, yaw rate rad/s.

        Every goal is weighted with the share of the step in which it is followed, so a delay of a fraction of a
        step is not rounded away: u = c_0 + sum_k f_k (c_k - c_{k-1}), f_k = clip((t_end - t_k) / dt, 0, 1).
        """
        calls, self._calls[step] = self._calls[step], []
        for command, after_s, now in calls:
            self._add_call(command, after_s, now, self._begins[step])
        mean = latest = self._followed
        for goal, followed_s in self._coming:
            share = (self._ends[step] - followed_s) / self._step
            # Where it is followed throughout, it is taken as it is: to the last bit, whatever came before it.
            if share.ndim:
                mixed = mean + np.maximum(share, np.float32(0.0)) * (goal - latest)
                mean = np.where(share >= 1.0, goal, mixed)
            elif share > 0.0:
                mean = goal if share >= 1.0 else mean + share * (goal - latest)
            latest = goal
        while self._coming and (self._coming[0][1] <= self._begins[step]).all():
            self._followed = self._coming.pop(0)[0]
        return mean

    def _add_call(self, command: Floats, after_s: Floats | None, now: Bools | None, begin: np.float32) -> None:
        """Note that the drones ``now`` (E,), or all, are called ``after_s`` (E,) a step's ``begin``."""
        flight = self._flight
        at_s: Floats | np.float32 = begin
        if now is not None and after_s is not None:
            after_s = np.where(now, after_s, np.float32(0.0))
        if after_s is None:
            cosine, sine = self._integrator.heading
        else:
            yaw, at_s = flight.yaw + flight.yaw_rate * after_s, begin + after_s
            cosine, sine = np.cos(yaw).astype(np.float32), np.sin(yaw).astype(np.float32)
        goal = np.empty_like(self._followed)
        forward, right, _ = command
        np.subtract(cosine * forward, sine * right, goal[0])
        np.add(sine * forward, cosine * right, goal[1])
        goal[2], goal[3] = flight.altitude, command[2]
        delay_s = flight.constants[-1]
        followed_s: Floats | np.float32 = (delay_s if self._delays_differ else delay_s[0]) + at_s
        if now is not None:  # the others go on with what they were called last
            latest, already = self._coming[-1] if self._coming else (self._followed, _LONG_AGO_S)
            goal = np.where(now, goal, latest)
            followed_s = np.where(now, followed_s, already)
        self._coming.append((goal, followed_s))
