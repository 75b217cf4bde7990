"""Flying one bundle with widths of single layers: the work of ``python -m bench.study layers``.

Three kinds of evidence are kept apart. Estimates come from calibration observations; sensitivities, and the choice by
flight, from the episodes of the sweep's seeds; the judgement of what was chosen, from episodes of other seeds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from bench import command_line
from bench.study.layers.assignment import Assignment, fullest, kernel_sizes, ranked, total_bits, uniform
from bench.study.layers.episodes import Asked, contrast, fly, relative_error
from bench.study.layers.estimate import Estimator
from bench.study.layers.store import Budget, Flown, Layers, Sensitivity
from bench.study.sweep.flying import decide_with, float_decide
from policy.quantization import LARGEST_WEIGHT_BITS

TRIED = 6  # assignments of a budget that are flown to choose one, the uniform one apart


class Sky:
    """Where one bundle flies: every assignment once on the same seeds, and fp32."""

    def __init__(self, asked: Asked, estimator: Estimator, seeds: Sequence[int]) -> None:
        self.asked, self.estimator, self.seeds = asked, estimator, tuple(seeds)
        self.reference = fly(asked, float_decide(asked.bundle), self.seeds)
        self._flown: dict[tuple[int, ...], tuple[float, ...]] = {}

    def returns(self, assignment: Assignment) -> tuple[float, ...]:
        """Of all episodes."""
        key = tuple(assignment.values())
        if key not in self._flown:
            decide = decide_with(self.asked.bundle.spec, self.estimator.assembled(assignment))
            self._flown[key] = fly(self.asked, decide, self.seeds)
        return self._flown[key]

    def judged(self, assignment: Assignment, against: Assignment) -> Flown:
        """An assignment beside the one that it is compared with."""
        flown, gain = self.returns(assignment), None
        if dict(assignment) != dict(against):
            gain = contrast(self.returns(against), flown, self.reference)
        size = total_bits(kernel_sizes(self.asked.bundle.spec), assignment)
        damage = self.estimator.damage(assignment)
        return Flown(dict(assignment), size, damage, relative_error(flown, self.reference), gain)


def measure(
    asked: Asked, bits: Sequence[int], budgets: Sequence[int], seeds: Sequence[int], fresh_seeds: Sequence[int]
) -> Layers:
    """Sensitivities of all layers, and what each budget's mixed widths are worth.

    Args:
        asked: the bundle, its task and the episodes of each seed.
        bits: of the layer whose sensitivity is measured, 2 … 7.
        budgets: bits of the uniform assignments whose sizes are budgets, 3 … 7.
        seeds: of sensitivities and of choosing by flight.
        fresh_seeds: of judging; none of ``seeds``.

    Raises:
        BenchError: fp32's mean return is 0, or the policy has too many layers.
    """
    from bench.report.document import code_version
    from bench.report.machine import describe_machine

    began, began_cpu = time.monotonic(), time.process_time()
    bundle, spec = asked.bundle, asked.bundle.spec
    sizes, estimator = kernel_sizes(spec), Estimator(spec, bundle.weights(), bundle.calibration())
    eight = uniform(sizes, LARGEST_WEIGHT_BITS)
    below = sorted(set(bits) - {LARGEST_WEIGHT_BITS}, reverse=True)
    with command_line.progress_bar(asked.name) as progress:
        steps = 1 + len(sizes) * len(below) + 2 * len(budgets)
        sky = Sky(asked, estimator, seeds)
        all_at_eight = relative_error(sky.returns(eight), sky.reference)
        sensitivities = []
        for layer in sizes:
            for n in below:
                widths = {**eight, layer: n}
                error = relative_error(sky.returns(widths), sky.reference)
                sensitivities.append(Sensitivity(layer, n, estimator.damage(widths), error))
                progress(1 + len(sensitivities), steps)
        fresh = Sky(asked, estimator, fresh_seeds)
        found = []
        for n in budgets:
            found.append(judge_budget(n, sizes, sky, fresh))
            progress(steps - 2 * (len(budgets) - len(found)), steps)
    return Layers(
        bundle=asked.name,
        task=asked.task.name,
        algorithm=str(spec.provenance.get("algorithm", "")),
        weights_sha256=asked.weights_sha256,
        preset=asked.preset,
        seeds=tuple(seeds),
        fresh_seeds=tuple(fresh_seeds),
        episodes=asked.episodes,
        observations=len(estimator.observations),
        sizes=sizes,
        eight=all_at_eight,
        sensitivities=tuple(sensitivities),
        budgets=tuple(found),
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - began_cpu,
        machine=describe_machine().sentence(),
        code=code_version(),
        date=datetime.now(UTC).date().isoformat(),
    )


def judge_budget(bits: int, sizes: dict[str, int], sky: Sky, fresh: Sky) -> Budget:
    """Choose by estimate and by flight, judge both and the uniform one on fresh episodes."""
    same = uniform(sizes, bits)
    budget = total_bits(sizes, same)
    estimator = sky.estimator
    choices = ranked(fullest(sizes, budget), lambda each: estimator.damage(each).output_error)
    tried = [choice.bits for choice in choices[:TRIED]]
    if same not in tried:
        tried.append(same)
    # Of equal returns the one of the smaller estimate, which is the earlier one.
    best = max(tried, key=lambda each: sum(sky.returns(each)))
    judged = (fresh.judged(each, same) for each in (same, choices[0].bits, best))
    return Budget(bits, budget, len(choices), len(tried), *judged)
