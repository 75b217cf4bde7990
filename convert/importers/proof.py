"""Does the bundle act as the original did? Its outputs are compared, not only its actions, near and far.

A bundle computes its own golden outputs, so that a tanh read as a ReLU would pass every gate behind it. Here the
original's outputs are the measure: on recorded observations, and on observations 5 to 40 standard deviations away,
where a clip, a slope or a squashing shows that never mattered near the data. Of a recurrent policy the next states are
compared as the outputs are, and then both fly an episode, each with the states that it made itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quarl.convert.executor import available, runtime_processes
from quarl.convert.importers.chain import Floats, ForeignError, ForeignPolicy, run
from quarl.convert.importers.onnx.original import HALF_ROUNDING, HALF_TOLERANCE
from quarl.convert.opaque import impossible
from quarl.convert.pipeline import build_graph
from quarl.policy.golden import foreign_tolerance
from quarl.policy.history import History
from quarl.policy.reference import Weights, forward_float
from quarl.policy.spec import PolicySpec, Precision

FAR = (5.0, 10.0, 20.0, 40.0)
"""Standard deviations that far observations are from the mean."""
FAR_ROWS = 64
NEAR = "on recorded observations"
Known = dict[str, tuple[Floats, np.ndarray]]  # raw observations, and the original's outputs
EPISODE = 64
"""Periods that a recurrent policy is flown for."""


@dataclass(frozen=True)
class Proof:
    """How far the bundle is from the original.

    Attributes:
        by: what computed the original's outputs.
        near, far: largest |difference| of an output on recorded observations, and far from them.
        span: from the least to the greatest of the original's outputs on the recorded ones.
        runtimes: largest |difference| of the fp32 artifact, near and far, in each runtime.
        flown: largest |difference| of an output in an episode in which each remembers its own states; None of a policy
            that is not recurrent.
    """

    by: str
    near: float
    far: float
    span: float
    runtimes: dict[str, float]
    flown: float | None = None


def far_from(observations: Floats, seed: int = 0) -> Floats:
    """Rows (n, size) 5 to 40 standard deviations away from the mean of these, in random directions."""
    generator = np.random.default_rng(seed)
    mean, deviation = observations.mean(axis=0), observations.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    parts = [mean + scale * deviation * generator.standard_normal((FAR_ROWS, len(mean))) for scale in FAR]
    return np.concatenate(parts).astype(np.float32)


def original_of(policy: ForeignPolicy) -> tuple[str, Callable[[Floats], np.ndarray]]:
    """Return what computes the original's outputs, and its name: the file's own program, else the steps that were
    read."""
    if policy.original is not None:
        return "its own runtime", policy.original
    return "the steps as read, in float64, before anything was folded", lambda rows: run(policy, rows)


def prove(
    policy: ForeignPolicy,
    spec: PolicySpec,
    weights: Weights,
    observations: Floats,
    pairs: tuple[Floats, Floats] | None = None,
    outlying: Floats | None = None,
) -> Proof:
    """Compare a bundle's outputs with the original's, in numpy and through every runtime.

    Args:
        policy: as read.
        spec, weights: what becomes of it.
        observations: raw, recorded (n, size).
        pairs: observations and outputs recorded from the original elsewhere.
        outlying: recorded observations with outliers; apart from the others, whose tolerance they would widen.

    Raises:
        ForeignError: an output or a next state differs by more than the roundings of float32; nothing was written.
    """
    by, original = original_of(policy)
    half = getattr(original, "is_half", False)
    near, far = observations, _as_levels(spec, far_from(observations))
    known = {NEAR: (near, original(near)), "far from them": (far, original(far))}
    if outlying is not None and len(outlying):
        known["on recorded observations with outliers"] = outlying, original(outlying)
    if pairs is not None:
        by += ", and the given pairs"
        known["on the given pairs"] = pairs
    apart = {
        where: _largest(spec, weights, known, where, forward_float(spec, weights, rows), half)
        for where, (rows, _) in known.items()
    }
    flown = _measure_episode_error(spec, weights, observations, original) if spec.state_size else None
    runtimes: dict[str, float] = {}
    with runtime_processes(tuple(available())) as processes:
        for name, process in processes.items():
            if impossible(spec, name.artifact_format, Precision.FP32):
                continue
            data = build_graph(spec, weights, near, Precision.FP32, name.artifact_format)
            runtimes[name.value] = max(
                _largest(
                    spec, weights, known, where, process.execute(spec, data, rows).outputs, half, f", in {name.value}"
                )
                for where, (rows, _) in known.items()
            )
    far_off = apart.pop("far from them")
    span = float(np.ptp(known[NEAR][1][:, : spec.output_size]))
    return Proof(by, max(apart.values()), far_off, span, runtimes, flown)


def _largest(
    spec: PolicySpec, weights: Weights, known: Known, where: str, made: np.ndarray, half: bool, by: str = ""
) -> float:
    rows, wanted = known[where]
    if wanted.shape != made.shape:
        raise ForeignError(f"the outputs must be {wanted.shape[1:]} like the original's, got {made.shape[1:]}.")
    if not np.isfinite(wanted).all():
        raise ForeignError("the original outputs NaN or infinity.", "Check whether its training diverged.")
    apart = np.abs(made.astype(np.float64) - wanted)
    # a row alone spans nothing: what outputs span is known from all that were recorded
    allowed = foreign_tolerance(spec, weights, rows, np.concatenate([wanted, known[NEAR][1]]))
    if half:  # the original rounds to float16
        allowed = np.maximum(allowed, HALF_TOLERANCE * np.ptp(wanted) + HALF_ROUNDING * np.abs(wanted).max())
    wrong = ~(apart <= allowed)
    if wrong.any():
        row, output = (int(place) for place in np.argwhere(wrong)[0])
        element = int(np.abs(rows[row]).argmax())
        raise ForeignError(
            f"the imported policy does not match the original ({where}{by}): output {output} of observation {row}, "
            f"whose largest element {element} is {rows[row, element]:g}, is {made[row, output]:g}, the original's "
            f"{wanted[row, output]:g}; the tolerance is {allowed[output]:.2g}, and {int(wrong.any(axis=1).sum())} of "
            f"{len(rows)} observations differ. Nothing was written.",
            "Check that policy, normaliser and order of observations belong together.",
            code="not_reproduced",
        )
    return float(apart.max())


def _measure_episode_error(
    spec: PolicySpec, weights: Weights, rows: Floats, original: Callable[[Floats], np.ndarray]
) -> float:
    """Return the largest difference of an output in an episode: roundings may add up, a tolerance in each period."""
    ends = np.cumsum([field.size for field in spec.observation])
    step_inputs = [
        np.arange(end - field.row_size, end)
        for field, end in zip(spec.observation, ends, strict=True)
        if field.is_brought
    ]
    outputs, flights = spec.output_size, []
    for program in (lambda row: forward_float(spec, weights, row), original):
        history, results = History(spec.observation), []
        for values in np.resize(rows, (EPISODE, rows.shape[1]))[:, np.concatenate(step_inputs)]:
            results.append(program(np.array(history.observe(values), np.float32)[None])[0])
            history.record_action(results[-1][:outputs], results[-1][outputs:])
        flights.append(np.array(results, np.float64))
    apart = np.abs(flights[0] - flights[1])[:, :outputs]
    allowed = np.arange(1, EPISODE + 1)[:, None] * foreign_tolerance(spec, weights, rows, flights[1])[:outputs]
    if not (apart <= allowed).all():
        period, output = (int(place) for place in np.argwhere(~(apart <= allowed))[0])
        raise ForeignError(
            f"the imported policy does not match the original once its states are fed back: in period {period} of an "
            f"episode output {output} is {flights[0][period, output]:g}, the original's "
            f"{flights[1][period, output]:g}; the tolerance is {allowed[period, output]:.2g}. Nothing was "
            "written.",
            "Check that the states are in the order of the layers and start at the file's initial values.",
            code="state_not_reproduced",
        )
    return float(apart.max())


def _as_levels(spec: PolicySpec, rows: Floats) -> Floats:
    """Images have grey levels, 0 … 255, however far."""
    return np.clip(np.rint(rows), 0, 255).astype(np.float32) if spec.is_image else rows
