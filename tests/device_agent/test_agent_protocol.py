"""What a line may be, and what is said of one that may not; without a runtime."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl.device.agent.operations import OPERATIONS, FlyEpisodes, Latency, Load, TimedPath, parse_request
from quarl.device.agent.protocol import AgentError, ErrorCode, encode
from quarl.device.agent.server import Agent
from quarl.policy.spec import Precision, RuntimeName

NOWHERE = Path("no-such-bundle")


def refused(data: dict[str, Any]) -> AgentError:
    with pytest.raises(AgentError) as caught:
        parse_request(data)
    return caught.value


def reply_to(line: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(Agent(NOWHERE).handle(line))
    return reply


def test_requests_are_read_with_their_defaults() -> None:
    assert parse_request({"op": "load", "precision": "int8"}) == Load(Precision.INT8, None, None)
    assert parse_request({"op": "load", "precision": "fp32", "runtime": "onnxruntime", "threads": 4}) == Load(
        Precision.FP32, RuntimeName.ONNXRUNTIME, 4
    )
    assert parse_request({"op": "latency"}) == Latency(100, 1000, TimedPath.RUNTIME)
    assert parse_request({"op": "episodes"}) == FlyEpisodes("hard", 100, 7, 64, {})


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_example_that_help_shows_is_a_valid_request(name: str) -> None:
    assert OPERATIONS[name].example["op"] == name
    parse_request(OPERATIONS[name].example)


def test_help_lists_every_operation_with_its_fields_and_an_example() -> None:
    reply = reply_to(b'{"op": "help"}')
    assert reply["ok"] and set(reply["ops"]) == set(OPERATIONS)
    assert set(reply["ops"]["latency"]["fields"]) == {"warmup", "runs", "path"}
    assert reply["ops"]["load"]["example"] == {"op": "load", "precision": "int8"}


@pytest.mark.parametrize(
    "line",
    [
        b"[" + b"[]," * 700_000 + b"[]]",
        b'{"op": "act", "observation": [' + b"1," * 2_000_000 + b"1]}",
        b'["' + b'","' * 700_000 + b'"]',
    ],
)
def test_too_long_lines_are_refused_unread(line: bytes) -> None:
    tracemalloc.start()
    reply = reply_to(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply["error"]["code"] == "line_too_long" and "1,900,000 are allowed" in reply["error"]["message"]
    assert peak < 2e6, "it was read first"


def test_a_missing_bundle_is_said_in_hello_and_the_agent_lives_on() -> None:
    agent = Agent(NOWHERE)
    reply = json.loads(agent.handle(b'{"op": "hello"}'))
    assert reply["ok"] and reply["bundle"] is None
    assert "no-such-bundle" in reply["bundle_error"]["message"]
    loaded = json.loads(agent.handle(b'{"op": "load", "precision": "int8"}'))
    assert loaded["error"]["code"] == "bundle" and "manifest.json is missing" in loaded["error"]["message"]
    assert json.loads(agent.handle(b'{"op": "bye"}')) == {"ok": True, "op": "bye", "decisions": 0}
    assert agent.ended


def test_replies_are_strict_json_on_one_line() -> None:
    line = encode({"text": "two\nlines", "value": 1.5})
    assert line.count(b"\n") == 1 and json.loads(line) == {"text": "two\nlines", "value": 1.5}
    with pytest.raises(ValueError, match="JSON"):
        encode({"value": float("nan")})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELD_NAMES = sorted({name for operation in OPERATIONS.values() for name in operation.fields} | {"id", "op", "other"})


@settings(max_examples=300, deadline=None)
@given(line=st.binary(max_size=200))
def test_any_bytes_get_one_reply(line: bytes) -> None:
    reply = Agent(NOWHERE).handle(line)
    assert reply.count(b"\n") == 1 and isinstance(json.loads(reply)["ok"], bool)


@settings(max_examples=300, deadline=None)
@given(
    operation=st.sampled_from(sorted(OPERATIONS)),
    fields=st.dictionaries(st.sampled_from(FIELD_NAMES), JSON_VALUES, max_size=5),
)
def test_any_fields_get_one_reply_and_none_is_an_internal_error(operation: str, fields: dict[str, Any]) -> None:
    line = json.dumps({"op": operation, **{k: v for k, v in fields.items() if k != "op"}}).encode()
    reply = json.loads(Agent(NOWHERE).handle(line))
    assert reply["ok"] or reply["error"]["code"] != ErrorCode.INTERNAL.value, (line, reply)


def test_a_malformed_value_is_cut_short_in_the_message() -> None:
    error = refused({"op": "latency", "path": "x" * 5000})
    assert error.code == "bad_field" and len(str(error)) < 300
