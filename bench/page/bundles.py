"""A page for each committed bundle: where it comes from, how it learned, and what every section says about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.page.parts import Anchors, Block, Facts, Folded, Part, Picture, Section, Words, flat
from bench.page.sections import bundle_of
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, figure_words, kilobytes
from train.intervals import judged_interval

if TYPE_CHECKING:
    from bench.page.sources import Sources
    from policy.bundle import Bundle
    from policy.spec import ObservationField, PolicySpec

CURVE_INCHES = (6.4, 3.0)


def index_table(sources: Sources) -> Table:
    """All bundles, a row each."""
    rows = [
        {
            "policy": name,
            "task": str(bundle.spec.provenance.get("task", NOT_KNOWN)),
            "algorithm": str(bundle.spec.provenance.get("algorithm", NOT_KNOWN)),
            "network": network_words(bundle.spec),
            "weights": f"{parameters(bundle):,}",
            "environment steps": figure_words(bundle.spec.provenance.get("steps")),
            "return in training": training_return(bundle.spec.provenance),
        }
        for name, bundle in sources.bundles.items()
    ]
    notes = (
        "Weights: all numbers that are learned. Return in training: of few greedy episodes, as it ended, with the "
        "preset where the task has several.",
    )
    return Table.of("bundles", "The committed policies", rows, notes, left=4)


def page(sources: Sources, bundle: Bundle, anchors: Anchors, others: Sequence[Section]) -> Section:
    """A bundle's page; ``others`` are the report's sections, whose rows about the bundle it repeats."""
    name = bundle.spec.name
    blocks: list[Block] = [Part("Where it comes from", tuple(origin_blocks(sources, bundle)))]
    blocks += [Part("How it learned", found) for found in [tuple(curve_blocks(bundle))] if found]
    pictures = {stem: each for stem, each in sources.pictures.items() if bundle_of(stem, sources) == name}
    if pictures:
        shown = (Picture.of(each, f"{stem}.", f"{stem}; the numbers are in tables.") for stem, each in pictures.items())
        blocks.append(Part("Pictures", tuple(shown)))
    for section in others:
        tables = [each for each in flat(section.blocks) if isinstance(each, Table)]
        if mine := [table for each in tables if (table := rows_about(each, name)) is not None]:
            how = Words("All policies, and how it was measured:", link=(section.title, section.anchor))
            blocks.append(Part(section.title, (*mine, how)))
    return Section(anchors.new(f"policy {name}"), name, tuple(blocks))


def rows_about(table: Table, name: str) -> Table | None:
    """The rows of a table whose leading cells name a bundle, or go on with the row above; None where there are none."""
    found, going_on = [], False
    for row in filter(None, table.rows):
        words = [cell.partition(",")[0] for cell in row[: table.left]]
        going_on = name in words or "-".join(words[-2:]) == name or (going_on and not row[0])
        if going_on:
            found.append(row)
    return Table(f"{table.name}-{name}", table.title, table.headers, tuple(found), (), table.left) if found else None


def curve_blocks(bundle: Bundle) -> Iterator[Block]:
    """Blocks with the returns while the policy learned."""
    from matplotlib.figure import Figure

    from bench.report.figures import STYLES
    from train.runs.logs import CURVE_FILE, column, read_rows

    path = bundle.path / CURVE_FILE
    rows = read_rows(path.read_text(encoding="utf-8")) if path.exists() else []
    if not rows:
        return
    figure = Figure(figsize=CURVE_INCHES, layout="constrained")
    axes = figure.subplots()
    greedy = next((word for word in rows[0] if word.startswith("greedy_return")), None)
    for (colour, marker), word, label in zip(STYLES, ("return", greedy), ("in training", "greedy"), strict=False):
        if word is not None:
            axes.plot(*column(rows, word), color=colour, marker=marker * (word == greedy), markersize=4, label=label)
    axes.set_xlabel("environment steps", fontsize=8)
    axes.set_ylabel("return of an episode", fontsize=8)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7.5)
    title = f"Learning curve of {bundle.spec.name}."
    yield Picture.of(figure, title, f"{title} Return against environment steps, in training and greedily.")


def origin_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Blocks with provenance and network."""
    spec, origin = bundle.spec, bundle.spec.provenance
    rows = {
        "task": f"{origin.get('task', NOT_KNOWN)} ({spec.environment.id})",
        "algorithm": str(origin.get("algorithm", NOT_KNOWN)),
        "how": str(origin.get("how", "")),
        "environment steps": figure_words(origin.get("steps")),
        "seed": figure_words(origin.get("seed")),
        "CPU seconds": figure_words(origin.get("cpu_s")),
        "return in training": training_return(origin),
        "judged after training": judgement_text(origin),
        "trained with quantizers": "no, in floats" if spec.quantization is None else f"{spec.quantization.bits} bits",
        "network": f"{network_words(spec)}, {activation_words(spec)}; {parameters(bundle):,} weights and biases",
        "observation": "; ".join(map(field_words, spec.observation)),
        "action": action_words(spec),
        "a decision every": f"{1000 * spec.control_period_s:.4g} ms",
        "float weights": f"{kilobytes(bundle.manifest.files['weights.safetensors'].size)} KB, SHA-256 "
        f"{bundle.manifest.files['weights.safetensors'].sha256[:16]}…",
        "made with": ", ".join(f"{name} {version}" for name, version in dict(origin.get("versions", {})).items()),
    }
    yield Facts(tuple((name, words) for name, words in rows.items() if words))
    settings = origin.get("settings")
    if isinstance(settings, dict):
        blocks: list[Block] = [Facts(tuple((str(name), str(value)) for name, value in settings.items()))]
        if source := origin.get("settings_source"):
            blocks.append(Words(str(source)))
        yield Folded("Settings of the training", tuple(blocks))


def network_words(spec: PolicySpec) -> str:
    """``64 × 64``, ``3 conv, 512``, ``256 × 256, layer norm``."""
    parts = [f"{len(spec.network.convolutions)} conv"] if spec.network.convolutions else []
    parts.append(" × ".join(str(width) for width in spec.network.hidden) or "linear")
    return ", ".join([*parts, "layer norm"] if spec.network.layer_norm else parts)


def activation_words(spec: PolicySpec) -> str:
    """The activations that follow a layer: ``relu``, ``elu, relu``."""
    return ", ".join(dict.fromkeys(kind.value for kind in spec.network.activations or (spec.network.activation,)))


def parameters(bundle: Bundle) -> int:
    """How many numbers it learned."""
    return sum(array.size for array in bundle.weights().values())


def field_words(field: ObservationField) -> str:
    """A field in words: ``ranges [24] in m``."""
    shape = " × ".join(map(str, field.shape))
    return f"{field.name} [{shape}]" + ("" if field.unit in ("", "1") else f" in {field.unit}")


def action_words(spec: PolicySpec) -> str:
    """The action in words: ``one of 25``, or how many numbers and their bounds."""
    from policy.spec import DiscreteHead

    head = spec.head
    if isinstance(head, DiscreteHead):
        return f"one of {head.size}: {', '.join(head.action_names)}"
    bounds = ", ".join(dict.fromkeys(f"{low:g} … {high:g}" for low, high in zip(head.low, head.high, strict=True)))
    return f"{head.size} number{'s' * (head.size > 1)} in {bounds.replace('-', '−')}, {head.squash.value}"


def training_return(origin: Mapping[str, Any]) -> str:
    """The greedy returns that training ended with (of the kept policy, where its last step was not judged), with their
    presets: ``hard 5.28, shipped 6.06``."""
    training = origin.get("training")
    if not isinstance(training, dict):
        return NOT_KNOWN
    found = {
        name.removeprefix("greedy_return").strip("_"): v for name, v in training.items() if "greedy_return" in name
    }
    if not found and (best := origin.get("best_evaluation", training.get("return"))) is not None:
        found = {"": best}
    return ", ".join(f"{name} {figure_words(value)}".strip() for name, value in found.items()) or NOT_KNOWN


def judgement_text(origin: Mapping[str, Any]) -> str:
    """Results of the judgements, in words: ``hard: 5.27, success 91.3 % [90.2, 92.2] (3,000 episodes)``."""
    source = []
    for each in origin.get("judged") or []:
        words = figure_words(each.get("mean_return"))
        if ends := judged_interval(each):
            words += f" [{', '.join(map(figure_words, ends))}]"
        if (share := each.get("success")) is not None:
            words += f", success {100 * share:.1f} %"
            if ends := each.get("interval_95"):
                words += f" [{', '.join(f'{100 * end:.1f}' for end in ends)}]"
        where = f"{each['preset']}: " if each.get("preset") else ""
        source.append(f"{where}{words} ({figure_words(each.get('episodes'))} episodes)")
    return "; ".join(source)
