"""JSON read strictly: a bundle's documents come from elsewhere, so a wrong type is refused, never coerced."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


class JsonValueError(ValueError):
    """A value is not of the type that is wanted; the message says what it is."""


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in ``text``.

    Raises:
        JsonValueError: it is no JSON, nested beyond Python's limit, or no object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise JsonValueError(f"it is not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise JsonValueError("it is not a JSON object")
    return data


def integer(value: object, name: str) -> int:
    """A whole number, written without a fraction."""
    if type(value) is not int:
        raise JsonValueError(f"{name} is {_short(value)}; it must be a whole number")
    return value


def number(value: object, name: str) -> float:
    """A finite number."""
    if type(value) not in (int, float):
        raise JsonValueError(f"{name} is {_short(value)}; it must be a number")
    try:
        read = float(value)  # type: ignore[arg-type]
    except OverflowError:
        read = math.inf
    if not math.isfinite(read):  # Python reads NaN and Infinity, and comparisons with NaN let everything pass
        raise JsonValueError(f"{name} is {_short(value)}; it must be finite")
    return read


def text(value: object, name: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise JsonValueError(f"{name} is {_short(value)}; it must be a string")
    return value


def items(value: object, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise JsonValueError(f"{name} is {_short(value)}; it must be a list")
    return value


def members(value: object, name: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise JsonValueError(f"{name} is {_short(value)}; it must be an object")
    return value


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
