"""The loop itself: absolute deadlines, one decision for each, and what is done when one is missed.

Paced by the clock, tick k is due at start + k · period. The loop sleeps until then, reads what has come, decides from
the newest observation and sends the action. If that ends after later ticks were due, they are skipped: never two
decisions for one tick, never a decision for one that has passed.

Paced by observations, each one is answered as it comes; a period without one brings the fallback.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from quarl.device.agent.loop.connections import Connections
from quarl.device.agent.loop.deciding import HELD, Decider
from quarl.device.agent.loop.notifying import Notifier
from quarl.device.agent.loop.options import OnMiss, Pace
from quarl.device.agent.loop.punctuality import MISSED, Punctuality
from quarl.device.agent.loop.real_time import sleep_until

_clock = time.monotonic_ns


@dataclass(frozen=True)
class Timing:
    """When what is due.

    Attributes:
        period_ns: between two ticks, ns.
        deadline_ns: after a tick, or after an observation was read: an action that is ready later is late.
        stale_ns: age from which an observation is stale.
        hold_ns: an action is sent once more until so long after it was decided; then the fallback is.
        spin_ns: the last part of a wait is spent polling, which takes a core and saves waking up.
        pace, on_miss: see there.
    """

    period_ns: int
    deadline_ns: int
    stale_ns: int
    hold_ns: int
    spin_ns: int
    pace: Pace
    on_miss: OnMiss


class Loop:
    """The loop over one policy.

    Args:
        timing: see there.
        decider, connections: see there.
        notifier: its heartbeat comes from the loop's own turns, so that a loop that hangs is seen to.
        answer: one JSON request to one reply.

    Attributes:
        punctuality: what was counted.
        ended: why the loop ends, once it does; set from outside to end it.
    """

    def __init__(
        self,
        timing: Timing,
        decider: Decider,
        connections: Connections,
        notifier: Notifier,
        answer: Callable[[bytes], bytes],
    ) -> None:
        self._timing, self._decider, self._connections = timing, decider, connections
        self._notifier, self._answer = notifier, answer
        self.punctuality = Punctuality()
        self.ended = ""
        self._sent_ns = self._alive_ns = self._made_ns = 0
        self._skipped = False

    def run(self) -> None:
        """Turn until ``ended``."""
        self.punctuality.reset()
        turn = self._by_clock if self._timing.pace is Pace.CLOCK else self._by_observation
        turn()

    def _by_clock(self) -> None:
        period, spin, clock = self._timing.period_ns, self._timing.spin_ns, _clock
        due = clock() + period
        while not self.ended:
            sleep_until(due - spin)
            while (now := clock()) < due and not self.ended:
                pass
            self.punctuality.woke_late.add(now - due)
            self.punctuality.ticks += 1
            self._connections.read_all()
            self._decide(clock(), due)
            self._attend(now)
            behind = (clock() - due) // period  # ticks that were due meanwhile, besides the next
            if behind > 0:
                self._skip(behind)
            due += (behind + 1) * period

    def _by_observation(self) -> None:
        period, spin, clock = self._timing.period_ns, self._timing.spin_ns, _clock
        wait, read = self._connections.wait, self._connections.read_ready
        due = clock() + period
        while not self.ended:
            ready = wait(0)
            if not ready:
                until = clock() + spin
                while not ready and clock() < until:
                    ready = wait(0)
                if not ready and not self._connections.requests:
                    # poll waits whole milliseconds: rounded up, so that it does not turn before the period is over
                    left = min(due - clock(), self._notifier.heartbeat_ns)
                    ready = wait(max(-(-left // 1_000_000), 0))
            if ready:
                answered = self.punctuality.ticks
                read(ready, self._at_once)
                if self.punctuality.ticks > answered:
                    due = clock() + period
            now = clock()
            if now >= due:
                self.punctuality.ticks += 1
                self._decide(now, now)
                due = now + period
            self._attend(now)

    def _at_once(self) -> None:
        now = _clock()
        self.punctuality.ticks += 1
        self._decide(now, now)

    def _decide(self, read_ns: int, due_ns: int) -> None:
        """Decide and send: one action for the tick that was due at ``due_ns``; without a controller, a rehearsal."""
        decider, count, clock = self._decider, self.punctuality, _clock
        controller = self._connections.controller
        flags = decider.decide(read_ns) if controller is not None else decider.rehearse()
        if self._skipped:
            flags, self._skipped = decider.flag(MISSED), False
        ready = clock()
        late = ready - due_ns > self._timing.deadline_ns
        if late:
            flags = self._was_late(flags | MISSED, ready)
        elif not flags & HELD:  # a recurrent policy is on time, too, with an action that it only repeats
            self._made_ns = ready
        decider.finish(ready, count.missed_ever)
        sent = controller is not None and self._connections.send(controller, decider.frame)
        written = clock()
        # Counted after the action has left.
        if controller is not None:
            count.flagged(flags)
        count.decided.add(ready - read_ns)
        if decider.runtime_ns:
            count.runtime.add(decider.runtime_ns)
        if sent:
            count.answered.add(written - read_ns)
            count.sent_late.add(written - due_ns)
            if decider.observed_ns:
                count.age.add(written - decider.observed_ns)
            if self._sent_ns:
                count.jitter.add(abs(written - self._sent_ns - self._timing.period_ns))
            self._sent_ns = written
        else:
            self._sent_ns = 0

    def _skip(self, ticks: int) -> None:
        """Count ticks that passed unserved; the next action says so, on time as it may be itself."""
        self.punctuality.missed(0, ticks)
        self._skipped = True
        controller = self._connections.controller
        if self._timing.on_miss is OnMiss.STOP and not self.ended:
            self.ended = f"{ticks} ticks passed unserved (--on-miss stop)"
            self._decider.fall_back(MISSED)
            self._decider.finish(_clock(), self.punctuality.missed_ever)
            if controller is not None:
                self._connections.send(controller, self._decider.frame)

    def _was_late(self, flags: int, ready_ns: int) -> int:
        self.punctuality.missed(1, 0)
        if self._timing.on_miss is OnMiss.HOLD:
            if ready_ns - self._made_ns <= self._timing.hold_ns:
                return self._decider.hold(flags)
            self.punctuality.hold_expired += self._connections.controller is not None
        if self._timing.on_miss is OnMiss.STOP:
            self.ended = "an action was ready after its deadline (--on-miss stop)"
        return self._decider.fall_back(flags)

    def _attend(self, now_ns: int) -> None:
        """What may wait: one JSON request, the heartbeat."""
        if self._connections.requests:
            client, line = self._connections.requests.pop(0)
            self._reply(client, line)
        if now_ns - self._alive_ns >= self._notifier.heartbeat_ns:
            self._alive_ns = now_ns
            self._notifier.alive()

    def _reply(self, client: socket.socket, line: bytes) -> None:
        self._connections.send(client, self._answer(line))
