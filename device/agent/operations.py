"""The requests of the protocol: which operations there are, what fields they take, and how each is validated."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Union

from quarl.device.agent.loop.options import MAX_THREADS
from quarl.device.agent.protocol import PROTOCOL_VERSION, AgentError, ErrorCode, bad_field, short
from quarl.policy.errors import PolicyError
from quarl.policy.spec import Precision, RuntimeName, parse_enum

MAX_INTEGER = 10**9
MAX_RUNS = 10**6
MAX_ROWS = 8192
"""Observations in a request: an answer is held whole."""


class TimedPath(Enum):
    """What one timed run covers."""

    RUNTIME = "runtime"  # set the input, invoke, read the decision
    DECIDE = "decide"  # the agent's whole way: parse the request's line, infer, choose, write the reply's line


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


def _many_rows(name: str, value: Any) -> list[Any]:
    rows = _rows(name, value)
    if len(rows) > MAX_ROWS:
        raise bad_field(name, f"a list of {len(rows)}", f"a list of at most {MAX_ROWS} rows")
    return rows


def _settings(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(name, value, "an object of the simulator's settings")
    if not _finite(value):
        raise bad_field(name, value, "an object of finite numbers, strings, true and false")
    return value


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _field(read: Callable[[str, Any], Any], text: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a request: how it is read, what help says of it, and what it is when absent, where it may
    be."""
    keywords: dict[str, Any] = {} if default is dataclasses.MISSING else {"default_factory": lambda: default}
    return dataclasses.field(**keywords, metadata={"read": read, "text": text})


# What help says of an operation is the first line of its class.


@dataclass(frozen=True)
class Help:
    """list the operations with an example of each"""


@dataclass(frozen=True)
class Hello:
    """say what device, runtimes and bundle are here"""


@dataclass(frozen=True)
class Load:
    """verify an artifact (hash, spec, every golden vector) and serve it; a refused one leaves the old one serving"""

    precision: Precision = _field(_choice(Precision), "fp32, fp16, int8, int7 … int2, mixed, w8, w4, dynamic")
    runtime: RuntimeName | None = _field(
        _optional(_choice(RuntimeName)), "null (the preferred installed one), or its name", None
    )
    threads: int | None = _field(
        _optional(_integer(1, MAX_THREADS)), "threads of the runtime; null: as the agent was started", None
    )


@dataclass(frozen=True)
class Latency:
    """time the loaded artifact in nanoseconds"""

    warmup: int = _field(_integer(0, MAX_RUNS), "runs before the timed ones", 100)
    runs: int = _field(_integer(1, MAX_RUNS), "timed runs", 1000)
    path: TimedPath = _field(
        _choice(TimedPath), "runtime (set, invoke, read) or decide (line to line)", TimedPath.RUNTIME
    )


@dataclass(frozen=True)
class Memory:
    """report resident memory: agent alone, before and after loading, peak while running"""

    runs: int = _field(_integer(1, MAX_RUNS), "inferences to run while the peak is watched", 100)


@dataclass(frozen=True)
class FlyEpisodes:
    """fly the navigation simulator on this device with the loaded policy"""

    preset: str = _field(_text, "easy, medium, shipped or hard", "hard")
    episodes: int = _field(_integer(1, 10**6), "number of episodes, with the ids 0, 1, …", 100)
    seed: int = _field(_integer(0, 2**63 - 1), "with an episode's id it fixes everything about that episode", 7)
    batch: int = _field(_integer(1, 4096), "episodes simulated at a time; changes no result", 64)
    settings: Mapping[str, Any] = _field(_settings, "settings of the simulator in place of the preset's", {})


@dataclass(frozen=True)
class Act:
    """decide on a raw observation, on rows of them (each decision timed), or on what one period brings"""

    # The values are checked against the loaded policy later.
    observation: list[Any] | None = _field(_rows, "one raw observation: a list of numbers", None)
    observations: list[Any] | None = _field(
        _many_rows, f"instead: a list of raw observations, at most {MAX_ROWS}", None
    )
    period: list[Any] | None = _field(
        _rows, "instead: the numbers of this period alone; the agent remembers earlier ones, and its actions", None
    )
    start: bool = _field(_flag, "with period: an episode begins, and what was remembered is forgotten", False)
    outputs: bool = _field(_flag, "whether to reply the outputs beside the action", True)


@dataclass(frozen=True)
class Bye:
    """end the agent"""


Request = Union[Help, Hello, Load, Latency, Memory, FlyEpisodes, Act, Bye]


@dataclass(frozen=True)
class Operation:
    """One operation: its request's class and an example of it."""

    request: type[Request]
    example: Mapping[str, Any]

    @cached_property
    def fields(self) -> dict[str, Mapping[str, Any]]:
        """How each of its fields is read, and what help says of it, by name."""
        return {field.name: field.metadata for field in dataclasses.fields(self.request)}

    @cached_property
    def required_fields(self) -> list[str]:
        """The fields that may not be absent."""
        absent = dataclasses.MISSING
        return [field.name for field in dataclasses.fields(self.request) if field.default_factory is absent]


OPERATIONS: Mapping[str, Operation] = {
    "help": Operation(Help, {"op": "help"}),
    "hello": Operation(Hello, {"op": "hello"}),
    "load": Operation(Load, {"op": "load", "precision": "int8"}),
    "latency": Operation(Latency, {"op": "latency", "warmup": 100, "runs": 1000, "path": "runtime"}),
    "memory": Operation(Memory, {"op": "memory", "runs": 100}),
    "episodes": Operation(
        FlyEpisodes, {"op": "episodes", "preset": "hard", "episodes": 100, "seed": 7, "settings": {}, "batch": 64}
    ),
    "act": Operation(Act, {"op": "act", "observation": [0.0, 1.0, 2.0]}),
    "bye": Operation(Bye, {"op": "bye"}),
}


def parse_request(data: Mapping[str, Any]) -> Request:
    """Return a JSON object as a validated request.

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
    for key in operation.required_fields:
        if key not in data:
            raise AgentError(
                ErrorCode.MISSING_FIELD,
                f"{name} needs {key!r}: {operation.fields[key]['text']}.",
                f"For example: {json.dumps(operation.example)}",
            )
    fields = operation.fields
    return operation.request(**{key: fields[key]["read"](key, value) for key, value in data.items() if key in fields})


def help_reply() -> dict[str, Any]:
    """Return what ``help`` replies."""
    return {
        "protocol": PROTOCOL_VERSION,
        "ops": {
            name: {
                "does": operation.request.__doc__,
                "fields": {key: field["text"] for key, field in operation.fields.items()},
                "example": operation.example,
            }
            for name, operation in OPERATIONS.items()
        },
    }
