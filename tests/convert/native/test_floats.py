"""Float weights in the native engine: within the error of float32 sums of the reference, with every set of kernels, on
every processor; what contradicts the page is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl.convert.native.floats import float_artifact
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, Mode, NativeError
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.reference import choose_actions
from quarl.policy.simulate import stored_weights
from quarl.policy.spec import Activation, NetworkSpec, PolicySpec, Precision
from tests.convert.native.networks import BASE, FLOAT_PRECISIONS, FLOATS, FloatCase, float_case, random_floats
from tests.convert.native.test_format import OFFSETS, opened, patched
from tests.convert.native.test_parity import KERNELS, SETTINGS, pictures

BUNDLES = sorted(path.parent for path in ZOO.glob("**/policy.json"))


def check(case: FloatCase, kernels: str) -> None:
    spec = case.spec
    engine = Engine(library(), case.artifact, spec.observation_size, spec.result_size)
    engine.use(kernels)
    for row, wanted in zip(case.rows, case.outputs, strict=True):
        choice = engine.decide(row)
        found = np.array(engine.outputs)
        assert (np.abs(found - wanted) <= case.tolerance).all(), np.abs(found - wanted) / case.tolerance
        assert choice == (choose_actions(spec, found[None])[0] if spec.is_plain_choice else choice)
        engine.modes = (Mode.DENSE,) * len(engine.modes)  # of floats it is the same
        assert engine.decide(row) == choice and np.array_equal(engine.outputs, found)
        assert len(engine.levels(row, 1)) == 0


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.W4, Precision.DYNAMIC])
@pytest.mark.parametrize("folder", BUNDLES, ids=lambda path: path.name)
def test_every_committed_bundle(folder: Path, precision: Precision) -> None:
    bundle = Bundle.load(folder)
    rows = bundle.golden().observations
    few = 2 if bundle.spec.network.convolutions else 24
    for kernels in KERNELS:
        check(float_case(bundle.spec, bundle.weights(), rows[:: max(len(rows) // few, 1)], precision), kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("precision", FLOAT_PRECISIONS)
@pytest.mark.parametrize("name", FLOATS)
def test_every_kind_of_layer(kernels: str, precision: Precision, name: str) -> None:
    check(random_floats(FLOATS[name], precision), kernels)


@SETTINGS
@given(
    hidden=st.lists(st.integers(1, 150), max_size=3),
    kind=st.sampled_from(list(Activation)),
    layer_norm=st.booleans(),
    precision=st.sampled_from(FLOAT_PRECISIONS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_dense_layers(
    hidden: list[int], kind: Activation, layer_norm: bool, precision: Precision, seed: int
) -> None:
    spec = replace(BASE, network=NetworkSpec(tuple(hidden), kind, layer_norm=layer_norm))
    for kernels in KERNELS:
        check(random_floats(spec, precision, seed), kernels)


@SETTINGS
@given(spec=pictures(), precision=st.sampled_from(FLOAT_PRECISIONS), seed=st.integers(0, 2**32 - 1))
def test_any_convolutions(spec: PolicySpec, precision: Precision, seed: int) -> None:
    for kernels in KERNELS:
        check(random_floats(spec, precision, seed), kernels)


def weights_of(artifact: bytes, layer: int) -> np.ndarray:
    """(in, padded), each looked for where the page says it lies."""
    at = 128 + 128 * layer
    bits, rows, _, padded, weights = struct.unpack_from("<5I", artifact, at)
    multiplier, widened = (
        struct.unpack_from("<I", artifact, at + 24)[0],
        struct.unpack_from("<I", artifact, at + 108)[0],
    )
    assert (bits < 16) == bool(widened) == bool(multiplier)
    if bits == 4:  # sixteen in 8 bytes, the first eight in the lower halves
        raw = np.frombuffer(artifact, np.uint8, rows * padded // 2, weights).reshape(-1, 1, 8)
        raw = np.concatenate([raw & 15, raw >> 4], axis=1).reshape(-1).astype(np.int64)
        raw = np.where(raw > 7, raw - 16, raw)
    else:
        raw = np.frombuffer(artifact, {8: "i1", 16: "<f2", 32: "<f4"}[bits], rows * padded, weights)
    o, r = np.arange(padded), np.arange(rows)[:, None]
    b = o // 64
    n = np.minimum(64, padded - 64 * b)
    found: np.ndarray = raw[64 * b * rows + n * r + o - 64 * b]
    return found if not widened else found.astype(np.float32) * np.frombuffer(artifact, "<f4", padded, multiplier)


@pytest.mark.parametrize("precision", FLOAT_PRECISIONS)
def test_the_weights_lie_where_the_page_says(precision: Precision) -> None:
    case = random_floats(FLOATS["wide"], precision)
    used = stored_weights(case.spec, case.weights, precision)
    for index, name in enumerate(("dense_0", "dense_1", "head")):
        kernel = used[f"{name}/kernel"]
        np.testing.assert_array_equal(weights_of(case.artifact, index)[:, : kernel.shape[1]], kernel)


NAN, INFINITY = float("nan"), float("inf")
KINDS = {precision.value: precision for precision in FLOAT_PRECISIONS}
REFUSED: dict[str, tuple[str, dict[str, float], str]] = {
    **{
        f"{name} of {value:g}": ("relu", {name: value}, "padding")
        for name, value in (("scale", 1.0), ("zero", 1), ("base", -128), ("output_scale", 1.0), ("vector_scale", 1.0))
    },
    **{
        f"{name} of a layer": ("relu", {f"layer_{name}": value}, "padding")
        for name, value in (
            ("multiplier", 640), ("signed_bias", 640), ("table", 640), ("zero", 1), ("low", -1), ("base", -128),
            ("scale", 1.0), ("norm_scale", NAN), ("norm_zero", 1), ("dense", 1), ("pad", 1), ("slope", 0.5),
        )
    },
    "integers behind floats": ("relu", {"second_bits": 8}, "contradict"),
    "levels of 2 bits": ("w8", {"layer_bits": 2}, "contradict"),
    "halves that are levels": ("fp16", {"layer_widened": 1, "second_widened": 1}, "contradict"),
    "sums of weights that are not there": ("w8", {"layer_widened": 2}, "not lie inside"),
    "sums of weights of levels": ("w8", {"layer_signed_bias": 640}, "padding"),
    "an unknown way to widen": ("w8", {"layer_widened": 3}, "contradict"),
    "levels of each decision in 4 bits": ("w4", {"layer_widened": 2, "layer_signed_bias": 640}, "contradict"),
    "levels without their scales": ("w4", {"layer_multiplier": 0}, "not lie inside"),
    "integers among levels": ("w8", {"second_widened": 0}, "contradict"),
    "64 bits": ("relu", {"layer_bits": 64}, "contradict"),
    "weights of twice the size": ("fp16", {"layer_bits": 32, "second_bits": 32}, "contradict|not lie inside"),
    "another padding of outputs": ("relu", {"layer_padded": 64}, "contradict"),
    "an unknown activation": ("relu", {"layer_activation": 7}, "not finite"),
    "an infinite slope": ("leaky", {"layer_slope": INFINITY}, "not finite"),
    "weights behind the end": ("relu", {"layer_weights": 2**31}, "not lie inside"),
    "a bias at an odd place": ("relu", {"layer_bias": 513}, "not lie inside"),
    "a normalisation without its second array": ("norm", {"layer_beta": 0}, "contradict"),
    "an unknown cell": ("gru", {"third_cell": 3}, "contradict"),
    "an activation of a cell": ("gru", {"third_activation": 1}, "contradict"),
    "an activation before a cell": ("gru", {"second_activation": 1}, "do not fit"),
    "a head behind the end": ("clipped", {"head": 2**30}, "not lie inside"),
    "no stride": ("picture", {"layer_stride": 0}, "contradict"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_the_page_is_refused(name: str) -> None:
    network, changes, words = REFUSED[name]
    case = random_floats(*(FLOATS["relu"], KINDS[network]) if network in KINDS else (FLOATS[network], Precision.FP32))
    sizes = case.spec.observation_size, case.spec.result_size
    opened(case.artifact, *sizes)
    with pytest.raises(NativeError, match=words):
        opened(patched(case.artifact, **changes), *sizes)


@pytest.mark.parametrize("precision", FLOAT_PRECISIONS)
@pytest.mark.parametrize(
    ("array", "name"), [("layer.weights", "relu"), ("layer.bias", "relu"), ("layer.gamma", "norm"), ("head", "clipped")]
)
def test_numbers_that_are_not_finite_are_refused(array: str, name: str, precision: Precision) -> None:
    case = random_floats(FLOATS[name], precision)
    sizes = case.spec.observation_size, case.spec.result_size
    array = "layer.multiplier" if precision.is_weight_only and array == "layer.weights" else array
    data = bytearray(case.artifact)
    (at,) = struct.unpack_from("<I", data, OFFSETS[array])
    kind = "<e" if precision is Precision.FP16 and array == "layer.weights" else "<f"
    data[at : at + struct.calcsize(kind)] = struct.pack(kind, NAN if array == "head" else INFINITY)
    with pytest.raises(NativeError, match="not finite"):
        opened(bytes(data), *sizes)
    if array == "head":  # the lowest action may be, its gain not
        opened(case.artifact[:at] + struct.pack("<f", -INFINITY) + case.artifact[at + 4 :], *sizes)
        gain = at + 8 * case.spec.output_size
        with pytest.raises(NativeError, match="not finite"):
            opened(case.artifact[:gain] + struct.pack("<f", INFINITY) + case.artifact[gain + 4 :], *sizes)


def test_a_threads_help_is_not_asked_for() -> None:
    spec = replace(BASE, network=NetworkSpec((600, 600)))
    case = random_floats(spec, Precision.FP32)
    engine = Engine(library(), case.artifact, spec.observation_size, spec.result_size, threads=2)
    assert engine.helpers == ()


def test_fewer_bits_are_a_smaller_file() -> None:
    weights = random_floats(FLOATS["wide"], Precision.FP32)
    full, half, eight, four, _ = (len(float_artifact(weights.spec, weights.weights, kind)) for kind in FLOAT_PRECISIONS)
    assert 0.5 < half / full < 0.52 and 0.25 < eight / full < 0.29 and 0.125 < four / full < 0.17
