"""Weights, hidden activations, observation: which of the three has to keep its bits? Each apart, the others at 8.

    python -m bench.study apart cartpole-dqn
    python -m bench.study apart II --bits 4,3,2 --episodes 400
    python -m bench.study apart --keep                      measures what is not kept yet of all committed perceptrons
    python -m bench.study apart --stored --update-docs      fills docs/layers.md, draws the picture

The symmetric scheme, which devices run, simulated in float: kernels with one scale a channel, activations and the
normalised observation with one range each, seen on the calibration observations. All widths fly the same episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.lines import error_lines
from bench.report.pivot import Pivot
from bench.report.text import filled, several
from bench.study.bundles import PERCEPTRONS, ROBOTS, fly, of_bundles, open_perceptron, quantized
from bench.study.experiment import ERROR, EpisodePlan, Results, SeedResult
from bench.study.records import Condition
from policy.quantization import Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    import argparse

PARTS = {"weights": "weights", "hidden": "hidden activations", "input": "observation"}
OTHERS_BITS = 8
BITS, BITS_OF_ROBOTS = (7, 6, 5, 4, 3, 2), (4, 3, 2)
SHOWN = (4, 3, 2)  # widths whose errors stand in the table
LIMITS = (5.0, 2.0)  # percent of fp32's return
FEW = 3  # bits whose losses are counted
MARGIN = 1.0  # likewise: where all is lost, or nothing, paired intervals tell differences apart that mean nothing

APART_WORDS = """\
One part with few bits, the other two with 8: what it costs
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); 0: \
less than 0.005 % in all three numbers; without brackets: all episodes are equal, so that they give no interval. \
Bits within 5 %: the fewest at which, and at every larger measured width, the whole interval is at or below 5 %; – \
where these episodes do not show that even 8 bits are.
n-bit weights have 2ⁿ − 1 levels, one scale a channel; activations and observation 2ⁿ levels over one range that the \
calibration observations span. Simulated in float; no size or speed follows from it.
{{ results.measured }}
"""
COSTS_WORDS = """\
Which part decides
First to cost over {{ limit }} %, going down from 8 bits (the whole interval above): \
{% for part, name in parts.items() %}the {{ name }} alone in {{ firsts.count((part,)) }}, {% endfor %}\
several at once in {{ firsts | map("length") | select("gt", 1) | list | length }}; \
none down to 2 bits in {{ policies - firsts | length }} of {{ policies }} policies.
{% for bits, most in costliest.items() %}
Costs most at {{ bits }} bits: {% for part, name in parts.items() %}the {{ name }} in {{ most.count(part) }}, \
{% endfor %}not decided in {{ most.count(none) }}.
{% endfor %}
Within {{ limit }} % of fp32, by the whole interval, at {{ few }} bits and above: \
{% for name, count in within.items() %}the {{ name }} in {{ count }}{{ ", " if not loop.last }}{% endfor %} \
of {{ policies }} policies.
Costs most: loses over 1 % of |fp32| more than either other part, by the whole paired 95 % intervals; – where that is \
not shown, because nothing is lost, or everything, or the episodes are too few. Each policy is one training.
"""


def condition_of(part: str, bits: int) -> Condition:
    """The condition of a part at a width; at 8 bits all three are one and the same policy."""
    return {"part": part if bits != OTHERS_BITS else "all", "bits": bits}


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, all parts at 8 bits, and each part at each width below."""
    below = arguments.bits or (BITS_OF_ROBOTS if subject in ROBOTS else BITS)
    narrow = (condition_of(part, n) for part in PARTS for n in below if n < OTHERS_BITS)
    return [{}, condition_of("all", OTHERS_BITS), *narrow]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """One part at its width, the other two at 8 bits; the head's outputs keep 8 in any case."""
    bundle, task = open_perceptron(subject)
    given = (
        {part: condition["bits"] if part == condition["part"] else OTHERS_BITS for part in PARTS} if condition else {}
    )
    widths = Widths(Scheme.SYMMETRIC, given["weights"], given["hidden"], given["input"]) if given else None
    decide, measures = quantized(bundle, widths)
    yield from fly(task, decide, episodes, measures)


def points(results: Results, subject: str) -> list[dict[str, Any]]:
    """Each part's widths, from many bits to few, all parts' 8 bits among them."""
    rows = [row for row in results.of(subject) if row["part"]]
    every = [{**row, "part": part} for part in PARTS for row in rows if row["part"] in (part, "all")]
    return sorted(every, key=lambda row: -row["bits"])


def fewest_bits(results: Results, subject: str, part: str, limit: float) -> int | None:
    """The fewest bits at which, and at all larger measured widths, the error is within the limit."""
    fewest = None
    for row in points(results, subject):
        if row["part"] == part:
            if row[ERROR] is None or not row[ERROR].is_within(limit):
                break
            fewest = row["bits"]
    return fewest


def first_loss(results: Results, subject: str) -> tuple[int, tuple[str, ...]] | None:
    """Going down from 8 bits: the first width at which parts surely cost more than the limit, and these parts."""
    costs = [row for row in points(results, subject) if row[ERROR] is not None and row[ERROR].is_above(LIMITS[0])]
    return (bits := costs[0]["bits"], tuple(row["part"] for row in costs if row["bits"] == bits)) if costs else None


def costliest(results: Results, subject: str, bits: int) -> str | None:
    """The part that costs over 1 % more than either other one at a width, by the whole intervals; None if undecided."""
    preset = results.of(subject)[0]["preset"]
    for part in PARTS:
        others = [condition_of(other, bits) for other in PARTS if other != part]
        more = [results.contrast(subject, condition_of(part, bits), other, preset) for other in others]
        if all(each is not None and each.is_above(MARGIN) for each in more):
            return part
    return None


def parts(results: Results) -> Iterator[dict[str, Any]]:
    """The rows of all policies, with the fewest bits of their part within each limit."""
    for subject in results.subjects:
        fewest = {part: [fewest_bits(results, subject, part, limit) for limit in LIMITS] for part in PARTS}
        for row in points(results, subject):
            yield {**row, "fewest": fewest[row["part"]], "name": PARTS[row["part"]], "shown": row["bits"] in SHOWN}


def deciding(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each policy and width: the parts that cost first, and the one that costs most at that width."""
    for subject in results.subjects:
        first = first_loss(results, subject)
        words = f"{parts_in_words(first[1])}, at {first[0]} bits" if first else "nothing down to 2"
        for bits in SHOWN:
            most = costliest(results, subject, bits)
            yield {"subject": subject, "first": first, "words": words, "bits": bits, "most": most}


def costs_facts(results: Results) -> dict[str, Any]:
    """Facts for the notes of the second table."""
    rows = list(deciding(results))
    most = {bits: [row["most"] for row in rows if row["bits"] == bits] for bits in SHOWN}
    firsts = {row["subject"]: row["first"][1] for row in rows if row["first"]}
    return {**within(results), "parts": PARTS, "firsts": list(firsts.values()), "costliest": most}


FINDING = """\
One part of a policy at {{ few }} bits, the others at 8: within {{ limit }} % of fp32 by the whole interval in \
{% for name, count in within.items() %}{{ count }} of {{ policies }} policies where it is the {{ name }}\
{{ ", in " if not loop.last }}{% endfor %}.
"""


def finding(results: Results) -> str:
    """A sentence on which part may have few bits, and how often."""
    return filled(FINDING, **within(results))[0]


def within(results: Results) -> dict[str, Any]:
    """How many policies each part leaves within the larger limit at :data:`FEW` bits and above, for templates."""
    fewest = {
        name: [fewest_bits(results, each, part, LIMITS[0]) for each in results.subjects] for part, name in PARTS.items()
    }
    counts = {name: sum(bits is not None and bits <= FEW for bits in found) for name, found in fewest.items()}
    return {"within": counts, "few": FEW, "limit": f"{LIMITS[0]:g}", "policies": len(results.subjects)}


def parts_in_words(parts: Sequence[str]) -> str:
    """Parts in words: ``weights and observation``, ``all three``."""
    return "all three" if len(parts) == len(PARTS) else several(PARTS[part] for part in parts)


APART = Pivot(
    name="precision-apart",
    words=APART_WORDS,
    lead={"policy, episodes": "{{ subject }}, n={{ episodes | thousands }}", "part": "{{ name }}"},
    columns=[
        {f"bits within {limit:g} %": f"{{{{ fewest[{n}] or '–' }}}}" for n, limit in enumerate(LIMITS)},
        {"error at {{ bits }} bits, %": "{{ error | lost if shown }}"},
    ],
    rows=parts,
    grouped=True,
)
COSTS = Pivot(
    name="precision-costs",
    words=COSTS_WORDS,
    lead={"policy": "{{ subject }}", f"first to cost over {LIMITS[0]:g} %": "{{ words }}"},
    columns=[{"costs most at {{ bits }} bits": f"{{{{ {PARTS}[most] if most else '–' }}}}"}],
    rows=deciding,
    facts=costs_facts,
)
OVER_BITS = error_lines(
    stem="precision-apart",
    title="One part with few bits, the other two with 8",
    x="bits",
    x_label="bits of the part",
    line="part",
    labels={part: (name, style) for style, (part, name) in enumerate(PARTS.items())},
    rows=lambda results: [row for subject in results.subjects for row in points(results, subject)],
)


EXPERIMENT = of_bundles(
    name="apart",
    question="which has to keep its bits: weights, hidden activations, observation?",
    factors=("part", "bits"),
    subjects=PERCEPTRONS[:-2],  # HalfCheetah and III take hours
    options=lambda parser: parser.add_argument(
        "--bits", type=command_line.bits(2, 8), metavar="4,3,2", help="default: 7 … 2, of robots 4,3,2; and 8"
    ),
    grid=grid,
    measure=measure,
    tables=[APART, COSTS],
    figures=[OVER_BITS],
    finding=finding,
)
