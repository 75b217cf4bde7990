"""JSON Schema, the part of it that report.schema.json uses, so that no further package is needed.

Understood: type (also a list of types), enum, const, required, properties, additionalProperties, items, minimum,
maximum, minLength, pattern, $ref to ``#/$defs/NAME``, and the annotations $schema, $id, $defs, title, description.
A schema with any other keyword is refused rather than half obeyed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
_CHECKS = {
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "minimum",
    "maximum",
    "minLength",
    "pattern",
    "$ref",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


class InvalidDocumentError(ValueError):
    """A document does not match the schema; the message names the first place that does not."""


def load_schema(path: Path) -> dict[str, Any]:
    """Read a schema and make sure that every keyword in it is one that :func:`validate` obeys."""
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _check_keywords(schema, path.name)
    return schema


def validate(document: Any, schema: Mapping[str, Any]) -> None:
    """Check a JSON value against a schema.

    Raises:
        InvalidDocumentError: says where, what was found and what is allowed.
    """
    _validate(document, schema, schema, "report")


def _check_keywords(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        return
    unknown = set(schema) - _ANNOTATIONS - _CHECKS
    if unknown:
        raise InvalidDocumentError(f"{where}: the schema uses {sorted(unknown)}, which is not understood here.")
    for key in ("properties", "$defs"):
        for name, part in schema.get(key, {}).items():
            _check_keywords(part, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        _check_keywords(schema.get(key), f"{where}.{key}")


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python but not to JSON
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _validate(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> None:
    def refuse(what: str) -> InvalidDocumentError:
        return InvalidDocumentError(f"{where} {what}")

    if "$ref" in schema:
        _validate(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, where)
    if "type" in schema:
        allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_has_type(value, name) for name in allowed):
            raise refuse(f"is {json.dumps(value)[:80]}; it must be {' or '.join(allowed)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(f"is {value}; JSON has no such number.")
    if "const" in schema and value != schema["const"]:
        raise refuse(f"is {value!r}; this program reads {schema['const']!r}.")
    if "enum" in schema and value not in schema["enum"]:
        raise refuse(f"is {value!r}; allowed are {', '.join(map(repr, schema['enum']))}.")
    if "minimum" in schema and _has_type(value, "number") and value < schema["minimum"]:
        raise refuse(f"is {value}; the least allowed is {schema['minimum']}.")
    if "maximum" in schema and _has_type(value, "number") and value > schema["maximum"]:
        raise refuse(f"is {value}; the most allowed is {schema['maximum']}.")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            raise refuse("is empty.")
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            raise refuse(f"is {value!r}; it must look like {schema['pattern']}.")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            _validate(item, schema["items"], root, f"{where}[{index}]")
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                raise refuse(f"lacks {name!r}.")
        properties = schema.get("properties", {})
        for name, item in value.items():
            if name in properties:
                _validate(item, properties[name], root, f"{where}.{name}")
            elif schema.get("additionalProperties") is False:
                raise refuse(f"has {name!r}, which is not known; allowed are {', '.join(properties)}.")
            elif isinstance(schema.get("additionalProperties"), dict):
                _validate(item, schema["additionalProperties"], root, f"{where}.{name}")
