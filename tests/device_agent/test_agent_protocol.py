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
from quarl.device.agent.protocol import AgentError, ErrorCode, encode, parse_json, request_id
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


WRONG_LINES = [
    (b"hello", ErrorCode.BAD_JSON, '{"op": "help"}'),
    (b'{"op": "hello"', ErrorCode.BAD_JSON, "not valid JSON"),
    (b"\xff\xfe", ErrorCode.BAD_JSON, "not valid JSON"),
    (b"[" * 100_000, ErrorCode.BAD_JSON, "nested too deeply"),
    (b'{"op": ' + b"9" * 10_000 + b"}", ErrorCode.BAD_JSON, "not valid JSON"),
    (b"[1, 2]", ErrorCode.BAD_REQUEST, "a request is a JSON object"),
    (b"null", ErrorCode.BAD_REQUEST, "a request is a JSON object"),
    (b"NaN", ErrorCode.BAD_REQUEST, "a request is a JSON object"),
    (b"{}", ErrorCode.UNKNOWN_OP, 'has no "op"'),
    (b'{"op": 3}', ErrorCode.UNKNOWN_OP, "op 3 is not known"),
    (b'{"op": null}', ErrorCode.UNKNOWN_OP, "help, hello, load"),
    (b'{"op": "fly"}', ErrorCode.UNKNOWN_OP, 'op "fly" is not known'),
    (b'{"op": ["hello"]}', ErrorCode.UNKNOWN_OP, "not known"),
    (b'{"op": "latency", "run": 5}', ErrorCode.UNKNOWN_FIELD, "warmup, runs, path"),
    (b'{"op": "load"}', ErrorCode.MISSING_FIELD, "fp32, fp16, int8"),
    (b'{"op": "load", "precision": "int9"}', ErrorCode.BAD_FIELD, "int8"),
    (b'{"op": "load", "precision": 8}', ErrorCode.BAD_FIELD, "one of fp32"),
    (b'{"op": "load", "precision": "int8", "runtime": "tf"}', ErrorCode.BAD_FIELD, "tflite-runtime"),
    (b'{"op": "latency", "runs": 0}', ErrorCode.BAD_FIELD, "from 1 to 1000000"),
    (b'{"op": "latency", "runs": 1e3}', ErrorCode.BAD_FIELD, "an integer"),
    (b'{"op": "latency", "runs": true}', ErrorCode.BAD_FIELD, "an integer"),
    (b'{"op": "latency", "runs": 99999999999999999999}', ErrorCode.BAD_FIELD, "from 1 to 1000000"),
    (b'{"op": "episodes", "seed": -1}', ErrorCode.BAD_FIELD, "from 0"),
    (b'{"op": "episodes", "settings": [1]}', ErrorCode.BAD_FIELD, "an object"),
    (b'{"op": "episodes", "settings": {"wind_m_s": NaN}}', ErrorCode.BAD_FIELD, "finite"),
    (b'{"op": "act", "observation": []}', ErrorCode.BAD_FIELD, "not empty"),
    (b'{"op": "act", "observation": [1.0]}', ErrorCode.NOT_LOADED, '{"op": "load", "precision": "int8"}'),
    (b'{"op": "memory", "id": 1.5}', ErrorCode.BAD_FIELD, "'id' is 1.5"),
    (b'{"op": "memory", "id": "7"}', ErrorCode.NOT_LOADED, "nothing is loaded"),
]


@pytest.mark.parametrize(("line", "code", "message"), WRONG_LINES)
def test_a_wrong_line_is_answered_with_what_is_allowed_and_what_to_type(
    line: bytes, code: ErrorCode, message: str
) -> None:
    reply = reply_to(line)
    assert reply["ok"] is False
    assert reply["error"]["code"] == code.value
    assert message in reply["error"]["message"] + reply["error"]["next"]
    assert reply["error"]["next"]
    assert len(json.dumps(reply)) < 2000


@pytest.mark.parametrize("depth", [17, 330, 500, 988])
@pytest.mark.parametrize(
    "opening", ['{"op": "act", "observation": ', '{"op": "episodes", "settings": {"wind_m_s": ', '{"op": ']
)
def test_what_is_nested_too_deeply_is_said_whatever_it_is(opening: str, depth: int) -> None:
    """Python's own limit lies somewhere between 330 and 1,000, for what comes after the parser."""
    line = opening + "[" * depth + "]" * depth + "}" * opening.count("{")
    reply = reply_to(line.encode())
    assert reply["error"]["code"] in ("bad_request", "bad_json") and "nested" in reply["error"]["message"]


def test_brackets_in_words_are_no_nesting() -> None:
    assert reply_to(json.dumps({"op": "help", "id": "[" * 40}).encode())["ok"]


@pytest.mark.parametrize(
    "line",
    [
        b"[" + b"[]," * 700_000 + b"[]]",
        b'{"op": "act", "observation": [' + b"1," * 2_000_000 + b"1]}",
        b'["' + b'","' * 700_000 + b'"]',
    ],
)
def test_a_line_of_more_values_than_a_small_device_holds_is_refused_unread(line: bytes) -> None:
    tracemalloc.start()
    reply = reply_to(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply["error"]["code"] == "line_too_long" and "1,900,000 are allowed" in reply["error"]["message"]
    assert peak < 2e6, "it was read first"


def test_the_reply_repeats_the_requests_id_also_when_it_is_refused() -> None:
    assert reply_to(b'{"op": "help", "id": "a7"}')["id"] == "a7"
    assert reply_to(b'{"op": "memory", "id": 12}')["id"] == 12
    assert "id" not in reply_to(b'{"op": "help"}')
    assert request_id({"op": "help", "id": None}) is None


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


def test_parse_json_returns_the_object() -> None:
    assert parse_json(b' {"op": "hello"} \r\n') == {"op": "hello"}
