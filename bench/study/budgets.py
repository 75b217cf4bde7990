"""Do mixed widths beat the same width everywhere, at the same size?

    python -m bench.study budgets cartpole-dqn --budget-bits 3,4
    python -m bench.study budgets --keep                     measures what is not kept yet of all committed perceptrons
    python -m bench.study budgets --stored --update-docs     fills docs/layers.md, draws the picture

Every assignment of 2 … 8 bits to the layers that is as large as a uniform one is estimated by its output error on
calibration observations. The best is flown on fresh episodes beside the uniform one; a second one is chosen by flying
the six best estimated and the uniform one, on episodes other than those that judge it.

Sizes are bits of the kernels as a packed format would take them; the native engine packs 8, 4 and 2 bits
(``make convert BITS=mixed``), the int8 container gives every weight a byte. Symmetric scheme, simulated in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.lines import error_lines
from bench.report.pivot import Pivot
from bench.study.bundles import PERCEPTRONS, SEEDS, fly, of_bundles, open_perceptron
from bench.study.experiment import EpisodePlan, Results, SeedResult
from bench.study.layers import estimator
from bench.study.measures.damage import fullest
from bench.study.records import Condition
from convert.mixed import Assignment, kernel_sizes, total_bits
from train.deciding import decide_with, float_decide

if TYPE_CHECKING:
    import argparse

FRESH_SEEDS = (11, 13, 17)  # of judging: nothing was chosen by these
BUDGETS = (3, 4)
TRIED = 6  # assignments of a budget that are flown to choose one, the uniform one apart
UNIFORM, ESTIMATED, FLOWN = "uniform", "estimate", "flight"
LABELS = {UNIFORM: "one width everywhere", ESTIMATED: "mixed, chosen by estimate", FLOWN: "mixed, chosen by flight"}
MARGIN = 1.0  # percent of fp32's return

TABLE = """\
Mixed widths against one width everywhere, at the same size
{% for each in gains %}
{{ each.bits }} bits, chosen by {{ each.chosen }}: over {{ margin }} % better than uniform in {{ each.better }} of \
{{ each.policies }} policies, over {{ margin }} % worse in {{ each.worse }}, neither in {{ each.neither }}, uniform \
itself in {{ each.same }}.
{% endfor %}
Bits: of the layers' kernels from the first to the head. Gain: uniform's relative error minus the mixed one's on the \
same episodes, in % of |fp32|, with its paired 95 % interval (Student's t); positive: mixed plays better. Better and \
worse count where the whole interval is.
Chosen by estimate: the least output error on calibration observations, among all assignments that fill the budget; \
nothing was flown. Chosen by flight: the best return of the {{ tried }} with the least output error and the uniform \
one, on seeds {{ choosing | map("string") | joined }}. All are judged on fresh episodes, seeds {{ results.seeds }}.
Size: bits of all kernels, as a packed format would take them, at most those of the uniform assignment. In the int8 \
container every weight takes a byte, so no file gets smaller and nothing faster.
{{ results.measured }}
"""


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, and for each budget the uniform assignment and two mixed ones."""
    budgets = arguments.budget_bits or BUDGETS
    return [{}, *({"budget": bits, "chosen": chosen} for bits in budgets for chosen in LABELS)]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """The assignment that is chosen so, judged on fresh episodes."""
    if both := sorted(set(SEEDS) & set(episodes.seeds)):
        raise command_line.UsageError(f"seed {both[0]} is to choose and to judge.", "--seeds 11,13,17")
    bundle, task = open_perceptron(subject)
    if not condition:
        yield from fly(task, float_decide(bundle), episodes, {})
        return
    kernels = kernel_sizes(bundle.spec)
    assignment, candidates = choose(subject, kernels, condition["budget"], condition["chosen"], episodes.count)
    measures = {
        "widths": "/".join(map(str, assignment.values())),
        "kernel_bits": total_bits(kernels, assignment),
        "candidates": candidates,
        "output_error": estimator(subject).damage(assignment).output_error,
    }
    yield from fly(task, decide_with(bundle.spec, estimator(subject).assembled(assignment)), episodes, measures)


def choose(subject: str, kernels: dict[str, int], bits: int, chosen: str, count: int) -> tuple[Assignment, int]:
    """The assignment, and how many fill the budget; to choose by flight, ``count`` episodes of each seed are flown."""
    same = dict.fromkeys(kernels, bits)
    if chosen == UNIFORM:
        return same, 1
    choices = fullest(kernels, total_bits(kernels, same))
    choices.sort(key=lambda each: estimator(subject).damage(each).output_error)
    if chosen == ESTIMATED:
        return choices[0], len(choices)
    tried = choices[:TRIED]
    tried += [same] if same not in tried else []
    bundle, task = open_perceptron(subject)

    def earned(assignment: Assignment) -> float:
        decide = decide_with(bundle.spec, estimator(subject).assembled(assignment))
        return sum(sum(task.evaluate(decide, count, seed, task.presets[0]).returns) for seed in SEEDS)

    return max(tried, key=earned), len(choices)  # of equal returns the one of the smaller estimate, the earlier one


def judged(results: Results, subject: str, bits: int) -> dict[str, dict[str, Any]]:
    """A budget's three assignments by how they were chosen, with ``gain``: None of the uniform assignment itself,
    whoever chose it."""
    found = {row["chosen"]: dict(row) for row in results.of(subject) if row["budget"] == bits}
    for chosen, row in found.items():
        same, mixed = ({"budget": bits, "chosen": name} for name in (UNIFORM, chosen))
        is_uniform = row["widths"] == found[UNIFORM]["widths"]
        row["gain"] = None if is_uniform else results.contrast(subject, same, mixed, row["preset"])
    return found


def mixed(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each policy, budget and way to choose, with the uniform assignment's row as ``uniform``."""
    for subject in results.subjects:
        for bits in sorted({row["budget"] for row in results.of(subject) if row["budget"]}):
            found = judged(results, subject, bits)
            for chosen in (ESTIMATED, FLOWN):
                yield {**found[chosen], "uniform": found[UNIFORM]}


def gains(results: Results) -> list[dict[str, Any]]:
    """How often each way to choose is better at each budget."""
    found: dict[tuple[int, str], list[Estimate | None]] = {}
    for row in mixed(results):
        found.setdefault((row["budget"], row["chosen"]), []).append(row["gain"])
    return [{"bits": bits, "chosen": chosen, **counts(of)} for (bits, chosen), of in sorted(found.items())]


def counts(found: list[Estimate | None]) -> dict[str, int]:
    """How often mixed widths are better by more than the margin."""
    gains = [gain for gain in found if gain is not None]
    better, worse = (sum(gain.times(side).is_above(MARGIN) for gain in gains) for side in (1.0, -1.0))
    counts = {"better": better, "worse": worse, "same": len(found) - len(gains), "policies": len(found)}
    return {**counts, "neither": len(gains) - better - worse}


MIXED = Pivot(
    name="layer-widths",
    words=TABLE,
    lead={
        "policy, episodes": "{{ subject }}, n={{ episodes | thousands }}",
        "uniform bits (kbit)": "{{ budget }} ({{ '{:,.1f}'.format(uniform.kernel_bits / 1000) }} k)",
    },
    columns=[
        {"uniform: error, %": "{{ uniform.error | lost }}"},
        {
            "by {{ chosen }}: bits": "{{ widths }}",
            "by {{ chosen }}: gain, %": "{{ gain | lost('+') if gain else 'same' }}",
        },
    ],
    rows=mixed,
    facts=lambda results: {"gains": gains(results), "tried": TRIED, "choosing": SEEDS, "margin": f"{MARGIN:g}"},
    grouped=True,
)
OVER_SIZES = error_lines(
    stem="layer-widths",
    title="Mixed widths against one width everywhere, at the same size",
    x="budget",
    x_label="bits of the uniform assignment of that size",
    line="chosen",
    labels={chosen: (label, style) for style, (chosen, label) in enumerate(LABELS.items())},
    rows=lambda results: [row for subject in results.subjects for row in results.of(subject)],
    counted="none of which an assignment was chosen by",
    joined=False,
)


EXPERIMENT = of_bundles(
    name="budgets",
    question="are mixed widths worth it, at the same size?",
    factors=("budget", "chosen"),
    subjects=PERCEPTRONS[:11],  # up to Walker2D: the other robots and III take longest
    seeds=FRESH_SEEDS,
    options=lambda parser: parser.add_argument(
        "--budget-bits", type=command_line.bits(3, 7), metavar="3,4", help="of uniform widths; default: 3,4"
    ),
    grid=grid,
    measure=measure,
    tables=[MIXED],
    figures=[OVER_SIZES],
)
