"""Small quantized networks of every kind that the contract has, with random weights."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from quarl.convert.native.floats import float_artifact
from quarl.convert.native.writer import native_artifact
from quarl.convert.reference import float_reference
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, Mode
from quarl.policy.reference import (
    IntegerNetwork,
    Weights,
    apply_head,
    forward_layer,
    head_inputs,
    input_levels,
    join,
)
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    Activation,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    Squash,
    weight_shapes,
)
from tests.convert.conftest import make_spec
from tests.recurrent_policies import recurrent_spec

ROWS = 12
BASE = make_spec(
    observation=(ObservationField("state", (7,), "1"),),
    normaliser=Normaliser((0.2,) * 7, tuple(np.linspace(0.5, 2.0, 7).tolist()), 4.0),
    network=NetworkSpec((33, 70)),
    head=DiscreteHead(("a", "b", "c", "d", "e")),
)
IMAGE = replace(
    BASE,
    observation=(ObservationField("picture", (13, 12, 3), "grey level"), ObservationField("goal", (2,), "m")),
    normaliser=Normaliser((0.0,), (255.0,), float("inf")),
    network=NetworkSpec((18,), convolutions=(Convolution(5, 4, 2), Convolution(9, 2, 1))),
)
HIDDEN = (Activation.TANH, Activation.NONE, Activation.SIGMOID, Activation.SILU, Activation.RELU)
NETWORKS: dict[str, tuple[PolicySpec, int]] = {
    **{kind.value: (replace(BASE, network=NetworkSpec((33, 70), kind)), 8) for kind in Activation},
    **{
        f"norm, {kind.value}": (replace(BASE, network=NetworkSpec((40, 17), kind, layer_norm=True)), 8)
        for kind in Activation
    },
    **{f"relu, {bits} bits": (BASE, bits) for bits in range(2, 8)},
    "each its own, 4 bits": (
        replace(BASE, network=NetworkSpec((5, 130, 64, 9, 31), Activation.TANH, activations=HIDDEN)),
        4,
    ),
    "no hidden layer": (replace(BASE, network=NetworkSpec(())), 8),
    "one output, tanh": (replace(BASE, head=ContinuousHead((-2.0,), (1.0,), Squash.TANH)), 8),
    "clipped": (replace(BASE, head=ContinuousHead((-1.0, 0.0), (2.0, 5.0), Squash.CLIP)), 8),
    "limited": (replace(BASE, head=ContinuousHead((-1.0, 0.0), (2.0, 5.0), Squash.NONE, 1.5)), 4),
    "wider than 4096": (replace(BASE, network=NetworkSpec((4500, 300))), 8),
    "wider than 4096, 2 bits": (replace(BASE, network=NetworkSpec((4500, 300))), 2),
    "picture and vector": (IMAGE, 8),
    "picture and vector, 2 bits": (IMAGE, 2),
    "picture, tanh": (replace(IMAGE, network=replace(IMAGE.network, activation=Activation.TANH)), 4),
}
RECURRENT = {name: (recurrent_spec(name, discrete=False), 8) for name in ("gru", "lstm", "three", "normalised")}
"""Their gates are float, in the engine in float32, so that levels behind them are the reference's up to a border."""


def made(name: str, seed: int = 0) -> tuple[PolicySpec, IntegerNetwork, np.ndarray]:
    """The spec, a network quantized from random weights, and raw observations near the calibration and far off."""
    spec, bits = {**NETWORKS, **RECURRENT}[name]
    return spec, *quantized(spec, bits, np.random.default_rng([seed, len(name)]))


def quantized(spec: PolicySpec, bits: int, random: np.random.Generator) -> tuple[IntegerNetwork, np.ndarray]:
    """A network from random weights, and raw observations near the calibration and far off."""
    weights, rows = _weights(spec, random), _observations(spec, random)
    network = quantize_network(spec, weights, rows[ROWS:], bits)
    rows[ROWS // 2 : ROWS] *= 9.0
    return network, rows[:ROWS]


def _weights(spec: PolicySpec, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        part: random.normal(0.0, 1.5 / np.sqrt(np.prod(shape[:-1])) if len(shape) > 1 else 0.3, shape).astype("f4")
        for part, shape in weight_shapes(spec).items()
    }


def _observations(spec: PolicySpec, random: np.random.Generator) -> np.ndarray:
    if spec.network.convolutions:
        rows = random.integers(0, 256, (60, spec.observation_size)).astype(np.float32)
        if spec.vector_size:
            rows[:, -spec.vector_size :] = random.normal(0.0, 90.0, (60, spec.vector_size))
    else:
        rows = random.normal(0.3, 1.5, (200, spec.observation_size)).astype(np.float32)
    return rows


LINE = 64


def levels_of(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray) -> list[np.ndarray]:
    """What policy.integer computes: levels of the input and behind every layer, each (rows, elements)."""
    levels, vector = input_levels(spec, network, rows)
    found, input_map = [levels], network.input
    for layer in network.layers:
        levels = join(spec, layer.name, forward_layer(layer, input_map, levels), vector)
        input_map = layer.result
        found.append(levels)
    return [each.reshape(len(rows), -1) for each in found]


def outputs_of(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the engine has to give: float32 (rows, outputs), and the choices, 0 of a continuous policy."""
    outputs = apply_head(spec, head_inputs(spec, network, rows), exact=True)
    return outputs, outputs.argmax(axis=1) if spec.is_discrete else np.zeros(len(rows), np.int64)


def check(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray, kernels: str) -> None:
    """Compare in this process: as the artifact says, all layers dense, all sparse."""
    engine = Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size)
    engine.use(kernels)
    wanted = levels_of(spec, network, rows)
    outputs, choices = outputs_of(spec, network, rows)
    chosen = engine.modes
    for modes in (chosen, (Mode.DENSE,) * len(chosen), (Mode.SPARSE,) * len(chosen)):
        engine.modes = modes
        for index, row in enumerate(rows if modes is chosen else rows[:2]):
            for layers, levels in enumerate(wanted):
                np.testing.assert_array_equal(engine.levels(row, layers), levels[index], err_msg=f"layer {layers}")
            choice = engine.decide(row)
            np.testing.assert_array_equal(engine.outputs, outputs[index])
            assert choice == choices[index]


def case(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray) -> bytes:
    """What check.c reads."""
    outputs, choices = outputs_of(spec, network, rows)
    levels = levels_of(spec, network, rows)
    return _packed(native_artifact(spec, network), rows, levels, outputs, choices, np.zeros(outputs.shape[1]))


def _packed(
    artifact: bytes,
    rows: np.ndarray,
    wanted: list[np.ndarray],
    outputs: np.ndarray,
    choices: np.ndarray,
    tolerance: np.ndarray,
) -> bytes:
    head = [len(artifact), *rows.shape, outputs.shape[1], len(wanted), *(each.shape[1] for each in wanted)]
    levels = [each.astype(np.int8).tobytes() for each in wanted]
    ends = [outputs.astype("<f4").tobytes(), choices.astype("<i4").tobytes(), tolerance.astype("<f4").tobytes()]
    parts = [struct.pack(f"<{len(head)}I", *head), artifact, rows.astype("<f4").tobytes(), *levels, *ends]
    return b"".join(each.ljust(-(-len(each) // LINE) * LINE, b"\0") for each in parts)


# --- floats ---------------------------------------------------------------------------------------------------------

FLOAT_PRECISIONS = tuple(precision for precision in Precision if not precision.is_integer)
FLOATS: dict[str, PolicySpec] = {
    **{kind.value: replace(BASE, network=NetworkSpec((33, 70), kind)) for kind in Activation},
    **{f"norm, {kind.value}": NETWORKS[f"norm, {kind.value}"][0] for kind in Activation},
    "each its own": NETWORKS["each its own, 4 bits"][0],
    "wide": replace(BASE, network=NetworkSpec((130, 111))),
    "leaky": NETWORKS["leaky_relu"][0],
    "norm": NETWORKS["norm, tanh"][0],
    "picture": IMAGE,
    "no vector": replace(IMAGE, observation=IMAGE.observation[:1]),
    **{
        name: NETWORKS[name][0]
        for name in ("no hidden layer", "one output, tanh", "clipped", "limited", "picture, tanh")
    },
    "limited tanh": replace(BASE, head=ContinuousHead((-2.0,), (1.0,), Squash.TANH, 0.5)),
    **{name: spec for name, (spec, _) in RECURRENT.items()},
    "gru, discrete": recurrent_spec("gru", discrete=True),
}


@dataclass(frozen=True)
class FloatCase:
    """An artifact of floats, and what it has to make of observations, within a tolerance for each result."""

    spec: PolicySpec
    weights: Weights
    artifact: bytes
    rows: np.ndarray
    outputs: np.ndarray
    tolerance: np.ndarray

    def packed(self) -> bytes:
        """What check.c reads."""
        own = self.outputs[:, : self.spec.output_size]
        choices = own.argmax(axis=1) if self.spec.is_discrete else np.zeros(len(own), np.int64)
        return _packed(self.artifact, self.rows, [], self.outputs, choices, self.tolerance)


def float_case(spec: PolicySpec, weights: Weights, rows: np.ndarray, precision: Precision) -> FloatCase:
    """What the parity gate asks of a precision of floats."""
    reference = float_reference(spec, weights, rows, precision=precision)
    return FloatCase(
        spec, weights, float_artifact(spec, weights, precision), rows, reference.outputs, reference.tolerance[0]
    )


def random_floats(spec: PolicySpec, precision: Precision, seed: int = 0) -> FloatCase:
    """A network of random weights, on random observations."""
    random = np.random.default_rng([seed, spec.observation_size])
    return float_case(spec, _weights(spec, random), _observations(spec, random)[:ROWS], precision)
