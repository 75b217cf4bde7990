"""Runs on the device beside a loop that it starts: a robot's program that counts, under a load, next to cyclictest.

    python3 probe.py < {"run": "pairs", "loop": [command …], "socket": "…", "pairs": 5000, "values": [[…], …]}
    python3 probe.py < {"run": "clock", "loop": [command …], "socket": "…", "values": …, "seconds": 20, "rate": 50,
                        "load": ["stress-ng", …] or [], "cyclictest": true}

Its imports are the release's own client, the standard library and numpy. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quarl.device.agent.conditions import look
from quarl.device.agent.loop.client import Client, LoopError, open_socket, request
from quarl.device.agent.loop.frames import Header, Kind
from quarl.device.agent.measure import PERCENTILES, compute_required_runs, percentile

START_S, PRIORITY = 120.0, 40
ASKERS = "askers"
"""A load: eight programs that ask the loop for all that they can. It is named in place of a command."""
SENSORS = 2
"""Observations a period: a robot's sensors are read more often than it decides."""
SETTLE_S = 1.0
WARM_UP = 200


@contextlib.contextmanager
def open_loop(command: list[str], socket: str) -> Iterator[Client]:
    """Start a loop and connect a controller to it."""
    loop = subprocess.Popen([*command, f"--socket={Path(socket).resolve()}"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                client = Client.connect(socket)
                break
            except LoopError:
                if loop.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
        with client:
            yield client
    finally:
        loop.terminate()
        loop.wait()


@contextlib.contextmanager
def beside(command: list[str]) -> Iterator[subprocess.Popen[str] | None]:
    """Another program in a group of its own, if there is one; it is ended with all that it started."""
    if not command:
        yield None
        return
    other = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield other
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(other.pid, signal.SIGTERM)
        other.wait()


def pairs(wanted: dict[str, Any]) -> dict[str, Any]:
    """Round trips of an echo and of an observation in turn, between the same two processes over the same socket."""
    values = np.array(wanted["values"], np.float32)
    echo: list[int] = []
    answered: list[int] = []
    clock = time.monotonic_ns
    with open_loop(wanted["loop"], wanted["socket"]) as client:
        granted = be_punctual()
        connection = client.socket
        for index in range(WARM_UP + wanted["pairs"]):
            row = values[index % len(values)]
            packet = Header(Kind.ECHO, count=len(row), sequence=index).pack() + row.tobytes()
            begin = clock()
            connection.send(packet)
            connection.recv(len(packet))
            echo.append(clock() - begin)
            now = clock()
            packet = Header(Kind.OBSERVATION, 0, len(row), index, 0, now, now).pack() + row.tobytes()
            begin = clock()
            connection.send(packet)
            reply = connection.recv(65536)
            answered.append(clock() - begin)
            header = Header.read(reply)
            if header is None or header.kind is not Kind.ACTION or header.flags:
                raise SystemExit(f"no action of the policy came back: {reply[:200]!r}")
            if index == WARM_UP - 1:
                echo.clear()
                answered.clear()
                request(wanted["socket"], op="loop", reset=True)
        status = request(wanted["socket"], op="loop")
    return {
        "echo_ns": summarise(echo),
        "round_trip_ns": summarise(answered),
        "granted": granted,
        "status": status,
    }


def be_punctual() -> list[dict[str, Any]]:
    """Request a real-time priority, and freeze the garbage collector. Returns what was granted."""
    reason = ""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as error:
        reason = str(error.strerror)
    gc.collect()
    gc.freeze()
    gc.disable()
    return [{"name": f"SCHED_FIFO {PRIORITY}", "granted": not reason, "reason": reason}]


def summarise(times: list[int]) -> dict[str, Any]:
    """Count, percentiles that the count supports, and maximum; ns."""
    ordered = sorted(times)
    known = {name: share for name, share in PERCENTILES.items() if len(ordered) >= compute_required_runs(share)}
    percentiles = {name: percentile(ordered, share) for name, share in known.items()}
    return {"count": len(ordered), "percentiles": percentiles, "max": ordered[-1]}


def clock(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a loop at a fixed rate under a load, and what cyclictest finds meanwhile."""
    values = np.array(wanted["values"], np.float32)
    period_ns = round(1e9 / wanted["rate"])
    command = wanted["load"]
    if command == [ASKERS]:
        command = [sys.executable, __file__, ASKERS, wanted["socket"]]
    with open_loop(wanted["loop"], wanted["socket"]) as client, beside(command) as load:
        time.sleep(SETTLE_S)
        kernel = cyclictest(period_ns, wanted["seconds"]) if wanted["cyclictest"] else []
        with beside(kernel) as other:
            be_punctual()
            before = look()
            request(wanted["socket"], START_S, op="loop", reset=True)
            refused = drive(client, values, period_ns // SENSORS, wanted["seconds"])
            status = request(wanted["socket"], START_S, op="loop")
            after = look()
            histogram = None if other is None else histogram_of(other.communicate(timeout=START_S)[0])
        if load is not None and load.poll() is not None:
            raise SystemExit(f"the load ended by itself with status {load.returncode}")
    return {
        "status": status,
        "refused": refused,
        "cyclictest_us": histogram,
        "before": {"governor": before.governor, "throttled": vars(before.throttled) if before.throttled else None},
        "after": {"governor": after.governor, "throttled": vars(after.throttled) if after.throttled else None},
        "kernel": os.uname().release,
        "preemption": preemption(),
    }


def ask_for_all(socket: str) -> None:
    """Be eight programs that disturb a loop, each in its own way, until this one is killed."""
    row = [0.5] * 32
    ways: list[Callable[[], None]] = [
        lambda: _flood(socket, json.dumps({"op": "act", "observation": row}).encode(), reads=True),
        lambda: _flood(socket, json.dumps({"op": "act", "observations": [row] * 983}).encode(), reads=True),
        lambda: _flood(socket, b'{"op":"loop"}', reads=True),
        lambda: _flood(socket, b'{"op":"loop"}', reads=False),
        lambda: _flood(socket, Header(Kind.ECHO).pack() + bytes(60_000), reads=True),
        lambda: _flood(socket, Header(Kind.OBSERVATION, count=32).pack() + bytes(128), reads=True),
        lambda: _flood(socket, b"\xff" * 300, reads=False),
        lambda: open_socket(socket).close(),
    ]
    mine = next((way for way in ways[1:] if not os.fork()), ways[0])
    while True:
        with contextlib.suppress(OSError, LoopError):
            mine()


def _flood(path: str, packet: bytes, *, reads: bool) -> None:
    with open_socket(path) as connection:
        connection.settimeout(1.0)
        while True:
            connection.send(packet)
            if reads:
                connection.recv(1 << 20)


def drive(client: Client, values: Any, interval_ns: int, seconds: float) -> int:
    """Send observations at a fixed rate and take the actions. Returns how many the loop had no room for."""
    due, refused, index = time.monotonic_ns(), 0, 0
    end = due + round(1e9 * seconds)
    while due < end:
        due += interval_ns
        time.sleep(max(due - time.monotonic_ns(), 0) / 1e9)
        index += 1
        try:
            client.send(values[index % len(values)])
        except LoopError:
            refused += 1
        while client.receive(0.0) is not None:
            pass
    return refused


def cyclictest(period_ns: int, seconds: float) -> list[str]:
    """Its command for the same period, or nothing where it is not installed."""
    if shutil.which("cyclictest") is None:
        return []
    policy = ["--policy=fifo", f"--priority={PRIORITY + 10}"] if os.geteuid() == 0 else ["--policy=other"]
    loops = max(int(seconds * 1e9 / period_ns), 1)
    timing = [f"--interval={period_ns // 1000}", f"--loops={loops}"]
    return ["cyclictest", "--quiet", "--mlockall", "--threads=1", *policy, *timing, "--histogram=100000"]


def histogram_of(text: str) -> dict[str, Any] | None:
    """Return what cyclictest counted: latencies in µs with their counts, and the largest; None where it printed
    nothing."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\d{6} ", line)]
    buckets = [(int(row[0]), int(row[1])) for row in rows if int(row[1])]
    most = re.search(r"# Max Latencies:\s*(\d+)", text)
    return {"buckets": buckets, "max": int(most[1])} if buckets and most else None


def preemption() -> str:
    """Return how the kernel lets itself be interrupted, as it says itself; empty where it does not."""
    words = Path("/proc/version").read_text()
    match = re.search(r"PREEMPT(_\w+)?", words)
    return match[0] if match else ""


def main() -> int:
    """Return one request from standard input, one answer."""
    if sys.argv[1:2] == [ASKERS]:
        ask_for_all(sys.argv[2])
    wanted = json.load(sys.stdin)
    print(json.dumps({"pairs": pairs, "clock": clock}[wanted["run"]](wanted)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
