"""Does training in 16 bits run faster, and as well? The paper's Pong policies A, B, C by DQN, and learning Catch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import truediv
from statistics import correlation, fmean, median
from typing import Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.text import format_fixed, join_distinct, three_digits, times
from quarl.bench.study import command
from quarl.bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult, look_up
from quarl.bench.study.records import Condition, Record, cell
from quarl.bench.tables import Table, tabulate
from quarl.policy.spec import NATURE_CONVOLUTIONS, Convolution, NetworkSpec
from quarl.train.intervals import Estimate

BATCH = 32  # the paper's DQN
UPDATE, ACTING, PONG, LEARNING = "update", ("act on 1", "act on 8"), "train on Pong", "learn"
CATCH, CATCH_SEEDS = "catch", (0, 1, 2, 3, 4)
FEWEST_ROUNDS = 8  # of losses, to speak of a correlation

TABLE = """\
DQN on Pong in float32 and in 16 bits
Minibatch {{ rows | map(attribute="batch") | joined }}, \
{% set threads = rows | map(attribute="threads") | joined %}{{ threads }} thread{{ "" if threads == "1" else "s" }}, \
TensorFlow {{ tensorflow }} with oneDNN, on {{ results.where }}; the processor has {{ units | several }}; no GPU \
(tensorflow-cpu drives none). Processor times, medians, float32 and the 16-bit type timed in turns \
({{ counts | join(", ") }} times); by wall time the updates' speed-ups are {{ wall | join(", ") }}.
The paper's: ratios of its 127 → 156, 179 → 172, 391 → 242 minutes of training in float16, on hardware it does not \
name (its slide prints 0.87, 1.04 and 1.61); it states no kernels: here 8/4, 4/2, 3/1 (kernel/stride) as in Mnih et \
al. 2015.
{% if steps %}
Pong: emulator, acting, replay and one update in four steps, after the first round of updates: \
{{ steps | join(", ") }} steps.
Mean loss while Pong is learned, float32 and 16 bits: {{ losses | join("; ") }}.
{% endif %}
"""
CATCH_TABLE = """\
Learning Catch by DQN: greedy return, mean of {{ rows[0].curves | length }} seeds [lowest, highest]
{% for type, minus in types.items() %}
{{ type }} − float32, seed by seed, with its 95 % interval (Student's t): {{ minus.last | estimate(sign="+") }} at the \
last step, {{ minus.area | estimate(sign="+") }} over the whole curve.
{% endfor %}
{{ rows[0].judged }} greedy episodes a point; returns lie between −1 and 1. Measured on {{ results.where }}.
"""


@dataclass(frozen=True)
class PongPolicy:
    """A network of the paper's mixed-precision case, and how much of it is measured unless told otherwise.

    Attributes:
        filters: of each of the three convolutions, whose kernels and strides (8/4, 4/2, 3/1) are those of Mnih et al.
            2015: the paper states none.
        hidden: width of the fully connected layer.
        paper_minutes: the paper's training time in float32 and in mixed precision, on hardware it does not name.
        updates: measured in each type.
        in_a_call: updates in one compiled call.
        acting: calls measured in each type.
        steps: of the training on Pong, after learning has begun.
        rollout_steps: of each of its environments, between two rounds of updates.
    """

    filters: int
    hidden: int
    paper_minutes: tuple[int, int]
    updates: int
    in_a_call: int
    acting: int
    steps: int
    rollout_steps: int

    @property
    def network(self) -> NetworkSpec:
        """The layers."""
        layers = tuple(Convolution(self.filters, layer.kernel, layer.stride) for layer in NATURE_CONVOLUTIONS)
        return NetworkSpec((self.hidden,), convolutions=layers)


POLICIES = {
    "A": PongPolicy(128, 128, (127, 156), updates=80, in_a_call=8, acting=60, steps=1024, rollout_steps=8),
    "B": PongPolicy(512, 512, (179, 172), updates=12, in_a_call=2, acting=15, steps=128, rollout_steps=8),
    "C": PongPolicy(1024, 2048, (391, 242), updates=4, in_a_call=1, acting=15, steps=48, rollout_steps=2),
}
SUBJECTS: dict[str, PongPolicy | None] = {**POLICIES, CATCH: None}


def about(subject: str) -> str:
    """Return the policy in words."""
    policy = look_up(subject, SUBJECTS, "policy")
    return f"policy {subject}: {network_words(policy)}" if policy else "learning Catch"


def network_words(policy: PongPolicy) -> str:
    """Return the network in words: ``3 conv(128) + FC 128``."""
    return f"3 conv({policy.filters}) + FC {policy.hidden}"


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.Options):
    """What to measure.

    Attributes:
        type: of the 16-bit floats
        updates: of each policy and type (default: 80, 12, 4)
        steps: on Pong after learning began (default: 1024, 128, 48; 0: none)
        batch: minibatch
        threads: of the processor
    """

    type: Literal["bfloat16", "float16"] = "bfloat16"
    updates: command_line.Positive | None = None
    steps: command_line.NotNegative | None = None
    batch: command_line.Positive = BATCH
    threads: command_line.Positive = 1


def grid(options: Options, subject: str) -> list[Condition]:
    """Return the 16-bit type in each kind of work, float32 being timed in turns with it."""
    both = {"threads": options.threads, "type": options.type, "half": True}
    if subject == CATCH:
        return [{"work": LEARNING, **both}]
    counts = {UPDATE: options.updates, **dict.fromkeys(ACTING), PONG: options.steps}
    return [
        {"work": work, "batch": options.batch, **({"count": count} if count else {}), **both}
        for work, count in counts.items()
        if count != 0
    ]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Yield values: a turn's processor time in ms (update, acting), steps a CPU-second (Pong), or a return
    (Catch)."""
    from quarl.bench.study.measures import mixed_timing as timing

    facts = timing.prepare(condition["threads"], condition["type"])
    policy = POLICIES.get(subject)
    for seed in episodes.seeds:
        timings: Mapping[str, tuple[list[float], dict[str, Any]]]
        if policy is None:
            timings = timing.learn_catch(condition["type"], seed)
        elif condition["work"] == UPDATE:
            count = condition.get("count") or policy.updates
            timings = timing.time_updates(
                policy.network, condition["type"], count, policy.in_a_call, condition["batch"], seed
            )
        elif condition["work"] == PONG:
            count = condition.get("count") or policy.steps
            rollout_steps = policy.rollout_steps
            timings = timing.train_on_pong(
                policy.network, condition["type"], count, rollout_steps, condition["batch"], seed
            )
        else:
            pictures = int(condition["work"].rpartition(" ")[2])
            timings = timing.time_acting(policy.network, condition["type"], policy.acting, pictures, seed)
        for kind, (values, measures) in timings.items():
            yield SeedResult("", seed, values, measures={**facts, **measures}, reference=kind != condition["type"])


Pairs = list[tuple[Record, Record]]
"""For each seed the records of float32, and of the 16-bit type that was timed in turns with it."""


def pairs(results: Results) -> dict[tuple[Any, ...], dict[str, Pairs]]:
    """Pairs of records for each kind of work, by subject, batch, threads and type."""
    full = {(*cell(record), record["seed"]): record for record in results.found}
    pairs_by_work: dict[tuple[Any, ...], dict[str, Pairs]] = {}
    for half in results.found:
        condition = half["condition"]
        other = full.get((*cell({**half, "condition": EXPERIMENT.reference(condition)}), half["seed"]))
        if condition.get("half") and other is not None:
            key = half["subject"], condition.get("batch"), condition["threads"], condition["type"]
            pairs_by_work.setdefault(key, {}).setdefault(condition["work"], []).append((other, half))
    return pairs_by_work


def medians(timed: Pairs) -> tuple[float, ...]:
    """Medians over all values: float32's, then the other type's."""
    return tuple(median(value for record in side for value in record["returns"]) for side in zip(*timed, strict=True))


def of_policies(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy and type: median processor times of float32 and of the 16-bit type timed in turns."""
    for (name, batch, threads, kind), works in pairs(results).items():
        if name in POLICIES:
            update, acting, pong = (
                medians(works[work]) if work in works else None for work in (UPDATE, ACTING[0], PONG)
            )
            row = {"name": name, "batch": str(batch), "threads": str(threads), "type": kind, "policy": POLICIES[name]}
            yield {**row, "works": works, "update": update, "acting": acting, "pong": pong}


def facts(results: Results) -> dict[str, Any]:
    """Return what the notes tell of the policies' measurements."""
    words: dict[str, list[str]] = {name: [] for name in ("counts", "wall", "steps", "losses")}
    measured: list[Record] = []
    for row in of_policies(results):
        name, works = row["name"], row["works"]
        measured += [pair[1] for entry in works.values() for pair in entry]
        if UPDATE in works:
            by_wall = (
                fmean(entry["measures"]["wall_ms"] for entry in side) for side in zip(*works[UPDATE], strict=True)
            )
            words["wall"].append(times(truediv(*by_wall)))
            words["counts"].append(f"{name} {sum(record['measures']['count'] for record, _ in works[UPDATE])}")
        if PONG in works:
            pair = [record["measures"] for record in works[PONG][0]]
            words["steps"].append(f"{name} over {pair[0]['steps']:,}")
            words["losses"].append(f"{name} {losses_words(*(measures['losses'] for measures in pair))}")
    units = {
        f"{'a' if entry['measures']['has_unit'] else 'no'} {entry['condition']['type']} unit" for entry in measured
    }
    return {
        **words,
        "tensorflow": join_distinct(entry["measures"]["tensorflow"] for entry in measured),
        "units": sorted(units),
    }


def losses_words(full: list[float], half: list[float]) -> str:
    """Return how alike the losses of two trainings are, from equal weights and random numbers at the start."""
    words = f"{fmean(full):.2e} and {fmean(half):.2e}"
    few = len(full) < FEWEST_ROUNDS
    return words if few else f"{words} (correlation over {len(full)} rounds {correlation(full, half):.3f})"


def of_catch(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each type and step: the returns of all seeds, of float32 and of the 16-bit type."""
    for (subject, *_, kind), works in pairs(results).items():
        if subject == CATCH:
            curves = [[record["returns"] for record in pair] for pair in works[LEARNING]]
            first = works[LEARNING][0][0]["measures"]
            for index, step in enumerate(first["at"]):
                both = {name: [curve[side][index] for curve in curves] for side, name in enumerate(("full", "half"))}
                yield {"type": kind, "step": step, "curves": curves, "judged": first["judged"], **both}


def catch_facts(results: Results) -> dict[str, Any]:
    """By type: 16 bits minus float32 at the last step and over the whole curve, paired by seed."""
    types = {row["type"]: row["curves"] for row in of_catch(results)}
    return {
        "types": {
            kind: {
                "last": Estimate.of_mean([half[-1] - full[-1] for full, half in curves]),
                "area": Estimate.of_mean([fmean(half) - fmean(full) for full, half in curves]),
            }
            for kind, curves in types.items()
        }
    }


def speeds_table(results: Results) -> list[Table]:
    """Processor times of each policy in float32 and in 16 bits."""
    rows = list(of_policies(results))
    if not rows:
        return []
    lines = []
    for row in rows:
        update, acting, pong, policy = (row[name] for name in ("update", "acting", "pong", "policy"))
        full, half = map(three_digits, update) if update else ("", "")
        slow, fast = map(three_digits, pong) if pong else ("", "")
        lines.append(
            {
                "policy": row["name"],
                "network": network_words(policy),
                "type": row["type"],
                "update fp32, ms": full,
                "16 bits, ms": half,
                "update, speed-up": times(truediv(*update)) if update else "",
                "acting, speed-up": times(truediv(*acting)) if acting else "",
                "Pong fp32, steps/s": slow,
                "16 bits, steps/s": fast,
                "Pong, speed-up": times(pong[1] / pong[0]) if pong else "",
                "the paper's": times(truediv(*policy.paper_minutes)),
            }
        )
    return [tabulate("mixed-precision", TABLE, lines, left=3, results=results, rows=rows, **facts(results))]


def _spread(values: list[float]) -> str:
    """Mean, smallest and largest: ``0.52 [0.10, 0.90]``."""
    mean, low, high = (format_fixed(value, 2) for value in (fmean(values), min(values), max(values)))
    return f"{mean} [{low}, {high}]"


def catch_table(results: Results) -> list[Table]:
    """Return how Catch is learned in float32 and in 16 bits, step by step."""
    rows = list(of_catch(results))
    if not rows:
        return []
    lines = [
        {
            "type": row["type"],
            "step": f"{row['step']:,}",
            "float32": _spread(row["full"]),
            "16 bits": _spread(row["half"]),
        }
        for row in rows
    ]
    return [tabulate("mixed-precision-catch", CATCH_TABLE, lines, results=results, rows=rows, **catch_facts(results))]


EXPERIMENT = Experiment(
    name="mixed",
    factors=("work", "batch", "threads", "count", "type", "half"),
    within=("work", "batch", "threads", "count", "type"),
    subjects=tuple(SUBJECTS),
    grid=grid,
    measure=measure,
    identity=lambda name: hashlib.sha256(repr(look_up(name, SUBJECTS, "policy") or name).encode()).hexdigest(),
    about=about,
    episodes=lambda options, subject: EpisodePlan(options.seeds or (CATCH_SEEDS if subject == CATCH else (0,)), 0),
    tables=[speeds_table, catch_table],
    timed=True,
)


@cli.verb()
def mixed(options: Options) -> int:
    """Compare training in 16 bits with float32: the paper's Pong policies A, B, C by DQN, and learning Catch.

        quarl study mixed A --updates 40 --steps 512
        quarl study mixed A catch --type float16 --seeds 0,1 --json
        quarl study mixed --keep --again --update-docs     measures everything again, fills docs/mixed-precision.md

    Measured for each policy: one update (a minibatch of 32), acting on 1 and on 8 pictures, and a short training on
    Pong, emulator and all; and for several seeds how well Catch is learned, a task small enough for whole learning
    curves. float32 and the 16-bit type take turns in one process. On one thread of one core unless --threads says more.
    """
    return command.run(__name__, options)


main = cli.of("study mixed")
