"""Every activation, linear policies, bounds one by one and limited heads, in every precision, format and runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import pipeline
from quarl.convert.executor import available
from quarl.convert.importers.onnx.elementwise import ACTIVATIONS, apply_activation
from quarl.convert.importers.onnx.operators import HANDLERS
from quarl.convert.onnx_graph import list_executed_operators
from quarl.convert.reference import output_steps
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.bundle import Bundle
from quarl.policy.quantize import FIXED_MAPS, Affine, IntegerTable, Scheme, exactly, linear_map
from quarl.policy.reference import forward_float, forward_integer, normaliser_constants
from quarl.policy.simulate import Widths, forward_simulated, quantize_network, simulate
from quarl.policy.spec import (
    Activation,
    ArtifactFormat,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
)
from tests.convert.conftest import Runtimes, make_bundle, make_observations, make_spec, make_weights

KINDS = tuple(Activation)
HEAD = ContinuousHead((-2.0, -0.5, 0.0), (2.0, 1.5, 9.0), Squash.TANH)
BASE = make_spec(
    name="activated", observation=(ObservationField("state", (6,), "1"),), head=HEAD,
    normaliser=Normaliser((0.5,) * 6, (2.0,) * 6, 5.0),
)  # fmt: skip
IMAGE = ObservationField("camera", (12, 12, 2), "1")


def with_all_alike(kind: Activation) -> PolicySpec:
    return replace(BASE, network=NetworkSpec((24, 16), kind, negative_slope=0.2))


SPECS = {
    **{kind.value: with_all_alike(kind) for kind in KINDS if kind is not Activation.RELU},
    "mixed": replace(
        BASE,
        network=NetworkSpec(
            (12,) * 3, Activation.ELU, activations=(Activation.ELU, Activation.RELU, Activation.SIGMOID)
        ),
    ),
    "linear": replace(BASE, network=NetworkSpec(())),
    "linear-discrete": replace(BASE, network=NetworkSpec(()), head=DiscreteHead(("a", "b", "c"))),
    "normalised-elu": replace(BASE, network=NetworkSpec((24, 16), Activation.ELU, layer_norm=True)),
    **{
        f"convolutions-{kind.value}": replace(
            BASE,
            observation=(IMAGE, ObservationField("state", (3,), "1")),
            normaliser=Normaliser((0.0,) * 291, (2.0,) * 291, float("inf")),
            network=NetworkSpec((16,), kind, (Convolution(4, 4, 2), Convolution(6, 3, 1))),
        )
        for kind in (Activation.TANH, Activation.SILU)
    },
    "unbounded-limited": replace(BASE, head=replace(HEAD, squash=Squash.NONE, limit=1.5)),
    "limited-tanh": replace(BASE, head=replace(HEAD, limit=0.5)),
    "bounds": replace(
        BASE,
        normaliser=Normaliser((0.5,) * 6, (2.0,) * 6, float("inf"), (-1.0, -3.0e38, 0.0, -2.0, -1.0, -1.0), (1.0,) * 6),
    ),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4])
def test_every_runtime_computes_what_the_reference_says(
    tmp_path: Path, runtimes: Runtimes, name: str, precision: Precision
) -> None:
    bundle = make_bundle(tmp_path / "activated", SPECS[name])
    for artifact_format in ArtifactFormat:
        done = pipeline.convert(bundle, precision, artifact_format, runtimes, accept=precision is Precision.INT4)
        assert set(done.entry.runtimes) == {each for each in available() if each.artifact_format is artifact_format}
        assert done.entry.fp32_agreement > 0.95 or precision is Precision.INT4


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_activation_has_its_values_and_its_largest_slope(kind: Activation) -> None:
    x = np.concatenate([np.linspace(-30.0, 30.0, 601), [0.0, 1e-8, -1e-8, 80.0, -80.0]])
    wanted = {
        Activation.RELU: lambda x: np.maximum(x, 0),
        Activation.TANH: lambda x: np.tanh(x),
        Activation.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
        Activation.ELU: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        Activation.LEAKY_RELU: lambda x: np.where(x > 0, x, np.float32(0.2) * x),
        Activation.SILU: lambda x: x / (1 + np.exp(-x)),
        Activation.NONE: lambda x: x,
    }[kind](x)
    np.testing.assert_allclose(exactly(kind, x, 0.2), wanted, atol=1e-11, rtol=1e-12)
    x = np.linspace(-12.0, 12.0, 2_000_001)
    steepest = float(np.abs(np.diff(exactly(kind, x, 0.2)) / np.diff(x)).max())
    assert steepest <= NONLINEARITIES[kind].slope * (1 + 1e-6) <= 1.02 * steepest


@pytest.mark.parametrize("kind", KINDS)
def test_onnxs_integers_have_no_layer_in_float(kind: Activation, tmp_path: Path) -> None:
    """Where an operator reads what is fused twice, onnxruntime computes the layer before it in float."""
    made = pipeline.build(make_bundle(tmp_path / "made", with_all_alike(kind)), Precision.INT8, ArtifactFormat.ONNX)
    operators = list_executed_operators(made.data)
    assert (operators.count("QGemm"), operators.count("Gemm") + operators.count("FusedGemm")) == (3, 0)


def test_every_activation_is_read_by_its_names() -> None:
    for kind, each in NONLINEARITIES.items():
        assert each.onnx_names or kind is Activation.NONE
        assert each.torch_names
        assert all(HANDLERS[name] is apply_activation and ACTIVATIONS[name] is kind for name in each.onnx_names)


def test_a_table_by_hand() -> None:
    network = NetworkSpec((1,), Activation.TANH)
    # steps of 1/32: level 32 is 1.0, tanh 1 = 0.7616, in steps of 1/128: 97.5 → 97
    table = IntegerTable.build_lookup(network, "dense_0", Affine(1 / 32, 0), FIXED_MAPS[Activation.TANH])
    assert table(np.array([[32, 0, -32, 127]], np.int32)).tolist() == [[97, 0, -97, 127]] and table.has_kernel
    assert not IntegerTable.build_lookup(network, "dense_0", Affine(1 / 32, 0), Affine(1 / 100, 0)).has_kernel


def test_no_levels_are_spent_where_an_activation_is_flat() -> None:
    wide = linear_map(NetworkSpec((1,), Activation.TANH), "dense_0", -40.0, 40.0, FIXED_MAPS[Activation.TANH])
    # tanh x is within half a step, 1/256, of 1 from 3.12 on
    assert 3.0 < wide.scale * 127 < 3.3
    straight = linear_map(NetworkSpec((1,), Activation.ELU), "dense_0", 0.0, 40.0, Affine(40 / 255, -128))
    assert straight.scale == pytest.approx(40 / 255, rel=0.01)  # half a step at either end


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Activation.NONE])
def test_the_simulation_of_eight_bits_is_the_artifact(tmp_path: Path, kind: Activation) -> None:
    bundle = make_bundle(tmp_path / "activated", with_all_alike(kind))
    weights, observations = bundle.weights(), bundle.golden().observations
    simulated = simulate(bundle.spec, weights, bundle.calibration(), Widths(Scheme.SYMMETRIC, 8, 8))
    network = quantize_network(bundle.spec, weights, bundle.calibration())
    apart = np.abs(
        forward_simulated(bundle.spec, simulated, observations) - forward_integer(bundle.spec, network, observations)
    )
    assert (apart <= 4.5 * network.output_step + 1e-5).all()


@pytest.mark.parametrize("squash", Squash)
def test_actions_in_physical_units_come_out_of_every_runtime(
    tmp_path: Path, runtimes: Runtimes, squash: Squash
) -> None:
    bundle = make_bundle(tmp_path / "pilot", replace(BASE, head=replace(HEAD, squash=squash)))
    for precision in (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4):
        for artifact_format in ArtifactFormat:
            entry = pipeline.convert(bundle, precision, artifact_format, runtimes, accept=True).entry
            expected = Bundle.load(bundle.path).read_expected(entry).outputs
            inside = (expected >= np.array(HEAD.low) - 1e-5).all() and (expected <= np.array(HEAD.high) + 1e-5).all()
            assert inside == (squash is not Squash.NONE)
            assert expected[:, 0].min() < -1.7 and expected[:, 0].max() > 1.7
            for parity in entry.runtimes.values():
                assert (parity.max_error_steps or 0.0) <= 1.0 and (precision.is_integer or parity.max_error < 2e-5)


def test_each_action_has_a_step_of_its_own(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "pilot", BASE)
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration())
    # The third action spans 9, so that one step of the raw output moves it by at most 4.5 steps.
    np.testing.assert_allclose(output_steps(bundle.spec, network), np.array([2.0, 1.0, 4.5]) * network.output_step)


# Pressure in hPa swings by 100, the angle by 1, the rate by 0.1: a thousandfold between the first and the last.
UNLIKE = make_spec(
    observation=tuple(
        map(ObservationField, ("pressure", "angle", "rate"), ((2,), (3,), (3,)), ("hPa", "rad", "rad/s"))
    ),
    normaliser=Normaliser((1000.0,) * 2 + (0.5,) * 3 + (0.0,) * 3, (100.0,) * 2 + (1.0,) * 3 + (0.1,) * 3, 10.0),
    network=NetworkSpec((32, 32)),
    head=DiscreteHead(tuple("abcde")),
)


@pytest.mark.parametrize("runtime", RuntimeName)
def test_the_normaliser_comes_before_the_quantization(runtimes: Runtimes, runtime: RuntimeName) -> None:
    """Where the raw fields meet the quantizer, behind one scale, int8 is far worse, though the floats are the same."""
    weights, rows = make_weights(UNLIKE, 11), make_observations(UNLIKE, 1200, 11)
    mean, inverse_scale = normaliser_constants(UNLIKE.normaliser)
    identity = Normaliser((0.0,) * len(mean), (1.0,) * len(mean), float("inf"))
    # (x − mean) / scale @ W + b = x @ (W / scale) + (b − mean / scale @ W)
    kernel = weights["dense_0/kernel"] * inverse_scale[:, None]
    bias = weights["dense_0/bias"] - (mean * inverse_scale) @ weights["dense_0/kernel"]
    folded = {**weights, "dense_0/kernel": kernel, "dense_0/bias": bias}
    wanted, shares = forward_float(UNLIKE, weights, rows).argmax(axis=1), []
    for spec, own in ((UNLIKE, weights), (replace(UNLIKE, normaliser=identity), folded)):
        assert np.mean(forward_float(spec, own, rows).argmax(axis=1) == wanted) > 0.999
        data = pipeline.INTEGERS[runtime.artifact_format](spec, quantize_network(spec, own, rows[:800]))
        shares.append(np.mean(runtimes[runtime].execute(spec, data, rows[800:]).actions == wanted[800:]))
    assert shares[0] >= 0.96 and shares[1] < 0.6
