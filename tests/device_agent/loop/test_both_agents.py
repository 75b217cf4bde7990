"""Every operation sent to both agents, and to the loops of both: the same keys, types and values."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quarl.device.agent import building
from quarl.device.agent.loop.client import open_socket
from quarl.device.agent.operations import OPERATIONS
from quarl.policy.bundle import Bundle
from tests.device_agent.conftest import AgentProcess
from tests.device_agent.loop.loops import PATIENCE_S, LoopProcess, in_python, until
from tests.device_agent.test_static_agent import StaticAgent

DIFFERS = {
    r"hello\.agent\.version": "each has its own",
    r"hello\.device\.(python|glibc)": "the agent in C has neither",
    r"hello\.device\.(model|mhz_nominal)": "the agent in C knows device trees and cpufreq, not DMI or Intel's names",
    r"hello\.device\.evidence": "in words of its own",
    r"hello\.(preferred_runtime|simulator)": "the agent in C has the native engine alone, and no simulator",
    r"hello\.bundle\.(path|precisions|artifacts)": "a pack has one artifact",
    r"bye\.decisions": "before it times lines, the agent in Python answers one more to see whether it can",
    r".*\.loaded\.runtime_version": "it says that there is no Python",
    r"latency\.timer\.(clock|resolution_ns)": "each names its clock",
    r"latency\.notes": "the agent in C has none",
    r"loop\.(granted|what_grants_it)": "the agent in C locks memory as it is touched; reasons in words of its own",
    r".*\.error\.(message|next)": "in words of its own; the code is the same",
}
"""Paths in replies of values that may differ, and why."""
ALONE = {
    r"hello\.runtimes\.(?!native$).*": "the agent in C has the native engine alone",
    r"help\.ops\.episodes\..*|episodes\..*": "the agent in C has no simulator",
    r"loop\.counts\.\w+\.percentiles(\..*)?": "as many as the ticks until then support",
}
"""Paths of what may be in one reply alone, and why."""
VARIES = re.compile(
    r".*(_ns|_peak|_load)(\..*)?|memory\.memory\..*|load\.memory\..*|hello\.agent\.pid|.*\.(mhz_now|load_1min)"
    r"|latency\.(percentiles\..*|p50_interval|mean|std|min|max|context_switches\..*|page_faults\..*)"
    r"|loop\.counts\..*|loop\.missed_ever"
)
"""Paths of what depends on time or process: its type is compared alone."""
OBSERVATION = [0.5] * 32
BEFORE_LOADING: list[dict[str, Any]] = [
    {"op": "help"},
    {"op": "hello", "id": 1},
    {"op": "act", "observation": OBSERVATION},
    {"op": "latency"},
    {"op": "memory"},
    {"op": "load"},
    {"op": "load", "precision": "int9"},
    {"op": "load", "precision": "int8", "runtime": "torch"},
    {"op": "load", "precision": "int8", "threads": 65},
    {"op": "land"},
    {"op": "act", "observe": []},
    {},
]
LOADED: list[dict[str, Any]] = [
    {"op": "load", "precision": "int8", "runtime": "native"},
    {"op": "hello"},
    {"op": "act", "observation": OBSERVATION, "id": "a"},
    {"op": "act", "observations": [OBSERVATION, OBSERVATION], "outputs": False},
    {"op": "act", "observation": OBSERVATION[1:]},
    {"op": "act", "observation": OBSERVATION, "observations": [OBSERVATION]},
    {"op": "act", "observations": [OBSERVATION] * 8193},
    {"op": "latency", "runs": 70, "warmup": 2},
    {"op": "latency", "runs": 12, "warmup": 0, "path": "decide"},
    {"op": "latency", "runs": 10**6 + 1},
    {"op": "latency", "path": "both"},
    {"op": "memory", "runs": 5},
    {"op": "memory"},
    {"op": "episodes", "batch": 0},
    {"op": "bye"},
]
IN_LOOP: list[dict[str, Any]] = [
    {"op": "loop"},
    {"op": "help"},
    {"op": "hello", "id": 2},
    {"op": "act", "observation": OBSERVATION},
    {"op": "act", "observations": [OBSERVATION, OBSERVATION]},
    {"op": "loop", "reset": 1},
    {"op": "memory"},
    {"op": "act", "observation": [0.5] * 2000},
    {"op": "loop", "reset": True},
]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value of a reply that is no object with members, by its path."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    else:
        yield path, value


def differences(request: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What differs between two replies, apart from what the tables above name."""
    op = str(request.get("op", "none"))
    found = []
    left, right = dict(leaves(ours, op)), dict(leaves(theirs, op))
    for path in sorted(left.keys() | right.keys()):
        if any(re.fullmatch(pattern, path) for pattern in ALONE):
            continue
        if path not in left or path not in right:
            found.append(f"{path} is only in {'C' if path in left else 'Python'}")
        elif any(re.fullmatch(pattern, path) for pattern in DIFFERS):
            continue
        elif type(left[path]) is not type(right[path]) or not (left[path] == right[path] or VARIES.fullmatch(path)):
            found.append(f"{path}: {left[path]!r} in C, {right[path]!r} in Python")
    return [f"{str(request)[:90]}: {each}" for each in found]


def test_every_operation_is_answered_alike(pilot: Bundle, pack_of: Callable[[Path], Path]) -> None:
    in_c = StaticAgent(building.agent(platform.machine()), pack_of(pilot.path))
    usual = AgentProcess(pilot.path)
    found = []
    for request in (*BEFORE_LOADING, *LOADED):
        line = json.dumps(request).encode()
        found += differences(request, in_c.raw(line), usual.send(line))
    assert {request.get("op") for request in (*BEFORE_LOADING, *LOADED)} >= OPERATIONS.keys()
    assert (in_c.end(), usual.end()) == (0, 0)
    assert not found, "\n".join(found)


def test_every_operation_of_a_loop_is_answered_alike(
    pilot: Bundle, pack_of: Callable[[Path], Path], start_any: Callable[..., LoopProcess]
) -> None:
    replies = []
    for command in ([building.agent(platform.machine()), pack_of(pilot.path), "loop"], in_python(pilot.path)):
        runtime = ("--runtime=native", "--precision=int8")
        loop = start_any(command, "--rate=50", "--priority=0", "--deadline-ms=100000", *runtime)
        loop.connect().socket.close()
        until(lambda loop=loop: loop.status()["counts"]["ticks"] > 3, "some ticks")
        answered = []
        with open_socket(loop.socket) as client:
            client.settimeout(PATIENCE_S)
            for request in IN_LOOP:
                client.send(json.dumps(request).encode())
                answered.append(json.loads(client.recv(1 << 20)))
        replies.append(answered)
    assert {request["op"] for request in IN_LOOP} >= {"loop", "help", "hello", "act"}
    found = [each for compared in zip(IN_LOOP, *replies, strict=True) for each in differences(*compared)]
    assert not found, "\n".join(found)
