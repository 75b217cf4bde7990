"""From a policy in integers (:mod:`policy.reference`) to the native engine's artifact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.convert.native.layout import (
    CHUNK,
    CHUNKS,
    HEAD_BYTES,
    LARGEST_IN,
    LAYER_BYTES,
    LINE,
    FileRecord,
    LayerRecord,
)
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import INT8_MAX, INT8_MIN, Affine, dequantize_affine
from quarl.policy.reference import (
    IntegerLayer,
    IntegerNetwork,
    apply_head,
    normaliser_bounds,
    normaliser_constants,
    requantization_multipliers,
    vector_map,
)
from quarl.policy.spec import Activation, PolicySpec, observation_shape

CELLS = {3: 1, 4: 2}
"""Gates of a recurrent layer to its number in the file: GRU, LSTM."""
LARGEST = {2: 1, 4: 7, 8: 127}
"""Largest |weight| that this many bits hold."""


class ArtifactFile:
    """Arrays behind the records of this many layers, each at a multiple of a cache line."""

    def __init__(self, layers: int) -> None:
        self._begin, self._data = HEAD_BYTES + LAYER_BYTES * layers, bytearray()

    def put(self, values: np.ndarray) -> int:
        """Add an array; its offset."""
        self._data += bytes(-self.size % LINE)
        at = self.size
        self._data += np.ascontiguousarray(values).tobytes()
        return at

    @property
    def size(self) -> int:
        """Bytes of the file, as far as it has been written."""
        return self._begin + len(self._data)

    def joined(self, head: FileRecord, layers: Sequence[LayerRecord]) -> bytes:
        """Return the whole file, with its size in the head."""
        head.size = self.size
        return b"".join([head.pack_record(), *(layer.pack_record() for layer in layers), bytes(self._data)])


def native_artifact(spec: PolicySpec, network: IntegerNetwork) -> bytes:
    """Return the file's bytes: exactly the integers and scales of ``network``.

    Raises:
        QuantizationError: a layer of more than 65,535 inputs.
    """
    file = ArtifactFile(len(network.layers))
    shape: tuple[int, ...] = observation_shape(spec)
    records = []
    base = INT8_MIN
    joins = len(spec.network.convolutions) if spec.vector_size else 0
    for index, (layer, input_map) in enumerate(network.fed):
        joined = index + 1 == joins
        base_of_result = INT8_MIN if joined or index + 1 == len(network.layers) else _base(layer)
        records.append(_layer(file, layer, input_map, INT8_MIN if layer.cell else base, base_of_result, shape))
        base = base_of_result
        shape = spec.network.image_shapes(observation_shape(spec))[index + 1] if layer.kernel.ndim == 4 else ()
    output_map = network.layers[-1].result
    normaliser = put_normaliser(file, spec)
    vector = vector_map(spec, network) or Affine(0.0, 0)
    head = 0 if spec.is_discrete else file.put(_actions(spec, output_map))
    record = FileRecord(
        **normaliser,
        size=0,
        layers=len(records),
        outputs=spec.output_size,
        observation=spec.input_size,
        vector=spec.vector_size,
        joins=joins,
        head=head,
        scale=network.input.scale,
        zero=network.input.zero_point,
        base=INT8_MIN,
        vector_scale=vector.scale,
        vector_zero=vector.zero_point,
        vector_base=INT8_MIN if joins else 0,
        output_scale=output_map.scale,
        output_zero=output_map.zero_point,
        state=spec.state_size,
    )
    return file.joined(record, records)


def put_normaliser(file: ArtifactFile, spec: PolicySpec) -> dict[str, int]:
    """Add the normaliser's arrays, of one element where all are the same; the head's fields of them."""
    arrays = [*normaliser_constants(spec.normaliser), *normaliser_bounds(spec.normaliser)]
    length = 1 if all(len(np.unique(part)) == 1 for part in arrays) else spec.input_size
    places = [file.put(np.resize(part, length).astype("<f4")) for part in arrays]
    return {"normaliser": length, **dict(zip(("mean", "inverse", "lowest", "highest"), places, strict=True))}


def check_inputs(layer: str, inputs: int) -> None:
    """Raise QuantizationError where a layer has more inputs than the engine takes."""
    if inputs > LARGEST_IN:
        raise QuantizationError(
            f"layer {layer!r} must have at most {LARGEST_IN} inputs for the native engine, got {inputs}.",
            "Use LiteRT, tflite-runtime or onnxruntime: quarl convert --format tflite or onnx",
        )


def _layer(
    file: ArtifactFile, layer: IntegerLayer, input_map: Affine, base: int, base_of_result: int, shape: tuple[int, ...]
) -> LayerRecord:
    matrix = layer.kernel.reshape(-1, len(layer.bias))
    inputs, outputs = matrix.shape
    check_inputs(layer.name, inputs)
    largest_weight = max(int(matrix.max()), -int(matrix.min()))
    bits = next(bits for bits, largest in LARGEST.items() if largest_weight <= largest)
    rows, padded = pack_rows(matrix, bits)
    sums = matrix.sum(axis=0, dtype=np.int64)
    # Σ (q − z) w + b = Σ (q − base) w + (b − (z − base) Σ w): with z = base, a zero is stored as 0, and skipped
    bias = layer.bias.astype(np.int64) - (input_map.zero_point - base) * sums
    skips = input_map.zero_point == base
    record = LayerRecord(
        *(bits, inputs, outputs, padded),
        weights=file.put(rows),
        bias=file.put(pad_with_zeros(bias, padded, "<i4")),
        multiplier=file.put(pad_with_zeros(requantization_multipliers(layer, input_map), padded, "<f4")),
        signed_bias=0 if skips or bits < 8 else file.put(pad_with_zeros(bias + 128 * sums, padded, "<i4")),
        zero=layer.output.zero_point,
        low=layer.output.zero_point if layer.relu else layer.output.low,
        base=base_of_result,
        scale=layer.output.scale,
        dense=int(not skips),
    )
    if layer.kernel.ndim == 4:
        record.height, record.width, record.channels = shape
        record.side, record.stride = layer.kernel.shape[0], layer.stride
    if layer.table is not None:
        record.table = file.put(layer.table.levels)
    if layer.cell is not None:
        record.cell = CELLS[len(layer.bias) // len(layer.kernel)]
        result = layer.cell.output
        record.norm_scale, record.norm_zero, record.norm_low = result.scale, result.zero_point, result.low
    if layer.norm is not None:
        norm = layer.norm
        record.gamma, record.beta = file.put(norm.gamma.astype("<f4")), file.put(norm.beta.astype("<f4"))
        record.activation = NONLINEARITIES[norm.network.activation_of(layer.name)].native
        record.norm_scale, record.norm_zero = norm.output.scale, norm.output.zero_point
        record.norm_low, record.slope = max(norm.output.low, base_of_result), norm.network.negative_slope
    return record


def _base(layer: IntegerLayer) -> int:
    """Return the level that is stored as 0: that of zero, if no result lies below it; of gates and states the
    lowest."""
    if layer.cell is not None or layer.name.startswith("recurrent_"):
        return INT8_MIN
    zero = layer.result.zero_point
    if layer.table is not None:
        lowest = int(layer.table.levels.min())
    elif layer.norm is not None:
        relu = layer.norm.network.activation_of(layer.name) is Activation.RELU
        lowest = zero if relu else layer.norm.output.low
    else:
        lowest = zero if layer.relu else layer.output.low
    return zero if lowest >= zero else INT8_MIN


def pack_rows(matrix: NDArray[np.signedinteger[Any]], bits: int) -> tuple[NDArray[np.uint8], int]:
    """Weights (in, out) row by row in blocks of four chunks, and the outputs with those that fill the last chunk.

    A chunk is 16 bytes of 8 // bits outputs each: byte i holds outputs i, 16 + i, …, the first in the lowest bits.
    8 bits are int8; fewer are stored 8 or 1 too large, unsigned. A block holds the same chunks of all rows, one behind
    the other; the last one is as wide as what is left.
    """
    inputs, outputs = matrix.shape
    parts = 8 // bits
    chunks = -(-outputs // (CHUNK * parts))
    wide = np.zeros((inputs, chunks * CHUNK * parts), np.int8)
    wide[:, :outputs] = matrix
    if bits < 8:
        wide += np.int8(LARGEST[bits] + (bits == 4))
    fields = wide.view(np.uint8).reshape(inputs, chunks, parts, CHUNK)
    packed = fields[:, :, 0]
    for part in range(1, parts):
        packed = packed | (fields[:, :, part] << np.uint8(bits * part))
    blocks = [packed[:, start : start + CHUNKS].reshape(-1) for start in range(0, chunks, CHUNKS)]
    return np.concatenate(blocks), wide.shape[1]


def pad_with_zeros(values: np.ndarray, size: int, kind: str) -> np.ndarray:
    """Return an array with zeros behind it."""
    result = np.zeros(size, kind)
    result[: len(values)] = values
    return result


def _actions(spec: PolicySpec, output: Affine) -> np.ndarray:
    """Return the action of every output for each of the 256 levels, float32 (outputs, 256)."""
    levels = np.arange(INT8_MIN, INT8_MAX + 1)
    raw = np.repeat(dequantize_affine(levels, output)[:, None], spec.output_size, axis=1)
    return np.ascontiguousarray(apply_head(spec, raw, exact=True).T.astype("<f4"))
