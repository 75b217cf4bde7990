"""The requests of the protocol: which operations there are, what fields they take, and how each is validated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from device.agent.protocol import PROTOCOL_VERSION, AgentError, ErrorCode, bad_field, short
from policy.errors import PolicyError
from policy.spec import Precision, RuntimeName, parse_enum

MAX_INTEGER = 10**9


class TimedPath(Enum):
    """What one timed run covers."""

    RUNTIME = "runtime"  # set the input, invoke, read the decision
    DECIDE = "decide"  # the agent's whole way: parse the request's line, infer, choose, write the reply's line


@dataclass(frozen=True)
class Help:
    """List the operations."""


@dataclass(frozen=True)
class Hello:
    """Ask who the device is."""


@dataclass(frozen=True)
class Load:
    """Verify an artifact and serve it."""

    precision: Precision
    runtime: RuntimeName | None
    threads: int | None


@dataclass(frozen=True)
class Latency:
    """Time the loaded artifact."""

    warmup: int
    runs: int
    path: TimedPath


@dataclass(frozen=True)
class Memory:
    """Measure resident memory around ``runs`` inferences."""

    runs: int


@dataclass(frozen=True)
class Episodes:
    """Fly the simulator on the device."""

    preset: str
    episodes: int
    seed: int
    batch: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Act:
    """Decide on one raw observation, or on rows of them. The values are checked against the loaded policy later."""

    observation: list[Any] | None
    observations: list[Any] | None
    outputs: bool


@dataclass(frozen=True)
class Bye:
    """End the agent."""


Request = Help | Hello | Load | Latency | Memory | Episodes | Act | Bye
_REQUIRED = object()


@dataclass(frozen=True)
class Field:
    """One field of a request: how it is read, what it is when absent, and what help says of it."""

    read: Callable[[str, Any], Any]
    default: Any
    text: str


@dataclass(frozen=True)
class Operation:
    """One operation: its request class, its fields and what help says of it."""

    build: Callable[..., Request]
    does: str
    example: Mapping[str, Any]
    fields: Mapping[str, Field]


def _integer(low: int, high: int = MAX_INTEGER) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise bad_field(name, value, f"an integer from {low} to {high}")
        return value

    return read


def _optional(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


def _choice(kind: type[Enum]) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> Any:
        try:
            return parse_enum(kind, value, name)
        except PolicyError:
            raise bad_field(name, value, "one of " + ", ".join(str(member.value) for member in kind)) from None

    return read


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise bad_field(name, value, "a word")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_field(name, value, "true or false")
    return value


def _rows(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise bad_field(name, value, "a list that is not empty")
    return value


def _settings(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(name, value, "an object of the simulator's settings")
    if not _finite(value):
        raise bad_field(name, value, "an object of finite numbers, words, true and false")
    return value


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


OPERATIONS: Mapping[str, Operation] = {
    "help": Operation(lambda: Help(), "list the operations with an example of each", {"op": "help"}, {}),
    "hello": Operation(lambda: Hello(), "say what device, runtimes and bundle are here", {"op": "hello"}, {}),
    "load": Operation(
        Load,
        "verify an artifact (hash, spec, every golden vector) and serve it; a refused one leaves the old one serving",
        {"op": "load", "precision": "int8"},
        {
            "precision": Field(_choice(Precision), _REQUIRED, "fp32, fp16, int8, int7 … int2"),
            "runtime": Field(_optional(_choice(RuntimeName)), None, "null (the preferred installed one), or its name"),
            "threads": Field(
                _optional(_integer(1, 64)), None, "threads of the runtime; null: as the agent was started"
            ),
        },
    ),
    "latency": Operation(
        Latency,
        "time the loaded artifact in nanoseconds",
        {"op": "latency", "warmup": 100, "runs": 1000, "path": "runtime"},
        {
            "warmup": Field(_integer(0, 10**6), 100, "runs before the timed ones"),
            "runs": Field(_integer(1, 10**6), 1000, "timed runs"),
            "path": Field(
                _choice(TimedPath), TimedPath.RUNTIME, "runtime (set, invoke, read) or decide (line to line)"
            ),
        },
    ),
    "memory": Operation(
        Memory,
        "report resident memory: agent alone, before and after loading, peak while running",
        {"op": "memory", "runs": 100},
        {"runs": Field(_integer(1, 10**6), 100, "inferences to run while the peak is watched")},
    ),
    "episodes": Operation(
        Episodes,
        "fly the navigation simulator on this device with the loaded policy",
        {"op": "episodes", "preset": "hard", "episodes": 100, "seed": 7, "settings": {}, "batch": 64},
        {
            "preset": Field(_text, "hard", "easy, medium, shipped or hard"),
            "episodes": Field(_integer(1, 10**6), 100, "number of episodes, with the ids 0, 1, …"),
            "seed": Field(_integer(0, 2**63 - 1), 7, "with an episode's id it fixes everything about that episode"),
            "batch": Field(_integer(1, 4096), 64, "episodes simulated at a time; changes no result"),
            "settings": Field(_settings, {}, "settings of the simulator in place of the preset's"),
        },
    ),
    "act": Operation(
        Act,
        "decide on a raw observation, or on rows of them (each decision timed)",
        {"op": "act", "observation": [0.0, 1.0, 2.0]},
        {
            "observation": Field(_rows, None, "one raw observation: a list of numbers"),
            "observations": Field(_rows, None, "instead: a list of raw observations"),
            "outputs": Field(_flag, True, "whether to reply the outputs beside the action"),
        },
    ),
    "bye": Operation(lambda: Bye(), "end the agent", {"op": "bye"}, {}),
}


def parse_request(data: Mapping[str, Any]) -> Request:
    """A JSON object as a validated request.

    Raises:
        AgentError: names the operation or field that is unknown, missing or out of its range.
    """
    name = data.get("op")
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        received = f"op {short(name)} is not known" if "op" in data else 'the request has no "op"'
        raise AgentError(
            ErrorCode.UNKNOWN_OP, f"{received}; there are {', '.join(OPERATIONS)}.", 'Type {"op": "help"} for examples.'
        )
    unknown = [key for key in data if key not in operation.fields and key not in ("op", "id")]
    if unknown:
        allowed = ", ".join(operation.fields) or "none"
        raise AgentError(
            ErrorCode.UNKNOWN_FIELD,
            f"{name} has no field {short(unknown[0])}; its fields are {allowed}.",
            f"For example: {json.dumps(operation.example)}",
        )
    values = {}
    for key, spec in operation.fields.items():
        if key in data:
            values[key] = spec.read(key, data[key])
        elif spec.default is _REQUIRED:
            raise AgentError(
                ErrorCode.MISSING_FIELD,
                f"{name} needs {key!r}: {spec.text}.",
                f"For example: {json.dumps(operation.example)}",
            )
        else:
            values[key] = spec.default
    return operation.build(**values)


def help_reply() -> dict[str, Any]:
    """What ``help`` replies."""
    return {
        "protocol": PROTOCOL_VERSION,
        "ops": {
            name: {
                "does": operation.does,
                "fields": {key: spec.text for key, spec in operation.fields.items()},
                "example": operation.example,
            }
            for name, operation in OPERATIONS.items()
        },
    }
