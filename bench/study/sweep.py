"""How few bits can a policy take? Post-training quantization to every width, the same episodes with each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import Pictures, facets, in_order, panel
from quarl.bench.report.text import NOT_KNOWN, estimate, format_loss
from quarl.bench.study import command
from quarl.bench.study.bundles import BENCHMARK, SEEDS, bundle_identity, fly, load, open_bundle, quantize_policy
from quarl.bench.study.experiment import ERROR, RETURN, SUCCESS, EpisodePlan, Experiment, Results, SeedResult
from quarl.bench.study.measures.execution import DEVICE_ACTIVATION_BITS, execution_of
from quarl.bench.study.records import Condition
from quarl.bench.tables import Table, group_by, pivot, tabulate
from quarl.policy.locate import describe_source
from quarl.policy.quantize import FLOAT_BITS, LARGEST_SIMULATED_BITS, Scheme
from quarl.policy.simulate import HALF_BITS, WEIGHTS_ONLY, Widths, find_trained_quantizers
from quarl.train.suites.names import Suite, resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.policy.spec import PolicySpec
    from quarl.train.intervals import Estimate

Row = Mapping[str, Any]
FP16, FLOAT = Scheme.FP16.value, "float"
SHOWN, NARROW = (2, 3, 4, 6, 8), tuple(range(2, 9))
SCHEMES = (Scheme.QUARL.value, Scheme.QUARL_RELEASED.value, Scheme.SYMMETRIC.value)
PAPERS: Condition = {"scheme": Scheme.QUARL.value, "activations": FLOAT}
"""The paper's quantizer on the weights alone."""
SERIES: tuple[Condition, ...] = ({"scheme": SCHEMES[0]}, PAPERS, {"scheme": SCHEMES[1]}, {"scheme": SCHEMES[2]})
WIDTHS = (*NARROW, 10, 12, 14, HALF_BITS, FP16, 20, 24, 28, FLOAT_BITS)
SLOW = (Suite.BOX2D, Suite.PYBULLET, Suite.MUJOCO, Suite.DM_CONTROL)
"""Suites whose simulators make all widths take an hour: fewer widths, schemes and episodes; Atari fewer yet."""
SERIES_OF = {Suite.ATARI: (PAPERS,), **dict.fromkeys(SLOW, (PAPERS, SERIES[3]))}
STYLED = ("quarl", "quarl, weights only", "quarl-released", "symmetric", FP16)
"""Schemes by name, each at its place in :data:`bench.report.figures.STYLES`."""
MEASURES = ((SUCCESS, 100.0, "success, %"), (RETURN, 1.0, "return"))
HIDDEN_BITS = cli.reads(command_line.read_bits(2, LARGEST_SIMULATED_BITS), "N")
NOTICEABLE = 1.0  # percent of |fp32|: pictures end where nothing wider loses more

OVERVIEW = """\
Relative error of the return, %, by bits of the weights
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); \
negative: better than fp32; 0: less than 0.005 % in all three numbers; without brackets: all episodes are equal.
Episodes of each: {{ rows | map(attribute="floats.episodes") | map("thousands") | unique | join(", ") }}. Simulated in \
float; how a device executes each width is said by `quarl study sweep POLICY`. –: not measured.
{{ results.games }}
{{ results.measurement_note }}
"""
DETAILS = """\
{{ rows[0].label }} on {{ rows[0].floats.task }}{{ ", " ~ rows[0].preset if rows[0].preset }}
Means over {{ rows[0].floats.episodes | thousands }} greedy episodes, the same at every width, with 95 % intervals; \
differences are paired. Error: (fp32 − quantized) / |fp32|. Other action: share of the bundle's golden observations on \
which it is not fp32's.
{% for words, which in executions.items() %}
{{ which | join("; ") }} bits: {{ words }}.
{% endfor %}
{{ results.games }}
{{ results.measurement_note }}
"""


def widths(text: str) -> tuple[int | str, ...]:
    """``2-8,fp16,32``; a range is every whole number in it."""
    names = command_line.words(text)
    numbers = [name for name in names if name != FP16]
    numeric_widths = command_line.read_bits(2, FLOAT_BITS)(",".join(numbers)) if numbers else ()
    return (*numeric_widths, *([FP16] if FP16 in names else []))


def suite_of(subject: str) -> Suite:
    """Return where a bundle's task comes from."""
    return resolve(str(load(subject).spec.provenance["task"])).suite


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.EpisodesOptions):
    """What to measure.

    Attributes:
        scheme: default: quarl with and without activations, and the others
        bits: default: 2 … 32; of slow simulators 2 … 8
        weights_only: leave activations and observation float
        activation_bits: of hidden layers, at every width
        input_bits: of the observation, at every width
    """

    scheme: Literal["quarl", "quarl-released", "symmetric"] | None = None
    bits: Annotated[tuple[int | str, ...], cli.reads(widths, "2-8,fp16")] = ()
    weights_only: bool = False
    activation_bits: Annotated[tuple[int, ...], HIDDEN_BITS] = ()
    input_bits: Annotated[tuple[int, ...], HIDDEN_BITS] = ()


def parse_series(options: Options) -> list[Condition]:
    """Schemes with what their activations and observation are asked to have; none where the options say nothing.

    Raises:
        UsageError: the options contradict each other.
    """
    activations: tuple[int | str, ...] = options.activation_bits
    observation = options.input_bits
    if not (options.scheme or options.weights_only or activations or observation):
        return []
    scheme = options.scheme or SCHEMES[0]
    if options.weights_only and (activations or observation):
        raise command_line.UsageError(
            "--weights-only keeps activations and observation in float. Leave their bit widths out."
        )
    if scheme == Scheme.QUARL_RELEASED.value and (activations or observation):
        raise command_line.UsageError(
            "the scheme of the released script quantizes weights only.", "type --scheme quarl, or --scheme symmetric"
        )
    if options.weights_only and Scheme(scheme) not in WEIGHTS_ONLY:
        activations = (FLOAT,)
    parts = [{"activations": a, "observation": o} for a in activations or (None,) for o in observation or (None,)]
    return [{"scheme": scheme, **{name: n for name, n in part.items() if n is not None}} for part in parts]


def grid(options: Options, subject: str) -> list[Condition]:
    """fp32, fp16, and each scheme at each width; 32 bits with everything else in float are fp32."""
    suite = suite_of(subject)
    widths_typed = options.bits or (NARROW if suite in SERIES_OF else WIDTHS)
    half: list[Condition] = [{"scheme": FP16, "bits": HALF_BITS}] if FP16 in widths_typed else []
    series = parse_series(options) or SERIES_OF.get(suite, SERIES)
    every = [{**condition, "bits": bits} for condition in series for bits in widths_typed if bits != FP16]
    in_floats = {FLOAT, FLOAT_BITS, *SCHEMES}
    return [
        {},
        *half,
        *(condition for condition in every if condition["bits"] != FLOAT_BITS or set(condition.values()) - in_floats),
    ]


def episodes_of(options: Options, subject: str) -> EpisodePlan:
    """Return a hundred of each of the paper's seeds; twenty where they take seconds, of one seed where they take
    minutes."""
    suite = suite_of(subject)
    seeds = (0,) if suite is Suite.ATARI else SEEDS
    return EpisodePlan(options.seeds or seeds, options.episodes or (20 if suite in SERIES_OF else 100))


def widths_of(condition: Condition, spec: PolicySpec) -> Widths:
    """Return the widths that a condition stands for.

    Activations: in ``quarl`` as many bits as the weights; ``quarl-released`` leaves them float, as its script does; in
    ``symmetric`` 8 bits where the weights have fewer, as the artifacts on devices (or as many as the policy was trained
    with, at its own width), else as many as the weights. 32 leaves everything float, fp16 the activations.

    Raises:
        QuantizationError: the widths cannot be.
    """
    scheme, bits = Scheme(condition["scheme"]), condition["bits"]
    activations = condition.get("activations")
    if activations is None and bits <= LARGEST_SIMULATED_BITS and scheme not in WEIGHTS_ONLY:
        activations = bits
        if scheme is Scheme.SYMMETRIC and find_trained_quantizers(spec, bits) is None:
            activations = max(DEVICE_ACTIVATION_BITS, bits)
    return Widths(scheme, bits, None if activations == FLOAT else activations, condition.get("observation"))


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Yield the policy at these widths, and which ones its activations and observation have."""
    bundle, task = open_bundle(subject)
    widths = widths_of(condition, bundle.spec) if condition else None
    decide, measures = quantize_policy(bundle, widths)
    measures = {**measures, "task": task.name}
    if widths is not None:
        measures |= {"activation_bits": widths.activation_bits, "observation_bits": widths.observation_bits}
    if (trained := bundle.spec.quantization) is not None:
        measures["trained_bits"] = trained.bits
    yield from fly(task, decide, episodes, measures)


# --- tables -----------------------------------------------------------------------------------------------------------


def name_of(row: Row) -> str:
    """Return a scheme with what else was requested: ``quarl, weights only``, ``symmetric, activations of 4 bits``."""
    bits_by_factor = {factor: row.get(factor) for factor in ("activations", "observation")}
    phrases = (f"{factor} of {bits} bits" for factor, bits in bits_by_factor.items() if bits not in (None, FLOAT))
    return ", ".join([row["scheme"], *(["weights only"] if FLOAT in bits_by_factor.values() else []), *phrases])


def series(results: Results) -> list[dict[str, Any]]:
    """Return the rows of the summary by subject and preset, then by scheme; without fp32 there are none.

    ``name`` is the scheme's, ``label`` the policy's, and ``floats`` the row of fp32.
    """
    series_rows = []
    for rows in group_by(results.summary, lambda row: (row["subject"], row["preset"])).values():
        floats = next((row for row in rows if not row["scheme"]), None)
        named = [{"name": name_of(row) if row["scheme"] else "fp32", "floats": floats, **row} for row in rows if floats]
        series_rows += [row for of_scheme in group_by(named, lambda row: row["name"]).values() for row in of_scheme]
    absent = dict.fromkeys(("activation_bits", "observation_bits", "other action"))
    return [
        {**absent, "label": Path(row["subject"]).name, **row, "other": row.get("other action")} for row in series_rows
    ]


def of_several(results: Results) -> list[dict[str, Any]]:
    """Return the quantized rows, where there are several policies."""
    rows = [row for row in series(results) if row["name"] not in ("fp32", FP16)]
    return rows if len(results.subjects) > 1 else []


def papers_error(results: Results, subject: str, bits: int) -> Estimate | None:
    """Return a policy's relative error by the paper's quantizer on its weights alone, on the preset that it was trained
    on."""
    preset = next((row["preset"] for row in results.summary if row["subject"] == subject), "")
    relative_error: Estimate | None = results.row(subject, {**PAPERS, "bits": bits}, preset).get(ERROR)
    return relative_error


def executions(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return how a device executes the widths, in words, and which ones: ``symmetric at 2``."""
    names_by_execution: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        if row["scheme"]:
            trained = row.get("trained_bits") == row["bits"]
            execution = execution_of(Scheme(row["scheme"]), row["bits"], row["activation_bits"], trained=trained)
            names_by_execution.setdefault(execution.words, {}).setdefault(row["name"], {})[str(row["bits"])] = None
    return {
        words: [f"{name} at {', '.join(bits)}" for name, bits in bits_by_name.items()]
        for words, bits_by_name in names_by_execution.items()
    }


def overview(results: Results) -> list[Table]:
    """Errors of several policies at the widths that decide."""
    rows = of_several(results)
    cells = [
        {
            "policy": row["subject"],
            "scheme": row["name"],
            "preset": row["preset"] or NOT_KNOWN,
            "bits": row["bits"],
            "error": format_loss(row[ERROR]),
        }
        for row in rows
        if row["bits"] in SHOWN
    ]
    if not cells:
        return []
    lines = pivot(cells, ("policy", "scheme", "preset"), "bits", {"error": "{} bits"})
    headers = ("policy", "scheme", "preset", *(f"{bits} bits" for bits in SHOWN))
    lines = [{header: line.get(header, "") for header in headers} for line in lines]
    return [tabulate("sweep", OVERVIEW, lines, left=3, rules=("policy",), results=results, rows=rows)]


def details(results: Results) -> list[Table]:
    """Return every width of one policy, a table for each preset."""
    rows = series(results) if len(results.subjects) == 1 else []
    return [_details(results, of) for of in group_by(rows, lambda row: row["preset"]).values()]


def _details(results: Results, rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        line = {
            "scheme": row["name"],
            "bits": str(row["bits"] or FLOAT_BITS),
            "activations": str(row["activation_bits"] or "float"),
            "observation": str(row["observation_bits"] or "float"),
        }
        if row["floats"][SUCCESS]:
            line["success, %"] = estimate(row[SUCCESS], 100)
        lines.append(
            {
                **line,
                "return": estimate(row[RETURN]),
                "minus fp32": estimate(row["difference"], sign="+") if row["scheme"] else "",
                "error, %": estimate(row[ERROR], sign="+") if row["scheme"] else "",
                "other action, %": f"{100 * row['other']:.1f}" if row["scheme"] else "",
            }
        )
    named: dict[str, Any] = {"results": results, "rows": rows, "executions": executions(series(results))}
    return tabulate("sweep-details", DETAILS, lines, once=True, **named)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures(results: Results) -> Pictures:
    """Return a picture of each policy, and one of each task that several policies have."""
    every = series(results)
    figures: dict[str, Figure] = {}
    for label, rows in group_by(every, lambda row: row["label"]).items():
        figures |= _picture(rows, f"sweetspot-{label}", f"How few bits {label} takes")
    for task, rows in group_by(every, lambda row: row["floats"]["task"]).items():
        if len({row["subject"] for row in rows}) > 1:
            stem = "sweetspot-task-" + re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")
            figures |= _picture(rows, stem, f"How few bits policies of {task} take")
    return figures


def _picture(rows: Sequence[Row], stem: str, title: str) -> dict[str, Figure]:
    """Estimates over the bits; the axis ends where no wider quantizer loses more."""
    quantized_rows = [row for row in rows if row["name"] not in ("fp32", FP16)]
    lossy = [row["bits"] for row in quantized_rows if row[ERROR] is not None and row[ERROR].is_above(NOTICEABLE)]
    last_drawn = max(*NARROW, *lossy)
    wider = [row for row in quantized_rows if row["bits"] > last_drawn and row[ERROR] is not None]
    points = list(_points(rows, last_drawn))
    if not points:
        return {}
    below = "bars: 95 % intervals; dashed, with a band: fp32; n: episodes a point, the same at every width"
    if wider:
        last, most = max(row["bits"] for row in wider), max(abs(row[ERROR].value) for row in wider)
        below += f"\nwider ones, up to {last} bits, are not drawn: all means within {most:.2g} % of fp32's return"
    labels = {row["name"]: (row["name"], style_of(row["name"])) for row in points}
    panels = [
        panel(
            name,
            of,
            x="at",
            y="value",
            line="name",
            labels=labels,
            reference="fp32",
            joined=FP16.__ne__,
        )
        for name, of in group_by(points, lambda row: row["panel"]).items()
    ]
    places = in_order(points, "at")
    return {stem: facets(panels, places, title=title, subtitle=below, x_label="bits of the weights")}


def _points(rows: Sequence[Row], last_drawn: int) -> Iterator[dict[str, Any]]:
    """Yield the points of a picture, by measure that the task has."""
    for row, (measure, factor, unit) in itertools.product(rows, MEASURES):
        if row["scheme"] and row["floats"][measure] and (row["bits"] <= last_drawn or row["name"] == FP16):
            at = FP16 if row["name"] == FP16 else row["bits"]
            values = {"at": at, "value": row[measure].times(factor), "fp32": row["floats"][measure].times(factor)}
            where = " ".join(filter(None, (row["label"], row["preset"])))
            yield {**values, "name": row["name"], "panel": f"{where}: {unit}  n={row['floats']['episodes']:,}"}


def style_of(name: str) -> int:
    """Return a scheme keeps its colour from picture to picture; all others share one."""
    return STYLED.index(name) if name in STYLED else len(STYLED)


EXPERIMENT = Experiment(
    name="sweep",
    factors=("scheme", "activations", "observation", "bits"),
    subjects=("I", "II", "III", *BENCHMARK, "pong-dqn", "pong-ppo"),
    grid=grid,
    measure=measure,
    identity=bundle_identity,
    episodes=episodes_of,
    tables=[overview, details],
    figures=[pictures],
    about=lambda name: describe_source(load(name)),
    require=open_bundle,
)


@cli.verb()
def sweep(options: Options) -> int:
    """How few bits can a policy take? Post-training quantization to every width, the same episodes with each.

        quarl study sweep cartpole-dqn
        quarl study sweep II --scheme symmetric --bits 2-8 --seeds 0,2,4 --episodes 100
        quarl study sweep I --bits 32 --activation-bits 3
        quarl study sweep --keep                      measures missing rows of all committed policies
        quarl study sweep --stored --update-docs      fills docs/study.md, draws the pictures

    Schemes: `quarl` is the paper's affine quantizer, per tensor. The paper's slides quantize weights; here it is
    measured on weights alone (--weights-only) and on weights and activations. `quarl-released` is what the paper's
    released script computes instead, on weights alone. `symmetric` is what devices run, per output channel, with
    activations of 8 bits where the weights have fewer. The observation and the outputs keep 8 bits or more
    (policy/simulate.py). Without --scheme and the options about activations, all of these are measured. The table of
    one policy has every width and how a device would execute it; that of several policies has the decisive widths.
    Quantization is simulated in float.
    """
    return command.run(__name__, options)


main = cli.of("study sweep")
