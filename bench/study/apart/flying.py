"""Flying one bundle with one part's width changed at a time: the work of ``python -m bench.study apart``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations

from bench import command_line
from bench.report.intervals import Estimate
from bench.study.apart.store import OTHERS_BITS, PARTS, Apart, Contrast, Point
from bench.study.layers.episodes import Asked, contrast, fly, relative_error
from bench.study.sweep.flying import decide_with, float_decide, share_differing
from policy.quantization import Scheme
from policy.simulated import Widths, simulate


def widths_of(part: str, bits: int) -> Widths:
    """The part at its width, the other two at 8 bits; the head's outputs keep 8 in any case."""
    given = {name: bits if name == part else OTHERS_BITS for name in PARTS}
    return Widths(Scheme.SYMMETRIC, given["weights"], given["hidden"], given["input"])


def measure(asked: Asked, bits: Sequence[int], seeds: Sequence[int]) -> Apart:
    """Every part at every width on the same episodes.

    Args:
        asked: the bundle, its task and the episodes of each seed.
        bits: 2 … 8, other than 8, which is measured in any case.
        seeds: of the episodes.

    Raises:
        BenchError: fp32's mean return is 0.
    """
    from bench.report.document import code_version
    from bench.report.machine import describe_machine

    began, began_cpu = time.monotonic(), time.process_time()
    bundle, spec = asked.bundle, asked.bundle.spec
    weights, calibration, golden = bundle.weights(), bundle.calibration(), bundle.golden()
    below = sorted(set(bits) - {OTHERS_BITS}, reverse=True)
    with command_line.progress_bar(asked.name) as progress:
        reference = fly(asked, float_decide(bundle), seeds)
        points: dict[tuple[str, int], Point] = {}
        returns: dict[tuple[str, int], tuple[float, ...]] = {}
        todo = [(PARTS[0], OTHERS_BITS), *((part, n) for part in PARTS for n in below)]
        for number, (part, n) in enumerate(todo, start=1):
            decide = decide_with(spec, simulate(spec, weights, calibration, widths_of(part, n)))
            flown = returns[part, n] = fly(asked, decide, seeds)
            points[part, n] = Point(
                part,
                n,
                Estimate.of_mean(flown),
                relative_error(flown, reference),
                share_differing(spec, decide(golden.observations), golden.actions),
            )
            progress(number, len(todo))
    all_at_eight = points[PARTS[0], OTHERS_BITS]
    contrasts = (
        Contrast(n, one, other, contrast(returns[one, n], returns[other, n], reference))
        for n in below
        for one, other in combinations(PARTS, 2)
    )
    return Apart(
        bundle=asked.name,
        task=asked.task.name,
        algorithm=str(spec.provenance.get("algorithm", "")),
        weights_sha256=asked.weights_sha256,
        preset=asked.preset,
        seeds=tuple(seeds),
        episodes=asked.episodes,
        observations=len(golden.observations),
        reference=Estimate.of_mean(reference),
        points=tuple(
            points.get((part, n), Point(part, n, *_rest(all_at_eight))) for part in PARTS for n in (OTHERS_BITS, *below)
        ),
        contrasts=tuple(contrasts),
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - began_cpu,
        machine=describe_machine().sentence(),
        code=code_version(),
        date=datetime.now(UTC).date().isoformat(),
    )


def _rest(point: Point) -> tuple[Estimate, Estimate, float]:
    return point.mean_return, point.relative_error, point.actions_differ
