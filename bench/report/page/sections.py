"""The report's sections, in order, and which command makes the results of each.

A section is an :class:`Entry`: add one to CASE_STUDY, STUDY or FURTHER and it is in the report, in its navigation, and,
while its results are missing, left out with a line that says what to type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bench.command_line import BenchError
from bench.report import case_study, plots
from bench.report import virtual_pi as virtual_pi_table
from bench.report.case_study import NothingStoredError
from bench.report.page.opening import study_blocks
from bench.report.page.parts import Anchors, Block, Folded, Part, Picture, Section, Words
from bench.report.page.sources import ROOT, Sources
from bench.report.page.words import by_width_table, picture_of_sweeps
from bench.report.selection import Selection
from bench.report.store import StoreError

MISSING = (NothingStoredError, StoreError, BenchError)
"""What a reader of stored results raises when there are none, or none that it can read."""
SIDE_BY_SIDE_BITS = 4  # 16 levels can be drawn; 256 are a wall


@dataclass(frozen=True)
class Entry:
    """A section that may be there.

    Attributes:
        title: its heading; the anchor is made from ``anchor``.
        command: what makes its results.
        make: its blocks from the stored results; none, or one of MISSING raised, where they are missing.
    """

    anchor: str
    title: str
    command: str
    make: Callable[[Sources], Iterable[Block]]


def sections(entries: Sequence[Entry], sources: Sources, anchors: Anchors) -> list[Section]:
    """The sections of these entries; those whose results are missing say so."""
    return [section(entry, sources, anchors) for entry in entries]


def section(entry: Entry, sources: Sources, anchors: Anchors) -> Section:
    """One section."""
    missing = "Its results are not stored yet."
    try:
        blocks = tuple(entry.make(sources))
    except MISSING as error:
        blocks, missing = (), first_line(str(error))
    return Section(anchors.new(entry.anchor), entry.title, blocks, "" if blocks else missing, entry.command)


def first_line(message: str) -> str:
    """What is missing, without the folder of this checkout and without the next step, which the section names."""
    return message.partition("\n")[0].replace(f"{ROOT}/", "")


def case_study_blocks(sources: Sources) -> Iterator[Block]:
    """Latency, memory, size and success of policies I, II, III."""
    return device_blocks(sources.selection(case_study.CASE_STUDY), sources.preset)


def own_blocks(sources: Sources) -> Iterator[Block]:
    """The same of what this machine measured, a part for each device, and what late commands cost there."""
    for target, selection in sources.own().items():
        blocks: list[Block] = []
        with suppress(NothingStoredError):
            blocks += device_blocks(selection, sources.preset)
        with suppress(NothingStoredError):
            blocks.append(case_study.latency_flown(selection, sources.preset)[0])
        if blocks:
            yield Part(f"Device {target}", tuple(blocks))


def device_blocks(selection: Selection, preset: str) -> Iterator[Block]:
    """The case study of one device, as a table and as pictures."""
    table, used = case_study.case_study(selection, preset)
    yield table
    selection = Selection.of_target(used)
    said = {
        "success": "Success of each policy at each precision with 95 % intervals, beside the blind baseline",
        "latency": "Latency of one decision, a row for each policy and precision: median, p5 to p95 and p99",
    }
    with suppress(NothingStoredError):
        for name, figure in plots.figures(selection, preset).items():
            yield Picture.of(figure, f"{said[name]}.", f"{said[name]}; the numbers are in the table above.")


def latency_flown_blocks(sources: Sources) -> Iterator[Block]:
    """What late commands cost."""
    yield case_study.latency_flown(sources.selection(case_study.LATENCY_FLOWN), sources.preset)[0]


def virtual_pi_blocks(sources: Sources) -> Iterator[Block]:
    """What was counted on an emulated core, and the model's bounds."""
    yield virtual_pi_table.virtual_pi(sources.reports(virtual_pi_table.VIRTUAL_PI), sources.preset)[0]


def origin_blocks(sources: Sources) -> Iterator[Block]:
    """Where the case study's policies come from."""
    yield case_study.zoo_table(sources.zoo, sources.selection(case_study.ZOO))[0]


def cell_blocks(sources: Sources) -> Iterator[Block]:
    """Every trained cell of the paper's tables at fp32, fp16 and int8."""
    from bench.study.cells import ptq_table as study_table
    from bench.study.cells import table as cells_table
    from bench.study.cells.command import bundle_names
    from bench.study.cells.curves import curves_figure, read_curves

    if not sources.answers:
        raise NothingStoredError("No benchmark policy was judged yet.")
    names = bundle_names(sources.benchmark)
    yield from study_table.tables(study_table.judged(sources.answers, sources.sweeps, sources.hashes))
    full, still_open = cells_table.tables(sources.answers, names)
    yield Folded("Networks, sizes, steps and published figures of each cell", (full,))
    if still_open.rows:
        yield Folded("Cells of the paper that have no committed policy, and the command of each", (still_open,))
    curves = read_curves(sources.benchmark, sources.answers)
    if curves:
        title = "Learning curves of the benchmark policies, the paper's fp32 figure as a dashed line."
        yield Picture.of(curves_figure(curves), title, f"{title} A panel for each policy; final returns in the tables.")


def sweep_blocks(sources: Sources) -> Iterator[Block]:
    """How few bits policies take after training: joined by task, and all in one table."""
    from bench.study.sweep.plot import label_of, task_figure

    if not sources.sweeps:
        raise NothingStoredError("No sweep of the committed weights is stored.")
    yield Words(
        "A policy is quantized after training to every width and flies the same episodes as fp32. Each policy's own "
        "page has all of its widths and its picture."
    )
    yield by_width_table(sources.sweeps)
    for task in dict.fromkeys(each.task for each in sources.sweeps):
        pictures = []
        of_task = [each for each in sources.sweeps if each.task == task]
        for scheme, variant in dict.fromkeys((each.scheme, each.variant) for each in of_task):
            joined = [each for each in of_task if (each.scheme, each.variant) == (scheme, variant)]
            if len(joined) > 1:
                title = f"Return against bits on {task}, {label_of(joined[0])}."
                pictures.append(picture_of_sweeps(task_figure(joined), title, joined))
        if pictures:
            yield Part(f"Policies of {task}", tuple(pictures))


def width_blocks(sources: Sources) -> Iterator[Block]:
    """Whether wider weights lose more."""
    from bench.study.width import command as width_and_error
    from bench.study.width import figure as width_figure
    from bench.study.width import points as width_points

    points = width_points.read(sources.results / width_points.KEPT.name)
    title = "Error of quantization against the width of the weights, with rank correlations."
    yield Picture.of(
        width_figure.width_figure(points),
        title,
        f"{title} A number for each policy; widths, errors and correlations are in the table below.",
    )
    yield width_and_error.table(points)


def weight_blocks(sources: Sources) -> Iterator[Block]:
    """Weights of the policies of one task side by side."""
    from bench.study.weights.command import scheme_words
    from bench.study.weights.figure import BINS, View, beside_figure
    from policy.quantization import Scheme

    by_task: dict[str, list[str]] = {}
    for name, bundle in sources.bundles.items():
        by_task.setdefault(str(bundle.spec.provenance.get("task", "")), []).append(name)
    words = f"{scheme_words(SIDE_BY_SIDE_BITS, Scheme.QUARL.value)}; {BINS} bins, logarithmic counts"
    for task, names in by_task.items():
        if len(names) > 1 and task:
            views = [View.of(sources.bundles[name], SIDE_BY_SIDE_BITS, Scheme.QUARL) for name in names]
            title = f"Weights of {', '.join(names)} on {task}, with the levels at {SIDE_BY_SIDE_BITS} bits."
            figure = beside_figure(f"Weights on {task}", views, words)
            alt = f"{title} Histograms, a column for each policy; each policy's page has the numbers."
            yield Picture.of(figure, title, alt)


def further_blocks(sources: Sources) -> Iterator[Block]:
    """What else was measured: training speed, half precision in training, agreement of the runtimes."""
    from bench import agreement
    from bench.study.mixed import command as mixed_precision
    from bench.study.speed import table as training_table

    for name, make in (
        ("training-speed.json", lambda document: [training_table.table(document)]),
        ("mixed-precision.json", mixed_precision.tables),
        ("agreement.json", lambda document: [agreement.table(document)]),
    ):
        with suppress(*MISSING):
            yield from make(sources.document(name))


CASE_STUDY = (
    Entry("case-study", "Case study", "make bench", case_study_blocks),
    Entry("own", "Measured on this machine", "make bench", own_blocks),
    Entry("latency-flown", "Latency, flown", "python bench/latency_flown.py", latency_flown_blocks),
    Entry(
        "virtual-pi", "The Pi, emulated and modelled", "python bench/instructions.py --policy I,II,III",
        virtual_pi_blocks,
    ),
    Entry("origins", "Where the policies come from", "make train POLICY=I", origin_blocks),
)  # fmt: skip
STUDY = (
    Entry("cells", "fp32, fp16 and int8", "make study", cell_blocks),
    Entry(
        "sweet-spots", "How few bits after training", "python -m bench.study sweep cartpole-dqn --keep", sweep_blocks
    ),
    Entry("qat", "Learning with quantizers", "python -m bench.study qat --keep", study_blocks("bench.study.qat")),
    Entry("width-and-error", "Width of the weights", "python -m bench.study width --keep", width_blocks),
    Entry("weights", "Weights side by side", "python -m train --task cartpole --method dqn", weight_blocks),
    Entry(
        "wide-weights",
        "Means against wide weights",
        "python -m bench.study wide --keep",
        study_blocks("bench.study.wide"),
    ),
    Entry(
        "apart",
        "Weights, activations, observation",
        "python -m bench.study apart --keep",
        study_blocks("bench.study.apart"),
    ),
    Entry("layers", "Layers apart", "python -m bench.study layers --keep", study_blocks("bench.study.layers")),
    Entry("budgets", "Mixed widths", "python -m bench.study budgets --keep", study_blocks("bench.study.budgets")),
)
FURTHER = (Entry("further", "Further measurements", "make training-speed", further_blocks),)
