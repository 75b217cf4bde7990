"""FORMAT.md and format.h of device/engine and convert/native/layout.py say the same of every field; and what the page
says is refused is refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import pytest

from quarl.convert.native.layout import HEAD_BYTES, LAYER_BYTES, FileRecord, LayerRecord
from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import HERE, library
from quarl.device.engine.engine import Engine, NativeError
from quarl.policy.activations import NONLINEARITIES, header
from quarl.policy.spec import Activation
from tests.convert.native.networks import made

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


def patched(artifact: bytes, **changes: float) -> bytes:
    """With other fields; ``layer_`` in front of those of the first layer, ``second_`` of the second."""
    data = bytearray(artifact)
    kinds = {each.name: each.kind for each in HEAD} | {f"layer.{each.name}": each.kind for each in LAYER}
    for key, value in changes.items():
        prefix, _, rest = key.partition("_")
        name = f"layer.{rest}" if prefix in ("layer", "second") else key
        at = OFFSETS[name] + LAYER_BYTES * (prefix == "second")
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


def test_offsets_are_whole_lines_and_arrays_do_not_overlap() -> None:
    spec, integers, _ = made("picture and vector")
    data = native_artifact(spec, integers)
    assert len(data) == struct.unpack_from("<I", data, OFFSETS["bytes"])[0]
    layers = struct.unpack_from("<I", data, OFFSETS["layers"])[0]
    names = ("weights", "bias", "multiplier", "signed_bias", "table", "gamma", "beta")
    at = [struct.unpack_from("<I", data, OFFSETS[each])[0] for each in ("mean", "inverse", "lowest", "highest", "head")]
    at += [
        struct.unpack_from("<I", data, OFFSETS[f"layer.{each}"] + LAYER_BYTES * layer)[0]
        for layer in range(layers)
        for each in names
    ]
    there = np.array([each for each in at if each])
    assert (there % 64 == 0).all() and len(np.unique(there)) == len(there)
    assert there.min() >= HEAD_BYTES + LAYER_BYTES * layers
