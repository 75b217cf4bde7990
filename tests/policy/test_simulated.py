"""Simulated policies: two worked by hand, and agreement with the integers that devices compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.places import ZOO
from quarl.policy.quantize import Affine, Scheme, quarl_released, to_fp16
from quarl.policy.reference import Weights, forward_float, forward_integer, head_constants
from quarl.policy.simulate import Widths, forward_simulated, quantize_network, simulate
from quarl.policy.spec import (
    ContinuousHead,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    TrainedQuantization,
    WeightRange,
    weight_shapes,
)
from tests.refusals import refused

SPEC = PolicySpec(
    name="by-hand",
    observation=(ObservationField("distance", (2,), "m"),),
    normaliser=Normaliser((0.0, 0.0), (1.0, 1.0), 100.0),
    network=NetworkSpec((2,)),
    head=DiscreteHead(("left", "right")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
WEIGHTS = {
    "dense_0/kernel": np.array([[1.0, -1.0], [3.0, 0.0]], np.float32),
    "dense_0/bias": np.zeros(2, np.float32),
    "head/kernel": np.array([[4.0, 0.0], [0.0, 4.0]], np.float32),
    "head/bias": np.array([0.0, 0.5], np.float32),
}
# Hidden layer: [0, 0], [4, 0], [6, 0], [0, 8]; head: [0, 0.5], [16, 0.5], [24, 0.5], [0, 32.5]
SEEN = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [-8.0, 0.0]], np.float32)
ASKED = np.array([[3.0, 0.0]], np.float32)


def outputs(widths: Widths) -> list[list[float]]:
    return forward_simulated(SPEC, simulate(SPEC, WEIGHTS, SEEN, widths), ASKED).tolist()


def test_the_papers_weights_only_by_hand() -> None:
    # Hidden: δ = (1 + 3) / 4 = 1 → [[1, −1], [2, 0]]; head: δ = 4 / 4 = 1, the 4 is clipped to 3; biases stay.
    # [3, 0] → [3, −3] → ReLU [3, 0] → [9, 0.5]
    assert outputs(Widths(Scheme.QUARL, 2)) == [[9.0, 0.5]]


def test_the_papers_weights_and_activations_by_hand() -> None:
    simulated = simulate(SPEC, WEIGHTS, SEEN, Widths(Scheme.QUARL, 2, 2))
    # input −8 … 4 with 8 bits: δ = 12 / 256, z = ⌊170.67⌋; hidden 0 … 8 with 2 bits: δ = 2; head 0 … 32.5 with 8 bits
    assert simulated.maps == {
        "input": Affine(0.046875, 170, 0, 255),
        "dense_0": Affine(2.0, 0, 0, 3),
        "head": Affine(0.126953125, 0, 0, 255),
    }
    # 3 is 64 steps; [3, −3] → ReLU → [3, 0] → ⌊1.5⌋ = 1 → [2, 0] → [6, 0.5] → ⌊47.26⌋, ⌊3.94⌋ = 47, 3 steps
    assert forward_simulated(SPEC, simulated, ASKED).tolist() == [[47 * 0.126953125, 3 * 0.126953125]]


def test_the_released_script_by_hand() -> None:
    # Hidden: δ = (1 + 3) / 4 = 1 → all as they are, 3 too (no clipping); head: δ = (0 + 4) / 4 = 1 → 4
    assert outputs(Widths(Scheme.QUARL_RELEASED, 2)) == [[12.0, 0.5]]


def test_symmetric_by_hand() -> None:
    # 2 bits: the scales of the hidden layer are 3 and 1: [[0, −1], [3, 0]] (1 / 3 rounds to 0); of the head 4 and 4.
    # [3, 0] → [0, −3] → [0, 0] → the bias. Float activations; with 8 bits the bias is 0: steps of 4 · 8 / 255 = 0.125.
    assert outputs(Widths(Scheme.SYMMETRIC, 2)) == [[0.0, 0.5]]
    simulated = simulate(SPEC, WEIGHTS, SEEN, Widths(Scheme.SYMMETRIC, 2, 8))
    assert simulated.weights["dense_0/kernel"].tolist() == [[0.0, -1.0], [3.0, 0.0]]
    # s_in · s_c = 8 / 255 · 4: 0.5 is 3.98 steps → 4
    assert simulated.weights["head/bias"].tolist() == pytest.approx([0.0, 4 * 8 / 255 * 4])


def test_only_the_observation() -> None:
    # 2 bits over −8 … 4: steps of 4: −8, −4, 0, 4. 3 reads 4; the rest stays float: [4, 0] → [4, −4] → [16, 0.5]
    simulated = simulate(SPEC, WEIGHTS, SEEN, Widths(Scheme.SYMMETRIC, input_bits=2))
    assert list(simulated.maps) == ["input"]
    assert forward_simulated(SPEC, simulated, ASKED).tolist() == [[16.0, 0.5]]
    assert forward_float(SPEC, WEIGHTS, ASKED).tolist() == [[12.0, 0.5]]


def test_a_layers_own_width() -> None:
    simulated = simulate(SPEC, WEIGHTS, SEEN, Widths(Scheme.QUARL, 2, layer_bits={"head": 32}))
    assert simulated.weights["dense_0/kernel"].tolist() == [[1.0, -1.0], [2.0, 0.0]]
    assert simulated.weights["head/kernel"] is WEIGHTS["head/kernel"]
    assert forward_simulated(SPEC, simulated, ASKED).tolist() == [[12.0, 0.5]]


@pytest.mark.parametrize("scheme", [Scheme.QUARL, Scheme.QUARL_RELEASED, Scheme.SYMMETRIC])
def test_32_bits_are_the_float_policy(scheme: Scheme) -> None:
    np.testing.assert_array_equal(outputs(Widths(scheme)), forward_float(SPEC, WEIGHTS, ASKED))


def test_half_precision_takes_biases_too() -> None:
    weights = {**WEIGHTS, "head/bias": np.array([0.1, 0.5], np.float32)}
    simulated = simulate(SPEC, weights, SEEN, Widths(Scheme.FP16, 16))
    assert simulated.weights["head/bias"].tolist() == [float(to_fp16(np.array([0.1], np.float32))[0]), 0.5]
    assert simulated.maps == {}


# --- agreement with policy.integer ----------------------------------------------------------------------------------

BUNDLES = ("I", "II", "benchmark/cartpole-dqn", "benchmark/cartpole-a2c", "benchmark/mountaincarcontinuous-ddpg")
# At 8 bits the artifact's scales put accumulators on ties on purpose (policy.simulate.agreeing_scales), where
# a float sum may fall to the other side: a hidden output is then one level off, and the head's rarely two.
TIES = 0.005


def differing_steps(
    spec: PolicySpec, weights: Weights, seen: np.ndarray, evaluated: np.ndarray, bits: int
) -> np.ndarray:
    """|simulated − integer| in steps of the head's output; squashing only lessens them."""
    network = quantize_network(spec, weights, seen, bits)
    trained = spec.quantization is not None and spec.quantization.bits == bits
    simulated = simulate(spec, weights, seen, Widths(Scheme.SYMMETRIC, bits, bits if trained else 8))
    integers = forward_integer(spec, network, evaluated)
    gain = head_constants(spec.head)[0] if isinstance(spec.head, ContinuousHead) else 1.0
    assert len(np.unique(integers)) > 4, "the outputs must not all be one level"
    return np.abs(forward_simulated(spec, simulated, evaluated) - integers) / (gain * network.output_step)


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.parametrize("bits", [8, 7, 4, 2])
def test_real_policies_agree_with_their_integers(name: str, bits: int) -> None:
    bundle = Bundle.load(ZOO / name)
    spec, weights = bundle.spec, bundle.weights()
    steps = differing_steps(spec, weights, bundle.calibration(), bundle.golden().observations, bits)
    assert steps.max() < 2.01
    assert np.mean(steps > 0.5) <= TIES


def random_weights(spec: PolicySpec, seed: int) -> Weights:
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        fan_in = max(1, int(np.prod(shape[:-1])))
        spread = 1.0 if name.endswith("gamma") else 0.1 if len(shape) == 1 else 1.5 / np.sqrt(fan_in)
        weights[name] = random.normal(0.0, spread, shape).astype(np.float32)
    return weights


IMAGES = PolicySpec(
    name="images",
    observation=(ObservationField("screen", (10, 10, 2), "1"),),
    normaliser=Normaliser((0.0,), (255.0,), 10.0),
    network=NetworkSpec((6,), convolutions=(Convolution(4, 4, 2), Convolution(5, 2, 1))),
    head=DiscreteHead(("a", "b", "c")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
NORMALISED = replace(
    SPEC, network=NetworkSpec((16, 12), layer_norm=True), head=DiscreteHead(("a", "b", "c")), name="layer-norm"
)


IMAGE_AND_VECTOR = replace(
    IMAGES,
    name="image-and-vector",
    observation=(*IMAGES.observation, ObservationField("velocity", (3,), "m/s")),
    normaliser=Normaliser((0.0,) * 200 + (1.0,) * 3, (255.0,) * 200 + (100.0,) * 3, 10.0),
)


@pytest.mark.parametrize("bits", [8, 6, 3])
@pytest.mark.parametrize(
    "spec", [IMAGES, IMAGE_AND_VECTOR, NORMALISED], ids=["images", "image-and-vector", "layer-norm"]
)
def test_random_policies_agree_with_their_integers(spec: PolicySpec, bits: int) -> None:
    random = np.random.default_rng(11)
    if spec.network.convolutions:
        seen, evaluated = (random.integers(0, 256, (n, spec.observation_size)).astype(np.float32) for n in (40, 60))
    else:
        seen, evaluated = (random.normal(0.0, 1.0, (n, spec.observation_size)).astype(np.float32) for n in (400, 300))
    steps = differing_steps(spec, random_weights(spec, bits), seen, evaluated, bits)
    assert steps.max() < 2.01
    assert np.mean(steps > 0.5) <= TIES


@pytest.mark.parametrize("bits", [8, 4])
def test_a_policy_trained_with_quantizers_keeps_them(bits: int) -> None:
    ranges = {"input": (-3.0, 3.0), "dense_0": (0.0, 2.5), "dense_1": (0.0, 2.0)}
    spec = replace(
        SPEC,
        network=NetworkSpec((16, 12)),
        head=DiscreteHead(("a", "b", "c")),
        quantization=TrainedQuantization(bits, ranges, WeightRange.MEAN),
    )
    random = np.random.default_rng(5)
    seen, evaluated = (random.normal(0.0, 1.0, (n, 2)).astype(np.float32) for n in (400, 300))
    weights = random_weights(spec, 1)
    steps = differing_steps(spec, weights, seen, evaluated, bits)
    assert steps.max() < 2.01
    assert np.mean(steps > 0.5) <= TIES
    simulated = simulate(spec, weights, seen, Widths(Scheme.SYMMETRIC, bits, bits))
    assert len(np.unique(simulated.fake_quantize("dense_0", np.linspace(0, 9, 4000, dtype=np.float32)))) == 2**bits
    # at another width than its own they mean nothing
    other = simulate(spec, weights, seen, Widths(Scheme.SYMMETRIC, bits - 1, bits))
    assert other.maps["dense_0"] != simulated.maps["dense_0"]


def test_a_continuous_head_is_squashed_after_its_quantization() -> None:
    spec = replace(SPEC, head=ContinuousHead((-2.0, 0.0), (2.0, 1.0), Squash.CLIP))
    weights = {**WEIGHTS, "head/kernel": WEIGHTS["head/kernel"] / 16}
    # [3, 0] → [3, 0] → [0.75, 0.5], on fine grids; then · gain + offset: · 2 + 0 and · 0.5 + 0.5
    simulated = simulate(spec, weights, SEEN, Widths(Scheme.SYMMETRIC, 24, 16))
    np.testing.assert_allclose(forward_simulated(spec, simulated, ASKED), [[1.5, 0.75]], atol=2e-3)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    with refused(QuantizationError, "weights_only_scheme"):
        Widths(Scheme.QUARL_RELEASED, 8, 8)
    with refused(QuantizationError, "weights_only_scheme"):
        Widths(Scheme.FP16, 16, input_bits=8)
    with refused(QuantizationError, "quantization", shows=["16"]):
        Widths(Scheme.FP16, 8)
    for wrong in ({"weight_bits": 1}, {"weight_bits": 33}, {"activation_bits": 32}, {"layer_bits": {"head": 1}}):
        with refused(QuantizationError, "bits_out_of_range"):
            Widths(Scheme.QUARL, **wrong)
    with pytest.raises(QuantizationError, match=r"no layers \['dense_7'\]; it has dense_0, head"):
        simulate(SPEC, WEIGHTS, SEEN, Widths(Scheme.QUARL, 8, layer_bits={"dense_7": 4}))
    with pytest.raises(QuantizationError, match="must have observations"):
        simulate(SPEC, WEIGHTS, SEEN[:0], Widths(Scheme.QUARL, 8, 8))
    with refused(QuantizationError, "not_finite"):
        simulate(SPEC, WEIGHTS, np.array([[np.nan, 0.0]], np.float32), Widths(Scheme.SYMMETRIC, 8, 8))


def test_weights_only_needs_no_calibration() -> None:
    simulated = simulate(SPEC, WEIGHTS, SEEN[:0], Widths(Scheme.QUARL_RELEASED, 3))
    np.testing.assert_array_equal(simulated.weights["dense_0/kernel"], quarl_released(WEIGHTS["dense_0/kernel"], 3))
