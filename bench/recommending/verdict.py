"""The verdict as data: what ``--json`` prints, ``--output`` stores, and the table and the sentences are made from."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from quarl.bench.recommending.deciding import (
    CONTAINER_BITS,
    Decision,
    Demand,
    DeployableArtifact,
    PlayedArtifact,
    choose,
    decide,
    fewest_bits,
)
from quarl.bench.recommending.measurements import Measurements, Question
from quarl.bench.recommending.thresholds import episodes_until_met, number
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.train.suites.task import Task

Row = dict[str, Any]
ESTIMATES = ("quality", "mean_return")


@dataclass(frozen=True, kw_only=True)
class Verdict(Question):
    """A question and everything that is answered.

    Attributes:
        policy, task, algorithm, weights_sha256: of the bundle that was evaluated.
        quality: what the floor is held against: ``success`` or ``return kept``.
        reference: artifact and runtime whose return the others keep a share of.
        other_presets: on which the policy is evaluated, too.
        played_on, code: the machine that played the episodes, and the commit.
        excluded_runtimes: runtimes that the target cannot have, with the reason.
        left_on_target: what stays there, in words.
        recommended: what to deploy; None where nothing meets both limits.
        decided_by: the figure that decided between those as fast: ``artifact_bytes``, ``resident_bytes``, ``p50_ns``.
        candidates: artifacts that may be deployed, best first, with what was measured, the standing of each, the
            percentage points by which it is short of the floor, and its p99 as a multiple of the deadline.
        fewer_bits: artifacts that only played.
        fewest_bits_at_the_floor: the narrowest precision that reaches it with all wider ones.
        change: the nearest limits that give another answer, and what may help without giving way.
        without_its_runtime: the answer among the other runtimes.
        reports: of the target.
    """

    policy: str
    task: str
    algorithm: str
    weights_sha256: str
    quality: str
    reference: Row
    other_presets: list[str]
    played_on: str
    code: str
    excluded_runtimes: dict[str, str]
    left_on_target: str
    recommended: Row | None
    decided_by: str | None
    candidates: list[Row]
    fewer_bits: list[Row]
    fewest_bits_at_the_floor: str | None
    change: Row | None
    without_its_runtime: Row | None
    reports: list[Row]

    @classmethod
    def of(cls, bundle: Bundle, task: Task, question: Question, measurements: Measurements) -> Verdict:
        """Return the verdict on what was measured."""
        from quarl.bench.report.machine import this_machine
        from quarl.policy.locate import code_version

        decision, reference = decide(measurements.candidates, question.demand), measurements.reference
        widths = [
            candidate
            for candidate in (*decision.order, *measurements.fewer)
            if candidate.bits <= min(reference.bits, CONTAINER_BITS) and candidate.runtime == reference.runtime
        ]
        return cls(
            **vars(question) | {"runtimes": tuple(runtime.value for runtime in question.runtimes)},
            policy=bundle.spec.name,
            task=task.name,
            algorithm=str(bundle.spec.provenance.get("algorithm", "")),
            weights_sha256=bundle.manifest.files["weights.safetensors"].sha256,
            quality="success" if measurements.has_success else "return kept",
            reference=format_name(reference) or {},
            other_presets=[preset for preset in task.presets if preset != question.preset],
            played_on=this_machine(),
            code=code_version(),
            excluded_runtimes={runtime.value: reason for runtime, reason in measurements.excluded.items()},
            left_on_target=measurements.left,
            recommended=format_name(decision.recommendation),
            decided_by=choose(decision.as_fast)[1] if decision.as_fast else None,
            candidates=[row(candidate, **standing(candidate, decision)) for candidate in decision.order],
            fewer_bits=[
                row(candidate, verdict="misses floor" if question.demand.short_of_floor(candidate) else "reaches floor")
                for candidate in measurements.fewer
            ],
            fewest_bits_at_the_floor=fewest_bits(widths, question.demand.floor),
            change=change(decision, question, measurements.has_success, training_command(bundle)),
            without_its_runtime=without_its_runtime(decision),
            reports=[report.to_dict() for report in measurements.reports],
        )

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Verdict:
        """Return the verdict that was stored as JSON; what else the document says is left out."""

        def restore_rows(rows: Iterable[Row]) -> list[Row]:
            return [
                candidate | {name: candidate[name] and Estimate(**candidate[name]) for name in ESTIMATES}
                for candidate in rows
            ]

        stored = {attribute.name: document[attribute.name] for attribute in fields(cls)}
        rows = {name: restore_rows(stored[name]) for name in ("candidates", "fewer_bits")}
        return cls(**stored | rows | {"demand": Demand(**stored["demand"])})


def format_name(artifact: PlayedArtifact | None) -> Row | None:
    """Return an artifact in a runtime, by name."""
    if artifact is None:
        return None
    return {"name": artifact.name, "precision": artifact.precision, "runtime": artifact.runtime}


def row(artifact: PlayedArtifact, **verdict: Any) -> Row:
    """Return all that was measured of an artifact in a runtime, and what the verdict says of it."""
    return {"name": artifact.name, **vars(artifact), "runs_as_int8": artifact.runs_as_int8, **verdict}


def standing(artifact: DeployableArtifact, decision: Decision) -> Row:
    """Return the verdict on a candidate, as JSON values."""
    demand, short = decision.demand, decision.demand.short_of_floor(artifact)
    missed = [limit for limit, misses in (("floor", short > 0.0), ("deadline", not demand.in_time(artifact))) if misses]
    met = "chosen" if artifact is decision.recommendation else "meets both"
    return {
        "verdict": f"misses {'both' if len(missed) == 2 else missed[0]}" if missed else met,
        "as_fast_as_the_fastest": artifact in decision.as_fast,
        "points_short_of_floor": None if artifact.quality.low is None else 100 * short,
        "times_deadline": demand.times_deadline(artifact),
    }


def change(decision: Decision, question: Question, has_success: bool, training: str) -> Row | None:
    """Return the nearest limits with another answer, and what may help without giving way; None where no number does.

    ``episodes``: after this many a floor may be met that the mean reaches: the floor as it is, or, where nothing would
    meet the higher one, that one. ``training``: the command that may help where the mean does not reach it.
    """
    nearest = decision.change
    if nearest is None:
        return None
    answer, old, new = nearest.answer, question.demand, nearest.demand
    open_to = [candidate for candidate in decision.missed if old.in_time(candidate)]
    if decision.recommendation is not None:
        open_to = [answer or decision.recommendation]
    floor = new.floor if answer is None else old.floor
    needed = (episodes_until_met(candidate.quality, floor, question.episodes, has_success) for candidate in open_to)
    episodes = min(filter(None, needed), default=None)
    trains = answer is not None and answer.bits <= CONTAINER_BITS and old.short_of_floor(answer)
    limits = ("--success-floor", number(new.floor), "--deadline-ms", number(new.deadline_ms))
    return {
        **asdict(new),
        "factor": nearest.factor,
        "would_be": format_name(answer),
        "command": shlex.join(["quarl", "recommend", question.bundle, *limits, *question.options]),
        "episodes": episodes and max(episodes, question.episodes + 1),
        "training": training if trains and not episodes and training else None,
    }


def without_its_runtime(decision: Decision) -> Row | None:
    """Return the answer without the chosen one's runtime, and the other runtimes; None where there is none."""
    if decision.recommendation is None:
        return None
    others = dict.fromkeys(
        candidate.runtime for candidate in decision.order if candidate.runtime != decision.recommendation.runtime
    )
    return {"runtimes": list(others), "would_be": format_name(decision.elsewhere)} if others else None


def training_command(bundle: Bundle) -> str:
    """Return the command to train such a policy with 8-bit quantizers; "" where it was trained with some, or was
    distilled."""
    provenance = bundle.spec.provenance
    method, network = str(provenance.get("algorithm", "")), bundle.spec.network
    is_trained_here = method not in ("", "distill") and not bundle.spec.is_imported  # else no options describe it
    if bundle.spec.quantization is not None or network.layer_norm or not is_trained_here:
        return ""
    task, name = str(provenance.get("task", "navigation")), bundle.spec.name
    model = "" if network.convolutions else f" --model {','.join(map(str, network.hidden))}"
    return (
        f"quarl train --task {task} --method {method}{model} --quantization-method quantization-aware "
        f"--precision 8 --output-path artifacts/{name}-qat8"
    )
