"""Values that a reader may not expect, and JSON documents with one of them somewhere inside."""

from __future__ import annotations

import json
import random
from typing import Any

RAW = "\x00RAW\x00"
"""A string that begins so stands in the document as it is, without quotes."""
NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 65_536, 2**31, 2**63, -(2**63), 0.5, -0.0, 5e-324, 1e-30, 1e30, 1e308,
    RAW + "NaN", RAW + "Infinity", RAW + "-Infinity", RAW + "1e999", RAW + "9" * 4_000, RAW + "[" * 600 + "]" * 600,
    RAW + "[" * 50_000, RAW + '{"a":' * 400 + "1" + "}" * 400, "", " ", ".", "..", "/", "a/b", "../I", "a\\b", "\x00",
    "a\nb", "\x1b[2J", "\ud800", "\u202e", "é" * 100, "x" * 300, "x" * 5_000, "int8", "int4", "fp32", "tflite", "onnx",
    "int8.tflite", "fp32.onnx", "int8.golden.npz", "golden.npz", "policy.json", "manifest.json", "litert", [], [[]],
    [0], [None], [1e308], ["x"], {}, {"": 0}, {"a": {"b": []}}, [0] * 3_000, ["x"] * 3_000, [[0, 0]] * 500,
)  # fmt: skip


def text_of(document: Any) -> bytes:
    """A document as JSON, what is raw in it as it is."""
    parts = json.dumps(document).split('"' + json.dumps(RAW)[1:-1])
    whole = parts[0]
    for part in parts[1:]:  # up to the quote that ends the string
        inside, quote, rest = part.partition('"')
        while inside.endswith("\\") and quote:
            more, quote, rest = rest.partition('"')
            inside = inside[:-1] + '"' + more
        whole += inside + rest
    return whole.encode("utf-8", "surrogatepass")


def spoiled(document: Any, chance: random.Random) -> Any:
    """The document with one of its values replaced, removed, renamed, doubled or exchanged; the original stays."""
    whole = json.loads(json.dumps(document))
    places: list[tuple[Any, Any]] = []
    level = [whole]
    while level:
        owner = level.pop()
        keys = list(owner) if isinstance(owner, dict) else range(len(owner))
        if len(keys) > 40:
            keys = chance.sample(list(keys), 40)
        for key in keys:
            places.append((owner, key))
            if isinstance(owner[key], dict | list):
                level.append(owner[key])
    if not places:
        return chance.choice(NASTY)
    owner, key = chance.choice(places)
    match chance.randrange(8):
        case 0:
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[chance.choice(["", "x", "file", "bytes", "name", "\ud800", str(key) * 200])] = owner.pop(key)
        case 2:
            other, place = chance.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                owner[key], other[place] = json.loads(json.dumps([other[place], owner[key]]))
        case 3 if isinstance(owner, list):
            owner.extend(owner[key : key + 1] * chance.choice([1, 100]))
        case _:
            owner[key] = chance.choice(NASTY)
    return whole


def scrambled(data: bytes, chance: random.Random) -> bytes:
    """Bytes with a part of them flipped, zeroed, cut, doubled or replaced."""
    if not data:
        return b"\x00"
    start = chance.randrange(len(data))
    size = min(len(data) - start, chance.choice([1, 1, 4, 64, 4096]))
    end = start + size
    return {
        0: lambda: data[:start] + bytes(byte ^ (1 << chance.randrange(8)) for byte in data[start:end]) + data[end:],
        1: lambda: data[:start] + bytes(size) + data[end:],
        2: lambda: data[:start],
        3: lambda: data[:start] + data[end:],
        4: lambda: data[:end] + data[start:],
        5: lambda: data[:start] + chance.randbytes(size) + data[end:],
        6: lambda: data + chance.randbytes(size),
        7: lambda: b"",
    }[chance.randrange(8)]()
