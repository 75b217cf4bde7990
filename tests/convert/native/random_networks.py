"""Integer networks built of anything that the contract allows, not only of what a quantizer makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from quarl.policy.quantize import INT8_MAX, INT8_MIN, Affine, IntegerTable
from quarl.policy.reference import IntegerLayer, IntegerNetwork, IntegerNorm, layer_names
from quarl.policy.simulate import INT32_MAX, _check_accumulator
from quarl.policy.spec import (
    Activation,
    ContinuousHead,
    DiscreteHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
)
from tests.convert.native.networks import BASE

LARGEST = {2: 1, 4: 7, 8: 127}
"""|weight| of so many bits."""
WEIGHTS = ("any", "largest", "lowest", "highest", "few", "zero rows and columns")
MULTIPLIERS = ("fitting", "halves", "of int32", "huge", "small", "subnormal", "0", "of all sizes")
BIASES = ("none", "small", "at the limits")
KINDS = ("relu", "linear", "table", "norm")
INPUTS = ("any", "upper half", "lowest", "highest", "ends", "at zero", "one is not zero")


@dataclass(frozen=True)
class LayerPlan:
    """One layer: words of those above, the lowest level of its results, and their zero point counted from there."""

    outputs: int
    bits: int = 8
    kind: str = "relu"
    weights: str = "any"
    multipliers: str = "fitting"
    biases: str = "small"
    low: int = INT8_MIN
    zero: int = 0


@dataclass(frozen=True)
class Plan:
    """A network: the elements and the zero point of its input, its layers, which kinds of observations it sees."""

    inputs: int
    input_zero: int
    layers: tuple[LayerPlan, ...]
    rows: tuple[str, ...] = INPUTS
    continuous: bool = False
    seed: int = 0


def built(plan: Plan) -> tuple[PolicySpec, IntegerNetwork, np.ndarray]:
    """The spec, the network, and its raw observations: with a normaliser that changes nothing, levels less the zero."""
    random = np.random.default_rng(plan.seed)
    hidden, size = plan.layers[:-1], plan.layers[-1].outputs
    kinds = tuple(Activation.TANH if each.kind == "table" else Activation.RELU for each in plan.layers)
    spec = replace(
        BASE,
        observation=(ObservationField("state", (plan.inputs,), "1"),),
        normaliser=Normaliser((0.0,) * plan.inputs, (1.0,) * plan.inputs, 1e6),
        network=NetworkSpec(tuple(each.outputs for each in hidden), kinds[0], activations=kinds[:-1]),
        head=ContinuousHead((-2.0,) * size, (1.0,) * size, Squash.TANH)
        if plan.continuous or size == 1
        else DiscreteHead(tuple(f"a{i}" for i in range(size))),
    )
    layers, inputs = [], plan.inputs
    for name, each in zip(layer_names(spec), plan.layers, strict=True):
        layers.append(_layer(name, each, inputs, spec.network, random))
        inputs = each.outputs
    input_map = Affine(1.0, plan.input_zero)
    rows = np.stack([_levels(kind, plan, random) for kind in plan.rows])
    return spec, IntegerNetwork(input_map, tuple(layers), 8), (rows - plan.input_zero).astype(np.float32)


def _layer(name: str, plan: LayerPlan, inputs: int, network: NetworkSpec, random: np.random.Generator) -> IntegerLayer:
    kernel = _kernel(plan, inputs, random)
    sums = 255 * np.abs(kernel.astype(np.int64)).sum(axis=0)
    room, signs = INT32_MAX - sums, random.choice([-1, 1], plan.outputs)
    bias = {
        "none": np.zeros(plan.outputs, np.int64),
        "small": random.integers(-999, 1000, plan.outputs).clip(-room, room),
        "at the limits": signs * room,
    }[plan.biases]
    _check_accumulator(name, kernel, bias.astype(np.float64))
    output = Affine(1.0, min(plan.low + plan.zero, INT8_MAX), plan.low)
    following = Affine(0.125 if plan.kind == "norm" else 1.0, output.zero_point, plan.low)
    norm = table = None
    if plan.kind == "norm":
        gamma, beta = random.normal(0.0, 2.0, (2, plan.outputs)).astype(np.float32)
        norm = IntegerNorm(gamma, beta, network, following)
    elif plan.kind == "table":
        levels = random.integers(plan.low, INT8_MAX + 1, 256).astype(np.int8)
        table = IntegerTable(Activation.TANH, 0.0, levels, following)
    if norm or table:
        output = Affine(1.0, plan.zero + INT8_MIN)
    return IntegerLayer(
        name, kernel, bias.astype(np.int32), _multipliers(plan, sums, random), output, plan.kind == "relu",
        norm=norm, table=table,
    )  # fmt: skip


def _kernel(plan: LayerPlan, inputs: int, random: np.random.Generator) -> np.ndarray:
    most, shape = LARGEST[plan.bits], (inputs, plan.outputs)
    kernel = random.integers(-most, most + 1, shape)
    if plan.weights in ("lowest", "highest"):
        kernel[:] = most if plan.weights == "highest" else -most
    elif plan.weights == "largest":
        kernel = most * random.choice([-1, 1], shape)
    elif plan.weights == "few":
        kernel *= random.random(shape) < 0.05
    elif plan.weights == "zero rows and columns":
        kernel[random.random(inputs) < 0.5] = 0
        kernel[:, random.random(plan.outputs) < 0.5] = 0
    kernel[-1, -1] = most  # so many bits, whatever the others are
    return kernel.astype(np.int8)


def _multipliers(plan: LayerPlan, sums: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Float32 (out,); all other scales are 1."""
    size = plan.outputs
    found = {
        "fitting": random.uniform(0.1, 4.0, size) * 127.0 / np.maximum(sums, 1) ** random.uniform(0.5, 1.0),
        "halves": 2.0 ** -random.integers(1, 20, size),
        "of int32": random.uniform(0.5, 1.2, size) * 2.0**-24,
        "huge": 10.0 ** random.uniform(2.0, 38.0, size),
        "small": 10.0 ** random.uniform(-37.0, -8.0, size),
        "subnormal": 10.0 ** random.uniform(-45.0, -38.0, size),
        "0": np.zeros(size),
        "of all sizes": 10.0 ** random.uniform(-38.0, 38.0, size),
    }[plan.multipliers]
    return found.astype(np.float32)


def _levels(kind: str, plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Levels of an observation (inputs,)."""
    levels = random.integers(INT8_MIN, INT8_MAX + 1, plan.inputs)
    if kind == "upper half":
        return random.integers(0, INT8_MAX + 1, plan.inputs)
    if kind == "ends":
        return random.choice([INT8_MIN, INT8_MAX], plan.inputs)
    if kind == "one is not zero":
        one = random.integers(plan.inputs)
        return np.where(np.arange(plan.inputs) == one, INT8_MAX, plan.input_zero)
    same = {"lowest": INT8_MIN, "highest": INT8_MAX, "at zero": plan.input_zero}
    return np.full(plan.inputs, same[kind]) if kind in same else levels


WIDEST = 65_535


def _widest(bits: int, weights: str, zero: int) -> Plan:
    """The largest sums that there can be, with the largest bias beside them."""
    layers = (
        LayerPlan(6, bits, "linear", weights, "of int32", "at the limits", zero=128),
        LayerPlan(5, bits, "linear", zero=128),
    )
    return Plan(WIDEST, zero, layers, ("highest", "lowest", "ends"))


def _nearly_zero(bits: int, zero: int) -> Plan:
    """The smallest sums beside the most rows: groups of rows whose sums fit 16 bits are longest."""
    layers = (LayerPlan(18, bits, "linear", "any", "halves", "none", zero=128), LayerPlan(5, bits, "linear", zero=128))
    return Plan(WIDEST, zero, layers, ("one is not zero", "at zero"))


WORST = {
    **{
        f"widest, {bits} bits, {weights}, zero {zero}": _widest(bits, weights, zero)
        for bits in LARGEST
        for weights in ("lowest", "highest")
        for zero in (INT8_MIN, 0, INT8_MAX)
    },
    **{
        f"widest, {bits} bits, all but one zero, zero {zero}": _nearly_zero(bits, zero)
        for bits in LARGEST
        for zero in (INT8_MIN, 0)
    },
    **{
        f"{name}, {bits} bits": Plan(
            191,
            INT8_MIN,
            (LayerPlan(130, bits, "relu", "largest", name), LayerPlan(67, bits, "linear", "any", name, zero=100),
             LayerPlan(5, bits, "linear", "any", name, "at the limits", zero=128)),
        )
        for bits in LARGEST
        for name in MULTIPLIERS
    },
    "fewer levels": Plan(
        30, 127, (LayerPlan(33, 8, "relu", low=112), LayerPlan(33, 4, "table", low=124, zero=1),
                  LayerPlan(17, 2, "norm", low=120), LayerPlan(1, 8, "linear", low=124, zero=3)), continuous=True,
    ),
}  # fmt: skip
"""Networks on which something is largest."""

WORDS = {"weights": WEIGHTS, "multipliers": MULTIPLIERS, "biases": BIASES, "bits": sorted(LARGEST)}
ANY: dict[str, Any] = {name: st.sampled_from(words) for name, words in WORDS.items()}
LOWEST, ZEROS = st.sampled_from([-128, 0, 64, 96, 112, 120, 124]), st.sampled_from([0, 1, 127, 128, 255])
LAYERS = st.builds(LayerPlan, outputs=st.integers(1, 200), kind=st.sampled_from(KINDS), low=LOWEST, zero=ZEROS, **ANY)
HEADS = st.builds(LayerPlan, outputs=st.integers(1, 70), kind=st.just("linear"), zero=st.integers(0, 255), **ANY)
PLANS = st.builds(
    Plan,
    inputs=st.integers(1, 200),
    input_zero=st.sampled_from([-128, -127, 0, 126, 127]) | st.integers(-128, 127),
    layers=st.builds(lambda hidden, head: (*hidden, head), st.lists(LAYERS, max_size=3), HEADS),
    continuous=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
"""Any network, as hypothesis draws it."""
