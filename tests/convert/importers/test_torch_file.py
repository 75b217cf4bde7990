"""PyTorch's files, written here byte by byte: tensors come back, and what does not fit together is refused."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import io
import os
import posix
import random
import struct
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.importers import torch_file, zip_members
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles import arrays as pickle_arrays
from quarl.convert.importers.pickles.nodes import DEEPEST, Call, Persistent, SetOf, Symbol, describe_node, excess
from quarl.convert.importers.pickles.tree import read_pickle
from quarl.convert.importers.torch_file import read_torch
from quarl.convert.importers.zip_members import open_zip
from tests.refusals import refused


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def whole(value: int) -> bytes:
    return (
        b"J" + struct.pack("<i", value)
        if abs(value) < 2**31
        else b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
    )


def sizes(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(whole, values)) + b"t"


def tensor(
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    kind: str = "FloatStorage",
    count: int = 6,
    offset: int = 0,
    key: str = "0",
) -> bytes:
    """The opcodes by which torch.save describes a tensor."""
    storage = (
        b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + whole(count) + b"tQ"
    )
    hooks = b"ccollections\nOrderedDict\n)R"
    shown = storage + whole(offset) + sizes(shape) + sizes(strides) + b"\x89" + hooks
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + shown + b"tR"


def entries(values: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def saved(values: dict[str, bytes], *storages: bytes, **more: bytes) -> bytes:
    members = {f"archive/data/{index}": data for index, data in enumerate(storages)}
    members |= {f"archive/{name}": data for name, data in more.items()}
    return packed({"archive/data.pkl": b"\x80\x02" + entries(values) + b".", **members})


SIX = np.arange(6, dtype="<f4").tobytes()


def test_a_tensor_comes_back() -> None:
    found = read_torch(saved({"actor.weight": tensor()}, SIX), "it")
    assert list(found) == ["actor.weight"] and found["actor.weight"].dtype == np.float32
    np.testing.assert_array_equal(found["actor.weight"], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("DoubleStorage", "f8"),
        ("HalfStorage", "f2"),
        ("LongStorage", "i8"),
        ("IntStorage", "i4"),
        ("ByteStorage", "u1"),
    ],
)
@pytest.mark.parametrize(("order", "sign"), [(b"little", "<"), (b"big", ">")])
def test_types_and_byte_orders(kind: str, code: str, order: bytes, sign: str) -> None:
    data = np.arange(6).astype(sign + code).tobytes()
    found = read_torch(saved({"w": tensor(kind=kind)}, data, byteorder=order), "it")["w"]
    assert found.dtype == np.dtype(code)
    np.testing.assert_array_equal(found, np.arange(6).reshape(2, 3))


def test_bfloat16_is_half_a_float32_and_booleans_are_bytes() -> None:
    values = np.array([1.0, -2.5, 0.15625, 3.0, -0.0, 256.0], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    found = read_torch(
        saved({"w": tensor(kind="BFloat16Storage"), "b": tensor(kind="BoolStorage", key="1")}, upper, SIX[:6]), ""
    )
    np.testing.assert_array_equal(found["w"].reshape(-1), values)
    assert found["b"].dtype == bool


def test_strides_and_offsets() -> None:
    values = {
        "turned": tensor((3, 2), (1, 3)),
        "column": tensor((2,), (3,), offset=1),
        "repeated": tensor((4,), (0,), offset=5),
        "scalar": tensor((), (), offset=2),
        "empty": tensor((0, 3), (3, 1)),
    }
    found = read_torch(saved(values, SIX), "it")
    np.testing.assert_array_equal(found["turned"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["column"], [1, 4])
    np.testing.assert_array_equal(found["repeated"], [5, 5, 5, 5])
    assert found["scalar"] == 2 and found["scalar"].shape == ()
    assert found["empty"].shape == (0, 3)


def test_nested_dictionaries_are_joined_and_numbers_kept() -> None:
    parameter = b"ctorch._utils\n_rebuild_parameter\n(" + tensor() + b"\x88" + b"ccollections\nOrderedDict\n)RtR"
    inner = entries({"actor.0.weight": parameter})
    values = {"model": inner, "iter": whole(7), "infos": b"N", "name": text("x"), "groups": b"](" + whole(3) + b"\x88e"}
    found = read_torch(saved(values, SIX), "it")
    assert list(found) == ["model.actor.0.weight", "iter", "groups.0", "groups.1"] and found["iter"] == 7


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (tensor(count=7), "24 bytes for 7"),
        (tensor(count=2**40), "24 bytes"),
        (tensor(offset=1), "reaches element 6"),
        (tensor((2, 4), (4, 1)), "reaches element 7"),
        (tensor((2, 3), (2**40, 1)), "reaches element"),
        (tensor(strides=(-3, 1)), "negative"),
        (tensor(offset=-1), "negative"),
        (tensor(strides=(1,)), "strides"),
        (tensor((-2, 3)), "negative or too large"),
        (tensor((2**40, 2**40), (0, 0)), "negative or too large"),
        (tensor((2**40,), (0,)), "negative or too large"),
        (tensor(key="../../etc/passwd"), "storage"),
        (tensor(key="5"), "no member"),
        (tensor(kind="ComplexFloatStorage"), "ComplexFloatStorage"),
        (tensor().replace(b"_rebuild_tensor_v2", b"_rebuild_sparse_tensor"), "a plain tensor"),
        (tensor().replace(b"tQ", b"t"), "on a storage"),
    ],
)
def test_a_tensor_that_does_not_fit_its_storage_is_refused(wrong: bytes, words: str) -> None:
    with pytest.raises(ForeignError, match=words):
        read_torch(saved({"w": wrong}, SIX), "it")


MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def legacy(values: dict[str, bytes], keys: str = "0", little: bytes = b"\x88", version: int = 1001) -> bytes:
    """What torch.save wrote before 1.6, without the storages; a storage's id ends with None, for no view."""
    tree = entries(values).replace(b"tQ", b"NtQ")
    named = b"](" + b"".join(map(text, keys)) + b"e"
    return MAGIC + b"".join(
        b"\x80\x02" + part + b"." for part in (whole(version), entries({"little_endian": little}), tree, named)
    )


def test_the_format_before_1_6() -> None:
    values = {"a": tensor(), "b": tensor((2,), (1,), "DoubleStorage", 2, key="1"), "c": tensor((2,), (3,), offset=1)}
    two = np.array([0.5, -7.0], "<f8").tobytes()
    storages = struct.pack("<q", 6) + SIX + struct.pack("<q", 2) + two
    found = read_torch(legacy(values, "01") + storages, "it")
    np.testing.assert_array_equal(found["a"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found["b"], [0.5, -7.0])
    np.testing.assert_array_equal(found["c"], [1, 4])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (legacy({"w": tensor()}) + struct.pack("<q", 6) + SIX[:-1], "storage 0"),
        (legacy({"w": tensor()}) + struct.pack("<q", 2**60) + SIX, "storage 0"),
        (legacy({"w": tensor()}) + b"\x06", "storage 0"),
        (legacy({"w": tensor()}) + struct.pack("<q", 6) + SIX + b"\x00", "has bytes after"),
        (legacy({"w": tensor()}) + struct.pack("<q", 5) + SIX[:-4], "20 bytes for 6 elements"),
        (legacy({"w": tensor()}, "00") + 2 * (struct.pack("<q", 6) + SIX), "twice"),
        (legacy({"w": tensor()}, "01") + 2 * (struct.pack("<q", 6) + SIX), "no tensor uses"),
        (legacy({"w": tensor()}, ""), "no storage 0"),
        (legacy({"w": tensor()}, little=b"\x89") + struct.pack("<q", 6) + SIX, "a little-endian machine"),
        (legacy({"w": tensor()}, version=1000) + struct.pack("<q", 6) + SIX, "version 1001"),
        (legacy({"w": tensor().replace(b"tQ", b"K\x01tQ")}) + struct.pack("<q", 6) + SIX, "on a storage"),
        (legacy({"w": tensor(kind="ComplexFloatStorage")}), "ComplexFloatStorage"),
        (legacy({"w": tensor()})[:-1], "damaged"),
    ],
)
def test_a_damaged_file_of_before_1_6_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ForeignError, match=words):
        read_torch(data, "it")


def test_many_tensors_on_one_storage_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {f"w{i}": tensor((1000,), (0,)) for i in range(30)}
    assert len(read_torch(saved(values, SIX), "it")) == 30
    monkeypatch.setattr(torch_file, "MOST_TENSOR_BYTES", 100_000)
    with refused(ForeignError, "foreign", shows=["100000"]):
        read_torch(saved(values, SIX), "it")


def test_other_files_are_refused_by_name() -> None:
    stream = b"\x80\x02c__main__\nAgent\n)\x81}b."
    cases = [
        (b"\x80\x02K\x01.", "plain pickle"),
        (MAGIC, "pickle stream"),
        (b"", "not a file"),
        (b"\x89HDF", "not a file"),
        (packed({"something": b""}), "no data.pkl"),
        (packed({"archive/data.pkl": stream}), "holds __main__.Agent"),
        (packed({"archive/data.pkl": stream, "archive/constants.pkl": b""}), "TorchScript"),
        (saved({"w": tensor()}, SIX, byteorder=b"middle"), "byte order"),
        (saved({"a.b": tensor(), "a": entries({"b": tensor()})}, SIX), "two tensors"),
    ]
    for data, words in cases:
        with pytest.raises(ForeignError, match=words):
            read_torch(data, "it")


def twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("a", b"1")
        archive.writestr("a", b"2")
    return file.getvalue()


LEADING_OUT = ("../evil", "a/../../evil", "/etc/passwd", "a\\b", "C:evil", "a//b", "./a", "a\x1b[2Jb")
ZIPS = [(packed({"ok": b"", name: b"x"}), "with the invalid") for name in LEADING_OUT]
ZIPS += [(twice(), "two members"), (packed({"a": b"x" * 99}, zipfile.ZIP_LZMA), "which is encrypted")]


@pytest.mark.parametrize(("data", "words"), ZIPS)
def test_an_archive_that_no_program_writes_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ForeignError, match=words):
        open_zip(data, "it")


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = packed({f"archive/data/{i}": bytes(2**20) for i in range(8)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 20_000
    monkeypatch.setattr(zip_members, "MOST_BYTES", 2**22)
    with pytest.raises(ForeignError, match="unpacked"):
        open_zip(bomb, "it")
    monkeypatch.setattr(zip_members, "MOST_MEMBERS", 5)
    with pytest.raises(ForeignError, match="5 members"):
        open_zip(bomb, "it")


def test_a_member_that_lies_about_its_size_is_refused() -> None:
    honest = packed({"a": bytes(2**20)}, zipfile.ZIP_DEFLATED)
    size = struct.pack("<I", 2**20)
    assert honest.count(size) == 2
    for lie in (10, 2**20 + 5):
        with pytest.raises(ForeignError, match=r"damaged|cut off"):
            open_zip(honest.replace(size, struct.pack("<I", lie)), "it").read("a")
    with refused(ForeignError, "foreign", shows=["1000"]):
        open_zip(honest, "it").read("a", 1000)


def test_cut_and_changed_files_give_tensors_or_a_refusal() -> None:
    values = {"w": tensor(), "b": tensor((2,), (1,))}
    older = legacy(values) + struct.pack("<q", 6) + SIX
    for whole_file in (saved(values, SIX), older):
        assert len(read_torch(whole_file, "it")) == 2
        cut_and_change(whole_file)


def cut_and_change(whole_file: bytes) -> None:
    for length in range(0, len(whole_file), 3):
        with pytest.raises(ForeignError):
            read_torch(whole_file[:length], "it")
    numbers = random.Random(1)
    for _ in range(400):
        raw = bytearray(whole_file)
        for _ in range(numbers.randrange(1, 4)):
            raw[numbers.randrange(4, len(raw))] = numbers.randrange(256)
        with contextlib.suppress(ForeignError):
            read_torch(bytes(raw), "it")


# The tests write streams; nothing in the repository reads one with it.
dumps = importlib.import_module("pickle").dumps
PROTOCOLS = (2, 3, 4, 5)


class Payload:
    """An object whose pickle calls a function as it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def hostile(trace: Path) -> dict[str, Any]:
    """Objects whose unpickling would create a file."""
    python = f"open({str(trace)!r}, 'w').close()"
    return {
        "system": Payload(os.system, f"touch {trace}"),
        "eval": Payload(eval, python),
        "exec": Payload(exec, python),
        "open": Payload(open, str(trace), "w"),
        "posix": Payload(posix.mkdir, str(trace)),
        "path": Payload(Path.touch, trace),
        "nested": {"weights": [1, (2, {"deep": Payload(os.system, f"touch {trace}")})]},
        "partial": functools.partial(os.system, f"touch {trace}"),
        "twice": Payload(getattr, Payload(importlib.import_module, "os"), "system"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hostile_stream_runs_nothing(protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for name, payload in hostile(trace).items():
        before = set(sys.modules)
        tree = read_pickle(dumps(payload, protocol), name)
        assert excess(tree) is None
        for reader in (pickle_arrays.array, pickle_arrays.number, pickle_arrays.dtype, pickle_arrays.bytes_of):
            with pytest.raises(ForeignError):
                reader(tree, name)
        assert not trace.exists(), name
        assert set(sys.modules) == before
    # They are real ones: one of them, unpickled, does create the file.
    importlib.import_module("pickle").loads(dumps(hostile(trace)["open"], protocol))
    assert trace.exists()


def test_a_module_that_nobody_has_is_only_a_name() -> None:
    tree = read_pickle(b"\x80\x02cno.such.module\nthing\n.", "it")
    assert isinstance(tree, Symbol) and (tree.module, tree.name) == ("no.such.module", "thing")
    assert str(read_pickle(b"\x80\x02c\x1b[31mos\nsy\rstem\n.", "it")) == "\\x1b[31mos.sy\\rstem"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_come_back(protocol: int) -> None:
    value = {"a": [1, -1, 300, 2**40, 1.5, None, True, False], "b": ("x", "é", (), (1,), (1, 2, 3, 4)), 7: {"c": []}}
    assert read_pickle(dumps(value, protocol), "it") == value
    assert pickle_arrays.bytes_of(read_pickle(dumps(b"\x00\xffz", protocol), "it"), "it") == b"\x00\xffz"


def test_calls_sets_and_persistent_ids() -> None:
    tree = read_pickle(dumps(collections.OrderedDict([("b", 1), ("a", 2)]), 2), "it")
    assert isinstance(tree, Call) and describe_node(tree) == "collections.OrderedDict(…)"
    assert list(pickle_arrays.mapping(tree, "it")) == ["b", "a"]
    kept = read_pickle(dumps({"s": {1, 2}, "f": frozenset([3])}, 4), "it")
    assert isinstance(kept["s"], SetOf) and isinstance(kept["f"], SetOf)
    assert sorted(kept["s"].items) == [1, 2]
    persistent = read_pickle(b"\x80\x02K\x05Q.", "it")
    assert isinstance(persistent, Persistent) and persistent.id == 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", ">f4", "int64", "uint8", "bool"])
def test_numpy_arrays_come_back(protocol: int, kind: str) -> None:
    values = (np.arange(12).reshape(3, 4) % 5 - 1).astype(kind)
    for array in (values, np.asfortranarray(values), values[::2], values[:0], values[0, 0]):
        ours = pickle_arrays.array(read_pickle(dumps(array, protocol), "it"), "it")
        assert ours.dtype == np.dtype(kind).newbyteorder("=")
        np.testing.assert_array_equal(ours, array)


@pytest.mark.parametrize("values", [np.array([None, 1]), np.array(["a"]), np.zeros(2, "c8"), np.zeros(2, "M8[s]")])
def test_arrays_of_anything_but_real_numbers_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ForeignError):
        pickle_arrays.array(read_pickle(dumps(values, 4), "it"), "it")


def test_an_array_has_the_bytes_of_its_shape() -> None:
    stream = dumps(np.arange(4, dtype=np.float32), 4)
    assert stream.count(b"K\x04\x85") == 1  # the shape (4,)
    with refused(ForeignError, "foreign", shows=["16"]):
        pickle_arrays.array(read_pickle(stream.replace(b"K\x04\x85", b"K\x05\x85"), "it"), "it")


def small_stream(protocol: int) -> bytes:
    statistics = {"mean": np.arange(3.0), "var": np.float64(2.0), "names": ("a", "é"), "n": 2**70}
    return bytes(dumps(collections.OrderedDict(statistics), protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_cut_anywhere_is_refused(protocol: int) -> None:
    stream = small_stream(protocol)
    for length in range(len(stream)):
        with pytest.raises(ForeignError):
            read_pickle(stream[:length], "it")
    with pytest.raises(ForeignError, match="has bytes after"):
        read_pickle(stream + b"\x00", "it")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_changed_and_random_bytes_give_a_tree_or_a_refusal(protocol: int) -> None:
    random_numbers = random.Random(protocol)
    stream = small_stream(protocol)
    refused = 0
    for number in range(400):
        if number % 4 == 0:
            changed = b"\x80" + bytes([protocol]) + random_numbers.randbytes(random_numbers.randrange(1, 60))
        else:
            raw = bytearray(stream)
            for _ in range(random_numbers.randrange(1, 5)):
                raw[random_numbers.randrange(2, len(raw))] = random_numbers.randrange(256)
            changed = bytes(raw)
        try:
            tree = read_pickle(changed, "it")
            for value in pickle_arrays.mapping(tree, "it").values():
                pickle_arrays.array(value, "it")
        except ForeignError:
            refused += 1
    assert refused > 200


def nested(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def laughs(levels: int) -> bytes:
    """Lists of ten references to the list before: 10^levels elements written out."""
    body = b"]q\x00"
    for level in range(1, levels):
        body += b"0](" + b"h" + bytes([level - 1]) + (b"h" + bytes([level - 1])) * 9 + b"eq" + bytes([level])
    return b"\x80\x02" + body + b"."


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"", "pickle stream"),
        (b"(lp0\n.", "pickle stream"),
        (b"\x80\x06N.", "pickle stream"),
        (b"\x80\x02.", "takes an object"),
        (b"\x80\x02NN.", "more than one object"),
        (b"\x80\x02h\x05.", "an object that"),
        (b"\x80\x02t.", "has not opened"),
        (b"\x80\x02]q\x00h\x00a.", "refers to itself"),
        (nested(DEEPEST + 2), "deep"),
        (nested(100_000), "deep"),
        (laughs(12), "nodes, written out"),
        (b"\x80\x02I5\n.", "opcode INT"),
        (b"\x80\x02\x82\x05.", "opcode EXT1"),
        (b"\x80\x05\x97.", "opcode NEXT_BUFFER"),
        (b"\x80\x02(ios\nsystem\n.", "opcode INST"),
        (b"\x80\x02}]K\x01s.", "integers as dictionary"),
        (b"\x80\x02}\x8a\x09" + b"\xff" * 8 + b"\x00K\x01s.", "integers as dictionary"),
        (b"\x80\x02K\x01)R.", "calls int"),
        (b"\x80\x02cos\nsystem\nK\x01R.", "calls os.system with int"),
        (b"\x80\x02K\x01}b.", "a state"),
        (b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.", "damaged"),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "damaged"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "1024 bits"),
        (b"\x80\x02" + b"N0" * 600_000 + b"N.", "opcodes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "stream",
)
def test_what_no_file_of_a_policy_has_is_refused_by_name(stream: bytes, words: str) -> None:
    with pytest.raises(ForeignError, match=words):
        read_pickle(stream, "it")


def test_a_longer_stream_is_refused_before_it_is_read() -> None:
    with refused(ForeignError, "foreign", shows=["10"]):
        read_pickle(b"\x80\x02" + b"N0" * 20 + b"N.", "it", most_bytes=10)
