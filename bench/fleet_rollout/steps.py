"""The rollouts in their order, and what each has come to: told by the command, and seen in the devices' files."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fleet_rollout import ill
from bench.fleet_rollout.arena import Arena
from bench.fleet_rollout.looking import Seen, settled, untrue
from bench.fleet_rollout.typed import Typed, typed

CANARIES, BATCH = 2, "25%"
COMPARED = 0.1
"""Share of the fleet to which one device at a time is deployed, and as many others to which several at a time are."""
KILLED_AT = 1 / 3
"""Share of the fleet that has switched when the command is killed."""
TOO_SHORT_MS = 1e-6
"""A deadline that no decision meets."""
SENTENCES = 5
"""Devices that are named where something is wrong with more."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """A command that is typed.

    Attributes:
        name: of the row.
        bits: of the release.
        words: more of the command.
        kill_at: devices that have switched when it is killed.
    """

    name: str
    bits: int
    words: tuple[str, ...] = ()
    kill_at: int | None = None


class Run:
    """All rollouts on one fleet: ``compared``, then ``rows``."""

    def __init__(self, arena: Arena, faults: Mapping[str, str], parallel: int, soak_s: float, say: Say) -> None:
        """A run that has not begun.

        Args:
            arena: the fleet.
            faults: what is wrong in the second step, by device.
            parallel: devices at a time.
            soak_s: seconds for which each phase is watched.
            say: takes a sentence on what is done now.
        """
        self.arena, self.faults, self.parallel, self.soak_s, self.say = arena, faults, parallel, soak_s, say
        self.names = arena.fleet.names
        self.third = math.ceil(KILLED_AT * len(self.names))
        self.seen, _ = settled(arena)
        self.wrong: list[str] = []

    def rows(self) -> Iterator[dict[str, Any]]:
        """The seven steps."""
        dying = sum(what in ill.DYING for what in self.faults.values())
        allowed = ("--max-fail", str(dying))
        yield self._complete(Step("first", 8))
        for name, what in self.faults.items():
            self.arena.fleet.set_fault(name, ill.fault(what))
        yield self._with_faults(Step("faults", 4, allowed))
        for name in self.names:
            self.arena.fleet.heal(name)
        yield self._complete(Step("healed", 4, allowed))
        row = self._complete(Step("idle", 4, allowed))
        self._require(not row["sent_bytes"] and not row["touched"], "idle: something was sent or switched")
        yield row
        row = self._row(Step("killed", 6, kill_at=self.third))
        self._require(row["exit_status"] == -9 and row["new"] >= self.third, "killed: it was not, or too early")
        yield row
        yield self._complete(Step("resumed", 6))
        row = self._row(Step("fallen", 4, ("--deadline-ms", f"{TOO_SHORT_MS:f}")))
        told = row["states"].get("rolled back", 0)
        self._require(row["exit_status"] == 1 and told == CANARIES, f"fallen: {told} canaries were taken back")
        self._require(row["old"] == len(self.names), "fallen: a device serves the release that fell")
        self._require(not row["others_touched"], f"fallen: {row['others_touched']} other devices were touched")
        yield row

    def compared(self) -> Iterator[dict[str, Any]]:
        """Some devices with nothing on them one at a time, and as many others several at a time; emptied afterwards."""
        count = max(2, round(COMPARED * len(self.names)))
        parts = self.names[:count], self.names[count : 2 * count]
        for names, parallel in zip(parts, (1, self.parallel), strict=True):
            only = [word for name in names for word in ("--only", name)]
            words = (*only, "--canary", "0", "--batch", "100%", "--soak", "0", "--parallel", str(parallel))
            done, row = self._typed(Step(f"{parallel} at a time", 8, words), self.arena.apart)
            proved = row["states"].get("proved", 0)
            self._require(proved == count, f"{parallel} at a time: {proved} of {count} proved it. {done.error}")
            yield {
                "parallel": parallel,
                "devices": count,
                "seconds": round(done.rollout_s, 3),
                "cpu_s": row["cpu_s"],
                "sent_bytes": row["sent_bytes"],
            }
        for name in self.names:
            shutil.rmtree(self.arena.folder(name), ignore_errors=True)
        self.seen, _ = settled(self.arena)

    def _complete(self, step: Step) -> dict[str, Any]:
        row = self._row(step)
        proved = row["states"].get("proved", 0)
        all_of_them = row["exit_status"] == 0 and proved == row["new"] == len(self.names)
        self._require(all_of_them, f"{step.name}: {proved} of {len(self.names)} devices proved it")
        return row

    def _with_faults(self, step: Step) -> dict[str, Any]:
        row = self._row(step)
        ill_ones = sum(what != ill.SLOW for what in self.faults.values())
        proved = row["states"].get("proved", 0)
        self._require(
            proved == len(self.names) - ill_ones, f"{step.name}: {proved} proved it, with {ill_ones} that could not"
        )
        return row

    def _row(self, step: Step) -> dict[str, Any]:
        """Type a step's command for the whole fleet."""
        phases = ("--canary", str(CANARIES), "--batch", BATCH, "--soak", f"{self.soak_s:g}")
        words = (*phases, "--parallel", str(self.parallel), *step.words)
        return self._typed(Step(step.name, step.bits, words, step.kill_at))[1]

    def _typed(self, step: Step, file: Path | None = None) -> tuple[Typed, dict[str, Any]]:
        self.say(f"{step.name}: int{step.bits} …")
        arena, before = self.arena, self.seen
        options = (
            "--fleet",
            str(file or arena.fleet.fleet_file),
            "--policy",
            str(arena.bundle),
            "--bits",
            str(step.bits),
            "--agent",
            "native",
        )
        done = typed((*options, *step.words), arena.environment, step.kill_at)
        now, settled_s = settled(arena)
        self.seen = now
        precision = f"int{step.bits}"
        lies = untrue(done.states, precision, before, now)
        half = [f"{name}: {', '.join(each.half[:2])}" for name, each in now.items() if each.half]
        touched = [name for name in self.names if now[name].trace != before[name].trace]
        self._require(not lies, f"{step.name}: told wrongly: {_some(lies)}")
        self._require(not half, f"{step.name}: half done: {_some(half)}")
        states = dict(Counter(done.states.values()).most_common())
        self.say(f"{step.name}: {done.seconds:.1f} s, exit status {done.status}, {states}")
        return done, {
            "step": step.name,
            "precision": precision,
            **took(done),
            "states": states,
            **_counts(now, precision),
            "untrue": len(lies),
            "touched": len(touched),
            "others_touched": len(set(touched) - set(self.names[:CANARIES])),
            "settled_s": round(settled_s, 1),
        }

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)
            self.say(otherwise)


def took(done: Typed) -> dict[str, Any]:
    """What a command took, for its row."""
    return {
        "exit_status": done.status,
        "seconds": round(done.seconds, 3),
        "cpu_s": round(done.cpu_s, 3),
        "peak_bytes": done.peak_bytes,
        "sent_bytes": done.sent_bytes,
    }


def _counts(seen: Mapping[str, Seen], precision: str) -> dict[str, int]:
    """Devices by what their files say; a half done one counts as that alone."""
    whole = [each for each in seen.values() if not each.half]
    return {
        "new": sum(each.precision == precision for each in whole),
        "old": sum(each.precision not in (precision, None) for each in whole),
        "empty": sum(each.precision is None for each in whole),
        "half_done": len(seen) - len(whole),
    }


def _some(sentences: Sequence[str]) -> str:
    more = len(sentences) - SENTENCES
    return "; ".join(sentences[:SENTENCES]) + (f"; and {more} more" if more > 0 else "")
