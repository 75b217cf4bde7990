"""What was measured of one part's width apart from the others': results/study/apart-BUNDLE.json, read and written.

A part is the kernels (``weights``), the hidden layers' outputs (``hidden``) or the normalised observation (``input``).
What follows from the numbers alone is here too: the fewest bits that keep an error, and which part costs most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.layers.episodes import is_above, is_within
from bench.study.sweep.store import STUDY, document, read_document, values_of, write_document

KIND, FORMAT_VERSION = "precision-apart", 1
AGAIN = "python -m bench.study apart --keep"
PARTS = ("weights", "hidden", "input")
OTHERS_BITS = 8  # of the two parts that are not swept
LIMITS = (5.0, 2.0)  # percent of fp32's return
MARGIN = 1.0  # likewise: where all is lost, or nothing, paired intervals tell differences apart that mean nothing


@dataclass(frozen=True)
class Point:
    """One part at one width, the other two at 8 bits.

    Attributes:
        part: one of :data:`PARTS`.
        bits: of it.
        mean_return: over all episodes.
        relative_error: 100 · (fp32 − quantized) / |fp32|, paired, in percent.
        actions_differ: share of the bundle's golden observations on which the action is not fp32's.
    """

    part: str
    bits: int
    mean_return: Estimate
    relative_error: Estimate
    actions_differ: float


@dataclass(frozen=True)
class Contrast:
    """How much more ``part`` costs than ``other`` when each has ``bits`` bits, in percent of |fp32|, paired."""

    bits: int
    part: str
    other: str
    more: Estimate


@dataclass(frozen=True)
class Apart:
    """One bundle's three sweeps.

    Attributes:
        bundle, task, algorithm, weights_sha256: what was asked.
        preset: that was flown; "" where the task has none.
        seeds, episodes: of each seed.
        observations: golden observations that the share of different actions is counted on.
        reference: fp32's mean return.
        points: by part, from 8 bits down; at 8 bits all three are one and the same policy.
        contrasts: every pair of parts at every width below 8.
        seconds, cpu_seconds, machine, code, date: how it was measured.
    """

    bundle: str
    task: str
    algorithm: str
    weights_sha256: str
    preset: str
    seeds: tuple[int, ...]
    episodes: int
    observations: int
    reference: Estimate
    points: tuple[Point, ...]
    contrasts: tuple[Contrast, ...]
    seconds: float
    cpu_seconds: float
    machine: str
    code: str
    date: str

    @property
    def widths(self) -> list[int]:
        """All that were measured, from many to few."""
        return sorted({point.bits for point in self.points}, reverse=True)

    @property
    def all_episodes(self) -> int:
        """Of all seeds together."""
        return self.episodes * len(self.seeds)

    def point(self, part: str, bits: int) -> Point | None:
        """That point, or None."""
        return next((p for p in self.points if (p.part, p.bits) == (part, bits)), None)

    def of_part(self, part: str) -> list[Point]:
        """A part's points, from many bits to few."""
        return sorted((point for point in self.points if point.part == part), key=lambda point: -point.bits)

    def to_json(self) -> str:
        """A JSON document with one line for each point and contrast; numbers to six significant digits."""
        return document(KIND, FORMAT_VERSION, dataclasses.asdict(self), ("points", "contrasts"))

    @classmethod
    def from_json(cls, text: str, where: Path) -> Apart:
        """Read what :meth:`to_json` wrote.

        Raises:
            StoreError: it is no such document of this version.
        """
        try:
            values = values_of(text, KIND, FORMAT_VERSION)
            values["seeds"] = tuple(values["seeds"])
            values["reference"] = Estimate(**values["reference"])
            values["points"] = tuple(map(_point, values["points"]))
            values["contrasts"] = tuple(map(_contrast, values["contrasts"]))
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where} is no stored answer of this kind: {error}.\n  next: {AGAIN}") from error


def _point(values: Mapping[str, Any]) -> Point:
    estimates = {name: Estimate(**values[name]) for name in ("mean_return", "relative_error")}
    return Point(**{**values, **estimates})


def _contrast(values: Mapping[str, Any]) -> Contrast:
    return Contrast(**{**values, "more": Estimate(**values["more"])})


def file_of(bundle: str, folder: Path | None = None) -> Path:
    """Where a bundle's answer is kept."""
    return (folder or STUDY) / f"apart-{bundle}.json"


def write(apart: Apart, folder: Path | None = None) -> Path:
    """Keep an answer in place of the bundle's last one; returns the file."""
    path = file_of(apart.bundle, folder)
    return write_document(path, apart.to_json())


def read_one(path: Path) -> Apart:
    """One answer.

    Raises:
        StoreError: the file is missing or no answer of this kind.
    """
    return Apart.from_json(read_document(path, AGAIN), path)


def read(folder: Path | None = None) -> list[Apart]:
    """All answers that are kept, by file name.

    Raises:
        StoreError: names the file that is none.
    """
    return [read_one(path) for path in sorted((folder or STUDY).glob("apart-*.json"))]


# --- what follows from the numbers -----------------------------------------------------------------------------------


def fewest_bits(points: Iterable[Point], limit: float) -> int | None:
    """The fewest bits at which, and at all larger measured widths, the error's whole interval is within the limit.

    None where it is not even at the largest width: the loss is larger, or the episodes are too few to tell.
    """
    fewest = None
    for point in sorted(points, key=lambda point: -point.bits):
        if not is_within(point.relative_error, limit):
            break
        fewest = point.bits
    return fewest


def costliest(apart: Apart, bits: int) -> str | None:
    """The part that costs over 1 % more than either other one at a width, by the whole intervals; None if undecided."""
    for part in PARTS:
        more = [is_above(c.more, MARGIN) if c.part == part else _is_below(c) for c in apart.contrasts
                if c.bits == bits and part in (c.part, c.other)]  # fmt: skip
        if more and all(more):
            return part
    return None


def _is_below(contrast: Contrast) -> bool:
    return contrast.more.high is not None and contrast.more.high < -MARGIN


def first_loss(apart: Apart, limit: float = LIMITS[0]) -> tuple[int, tuple[str, ...]] | None:
    """Going down from 8 bits: the first width at which a part surely costs more than the limit, and the parts that do.

    None where none ever does.
    """
    for bits in apart.widths:
        if parts := tuple(p.part for p in apart.points if p.bits == bits and is_above(p.relative_error, limit)):
            return bits, parts
    return None
