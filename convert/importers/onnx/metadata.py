"""What an ONNX file says of itself besides the graph: its maker, and the properties that robot exporters attach.

Exporters for legged robots write joint_names, default_joint_pos, action_scale, observation_names and the like as texts
with commas, numbers rounded to three decimals. They are kept word for word.
"""

from __future__ import annotations

from typing import Any

import onnx

from quarl.convert.importers.onnx.file import OnnxFile

MOST_ENTRIES = 100
LONGEST_ENTRY = 20_000
LONGEST_NAME = 200


def source_of(file: OnnxFile) -> str:
    """Who wrote the file: ``"ONNX opset 17, pytorch 2.13.0"``."""
    maker = f"{file.model.producer_name} {file.model.producer_version}".strip()[:LONGEST_NAME]
    return f"ONNX opset {file.opset}, {maker or 'maker not named'}"


def properties_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the model's properties, bounded in number and length."""
    entries = list(model.metadata_props)[:MOST_ENTRIES]
    return {entry.key[:LONGEST_NAME]: entry.value[:LONGEST_ENTRY] for entry in entries}


def provenance_of(file: OnnxFile, output: str) -> dict[str, Any]:
    """JSON values for policy.json."""
    return {
        "format": "onnx",
        "producer": file.model.producer_name[:LONGEST_NAME],
        "producer_version": file.model.producer_version[:LONGEST_NAME],
        "ir_version": int(file.model.ir_version),
        "opset": file.opset,
        "output": output,
        "sha256": file.hashes,
        "metadata": properties_of(file.model),
    }


def names_that_fit(model: onnx.ModelProto, size: int, key: str = "joint_names") -> tuple[str, ...]:
    """Return a property's names, if they are as many as the elements and no two alike; else none."""
    text = properties_of(model).get(key, "")
    names = tuple(name.strip() for name in text.split(","))
    fits = len(names) == size and len(set(names)) == size and all(0 < len(name) <= LONGEST_NAME for name in names)
    return names if fits else ()
