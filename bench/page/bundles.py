"""A page for each committed bundle: where it comes from, how it learned, and what every section says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quarl.bench.report.pivot import Pivot

from quarl.bench.page.pictures import Picture
from quarl.bench.page.sections import Section
from quarl.bench.tables import Table
from quarl.train.intervals import judged_interval

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle

CURVE_INCHES = (6.4, 3.0)
INDEX = Pivot(
    name="bundles",
    words="""\
The committed policies
Weights: all numbers that are learned. Return in training: of few greedy episodes, as it ended, with the preset where \
the task has several.
""",
    lead={
        "policy": "{{ spec.name }}",
        "task": "{{ origin.get('task', '–') }}",
        "algorithm": "{{ origin.get('algorithm', '–') }}",
        "network": "{{ network.convolutions | length ~ ' conv, ' if network.convolutions }}"
        "{{ network.hidden | join(' × ') or 'linear' }}{{ ', layer norm' if network.layer_norm }}",
    },
    columns=[
        {"weights": "{{ parameters | thousands }}", "environment steps": "{{ origin.get('steps') | figure }}"},
        {
            "return in training": "{% for preset, value in returns.items() %}{{ ', ' if not loop.first }}"
            "{{ preset ~ ' ' if preset }}{{ value | figure }}{% endfor %}"
        },
    ],
    rows=lambda bundles: map(names, bundles),
    gathered=False,
)


@dataclass(frozen=True)
class Page:
    """What is known of a bundle.

    Attributes:
        anchor: unique in the report.
        known: what is known of the bundle: see :func:`names`.
        row: the bundle's in the index, by header.
        curve: how it learned; None: nothing is stored of that.
        pictures: of this bundle alone, by name.
        tables: the rows of each section that are about it.
    """

    anchor: str
    known: Mapping[str, Any]
    row: Mapping[str, str]
    curve: Picture | None
    pictures: Mapping[str, Picture]
    tables: Sequence[tuple[Section, Sequence[Table]]]


def page(bundle: Bundle, anchor: str, sections: Sequence[Section]) -> Page:
    """A bundle's page, with the pictures and the rows of these sections that are about it."""
    name, index = bundle.spec.name, INDEX.table([bundle])
    tables = [(each, about) for each in sections if (about := tables_about([*each.own.values(), *each.tables], name))]
    pictures = {stem: picture for each in sections for stem, picture in each.pictures.get(name, {}).items()}
    row = dict(zip(index.headers, index.rows[0], strict=True))
    return Page(anchor, names(bundle), row, curve(bundle), pictures, tables)


def names(bundle: Bundle) -> dict[str, Any]:
    """What the index and the template of a page name.

    The returns by preset are the greedy ones that training ended with; where its last step was not judged, of the kept
    policy.
    """
    spec, origin = bundle.spec, bundle.spec.provenance
    training, returns = origin.get("training"), {}
    if isinstance(training, dict):
        found = {name: value for name, value in training.items() if "greedy_return" in name}
        returns = {name.removeprefix("greedy_return").strip("_"): value for name, value in found.items()}
        if not returns and (best := origin.get("best_evaluation", training.get("return"))) is not None:
            returns = {"": best}
    return {
        "spec": spec,
        "origin": origin,
        "network": spec.network,
        "returns": returns,
        "judged": [{"preset": "", **each, "ends": judged_interval(each)} for each in origin.get("judged") or []],
        "activations": [each.value for each in spec.network.activations or (spec.network.activation,)],
        "parameters": sum(array.size for array in bundle.weights().values()),
        "weights": bundle.manifest.files["weights.safetensors"],
    }


def tables_about(tables: Sequence[Table], name: str) -> list[Table]:
    """The rows of each table whose leading cells name a bundle, or go on with the row above; without notes."""
    found = []
    for table in tables:
        rows, going_on = [], False
        for row in filter(None, table.rows):
            words = [cell.partition(",")[0] for cell in row[: table.left]]
            going_on = name in words or "-".join(words[-2:]) == name or (going_on and not row[0])
            rows += [row] if going_on else []
        found += [replace(table, rows=tuple(rows), notes=())] if rows else []
    return found


def curve(bundle: Bundle) -> Picture | None:
    """The returns while the policy learned."""
    from matplotlib.figure import Figure

    from quarl.bench.report.figures import STYLES
    from quarl.train.runs.logs import CURVE_FILE, column, read_rows

    path = bundle.path / CURVE_FILE
    rows = read_rows(path.read_text(encoding="utf-8")) if path.exists() else []
    if not rows:
        return None
    figure = Figure(figsize=CURVE_INCHES, layout="constrained")
    axes = figure.subplots()
    greedy = next((word for word in rows[0] if word.startswith("greedy_return")), None)
    for (colour, marker), word, label in zip(STYLES, ("return", greedy), ("in training", "greedy"), strict=False):
        if word is not None:
            axes.plot(*column(rows, word), color=colour, marker=marker * (word == greedy), markersize=4, label=label)
    axes.set_xlabel("environment steps", fontsize=8)
    axes.set_ylabel("return of an episode", fontsize=8)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7.5)
    return Picture.of(figure)
