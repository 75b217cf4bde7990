"""Lines that both agents, in Python and in C, accept or refuse: one table, with what each line is answered."""

from __future__ import annotations

import json
import math
import platform
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from quarl.device.agent import building
from quarl.device.agent.protocol import MAX_DEPTH, MAX_ID
from quarl.device.deploy.static_agent import packing
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision

ABSENT = "no id"
LARGEST = 3.4028234663852886e38
ELEMENT = 24
"""The goal's bearing: the element of the observation on which the pilot's outputs depend most."""
ECHOED = 60
"""Characters of an unknown op that its reply repeats."""


class Row(NamedTuple):
    """A line and its reply: an error's code, "" of a request that succeeds, None of a line without a reply."""

    line: bytes
    code: str | None
    op: str | None = None
    id: Any = ABSENT


# ---- JSON values, after the shapes of JSONTestSuite: valid ones, and what is none ----------------------------------
VALID = [
    *rb"0 -0 7 -12 0.0 0.1 1.0 1.5 0e1 0E+1 1E22 -1e-2 20e1 -0.0 4.9e-324 1e-400 1e38 1e39 1e400 -1e9999 NaN".split(),
    *rb"Infinity -Infinity 3.4028234663852886e38 3.4028234663852887e38 1.7976931348623157e308 true false null".split(),
    *rb'"" "a" "\u0000" "\"\\\/\b\f\n\r\t" "\u00e9" "\ud83d\ude00" "\uD83D\uDE00x" "\ud800" "\udc00\ud800"'.split(),
    *rb'"\ud83d\u0041" "\ud800\ud83d\ude00" "\uD83D\\ude00" "\ud83d\n" "\u2028" "\uffff" "\u007f" "[{" "\"["'.split(),
    *rb'"help" {"op":"help"} [] [[]] [1] [1,[2,{}]] [null] ["",{"a":[]}] {} {"a":1} {"a":1,"a":2} {"":0}'.split(),
    *(b'{"a":{"b":[]}}', b'"\x7f"', b"[1 ,\t2\r]", b'{ "a" :\r1 }', b" 5\t", "\"é\u2028\uffff😀\U0010ffff\"".encode()),
]  # fmt: skip
INVALID = [
    *rb"- + +1 01 -01 00 .5 -.5 1. 1.e1 1e 1e+ 1.0e+ 1.0e+-1 0e 1eE2 0x1 1_000 1a --1 1-1 1..5 -NaN +Infinity".split(),
    *rb"nan inf Infinit -Infinit NaNs tru nul fals True NULL truee None , : ; * & # (1) <1> 'a' `a` a \u0031 '".split(),
    *rb'" "a "\" "\x41" "\U0041" "\a" "\'" "\u" "\u12" "\u12G4" "\u-123" "\ud800\u" "a"b "a"1 1"a" "a""b"'.split(),
    *rb'"a":1 [ ] [1 [1, [1,] [,1] [,] [1}  [1]] [}] ["a", [1,,2] [1:2] [a] { } {a:1} {"a"} {"a":} {,}'.split(),
    *rb"""{"a":1,} {"a",1} {"a"::1} {"a":1,,"b":2} {1:1} {null:1} {"a":1}} {'a':1} {"a":1] {"a":"b"}# 1//""".split(),
    *(b"[1 2]", b'{"a":1 "b":2}', b"1 2", b"- 1", b"1 e5", b"\v1", b"\f1", b"1\0", b"\x001", b"\xc2\xa01"),
    *(b'"\x00"', b'"\x01"', b'"\t"', b'"\x1f"', b'"\r"', b'"\\\x00"', b"\xd9\xa1", b"\xef\xbb\xbf1", b"\xe9", b"\xff"),
    *(b'"\xe9"', b'"\x80"', b'"\xc0\xaf"', b'"\xe0\x80\xaf"', b'"\xf0\x80\x80\xaf"', b'"\xed\xa0\x80"', b'"\xe2\x82"'),
    *(b'"\xed\xa0\xbd\xed\xb8\x80"', b'"\xf4\x90\x80\x80"', b'"\xfc\x83\xbf\xbf\xbf\xbf"', b'"\\\xc3\xa5"', b"1/**/"),
]  # fmt: skip
LONG = {
    **{f"{n} digits": b"9" * n for n in (MAX_ID, MAX_ID + 1, 5000)},
    **{f"-{n} digits": b"-" + b"9" * n for n in (MAX_ID - 1, MAX_ID, 5000)},
    **{f"{n} letters": b'"%s"' % (b"a" * n) for n in (ECHOED, ECHOED + 1, MAX_ID, MAX_ID + 1, 100_000)},
    **{f"{n} é": b'"%s"' % ("é".encode() * n) for n in (ECHOED + 1, MAX_ID, MAX_ID + 1)},
    **{f"{n} pairs": b'"%s"' % (rb"\ud83d\ude00" * n) for n in (ECHOED + 1, MAX_ID, MAX_ID + 1)},
    "1.0 as a large number by a small one": b"1" + b"0" * 100_001 + b"e-100001",
    "1.0 as a small number by a large one": b"0." + b"0" * 100_001 + b"1e+100002",
    "0.0 with 200,000 zeros": b"0." + b"0" * 200_000 + b"e000999999999999999999",
    "0.0 with an exponent of 100,000 digits": b"1e-" + b"9" * 100_000,
    "0.1 and something at digit 100,000": b"0.1" + b"0" * 100_000 + b"1",
}


def reply_to_value(place: str, line: bytes, text: bytes, valid: bool) -> Row:
    """Return the row of a line with this value at a place of it."""
    if not valid:
        return Row(line, "bad_json")
    value = json.loads(text.decode(), parse_int=lambda digits: (int if len(digits) <= MAX_ID else float)(digits))
    number = type(value) in (int, float)
    if place == "line":
        return Row(line, "unknown_op" if type(value) is dict else "bad_request")
    if place == "op":
        return Row(line, "unknown_op", value[:ECHOED] if type(value) is str else None)
    if place == "id":
        fits = value is None or (type(value) in (str, int) and len(str(value)) <= MAX_ID)
        return Row(line, "", "help", value) if fits else Row(line, "bad_field", "help")
    if place == "element":
        return Row(line, "" if number and math.isfinite(value) and abs(value) <= LARGEST else "bad_observation", "act")
    return Row(line, "unknown_field", "help")


PLACES = {
    "line": b"%s",
    "op": b'{"op": %s}',
    "id": b'{"op": "help", "id": %s}',
    "element": b'{"op": "act", "observation": [' + b"0.5, " * ELEMENT + b"%s" + b", 0.5" * (31 - ELEMENT) + b"]}",
    "member": b'{"op": "help", "more": %s}',
}


def rows_of_values() -> dict[str, Row]:
    """Return the rows of every value at every place, by "place: value"."""
    short = {ascii(text.decode("latin-1"))[1:-1].replace("\\\\", "\\"): text for text in (*VALID, *INVALID)}
    named = [(name, text, text in VALID) for name, text in short.items()]
    named += [(name, text, True) for name, text in LONG.items()]
    rows = {
        f"{place}: {name}": reply_to_value(place, form % text, text, valid)
        for place, form in PLACES.items()
        for name, text, valid in named
    }
    return {**rows, **{name: Row(rows[name].line, "", "help") for name in ('op: "help"', 'line: {"op":"help"}')}}


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


HELP = b'{"op": "help"}'
MANY = b"".join(b'"m%d": 1, ' % n for n in range(40))
TOO_DEEP = MAX_DEPTH + 1
WHOLE: dict[str, Row] = {
    "empty": Row(b"", None),
    "blanks": Row(b" \t \r", None),
    **{f"no blank: {text!r}": Row(text, "bad_json") for text in (b"\v", b"\f", b" \v\f ", b"\0", b"\xc2\xa0", b"\x1c")},
    "blanks around": Row(b"\r \t" + HELP + b" \t\r", "", "help"),
    **{f"{text!r} behind": Row(HELP + text, "bad_json") for text in (b"\v", b"\0", b",", b"}", b" {}", HELP, b"\xff")},
    "byte order mark": Row(b"\xef\xbb\xbf" + HELP, "bad_json"),
    **{f"utf-{n}": Row(HELP.decode().encode(f"utf-{n}"), "bad_json") for n in ("16", "16-le", "16-be", "32", "32-be")},
    # Nesting: MAX_DEPTH is allowed; read from the left, the first fault counts.
    **{f"{n} lists": Row(nested(n), "bad_request") for n in (MAX_DEPTH, TOO_DEEP, 330, 988, 100_000)},
    **{f"{n} objects": Row(nested(n, b'{"a":', b"}").replace(b":}", b":1}"), "bad_request") for n in (TOO_DEEP, 5000)},
    "as deep as allowed": Row(PLACES["member"] % nested(MAX_DEPTH - 1), "unknown_field", "help"),
    "an id as deep as allowed": Row(PLACES["id"] % nested(MAX_DEPTH - 1), "bad_field", "help"),
    "an observation as deep as allowed": Row(PLACES["element"] % nested(MAX_DEPTH - 2), "bad_observation", "act"),
    **{f"too deep, {place}": Row(PLACES[place] % nested(MAX_DEPTH), "bad_request") for place in list(PLACES)[1:]},
    "too deep, with an id": Row(b'{"id": 1, "op": "help", "more": ' + nested(MAX_DEPTH) + b"}", "bad_request"),
    "too deep in what a second key replaces": Row(b'{"a": ' + nested(MAX_DEPTH) + b', "a": 1}', "bad_request"),
    "lists in a list, no deeper": Row(PLACES["member"] % (b"[" + b"[],{}," * 40 + b"[]]"), "unknown_field", "help"),
    "brackets in a string": Row(PLACES["id"] % (b'"' + b"[" * 40 + b'"'), "", "help", "[" * 40),
    "brackets behind an escape": Row(PLACES["id"] % (rb'"\\\"' + b"[" * 40 + b'"'), "", "help", '\\"' + "[" * 40),
    "as deep as allowed, no end": Row(b"[" * MAX_DEPTH, "bad_json"),
    "too deep, no end": Row(b"[" * TOO_DEEP, "bad_request"),
    "far too deep, no end": Row(b"[" * 100_000, "bad_request"),
    **{f"too deep, then {end!r}": Row(b"[" * TOO_DEEP + end, "bad_request") for end in (b"x", b'"\xff', b'"\x01')},
    "a fault, then too deep": Row(b"[" * MAX_DEPTH + b"x" + b"[" * 40, "bad_json"),
    "no UTF-8, then too deep": Row(b'["\xff", ' + b"[" * 40, "bad_json"),
    "a fault in a string of brackets": Row(b'["' + b"[" * 40 + b"\x01", "bad_json"),
    # Members
    "40 members, then op": Row(b"{" + MANY + b'"op": "help"}', "unknown_field", "help"),
    "40 members, then op and id": Row(b"{" + MANY + b'"op": "help", "id": 5}', "unknown_field", "help", 5),
    "40 members, then id and op": Row(b"{" + MANY + b'"id": 5, "op": "help"}', "unknown_field", "help", 5),
    "40 members, no op": Row(b"{" + MANY + b'"id": 5}', "unknown_op", None, 5),
    "op and id, then 40 members": Row(b'{"op": "help", "id": "x", ' + MANY[:-2] + b"}", "unknown_field", "help", "x"),
    "40 times the same member": Row(b"{" + b'"op": "fly", ' * 40 + b'"op": "help"}', "", "help"),
    "two ids": Row(b'{"op": "help", "id": 1, "id": 2}', "", "help", 2),
    "two ids, the last one wrong": Row(b'{"op": "help", "id": 1, "id": 1.5}', "bad_field", "help"),
    "escapes in keys": Row(rb'{"\u006fp": "h\u0065lp", "\u0069d": 3}', "", "help", 3),
    **{
        f"key {name}": Row(b'{"op": "help", "id": 1, "%s": 1}' % key, "unknown_field", "help", 1)
        for name, key in {
            **{repr(text): text for text in (b"", b"o", b"Op", b"op ", rb"op\u0000", rb"\ud800", b"\xc3\xa9")},
            **{f"of {n} characters": b"k" * n for n in (63, 64, 65, 100_000)},
        }.items()
    },
    # Operations and their fields
    "no op": Row(b"{}", "unknown_op"),
    "no op, an id": Row(b'{"id": "7"}', "unknown_op", None, "7"),
    "unknown member of latency": Row(b'{"op": "latency", "run": 5}', "unknown_field", "latency"),
    "no precision": Row(b'{"op": "load"}', "missing_field", "load"),
    **{
        f"load {fields.decode()}": Row(b'{"op": "load", "precision": %s}' % fields, "bad_field", "load")
        for fields in (b'"int9"', b"8", b'"int8", "runtime": "tf"', b'"int8", "threads": 65')
    },
    **{
        f"runs: {runs.decode():.9}, {len(runs)}": Row(b'{"op": "latency", "runs": %s}' % runs, "bad_field", "latency")
        for runs in (b"0", b"-1", b"1e3", b"5.0", b"true", b'"5"', b"null", b"9" * 20, b"9" * 5000, b"NaN", b"[5]")
    },
    **{
        f"observation: {value.decode()}": Row(b'{"op": "act", "observation": %s}' % value, code, "act")
        for code, values in {"bad_field": (b"[]", b"5", b"{}"), "bad_observation": (b"[1.0]", b"[[1]]")}.items()
        for value in values
    },
    "no observation": Row(b'{"op": "act"}', "missing_field", "act"),
    "two kinds of observation": Row(b'{"op": "act", "observation": [1], "observations": [[1]]}', "bad_field", "act"),
    "a row that is none": Row(b'{"op": "act", "observations": [5]}', "bad_observation", "act"),
    **{
        f"episodes, {fields.decode()}": Row(b'{"op": "episodes", %s}' % fields, "bad_field", "episodes")
        for fields in (b'"seed": -1', b'"settings": [1]', b'"settings": {"wind_m_s": NaN}')
    },
}  # fmt: skip
ROWS = {**rows_of_values(), **WHOLE}
LAST = b'{"op": "help", "id": "the last line"}'


class Agent(NamedTuple):
    """An agent's command, and what it replied to each row; to the last line, which no newline ends, by None."""

    name: str
    command: list[str]
    replies: dict[str | None, list[dict[str, Any]]]


def converse(name: str, *command: object) -> Agent:
    """Send all rows, one behind the other, and behind each a line that marks its end."""
    lines = [b'{"op": "load", "precision": "int8", "runtime": "native"}']
    for number, row in enumerate(ROWS.values()):
        lines += [row.line, b'{"id": "row %d"}' % number]
    words = list(map(str, command))
    done = subprocess.run(words, input=b"\n".join([*lines, LAST]), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    loaded, *answered = map(json.loads, done.stdout.splitlines())
    assert loaded["ok"], loaded
    replies: dict[str | None, list[dict[str, Any]]] = {}
    since: list[dict[str, Any]] = []
    marks = {f"row {number}": name for number, name in enumerate(ROWS)}
    for reply in answered:
        if str(reply.get("id")) in marks:
            replies[marks[reply["id"]]], since = since, []
        else:
            since.append(reply)
    return Agent(name, words, {**replies, None: since})


@pytest.fixture(scope="module")
def in_python(pilot: Bundle) -> Agent:
    return converse("Python", sys.executable, "-m", "quarl.device.agent", "--bundle", pilot.path)


@pytest.fixture(scope="module")
def in_c(pilot: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Agent:
    pack = tmp_path_factory.mktemp("lines") / "pilot.pack"
    pack.write_bytes(packing.pack_artifact(pilot, Precision.INT8))
    return converse("C", building.agent(platform.machine()), pack)


@pytest.fixture(params=["in_python", "in_c"])
def agent(request: pytest.FixtureRequest) -> Agent:
    found: Agent = request.getfixturevalue(request.param)
    return found


def is_right(agent: str, row: Row, replies: list[dict[str, Any]]) -> bool:
    """Whether these are the replies that the table says."""
    if row.code is None or len(replies) != 1:
        return row.code is None and not replies
    (reply,) = replies
    code = "unavailable" if agent != "Python" and row.op == "episodes" else row.code
    error = reply.get("error", {"code": "", "message": "none", "next": "none"})
    found = (error["code"], reply["ok"], reply["op"], reply.get("id", ABSENT))
    helpful = error["message"] and error["next"] and (row.code == "" or len(json.dumps(reply)) < 4000)
    return bool(found == (code, not code, row.op, row.id) and type(row.id) is type(found[3]) and helpful)


def test_each_line_has_the_reply_of_the_table(agent: Agent) -> None:
    wrong = [name for name, row in ROWS.items() if not is_right(agent.name, row, agent.replies[name])]
    assert not wrong, "\n".join(f"{name}: {ROWS[name][1:]}; {str(agent.replies[name])[:400]}" for name in wrong)


def outputs(agent: Agent, value: str) -> Any:
    return agent.replies[f"element: {value}"][0]["outputs"]


def test_long_numbers_are_read_to_the_bit(agent: Agent) -> None:
    """With each of them the policy's outputs are those with the same number in three characters."""
    assert outputs(agent, "0.0") != outputs(agent, "0.1") != outputs(agent, "1.0")
    long = [name for name in LONG if name[:3] in ("0.0", "0.1", "1.0")]
    assert [name for name in long if outputs(agent, name) != outputs(agent, name[:3])] == []


def test_both_agents_decide_alike_on_what_they_accept(in_python: Agent, in_c: Agent) -> None:
    accepted = [name for name, row in ROWS.items() if row.op == "act" and row.code == ""]
    keys = ("action", "outputs")
    found = [[[agent.replies[name][0][key] for key in keys] for name in accepted] for agent in (in_python, in_c)]
    assert found[0] == found[1] and len(accepted) > 20


def test_a_last_line_without_its_newline_is_answered(agent: Agent) -> None:
    assert [reply["id"] for reply in agent.replies[None]] == ["the last line"]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_sigterm_ends_it_with_exit_status_0(agent: Agent, busy: bool) -> None:
    """Also in the middle of a measurement that would take long."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(agent.command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(b'{"op": "load", "precision": "int8", "runtime": "native"}\n')
    process.stdin.write(b'{"op": "latency", "path": "decide", "runs": 1000000}\n' if busy else b"")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["ok"] and (not busy or b"progress" in process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert b"Traceback" not in log
    assert process.returncode == 0
