"""The table of training speed: medians over seeds, ours beside Stable-Baselines3, from the stored answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.report.tables import Table

OURS, SB3 = "ours", "stable-baselines3"


@dataclass(frozen=True)
class Outcome:
    """One training.

    Attributes:
        seed: of the training.
        reached: whether the goal was reached within the steps that its settings allow.
        steps: environment steps made.
        mean_return: of the last judgement.
        cpu_s: processor time of the process from its start to the end of training, judging left out, s.
        import_cpu_s: the part of it before the first step: loading the libraries, s.
        judging_cpu_s: what was left out, s.
    """

    seed: int
    reached: bool
    steps: int
    mean_return: float
    cpu_s: float
    import_cpu_s: float
    judging_cpu_s: float

    @property
    def training_cpu_s(self) -> float:
        """From the end of the imports on; whatever is compiled is in it."""
        return self.cpu_s - self.import_cpu_s


def median_time(outcomes: Sequence[Outcome], training_only: bool = False) -> tuple[float, bool]:
    """The median CPU time, s, and whether it was reached: a run that did not reach the goal counts as the longest.

    Where the median run did not reach the goal, the time is a lower bound: the longest time that one took.
    """
    times = [outcome.training_cpu_s if training_only else outcome.cpu_s for outcome in outcomes]
    reached = sorted(time for time, outcome in zip(times, outcomes, strict=True) if outcome.reached)
    middle = (len(outcomes) - 1) // 2  # of an even number the lower one
    return (reached[middle], True) if middle < len(reached) else (max(times), False)


def ratio(ours: tuple[float, bool], theirs: tuple[float, bool]) -> str:
    """How many times as fast ours is: ``"8.1×"``, with ``>`` where theirs did not reach, ``"–"`` where ours did not."""
    from bench.report.text import NOT_KNOWN, three_digits

    if not ours[1]:
        return NOT_KNOWN
    return f"{'' if theirs[1] else '> '}{three_digits(theirs[0] / ours[0])}×"


def kept_file() -> Path:
    """Where --keep stores the answer."""
    from bench.report import store

    return store.RESULTS / "training-speed.json"


def kept_table() -> Table:
    """The table of the stored answer.

    Raises:
        StoreError: nothing is stored, or it cannot be read.
    """
    from bench.report import store

    path = kept_file()
    again = "python -m bench.study speed --keep"
    if not path.exists():
        raise store.StoreError(f"{path} does not exist: nothing was measured yet.\n  next: {again}")
    try:
        return table(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise store.StoreError(f"{path} is damaged ({error!r}).\n  next: {again}") from None


def table(document: Mapping[str, Any]) -> Table:
    """The answer as it was stored."""
    from bench.report.tables import Table
    from bench.report.text import NOT_KNOWN, three_digits

    def shown(time: tuple[float, bool]) -> str:
        return f"{'' if time[1] else '> '}{three_digits(time[0])}"

    rows = []
    for found in document["cells"]:
        sides = {name: [Outcome(**run) for run in runs] for name, runs in found["runs"].items()}
        cells = [f"{found['method']} {found['task']}", f"{found['target']:g}".replace("-", "−")]
        for training_only in (False, True):
            times = {name: median_time(outcomes, training_only) for name, outcomes in sides.items()}
            theirs = times.get(SB3)
            cells += [shown(times[OURS]), shown(theirs) if theirs else NOT_KNOWN]
            cells.append(ratio(times[OURS], theirs) if theirs else NOT_KNOWN)
        for name in (OURS, SB3):
            steps = [f"{outcome.steps:,}" for outcome in sorted(sides.get(name, []), key=lambda o: o.steps)]
            cells.append(steps[(len(steps) - 1) // 2] if steps else NOT_KNOWN)
        rows.append(tuple(cells))
    return Table(
        name="training-speed",
        title="CPU seconds until the greedy policy reaches a return",
        headers=(
            "method and task",
            "return",
            "ours",
            "SB3",
            "times as fast",
            "ours, imports left out",
            "SB3, imports left out",
            "times as fast, imports left out",
            "steps, ours",
            "steps, SB3",
        ),
        rows=tuple(rows),
        notes=notes(document),
        left=1,
    )


def notes(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What was measured, how, with which versions and on which machine."""
    runs = [run for found in document["cells"] for outcomes in found["runs"].values() for run in outcomes]
    used = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
    every = ", ".join(f"{found['method']} {found['task']} {found['every']:,}" for found in document["cells"])
    versions = "; ".join(
        f"{side}: {', '.join(f'{name} {number}' for name, number in found.items())}"
        for side, found in document["versions"].items()
    )
    busy = f", load average {document['load']:g} while it ran" if document.get("load") else ""
    return (
        f"Medians of the seeds {used}, which chose no setting; one core, one thread, both in turn. Processor time of "
        "the process from its start (imports left out: from their end on) until the mean return of "
        f"{document['episodes']} fresh greedy episodes reaches the goal; the judging itself is left out on both sides. "
        "> where the median run did not reach it within its steps.",
        "What differs beside the programs: our settings were tuned for this measure (on other seeds), SB3's are those "
        "that its zoo publishes, with its network sizes and a DDPG that learns nothing before 10,000 steps; our "
        "classic tasks are array environments, tested step by step against Gymnasium's, in which SB3 trains.",
        f"Steps between two judgements: {every}. Settings: {document['settings'][OURS]}; SB3: "
        f"{document['settings'].get(SB3, '')}",
        f"Measured on {document['machine']}{busy}; {document['time'][:10]}; code {document['code']}. {versions}.",
    )
