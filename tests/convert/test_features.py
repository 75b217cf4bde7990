"""Float operators around the network: what numpy computes, every runtime computes, in every precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import pipeline
from quarl.convert.executor import RuntimeProcess, available
from quarl.convert.reference import integer_reference
from quarl.policy.bundle import write_bundle
from quarl.policy.errors import SpecError
from quarl.policy.golden import float_tolerance
from quarl.policy.reference import (
    apply_head,
    exact_program,
    forward_float,
    forward_integer,
    head_inputs,
    program_variance,
    run_program,
)
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    FloatStep,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    sizes_of,
    weight_shapes,
)
from quarl.policy.spec import FloatOperator as Operator

Runtimes = dict[RuntimeName, RuntimeProcess]
# x = (a, b, c, d): every operator once, and a product of two values
EVERY = (
    FloatStep(Operator.TAKE, (0,), places=(1, 0, 1)),
    FloatStep(Operator.MULTIPLY, (1, 1)),
    FloatStep(Operator.SUM, (2,)),
    FloatStep(Operator.ADD, (3,), (0.5,)),
    FloatStep(Operator.SQUARE_ROOT, (4,)),
    FloatStep(Operator.DIVIDE, (0, 5)),
    FloatStep(Operator.SINE, (0,)),
    FloatStep(Operator.COSINE, (0,)),
    FloatStep(Operator.SUBTRACT, (7, 8)),
    FloatStep(Operator.ABSOLUTE, (9,)),
    FloatStep(Operator.MINIMUM, (0,), (1.0, 2.0, 3.0, 4.0)),
    FloatStep(Operator.MAXIMUM, (11, 10)),
    FloatStep(Operator.TANH, (12,)),
    FloatStep(Operator.MINIMUM, (13,), (0.8,)),
    FloatStep(Operator.EXPONENTIAL, (14,)),
    FloatStep(Operator.JOIN, (15, 6, 3)),
)
SPEC = PolicySpec(
    name="features",
    observation=(ObservationField("state", (4,), "1"),),
    normaliser=Normaliser((0.25,) * 9, (2.0,) * 9, 5.0),
    network=NetworkSpec((24, 16)),
    head=ContinuousHead((-2.0, -0.5, 0.0), (2.0, 1.5, 9.0), Squash.TANH),
    control_period_s=0.05,
    environment=EnvironmentSpec("Test-v0"),
    features=EVERY,
)


def test_every_operator_by_hand() -> None:
    a, b, c, d = 0.5, -2.0, 3.0, 1.5
    total = b * b + a * a + b * b
    x = np.array([[a, b, c, d]])
    capped = np.minimum(x[0], [1.0, 2.0, 3.0, 4.0])
    first = np.exp(np.minimum(np.tanh(np.maximum(capped, np.abs(np.sin(x[0]) - np.cos(x[0])))), np.float32(0.8)))
    wanted = np.concatenate([first, x[0] / np.sqrt(total + 0.5), [total]])
    np.testing.assert_allclose(exact_program(EVERY, x)[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(run_program(EVERY, x.astype(np.float32))[0], wanted, rtol=1e-6)
    assert sizes_of(EVERY, (4,))[-1] == SPEC.feature_size == 9


def test_without_steps_nothing_changes() -> None:
    x = np.ones((2, 4), np.float32)
    assert (
        run_program((), x) is x and replace(SPEC, features=(), normaliser=Normaliser((0.0,), (1.0,))).feature_size == 4
    )


def test_roundings_stay_within_what_is_granted() -> None:
    x = np.random.default_rng(0).normal(0.0, 3.0, (500, 4)).astype(np.float32)
    apart = np.abs(run_program(EVERY, x) - exact_program(EVERY, x))
    assert (apart <= 6.0 * np.sqrt(program_variance(EVERY, (x,))) + 1e-12).all() and apart.max() > 0


# y = (u, v, w) and x behind it: u + a, v · |w| cut, and w turned by sin c
BEHIND = (
    FloatStep(Operator.TAKE, (0,), places=(0, 1, 2)),
    FloatStep(Operator.TAKE, (0,), places=(3, 3, 3)),
    FloatStep(Operator.MULTIPLY, (2,), (1.0, 0.0, 0.0)),
    FloatStep(Operator.ADD, (1, 3)),
    FloatStep(Operator.TAKE, (0,), places=(2,)),
    FloatStep(Operator.ABSOLUTE, (5,)),
    FloatStep(Operator.TAKE, (0,), places=(5,)),
    FloatStep(Operator.SINE, (7,)),
    FloatStep(Operator.TAKE, (4,), places=(0,)),
    FloatStep(Operator.TAKE, (4,), places=(1,)),
    FloatStep(Operator.MULTIPLY, (10, 6)),
    FloatStep(Operator.MINIMUM, (11,), (2.5,)),
    FloatStep(Operator.MULTIPLY, (5, 8)),
    FloatStep(Operator.JOIN, (9, 12, 13)),
)
WITH_TARGETS = replace(SPEC, targets=BEHIND)


def test_targets_by_hand() -> None:
    weights = weights_of(WITH_TARGETS)
    rows = np.random.default_rng(3).normal(0.5, 2.0, (50, 4)).astype(np.float32)
    u, v, w = forward_float(SPEC, weights, rows).T
    wanted = np.stack([u + rows[:, 0], np.minimum(v * np.abs(w), 2.5), w * np.sin(rows[:, 2])], axis=1)
    np.testing.assert_allclose(forward_float(WITH_TARGETS, weights, rows), wanted, rtol=1e-5, atol=1e-6)
    assert SPEC.is_bounded and not WITH_TARGETS.is_bounded


def test_an_output_that_targets_mix_has_a_step_and_a_tolerance_of_all_it_is_made_of() -> None:
    weights = weights_of(WITH_TARGETS)
    rows = np.random.default_rng(4).normal(0.5, 2.0, (300, 4)).astype(np.float32)
    network = quantize_network(WITH_TARGETS, weights, rows)
    found, wanted = forward_integer(WITH_TARGETS, network, rows), forward_float(WITH_TARGETS, weights, rows)
    reference = integer_reference(WITH_TARGETS, network, rows)
    assert reference.step is not None and (reference.step > 0).all()
    # One step of all three raw outputs moves no target by more than a step of its own.
    raw = head_inputs(WITH_TARGETS, network, rows)
    moved = apply_head(WITH_TARGETS, raw + np.float32(network.output_step), rows) - apply_head(WITH_TARGETS, raw, rows)
    # up to the product of two of them, which is small
    assert (np.abs(moved) <= 1.1 * reference.step).all()
    assert (np.abs(moved).max(axis=0) > 0.3 * reference.step).all()
    assert np.abs(found - wanted).mean() < 0.25
    apart = np.abs(forward_float(WITH_TARGETS, weights, rows, exact=True) - wanted)
    assert (apart <= float_tolerance(WITH_TARGETS, weights, rows)).all() and apart.max() > 0


def weights_of(spec: PolicySpec) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    return {
        part: random.normal(0.0, 1.6 / np.sqrt(np.prod(shape[:-1])) if len(shape) > 1 else 0.2, shape).astype("f4")
        for part, shape in weight_shapes(spec).items()
    }


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4])
@pytest.mark.parametrize("spec", [SPEC, WITH_TARGETS], ids=["features", "targets"])
def test_every_runtime_computes_what_the_reference_says(
    tmp_path: Path, runtimes: Runtimes, spec: PolicySpec, precision: Precision
) -> None:
    random, weights = np.random.default_rng(12), weights_of(spec)
    rows = random.normal(0.5, 2.0, (360, 4)).astype(np.float32)
    bundle = write_bundle(tmp_path / "features", spec, weights, rows[:300], rows[300:])
    assert bundle.spec == spec
    for _, _, artifact_format in pipeline.possible((bundle, precision, each) for each in ArtifactFormat):
        done = pipeline.convert(bundle, precision, artifact_format, runtimes, accept=precision is Precision.INT4)
        assert set(done.entry.runtimes) == {each for each in available() if each.artifact_format is artifact_format}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((FloatStep(Operator.ADD, (0, 1)),), "not there yet"),
        ((FloatStep(Operator.TAKE, (0,), places=(4,)),), "beyond 4"),
        ((FloatStep(Operator.ADD, (0,), (1.0, 2.0)),), "combines"),
        ((FloatStep(Operator.JOIN, (0,) * 2000),), "4096"),
        ((FloatStep(Operator.SINE, (0,)),) * 257, "allowed are 256"),
        ((FloatStep(Operator.TAKE, (0,), places=(0,) * 4096),) * 17, "allowed are 65536"),
        ((FloatStep(Operator.SINE, (0,)), FloatStep(Operator.SUM, (1,))), "normaliser has 9"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(steps: tuple[FloatStep, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        replace(SPEC, features=steps)


def test_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="targets make 2 elements of 3 outputs"):
        replace(SPEC, targets=(FloatStep(Operator.TAKE, (0,), places=(0, 1)),))
    with pytest.raises(SpecError, match=r"targets\[0\] \(take\) takes a place beyond 7"):
        replace(SPEC, targets=(FloatStep(Operator.TAKE, (0,), places=(0, 1, 7)),))
    with pytest.raises(SpecError, match="discrete head; allowed are none"):
        replace(SPEC, head=DiscreteHead(("a", "b", "c")), targets=BEHIND)
    assert replace(WITH_TARGETS, fallback=(9.0, 9.0, 99.0)).fallback
    with pytest.raises(SpecError, match="within the head's bounds"):
        replace(SPEC, fallback=(9.0, 9.0, 99.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"operator": Operator.ADD, "operands": (0,)}, "1 operands; it takes 2"),
        ({"operator": Operator.SINE, "operands": (0,), "constants": (1.0,)}, "no constants"),
        ({"operator": Operator.TAKE, "operands": (0,)}, "0 places"),
        ({"operator": Operator.DIVIDE, "operands": (0,), "constants": (0.0,)}, "constant 0"),
        ({"operator": Operator.ADD, "operands": (0,), "constants": (float("inf"),)}, "finite"),
        ({"operator": "add", "operands": (0, 0)}, "allowed are"),
    ],
)
def test_a_step_that_means_nothing_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        FloatStep(**arguments)  # type: ignore[arg-type]
