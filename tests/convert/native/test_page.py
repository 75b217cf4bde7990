"""device/engine/FORMAT.md is enough to run an artifact: the numpy code here follows that page alone, and gives the
levels of policy.integer after every layer."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import DTypeLike

from quarl.convert.native.writer import native_artifact
from quarl.policy import exact
from quarl.policy.quantize import exactly
from quarl.policy.spec import Activation
from tests.convert.native.comparing import levels_of, outputs_of
from tests.convert.native.networks import NETWORKS, made
from tests.convert.native.random_networks import WORST, built
from tests.convert.native.test_format import HEAD, LAYER, Field

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # ∞ is cut to a level
KINDS = ("none", "relu", "tanh", "sigmoid", "elu", "leaky_relu", "silu")
CODES = {"uint32": "I", "int32": "i", "float": "f", "char": "s"}


def rint_clip(x: np.ndarray, zero: int, low: int) -> np.ndarray:
    return np.clip(np.rint(x) + zero, low, 127).astype(np.int64)


@dataclass
class Reader:
    """An artifact, read as the page says."""

    data: bytes

    def __post_init__(self) -> None:
        self.head = self.record(HEAD, 0)
        self.layers = [self.record(LAYER, 128 + 128 * i) for i in range(self.head.layers)]

    def record(self, fields: list[Field], start: int) -> SimpleNamespace:
        values = {}
        for field in fields:
            count = "" if field.count == 1 else str(field.count)
            values[field.name] = struct.unpack_from(f"<{count}{CODES[field.kind]}", self.data, start + field.offset)[0]
        return SimpleNamespace(**values)

    def array(self, offset: int, count: int, kind: DTypeLike = "<f4") -> np.ndarray:
        return np.frombuffer(self.data, kind, count, offset)

    def weights(self, layer: SimpleNamespace) -> np.ndarray:
        """(in, padded), each looked for where the page says it lies."""
        rows, parts = layer.__dict__["in"], 8 // layer.bits
        chunks = layer.padded // (16 * parts)
        raw = self.array(layer.weights, rows * layer.padded * layer.bits // 8, np.uint8).astype(np.int64)
        output = np.arange(layer.padded)
        c, within = output // (16 * parts), output % (16 * parts)
        i, part = within % 16, within // 16
        b = c // 4
        n = np.minimum(4, chunks - 4 * b)
        place = 64 * b * rows + 16 * n * np.arange(rows)[:, None] + 16 * (c - 4 * b) + i
        fields = raw[place] >> (layer.bits * part) & ((1 << layer.bits) - 1)
        return (fields ^ 128) - 128 if layer.bits == 8 else fields

    def input(self, row: np.ndarray, first: int, last: int, scale: float, zero: int) -> np.ndarray:
        h, k = self.head, slice(first, last) if self.head.normaliser > 1 else slice(0, 1)
        mean, inverse, lowest, highest = (
            self.array(at, h.normaliser)[k] for at in (h.mean, h.inverse, h.lowest, h.highest)
        )
        z = np.maximum(np.minimum((row[first:last] - mean) * inverse, highest), lowest)
        return rint_clip(z / np.float32(scale), zero, -128)

    def levels(self, row: np.ndarray) -> list[np.ndarray]:
        """Of the input and behind every layer, flat."""
        h, split = self.head, self.head.observation - self.head.vector
        found = [self.input(row, 0, split, h.scale, h.zero)]
        u = found[0] - h.base
        for number, layer in enumerate(self.layers, 1):
            q = self.layer(layer, u)
            base = layer.base
            if number == h.joins:
                assert h.vector_base == base
                q = np.concatenate([q, self.input(row, split, h.observation, h.vector_scale, h.vector_zero)])
            found.append(q)
            u = q - base
            assert u.min() >= 0 and u.max() <= 255
        return found

    def layer(self, y: SimpleNamespace, u: np.ndarray) -> np.ndarray:
        windows = u[None]
        if y.side:
            image = u.reshape(y.height, y.width, y.channels)
            windows = np.stack(
                [
                    image[i : i + y.side, j : j + y.side].reshape(-1)
                    for i in range(0, y.height - y.side + 1, y.stride)
                    for j in range(0, y.width - y.side + 1, y.stride)
                ]
            )
        w = self.weights(y)
        s = windows @ w - {8: 0, 4: 8, 2: 1}[y.bits] * windows.sum(axis=1, keepdims=True)
        s = s + self.array(y.bias, y.padded, "<i4")
        if y.signed_bias:
            assert np.array_equal((windows - 128) @ w + self.array(y.signed_bias, y.padded, "<i4"), s)
        s = s[:, : y.out]
        assert np.abs(s).max() < 2**31
        q = rint_clip(s.astype(np.float32) * self.array(y.multiplier, y.out), y.zero, y.low)
        if y.table:
            q = self.array(y.table, 256, np.int8)[q + 128].astype(np.int64)
        if y.gamma:
            x = np.float32(y.scale) * (q - y.zero).astype(np.float32)
            normal = exact.layer_norm(x, self.array(y.gamma, y.out), self.array(y.beta, y.out)).astype(np.float64)
            fed = exactly(Activation(KINDS[y.activation]), normal, y.slope).astype(np.float32)
            q = rint_clip(fed / np.float32(y.norm_scale), y.norm_zero, y.norm_low)
        return q.reshape(-1)

    def outputs(self, q: np.ndarray) -> tuple[np.ndarray, int]:
        h = self.head
        if h.head:
            return self.array(h.head, 256 * h.outputs).reshape(-1, 256)[np.arange(h.outputs), q + 128], 0
        return np.float32(h.output_scale) * (q - h.output_zero).astype(np.float32), int(q.argmax())


@pytest.mark.parametrize("name", [*NETWORKS, *(each for each in WORST if "est, " not in each)])
def test_the_page_alone_gives_the_same_levels(name: str) -> None:
    spec, network, rows = made(name) if name in NETWORKS else built(WORST[name])
    reader, wanted = Reader(native_artifact(spec, network)), levels_of(spec, network, rows)
    outputs, choices = outputs_of(spec, network, rows)
    for index, row in enumerate(rows.astype(np.float32)[:4]):
        found = reader.levels(row)
        assert len(found) == len(wanted)
        for layer, levels in enumerate(found):
            np.testing.assert_array_equal(levels, wanted[layer][index], err_msg=f"layer {layer}")
        values, choice = reader.outputs(found[-1])
        np.testing.assert_array_equal(values, outputs[index])
        assert choice == choices[index]
