"""A pickle stream is data: hostile ones run nothing, damaged ones give a ForeignError and nothing else."""

from __future__ import annotations

import collections
import functools
import importlib
import os
import posix
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles import arrays as pickle_arrays
from quarl.convert.importers.pickles.nodes import DEEPEST, Call, Persistent, SetOf, Symbol, describe_node, excess
from quarl.convert.importers.pickles.tree import read_pickle
from tests.refusals import refused

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
