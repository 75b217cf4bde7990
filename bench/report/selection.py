"""Which of many stored measurements belong together: the latest of one device, and what was measured side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.bench.report import store
from quarl.bench.report.document import BASELINES, Kind, Report, Success, Where
from quarl.bench.report.intervals import PairedDifference, compute_paired_difference
from quarl.policy.places import ZOO
from quarl.policy.spec import Precision

FP32 = "fp32"
LEFT_OUT = "{}: {} flights of another task than today's are left out"
MEASURED = "measured"
_NUMERALS = ("I", "II", "III")


def policy_order(name: str) -> tuple[int, str]:
    """Sort key: I, II, III, then others by name, the baselines last."""
    if name in BASELINES:
        return len(_NUMERALS) + 1, name
    return (_NUMERALS.index(name) if name in _NUMERALS else len(_NUMERALS)), name


def precision_order(name: str | None) -> tuple[int, int]:
    """Sort key: fp32, fp16, int8, w8, dynamic, int7 … int5, mixed, int4, w4 … int2."""
    if not name:
        return 0, 0
    precision = Precision(name)
    return -2 * precision.bits - (precision is Precision.MIXED), list(Precision).index(precision)


@dataclass(frozen=True)
class Selection:
    """Measurements of one device, oldest first."""

    reports: tuple[Report, ...]

    @classmethod
    def of_target(cls, reports: Iterable[Report], target: str | None = None) -> Selection:
        """Return the measurements of a target. Host-side ones stay.

        When none is named: of the one measured last, of an emulated one only where there is no other.
        """
        known = sorted(reports, key=lambda report: report.time)
        if target is None:
            hosts = ("none", "numpy", "keras", "tf.function")
            on_device = [r for r in known if r.runtime not in hosts and r.counts is None]
            preferred = [r for r in on_device if not r.device.get("emulated")] or on_device
            target = preferred[-1].target if preferred else "local"
        return cls(tuple(r for r in known if r.target == target or r.policy in BASELINES))

    def policies(self) -> list[str]:
        """Names of the policies, in order; the baselines are none of them."""
        return sorted({r.policy for r in self.reports if r.policy not in BASELINES}, key=policy_order)

    def precisions(self, policy: str) -> list[str]:
        """Precisions measured of a policy, widest first."""
        measured_precisions = {r.precision for r in self.reports if r.policy == policy and r.precision and r.artifact}
        return sorted(measured_precisions, key=precision_order)

    def of(self, kind: Kind, **wanted: Any) -> list[Report]:
        """Return the reports of a kind whose attributes, and their answer's, equal the wanted ones; None matches
        anything."""
        attributes = {name: value for name, value in wanted.items() if value is not None}
        if kind is Kind.SUCCESS:
            attributes = {"simulator": None, **attributes}  # another one has a table of its own

        def fits(report: Report) -> bool:
            values = {"sha256": report.sha256, **vars(report), **vars(getattr(report, kind.value))}
            return all(values[name] == value for name, value in attributes.items())

        return [report for report in self.reports if report.kind is kind and fits(report)]

    def last(self, kind: Kind, **wanted: Any) -> Report | None:
        """Return the latest of the reports that :meth:`of` finds; None: there are none."""
        return next(reversed(self.of(kind, **wanted)), None)

    def best_success(self, policy: str, precision: str | None, preset: str, **wanted: Any) -> Report | None:
        """Return the success that rests on most episodes (the latest of those), without command latency, all as preset.

        What flew on the host with the numpy reference is no measurement of an artifact and is left out, unless it is
        a baseline.
        """
        candidates = [
            (report.success.episodes, report.time, report)
            for report in self.of(Kind.SUCCESS, policy=policy, precision=precision, preset=preset, **wanted)
            if report.success is not None
            and latency_of_flights(report) == 0.0
            and (report.success.where is not Where.HOST or policy in BASELINES)
        ]
        return max(candidates, key=lambda each: each[:2])[2] if candidates else None

    def fp32_partner(self, report: Report | None) -> Report | None:
        """Return the fp32 latency that was measured side by side with this one: same run, runtime and path."""
        if report is None or report.latency is None:
            return None
        same = {"run": report.run, "policy": report.policy, "runtime": report.runtime, "path": report.latency.path}
        return self.last(Kind.LATENCY, precision=FP32, **same)


def latency_of_flights(report: Report) -> float | str | None:
    """Return the fixed command latency in seconds that the episodes were flown with, all else as preset.

    MEASURED where each was drawn from a device's own measured decisions; None where any other setting was changed.
    """
    assert report.success is not None
    settings = dict(report.success.settings)
    latency = settings.pop("latency", None) or 0.0
    if isinstance(latency, Mapping) and latency.get("kind") == "empirical":
        latency = MEASURED
    return None if settings or isinstance(latency, Mapping) else latency


def keep_todays_flights(reports: Iterable[Report]) -> list[Report]:
    """Return all but flights of another task than today's of that name: other dynamics, another arena."""
    from quarl.airlearning_envs.config import preset

    def is_today(success: Success) -> bool:
        return success.task == preset(success.preset).with_settings(success.settings).digest()

    return [report for report in reports if report.success is None or is_today(report.success)]


def turn_ratios(slow: Report | None, fast: Report | None) -> list[float]:
    """p50 of the slow one over p50 of the fast one in each turn that both had; of all runs where none is kept.

    Empty where a median is not supported by its runs. What else the machine does falls on both of a turn alike.
    """
    if slow is None or fast is None or slow.latency is None or fast.latency is None:
        return []
    a, b = slow.latency.percentiles_ns.get("p50"), fast.latency.percentiles_ns.get("p50")
    if not a or not b:
        return []
    turns = zip(slow.latency.block_p50_ns, fast.latency.block_p50_ns, strict=False)
    return [a / b for a, b in turns if a and b] or [a / b]


def speed_up(slow: Report | None, fast: Report | None) -> float | None:
    """Return how many times as fast: the median of the turns' ratios, which lies between the least and the greatest."""
    ratios = turn_ratios(slow, fast)
    return statistics.median(ratios) if ratios else None


def pair_successes(a: Report | None, b: Report | None) -> PairedDifference | None:
    """Success of a minus success of b on the episodes that both flew; None when they flew different ones.

    Command latency may differ: it changes what becomes of an episode, not where its obstacles and its goal are.
    Reports of before the task's digest was stored do not say what the preset's constants were; they are paired among
    themselves only.
    """
    if a is None or b is None or a.success is None or b.success is None:
        return None
    if _episodes_of(a.success) != _episodes_of(b.success):
        return None
    if a.success.simulator or b.success.simulator:  # one that measures time cannot fly an episode again
        return None
    common = min(a.success.episodes, b.success.episodes)
    return compute_paired_difference(a.success.bits()[:common], b.success.bits()[:common])


def _episodes_of(success: Success) -> tuple[str, int, dict[str, object], str | None]:
    """Return a key that is equal where episode k is the same episode."""
    settings = {name: value for name, value in success.settings.items() if name != "latency"}
    return success.preset, success.seed, settings, success.task


@dataclass(frozen=True)
class Kept:
    """What is stored, as tables read it.

    Attributes:
        source: (name of a table) → file of the measurements that it stands on.
        folder: of the answers that commands kept; None: results/.
        zoo: folder of the committed bundles.
        preset: of the navigation task.
        target: device; None: the real one measured last.
        say: takes a sentence on what is left out.
    """

    source: Callable[[str], Path] = store.results_for
    folder: Path | None = None
    zoo: Path = ZOO
    preset: str = "hard"
    target: str | None = None
    say: Callable[[str], None] = lambda sentence: None

    def reports(self, name: str) -> list[Report]:
        """Return the measurements that a table stands on, flights of today's task among them.

        Raises:
            StoreError: there are none.
        """
        reports = store.read_results(self.source(name))
        today = keep_todays_flights(reports)
        if len(today) < len(reports):
            self.say(LEFT_OUT.format(name, len(reports) - len(today)))
        return today

    def selection(self, name: str) -> Selection:
        """Return the same of one device."""
        return Selection.of_target(self.reports(name), self.target)

    def answer(self, name: str, command: str) -> dict[str, Any]:
        """Return the answer that a command kept.

        Raises:
            StoreError: there is none; says which command keeps one.
        """
        return store.read_answer((self.folder or store.RESULTS) / f"{name}.json", command)
