"""The HDF5 file inside a ``.keras`` file: its tensors by path, read without following anything out of it.

Keras 3 names a layer's place by class and count, ``layers/dense_1/vars/0``, and writes the layer's own name as an
attribute of ``vars``. Links, virtual and external data, unusual filters and anything but numbers are refused.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import printable

MOST_OBJECTS = 20_000
DEEPEST = 32
MOST_BYTES = 2**30
"""Most bytes of all tensors together, and of one chunk."""
FLOATS = ("float16", "float32", "float64")
NEXT_STEP = "Save the policy again with model.save(FILE.keras), or take an undamaged copy."
_PLAIN_FILTERS = {1, 2, 3}  # deflate, shuffle, checksum
_NUMBERS = "fiub"


@dataclass(frozen=True)
class Tensors:
    """What a weights file holds.

    Attributes:
        what: its name in messages.
        arrays: by path, "layers/dense/vars/0".
        names: of the layers, by the path of their variables, "layers/dense/vars".
    """

    what: str
    arrays: dict[str, np.ndarray]
    names: dict[str, str]

    def of(self, place: str, layer: str, count: int) -> list[np.ndarray]:
        """The first variables of a layer, float64 and finite.

        Args:
            place: "layers/dense".
            layer: its own name.
            count: how many it must have.

        Raises:
            ForeignError: there are fewer, they are another layer's, or not finite floating-point numbers.
        """
        name = self.names.get(f"{place}/vars", layer)
        if name != layer:
            raise damaged(f"{self.what} has the weights of {printable(name)} where those of {layer} belong")
        found = []
        for number in range(count):
            array = self.arrays.get(f"{place}/vars/{number}")
            if array is None:
                raise damaged(f"{self.what} has no tensor {place}/vars/{number}, of the layer {layer}")
            if array.dtype.name not in FLOATS:
                raise damaged(f"the layer {layer} has weights of {array.dtype}; read are {', '.join(FLOATS)}")
            if not np.isfinite(array).all():
                raise ForeignError(f"the layer {layer} holds NaN or infinity.", "Is it trained? Look for divergence.")
            found.append(array.astype(np.float64))
        return found

    def write(self, path: Path) -> None:
        """The same tensors in a new file, which has nothing else in it."""
        import h5py

        with h5py.File(path, "w") as file:
            for place, name in self.names.items():
                file.require_group(place).attrs["name"] = name
            for place, array in self.arrays.items():
                file[place] = array


def read_tensors(data: bytes, what: str) -> Tensors:
    """All tensors of an HDF5 file in memory.

    Raises:
        ForeignError: it is damaged, points out of itself, is too large, or holds something other than numbers.
    """
    import h5py

    arrays: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            left = MOST_BYTES
            for place, item in _walk(h5py, file, what):
                if isinstance(item, h5py.Dataset):
                    left -= _size(item, place, what)
                    if left < 0:
                        raise damaged(f"{what} has tensors of more than {MOST_BYTES} bytes")
                    arrays[place] = np.asarray(item[()])
                elif place.endswith("vars") and isinstance(name := item.attrs.get("name"), str):
                    names[place] = name
    except ForeignError:
        raise
    except Exception as error:  # h5py raises OSError, KeyError, RuntimeError, ValueError, TypeError …
        raise damaged(f"{what} cannot be read ({type(error).__name__})") from error
    return Tensors(what, arrays, names)


def _walk(h5py: Any, file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Every group and dataset with its path; each is reached once, and by a hard link."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", file)]
    while waiting:
        place, group = waiting.pop()
        for name in group:
            inner = f"{place}/{name}".lstrip("/")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise damaged(f"{what} has a link, {printable(inner)}, to another place or file")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise damaged(f"{what} has {printable(inner)} in two places")
            seen.add(address)
            if len(seen) > MOST_OBJECTS or inner.count("/") > DEEPEST:
                raise damaged(f"{what} has more than {MOST_OBJECTS} objects, or more than {DEEPEST} levels")
            if isinstance(item, h5py.Group):
                waiting.append((inner, item))
            elif not isinstance(item, h5py.Dataset):
                raise damaged(f"{what} has {printable(inner)}, which is neither a group nor a tensor")
            yield inner, item


def _size(item: Any, place: str, what: str) -> int:
    """A dataset's bytes, before it is read."""
    where = f"{what} has the tensor {printable(place)}"
    if item.dtype.kind not in _NUMBERS:
        raise damaged(f"{where} of {printable(str(item.dtype))}; read are {', '.join(FLOATS)}")
    if item.external or item.is_virtual:
        raise damaged(f"{where} whose data lie in other files")
    if item.shape is None:
        raise damaged(f"{where} without data")
    filters = item.id.get_create_plist()
    if any(filters.get_filter(number)[0] not in _PLAIN_FILTERS for number in range(filters.get_nfilters())):
        raise damaged(f"{where} packed in an unusual way")
    if math.prod(item.chunks or ()) * item.dtype.itemsize > MOST_BYTES:
        raise damaged(f"{where} in chunks of more than {MOST_BYTES} bytes")
    return math.prod(item.shape) * int(item.dtype.itemsize)


def damaged(reason: str) -> ForeignError:
    """An error about a file that is not as Keras writes it."""
    return ForeignError(f"{reason}.", NEXT_STEP)
