"""From a policy's weights to a native artifact that computes with floats: float32, IEEE half, levels of 8 or 4 bits."""

from __future__ import annotations

import numpy as np

from quarl.convert.native.layout import BLOCK, CHUNK, DYNAMIC, WIDENED, FileRecord, LayerRecord
from quarl.convert.native.writer import CELLS, ArtifactFile, check_inputs, pad_with_zeros, put_normaliser
from quarl.policy import exact
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.quantize import to_fp16
from quarl.policy.reference import Weights, head_constants, head_limits, is_normalised, layer_names
from quarl.policy.simulate import stored_kernel
from quarl.policy.spec import Activation, ContinuousHead, PolicySpec, Precision, Squash, observation_shape


def float_artifact(spec: PolicySpec, weights: Weights, precision: Precision = Precision.FP32) -> bytes:
    """Return the file's bytes.

    Args:
        spec, weights: the policy.
        precision: of the weights; fp16 rounds the other numbers of the layers, too.

    Raises:
        QuantizationError: a layer of more than 65,535 inputs.
    """
    names = layer_names(spec)
    file = ArtifactFile(len(names))
    records = [_layer(file, spec, weights, index, precision) for index in range(len(names))]
    record = FileRecord(
        **put_normaliser(file, spec),
        size=0,
        layers=len(records),
        outputs=spec.output_size,
        observation=spec.input_size,
        vector=spec.vector_size,
        joins=len(spec.network.convolutions) if spec.vector_size else 0,
        head=file.put(_ends(spec.head)) if isinstance(spec.head, ContinuousHead) else 0,
        state=spec.state_size,
    )
    return file.joined(record, records)


def _layer(file: ArtifactFile, spec: PolicySpec, weights: Weights, index: int, precision: Precision) -> LayerRecord:
    network, name = spec.network, layer_names(spec)[index]

    def rounded(part: str) -> np.ndarray:
        values = weights[f"{name}/{part}"]
        return to_fp16(values).astype("<f4") if precision is Precision.FP16 else values.astype("<f4")

    kernel, scales = stored_kernel(spec, weights, name, precision)
    bias = rounded("bias")
    matrix = kernel.reshape(-1, len(bias))
    if scales is None:
        matrix = rounded("kernel").reshape(matrix.shape).astype(f"<f{precision.bits // 8}")
    check_inputs(name, len(matrix))
    rows = pack_floats(matrix)
    padded = rows.size // len(matrix)
    record = LayerRecord(
        *(precision.bits, len(matrix), len(bias), padded),
        weights=file.put(pack_nibbles(rows) if precision is Precision.W4 else rows),
        bias=file.put(pad_with_zeros(bias, padded, "<f4")),
        multiplier=0 if scales is None else file.put(pad_with_zeros(scales, padded, "<f4")),
        base=0,
        scale=0.0,
        widened=0 if scales is None else WIDENED,
    )
    if precision is Precision.DYNAMIC and kernel.ndim == 2:
        record.widened = DYNAMIC
        record.signed_bias = file.put(pad_with_zeros(matrix.sum(axis=0, dtype=np.int32), padded, "<i4"))
    if kernel.ndim == 4:
        record.height, record.width, record.channels = network.image_shapes(observation_shape(spec))[index]
        record.side, record.stride = kernel.shape[0], network.convolutions[index].stride
    if name in network.states:
        record.cell = CELLS[len(bias) // len(kernel)]
    if is_normalised(network, name):
        record.gamma, record.beta = file.put(rounded("gamma")), file.put(rounded("beta"))
    activation = _activation(spec, name)
    record.activation = NONLINEARITIES[activation].native
    record.slope = network.negative_slope if NONLINEARITIES[activation].takes_slope else 0.0
    return record


def _activation(spec: PolicySpec, name: str) -> Activation:
    if name != "head":
        return spec.network.activation_of(name)
    is_tanh = isinstance(spec.head, ContinuousHead) and spec.head.squash is Squash.TANH
    return Activation.TANH if is_tanh else Activation.NONE


def _ends(head: ContinuousHead) -> np.ndarray:
    """Return lowest, highest, gain and offset of each output, float32 (4, outputs)."""
    ends = np.asarray(head_limits(head), np.float32)
    if head.squash is Squash.TANH:
        ends = exact.tanh(ends)  # of tanh y, where y is limited
    gain, offset = head_constants(head)
    return np.stack([np.full(len(gain), ends[0]), np.full(len(gain), ends[1]), gain, offset]).astype("<f4")


def pack_floats(matrix: np.ndarray) -> np.ndarray:
    """Weights (in, out), row by row in blocks of 64 outputs; the last block is as wide as what is left, in sixteens."""
    wide = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % CHUNK)))
    return np.concatenate([wide[:, start : start + BLOCK].reshape(-1) for start in range(0, wide.shape[1], BLOCK)])


def pack_nibbles(levels: np.ndarray) -> np.ndarray:
    """Levels of 4 bits, sixteen in 8 bytes: byte i holds the i-th in its lower half, and the one 8 behind it."""
    low, high = np.moveaxis(levels.reshape(-1, 2, CHUNK // 2), 1, 0)
    return ((low & 15) | high << 4).astype(np.uint8).reshape(-1)
