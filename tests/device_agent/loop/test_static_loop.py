"""The loop of the agent without Python: on three processors, under sanitizers, and what is its own."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl.device.agent import building
from quarl.device.agent.loop.client import Client, LoopError, open_socket, request
from quarl.device.agent.loop.frames import Flag, Header, Kind, release_number
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.device_agent.loop.loops import PATIENCE_S, LoopProcess, next_where, until

QUIET = ("--priority=0", "--fallback=19")
BYTES = st.binary(max_size=300)
HEADERS = st.builds(
    lambda kind, *values: Header(Kind.ECHO, *values).pack()[:4] + bytes([kind]) + Header(Kind.ECHO, *values).pack()[5:],
    st.integers(0, 6),
    st.integers(0, 255),
    st.sampled_from((0, 1, 31, 32, 33, 65535)),
    st.integers(0, 2**64 - 1),
    st.sampled_from((0, 7, 2**64 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)
PACKETS = st.one_of(
    BYTES,
    st.tuples(HEADERS, st.sampled_from((0, 4, 127, 128, 129, 66000)).flatmap(lambda n: st.just(bytes(n)))).map(
        b"".join
    ),
    st.tuples(HEADERS, st.binary(min_size=128, max_size=128)).map(b"".join),
    BYTES.map(lambda more: b"{" + more),
    st.sampled_from((b'{"op": "loop"}', b'{"op": "loop", "reset": true}', b'{"op": "loop", "reset": 1}', b'{"op": 5}')),
)


@pytest.fixture
def pack(pilot: Bundle, pack_of: Callable[[Path], Path]) -> Path:
    return pack_of(pilot.path)


def test_it_serves_on_every_processor(
    program: tuple[object, ...],
    pack: Path,
    pilot: Bundle,
    start_any: Callable[..., LoopProcess],
) -> None:
    outputs = pilot.read_expected(pilot.artifact(Precision.INT8, ArtifactFormat.NATIVE)).outputs
    arguments = ("--rate=20", "--stale-ms=60000", "--release=0007-1a2b3c4d", "--spin-us=10", "--core=0", *QUIET)
    for pace in ("clock", "observation"):
        loop = start_any([*program, pack, "loop"], *arguments, f"--pace={pace}", f"--deadline-ms={10**5}")
        with loop.connect() as client:
            assert client.release == release_number("0007-1a2b3c4d") == 0x000000071A2B3C4D
            assert client.description.period_ns == 50_000_000
            for observation, wanted in zip(pilot.golden().observations[:10], outputs, strict=False):
                sequence = client.send(observation)
                answer = next_where(client, lambda a, wanted=sequence: a.sequence == wanted)
                assert (answer.index, answer.flags & ~Flag.MISSED) == (wanted.argmax(), Flag(0))
            status = loop.status()
            assert (status["release"], status["timing"]["pace"]) == ("0007-1a2b3c4d", pace)
            assert [each["name"] for each in status["granted"]] == ["mlockall", "core 0"]
        code, log = loop.end()
        assert code == 0 and "pilot 0007-1a2b3c4d int8 in native, 20 decisions a second" in log
        assert not loop.socket.exists()


@pytest.fixture(scope="module")
def watched(
    sanitized_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pilot: Bundle,
    pack_of: Callable[[Path], Path],
) -> Iterator[LoopProcess]:
    """A loop that gcc's sanitizers watch."""
    command = [sanitized_program, pack_of(pilot.path), "loop"]
    loop = LoopProcess(
        command, tmp_path_factory.mktemp("watched") / "loop.sock", "--rate=200", "--priority=0", "--fallback=19"
    )
    try:
        loop.connect().socket.close()
        yield loop
        code, log = loop.end()
        assert code == 0, log
    finally:
        loop.process.kill()
        loop.process.wait()


@settings(max_examples=300, deadline=None)
@given(packets=st.lists(PACKETS, max_size=20), controls=st.booleans(), closes=st.booleans())
def test_any_packets_do_no_harm(watched: LoopProcess, packets: list[bytes], controls: bool, closes: bool) -> None:
    def opened() -> socket.socket | None:
        try:
            return open_socket(watched.socket)
        except LoopError:
            assert watched.process.poll() is None, watched.process.communicate()
            return None

    with until(opened, "a connection") as client:
        client.setblocking(False)
        with contextlib.suppress(OSError):
            for packet in (Header(Kind.HELLO).pack(), *packets) if controls else packets:
                client.send(packet)
        if not closes:
            with contextlib.suppress(OSError):
                for _ in range(5):
                    client.recv(262_144)

    def answered() -> bool:
        assert watched.process.poll() is None, watched.process.communicate()
        try:
            return bool(request(watched.socket, PATIENCE_S, op="loop")["ok"])
        except LoopError:  # eight connections, or a request that was one too many
            return False

    assert until(answered, "an answer")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--rate=0",), "'0'; allowed is a number from 0.01 to 2000"),
        (("--rate=nan",), "'nan'; allowed is a number"),
        (("--stale-ms=1e7",), "allowed is a number from 0.01 to 1000000"),
        (("--hold-for-ms=0",), "'0'; allowed is a number from 0.01 to 1000000"),
        (("--priority=100",), "allowed is an integer from 0 to 99"),
        (("--priority=-1",), "allowed is an integer from 0 to 99"),
        (("--spin-us=1.5",), "allowed is an integer from 0 to 1000000"),
        (("--threads=0",), "allowed is an integer from 1 to 64"),
        (("--pace=often",), "'often'; allowed is one of clock, observation"),
        (("--on-miss=",), "allowed is one of hold, fallback, stop"),
        (("--fallback=1,,2",), "allowed is an action's index, or numbers"),
        (("--precision=int9",), "'int9'; allowed is one of fp32"),
        (("--runtime=torch",), f"'torch'; allowed is one of {', '.join(each.value for each in RuntimeName)}"),
        (("--socket=III.sock",), "allowed is a whole path"),
        (("--rate",), "argument --rate: a value is missing"),
        (("--speed=50",), "unrecognized argument: --speed"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(
    pack: Path, start_any: Callable[..., LoopProcess], arguments: tuple[str, ...], why: str
) -> None:
    refused = start_any([building.agent(platform.machine()), pack, "loop"], *arguments)
    _, log = refused.process.communicate(timeout=PATIENCE_S)
    assert refused.process.returncode == 2 and why in log, log


def test_an_abstract_supervisor_hears_it_and_a_folder_is_made(pack: Path, tmp_path: Path) -> None:
    name = f"quarl-test-{os.getpid()}"
    path = tmp_path / "made" / ("long" * 30) / "loop.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(f"\0{name}")
        supervisor.settimeout(PATIENCE_S)
        command = [str(building.agent(platform.machine())), str(pack), "loop", f"--socket={path}"]
        command += ["--fallback=3", "--priority=0"]
        heard = {**os.environ, "NOTIFY_SOCKET": f"@{name}"}
        with subprocess.Popen(command, env=heard, stderr=subprocess.DEVNULL) as process:
            assert supervisor.recv(4096).startswith(b"READY=1")
            assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
            with Client.connect(path) as client:
                assert client.receive(PATIENCE_S) is not None
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
