"""Mutated fleet.toml files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from quarl.device.deploy.fleet.inventory import Fleet, FleetFileError
from tests.fuzz.values import RAW, scrambled, spoiled

LEGAL: dict[str, Any] = {
    "groups": {
        "arena": {
            "targets": ["pi@arena-[01-12]", "pi@192.168.1.40:2222"],
            "runtime": "litert",
            "labels": {"hall": "3"},
        },
        "lab": {"targets": ["local", "a[1-2]b[1-2]", "pi@[fe80::1]:22"], "agent": "native", "bits": 8},
    },
    "devices": {"pi@arena-07": {"identity": "~/.ssh/arena", "labels": {"camera": "left"}}},
}
NASTY = (
    "pi@a-[0-9999]-[0-9999]-[0-9999]", "pi@a-[0-9999]", "[1-2]" * 400, f"pi@a-[0-{'9' * 5000}]", "[٠-٩]", "a[9-1]",
    f"pi@a:{'9' * 5000}", "pi@a:²", "@arena", "~nobodyx/x", "~\x00/x", "a\x00[1-2]", [[[["a"]]]], [{"a": 1}],
    RAW + "9" * 5000, RAW + "1979-05-27", RAW + "2020-13-45T99:00:00Z", RAW + "nan", RAW + "[" * 3000 + "]" * 3000,
    RAW + "{a=" * 800 + "1" + "}" * 800, RAW + "{" + ".".join("a" * 2000) + " = 1}",
)  # fmt: skip


def text(chance: random.Random) -> bytes:
    """A mutated file."""
    document = LEGAL
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        document = spoiled(document, chance) if isinstance(document, dict) else document
    if isinstance(document, dict) and chance.random() < 0.5:
        document = json.loads(json.dumps(document))
        tables = [each for table in document.values() if isinstance(table, dict) for each in table.values()]
        tables = [each for each in tables if isinstance(each, dict)]
        if tables:
            table, value = chance.choice(tables), chance.choice(NASTY)
            key = chance.choice(["targets", "runtime", "identity", "bits", "labels", "x"])
            table[key] = [value] if key == "targets" else value
    lines = [f"{json.dumps(key)} = {_toml(value)}" for key, value in document.items()] if document else []
    written = "\n".join(lines).encode("utf-8", "surrogatepass")
    return scrambled(written, chance) if chance.random() < 0.2 else written


def _toml(value: Any) -> str:
    if isinstance(value, str) and value.startswith(RAW):
        return value.removeprefix(RAW)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "")


def tried(file: Path, content: bytes) -> str:
    """What becomes of one: ``harmless``, ``refused``, or something else."""
    file.write_bytes(content)
    try:
        fleet = Fleet.load(file)
    except FleetFileError as error:
        named = str(file) in error.message and ("line " in error.message or "cannot be read" in error.message)
        return "refused" if named and len(error.message) < 2000 else f"says not where: {error.message[:300]}"
    except Exception as error:
        return f"internal: {type(error).__name__}: {str(error)[:200]}"
    return "harmless" if 0 < len(fleet.members) <= 10_000 else f"has {len(fleet.members)} devices"
