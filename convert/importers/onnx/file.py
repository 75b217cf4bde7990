"""An ONNX file from a stranger, read so that nothing it says can hurt: bounded, in its folder, plain operators only.

A file is read as a protobuf and never handed to a runtime before the reader knows every node on the way to the output.
What it declares is believed only where the bytes are there: a tensor's shape must match its data, external data must
lie in the model's own folder as plain files, and all of it together stays below :data:`LARGEST_MODEL`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.zip_members import read_untrusted

LARGEST_MODEL = 256 << 20
"""Bytes, external data included. The largest policies here (Atari's) have 7 MB; this is room for 64 M parameters."""
OLDEST_OPSET = 9
MOST_NODES = 20_000
PLAIN_DOMAINS = ("", "ai.onnx")
EXPORT_AGAIN = "Export the policy again with plain ONNX operators: opset 17, its deterministic output alone."


@dataclass(frozen=True)
class OnnxFile:
    """A checked model: every tensor's data is inside it.

    Attributes:
        model: the whole model, external data filled in, functions and foreign domains ruled out.
        constants: initializers by name.
        opset: of the plain domain.
        hashes: SHA-256 of each file read, by name.
        assumed: what was taken in place of nodes that draw at random, a sentence each.
    """

    model: onnx.ModelProto
    constants: dict[str, np.ndarray]
    opset: int
    hashes: dict[str, str]
    assumed: tuple[str, ...] = ()


def load(path: Path) -> OnnxFile:
    """Read and check a file.

    Raises:
        ForeignError: not a file, too large, no ONNX, other domains' operators, data outside the folder, tensors whose
            shape and data disagree.
    """
    data = read_untrusted(path, LARGEST_MODEL)
    try:
        model = onnx.load_model_from_string(data)
        if not model.HasField("graph") or not model.graph.node:
            raise ForeignError(f"{path.name} holds no ONNX graph.", "Export the policy again.")
        opset = _plain(model)
        assumed = _replace_random_nodes(model)
        hashes = {path.name: hashlib.sha256(data).hexdigest()} | _fill(model, path.parent, LARGEST_MODEL - len(data))
        onnx.checker.check_model(model)
        constants = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
    except ForeignError:
        raise
    except Exception as error:  # protobuf, the checker and numpy raise whatever they like at malformed bytes
        raise ForeignError(
            f"{path.name} is not a valid ONNX file ({type(error).__name__}: {error}).",
            "Export the policy again; if it has external data, keep those files in the same folder.",
        ) from error
    return OnnxFile(model, constants, opset, hashes, assumed)


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """Return a tensor's values, once its declared size is known to be that of its data.

    Raises:
        ForeignError: strings, unknown types, or a shape that its data does not fill.
    """
    size = _count_declared_bytes(tensor)
    if not tensor.HasField("raw_data"):
        stored = max(len(tensor.float_data), len(tensor.int32_data), len(tensor.int64_data))
        stored = max(stored, len(tensor.double_data), len(tensor.uint64_data))
        if math.prod(tensor.dims) > 2 * stored:  # two 4-bit integers share an entry
            raise ForeignError(
                f"The tensor {tensor.name!r} must have {size} bytes, got {stored} entries.", EXPORT_AGAIN
            )
    elif len(tensor.raw_data) != size:
        message = f"The tensor {tensor.name!r} must have {size} bytes, got {len(tensor.raw_data)}."
        raise ForeignError(message, EXPORT_AGAIN)
    return np.asarray(numpy_helper.to_array(tensor))


def _count_declared_bytes(tensor: onnx.TensorProto) -> int:
    types = set(helper.get_all_tensor_dtypes()) - {TensorProto.STRING}
    if tensor.data_type not in types or any(size < 0 for size in tensor.dims):
        raise ForeignError(
            f"Tensor {tensor.name!r} has invalid type {tensor.data_type} or shape {list(tensor.dims)}.", EXPORT_AGAIN
        )
    count = math.prod(tensor.dims)
    size = count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if tensor.data_type in FOUR_BITS:
        size = (count + 1) // 2
    if size > LARGEST_MODEL:
        message = f"The tensor {tensor.name!r} must have at most {LARGEST_MODEL} bytes, got {size}."
        raise ForeignError(message, EXPORT_AGAIN)
    return size


FOUR_BITS = tuple(getattr(TensorProto, name) for name in ("INT4", "UINT4", "FLOAT4E2M1") if hasattr(TensorProto, name))


def _plain(model: onnx.ModelProto) -> int:
    """Return the opset; refuses other domains, functions, subgraphs, sparse tensors and graphs of absurd length."""
    nodes = model.graph.node
    if len(nodes) > MOST_NODES:
        raise ForeignError(f"The graph must have at most {MOST_NODES} nodes, got {len(nodes)}.", EXPORT_AGAIN)
    for node in nodes:
        if node.domain not in PLAIN_DOMAINS:
            operator = f"{node.domain}.{node.op_type}"
            raise ForeignError(f"Node {node.name!r} must be a plain ONNX operator, got {operator}.", EXPORT_AGAIN)
    if model.functions:
        names = ", ".join(sorted(function.name for function in model.functions)[:5])
        raise ForeignError(f"The model has local functions ({names}).", "Inline them with onnx.inliner.")
    if model.graph.sparse_initializer:
        raise ForeignError("The model has sparse initializers.", EXPORT_AGAIN)
    versions = [entry.version for entry in model.opset_import if entry.domain in PLAIN_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1 or not OLDEST_OPSET <= versions[0] <= newest:
        message = f"The model's opset must be {OLDEST_OPSET} to {newest}, got {versions or 'none'}."
        raise ForeignError(message, "Export it again with opset 17.")
    return int(versions[0])


def _replace_random_nodes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Let nodes that draw around a mean of 0 give 0, and a draw of an action the likeliest; return what was assumed.

    A sum with such a 0 is the other operand, where that has the sum's shape.
    """
    assumed, nodes, zeros = [], list(model.graph.node), set[str]()
    for at, node in enumerate(nodes):
        keywords = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "RandomNormalLike" and not keywords.get("mean"):
            zero = f"{node.output[0]}/zero"
            model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), zero))
            nodes[at] = helper.make_node("Mul", [node.input[0], zero], list(node.output), name=node.name)
            zeros |= set(node.output)
            assumed.append(f"{node.output[0]!r} is drawn around a mean: the mean is taken.")
        elif node.op_type == "Multinomial" and keywords.get("sample_size", 1) == 1:
            nodes[at] = helper.make_node("ArgMax", list(node.input), list(node.output), name=node.name, axis=1)
            assumed.append(f"{node.output[0]!r} is a drawn action: the likeliest is taken.")
        elif node.op_type in ("Mul", "Identity", "Cast") and zeros & set(node.input):
            zeros |= set(node.output)
    if not assumed:
        return ()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: tuple(side.dim_value or side.dim_param for side in value.type.tensor_type.shape.dim)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }
    for node in model.graph.node:
        rest = [name for name in node.input if name not in zeros]
        known = shapes.get(node.output[0], ("",)) if node.op_type == "Add" and len(rest) == 1 else ("",)
        if "" not in known and known == shapes.get(rest[0]):
            node.CopyFrom(helper.make_node("Identity", rest, list(node.output), name=node.name))
    return tuple(assumed)


def _fill(model: onnx.ModelProto, folder: Path, left: int) -> dict[str, str]:
    """Put external data into the tensors; returns the SHA-256 of each file that it came from."""
    files: dict[str, bytes] = {}
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if tensor.name and any(value for value in (tensor.raw_data, tensor.float_data, tensor.int64_data)):
            raise ForeignError(f"The tensor {tensor.name!r} has data inside and outside the file.", EXPORT_AGAIN)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        size = _count_declared_bytes(tensor)
        if location not in files:
            files[location] = _external(folder, location, tensor.name, left)
            left -= len(files[location])
        data = files[location]
        offset, length = (_whole(entries.get(key), default) for key, default in (("offset", 0), ("length", size)))
        if length != size or offset + length > len(data):
            message = (
                f"The tensor {tensor.name!r} must have {size} bytes; of the {len(data)} in {location!r}, the model "
            )
            raise ForeignError(f"{message}uses {length} from byte {offset}.", "Copy the data file again.")
        left -= size  # the copy inside the model
        if left < 0:
            raise _too_large(location)
        tensor.raw_data = data[offset : offset + length]
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _external(folder: Path, location: str, tensor: str, left: int) -> bytes:
    parts = PurePosixPath(location).parts
    if not parts or location.startswith("/") or ".." in parts or "\\" in location or "\0" in location:
        message = f"The tensor {tensor!r} must lie in the model's folder, got {location!r}."
        raise ForeignError(message, "Export it again with the data file, under a plain name, beside the model.")
    place = folder
    for part in parts:  # a link on the way would lead out of the folder
        place = place / part
        if place.is_symlink():
            raise ForeignError(f"{location!r} of the tensor {tensor!r} must not be a link.", "Copy the file itself.")
    return read_untrusted(place, left)


def _too_large(name: str) -> ForeignError:
    return ForeignError(f"The model must have at most {LARGEST_MODEL} bytes with {name!r}.", "Export a smaller policy.")


def _whole(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ForeignError(f"The place of external data must be an integer, got {text!r}.", "Export the policy again.")
    return int(text)
