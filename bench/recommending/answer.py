"""The recommender's answer as one document of plain values: its JSON; table and sentences are made from it, too."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.recommending.deciding import CONTAINER_BITS, Candidate, Demand, Played, Verdict, chosen_of, fewest_bits
from bench.recommending.measuring import Asked, Measured
from bench.recommending.thresholds import episodes_until_met, number
from policy.spec import Precision

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from train.suites.task import Task

CHOSEN, MEETS, FLOOR, DEADLINE, BOTH = "chosen", "meets both", "misses floor", "misses deadline", "misses both"


def document(bundle: Bundle, task: Task, asked: Asked, measured: Measured, verdict: Verdict) -> dict[str, Any]:
    """Everything as JSON values; what was measured of an artifact stands in ``candidates`` or ``fewer_bits``."""
    from bench.report.document import code_version
    from bench.report.machine import this_machine

    provenance, reference = bundle.spec.provenance, measured.reference
    widest, runtime = min(reference.bits, CONTAINER_BITS), reference.runtime
    integers = [each for each in (*verdict.order, *measured.fewer) if each.bits <= widest and each.runtime == runtime]
    return {
        **asdict(asked),
        "runtimes": [runtime.value for runtime in asked.runtimes],
        "policy": bundle.spec.name,
        "task": task.name,
        "algorithm": str(provenance.get("algorithm", "")),
        "weights_sha256": bundle.manifest.files["weights.safetensors"].sha256,
        "quality": "success" if measured.has_success else "return kept",
        "reference": named(reference),
        "other_presets": [preset for preset in task.presets if preset != asked.preset],
        "played_on": this_machine(),
        "code": code_version(),
        "excluded_runtimes": {runtime.value: reason for runtime, reason in measured.excluded.items()},
        "left_on_target": measured.left,
        "recommended": named(verdict.chosen),
        "decided_by": chosen_of(verdict.as_fast)[1] if verdict.as_fast else None,
        "candidates": [{**plain(each), **standing(each, verdict)} for each in verdict.order],
        "fewer_bits": [
            {**plain(each), "verdict": FLOOR if asked.demand.short_of_floor(each) else "reaches floor"}
            for each in measured.fewer
        ],
        "fewest_bits_at_the_floor": fewest_bits(integers, asked.demand.floor),
        "change": change(verdict, asked, measured.has_success, training_command(bundle)),
        "without_its_runtime": elsewhere(verdict),
        "reports": [report.to_dict() for report in measured.reports],
    }


def named(played: Played | None) -> dict[str, Any] | None:
    """An artifact in a runtime, by name."""
    return None if played is None else {"name": played.name, "precision": played.precision, "runtime": played.runtime}


def plain(played: Played) -> dict[str, Any]:
    """All that was measured of an artifact in a runtime."""
    return {"name": played.name, **asdict(played), "runs_as_int8": played.runs_as_int8}


def standing(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    """What the verdict says of a candidate."""
    short, slow = verdict.demand.short_of_floor(candidate), candidate.p99_ns > verdict.demand.deadline_ns
    missed = {(False, False): MEETS, (True, False): FLOOR, (False, True): DEADLINE, (True, True): BOTH}
    return {
        "verdict": CHOSEN if candidate is verdict.chosen else missed[short > 0.0, slow],
        "as_fast_as_the_fastest": candidate in verdict.as_fast,
        "points_short_of_floor": None if candidate.quality.low is None else 100 * short,
        "times_deadline": verdict.demand.times_deadline(candidate),
    }


def change(verdict: Verdict, asked: Asked, has_success: bool, training: str) -> dict[str, Any] | None:
    """The nearest demand with another answer, and what may help without giving way; None where no number does.

    ``episodes``: after so many a floor may be met that the mean reaches: the floor as it is, or, where nothing would
    meet the higher one, that one. ``training``: the command that may help where the mean does not reach it.
    """
    found = verdict.change
    if found is None:
        return None
    answer, old, new = found.answer, asked.demand, found.demand
    open_to = [each for each in verdict.missed if each.p99_ns <= old.deadline_ns]
    if verdict.chosen is not None:
        open_to = [answer or verdict.chosen]
    floor = new.floor if answer is None else old.floor
    needed = (episodes_until_met(each.quality, floor, asked.episodes, has_success) for each in open_to)
    episodes = min(filter(None, needed), default=None)
    trains = answer is not None and answer.bits <= CONTAINER_BITS and old.short_of_floor(answer)
    return {
        **asdict(new),
        "factor": found.factor,
        "would_be": named(answer),
        "command": command(asked, new),
        "episodes": episodes and max(episodes, asked.episodes + 1),
        "training": training if trains and not episodes and training else None,
    }


def elsewhere(verdict: Verdict) -> dict[str, Any] | None:
    """The answer without the chosen one's runtime, and the other runtimes; None where there is none."""
    if verdict.chosen is None:
        return None
    others = dict.fromkeys(c.runtime for c in verdict.order if c.runtime != verdict.chosen.runtime)
    return {"runtimes": list(others), "would_be": named(verdict.elsewhere)} if others else None


def command(asked: Asked, demand: Demand) -> str:
    """What to type for another demand."""
    numbers = ("--success-floor", number(demand.floor), "--deadline-ms", number(demand.deadline_ms))
    return shlex.join(["python", "-m", "bench.recommend", asked.bundle, *numbers, *asked.options])


def training_command(bundle: Bundle, bits: int = Precision.INT8.bits) -> str:
    """What would train such a policy with quantizers; "" where it was trained with some, or was distilled."""
    provenance = bundle.spec.provenance
    method, network = str(provenance.get("algorithm", "")), bundle.spec.network
    if bundle.spec.quantization is not None or method in ("", "distill") or network.layer_norm:
        return ""
    if bundle.spec.is_imported:  # by another program, which this one's options do not describe
        return ""
    task, name = str(provenance.get("task", "navigation")), bundle.spec.name
    model = "" if network.convolutions else f" --model {','.join(map(str, network.hidden))}"
    return (
        f"python -m train --task {task} --method {method}{model} --quantization-method quantization-aware "
        f"--precision {bits} --output-path artifacts/{name}-qat{bits}"
    )
