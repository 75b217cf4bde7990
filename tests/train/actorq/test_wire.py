"""What travels to the actors: the artifact that convert writes, or weights that make one; damage is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from safetensors.numpy import load

from quarl.convert.executor import RuntimeProcess, runtime_processes
from quarl.convert.pipeline import build_graph
from quarl.convert.reference import float_reference
from quarl.policy.errors import PolicyError, QuantizationError
from quarl.policy.quantize import fake_symmetric, to_fp16
from quarl.policy.reference import choose_actions, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Normaliser, PolicySpec, Precision, RuntimeName, weight_shapes
from quarl.train.actorq.settings import BITS
from quarl.train.actorq.wire import Published, WireError, publish, quantization_error, unpack_artifact
from tests.refusals import refused
from tests.train.actorq.small_plans import HEADS, ROWS, make_observations, make_spec, make_weights, push

PAIRS = list(product(BITS, BITS))
RUNTIMES = (RuntimeName.LITERT, RuntimeName.NATIVE)
ACTING = [(runtime, *pair) for runtime in RUNTIMES for pair in PAIRS]
"""Runtime, bits that actors execute, bits on the way."""


@pytest.fixture(scope="module")
def started() -> Iterator[Mapping[RuntimeName, RuntimeProcess]]:
    with runtime_processes(RUNTIMES) as processes:
        yield processes


def arrived(weights: dict[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """The weights that an actor has after their way, by the quantizers of ``policy/``."""
    if bits == 8:
        return {name: fake_symmetric(value, 8) if value.ndim == 2 else value for name, value in weights.items()}
    return {name: to_fp16(value).astype(np.float32) for name, value in weights.items()} if bits == 16 else weights


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("runtime", "quantize", "communication"), ACTING)
def test_every_pair_of_bits_acts_as_the_reference_says(
    started: Mapping[RuntimeName, RuntimeProcess], head: str, runtime: RuntimeName, quantize: int, communication: int
) -> None:
    spec = make_spec(head)
    weights, observations = make_weights(spec), make_observations(spec, 2, 64)
    pushed = push(spec, weights)
    published = publish(pushed, 1, quantize, communication, runtime.artifact_format)
    execution = started[runtime].execute(spec, unpack_artifact(published), observations)
    # The artifact itself is made of the weights as they are; else of what is left of them on the way.
    used = weights if quantize == communication else arrived(weights, communication)
    if quantize == 8:
        expected = forward_integer(spec, quantize_network(spec, used, pushed.calibration, 8), observations)
        # Of the squashing in float; logits are whole steps, and the step is far above it.
        tolerance: float | np.ndarray = 1e-5
    else:
        reference = float_reference(spec, used, observations, precision=Precision.from_bits(quantize))
        expected, tolerance = reference.outputs, reference.tolerance
    assert (np.abs(execution.outputs - expected) <= tolerance).all()
    if spec.is_discrete:
        np.testing.assert_array_equal(execution.actions, choose_actions(spec, expected))
        assert len(np.unique(execution.actions)) > 1, "it always chooses one action: nothing was compared"


FORMATS = [*((bits, ArtifactFormat.TFLITE) for bits in BITS), (8, ArtifactFormat.NATIVE)]


@pytest.mark.parametrize(("bits", "artifact_format"), FORMATS)
def test_the_artifact_is_byte_for_byte_what_convert_makes(bits: int, artifact_format: ArtifactFormat) -> None:
    spec = make_spec()
    weights = make_weights(spec)
    pushed, precision = push(spec, weights), Precision.from_bits(bits)
    published = publish(pushed, 1, bits, bits, artifact_format)
    wanted = build_graph(spec, weights, pushed.calibration, precision, artifact_format)
    assert published.is_artifact and published.precision is precision
    assert published.data.tobytes() == unpack_artifact(published) == wanted


@pytest.mark.parametrize(("bits", "artifact_format"), FORMATS[:2] + FORMATS[3:])
def test_weights_sent_in_full_make_the_same_artifact_at_the_actor(bits: int, artifact_format: ArtifactFormat) -> None:
    pushed = push(make_spec(), make_weights(make_spec()))
    made = [unpack_artifact(publish(pushed, 1, bits, communication, artifact_format)) for communication in (32, bits)]
    assert made[0] == made[1]


KERNELS, VECTORS = 8 * 512 + 512 * 512 + 512 * 3, 512 + 512 + 3  # numbers of a (512, 512) policy


def wide() -> tuple[PolicySpec, dict[str, np.ndarray]]:
    spec = make_spec(hidden=(512, 512), size=8)
    weights = make_weights(spec)
    assert sum(int(np.prod(shape)) for shape in weight_shapes(spec).values()) == KERNELS + VECTORS
    return spec, weights


@pytest.mark.parametrize(
    ("communication", "numbers"),
    [(8, KERNELS + 4 * VECTORS + 4 * VECTORS), (16, 2 * (KERNELS + VECTORS)), (32, 4 * (KERNELS + VECTORS))],
)
def test_weights_are_sent_in_as_many_bytes_as_their_bits_say(communication: int, numbers: int) -> None:
    # 8 bits: a byte a kernel's number; one float32 scale an output channel, of which there are as many as biases.
    quantize = 16 if communication == 32 else 32
    data = publish(push(*wide()), 1, quantize, communication).data.tobytes()
    header = int.from_bytes(data[:8], "little")  # safetensors: its length, the header, then the numbers
    assert len(data) - 8 - header == numbers


def test_only_actors_in_int8_are_sent_the_calibration() -> None:
    pushed = push(make_spec(), make_weights(make_spec()))
    sent = load(publish(pushed, 1, 8, 32).data.tobytes())
    np.testing.assert_array_equal(sent["calibration"], pushed.calibration)
    assert "calibration" not in load(publish(pushed, 1, 16, 32).data.tobytes())


def test_an_int8_artifact_is_a_quarter_of_the_fp32_one() -> None:
    pushed = push(*wide())
    sizes = {bits: publish(pushed, 1, bits, bits).data.nbytes for bits in BITS}
    # Beside the kernels: the graph, a few kilobytes, and for each channel a bias of 4 bytes (fp16: 2); with int8 also
    # a scale of 4 bytes and a zero point of 8, of the kernel's and of the bias's.
    for bits, channel in ((8, 4 + 12 + 12), (16, 2), (32, 4)):
        assert 0 < sizes[bits] - KERNELS * bits // 8 - VECTORS * channel < 6_000
    assert 0.25 < sizes[8] / sizes[32] < 0.28


def sent(quantize: int = 8, communication: int = 8) -> Published:
    return publish(push(make_spec(), make_weights(make_spec())), 3, quantize, communication)


@pytest.mark.parametrize(("quantize", "communication"), PAIRS)
def test_a_version_survives_its_way(quantize: int, communication: int) -> None:
    published = sent(quantize, communication)
    data = published.data.copy()
    data.setflags(write=False)  # as an object store gives it
    back = replace(published, data=np.zeros(0, np.uint8)).attach_data(data)
    assert replace(back, data=published.data) == published
    assert (back.version, back.updates, back.communication) == (3, 7, communication)
    assert unpack_artifact(back) == unpack_artifact(published)


@pytest.mark.parametrize("damage", ["one bit", "cut", "longer", "empty"])
def test_damaged_data_is_refused(damage: str) -> None:
    published = sent()
    data = published.data.copy()
    data[len(data) // 2] ^= 1
    damaged = {
        "one bit": data, "cut": published.data[:-1], "longer": np.append(published.data, np.uint8(0)),
        "empty": published.data[:0],
    }  # fmt: skip
    with refused(WireError, "damaged_parameters"):
        published.attach_data(damaged[damage])


def test_what_makes_no_artifact_is_refused() -> None:
    published = sent(8, 32)
    with refused(WireError, "not_safetensors"):
        unpack_artifact(replace(published, data=published.data[:100]))
    pushed = push(make_spec(), make_weights(make_spec()))
    with pytest.raises(QuantizationError, match="calibration set must"):
        publish(replace(pushed, calibration=pushed.calibration[:0]), 1, 8, 8)


@pytest.mark.parametrize("name", ["dense_0/kernel", "head/bias"])
@pytest.mark.parametrize(("quantize", "communication"), PAIRS)
def test_weights_that_are_not_finite_are_refused(quantize: int, communication: int, name: str) -> None:
    spec = make_spec()
    weights = make_weights(spec)
    weights[name].flat[0] = np.nan
    with pytest.raises(PolicyError, match=r"(?i)NaN|finite"):
        publish(push(spec, weights), 1, quantize, communication)


def test_the_quantization_error_by_hand() -> None:
    # One unit passes x on: with 16 bits x · (1 + 2⁻¹²) is x · 1, off by x · 2⁻¹². Normalised x is 0, 4, 8: mean 4.
    spec = replace(make_spec(hidden=(1,), size=1), normaliser=Normaliser((0.0,), (1.0,), 100.0))
    weights = {
        "dense_0/kernel": np.array([[1.0 + 2.0**-12]], np.float32), "dense_0/bias": np.zeros(1, np.float32),
        "head/kernel": np.ones((1, 3), np.float32), "head/bias": np.zeros(3, np.float32),
    }  # fmt: skip
    pushed = replace(push(spec, weights), calibration=np.array([[0.0], [4.0], [8.0]], np.float32))
    assert quantization_error(pushed, Precision.FP16, 16) == pytest.approx(4.0 * 2.0**-12)
    assert quantization_error(pushed, Precision.FP32, 32) == 0.0
    # What is lost on the way counts as what the actor loses; one weight a channel is a level of its own scale.
    assert quantization_error(pushed, Precision.FP32, 16) == pytest.approx(4.0 * 2.0**-12)
    assert quantization_error(pushed, Precision.FP32, 8) == pytest.approx(0.0, abs=1e-6)


def test_fewer_bits_make_a_larger_error() -> None:
    pushed = push(make_spec(), make_weights(make_spec()))
    assert len(pushed.calibration) == ROWS
    errors = [quantization_error(pushed, Precision.from_bits(bits), bits) for bits in (32, 16, 8)]
    assert errors == sorted(errors)
    assert 0.0 == errors[0] < errors[1] < errors[2]
    on_the_way = [quantization_error(pushed, Precision.FP32, bits) for bits in (32, 16, 8)]
    assert 0.0 == on_the_way[0] < on_the_way[1] < on_the_way[2]
