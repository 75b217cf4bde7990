"""What ActorQ's simulation works on: shared cores, cores of one's own, servers with a queue (simpy)."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

SMALLEST_S = 1e-12

Events = Generator[simpy.Event, Any, Any]


@dataclass
class _Job:
    left_s: float
    width: float
    done: simpy.Event


class SharedCores:
    """Processor sharing: work of width w gets min(w, a fair share) of the cores; what one cannot use the others get."""

    def __init__(self, env: simpy.Environment, cores: float) -> None:
        self._env, self._cores = env, cores
        self._jobs: list[_Job] = []
        self._since, self._turn = 0.0, 0

    def work(self, seconds: float, width: float = 1.0) -> Events:
        """So many seconds of processor, on at most ``width`` cores at a time."""
        if seconds <= 0.0:
            return
        self._advance()
        job = _Job(seconds, width, self._env.event())
        self._jobs.append(job)
        self._plan()
        yield job.done

    def rates(self) -> list[float]:
        """Cores of each job now: water-filling."""
        given = [0.0] * len(self._jobs)
        left, cores = sorted(range(len(self._jobs)), key=lambda i: self._jobs[i].width), self._cores
        while left:
            index = left.pop(0)
            given[index] = min(self._jobs[index].width, cores / (len(left) + 1))
            cores -= given[index]
        return given

    def _advance(self) -> None:
        passed, self._since = self._env.now - self._since, self._env.now
        for job, rate in zip(self._jobs, self.rates(), strict=True):
            job.left_s -= passed * rate
        for job in [each for each in self._jobs if each.left_s <= SMALLEST_S]:
            self._jobs.remove(job)
            job.done.succeed()

    def _plan(self) -> None:
        """Look again when the next job is done, unless another comes before."""
        self._turn += 1
        if self._jobs:
            soonest = min(job.left_s / rate for job, rate in zip(self._jobs, self.rates(), strict=True))
            self._env.process(self._later(soonest, self._turn))

    def _later(self, seconds: float, turn: int) -> Events:
        yield self._env.timeout(seconds)
        if turn == self._turn:
            for job in self._jobs:  # the soonest is done, whatever floats leave of it
                job.left_s -= SMALLEST_S
            self._advance()
            self._plan()


class OwnCores:
    """A machine for each process: nobody waits for a processor."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def work(self, seconds: float, width: float = 1.0) -> Events:
        """So many seconds of processor, on ``width`` cores."""
        yield self._env.timeout(seconds / width)


class Busy:
    """A server of capacity one with a queue before it, and how long it was at work."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._line = simpy.Resource(env, 1)
        self._busy_s, self._since, self._from = 0.0, math.nan, 0.0

    def serve(self, work: Events) -> Events:
        """Wait for one's turn, then the work."""
        with self._line.request() as turn:
            yield turn
            self._since = self._env.now
            yield from work
            self._busy_s += self._env.now - max(self._since, self._from)
            self._since = math.nan

    def restart(self) -> None:
        """Count from now on."""
        self._busy_s, self._from = 0.0, self._env.now

    def share(self) -> float:
        """Of the time since :meth:`restart`."""
        running = 0.0 if math.isnan(self._since) else self._env.now - max(self._since, self._from)
        passed = self._env.now - self._from
        return (self._busy_s + running) / passed if passed > 0 else 0.0
