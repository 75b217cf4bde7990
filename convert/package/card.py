"""A bundle's model card: README.md as hubs read it, made from nothing but what the bundle says of itself."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from quarl.convert.importers.words import describe_squash, network_words
from quarl.convert.package.actions import action_bounds
from quarl.policy.reading import Manifest
from quarl.policy.spec import ContinuousHead, DiscreteHead, Normaliser, PolicySpec
from quarl.train.intervals import brackets, read_return_interval

CARD_FILE, TEMPLATE = "README.md", "card.md.jinja"
CURVE_FILE = "learning_curve.png"
NONE = "–"
NO_ENVIRONMENT = "foreign"
"""The environment's id of an imported policy without a task."""
MOST_NAMES = 64
"""Most names of actions, or of a field's elements, in a card, which is read by people: policy.json has all."""
_MARKS = re.compile(r"([\\`*\[\]<>|])")


def card(spec: PolicySpec, manifest: Manifest, parameters: int, vectors: int, folder: str) -> str:
    """Return the text of a model card, Markdown behind YAML front matter.

    Args:
        spec: the policy's.
        manifest: the bundle's as it is packed; only its artifacts are described.
        parameters: weights and biases of the policy.
        vectors: golden observations.
        folder: the name that the folder has in the commands.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    entries = [entry for _, entry in sorted(manifest.artifacts.items())]
    precisions = list(dict.fromkeys(entry.precision for entry in entries))
    precisions.sort(key=lambda each: each.bits)
    head = spec.head
    return environment.get_template(TEMPLATE).render(
        spec=spec,
        formats=sorted({entry.format.value for entry in entries}),
        quantized=any(precision.is_integer for precision in precisions),
        made=describe_origin(spec),
        environment="" if spec.environment.id == NO_ENVIRONMENT else spec.environment.id,
        actions=spec.head.describe(),
        origin=origin_rows(spec.provenance),
        has_settings=isinstance(spec.provenance.get("settings"), Mapping),
        normaliser=normaliser_words(spec.normaliser),
        fields=list(field_rows(spec)),
        most=MOST_NAMES,
        squashed=describe_squash(head) if isinstance(head, ContinuousHead) else "",
        bounds=action_bounds(head),
        network=network_words(spec),
        parameters=parameters,
        fallback=fallback_words(spec),
        artifacts=entries,
        vectors=vectors,
        schemes=list(
            dict.fromkeys(f"{e.precision.value} {e.format.value}: {e.scheme}; {e.execution}" for e in entries)
        ),
        warnings=list(dict.fromkeys(f"{e.precision.value}: {warning}" for e in entries for warning in e.warnings)),
        results=list(result_rows(spec.provenance)),
        curve=CURVE_FILE if CURVE_FILE in manifest.files else "",
        folder=folder,
        typed=shlex.quote(f"./{folder}"),
        bits=[precision.bits_argument for precision in precisions],
        precisions=[precision.value for precision in precisions],
        flies="task" in spec.provenance,
    )


def plain(value: object) -> str:
    """Text for a cell of a table: one line, in which nothing is Markdown or HTML."""
    return _MARKS.sub(r"\\\1", " ".join(str(value).split()))


def describe_origin(spec: PolicySpec) -> str:
    """``trained by ppo in 8,003,584 steps``, or ``imported from Stable-Baselines3 2.9.2 PPO``."""
    origin = spec.provenance
    if spec.is_imported:
        return str(origin["how"])
    if "algorithm" not in origin:
        return "of unknown origin"
    steps = f" in {number(origin['steps'])} steps" if "steps" in origin else ""
    return f"trained by {origin['algorithm']}{steps}"


def origin_rows(origin: Mapping[str, Any]) -> dict[str, str]:
    """Who made it how, as far as its provenance says: label and words."""
    versions = origin.get("versions")
    rows = {
        "task": origin.get("task"),
        "how": origin.get("how"),
        "algorithm": origin.get("algorithm"),
        "steps of the environment": origin.get("steps"),
        "seed": origin.get("seed"),
        "ended": origin.get("ended"),
        "CPU seconds": origin.get("cpu_s"),
        "SHA-256 of the file": origin.get("file_sha256"),
        "made with": ", ".join(f"{name} {value}" for name, value in versions.items())
        if isinstance(versions, Mapping)
        else None,
    }
    return {name: number(value) for name, value in rows.items() if value not in (None, "")} or {"how": "not known"}


def normaliser_words(normaliser: Normaliser) -> str:
    """``z = (x − mean) / scale, cut at -5 … 5``."""
    words = "z = (x − mean) / scale"
    if normaliser.low:
        return f"{words}, cut at bounds of its own (`policy.json`)"
    return words if normaliser.clip == math.inf else f"{words}, cut at -{normaliser.clip:g} … {normaliser.clip:g}"


def field_rows(spec: PolicySpec) -> Iterator[dict[str, str]]:
    """Yield a row for each field of the observation; mean and scale are the least and the largest of its elements'."""
    start = 0
    for field in spec.observation:
        places = slice(start, start + field.size)
        alike = len(spec.normaliser.mean) == 1
        mean, scale = (values if alike else values[places] for values in (spec.normaliser.mean, spec.normaliser.scale))
        yield {
            "place": str(start) if field.size == 1 else f"{start} … {start + field.size - 1}",
            "name": field.name,
            "shape": " × ".join(map(str, field.shape)) or "1",
            "unit": field.unit,
            "elements": few(field.element_names) or NONE,
            "mean": span(mean),
            "scale": span(scale),
        }
        start += field.size


def fallback_words(spec: PolicySpec) -> str:
    """Return the action to take where none can be computed."""
    if not spec.fallback:
        return "not said"
    if isinstance(spec.head, DiscreteHead):
        return spec.head.action_names[int(spec.fallback[0]) - spec.head.start]
    return few([f"{value:.6g}" for value in spec.fallback])


def result_rows(origin: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Rows of the policy's evaluations; if it never was evaluated, of what its training ended with."""
    evaluations = origin.get("judged") or []
    for evaluation in evaluations:
        interval, share, ends = (
            read_return_interval(evaluation),
            evaluation.get("success"),
            evaluation.get("interval_95"),
        )
        success = NONE if share is None else f"{100 * share:.1f} %"
        if share is not None and ends:
            success += f" {brackets((100 * ends[0], 100 * ends[1]), '.1f')}"
        yield {
            "task": evaluation.get("preset") or str(origin.get("task", NONE)),
            "episodes": number(evaluation.get("episodes")),
            "mean": f"{number(evaluation.get('mean_return'))} {brackets(interval, '.4g')}",
            "success": success,
        }
    training = origin.get("training")
    if not evaluations and isinstance(training, Mapping):
        for name, value in training.items():
            if name.startswith("greedy_return"):
                task = name.removeprefix("greedy_return").strip("_") or str(origin.get("task", NONE))
                yield {"task": task, "episodes": "a few, in training", "mean": number(value), "success": NONE}


def number(value: object) -> str:
    """Return a number of the provenance with four significant digits, integers whole; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NONE if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def span(values: Sequence[float]) -> str:
    """Return the least and the largest of some numbers; of none, as of a state that no normaliser touches, a dash."""
    if not values:
        return NONE
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} … {high}"


def few(names: Sequence[str]) -> str:
    """At most MOST_NAMES of the names, by commas."""
    return ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
