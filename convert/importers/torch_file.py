"""The tensors of a PyTorch file (``torch.save``), without PyTorch and without unpickling.

Since PyTorch 1.6 such a file is a zip: ``archive/data.pkl`` is a pickle stream that describes every tensor by a
storage, an offset, sizes and strides, and ``archive/data/N`` are the storages' bytes. Before, it was five pickle
streams in a row (a magic number, a version, the machine, the same description, the storages' names), then each
storage's number of elements and bytes (``torch/serialization.py``, ``_legacy_save``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.arrays import array, is_mapping, mapping, refusal, sequence, shape_of, whole_number
from quarl.convert.importers.pickles.nodes import Call, Node, Persistent, Symbol, describe_node, every_node, printable
from quarl.convert.importers.pickles.tree import read_first_pickle, read_pickle
from quarl.convert.importers.zip_members import open_zip, read_untrusted

TORCH_ENDINGS = (".pt", ".pth", ".cleanrl_model")
MOST_TENSOR_BYTES = 2**30
"""Most bytes of all tensors: many may lie on one storage, and a stride of 0 repeats an element for nothing."""

_STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "u2",  # the upper half of a float32
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
}
_LEGACY_MAGIC, _LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
_TENSOR = ("torch._utils",)
_ARRAYS = {"_reconstruct", "_frombuffer", "scalar"}


def refuse_torchscript(path: Path) -> None:
    """Refuse a program of TorchScript, with what makes ONNX of it.

    Raises:
        ForeignError: it is one.
    """
    data = read_untrusted(path)
    try:
        names = open_zip(data, str(path)).names
    except ForeignError:  # no zip that is read: no TorchScript
        return
    if any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names):
        raise _torchscript(printable(path.name))


def _torchscript(what: str) -> ForeignError:
    return ForeignError(
        f"{what} is a TorchScript program (torch.jit.save), not a dictionary of tensors.",
        "Convert it to ONNX with a Python that has PyTorch: quarl export-torch FILE --python PYTHON",
    )


def read_torch(data: bytes, what: str) -> dict[str, np.ndarray]:
    """Return the tensors, arrays and numbers of a file, by name.

    Nested dictionaries and lists are joined with dots: ``{"model": {"actor.weight": …}, "iter": 3}`` has the names
    ``model.actor.weight`` and ``iter``, numbers being arrays of shape (). What is neither (text, None, objects) is left
    out. bfloat16 becomes float32; all other types stay.

    Args:
        data: the file's bytes.
        what: its name in messages.

    Raises:
        ForeignError: it is no such file, is damaged, or holds a whole module instead of a state dict.
    """
    reader, tree = _read_zip(data, what) if data[:4] == b"PK\x03\x04" else _read_legacy(data, what)
    if not is_mapping(tree):
        raise ForeignError(
            f"{what} holds {describe_node(tree)}, not a dictionary of tensors.",
            "Save the module's state_dict() with torch.save.",
        )
    reader.collect(tree, "")
    return reader.found


def _read_zip(data: bytes, what: str) -> tuple[_Reader, Node]:
    members = open_zip(data, what)
    streams = [name for name in members.names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(streams) != 1:
        raise refusal(what, "has no data.pkl, so it is not a file of torch.save")
    root = streams[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in members.names:
        raise _torchscript(what)
    order = members.read(f"{root}byteorder", 16) if f"{root}byteorder" in members.names else b"little"
    if order not in (b"little", b"big"):
        raise refusal(what, f"must have the byte order little or big, got {order!r}")
    tree = read_pickle(members.read(streams[0]), f"{what}'s data.pkl")
    return _Reader(what, lambda key: members.read(f"{root}data/{key}"), "<" if order == b"little" else ">"), tree


def _read_legacy(data: bytes, what: str) -> tuple[_Reader, Node]:
    if data[:2] not in (b"\x80\x02", b"\x80\x03", b"\x80\x04"):
        raise refusal(what, "is not a file of torch.save")
    at, parts = 0, list[Node]()
    for _ in range(5):
        node, size = read_first_pickle(data[at:], what)
        parts.append(node)
        at += size
        if parts[0] != _LEGACY_MAGIC:
            raise refusal(what, "is a plain pickle, not a file of torch.save")
    _, version, machine, tree, keys = parts
    if version != _LEGACY_VERSION or mapping(machine, what).get("little_endian") is not True:
        raise refusal(what, "must be of format version 1001 from a little-endian machine (PyTorch before 1.6)")
    places = [_parse_storage(node, what) for node in every_node(tree) if isinstance(node, Persistent)]
    widths = {key: np.dtype(_STORAGES[kind]).itemsize for kind, key, _ in places}
    storages: dict[str, bytes] = {}
    for key in sequence(keys, what):
        if not isinstance(key, str) or key not in widths or key in storages:
            raise refusal(what, f"has the storage {describe_node(key)} twice, or no tensor uses it")
        size = int.from_bytes(data[at : at + 8], "little") * widths[key]
        at += 8 + size
        if at > len(data):
            raise refusal(what, f"has the truncated storage {printable(key)}")
        storages[key] = data[at - size : at]
    if at != len(data):
        raise refusal(what, "has bytes after its end")

    def read_storage(key: str) -> bytes:
        if key not in storages:
            raise refusal(what, f"has no storage {printable(key)}")
        return storages[key]

    return _Reader(what, read_storage, "<"), tree


def _parse_storage(node: Node, what: str) -> tuple[str, str, Node]:
    """Type, key and number of elements of the storage on which a tensor lies."""
    described = node.id if isinstance(node, Persistent) else None
    if not isinstance(described, tuple) or described[:1] != ("storage",) or described[5:] not in ((), (None,)):
        raise refusal(what, f"must lie on a storage, got {describe_node(node)}")
    if len(described) < 5:
        raise refusal(what, f"must lie on a storage of at least 5 properties, got {len(described)}")
    _, kind, key, _, count = described[:5]
    if not isinstance(kind, Symbol) or kind.module not in ("torch", "torch.storage") or kind.name not in _STORAGES:
        raise refusal(what, f"must have numbers of 8 to 64 bits, got {describe_node(kind)}")
    if not isinstance(key, str) or not key.isdecimal() or not key.isascii():
        raise refusal(what, f"must lie on a numbered storage, got {describe_node(key)}")
    return kind.name, key, count


@dataclass
class _Reader:
    what: str
    read_storage: Callable[[str], bytes]
    order: str
    found: dict[str, np.ndarray] = field(default_factory=dict)
    storages: dict[str, np.ndarray] = field(default_factory=dict)
    bytes_made: int = 0

    def collect(self, node: Node, name: str) -> None:
        """Keep what a node holds under its name, and what it contains under longer ones."""
        if is_mapping(node):
            for key, value in mapping(node, self.what).items():
                self.collect(value, f"{name}.{key}" if name else str(key))
        elif isinstance(node, list | tuple):
            for index, value in enumerate(node):
                self.collect(value, f"{name}.{index}")
        elif isinstance(node, bool | int | float):
            if not isinstance(node, int) or node.bit_length() < 64:
                self._keep(name, np.asarray(node))
        elif isinstance(node, Call) and isinstance(node.function, Symbol):
            if node.function.module in _TENSOR:
                self._keep(name, self._tensor(node, printable(name)))
            elif node.function.name in _ARRAYS and node.function.module.startswith("numpy."):
                self._keep(name, array(node, f"{self.what}: {printable(name)}"))

    def _keep(self, name: str, values: np.ndarray) -> None:
        if name in self.found:
            raise refusal(self.what, f"has two tensors with the name {printable(name)}")
        self.bytes_made += values.nbytes
        self.found[name] = values

    def _tensor(self, node: Call, name: str) -> np.ndarray:
        label = f"{self.what}: {name}"
        if node.calls(_TENSOR, "_rebuild_parameter") and node.arguments and isinstance(node.arguments[0], Call):
            node = node.arguments[0]
        if not node.calls(_TENSOR, "_rebuild_tensor_v2") or not 4 <= len(node.arguments) <= 7:
            raise refusal(label, f"must be a plain tensor, got {describe_node(node)}")
        place, offset, sizes, strides = node.arguments[:4]
        storage, is_bfloat, is_bool = self._storage(place, label)
        shape = shape_of(sizes, label)
        steps = tuple(whole_number(step, label) for step in sequence(strides, label))
        start = whole_number(offset, label)
        if len(steps) != len(shape) or start < 0 or any(step < 0 for step in steps):
            raise refusal(label, f"must have {len(shape)} strides, none negative, got {len(steps)}")
        last = start + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        if math.prod(shape) and last >= len(storage):
            raise refusal(label, f"reaches element {last} of a storage of only {len(storage)}")
        self.bytes_made += math.prod(shape) * max(storage.itemsize, 4)
        if self.bytes_made > MOST_TENSOR_BYTES:
            raise refusal(self.what, f"must have tensors of at most {MOST_TENSOR_BYTES} bytes")
        if not math.prod(shape):
            values = np.zeros(shape, storage.dtype)
        else:
            byte_steps = tuple(
                step * storage.itemsize if size > 1 else 0 for size, step in zip(shape, steps, strict=True)
            )
            values = np.lib.stride_tricks.as_strided(storage[start:], shape, byte_steps, writeable=False)
        if is_bfloat:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(bool) if is_bool else values.astype(storage.dtype.newbyteorder("="))

    def _storage(self, node: Node, what: str) -> tuple[np.ndarray, bool, bool]:
        """Return a storage's elements (n,), whether they are bfloat16, and whether they are truth values."""
        kind, key, count = _parse_storage(node, what)
        code: Any = np.dtype(self.order + _STORAGES[kind])
        if key not in self.storages:
            self.storages[key] = np.frombuffer(self.read_storage(key), np.uint8)
        raw = self.storages[key]
        if len(raw) != whole_number(count, what) * code.itemsize:
            raise refusal(what, f"lies on a storage of {len(raw)} bytes for {count} elements of {kind}")
        return raw.view(code), kind == "BFloat16Storage", kind == "BoolStorage"
