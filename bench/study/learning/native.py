"""What do the packed artifacts of the native engine reach, and how many of a network's rows have to be active?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.cost.activity import activities, read_share
from quarl.bench.report.figures import Pictures, facets, panel, share_scale
from quarl.bench.report.text import estimate, kilobytes, times
from quarl.bench.study import command
from quarl.bench.study.bundles import bundle_identity, fly, folder_of, load, open_bundle
from quarl.bench.study.experiment import SUCCESS, EpisodePlan, Experiment, Results, SeedResult
from quarl.bench.study.records import Condition
from quarl.bench.study.trainings import Training, trained
from quarl.bench.tables import Table, group_by, tabulate
from quarl.convert.mixed import MOST_BITS
from quarl.policy.locate import meant
from quarl.policy.spec import Precision
from quarl.train.deciding import float_decide

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.train.suites.task import Task

STEPS = {"I": 786_432, "II": 786_432, "III": 393_216}  # III's take ten times as long as II's, each
LEARNED_BITS, QUANT_DELAY = 2, 0.1
PENALTIES = (0.0, 0.1, 0.3, 1.0)
AFTERWARDS = (8, "mixed", 4, 2)
SEEDS, EPISODES = (11, 13, 17), 1000  # of the flights, none of a training
LITERT = {"runtime": "litert", "bits": 8}
COUNTED = ("instructions", "dram_lines")
LEAST_COUNTED = 100  # lines below which the modelled cache as good as holds the policy

TABLE = """\
Native artifacts of 8, mixed, 4 and 2 bits: success, active rows, and the work of a decision
n: the same episodes on each preset, flown by the artifact as the native engine executes it, LiteRT's int8 by LiteRT; \
fp32 in floats. Mixed: 8, 4 or 2 bits by layer, {{ most }} a weight at most. Seeds {{ results.seeds }}. Minus fp32: \
points of success with the paired 95 % interval.
Learned: distilled from the policy itself onto two bits, beginning with its own weights; weights are −1, 0 and 1 times \
a channel's scale, hidden activations have four levels. Penalty: on active outputs (activity_penalty). One training \
each: the intervals are about episodes.
Active: share of the weights behind hidden layers that a decision needs, those behind outputs that are not 0; mean \
over the golden observations; LiteRT multiplies all of them. A53: \
instructions of one decision through Python on a Cortex-A53, in emulation, over LiteRT's int8; DRAM lines: those that \
come from beyond a modelled L2 cache of 512 KB, likewise.
{{ results.measured }}
"""


def read_penalties(text: str) -> tuple[float, ...]:
    """``0,0.1``.

    Raises:
        ValueError: it is none.
    """
    return tuple(float(word) for word in text.split(","))


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.EpisodesOptions):
    """What is measured.

    Attributes:
        penalties: on active outputs
    """

    penalties: Annotated[tuple[float, ...], cli.reads(read_penalties, "0,0.1,0.3,1")] = PENALTIES


def grid(options: Options, subject: str) -> list[Condition]:
    """fp32, LiteRT's int8, and the native artifacts.

    Raises:
        UsageError: it is a policy for which no length of a training is known.
    """
    if subject not in STEPS:
        raise command_line.UsageError(f"{subject} is none of {', '.join(STEPS)}.", "quarl study native II")
    learning = [{"bits": LEARNED_BITS, "penalty": penalty} for penalty in options.penalties]
    return [{}, LITERT, *({"bits": bits} for bits in AFTERWARDS), *learning]


def perceptron(name: str) -> Bundle:
    """A bundle of a perceptron; its task need not be installed.

    Raises:
        UsageError: there is no such bundle; or its policy has convolutions, or was trained with quantizers (whose
            widths belong together).
    """
    bundle = load(name)
    if bundle.spec.network.convolutions:
        raise command_line.UsageError(
            f"{name} has convolutions; this study is of perceptrons.", f"quarl study sweep {name}"
        )
    if (trained := bundle.spec.quantization) is not None:
        raise command_line.UsageError(
            f"{name} was trained with quantizers of {trained.bits} bits; this study is of policies trained in floats.",
            f"quarl study sweep {name} --scheme symmetric",
        )
    return bundle


def open_perceptron(name: str) -> tuple[Bundle, Task]:
    """The same with its task, which has to be installed; raises as :func:`perceptron` and ``open_bundle`` do."""
    perceptron(name)
    return open_bundle(name)


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Learns what is not there, converts, counts, and flies the artifact."""
    from quarl.bench.qemu_counter.building import require_programs
    from quarl.bench.qemu_counter.counting import count
    from quarl.convert.pipeline import convert_all
    from quarl.policy.bundle import Bundle, copy_bundle
    from quarl.policy.spec import RuntimeName
    from quarl.train.runs.artifact import ArtifactPolicy, find_artifact

    bundle, task = open_perceptron(subject)
    if not condition:
        yield from fly(task, float_decide(bundle), episodes, {})
        return
    require_programs()
    if "penalty" in condition:
        bundle = learned(subject, condition["penalty"])
    precision, runtime = precision_of(condition), RuntimeName(condition.get("runtime", "native"))
    with tempfile.TemporaryDirectory(prefix="native-study-") as folder:
        copy = copy_bundle(bundle, Path(folder) / subject, origin="zoo")
        convert_all([copy], [precision], [runtime.artifact_format], accept=True)
        copy = Bundle.load(copy.path)
        counted = count(copy.path, precision, runtime).paths["runtime_warm"]
        entry = find_artifact(copy, subject, precision, runtime)
        measures = {
            "active": read_share(activities(bundle, precision)[1:]),
            "bytes": entry.record.size,
            "instructions": counted.instructions,
            "dram_lines": counted.l2_misses,
        }
        with ArtifactPolicy(copy.spec, copy.artifact_data(entry), runtime) as artifact:
            yield from fly(task, artifact.decide, episodes, measures)


def learned(subject: str, penalty: float) -> Bundle:
    """The policy distilled from itself onto two bits."""
    return trained(
        Training("navigation", "distill", policy=subject, steps=STEPS[subject]),
        0,
        *("--teacher", str(folder_of(subject)), "--set", "start_as_teacher=true"),
        *("--precision", str(LEARNED_BITS), "--quantization-method", "quantization-aware"),
        *("--quant-delay", str(QUANT_DELAY), "--set", f"activity_penalty={penalty}"),
    )


def precision_of(row: Mapping[str, Any]) -> Precision:
    """The precision of a row's artifact."""
    return Precision.parse(str(row["bits"]))


def name_of(row: Mapping[str, Any]) -> str:
    """The name of a row's artifact in the table: ``int2, learned``."""
    if row["bits"] is None:
        return "fp32"
    words = [precision_of(row).value, *["LiteRT"] * (row["runtime"] is not None)]
    if row["penalty"] is not None:
        words += ["learned", *[f"penalty {row['penalty']:g}"] * (row["penalty"] > 0)]
    return ", ".join(words)


def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort key in the table: floats, LiteRT, and the native artifacts from the most bits to the strongest penalty."""
    width = 0 if row["bits"] is None else AFTERWARDS.index(row["bits"])
    return row["bits"] is not None, row["runtime"] is None, width, row["penalty"] or -1.0, name_of(row)


def artifacts(results: Results) -> Iterator[dict[str, Any]]:
    """The rows in the order of the table; with what was counted as multiples of LiteRT's int8, None where unknown."""
    for subject in results.subjects:
        mine = sorted((row for row in results.summary if row["subject"] == subject), key=place)
        base = results.row(subject, LITERT, mine[0]["preset"])
        for row in mine:
            counted = {name: row.get(name) for name in ("active", "bytes")}
            over = {f"{name}_ratio": ratio(row.get(name), base.get(name)) for name in COUNTED}
            yield {**row, **counted, **over, "artifact": name_of(row)}


def ratio(value: float | None, base: float | None) -> float | None:
    """The ratio of two counts; None where one is missing or the base has next to nothing."""
    return value / base if value is not None and base is not None and base >= LEAST_COUNTED else None


def artifacts_table(results: Results) -> list[Table]:
    """What each artifact reaches on each preset, and what it costs as a multiple of LiteRT's int8."""
    rows = list(artifacts(results))
    presets = list(dict.fromkeys(row["preset"] for row in rows))
    lines = []
    for of_artifact in group_by(rows, lambda row: (row["subject"], row["episodes"], row["artifact"])).values():
        first = of_artifact[0]
        line = {"policy, episodes": f"{first['subject']}, n={first['episodes']:,}", "artifact": first["artifact"]}
        on = {row["preset"]: row for row in of_artifact}
        for preset in presets:
            line[f"{preset}: success, %"] = estimate(on[preset][SUCCESS], 100) if preset in on else ""
            change = on[preset]["success_difference"] if preset in on and first["bits"] else None
            line[f"{preset}: minus fp32"] = estimate(change, 100, "+")
        lines.append(
            {
                **line,
                "active, %": f"{100 * first['active']:.0f}" if first["bits"] and not first["runtime"] else "",
                "KB": kilobytes(first["bytes"]),
                "A53": times(first["instructions_ratio"]),
                "DRAM lines": times(first["dram_lines_ratio"]),
            }
        )
    return [tabulate("native-study", TABLE, lines, left=2, once=True, results=results, rows=rows, most=MOST_BITS)]


def learned_ones(results: Results) -> list[dict[str, Any]]:
    """The learned artifacts' rows, with the active share in percent and what fp32 reaches on the same preset."""
    fp32 = {(row["subject"], row["preset"]): row[SUCCESS] for row in results.summary if row["bits"] is None}
    return [
        {**row, "percent": 100 * row["active"], "fp32": fp32.get((row["subject"], row["preset"])), "line": LEARNED_LINE}
        for row in results.summary
        if row["penalty"] is not None
    ]


LEARNED_LINE = "int2, learned"


def picture(results: Results) -> Pictures:
    """Success of the learned artifacts over the share of rows that are active, a panel for each policy and preset."""
    by_panel = group_by(learned_ones(results), lambda row: f"{row['subject']}, {row['preset']}")
    labels = {LEARNED_LINE: (LEARNED_LINE, 0)}
    panels = [
        panel(title, rows, x="percent", y=SUCCESS, line="line", labels=labels, reference="fp32")
        for title, rows in by_panel.items()
    ]
    if not panels:
        return {}
    below = (
        "active: share of the weights behind hidden layers that a decision needs\n"
        "each point a training with another penalty; bands: 95 % intervals over episodes"
    )
    figure = facets(
        panels,
        None,
        title="Two learned bits: success against active rows",
        subtitle=below,
        x_label="active share, %",
        y_label="success",
        scale=share_scale,
        columns=2,
        shared=False,
    )
    return {"native-active": figure}


EXPERIMENT = Experiment(
    name="native",
    question="what do few packed bits reach, and how many rows have to be active?",
    factors=("runtime", "bits", "penalty"),
    subjects=tuple(STEPS),
    grid=grid,
    measure=measure,
    identity=bundle_identity,
    about=lambda name: meant(perceptron(name)),
    require=open_perceptron,
    episodes=lambda options, subject: EpisodePlan(options.seeds or SEEDS, options.episodes or EPISODES),
    tables=[artifacts_table],
    figures=[picture],
)


@cli.verb()
def native(options: Options) -> int:
    """What do the packed artifacts of the native engine reach, and how many of a network's rows have to be active?

        quarl study native --keep                      I, II and III: trains four policies of two bits for each
        quarl study native II --penalties 0,0.1 --episodes 100
        quarl study native --stored --update-docs      fills docs/native.md, draws its picture

    Artifacts of 8, 4, 2 and mixed bits, quantized after training, and of 2 bits (ternary weights, activations of 2
    bits) that the policy learned by itself: it begins with its own weights and is distilled onto the grid, with and
    without a penalty on active outputs. The native engine flies all of them through the episodes that the float policy
    flies. Of each artifact the Cortex-A53's instructions for one decision are counted (bench/instructions.py), LiteRT's
    int8 beside them.

    Each policy of two bits is one training, so that the intervals are about episodes, not about trainings.
    """
    return command.run(__name__, options)


main = cli.of("study native")
