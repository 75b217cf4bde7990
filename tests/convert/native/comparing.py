"""What policy.integer computes, and the engine compared with it: in this process, or in a program for any processor."""

from __future__ import annotations

import struct

import numpy as np

from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, Mode
from quarl.policy.reference import IntegerNetwork, apply_head, forward_layer, head_inputs, input_levels, join
from quarl.policy.spec import PolicySpec

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
    artifact, wanted = native_artifact(spec, network), levels_of(spec, network, rows)
    outputs, choices = outputs_of(spec, network, rows)
    head = [len(artifact), len(rows), spec.observation_size, spec.output_size, len(wanted)]
    head += [each.shape[1] for each in wanted]
    levels = [each.astype(np.int8).tobytes() for each in wanted]
    ends = [outputs.astype("<f4").tobytes(), choices.astype("<i4").tobytes()]
    parts = [struct.pack(f"<{len(head)}I", *head), artifact, rows.astype("<f4").tobytes(), *levels, *ends]
    return b"".join(each.ljust(-(-len(each) // LINE) * LINE, b"\0") for each in parts)
