"""FORMAT.md and format.h of device/engine and convert/native/layout.py say the same of every field; and what the page
says is refused is refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import DTypeLike

from quarl.convert.native.layout import HEAD_BYTES, LAYER_BYTES, FileRecord, LayerRecord
from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import HERE, library
from quarl.device.engine.engine import Engine, NativeError
from quarl.policy import exact
from quarl.policy.activations import NONLINEARITIES, header
from quarl.policy.quantize import exactly
from quarl.policy.spec import Activation
from tests.convert.native.networks import NETWORKS, levels_of, made, outputs_of
from tests.convert.native.random_networks import WORST, built

PAGE = (HERE / "FORMAT.md").read_text(encoding="utf-8")
HEADER = (HERE / "format.h").read_text(encoding="utf-8")
SIZES = {"uint32": 4, "int32": 4, "float": 4, "char": 1}


@dataclass(frozen=True)
class Field:
    name: str
    offset: int
    kind: str
    count: int

    @property
    def size(self) -> int:
        return SIZES[self.kind] * self.count


def documented(section: str) -> list[Field]:
    """The rows of the table under a heading."""
    part = PAGE.partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)(?:\[(\d+)\])?` \| `(\w+)` \| \S", part, re.MULTILINE)
    return [Field(name, int(offset), kind, int(count or 1)) for offset, kind, count, name in rows]


def declared(name: str) -> list[Field]:
    """The members of a struct of format.h, laid out without gaps: each is aligned where it lies."""
    body = re.search(rf"struct {name} \{{(.*?)^\}};", HEADER, re.DOTALL | re.MULTILINE)
    assert body is not None
    found, offset = [], 0
    for line in re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL).split(";"):
        kind, _, names = line.strip().partition(" ")
        for each in names.split(",") if kind in ("char", "float", "int32_t", "uint32_t") else ():
            member, _, count = each.strip().rstrip("]").partition("[")
            found.append(Field(member, offset, kind.removesuffix("_t"), int(count or 1)))
            offset += found[-1].size
    return found


HEAD, LAYER = documented("Head"), documented("A layer")
OFFSETS = {
    **{each.name: each.offset for each in HEAD},
    **{f"layer.{each.name}": HEAD_BYTES + each.offset for each in LAYER},
}


@pytest.mark.parametrize(("page", "name", "size"), [(HEAD, "native_file", 128), (LAYER, "native_layer", 128)])
def test_the_page_has_the_fields_of_the_header(page: list[Field], name: str, size: int) -> None:
    assert page == declared(name)
    assert sum(each.size for each in page) == size and all(each.offset % SIZES[each.kind] == 0 for each in page)


@pytest.mark.parametrize(
    ("record", "page", "start"), [(FileRecord, HEAD, 2), (LayerRecord, LAYER, 0)], ids=["head", "layer"]
)
def test_the_writer_packs_each_field_where_the_page_says(record: type, page: list[Field], start: int) -> None:
    names = [each.name for each in fields(record)]
    nothing = dict.fromkeys(names, 0)
    zeros = record(**nothing).pack_record()
    assert len(zeros) == {FileRecord: HEAD_BYTES, LayerRecord: LAYER_BYTES}[record]
    assert zeros[:12] == (b"QPNATIVE" + struct.pack("<I", 1) if start else bytes(12))
    listed = page[start:-1]  # behind magic and version, before the padding
    assert len(listed) == len(names)
    same_names = {"size": "bytes", "inputs": "in", "outputs": "out" if record is LayerRecord else "outputs"}
    for name, field in zip(names, listed, strict=True):
        assert same_names.get(name, name) == field.name
        value = -7 if field.kind == "int32" else 7
        wanted = struct.pack({"uint32": "<I", "int32": "<i", "float": "<f"}[field.kind], value)
        packed = record(**{**nothing, name: value}).pack_record()
        assert packed == zeros[: field.offset] + wanted + zeros[field.offset + 4 :], name


def test_the_activations_have_the_numbers_of_the_page_and_of_the_header() -> None:
    listed = re.search(r"behind a normalisation: (0 none.*?);", PAGE)
    assert listed is not None
    numbers = {int(each.split()[0]): each.split()[1].lower() for each in listed[1].split(", ")}
    assert {each.native: kind.value.replace("_", "") for kind, each in NONLINEARITIES.items()} == numbers
    assert sorted(numbers) == list(range(len(Activation)))
    assert (HERE / "activations.h").read_text() == header(), "type: the command in it"


RECORDS = ("layer", "second", "third")


def patched(artifact: bytes, **changes: float) -> bytes:
    """With other fields; ``layer_`` in front of those of the first layer, ``second_`` and ``third_`` of the others."""
    data = bytearray(artifact)
    kinds = {each.name: each.kind for each in HEAD} | {f"layer.{each.name}": each.kind for each in LAYER}
    for key, value in changes.items():
        prefix, _, rest = key.partition("_")
        name = f"layer.{rest}" if prefix in RECORDS else key
        at = OFFSETS[name] + LAYER_BYTES * (RECORDS.index(prefix) if prefix in RECORDS else 0)
        code = {"uint32": "<I", "int32": "<i", "float": "<f"}[kinds[name]]
        data[at : at + 4] = struct.pack(code, value)
    return bytes(data)


def opened(artifact: bytes, observation: int, outputs: int) -> Engine:
    return Engine(library(), artifact, observation, outputs)


NAN = float("nan")
REFUSED: dict[str, tuple[str, dict[str, float], str]] = {
    "another version": ("relu", {"version": 2}, "another version"),
    "another size": ("relu", {"bytes": 640}, "another size than it says"),
    "no layer": ("relu", {"layers": 0}, "a size that is 0"),
    "too many layers": ("relu", {"layers": 65}, "a size that is 0, too large"),
    "no observation": ("relu", {"observation": 0}, "a size"),
    "a normaliser of another length": ("relu", {"normaliser": 3}, "a size"),
    "an odd offset": ("relu", {"mean": 513}, "not lie inside"),
    "an offset into the records": ("relu", {"mean": 64}, "not lie inside"),
    "an offset behind the end": ("relu", {"layer_bias": 2**31}, "not lie inside"),
    "a scale of nothing": ("relu", {"scale": 0.0}, "not finite"),
    "a scale that is no number": ("relu", {"layer_scale": NAN}, "not finite"),
    "an infinite scale": ("relu", {"output_scale": float("inf")}, "not finite"),
    "no level": ("relu", {"layer_zero": 128}, "no level"),
    "another base in front": ("relu", {"base": -127}, "no level"),
    "results below what is stored as 0": ("relu", {"layer_low": -128, "layer_base": -127}, "no level"),
    "3 bits": ("relu", {"layer_bits": 3}, "contradict"),
    "too many outputs": ("relu", {"outputs": 6}, "do not fit each other"),
    "fewer outputs than are padded": ("relu", {"layer_out": 3}, "contradict"),
    "another layer's inputs": ("relu", {"layer_in": 6}, "do not fit each other"),
    "a normalisation without its second array": ("norm, relu", {"layer_beta": 0}, "contradict"),
    "a normalisation with an unknown activation": ("norm, relu", {"layer_activation": 99}, "not finite"),
    "numbers of a normalisation that is none": ("relu", {"layer_norm_scale": 1.0}, "padding"),
    "a table's level below what is stored as 0": ("tanh", {"layer_base": 127}, "no level"),
    "a signed bias of fewer bits": ("relu, 4 bits", {"layer_signed_bias": 640}, "contradict"),
    "a dense layer with a stride": ("relu", {"layer_stride": 1}, "contradict"),
    "a vector that joins nothing": ("picture and vector", {"joins": 0}, "a size"),
    "a vector behind the last layer": ("picture and vector", {"joins": 4}, "a size"),
    "a window larger than its image": ("picture and vector", {"layer_side": 14}, "contradict"),
    "a window much larger than its image": ("picture and vector", {"layer_side": 100, "layer_in": 30000}, "contradict"),
    "no stride": ("picture and vector", {"layer_stride": 0}, "contradict"),
    "an image that wraps around": ("picture and vector", {"layer_height": 65536, "layer_channels": 65536}, "a size"),
    "a flat image": ("picture and vector", {"layer_height": 0}, "a size"),
    "padding": ("relu", {"layer_pad": 1}, "padding"),
    "padding of the head": ("relu", {"pad": 1}, "padding"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_the_page_is_refused(name: str) -> None:
    network, changes, words = REFUSED[name]
    spec, integers, _ = made(network)
    artifact = native_artifact(spec, integers)
    opened(artifact, spec.observation_size, spec.output_size)
    with pytest.raises(NativeError, match=words):
        opened(patched(artifact, **changes), spec.observation_size, spec.output_size)


@pytest.mark.parametrize(
    ("array", "words"), [("layer.bias", "padding"), ("layer.multiplier", "padding"), ("layer.multiplier", "not finite")]
)
def test_what_only_fills_a_chunk_is_zero(array: str, words: str) -> None:
    spec, integers, _ = made("relu")
    data = bytearray(native_artifact(spec, integers))
    (at,) = struct.unpack_from("<I", data, OFFSETS[array])
    last = at + 4 * (48 - 1)  # 33 outputs in chunks of 16
    data[last : last + 4] = struct.pack("<f", NAN if words == "not finite" else 1.0)
    with pytest.raises(NativeError, match=words):
        opened(bytes(data), spec.observation_size, spec.output_size)


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:127], lambda data: b"X" + data[1:]])
def test_what_is_no_artifact_is_refused(change: Callable[[bytes], bytes]) -> None:
    spec, integers, _ = made("relu")
    with pytest.raises(NativeError, match="no native artifact"):
        opened(change(native_artifact(spec, integers)), spec.observation_size, spec.output_size)


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
