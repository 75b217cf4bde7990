"""The records of a native artifact, as ``device/engine/format.h`` has them; device/engine/FORMAT.md explains them."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

MAGIC, VERSION = b"QPNATIVE", 1
LINE, CHUNK = 64, 16
"""Bytes: arrays begin at multiples of a cache line, rows of weights have whole chunks."""
CHUNKS = 4
"""Chunks of a block."""
BLOCK = 64
"""Outputs of a block of floats."""
WIDENED, DYNAMIC = 1, 2
"""Levels that floats multiply, and levels of values that get theirs in each decision."""
LARGEST_IN = 65_535
"""Most rows of a layer's weights."""


@dataclass
class LayerRecord:
    """One layer, 128 bytes; the fields in their order."""

    bits: int
    inputs: int
    outputs: int
    padded: int
    weights: int
    bias: int
    multiplier: int
    signed_bias: int = 0
    table: int = 0
    gamma: int = 0
    beta: int = 0
    zero: int = 0
    low: int = 0
    base: int = -128
    height: int = 0
    width: int = 0
    channels: int = 0
    side: int = 0
    stride: int = 0
    activation: int = 0
    scale: float = 1.0
    norm_scale: float = 0.0
    norm_zero: int = 0
    norm_low: int = 0
    slope: float = 0.0
    dense: int = 0
    cell: int = 0
    widened: int = 0

    def pack_record(self) -> bytes:
        """Return the layer's 128 bytes as they lie in the file."""
        return struct.pack("<11I3i6I2f2ifIII16x", *astuple(self))


@dataclass
class FileRecord:
    """The artifact's head, 128 bytes; behind magic and version the fields in their order."""

    size: int
    layers: int
    outputs: int
    observation: int
    vector: int
    joins: int
    normaliser: int
    mean: int
    inverse: int
    lowest: int
    highest: int
    head: int
    scale: float = 0.0
    zero: int = 0
    base: int = 0
    vector_scale: float = 0.0
    vector_zero: int = 0
    vector_base: int = 0
    output_scale: float = 0.0
    output_zero: int = 0
    state: int = 0

    def pack_record(self) -> bytes:
        """Return the head's 128 bytes as they lie in the file."""
        return struct.pack("<8sI12IfiifiifiI32x", MAGIC, VERSION, *astuple(self))


HEAD_BYTES, LAYER_BYTES = 128, 128
