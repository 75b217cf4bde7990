"""Width of each committed policy's weights beside what quantization costs it: the data of the study."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from bench.report.intervals import Correlation
    from bench.study.experiment import Results
    from policy.bundle import Bundle

ROOT = PROJECT_ROOT
ZOO = ROOT / "zoo"
KEPT = ROOT / "results" / "width-and-error.json"
DEVICE, QUARL_8, QUARL_4 = "device", "quarl-8", "quarl-4"
SOURCES = {
    DEVICE: "int8 artifact in a device's runtime (symmetric, per channel)",
    QUARL_8: "QuaRL's quantizer, 8 bits, weights only (simulated)",
    QUARL_4: "QuaRL's quantizer, 4 bits, weights only (simulated)",
}
SWEPT = {QUARL_8: "8", QUARL_4: "4"}  # widths of a kept sweep of the paper's quantizer
WEIGHTS_ONLY = "weights"  # the sweep's variant: what activations lose is no matter of the weights' width
HARD = "hard"  # of navigation's presets, the one that the case study is judged on
MEASURES = {"range": "range of the weights", "ratio": "range in standard deviations"}


@dataclass(frozen=True)
class Width:
    """How wide a policy's weights are.

    Attributes:
        name, task, method: the bundle and where it comes from.
        weights: how many.
        low, high: smallest and largest.
        deviation: standard deviation over all of them.
    """

    name: str
    task: str
    method: str
    weights: int
    low: float
    high: float
    deviation: float

    @property
    def range(self) -> float:
        """Largest minus smallest."""
        return self.high - self.low

    @property
    def ratio(self) -> float:
        """Range in standard deviations."""
        return self.range / self.deviation

    @classmethod
    def of(cls, bundle: Bundle) -> Width:
        """Width of a bundle's weights."""
        from bench.study.weights.view import all_weights

        weights, origin = all_weights(bundle), bundle.spec.provenance
        ends = float(weights.min()), float(weights.max())
        deviation = float(weights.std(dtype="float64"))
        task, method = str(origin.get("task", "")), str(origin.get("algorithm", ""))
        return cls(bundle.spec.name, task, method, weights.size, *ends, deviation)


@dataclass(frozen=True)
class Error:
    """What quantization costs, in percent of |fp32|'s mean return; ``low`` … ``high`` is its 95 % interval."""

    percent: float
    low: float
    high: float
    episodes: int

    @property
    def is_seen(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0

    @classmethod
    def of(cls, quantized: Sequence[float], fp32: Sequence[float]) -> Error | None:
        """From the returns of the same episodes; None where fp32's mean is 0 or a single episode gives no interval."""
        from bench.report.intervals import Estimate

        found = Estimate.of_relative_error(quantized, fp32)
        if found is None or found.low is None or found.high is None:
            return None
        return cls(found.value + 0.0, found.low + 0.0, found.high + 0.0, len(fp32))


@dataclass(frozen=True)
class Point:
    """One bundle: its width and, by source, its error."""

    width: Width
    errors: Mapping[str, Error]


def measure() -> list[Point]:
    """Width and errors of every committed bundle that has an error, by width; sources of too few errors are left out.

    Raises:
        BenchError: no committed bundle has been judged.
    """
    from bench.report.intervals import FEWEST_PAIRS
    from bench.study import cells
    from bench.study.experiment import stored
    from policy.bundle import Bundle

    by_source = {DEVICE: device_errors(stored(cells.EXPERIMENT)), **study_errors()}
    bundles = {
        (bundle.spec.name, bundle.manifest.files["weights.safetensors"].sha256): bundle
        for bundle in (Bundle.load(manifest.parent) for manifest in sorted(ZOO.glob("**/manifest.json")))
    }
    by_source = {source: found for source, found in by_source.items() if len(found.keys() & bundles) >= FEWEST_PAIRS}
    points = []
    for key, bundle in bundles.items():
        if errors := {source: found[key] for source, found in by_source.items() if key in found}:
            points.append(Point(Width.of(bundle), errors))
    if not points:
        raise command_line.BenchError("no committed bundle was judged yet.", "python -m bench.study cells")
    return sorted(points, key=lambda point: point.width.range)


def device_errors(judged: Results) -> dict[tuple[str, str], Error]:
    """Errors of the int8 artifacts by (bundle, hash of the judged weights)."""
    int8 = {"precision": "int8"}
    found = {
        (record["subject"], record["identity"]): Error.of(
            judged.played("returns", record["subject"], int8), judged.played("returns", record["subject"], {})
        )
        for record in judged.found
        if record["condition"] == int8
    }
    return {key: error for key, error in found.items() if error is not None}


def study_errors(folder: Path | None = None) -> dict[str, dict[tuple[str, str], Error]]:
    """By source, errors of the paper's quantizer by (bundle, hash), from the kept sweeps of weights only."""
    from bench.study.sweep.store import STUDY, read_sweeps
    from policy.quantization import Scheme

    found: dict[str, dict[tuple[str, str], Error]] = {source: {} for source in SWEPT}
    for sweep in read_sweeps(folder or STUDY):
        if sweep.scheme is not Scheme.QUARL or sweep.variant != WEIGHTS_ONLY:
            continue
        preset = HARD if HARD in sweep.presets else sweep.presets[0]
        for source, name in SWEPT.items():
            width = sweep.width(name)
            change = None if width is None else next(c for c in width.changes if c.preset == preset)
            error = None if change is None else change.relative_error
            if error is not None and error.low is not None and error.high is not None:
                episodes = sweep.episodes * len(sweep.seeds)
                found[source][sweep.bundle, sweep.weights_sha256] = Error(error.value, error.low, error.high, episodes)
    return found


def sources(points: Iterable[Point]) -> list[str]:
    """Sources that have an error of some point, in order."""
    return [source for source in SOURCES if any(source in point.errors for point in points)]


def correlations(points: Sequence[Point], source: str) -> dict[str, Correlation]:
    """Rank correlation of each measure of width with the error, but where the points are too few or all alike."""
    from bench.report.intervals import correlate

    having = [point for point in points if source in point.errors]
    errors = [point.errors[source].percent for point in having]
    found = {}
    for name in MEASURES:
        with suppress(ValueError):
            found[name] = correlate([getattr(point.width, name) for point in having], errors)
    return found


def keep(points: Sequence[Point], path: Path) -> None:
    """Store the points, one a line."""
    from policy.files import write_atomically

    lines = ",\n".join(json.dumps(asdict(point), ensure_ascii=False) for point in points)
    write_atomically(path, f'{{"points": [\n{lines}\n]}}\n'.encode())


def read(path: Path) -> list[Point]:
    """What :func:`keep` stored.

    Raises:
        BenchError: it is missing or damaged.
    """
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))["points"]
        return [
            Point(Width(**document["width"]), {source: Error(**each) for source, each in document["errors"].items()})
            for document in documents
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise command_line.BenchError(
            f"{path} cannot be read: {error!r}", "python -m bench.study width --keep"
        ) from None
