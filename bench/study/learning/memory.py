"""What does a memory bring where obstacles move, at the cost of the same decision?

    python -m bench.study memory --keep                 flies the committed policies; trains the one that is told
    python -m bench.study memory --stored --update-docs      fills docs/algorithms/memory.md

Policy II, which sees one look; II with its last four looks (zoo/memory/II-looks-4); a GRU (zoo/memory/GRU). Each
flies its int8 artifact through the same episodes of hard as LiteRT executes it, and the instructions of a decision are
counted on an emulated Cortex-A53. Beside them a policy of II's layers is told the true places and velocities of the
nearest obstacles all around: what is lost even so, no memory can win.

Each policy is one training, so that the intervals are about episodes, not about trainings.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.pivot import Pivot
from bench.study.bundles import bundle_identity, load
from bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult
from bench.study.records import Condition
from bench.study.trainings import TRAINED
from policy.locate import code_version
from policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    import argparse

    from policy.bundle import Bundle

NAVIGATION, PRESET = "navigation", "hard"
REFERENCE, LOOKS, GRU, TOLD = "II", "II-looks-4", "GRU", "told"
MEMORIES = {REFERENCE: "none", LOOKS: "the last 4 looks", GRU: "GRU of 128", TOLD: "none; told where all fly"}
SEEDS, EPISODES, BATCH = (7,), 3000, 500
COUNTED = {"litert": RuntimeName.LITERT, "native": RuntimeName.NATIVE}

TABLE = """\
What a memory brings on preset hard
n={{ episodes | thousands }}: the same episodes for all, seed {{ results.seeds }}, flown by int8 as LiteRT executes \
it; the one that is told in floats, for no sensor tells it. More than II: points of success with Newcombe's paired \
95 % interval. One training each: the intervals are about episodes.
Hit: flights that ended at a standing obstacle, at a mover; otherwise: they left the arena or ran out of time. In \
view: of the movers hit those that a ray met at the last decision before; seen: not then, but within the second \
before; unseen: neither.
A53: instructions of one int8 decision in the runtime on a Cortex-A53, in emulation.
Told: 8 million steps as Policy II's, observing the true places and velocities of the {{ told }} nearest obstacles, \
behind and hidden ones too.
{{ results.measured }}
"""


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Policy II, and the others by name."""
    return [{}, *({"policy": name} for name in (LOOKS, GRU, TOLD))]


def identity(subject: str) -> str:
    """What rows belong to: the weights of all committed policies, and the task."""
    return hashlib.sha256("".join(map(bundle_identity, (REFERENCE, LOOKS, GRU))).encode()).hexdigest()


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Fly one of them, and count its decision where a device could make it."""
    from train.deciding import float_decide

    name = condition.get("policy", REFERENCE)
    if name == TOLD:
        yield from flown(float_decide(told()), name, episodes, {})
        return
    with tempfile.TemporaryDirectory(prefix="memory-study-") as folder:
        yield from as_deployed(load(name), name, Path(folder), episodes)


def as_deployed(bundle: Bundle, name: str, folder: Path, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Convert a policy, count a decision, and fly its int8 artifact in LiteRT."""
    from bench.qemu_counter.building import require_programs
    from bench.qemu_counter.counting import count
    from convert.pipeline import convert_all
    from policy.bundle import Bundle
    from policy.bundle_writer import copy_bundle
    from train.runs.artifact import ArtifactPolicy, find_artifact

    require_programs()
    copy = copy_bundle(bundle, folder / bundle.spec.name, origin="zoo")
    convert_all([copy], [Precision.INT8], [each.artifact_format for each in COUNTED.values()])
    copy = Bundle.load(copy.path)
    measures = {
        word: count(copy.path, Precision.INT8, runtime).paths["runtime_warm"].instructions
        for word, runtime in COUNTED.items()
    }
    entry = find_artifact(copy, name, Precision.INT8, RuntimeName.LITERT)
    with ArtifactPolicy(copy.spec, copy.artifact_data(entry), RuntimeName.LITERT) as artifact:
        yield from flown(artifact.decide, name, episodes, measures)


def flown(decide: Any, name: str, episodes: EpisodePlan, measures: Mapping[str, Any]) -> Iterator[SeedResult]:
    """Flights on hard, with what became of them."""
    from airlearning_envs.config import preset
    from airlearning_envs.flights import fly
    from bench.study.measures import movers

    for seed in episodes.seeds:
        seen = movers.Sightings(episodes.count)

        def observe(core: Any, observation: Any, seen: Any = seen) -> Any:
            looked = seen.look(core, observation)
            return movers.told(core, looked) if name == TOLD else looked

        flights = fly(preset(PRESET), decide, episodes.count, seed, BATCH, observe=observe)
        also = {**measures, **seen.measures(flights)}
        yield SeedResult(PRESET, seed, flights.episode_return.tolist(), flights.success.tolist(), also)


def told() -> Bundle:
    """The policy that is told, trained with Policy II's settings where there is none of this code yet."""
    from bench.study.measures.movers import told_task
    from policy.bundle import Bundle
    from policy.spec import NetworkSpec
    from train.algorithms import ppo
    from train.networks.policies import POLICIES
    from train.runs.presets import build, load_settings
    from train.runs.request import RunRequest
    from train.runs.results import write_result
    from train.runs.run import Run

    found, folder = load_settings(NAVIGATION, "ppo", REFERENCE), TRAINED / code_version() / "told"
    if (folder / "manifest.json").exists():
        return Bundle.load(folder)
    settings, task, network = build(ppo.PPOSettings, found.settings), told_task(), NetworkSpec(POLICIES[REFERENCE])
    request = RunRequest(
        task.name, TOLD, "ppo", network, found.steps, 0, folder, evaluate_every=found.evaluate_every, quiet=True
    )
    with Run(request, task) as run:
        return write_result(run, ppo.train(run, settings), found.source)


def policies(results: Results) -> Iterator[dict[str, Any]]:
    """The rows in the order of the table, with counts as multiples of II's."""
    by_name = {row["policy"] or REFERENCE: row for row in results.summary}
    for name in (each for each in MEMORIES if each in by_name):
        row, base = by_name[name], by_name[REFERENCE]
        over = {
            f"{word}_over": None if row.get(word) is None or base.get(word) is None else row[word] / base[word]
            for word in COUNTED
        }
        counted = {word: row.get(word) for word in COUNTED}
        yield {**row, **counted, **over, "name": name, "memory": MEMORIES[name]}


MEMORY = Pivot(
    name="memory",
    words=TABLE,
    lead={"policy": "{{ name }}", "memory": "{{ memory }}"},
    columns=[
        {
            "success, %": "{{ success | estimate(100) }}",
            "more than II": "{{ success_difference | estimate(100, '+') if policy else '–' }}",
            "hit standing": "{{ standing | thousands }}",
            "hit movers": "{{ movers | thousands }}",
            "in view": "{{ in_view | thousands }}",
            "seen": "{{ recent | thousands }}",
            "unseen": "{{ unseen | thousands }}",
            "otherwise": "{{ otherwise | thousands }}",
            "A53, LiteRT": "{{ litert | thousands if litert else '–' }}",
            "over II": "{{ litert_over | times }}",
            "A53, native": "{{ native | thousands if native else '–' }}",
            "native over II": "{{ native_over | times }}",
        },
    ],
    rows=policies,
    facts=lambda results: {"episodes": max(row["episodes"] for row in results.summary), "told": 8},
)
EXPERIMENT = Experiment(
    name="memory",
    question="what does a memory bring where obstacles move?",
    factors=("policy",),
    subjects=(NAVIGATION,),
    grid=grid,
    measure=measure,
    identity=identity,
    episodes=lambda arguments, subject: EpisodePlan(arguments.seeds or SEEDS, arguments.episodes or EPISODES),
    tables=[MEMORY],
)
