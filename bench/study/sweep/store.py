"""What the quantization study measured: results/study/, one small JSON document for each sweep, read and written here.

A sweep is one bundle quantized after training by one scheme to several widths, each flying the same episodes as fp32.
Tables, pictures, the recommender and the report read :class:`Sweep`; raw episodes are not kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring.execution import Execution
from bench.report.intervals import Estimate
from bench.report.store import StoreError
from policy.files import write_atomically
from policy.locate import PROJECT_ROOT
from policy.quantization import Scheme
from policy.spec_parts import parse_enum

STUDY = PROJECT_ROOT / "results" / "study"
FORMAT_VERSION = 1


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
class Width:
    """One width of a sweep.

    Attributes:
        name: ``2`` … ``32``, or ``fp16``.
        weight_bits: of the kernels.
        activation_bits: of the hidden layers' outputs; None for float.
        input_bits: of the normalised observation; None for float.
        actions_differ: share of the bundle's golden observations on which the action is not fp32's; of a continuous
            action, any element of it by more than a hundredth of its range.
        execution: how a device executes it.
        outcomes: one for each preset.
        changes: likewise.
    """

    name: str
    weight_bits: int
    activation_bits: int | None
    input_bits: int | None
    actions_differ: float
    execution: Execution
    outcomes: tuple[Outcome, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Sweep:
    """One bundle quantized by one scheme to several widths.

    Attributes:
        bundle: its folder's name.
        task, algorithm: as its provenance says.
        weights_sha256: of the weights that were quantized: the sweep of another training is stale.
        scheme: of all widths other than ``fp16``.
        variant: "" for the scheme's own activation widths, else what was asked for instead: ``weights`` (weights only),
            ``a4`` (activations of 4 bits), ``i8`` (observation of 8 bits), joined by ``-``.
        seeds: of the episodes.
        episodes: of each seed.
        observations: golden observations that the share of different actions is counted on.
        seconds: that the sweep took, wall time; ``cpu_seconds`` of it were computing (a busy machine makes it wait).
        machine, code, date: where, with which code, when.
        reference: fp32's outcomes, one for each preset.
        widths: in the order asked for.
        trained_bits: width that the policy was trained for with quantizers; None for a float training.
    """

    bundle: str
    task: str
    algorithm: str
    weights_sha256: str
    scheme: Scheme
    variant: str
    seeds: tuple[int, ...]
    episodes: int
    observations: int
    seconds: float
    cpu_seconds: float
    machine: str
    code: str
    date: str
    reference: tuple[Outcome, ...]
    widths: tuple[Width, ...]
    trained_bits: int | None = None

    @property
    def presets(self) -> tuple[str, ...]:
        """Those that were flown, in the task's order."""
        return tuple(outcome.preset for outcome in self.reference)

    @property
    def file_name(self) -> str:
        """``sweep-cartpole-dqn-quarl.json``, ``sweep-II-quarl-weights.json``."""
        return "-".join(word for word in ("sweep", self.bundle, self.scheme.value, self.variant) if word) + ".json"

    def width(self, name: str) -> Width | None:
        """The width of that name, or None."""
        return next((width for width in self.widths if width.name == name), None)

    def to_json(self) -> str:
        """A JSON document with one line for each width; numbers to six significant digits."""
        values = {"kind": "sweep", "format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        values["scheme"] = self.scheme.value
        lines = []
        for name, value in rounded(values).items():
            if name == "widths":
                lines.append(' "widths": [\n  ' + ",\n  ".join(map(dumped, value)) + "\n ]")
            else:
                lines.append(f" {dumped(name)}: {dumped(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, where: Path) -> Sweep:
        """Read what :meth:`to_json` wrote.

        Raises:
            StoreError: it is no sweep of this version.
        """
        try:
            values = json.loads(text)
            kind, version = values.pop("kind"), values.pop("format_version")
            if (kind, version) != ("sweep", FORMAT_VERSION):
                raise ValueError(f"it is a {kind!r} of version {version!r}, not a 'sweep' of {FORMAT_VERSION}")
            values["scheme"] = parse_enum(Scheme, values["scheme"], "scheme")
            values["seeds"] = tuple(values["seeds"])
            values["reference"] = tuple(outcome_from(item) for item in values["reference"])
            values["widths"] = tuple(_width(item) for item in values["widths"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{where} is no stored sweep: {error}.\n  next: python -m bench.study sweep BUNDLE --keep"
            ) from error


def write_sweep(sweep: Sweep, folder: Path = STUDY) -> Path:
    """Keep a sweep in place of the last one of its bundle, scheme and variant; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / sweep.file_name
    write_atomically(path, sweep.to_json().encode())
    return path


def read_sweeps(folder: Path = STUDY) -> list[Sweep]:
    """All sweeps that are kept, by file name; an empty list where there are none.

    Raises:
        StoreError: names the file that is none.
    """
    return [read_sweep(path) for path in sorted(folder.glob("sweep-*.json"))]


def read_sweep(path: Path) -> Sweep:
    """One sweep.

    Raises:
        StoreError: the file is missing or no sweep.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist.\n  next: python -m bench.study sweep BUNDLE --keep") from None
    return Sweep.from_json(text, path)


def of_bundle(sweeps: Iterable[Sweep], bundle: str) -> list[Sweep]:
    """Those of one bundle."""
    return [sweep for sweep in sweeps if sweep.bundle == bundle]


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


def _width(values: Mapping[str, Any]) -> Width:
    return Width(
        **{
            **values,
            "execution": Execution(**values["execution"]),
            "outcomes": tuple(outcome_from(item) for item in values["outcomes"]),
            "changes": tuple(change_from(item) for item in values["changes"]),
        }
    )


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


# --- what the answers of single bundles share (layers/store.py, apart/store.py) ---------------------------------


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
