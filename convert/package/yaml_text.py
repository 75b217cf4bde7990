"""Values as YAML in the layout that LEAPP writes: mappings and lists of mappings in blocks, all else as JSON.

Every string is a JSON string, which YAML reads as the same text; every number has the point without which YAML takes
``1e-05`` for a word.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]*(?: [a-z]+)*")
_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""Words that YAML takes for something else than text."""


def document(values: Mapping[str, Any]) -> str:
    """Return a mapping as a YAML document; a blank line stands between its members.

    Args:
        values: mappings, sequences, strings, finite numbers, truth values and None.

    Raises:
        ValueError: a number is not finite.
    """
    return "\n".join("\n".join(_member(name, value, "")) + "\n" for name, value in values.items())


def _member(name: str, value: Any, indent: str) -> Iterator[str]:
    key = name if _PLAIN_KEY.fullmatch(name) and name not in _WORDS else _leaf(name)
    if isinstance(value, Mapping) and value:
        yield f"{indent}{key}:"
        for inner, item in value.items():
            yield from _member(inner, item, f"{indent}  ")
    elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) and item for item in value):
        yield f"{indent}{key}:"
        for item in value:
            first, *rest = (line for inner, part in item.items() for line in _member(inner, part, f"{indent}  "))
            yield f"{indent}- {first.removeprefix(f'{indent}  ')}"
            yield from rest
    else:
        yield f"{indent}{key}: {_leaf(value)}"


def _leaf(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_leaf(name)}: {_leaf(item)}" for name, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_leaf, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"a number must be finite in JSON, got {value}.")
    digits, exponent, power = repr(value).partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
