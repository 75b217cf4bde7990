"""Our side of msgpack-rpc: what is wrong is told apart, and nothing harmful gets in."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")

import msgpack

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.airsim.rpc import (
    ConnectionLostError,
    FrameError,
    Frames,
    NoAnswerError,
    NotReachableError,
    NotRpcError,
    Rpc,
    RpcError,
    pack_message,
)
from quarl.airlearning_envs.simulators.airsim.stand_in import Server, StandIn, main


@contextmanager
def peer(answers: Callable[[bytes], bytes | None]) -> Iterator[int]:
    """Somebody who answers each piece that comes, or hangs up; its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def converse() -> None:
        connection, _ = listening.accept()
        with connection:
            while data := connection.recv(4096):
                if (answer := answers(data)) is None:
                    return
                connection.sendall(answer)

    thread = threading.Thread(target=converse, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NotReachableError, match=rf"127\.0\.0\.1:{port}: .*airsim --port {port}") as caught:
        Rpc(port=port, timeout_s=30.0)
    assert isinstance(caught.value, SettingsError)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\xc1\xc1",
        pack_message([7, 1, None, None]),
        pack_message([[1]]),
    ],
    ids=["http", "ssh", "broken", "type", "short"],
)
def test_who_speaks_no_msgpack_rpc(garbage: bytes) -> None:
    with (
        peer(lambda _: garbage) as port,
        Rpc(port=port, timeout_s=30.0) as rpc,
        pytest.raises(NotRpcError, match="ApiServerPort"),
    ):
        rpc.call("ping")


def test_a_closed_connection() -> None:
    with (
        peer(lambda _: None) as port,
        Rpc(port=port, timeout_s=30.0) as rpc,
        pytest.raises(ConnectionLostError, match="closed the connection during ping"),
    ):
        rpc.call("ping")
    with Server(StandIn()) as server:
        rpc = Rpc(port=server.port, timeout_s=30.0)
        assert rpc.call("ping") is True
    with pytest.raises(ConnectionLostError):
        rpc.call("ping")
    rpc.close()


def test_no_answer_in_time() -> None:
    with peer(lambda _: b"") as port, Rpc(port=port, timeout_s=0.1) as rpc, pytest.raises(NoAnswerError, match="ping"):
        rpc.call("ping")


def test_answers_in_any_order_in_pieces_and_notifications_between() -> None:
    requests: list[int] = []

    def answers(data: bytes) -> bytes:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data)
        requests.extend(message[1] for message in unpacker)
        if len(requests) < 2:
            return b""
        both: list[list[object]] = [
            [1, requests[1], None, "second"],
            [2, "news", []],
            [1, 99, None, "nobody's"],
            [1, requests[0], None, "first"],
        ]
        return b"".join(pack_message(each) for each in both)

    with peer(answers) as port, Rpc(port=port, timeout_s=30.0) as rpc:
        first, second = rpc.send("one", np.float32(0.5), np.bool_(True)), rpc.send("two")
        assert rpc.wait(first) == "first" and rpc.has_answer(second) and rpc.wait(second) == "second"


def test_frames_in_pieces_and_their_limit() -> None:
    data, frames = pack_message([1, 1, None, list(range(300))]), Frames(1 << 12)
    assert [message for k in range(len(data)) for message in frames.feed(data[k : k + 1])] == [
        [1, 1, None, list(range(300))]
    ]
    with pytest.raises(FrameError):
        list(Frames(1 << 12).feed(pack_message([1, 1, None, "x" * 5000])))
    with pytest.raises(FrameError):
        list(Frames().feed(b"\x94\x01\x01\xc0\xdd\xff\xff\xff\xff"))  # a list of 4 billion


def test_the_servers_own_words() -> None:
    with Server(StandIn()) as server, Rpc(port=server.port, timeout_s=30.0) as rpc:
        with pytest.raises(RpcError, match="AirSim refused fly: rpclib: server could not find") as caught:
            rpc.call("fly")
        assert caught.value.text.startswith("rpclib:")
        with pytest.raises(TypeError, match="does not travel"):
            rpc.call("ping", object())
        assert rpc.call("ping") is True


def test_the_server_outlives_a_client_that_sends_garbage() -> None:
    with Server(StandIn()) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as garbled:
            garbled.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert garbled.recv(1) == b"", "it is hung up on"
        with Rpc(port=server.port, timeout_s=30.0) as rpc:
            assert rpc.call("ping") is True


def test_the_command_says_its_port_and_ends_with_ctrl_c() -> None:
    command = [
        sys.executable,
        "-m",
        "quarl.airlearning_envs.simulators.airsim.stand_in",
        "--dialect",
        "cosys",
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell's background jobs inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        with Rpc(port=int(line.split(":")[1].split(";")[0]), timeout_s=30.0) as rpc:
            assert rpc.call("getServerVersion") == 4
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60.0)[1] == "interrupted; the server has ended.\n"
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with Server(StandIn()) as server:
        assert main(["--port", str(server.port)]) == 2
    assert "--port 0" in capsys.readouterr().err
