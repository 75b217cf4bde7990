"""numpy's arrays, scalars and types, and ordered dictionaries, from the tree of a pickle stream.

Known are the few functions by which numpy 1 and 2 pickle an array (``_reconstruct`` with a state, ``_frombuffer``),
a scalar (``scalar``) and a ``dtype``; an array of objects is refused, and each array's bytes have to fit its shape.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import Call, Node, Symbol, describe_node

MOST_ELEMENTS = 2**26  # of one array: 64 million
MOST_DIMENSIONS = 8

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
_NAMES = {
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "bool_": "b1",
    "bool": "b1",
    **{f"{prefix}int{8 * size}": f"{kind}{size}" for prefix, kind in (("", "i"), ("u", "u")) for size in (1, 2, 4, 8)},
}


def refusal(what: str, reason: str) -> ForeignError:
    """Return a ForeignError about a part of a file."""
    return ForeignError(f"{what} {reason}.", "Save it again with the program that wrote it, or take an undamaged copy.")


def mapping(node: Node, what: str) -> dict[str | int, Node]:
    """Return a dict, an OrderedDict or a defaultdict of the tree as a dict."""
    if isinstance(node, dict):
        return node
    if isinstance(node, Call) and node.calls(("collections",), "OrderedDict"):
        pairs = list(node.pairs)
        for argument in node.arguments:  # protocol 2 of old Pythons: OrderedDict([[key, value], …])
            for pair in sequence(argument, what):
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise refusal(what, "must have an OrderedDict of pairs")
                pairs.append((pair[0], pair[1]))
        if not all(isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**31) for key, _ in pairs):
            raise refusal(what, "must have an OrderedDict with names as keys")
        return dict(pairs)
    raise refusal(what, f"must be a dictionary, got {describe_node(node)}")


def is_mapping(node: Node) -> bool:
    """Return whether ``mapping`` reads it."""
    return isinstance(node, dict) or (isinstance(node, Call) and node.calls(("collections",), "OrderedDict"))


def sequence(node: Node, what: str) -> list[Node]:
    """Return a list or a tuple of the tree as a list."""
    if isinstance(node, list | tuple):
        return list(node)
    raise refusal(what, f"must be a list, got {describe_node(node)}")


def whole_number(node: Node, what: str) -> int:
    """Return an int, or a numpy scalar of an integer type."""
    value = number(node, what)
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusal(what, f"must be an integer, got {value!r}")
    return value


def number(node: Node, what: str) -> int | float | bool:
    """Return a Python number or a numpy scalar as a Python number, which is finite."""
    if isinstance(node, Call):
        node = array(node, what)
        if node.shape not in ((), (1,)):
            raise refusal(what, f"must be a number, got the shape {node.shape}")
        node = node.reshape(()).item()
    if isinstance(node, int) and node.bit_length() > 64:
        raise refusal(what, "must be an integer of at most 64 bits")
    if not isinstance(node, int | float):
        raise refusal(what, f"must be a number, got {describe_node(node)}")
    if not math.isfinite(node):
        raise refusal(what, f"must be finite, got {node}")
    return node


def dtype(node: Node, what: str) -> np.dtype[Any]:
    """numpy's type that ``numpy.dtype("f4", False, True)`` or ``numpy.float32`` in a tree means.

    Raises:
        ForeignError: it is no number's type (text, objects, records), or of unknown byte order.
    """
    if isinstance(node, Symbol) and node.module == "numpy" and node.name in _NAMES:
        return np.dtype(_NAMES[node.name])
    if isinstance(node, str) and node in _NAMES:
        return np.dtype(_NAMES[node])
    if not isinstance(node, Call) or not node.calls(("numpy",), "dtype") or not node.arguments:
        raise refusal(what, f"must have a numpy type, got {describe_node(node)}")
    code = node.arguments[0]
    if not isinstance(code, str) or code not in _KINDS:
        raise refusal(what, f"must have a numeric type, got {describe_node(code)}")
    kind = np.dtype(code)
    if node.state is None:
        return kind
    state = sequence(node.state, what)
    order = state[1] if len(state) > 1 else None
    if order not in ("<", ">", "|", "="):
        raise refusal(what, f"has the unknown byte order {describe_node(order)}")
    return kind.newbyteorder(order) if order != "|" else kind


def bytes_of(node: Node, what: str) -> bytes:
    """Bytes, as the protocols write them: themselves, a bytearray, or Latin-1 text that is encoded."""
    if isinstance(node, bytes | bytearray):
        return bytes(node)
    if isinstance(node, Call) and node.calls(("_codecs",), "encode") and len(node.arguments) == 2:
        text, codec = node.arguments
        if isinstance(text, str) and codec == "latin1" and all(ord(letter) < 256 for letter in text):
            return text.encode("latin-1")
    if isinstance(node, Call) and node.calls(("builtins", "__builtin__"), "bytes") and not node.arguments:
        return b""
    if isinstance(node, Call) and node.calls(("builtins", "__builtin__"), "bytearray") and len(node.arguments) == 1:
        return bytes_of(node.arguments[0], what)
    if isinstance(node, str) and node.isascii():  # Python 2's text is bytes
        return node.encode("ascii")
    raise refusal(what, f"must have bytes, got {describe_node(node)}")


def shape_of(node: Node, what: str) -> tuple[int, ...]:
    """Return a tuple of sizes whose product is bounded."""
    sizes = tuple(whole_number(size, f"the shape of {what}") for size in sequence(node, f"the shape of {what}"))
    if len(sizes) > MOST_DIMENSIONS or any(size < 0 for size in sizes) or math.prod(sizes) > MOST_ELEMENTS:
        raise refusal(what, "has a negative or too large shape")
    return sizes


def array(node: Node, what: str) -> np.ndarray:
    """Return an array or a scalar () of the tree, in the machine's byte order.

    Raises:
        ForeignError: it is no array of numbers, or its bytes do not fit its shape.
    """
    if isinstance(node, bool | int | float):
        return np.asarray(number(node, what))
    if isinstance(node, Call):
        if node.calls(_MULTIARRAY, "scalar") and len(node.arguments) == 2:
            return _array(node.arguments[1], dtype(node.arguments[0], what), (), False, what)
        if node.calls(_NUMERIC, "_frombuffer") and len(node.arguments) == 4:
            data, kind, shape, order = node.arguments
            return _array(data, dtype(kind, what), shape_of(shape, what), order == "F", what)
        if node.calls(_MULTIARRAY, "_reconstruct") and isinstance(node.state, tuple) and len(node.state) == 5:
            _, shape, kind, fortran, data = node.state
            return _array(data, dtype(kind, what), shape_of(shape, what), fortran is True, what)
    raise refusal(what, f"must be an array of numbers, got {describe_node(node)}")


def _array(data: Node, kind: np.dtype[Any], shape: tuple[int, ...], fortran: bool, what: str) -> np.ndarray:
    raw = bytes_of(data, what)
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise refusal(what, f"must have the bytes of {kind.name}{shape}, got {len(raw)}")
    if kind.kind == "b" and raw.strip(b"\x00\x01"):
        raise refusal(what, "must have booleans of 0 or 1")
    values = np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C")
    return values.astype(kind.newbyteorder("="))
