"""From the newest observation frame to an action frame, or to the fallback where no decision can be made."""

from __future__ import annotations

import math
import time
from array import array
from typing import Any

from quarl.device.agent.executing import Executor, Input
from quarl.device.agent.loop.frames import CONTINUOUS, HEADER, MAGIC, VALUE_BYTES, Flag, Kind
from quarl.device.agent.serving import Serving

# As plain integers: an IntFlag's operators take longer than a small policy.
_OBSERVATION, _ACTION = int(Kind.OBSERVATION), int(Kind.ACTION)
STALE, NON_FINITE, FALLBACK, HELD = int(Flag.STALE), int(Flag.NON_FINITE), int(Flag.FALLBACK), int(Flag.HELD)
WRONG_RELEASE, START, UNTRAINED = int(Flag.WRONG_RELEASE), int(Flag.START), int(Flag.UNTRAINED)
_clock = time.monotonic_ns


class Inbox:
    """Room for one packet, and its values as the runtime takes them.

    Attributes:
        room: the bytes; one more than an observation has, so that a longer packet is seen to be one.
        values: a whole observation, float32.
        observation: the same as the executor takes it, which changes with the room.
        brought: one period's values, float32.
    """

    def __init__(self, executor: Executor, observation_size: int, brought_size: int, room: int) -> None:
        largest = max(observation_size, brought_size)
        self.room = bytearray(max(room, HEADER.size + VALUE_BYTES * largest + 1))
        values = memoryview(self.room)[HEADER.size : HEADER.size + VALUE_BYTES * largest].cast("f")
        self.values = values[:observation_size]
        self.observation: Input = executor.input(self.values)
        self.brought = values[:brought_size]


class Decider:
    """The served policy with its fallback; what it decided stands in ``frame``, ready to be sent.

    Args:
        serving: the verified artifact.
        fallback: the action's elements, or of a discrete policy its index alone.
        release: as frames carry it.
        stale_ns: age from which an observation is stale, ns.

    Attributes:
        sizes: numbers of values that an observation frame may have: of a period, of a whole observation.
        frame: the action frame, whole after :meth:`finish`.
        flags: of the last decision.
        observed_ns: when its observation was made; 0 before the first.
        runtime_ns: how long the runtime's last call took; 0 where the last decision was made without it.
    """

    def __init__(self, serving: Serving, fallback: tuple[float, ...], release: int, stale_ns: int) -> None:
        spec = serving.bundle.spec
        self._serving, self._release, self._stale_ns = serving, release, stale_ns
        self._executor, self._history, self._discrete = serving.executor, serving.history, spec.is_discrete
        self.observation_size, self.brought_size = spec.observation_size, serving.history.values_size
        self.output_size, self._state_size = spec.output_size, spec.state_size
        # A state is never sent, it is remembered here.
        self.sizes = sorted({self.brought_size} | ({self.observation_size} if not spec.state_size else set()))
        self.frame = bytearray(HEADER.size + VALUE_BYTES * self.output_size)
        self._body = memoryview(self.frame)[HEADER.size :]
        # What a frame says: the action's index, and the bytes of its values.
        values = array("f", bytes(VALUE_BYTES * self.output_size) if self._discrete else fallback)
        self._fallback = (int(fallback[0]) if self._discrete else CONTINUOUS, values.tobytes())
        self._decided = self._held = self._fallback
        self._sequence = self.observed_ns = self.runtime_ns = 0
        self.flags = self._taken_flags = 0
        self._fresh = False
        self._observation = self._golden = serving.observations[0]
        self._values: Any = ()
        self._still = spec.normaliser.still
        self._brought: Any = None

    def inbox(self, room: int) -> Inbox:
        """Room for a packet of an observation, or of so many bytes."""
        return Inbox(self._executor, self.observation_size, self.brought_size, room)

    def take(self, inbox: Inbox, size: int) -> bool:
        """Remember an observation frame of so many bytes, unless it is none of this policy's. Returns whether it is.

        The next decision is made from it; the inbox may not be written to before that.
        """
        magic, kind, flags, count, sequence, release, observed_ns, _, _, _ = HEADER.unpack_from(inbox.room)
        if magic != MAGIC or kind != _OBSERVATION or size != HEADER.size + VALUE_BYTES * count:
            return False
        if count == self.observation_size and count in self.sizes:
            self._observation, self._values, self._brought = inbox.observation, inbox.values, None
        elif count == self.brought_size:
            self._brought = inbox.brought
            if flags & START:
                self._history.reset()
        else:
            return False
        self._sequence, self.observed_ns = sequence, observed_ns
        self._taken_flags = WRONG_RELEASE if release and release != self._release else 0
        self._fresh = True
        return True

    def decide(self, now_ns: int) -> int:
        """Decide from the newest observation, or fall back. Returns the flags."""
        flags, self.runtime_ns = self._taken_flags, 0
        if not 0 <= now_ns - self.observed_ns <= self._stale_ns or not self.observed_ns:
            flags |= STALE
        brought = self._brought
        # As doubles, so many float32 have a finite sum where they are finite.
        if not (self._executor.is_finite(self._observation) if brought is None else math.isfinite(sum(brought))):
            flags |= NON_FINITE
        if flags:
            return self.fall_back(flags)
        observation, values = self._observation, self._values
        if brought is not None:
            if not self._fresh:  # what was remembered once is not remembered again
                return self.hold(0)
            values = self._history.observe(brought)
            observation = self._executor.input(values)
        self._fresh = False
        begin = _clock()
        action: Any = self._executor.decide(observation)
        self.runtime_ns = _clock() - begin
        outputs = self._executor.outputs()
        if not math.isfinite(sum(outputs.tolist())):
            return self.fall_back(NON_FINITE)
        if self._state_size and not self._executor.is_finite(self._executor.state()):
            return self.fall_back(NON_FINITE)
        self._decided = (action if self._discrete else CONTINUOUS, outputs.tobytes())
        if brought is not None:
            self._serving.settle()
        self._serving.decisions += 1
        moved = any(abs(values[place] - value) > change for place, value, change in self._still)
        self.flags = UNTRAINED if moved else 0
        return self.flags

    def rehearse(self) -> int:
        """Decide on a golden observation, for nobody: a loop without a controller shows how punctual it would be."""
        begin = _clock()
        self._executor.decide(self._golden)
        self.runtime_ns = _clock() - begin
        self._executor.outputs()
        return self.fall_back(0)

    def fall_back(self, flags: int) -> int:
        """The fallback action, with the reason's flags. Returns them with FALLBACK."""
        self._decided = self._fallback
        self.flags = flags | FALLBACK
        return self.flags

    def hold(self, flags: int) -> int:
        """The action that was sent before, once more. Returns the flags with HELD."""
        self._decided = self._held
        self.flags = flags | HELD
        return self.flags

    def flag(self, flags: int) -> int:
        """Add to the decision's flags. Returns all of them."""
        self.flags |= flags
        return self.flags

    def finish(self, sent_ns: int, missed: int) -> None:
        """Write the frame's header, and remember the action as the one that was sent last."""
        action, values = self._held = self._decided
        self._body[:] = values
        HEADER.pack_into(
            self.frame,
            0,
            MAGIC,
            _ACTION,
            self.flags,
            self.output_size,
            self._sequence,
            self._release,
            self.observed_ns,
            sent_ns,
            action,
            missed & 0xFFFFFFFF,
        )
