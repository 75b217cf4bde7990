"""Continuous actions: squashed and scaled into physical units inside the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quarl.convert import pipeline
from quarl.convert.executor import RuntimeProcess
from quarl.convert.reference import output_steps
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    weight_shapes,
)

Runtimes = dict[RuntimeName, RuntimeProcess]
LOW, HIGH = (-2.0, -0.5, 0.0), (2.0, 1.5, 9.0)


def make_bundle(path: Path, squash: Squash) -> Bundle:
    spec = PolicySpec(
        name="pilot",
        observation=(ObservationField("state", (6,), "1"),),
        normaliser=Normaliser((0.5,) * 6, (2.0,) * 6, 5.0),
        network=NetworkSpec((32, 16)),
        head=ContinuousHead(LOW, HIGH, squash),
        control_period_s=0.05,
        environment=EnvironmentSpec("Test-v0"),
    )
    random = np.random.default_rng(3)
    weights = {
        name: (random.normal(0.0, 1.0, shape) * (np.sqrt(2.0 / shape[0]) if len(shape) == 2 else 0.1)).astype(
            np.float32
        )
        for name, shape in weight_shapes(spec).items()
    }
    observations = random.normal(0.5, 2.0, (600, 6)).astype(np.float32)
    return write_bundle(path, spec, weights, observations[:500], observations[500:])


@pytest.mark.parametrize("squash", list(Squash))
@pytest.mark.parametrize(
    ("precision", "artifact_format"),
    [(p, f) for p in (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4) for f in p.formats],
)
def test_actions_in_physical_units_come_out_of_every_runtime(
    tmp_path: Path, runtimes: Runtimes, squash: Squash, precision: Precision, artifact_format: ArtifactFormat
) -> None:
    bundle = make_bundle(tmp_path / "pilot", squash)
    done = pipeline.convert(bundle, precision, artifact_format, runtimes, accept=precision is Precision.INT4)
    written = Bundle.load(bundle.path)
    entry = written.artifact(precision, artifact_format)
    assert done.entry.fp32_agreement > (0.3 if precision is Precision.INT4 else 0.99)
    expected = written.read_expected(entry).outputs
    # The vectors use the range: both bounds of the first element are approached, and passed by none that is squashed.
    inside = (expected >= np.array(LOW) - 1e-5).all() and (expected <= np.array(HIGH) + 1e-5).all()
    assert inside == (squash is not Squash.NONE)
    assert expected[:, 0].min() < -1.7 and expected[:, 0].max() > 1.7
    for runtime, parity in entry.runtimes.items():
        assert runtime.artifact_format is artifact_format
        if precision.is_integer:
            assert parity.max_error_steps is not None and parity.max_error_steps <= 1.0
        else:
            assert parity.max_error < 2e-5


def test_each_action_has_a_step_of_its_own(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "pilot", Squash.TANH)
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration())
    # The third action spans 9, so that one step of the raw output moves it by at most 4.5 steps.
    half_spans = (np.array(HIGH) - np.array(LOW)) / 2
    assert half_spans[2] == 4.5
    np.testing.assert_allclose(output_steps(bundle.spec, network), half_spans * network.output_step)
