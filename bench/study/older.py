"""What the studies qat, wide and actorq, which are no experiments yet, share: documents, outcomes and marks.

Nothing else uses it; it goes when they are declared as experiments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import GREY, STYLES
from bench.report.intervals import Estimate, paired_difference
from bench.report.store import StoreError
from policy.files import write_atomically
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from train.suites.episodes import Decide
    from train.suites.task import Task

__all__ = ["GREY", "STYLES"]
STUDY = PROJECT_ROOT / "results" / "study"


@dataclass(frozen=True)
class Outcome:
    """What a policy reached on one preset.

    Attributes:
        preset: name of the preset, or "" where the task has none.
        episodes: of all seeds together.
        mean_return: undiscounted, with its interval.
        success: share with Wilson's interval; None where the task has no success.
    """

    preset: str
    episodes: int
    mean_return: Estimate
    success: Estimate | None


@dataclass(frozen=True)
class Change:
    """A width minus fp32 on the same episodes of one preset.

    Attributes:
        preset: see :class:`Outcome`.
        mean_return: difference of the returns.
        relative_error: 100 · (fp32 − width) / |fp32| of the mean returns, in percent; None where fp32's mean is 0.
        success: difference of the shares of success (Newcombe's paired interval); None where the task has no success.
    """

    preset: str
    mean_return: Estimate
    relative_error: Estimate | None
    success: Estimate | None


@dataclass(frozen=True)
class Flown:
    """Episodes of one policy on one preset, those of all seeds one after the other.

    Attributes:
        preset: its name.
        returns: (episodes,).
        successes: (episodes,); empty where the task has no success.
    """

    preset: str
    returns: tuple[float, ...]
    successes: tuple[bool, ...]

    def outcome(self) -> Outcome:
        """Means with intervals."""
        from airlearning_envs.flights import wilson_interval

        success = None
        if self.successes:
            wins, n = sum(self.successes), len(self.successes)
            success = Estimate(wins / n, *wilson_interval(wins, n))
        return Outcome(self.preset, len(self.returns), Estimate.of_mean(self.returns), success)

    def change_from(self, reference: Flown) -> Change:
        """This minus the reference, episode by episode."""
        differences = [q - f for q, f in zip(self.returns, reference.returns, strict=True)]
        success = None
        if self.successes:
            pair = paired_difference(self.successes, reference.successes)
            success = Estimate(pair.difference, pair.low, pair.high)
        return Change(
            self.preset,
            Estimate.of_mean(differences),
            Estimate.of_relative_error(self.returns, reference.returns),
            success,
        )


def fly(task: Task, decide: Decide, seeds: Sequence[int], episodes: int) -> list[Flown]:
    """Greedy episodes on every preset that the task is judged on, ``episodes`` of each seed."""
    found = []
    for preset in task.presets:
        results = [task.evaluate(decide, episodes, seed, preset) for seed in seeds]
        returns = tuple(value for result in results for value in result.returns)
        successes = tuple(value for result in results for value in result.successes)
        found.append(Flown(preset, returns, successes))
    return found


def _estimate(values: Mapping[str, Any] | None) -> Estimate | None:
    return None if values is None else Estimate(**values)


def outcome_from(values: Mapping[str, Any]) -> Outcome:
    """An outcome as JSON has it."""
    return Outcome(
        values["preset"], values["episodes"], Estimate(**values["mean_return"]), _estimate(values["success"])
    )


def change_from(values: Mapping[str, Any]) -> Change:
    """A change as JSON has it."""
    estimates = (_estimate(values[name]) for name in ("relative_error", "success"))
    return Change(values["preset"], Estimate(**values["mean_return"]), *estimates)


def dumped(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def rounded(value: Any) -> Any:
    """JSON values with numbers of six significant digits; what is not finite is null."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def document(kind: str, version: int, values: Mapping[str, Any], listed: Iterable[str]) -> str:
    """A JSON document; the members named in ``listed`` have a line for each item. Six significant digits."""
    names, lines = set(listed), []
    for name, value in rounded({"kind": kind, "format_version": version, **values}).items():
        several = name in names and value
        text = "[\n  " + ",\n  ".join(map(dumped, value)) + "\n ]" if several else dumped(value)
        lines.append(f" {dumped(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def values_of(text: str, kind: str, version: int) -> dict[str, Any]:
    """What :func:`document` was given.

    Raises:
        ValueError: it is no document of this kind and version.
    """
    values: dict[str, Any] = json.loads(text)
    found = values.pop("kind"), values.pop("format_version")
    if found != (kind, version):
        raise ValueError(f"it is a {found[0]!r} of version {found[1]!r}, not a {kind!r} of {version}")
    return values


def write_document(path: Path, text: str) -> Path:
    """Write a document in place of the last one; returns its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path


def read_document(path: Path, again: str) -> str:
    """A document's text.

    Raises:
        StoreError: the file cannot be read; ``again`` is what makes it anew.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.\n  next: {again}") from None


def band(axes: Axes, estimate: Estimate | None, colour: str, named: bool) -> None:
    """A policy's mean as a line, its interval as a band across the panel."""
    if estimate is None:
        return
    axes.axhline(estimate.value, color=colour, linewidth=0.9, linestyle="--", zorder=1, label="fp32" if named else None)
    if estimate.low is not None and estimate.high is not None:
        axes.axhspan(estimate.low, estimate.high, color=colour, alpha=0.16, linewidth=0, zorder=0)


def marks(
    axes: Axes,
    points: Sequence[tuple[float, str, Estimate]],
    colour: str,
    marker: str,
    label: str | None,
    linestyle: str,
) -> None:
    """Points of (x, word, estimate) with their intervals, joined by a line."""
    if not points:
        return
    values = [estimate.value for _, _, estimate in points]
    low = [estimate.value - (estimate.value if estimate.low is None else estimate.low) for _, _, estimate in points]
    high = [(estimate.value if estimate.high is None else estimate.high) - estimate.value for _, _, estimate in points]
    axes.errorbar(
        [x for x, _, _ in points],
        values,
        yerr=[low, high],
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.1,
        elinewidth=1.0,
        capsize=2.5,
        linestyle=linestyle,
        label=label,
        zorder=3,
    )
