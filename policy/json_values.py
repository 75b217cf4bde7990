"""Dataclasses as JSON and back. A bundle's documents come from elsewhere: a wrong type is refused, never coerced.

A dataclass is an object with a member for each field, in their order; an enum is its value, a tuple a list. A class
attribute ``KIND``, the member ``kind``, tells the classes of a union apart. A field's metadata may say more:
``OMITTED``, it may be absent, and is where it has its default; ``null_is(x)``, x is written as null; ``called(name)``,
its name in the document.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

OMITTED = {"omitted": True}
MOST_PARTS = 200_000
"""Numbers, strings, objects and lists of a document, about: an empty list takes 64 bytes of memory for two of text. A
normaliser of 28,224 elements has 56,000."""
DEEPEST = 64
"""Levels of objects and lists inside a free-form value."""
LONGEST_TEXT = 1000
"""Characters of a string that is not free-form."""
_UNIONS = (Union, getattr(types, "UnionType", Union))
"""``Union[A, B]``, which a device's Python 3.9 evaluates too, and ``A | B``."""
_SCALARS = {int: "an integer", str: "a string", bool: "true or false", float: "a number"}
_LINE_SIGNS = str.maketrans("", "", "\n\t")


def null_is(value: Any) -> dict[str, Any]:
    """Metadata of a field of which null stands for ``value``."""
    return {"null": value}


def rename_in_json(name: str) -> dict[str, Any]:
    """Metadata of a field that has another name in the document."""
    return {"name": name}


_Place = tuple[str, Any]
"""A member's name, and the place of the object that has it; None for the outermost."""


class JsonValueError(ValueError):
    """A value is not of the type that is wanted; the message says what it is."""


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        JsonValueError: it is no JSON, nested beyond Python's limit, no object, or of too many parts.
    """
    signs = (",", "[", "{")
    parts = sum(text.count(sign) if isinstance(text, str) else text.count(sign.encode()) for sign in signs)
    if parts > MOST_PARTS:
        raise JsonValueError(f"it must have at most {MOST_PARTS} numbers, strings, lists and objects, got {parts}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise JsonValueError(f"it is not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise JsonValueError("it is not a JSON object")
    return data


def write(value: Any) -> Any:
    """JSON values of a dataclass and of everything in it."""
    if dataclasses.is_dataclass(value):
        written = {"kind": value.KIND} if hasattr(value, "KIND") else {}
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            if "omitted" not in field.metadata or own != field.default:
                is_null = "null" in field.metadata and own == field.metadata["null"]
                written[field.metadata.get("name", field.name)] = None if is_null else write(own)
        return written
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {write(key): write(item) for key, item in value.items()}
    return [write(item) for item in value] if isinstance(value, (list, tuple)) else value


def read(kind: Any, value: Any, name: str = "") -> Any:
    """Return a JSON value as ``kind``: Any, a scalar, an enum, a dataclass, a tuple, a mapping, or a union with None.

    Args:
        kind: the type, as it stands in an annotation.
        value: from the document.
        name: what messages call it; members are called NAME.MEMBER.

    Raises:
        JsonValueError: it is of another type.
        KeyError: a member is missing; has its name.
    """
    if kind is Any:
        check_free(value, name)
        return value
    arguments, origin = get_args(kind), get_origin(kind)
    if origin in _UNIONS:
        if value is None and type(None) in arguments:
            return None
        choices = [choice for choice in arguments if choice is not type(None)]
        return read(choices[0] if len(choices) == 1 else _of_kind(choices, value, name), value, name)
    if dataclasses.is_dataclass(kind):
        return _object(kind, _require_type(value, dict, name, "an object"), name)
    if origin is tuple:
        items = _require_type(value, list, name, "a list")
        if arguments[1:] != (...,) and len(items) != len(arguments):
            raise JsonValueError(f"{name} must have {len(arguments)} numbers, got {len(items)}")
        if arguments[0] in _SCALARS:  # the common case, and the long one: without the search for its kind
            return tuple([_scalar(arguments[0], item, name) for item in items])
        inside = dataclasses.is_dataclass(arguments[0])
        places = [f"{name}[{index}]" if inside else name for index in range(len(items))]
        return tuple(read(arguments[0], item, place) for item, place in zip(items, places))
    if origin is Mapping:
        members = _require_type(value, dict, name, "an object").items()
        return {read(arguments[0], key, name): read(arguments[1], item, f"{name}.{key}") for key, item in members}
    if issubclass(kind, Enum):
        return _member(kind, value, name)
    return _scalar(kind, value, name)


def _scalar(kind: type, value: Any, name: str) -> Any:
    return _number(value, name) if kind is float else _require_type(value, kind, name, _SCALARS[kind])


def check_free(value: Any, name: str) -> None:
    """Refuse a free-form value that could not be written again, printed or walked through.

    Raises:
        JsonValueError: NaN or infinity, a control sign or a lone surrogate in a string, or more than DEEPEST levels.
    """
    left: list[tuple[Any, _Place, int]] = [(value, (name, None), 0)]
    while left:
        item, place, level = left.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise JsonValueError(f"{_join_path(place)} must be finite, got {item}")
        if isinstance(item, str) and not item.translate(_LINE_SIGNS).isprintable():
            raise JsonValueError(f"{_join_path(place)} must be printable, got {abbreviate(item)}")
        if level > DEEPEST:
            raise JsonValueError(f"{_join_path(place)} must be nested at most {DEEPEST} levels deep, got {level}")
        if isinstance(item, Mapping):
            for key, inner in item.items():
                if type(key) is not str or not is_text(key, LONGEST_TEXT):
                    raise JsonValueError(
                        f"a member name of {_join_path(place)} must be printable, got {abbreviate(key)}"
                    )
                left.append((inner, (key, place), level + 1))
        elif isinstance(item, (list, tuple)):
            left += [(inner, place, level + 1) for inner in item]


def _join_path(place: _Place) -> str:
    """NAME.MEMBER.MEMBER, put together only for a message."""
    names = [place[0]]
    while (place := place[1]) is not None:
        names.append(place[0])
    return ".".join(reversed(names))


def _object(kind: Any, data: Mapping[str, Any], name: str) -> Any:
    members = {}
    for field in dataclasses.fields(kind):
        key = field.metadata.get("name", field.name)
        if key not in data and "omitted" in field.metadata:
            continue
        if data[key] is None and "omitted" in field.metadata:
            raise JsonValueError(f"{f'{name}.{key}' if name else key} must have a value or be absent, got null")
        if data[key] is None and "null" in field.metadata:
            members[field.name] = field.metadata["null"]
        else:
            members[field.name] = read(_hints(kind)[field.name], data[key], f"{name}.{key}" if name else key)
    return kind(**members)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _of_kind(choices: list[Any], value: Any, name: str) -> Any:
    known = {choice.KIND: choice for choice in choices}
    kind = _require_type(value, dict, name, "an object")["kind"]
    if not isinstance(kind, str) or kind not in known:
        raise JsonValueError(f"{name}.kind must be one of {', '.join(known)}, got {abbreviate(kind)}")
    return known[kind]


def _member(kind: type[Enum], value: Any, name: str) -> Any:
    for member in kind:
        if member.value == value:
            return member
    allowed = ", ".join(str(member.value) for member in kind)
    raise JsonValueError(f"{name} must be one of {allowed}, got {abbreviate(value)}")


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float):
        raise JsonValueError(f"{name} must be a number, got {abbreviate(value)}")
    try:
        read = float(value)
    except OverflowError:
        read = math.inf
    if not math.isfinite(read):  # Python reads NaN and Infinity, and comparisons with NaN let everything pass
        raise JsonValueError(f"{name} must be finite, got {abbreviate(value)}")
    return read


def _require_type(value: Any, kind: type, name: str, wanted: str) -> Any:
    if type(value) is not kind:  # True is no whole number
        raise JsonValueError(f"{name} must be {wanted}, got {abbreviate(value)}")
    if isinstance(value, str) and not is_text(value, LONGEST_TEXT):
        raise JsonValueError(
            f"{name} must be at most {LONGEST_TEXT} printable characters without control characters or line breaks, "
            f"got {abbreviate(value)}"
        )
    return value


def abbreviate(value: object) -> str:
    """Return a value as messages show it."""
    if isinstance(value, (list, tuple, str, bytes)):
        value = value[:60]  # of millions, those that are shown
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a number of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- names ----------------------------------------------------------------------------------------------------------
# A policy's name becomes a folder on the host and on the device, a part of typed commands and of paths on pages: it
# must not leave the folder, begin an option or move a terminal's cursor. Names of fields, actions and units are only
# shown: they may be any printable text.

LONGEST_NAME = 200
"""Characters of the name of an observation field, an action, a unit or an environment."""
LONGEST_FILE_NAME = 255
"""Bytes of a file's name: NAME_MAX of Linux's file systems."""
POLICY_NAMES_ALLOWED = "1 to 64 letters (A to Z), digits, '.', '_' and '-', the first a letter or a digit"
_POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_policy_name(name: str) -> bool:
    """Return whether a policy may be called that: :data:`POLICY_NAMES_ALLOWED`."""
    return _POLICY_NAME.fullmatch(name) is not None


def is_text(text: str, longest: int = LONGEST_NAME) -> bool:
    """Return whether it is printable, at most ``longest`` characters: no control sign, no line break, no lone
    surrogate."""
    return len(text) <= longest and text.isprintable()


def is_file_name(name: str) -> bool:
    """Return whether a file of a bundle may be called that: it stays in its folder, and every file system takes it."""
    # Printable text has no lone surrogate, so that it can be encoded.
    if not name or name in (".", "..") or not is_text(name, LONGEST_FILE_NAME):
        return False
    return "/" not in name and "\\" not in name and len(name.encode()) <= LONGEST_FILE_NAME
