"""A page for each committed bundle: where it comes from, what it reaches at each precision, its weights and ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.report.page.parts import Anchors, Block, Facts, Folded, Listing, Part, Picture, Section, Words
from bench.report.page.words import picture_of_sweeps
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, kilobytes, three_digits

if TYPE_CHECKING:
    from bench.report.page.sources import Sources
    from bench.study.cells.command import Answer
    from policy.bundle import Bundle
    from policy.spec import ObservationField, PolicySpec

DRAWN_BITS, DEVICE_BITS = 4, 8  # levels that can be drawn; what devices run
CURVE_INCHES = (6.4, 3.0)
INDEX_HEADERS = (
    "policy", "task", "algorithm", "network", "weights", "environment steps", "return in training", "int8 KB",
)  # fmt: skip


def index_table(sources: Sources) -> Table:
    """All bundles, a row each."""
    rows = []
    for name, bundle in sources.bundles.items():
        origin = bundle.spec.provenance
        rows.append(
            (
                name,
                str(origin.get("task", NOT_KNOWN)),
                str(origin.get("algorithm", NOT_KNOWN)),
                network_words(bundle.spec),
                f"{parameters(bundle):,}",
                figure_words(origin.get("steps")),
                training_return(origin),
                int8_size(sources, name),
            )
        )
    notes = (
        "Weights: all numbers that are learned. Return in training: of few greedy episodes, as it ended, with the "
        "preset where the task has several. int8 KB: of the TFLite artifact.",
    )
    return Table("bundles", "The committed policies", INDEX_HEADERS, tuple(rows), notes, left=4)


def page(sources: Sources, bundle: Bundle, anchors: Anchors) -> Section:
    """A bundle's page."""
    blocks = tuple(Part(title, found) for title, maker in PARTS if (found := tuple(maker(sources, bundle))))
    return Section(anchors.new(f"policy {bundle.spec.name}"), bundle.spec.name, blocks)


def origin_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Provenance and network."""
    spec, origin = bundle.spec, bundle.spec.provenance
    rows = {
        "task": f"{origin.get('task', NOT_KNOWN)} ({spec.environment.id})",
        "algorithm": str(origin.get("algorithm", NOT_KNOWN)),
        "how": str(origin.get("how", "")),
        "environment steps": figure_words(origin.get("steps")),
        "seed": figure_words(origin.get("seed")),
        "CPU seconds": figure_words(origin.get("cpu_s")),
        "return in training": training_return(origin),
        "judged after training": judged_words(origin),
        "trained with quantizers": "no, in floats" if spec.quantization is None else f"{spec.quantization.bits} bits",
        "network": f"{network_words(spec)}, {spec.network.activation.value}; {parameters(bundle):,} weights and biases",
        "observation": "; ".join(map(field_words, spec.observation)),
        "action": action_words(spec),
        "a decision every": f"{1000 * spec.control_period_s:.4g} ms",
        "float weights": f"{kilobytes(bundle.manifest.files['weights.safetensors'].size)} KB, SHA-256 "
        f"{sources.hashes[spec.name][:16]}…",
        "made with": ", ".join(f"{name} {version}" for name, version in dict(origin.get("versions", {})).items()),
    }
    yield Facts(tuple((name, words) for name, words in rows.items() if words))
    settings = origin.get("settings")
    if isinstance(settings, dict):
        blocks: list[Block] = [Facts(tuple((str(name), str(value)) for name, value in settings.items()))]
        if said := origin.get("settings_source"):
            blocks.append(Words(str(said)))
        yield Folded("Settings of the training", tuple(blocks))


def return_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Sizes of the artifacts and what they reach."""
    name = bundle.spec.name
    if (answer := sources.answers.get(name)) is not None:
        yield precisions_table(answer)
    for table in sources.case_tables.values():
        mine = tuple(row for row in table.rows if row and row[0] == name)
        if mine:
            without_name = tuple(row[1:] for row in mine)
            yield Table(f"{table.name}-{name}", table.title, table.headers[1:], without_name, (), table.left - 1)
            whole = ("the whole table", table.name)
            yield Words("With all policies, and how it was measured:", link=whole)
    if name in sources.trained_cells:
        yield Words("Policies of the same cell were trained with quantizers:", link=("QAT against PTQ", "qat"))


def precisions_table(answer: Answer) -> Table:
    """One cell's artifacts."""
    from bench.study.cells.ptq_table import Judged, extra_cell, percent
    from bench.study.cells.table import change, score

    judged = Judged(extra_cell(answer), answer)
    rows = tuple(
        (
            name,
            kilobytes(played.bytes),
            score(answer, name),
            NOT_KNOWN if name == "fp32" else change(answer, name),
            NOT_KNOWN if name == "fp32" else percent(judged.error(name)),
            three_digits(played.mean_length),
        )
        for name, played in answer.played.items()
    )
    notes = (
        f"TFLite artifacts, executed by {answer.runtime} on {answer.machine}, {answer.date}, code {answer.code}: mean "
        f"return of {answer.episodes:,} greedy episodes (seed {answer.seed}), the same with each; 95 % intervals, "
        "differences and errors paired. Error: (fp32 − it) / |fp32|; 0: every episode is the same.",
    )
    headers = ("precision", "KB artifact", "return", "minus fp32", "relative error, %", "steps of an episode")
    return Table(f"precisions-{answer.name}", "Artifacts", headers, rows, notes)


def sweep_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Return at every width."""
    from bench.study.sweep.command import scheme_words, tables
    from bench.study.sweep.plot import bundle_figure
    from bench.study.sweep.store import of_bundle

    name = bundle.spec.name
    mine = of_bundle(sources.sweeps, name)
    if not mine:
        yield Words(f"It was not swept yet. Type: `python -m bench.study sweep {name} --keep`")
        return
    title = f"Return of {name} against bits of the weights."
    yield picture_of_sweeps(bundle_figure(mine), title, mine)
    for sweep in mine:
        yield Folded(f"All widths: {scheme_words(sweep)}", tuple(tables(sweep)))


def curve_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """How it learned."""
    from matplotlib.figure import Figure

    from bench.study.cells.curves import Curve, draw_panel
    from train.runs.logs import CURVE_FILE, column, read_rows
    from train.suites.cells import Cell

    name, origin, path = bundle.spec.name, bundle.spec.provenance, bundle.path / CURVE_FILE
    if not path.exists():
        return
    rows = read_rows(path.read_text(encoding="utf-8"))
    judged = next((column(rows, word) for word in (rows[0] if rows else {}) if word.startswith("greedy_return")), None)
    cell = Cell(str(origin.get("task", "")), str(origin.get("algorithm", "")))
    figure = Figure(figsize=CURVE_INCHES, layout="constrained")
    axes = figure.subplots()
    draw_panel(axes, Curve(cell, column(rows, "return"), judged or ([], []), sources.answers.get(name)))
    axes.set_xlabel("environment steps", fontsize=8)
    axes.set_ylabel("return of an episode", fontsize=8)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7.5)
    title = f"Learning curve of {name}."
    yield Picture.of(figure, title, f"{title} Return against environment steps, in training and greedily.")


def weight_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Distribution of weights and biases with the levels, and their numbers."""
    from bench.study.weights.command import scheme_words
    from bench.study.weights.figure import BINS, bundle_title, parameters_figure
    from bench.study.weights.view import as_text, parameters
    from policy.quantization import Scheme

    name, title = bundle.spec.name, bundle_title(bundle)
    drawn = parameters(bundle, DRAWN_BITS, Scheme.QUARL)
    words = f"{scheme_words(DRAWN_BITS, Scheme.QUARL.value)}; {BINS} bins, logarithmic counts"
    caption = f"Weights and biases of {name} by layer, with the levels of the paper's quantizer at {DRAWN_BITS} bits."
    alt = f"{caption} Histograms with logarithmic counts; ranges and steps are in the text below."
    yield Picture.of(parameters_figure(title, drawn, words), caption, alt)
    text = as_text(
        [
            (f"{title}: {DRAWN_BITS} bits, {Scheme.QUARL.value}", drawn),
            (f"{title}: {DEVICE_BITS} bits, symmetric", parameters(bundle, DEVICE_BITS, Scheme.SYMMETRIC)),
        ]
    )
    yield Listing(f"output.txt of python -m bench.study weights -f {name}", text)


def range_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """Activation ranges on the calibration observations."""
    from bench.study.weights.activations import activation_ranges, table

    yield table(bundle, activation_ranges(bundle))


def execution_blocks(sources: Sources, bundle: Bundle) -> Iterator[Block]:
    """How each width executes, so that no size or speed is read from a simulation."""
    from bench.measuring.execution import KERNELS, execution_of
    from policy.quantization import Scheme

    trained = None if bundle.spec.quantization is None else bundle.spec.quantization.bits
    asked = [
        (Scheme.SYMMETRIC, 32, None, "fp32"),
        (Scheme.FP16, 16, None, "fp16"),
        *((Scheme.SYMMETRIC, bits, bits if bits == trained else DEVICE_BITS, f"int{bits}") for bits in range(8, 1, -1)),
        (Scheme.QUARL, 8, 8, "quarl, any width"),
    ]
    rows = []
    for scheme, bits, activation_bits, name in asked:
        how = execution_of(scheme, bits, activation_bits, trained=bits == trained)
        container = NOT_KNOWN if how.container_bytes is None else str(how.container_bytes)
        packed = NOT_KNOWN if how.artifact is None else "yes" if how.packed else "no"
        rows.append((name, how.words, container, packed))
    others = "; ".join(f"{runtime.value}: {kernel}" for runtime, kernel in KERNELS.items())
    yield Table(
        f"execution-{bundle.spec.name}",
        "How each width executes",
        ("width", "how", "bytes a weight", "packed"),
        tuple(rows),
        (f"In words for LiteRT; the kernels of integer artifacts: {others}.",),
        left=2,
    )


PARTS = (
    ("Where it comes from", origin_blocks),
    ("Sizes and returns", return_blocks),
    ("How few bits", sweep_blocks),
    ("Learning curve", curve_blocks),
    ("Weights", weight_blocks),
    ("Activation ranges", range_blocks),
    ("How each width executes", execution_blocks),
)


def network_words(spec: PolicySpec) -> str:
    """``64 × 64``."""
    from bench.study.cells.command import network_words as words

    return words(spec)


def parameters(bundle: Bundle) -> int:
    """How many numbers it learned."""
    return sum(array.size for array in bundle.weights().values())


def field_words(field: ObservationField) -> str:
    """``ranges [24] in m``."""
    shape = " × ".join(map(str, field.shape))
    return f"{field.name} [{shape}]" + ("" if field.unit in ("", "1") else f" in {field.unit}")


def action_words(spec: PolicySpec) -> str:
    """``one of 25``, or how many numbers and their bounds."""
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


def judged_words(origin: Mapping[str, Any]) -> str:
    """What it reached when it was judged: ``hard: 5.27, success 91.3 % [90.2, 92.2] (3,000 episodes)``."""
    said = []
    for each in origin.get("judged") or []:
        words = figure_words(each.get("mean_return"))
        if ends := each.get("return_interval_95"):
            words += f" [{', '.join(map(figure_words, ends))}]"
        if (share := each.get("success")) is not None:
            words += f", success {100 * share:.1f} %"
            if ends := each.get("interval_95"):
                words += f" [{', '.join(f'{100 * end:.1f}' for end in ends)}]"
        where = f"{each['preset']}: " if each.get("preset") else ""
        said.append(f"{where}{words} ({figure_words(each.get('episodes'))} episodes)")
    return "; ".join(said)


def int8_size(sources: Sources, name: str) -> str:
    """Of its TFLite artifact, where it was measured."""
    if (answer := sources.answers.get(name)) is not None:
        return kilobytes(answer.played["int8"].bytes)
    table = sources.case_tables.get("case-study")
    if table is None:
        return NOT_KNOWN
    at = table.headers.index("KB artifact")
    return next((row[at] for row in table.rows if row[:2] == (name, "int8")), NOT_KNOWN)


def figure_words(value: Any) -> str:
    """A number of the provenance with at most four significant digits, integers whole."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOT_KNOWN if value is None else str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")
