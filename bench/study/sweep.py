"""How few bits can a policy take? Post-training quantization to every width, the same episodes with each.

    python -m bench.study sweep cartpole-dqn
    python -m bench.study sweep II --scheme symmetric --bits 2-8 --seeds 0,2,4 --episodes 100
    python -m bench.study sweep I --bits 32 --activation-bits 3
    python -m bench.study sweep --keep                      measures what is not kept yet of all committed policies
    python -m bench.study sweep --stored --update-docs      fills docs/study.md, draws the pictures

quarl is the paper's affine quantizer, per tensor, of weights and activations; quarl-released is what its released
script computes instead (weights only); symmetric is what devices run, per output channel, with activations of 8 bits
where the weights have fewer. The observation and the outputs keep 8 bits or more (policy/simulated.py). Without
--scheme and the options about activations all of these are measured. Of one policy the table has every width, and says
how a device would execute it; of several the widths that decide. Quantization is simulated in float.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.measuring.execution import DEVICE_ACTIVATION_BITS, execution_of
from bench.report.figures import Line, Panel, Pictures, facets
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, lost
from bench.study.experiment import ERROR, LOST, RETURN, SUCCESS, Episodes, Experiment, Played, Results
from bench.study.flying import BENCHMARK, SEEDS, bundle_identity, fly, load, open_bundle, quantized
from bench.study.records import Condition
from policy.integer import trained_with
from policy.locate import meant
from policy.quantization import FLOAT_BITS, LARGEST_SIMULATED_BITS, Scheme
from policy.simulated import HALF_BITS, WEIGHTS_ONLY, Widths
from train.suites.names import Suite, resolve

if TYPE_CHECKING:
    import argparse

    from matplotlib.figure import Figure

    from bench.report.intervals import Estimate
    from policy.spec import PolicySpec

Row = Mapping[str, Any]
FP16, FLOAT = Scheme.FP16.value, "float"
SHOWN, NARROW = (2, 3, 4, 6, 8), tuple(range(2, 9))
SCHEMES = (Scheme.QUARL.value, Scheme.QUARL_RELEASED.value, Scheme.SYMMETRIC.value)
PAPERS: Condition = {"scheme": Scheme.QUARL.value, "activations": FLOAT}
"""The paper's quantizer on the weights alone."""
SERIES: tuple[Condition, ...] = ({"scheme": SCHEMES[0]}, PAPERS, {"scheme": SCHEMES[1]}, {"scheme": SCHEMES[2]})
WIDTHS = (*NARROW, 10, 12, 14, HALF_BITS, FP16, 20, 24, 28, FLOAT_BITS)
SLOW = (Suite.BOX2D, Suite.PYBULLET, Suite.MUJOCO, Suite.DM_CONTROL)
"""Whose simulators make all widths take an hour: they get fewer widths, schemes and episodes; Atari games fewer yet."""
SERIES_OF = {Suite.ATARI: (PAPERS,), **dict.fromkeys(SLOW, (PAPERS, SERIES[3]))}
STYLED = ("quarl", "quarl, weights only", "quarl-released", "symmetric", FP16)
"""Of each scheme by name: place in :data:`bench.report.figures.STYLES`."""
NOTICEABLE = 1.0  # percent of |fp32|: pictures end where nothing wider loses more

OVERVIEW = """\
Relative error of the return, %, by bits of the weights
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); \
negative: better than fp32; 0: less than 0.005 % in all three numbers; without brackets: all episodes are equal.
Episodes of each: {{ episodes | join(", ") }}. Simulated in float; how a device executes each width is said by \
`python -m bench.study sweep POLICY`. {{ unknown }}: not measured.
{{ results.games }}
{{ results.measured }}
"""
DETAILS = """\
{{ title }}
Means over {{ episodes }} greedy episodes, the same at every width, with 95 % intervals; differences are paired. \
Error: (fp32 − quantized) / |fp32|. Other action: share of the bundle's golden observations on which it is not fp32's.
{% for words, which in executions.items() %}
{{ which | join("; ") }} bits: {{ words }}.
{% endfor %}
{{ results.games }}
{{ results.measured }}
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--scheme, --bits, --weights-only, --activation-bits, --input-bits."""
    hidden = command_line.bits(2, LARGEST_SIMULATED_BITS)
    parser.add_argument("--scheme", choices=SCHEMES, help="default: quarl with and without activations, and the others")
    parser.add_argument("--bits", type=widths, metavar="2-8,fp16", help="default: 2 … 32; of slow simulators 2 … 8")
    parser.add_argument("--weights-only", action="store_true", help="leave activations and observation float")
    parser.add_argument("--activation-bits", type=hidden, metavar="N", help="of hidden layers, at every width")
    parser.add_argument("--input-bits", type=hidden, metavar="N", help="of the observation, at every width")


def widths(text: str) -> tuple[int | str, ...]:
    """``2-8,fp16,32``; a range is every whole number in it."""
    names = command_line.words(text)
    numbers = [name for name in names if name != FP16]
    found = command_line.bits(2, FLOAT_BITS)(",".join(numbers)) if numbers else ()
    return (*found, *([FP16] if FP16 in names else []))


def suite_of(subject: str) -> Suite:
    """Where a bundle's task comes from."""
    return resolve(str(load(subject).spec.provenance["task"])).suite


def series_asked(arguments: argparse.Namespace) -> list[Condition]:
    """Schemes with what their activations and observation are asked to have; none where the options say nothing.

    Raises:
        UsageError: the options contradict each other.
    """
    activations, observation = arguments.activation_bits, arguments.input_bits
    if not (arguments.scheme or arguments.weights_only or activations or observation):
        return []
    scheme = arguments.scheme or SCHEMES[0]
    if arguments.weights_only and (activations or observation):
        raise command_line.UsageError("--weights-only leaves activations and observation float; give no bits of them.")
    if scheme == Scheme.QUARL_RELEASED.value and (activations or observation):
        raise command_line.UsageError("the released script quantizes weights only.", "--scheme quarl, or symmetric")
    if arguments.weights_only and Scheme(scheme) not in WEIGHTS_ONLY:
        activations = (FLOAT,)
    parts = [{"activations": a, "observation": o} for a in activations or (None,) for o in observation or (None,)]
    return [{"scheme": scheme, **{name: n for name, n in each.items() if n is not None}} for each in parts]


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, fp16, and each scheme at each width; 32 bits with everything else in float are fp32."""
    suite = suite_of(subject)
    asked = arguments.bits or (NARROW if suite in SERIES_OF else WIDTHS)
    half: list[Condition] = [{"scheme": FP16, "bits": HALF_BITS}] if FP16 in asked else []
    series = series_asked(arguments) or SERIES_OF.get(suite, SERIES)
    every = [{**each, "bits": bits} for each in series for bits in asked if bits != FP16]
    in_floats = {FLOAT, FLOAT_BITS, *SCHEMES}
    return [{}, *half, *(each for each in every if each["bits"] != FLOAT_BITS or set(each.values()) - in_floats)]


def episodes_of(arguments: argparse.Namespace, subject: str) -> Episodes:
    """A hundred of each of the paper's seeds; twenty where they take seconds, of one seed where they take minutes."""
    suite = suite_of(subject)
    seeds = (0,) if suite is Suite.ATARI else SEEDS
    return Episodes(arguments.seeds or seeds, arguments.episodes or (20 if suite in SERIES_OF else 100))


def widths_of(asked: Condition, spec: PolicySpec) -> Widths:
    """What a condition means.

    Activations: in ``quarl`` as many bits as the weights; ``quarl-released`` leaves them float, as its script does; in
    ``symmetric`` 8 bits where the weights have fewer, as the artifacts on devices (or as many as the policy was trained
    with, at its own width), else as many as the weights. 32 leaves everything float, fp16 the activations.

    Raises:
        QuantizationError: the widths cannot be.
    """
    scheme, bits = Scheme(asked["scheme"]), asked["bits"]
    activations = asked.get("activations")
    if activations is None and bits <= LARGEST_SIMULATED_BITS and scheme not in WEIGHTS_ONLY:
        activations = bits
        if scheme is Scheme.SYMMETRIC and trained_with(spec, bits) is None:
            activations = max(DEVICE_ACTIVATION_BITS, bits)
    return Widths(scheme, bits, None if activations == FLOAT else activations, asked.get("observation"))


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """The policy at these widths, and which ones its activations and observation have."""
    bundle, task = open_bundle(subject)
    widths = widths_of(asked, bundle.spec) if asked else None
    decide, measures = quantized(bundle, widths)
    measures = {**measures, "task": task.name}
    if widths is not None:
        measures |= {"activation_bits": widths.activation_bits, "observation_bits": widths.observation_bits}
    if (trained := bundle.spec.quantization) is not None:
        measures["trained_bits"] = trained.bits
    yield from fly(task, decide, episodes, measures)


# --- tables -----------------------------------------------------------------------------------------------------------


def name_of(row: Row) -> str:
    """A scheme with what else was asked for: ``quarl, weights only``, ``symmetric, activations of 4 bits``."""
    given = {factor: row.get(factor) for factor in ("activations", "observation")}
    said = (f"{factor} of {bits} bits" for factor, bits in given.items() if bits not in (None, FLOAT))
    return ", ".join([row["scheme"], *(["weights only"] if FLOAT in given.values() else []), *said])


def rows_of(results: Results, subjects: Sequence[str]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """By subject and preset, and then by scheme: rows from few bits to many; those without fp32 are left out."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in results.summary:
        if row["subject"] in subjects:
            name = name_of(row) if row["scheme"] else "fp32"
            found.setdefault((row["subject"], row["preset"]), {}).setdefault(name, []).append(row)
    return {place: schemes for place, schemes in found.items() if "fp32" in schemes}


def tables(results: Results) -> list[Table]:
    """Of one policy every width, a table for each preset; of several the widths that decide."""
    found = rows_of(results, results.subjects)
    if len(results.subjects) == 1:
        return [details(results, preset, schemes) for (_, preset), schemes in found.items()]
    rows: list[dict[str, str]] = []
    for (subject, preset), schemes in found.items():
        rows += [{}] if rows and rows[-1].get("policy") not in (None, subject) else []
        for name, of in schemes.items():
            if name not in ("fp32", FP16):
                errors = {row["bits"]: lost(row[ERROR]) for row in of}
                shown = {f"{bits} bits": errors.get(bits, NOT_KNOWN) for bits in SHOWN}
                rows.append({"policy": subject, "scheme": name, "preset": preset or NOT_KNOWN, **shown})
    counts = dict.fromkeys(f"{schemes['fp32'][0]['episodes']:,}" for schemes in found.values())
    return [results.table("sweep", OVERVIEW, rows, 3, episodes=counts, unknown=NOT_KNOWN)]


def details(results: Results, preset: str, schemes: Mapping[str, Sequence[Row]]) -> Table:
    """Every width of a policy on a preset, and how each executes."""
    first = schemes["fp32"][0]
    rows = [
        {
            "scheme": name,
            "bits": str(row["bits"] or FLOAT_BITS),
            "activations": str(row.get("activation_bits") or FLOAT),
            "observation": str(row.get("observation_bits") or FLOAT),
            **({"success, %": estimate(row[SUCCESS], 100.0)} if first[SUCCESS] else {}),
            "return": estimate(row[RETURN]),
            "minus fp32": estimate(row[LOST] if row["scheme"] else None, sign="+"),
            "error, %": estimate(row[ERROR] if row["scheme"] else None, sign="+"),
            "other action, %": f"{100 * row['other action']:.1f}" if row["scheme"] else NOT_KNOWN,
        }
        for name, found in schemes.items()
        for row in found
    ]
    where = ", ".join(filter(None, (f"{Path(first['subject']).name} on {first['task']}", preset)))
    facts: dict[str, Any] = {"title": where, "episodes": f"{first['episodes']:,}", "executions": executions(schemes)}
    return results.table("sweep-details", DETAILS, rows, grouped=True, **facts)


def papers_error(results: Results, subject: str, bits: int) -> Estimate | None:
    """A policy's relative error by the paper's quantizer on its weights alone, on the preset that it was trained on."""
    for schemes in rows_of(results, [subject]).values():
        return next((row[ERROR] for row in schemes.get("quarl, weights only", ()) if row["bits"] == bits), None)
    return None


def executions(schemes: Mapping[str, Sequence[Row]]) -> dict[str, list[str]]:
    """How a device executes the widths, in words, and which ones: ``symmetric at 2``."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, rows in schemes.items():
        for row in rows if name != "fp32" else ():
            trained = row.get("trained_bits") == row["bits"]
            execution = execution_of(Scheme(row["scheme"]), row["bits"], row["activation_bits"], trained=trained)
            found.setdefault(execution.words, {}).setdefault(name, []).append(str(row["bits"]))
    return {words: [f"{name} at {', '.join(bits)}" for name, bits in which.items()] for words, which in found.items()}


# --- pictures ---------------------------------------------------------------------------------------------------------


def figures(results: Results) -> Pictures:
    """One of each policy, a line for each scheme; and one of each task that several policies have."""
    names = {subject: Path(subject).name for subject in results.subjects}
    drawn = {f"sweetspot-{n}": _figure(results, [each], f"How few bits {n} takes") for each, n in names.items()}
    tasks: dict[str, list[str]] = {}
    for subject in names:
        tasks.setdefault(results.of(subject)[0]["task"], []).append(subject)
    for task, subjects in tasks.items():
        if len(subjects) > 1:
            stem = "sweetspot-task-" + re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")
            drawn[stem] = _figure(results, subjects, f"How few bits policies of {task} take")
    return drawn


def _figure(results: Results, subjects: Sequence[str], title: str) -> Figure:
    """A panel for each policy, preset and measure; the axis ends where no wider one of them loses more."""
    found = rows_of(results, subjects)
    every = [row for schemes in found.values() for rows in schemes.values() for row in rows]
    wholes = [row for row in every if row["scheme"] not in (None, FP16)]
    lossy = [row["bits"] for row in wholes if row[ERROR] is not None and row[ERROR].is_above(NOTICEABLE)]
    places = sorted({row["bits"] for row in wholes if row["bits"] <= max(*NARROW, *lossy)})
    wider = [row for row in wholes if row["bits"] not in places and row[ERROR] is not None]
    said = "bars: 95 % intervals; dashed, with a band: fp32; n: episodes a point, the same at every width"
    if wider:
        most, last = max(abs(row[ERROR].value) for row in wider), max(row["bits"] for row in wider)
        said += f"\nwider ones, up to {last} bits, are not drawn: all means within {most:.2g} % of fp32's return"
    panels = [panel for place, schemes in found.items() for panel in _panels(*place, schemes)]
    half = [FP16] if any(row["scheme"] == FP16 for row in every) else []
    return facets(panels, [*places, *half], title=title, said=said, x_label="bits of the weights")


def _panels(subject: str, preset: str, schemes: Mapping[str, Sequence[Row]]) -> Iterator[Panel]:
    """Success, where the task has it, and return."""
    fp32 = schemes["fp32"][0]
    where = " ".join(filter(None, (Path(subject).name, preset)))
    for measure, factor, unit in ((SUCCESS, 100.0, "success, %"), (RETURN, 1.0, "return")):
        lines = []
        for name, rows in schemes.items() if fp32[measure] else ():
            points = {FP16 if name == FP16 else row["bits"]: row[measure].times(factor) for row in rows}
            lines += [Line(name, points, style_of(name), joined=name != FP16)] if name != "fp32" else []
        if fp32[measure]:
            yield Panel(f"{where}: {unit}  n={fp32['episodes']:,}", lines, fp32[measure].times(factor))


def style_of(name: str) -> int:
    """A scheme keeps its colour from picture to picture; all others share one."""
    return STYLED.index(name) if name in STYLED else len(STYLED)


EXPERIMENT = Experiment(
    name="sweep",
    question="how few bits does a policy take?",
    factors=("scheme", "activations", "observation", "bits"),
    subjects=("I", "II", "III", *BENCHMARK, "pong-dqn", "pong-ppo"),
    grid=grid,
    measure=measure,
    identity=bundle_identity,
    episodes=episodes_of,
    tables=[tables],
    figures=[figures],
    about=lambda name: meant(load(name)),
    require=open_bundle,
    options=options,
)
