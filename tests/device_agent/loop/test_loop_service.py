"""The loop as a process: what it decides, what it falls back from, and what it does when something is wrong.

Both agents serve in one, in Python and without it, and what is written here holds of either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.bench.loop_timing import probe
from quarl.device.agent import building
from quarl.device.agent import loop as loop_package
from quarl.device.agent.loop.client import Client, LoopError, open_socket, receive, request
from quarl.device.agent.loop.frames import Flag, Header, Kind
from quarl.policy.bundle import Bundle
from quarl.policy.spec import STILL_SCALE
from tests.device_agent.loop import loops
from tests.device_agent.loop.loops import FALLBACK, PATIENCE_S, LoopProcess, in_python, next_where, until

StartLoop = Callable[..., Any]
ActionsOf = Callable[[Bundle], Any]
EVENT = ("--pace=observation", "--rate=0.1", "--priority=0")
CLOCK = ("--pace=clock", "--rate=50", "--priority=0")


def test_each_observation_is_answered_with_the_policys_action(
    kind: loops.Kind, start_loop: StartLoop, actions_of: ActionsOf, pilot: Bundle
) -> None:
    observations, actions = pilot.golden().observations[:40], actions_of(pilot)[:40]
    with start_loop(pilot.path, f"--precision={kind.exact.value}", *EVENT).connect() as client:
        assert (client.description.observation_size, client.description.output_size) == (32, 25)
        assert client.description.period_ns == 10_000_000_000
        for observation, action in zip(observations, actions, strict=True):
            sequence = client.send(observation)
            answer = next_where(client, lambda a, wanted=sequence: a.sequence == wanted)
            assert (answer.flags, answer.index) == (Flag(0), action)
            assert answer.observed_ns < answer.sent_ns


def test_a_continuous_policys_action_is_its_outputs(
    kind: loops.Kind, start_loop: StartLoop, actions_of: ActionsOf, gliding: Bundle
) -> None:
    observations, wanted = gliding.golden().observations, actions_of(gliding)
    fallback = ",".join(["0"] * gliding.spec.output_size)
    loop = start_loop(gliding.path, f"--precision={kind.exact.value}", f"--fallback={fallback}", *EVENT)
    with loop.connect() as client:
        client.send(observations[3])
        answer = next_where(client, lambda a: a.sequence == 1)
        assert (answer.index, answer.flags) == (-1, Flag(0))
        assert len(answer.outputs) == gliding.spec.output_size
        assert np.abs(np.array(answer.outputs) - wanted[3]).max() < 1e-4


def test_fallback_before_the_first_and_after_the_last_observation(start_loop: StartLoop, pilot: Bundle) -> None:
    with start_loop(pilot.path, *CLOCK, "--stale-ms=1000").connect() as client:
        first = client.receive(PATIENCE_S)
        assert first is not None
        assert first.flags & (Flag.STALE | Flag.FALLBACK) == Flag.STALE | Flag.FALLBACK
        assert (first.index, first.sequence, first.observed_ns) == (FALLBACK, 0, 0)
        client.send(pilot.golden().observations[0])
        next_where(client, lambda a: a.sequence == 1 and not a.flags & Flag.FALLBACK)
        stale = next_where(client, lambda a: a.sequence == 1 and bool(a.flags & Flag.STALE))
        assert stale.index == FALLBACK


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_brings_the_fallback(start_loop: StartLoop, pilot: Bundle, bad: float) -> None:
    with start_loop(pilot.path, *EVENT).connect() as client:
        observation = pilot.golden().observations[0].copy()
        observation[5] = bad
        client.send(observation)
        answer = next_where(client, lambda a: a.sequence == 1)
        assert answer.flags & (Flag.NON_FINITE | Flag.FALLBACK) == Flag.NON_FINITE | Flag.FALLBACK
        assert answer.index == FALLBACK


def test_stale_future_and_foreign_observations_give_the_fallback(start_loop: StartLoop, pilot: Bundle) -> None:
    golden = pilot.golden().observations[0]
    with start_loop(pilot.path, *EVENT, "--stale-ms=20000").connect() as client:
        for observed_ns in (time.monotonic_ns() - 10**11, time.monotonic_ns() + 10**11):
            sequence = client.send(golden, observed_ns)
            answer = next_where(client, lambda a, wanted=sequence: a.sequence == wanted)
            assert answer.flags & Flag.STALE and answer.index == FALLBACK
        client.release = 7
        sequence = client.send(golden)
        answer = next_where(client, lambda a, wanted=sequence: a.sequence == wanted)
        assert answer.flags & Flag.WRONG_RELEASE and answer.index == FALLBACK


def test_an_element_that_never_moved_in_training_is_counted_when_it_moves(
    start_loop: StartLoop, make: Callable[..., Bundle], pilot: Bundle, tmp_path: Path
) -> None:
    spec, still = pilot.spec, 3
    mean, scale = list(spec.normaliser.mean), list(spec.normaliser.scale)
    mean[still], scale[still] = 5.0, STILL_SCALE
    normaliser = dataclasses.replace(spec.normaliser, mean=tuple(mean), scale=tuple(scale))
    bundle = make(tmp_path / "still", dataclasses.replace(spec, normaliser=normaliser), pilot.weights())
    observation = pilot.golden().observations[0].copy()
    loop = start_loop(bundle.path, *EVENT)
    with loop.connect() as client:
        found = []
        for value in (5.0, 5.005, 5.0):
            observation[still] = value
            wanted = client.send(observation)
            answer = next_where(client, lambda a, wanted=wanted: a.sequence == wanted)
            found.append((answer.flags, answer.index))
        assert [flags for flags, _ in found] == [Flag(0), Flag.UNTRAINED, Flag(0)]
        assert len({index for _, index in found}) == 1
        assert loop.status()["counts"]["untrained"] == 1


def test_one_controller_at_a_time_and_errors_in_json(start_loop: StartLoop, pilot: Bundle) -> None:
    loop = start_loop(pilot.path, *CLOCK)
    with loop.connect() as client:
        with pytest.raises(LoopError, match="another controller is connected"):
            Client.connect(loop.socket)
        with pytest.raises(LoopError, match="not answered within a loop"):
            request(loop.socket, PATIENCE_S, op="episodes")
        with pytest.raises(LoopError, match="not valid JSON"), open_socket(loop.socket) as other:
            other.send(b"{oops")
            reply = json.loads(receive(other, PATIENCE_S))
            assert not reply["ok"]
            raise LoopError(reply["error"]["message"])
        with open_socket(loop.socket) as other:
            echo = Header(Kind.ECHO, sequence=3).pack() + b"anything"
            other.send(echo)
            assert receive(other, PATIENCE_S) == echo
            other.send(b"no frame at all")
            assert json.loads(receive(other, PATIENCE_S))["error"]["code"] == "bad_request"
        client.socket.send(Header(Kind.OBSERVATION, count=5).pack() + bytes(20))
        with pytest.raises(LoopError, match="48 bytes and 32 float32 values"):
            next_where(client, lambda a: False)
        row = pilot.golden().observations[0].tolist()
        assert request(loop.socket, PATIENCE_S, op="act", observation=row)["action"] in range(25)
        assert request(loop.socket, PATIENCE_S, op="hello")["loaded"]["precision"] == "int8"
        assert loop.status()["malformed"] >= 2
    with loop.connect() as again:  # the first one has gone
        assert again.receive(PATIENCE_S) is not None


@pytest.mark.parametrize("rows", [2, 983])
def test_a_batch_is_refused_within_a_loop_and_one_observation_is_answered(
    start_loop: StartLoop, pilot: Bundle, rows: int
) -> None:
    loop = start_loop(pilot.path, *EVENT)
    loop.connect().socket.close()
    with open_socket(loop.socket) as other:
        for code, request_of in (
            ("unavailable", {"op": "act", "observations": [[0] * 32] * rows}),
            ("unavailable", {"op": "help", "id": "long" * 500}),
            (None, {"op": "act", "observations": [[0] * 32]}),
            (None, {"op": "act", "observation": [-0.12345678901234567] * 32}),
            (None, {"op": "hello", "id": 7}),
        ):
            other.send(json.dumps(request_of, separators=(",", ":")).encode())
            reply = json.loads(receive(other, PATIENCE_S))
            assert reply.get("error", {}).get("code") == code, reply
        assert (reply["id"], reply["loaded"]["precision"]) == (7, "int8")
        other.send(b'{"op":"hello","more":1}')
        assert json.loads(receive(other, PATIENCE_S))["error"]["code"] == "unknown_field"


def test_a_client_that_never_reads_and_one_that_floods_stop_nothing(start_loop: StartLoop, pilot: Bundle) -> None:
    loop = start_loop(pilot.path, "--pace=clock", "--rate=500", "--priority=0")
    with loop.connect() as client:  # never reads: its buffer fills up, and frames are lost and counted
        until(lambda: loop.status()["unread"] > 0, "a frame that was not read")
        observation = pilot.golden().observations[0]
        client.socket.setblocking(False)
        refused = 0
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            try:
                client.send(observation)
            except LoopError:
                refused += 1
        assert refused > 0  # the kernel stops whoever sends too much, not the loop
        before = loop.status()["counts"]["ticks"]
        assert until(lambda: loop.status()["counts"]["ticks"] > before + 100, "ticks")
        memory = int(Path(f"/proc/{loop.process.pid}/statm").read_text().split()[1])
        for _ in range(200):
            with contextlib.suppress(LoopError, OSError), open_socket(loop.socket) as other:
                other.setblocking(False)
                other.send(b'{"op":"loop"}')  # and does not wait for the reply, or is refused as the ninth
        assert int(Path(f"/proc/{loop.process.pid}/statm").read_text().split()[1]) < memory + 2000  # pages
        assert until(lambda: _status(loop), "a connection that is let in")["controller"]


def test_connections_that_say_nothing_keep_nobody_out_and_are_closed(start_loop: StartLoop, pilot: Bundle) -> None:
    loop = start_loop(pilot.path, *CLOCK)
    loop.connect().socket.close()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(open_socket(loop.socket)) for _ in range(8)]
        until(lambda: loop.status()["controller"] is False, "the first controller's end")
        with loop.connect() as client:  # in the place that is kept for a controller
            assert client.receive(PATIENCE_S) is not None
            assert loop.status()["controller"] is True  # in the place that is kept for a request
            with open_socket(loop.socket) as other:  # what such a place is not for is refused in JSON
                other.send(Header(Kind.ECHO).pack())
                assert json.loads(receive(other, PATIENCE_S))["error"]["code"] == "unavailable"
            with pytest.raises(LoopError, match="another controller"):
                Client.connect(loop.socket)
            for connection in silent:
                with pytest.raises(LoopError, match="closed"):
                    receive(connection, PATIENCE_S)
            assert client.receive(PATIENCE_S) is not None


def test_others_that_ask_for_all_they_can_do_not_stop_the_loop(start_loop: StartLoop, pilot: Bundle) -> None:
    loop = start_loop(pilot.path, *CLOCK, "--deadline-ms=100000")
    with loop.connect() as client:
        askers = subprocess.Popen(
            [sys.executable, probe.__file__, probe.ASKERS, loop.socket], stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            client.send(pilot.golden().observations[0])
            until(lambda: loop.status()["malformed"] > 20, "the flood")
            before = loop.status(reset=True)["counts"]["ticks"]
            assert before > 0 and askers.poll() is None
            until(lambda: loop.status()["counts"]["ticks"] > 25, "half a second of ticks")
            assert client.receive(PATIENCE_S) is not None
        finally:
            os.killpg(askers.pid, signal.SIGKILL)
            askers.communicate()


def test_an_action_is_held_only_for_a_while(start_loop: StartLoop, pilot: Bundle) -> None:
    always_late = ("--deadline-ms=0.01", "--hold-for-ms=200", "--stale-ms=60000")
    loop = start_loop(pilot.path, *CLOCK, *always_late)
    with loop.connect() as client:
        client.send(pilot.golden().observations[0])
        over = next_where(client, lambda a: a.sequence == 1 and a.flags == Flag.MISSED | Flag.FALLBACK)
        assert over.index == FALLBACK
        found = loop.status()
    assert found["timing"]["hold_ns"] == 200_000_000
    assert 1 <= found["counts"]["hold_expired"] <= found["counts"]["fallback"]


@pytest.mark.parametrize("on_miss", ["hold", "hold-for", "fallback", "stop"])
def test_a_loop_that_was_stopped_for_a_while_skips_what_it_missed(
    start_loop: StartLoop, pilot: Bundle, on_miss: str
) -> None:
    # An action is held for 5 periods, 100 ms, where nothing else is named: not after a second.
    missing = ["--on-miss=hold"] if on_miss == "hold-for" else [f"--on-miss={on_miss}", "--hold-for-ms=60000"]
    loop = start_loop(pilot.path, *CLOCK, "--stale-ms=60000", "--deadline-ms=400", *missing)
    with loop.connect() as client:
        client.send(pilot.golden().observations[0])
        decided = next_where(client, lambda a: a.sequence == 1 and not a.flags)
        begun = time.monotonic()  # before the counts begin again
        until(lambda: loop.status(reset=True), "a fresh count")
        loop.process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # what is tested is that this long pass unserved
        loop.process.send_signal(signal.SIGCONT)
        late = next_where(client, lambda a: bool(a.flags & Flag.MISSED))
        if on_miss == "stop":
            _, log = loop.process.communicate(timeout=PATIENCE_S)
            assert loop.process.returncode == 75
            assert "--on-miss stop" in log
            return
        counts = loop.status()["counts"]
        assert counts["skipped"] >= 20
        if counts["late"]:  # as a rule: else it was stopped between an action's being ready and its being written
            assert late.flags & (Flag.HELD if on_miss == "hold" else Flag.FALLBACK)
            assert late.index == (decided.index if on_miss == "hold" else FALLBACK)
            assert counts["hold_expired"] == (on_miss == "hold-for")
        assert next_where(client, lambda a: not a.flags).index == decided.index  # on time again
        # Ticks and skipped ones together are the periods that passed: no tick is served twice or later.
        assert counts["ticks"] + counts["skipped"] <= (time.monotonic() - begun) * 50 + 2


def test_a_supervisor_hears_ready_heartbeats_and_the_end(start_loop: StartLoop, pilot: Bundle, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE_S)
        heard = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        loop = start_loop(pilot.path, *CLOCK, environment={**os.environ, **heard})
        assert supervisor.recv(4096).startswith(b"READY=1\nSTATUS=pilot (no release) int8")
        assert loop.socket.exists()
        assert [supervisor.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        code, _ = loop.end()
        messages = [supervisor.recv(4096)]
        while messages[-1] == b"WATCHDOG=1":
            messages.append(supervisor.recv(4096))
        assert messages[-1].startswith(b"STOPPING=1") and code == 0
        assert not loop.socket.exists()


def test_what_cannot_be_served_is_refused_before_the_socket_listens(start_loop: StartLoop, pilot: Bundle) -> None:
    for arguments, why in (
        (("--fallback=25",), "fallback is (25.0,)"),
        (("--fallback=1,2",), "fallback is (1.0, 2.0)"),
        (("--precision=int4",), "int4"),
    ):
        refused = start_loop(pilot.path, *arguments)
        _, log = refused.process.communicate(timeout=PATIENCE_S)
        assert refused.process.returncode == 1 and why in log and not refused.socket.exists()
    first = start_loop(pilot.path, *CLOCK)
    first.connect().socket.close()
    second = start_loop(pilot.path, f"--socket={first.socket}")
    _, log = second.process.communicate(timeout=PATIENCE_S)
    assert second.process.returncode == 1 and "another loop listens" in log
    first.connect().socket.close()  # and the first one still serves
    first.process.kill()
    first.process.wait()
    with start_loop(pilot.path, f"--socket={first.socket}", *CLOCK).process:  # a dead loop's socket is taken over
        until(lambda: _listens(first.socket), "the second loop")
        os.kill(int(request(first.socket, PATIENCE_S, op="hello")["agent"]["pid"]), signal.SIGTERM)


def test_an_artifact_that_was_changed_is_not_served(
    start_any: StartLoop, pack_of: Callable[[Path], Path], pilot: Bundle, copied: Path, tmp_path: Path
) -> None:
    artifact = copied / "int8.tflite"
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"\x01")
    data = bytearray(pack_of(pilot.path).read_bytes())
    data[int.from_bytes(data[16:20], "little") + 300] ^= 1
    (tmp_path / "changed.pack").write_bytes(data)
    static = [building.agent(platform.machine()), tmp_path / "changed.pack", "loop"]
    for command, why in ((in_python(copied), "int8.tflite"), (static, "its hash is another")):
        refused = start_any(command)
        _, log = refused.process.communicate(timeout=PATIENCE_S)
        assert refused.process.returncode == 1 and why in log and not refused.socket.exists()


def _status(loop: LoopProcess) -> dict[str, Any] | None:
    try:
        return loop.status()
    except LoopError:
        return None


def _listens(path: Path) -> bool:
    try:
        open_socket(path).close()
    except LoopError:
        return False
    return True


C_ROBOT = """
#include <stdio.h>
#include <stdlib.h>
#include "quarl_loop.h"
int main(int argc, char **argv) {
  static struct quarl_action action;
  struct quarl_description found;
  int loop = quarl_connect(argv[1], &found);
  if (loop < 0) return perror("quarl_connect"), 1;
  float values[256];
  for (unsigned i = 0; i < found.observation_size; i++) values[i] = strtof(argv[2 + i], 0);
  if (quarl_send(loop, values, found.observation_size, 41, quarl_now()) < 0) return perror("quarl_send"), 1;
  while (quarl_receive(loop, &action, 60000) == 1)
    if (action.head.sequence == 41)
      return printf("%d %d %d %g\\n", action.head.action, action.head.flags, action.head.count, action.outputs[0]), 0;
  return perror("quarl_receive"), 1;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
def test_a_robots_program_in_c_is_answered_as_one_in_python(
    kind: loops.Kind, start_loop: StartLoop, pilot: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "robot.c").write_text(C_ROBOT)
    include = Path(loop_package.__file__).parent
    command = ["gcc", "-Wall", "-Werror", f"-I{include}", "robot.c", "-o", "robot"]
    subprocess.run(command, cwd=tmp_path, check=True)
    loop = start_loop(pilot.path, f"--precision={kind.exact.value}", *EVENT)
    observation = pilot.golden().observations[7]
    with loop.connect() as client:
        client.send(observation)
        wanted = next_where(client, lambda a: a.sequence == 1)
    until(lambda: not loop.status()["controller"], "the first controller's end")
    values = [f"{value:.9g}" for value in observation.tolist()]
    done = subprocess.run([tmp_path / "robot", loop.socket.name, *values], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index, flags, count, first = done.stdout.split()
    assert (int(index), int(flags), int(count)) == (wanted.index, 0, 25)
    assert float(first) == pytest.approx(float(wanted.outputs[0]), rel=1e-4)
