"""A server that stands in for AirSim: one drone of the embedded dynamics behind AirSim's RPC, on this machine only.

    python -m airlearning_envs.simulators.airsim.server --dialect airsim --port 41451

Without ``--realtime`` ``simContinueForTime`` takes no wall time, so that a program which steps the simulator is tried
in a moment; otherwise time passes as on a clock while it is not paused.
"""

from __future__ import annotations

if __name__ == "__main__":
    from quarl.policy import interruption, project_python

    project_python.ensure()
    interruption.loading()

import argparse
import contextlib
import socket
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.airsim.dialects import Dialect
from quarl.airlearning_envs.simulators.airsim.rpc import AIRSIM_PORT, REQUEST, RESPONSE, FrameError, Frames, packed
from quarl.airlearning_envs.simulators.airsim.stand_in import RpcFault, StandIn, Task
from quarl.policy import interruption

TICK_S = 0.02
EXIT_WRONG = 2


class Server:
    """Serves a world on 127.0.0.1 from threads of its own, while it is open as a context.

    Args:
        world: what is called.
        port: where to listen; 0 takes a free one.
        realtime: ``simContinueForTime`` answers after the wall seconds it was given.

    Attributes:
        port: where it listens.

    Raises:
        SettingsError: the port is taken.
    """

    def __init__(self, world: StandIn, port: int = 0, realtime: bool = False) -> None:
        self._world, self._realtime = world, realtime
        try:
            self._listening = socket.create_server(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise SettingsError(f"port {port} cannot be had: {error}; --port 0 takes a free one.") from None
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()

    def __enter__(self) -> Server:
        for target in (self._accept, self._tick):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):  # wakes accept
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                connection, _ = self._listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(connection)
                threading.Thread(target=self._converse, args=[connection], daemon=True).start()

    def _tick(self) -> None:
        """Time passes while it is not paused; a machine under load makes it slower."""
        while not self._ended.wait(TICK_S):
            with self._world.lock:
                if not self._world.paused:
                    self._world.advance(TICK_S * self._world.speed)

    def _converse(self, connection: socket.socket) -> None:
        """Answer one client until it hangs up or sends what is no msgpack-rpc."""
        sending = threading.Lock()

        def answer(number: Any, error: str | None, result: Any) -> None:
            with sending, contextlib.suppress(OSError):
                connection.sendall(packed([RESPONSE, number, error, result], single=True))

        frames = Frames()
        with connection, contextlib.suppress(OSError, FrameError):
            while data := connection.recv(1 << 16):
                for message in frames.feed(data):
                    if message[0] == REQUEST and len(message) == 4:
                        self._answer(message, answer)
        self._open.discard(connection)

    def _answer(self, message: list[Any], answer: Any) -> None:
        _, number, method, params = message
        if not isinstance(method, str) or not isinstance(params, list):
            return
        try:
            result = self._world.call(method, params)
        except RpcFault as fault:
            answer(number, str(fault), None)
            return
        if self._realtime and method == "simContinueForTime":
            self._ended.wait(params[0])
        if isinstance(result, Task):
            result.then(lambda whole: answer(number, None, whole))
        else:
            answer(number, None, result)


def _share(text: str) -> float:
    if not 0.0 <= (value := float(text)) < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no share; allowed is 0 to less than 1")
    return value


def _speed(text: str) -> float:
    if not 0.0 < (value := float(text)) <= 1000.0:
        raise argparse.ArgumentTypeError(f"{text} is no speed; allowed is more than 0 to 1000")
    return value


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m airlearning_envs.simulators.airsim.server",
        description="Stand in for AirSim with one drone of the embedded dynamics, on 127.0.0.1, until Ctrl-C.",
    )
    names = [dialect.value for dialect in Dialect]
    parser.add_argument("--dialect", choices=names, default=names[0], help="whose RPC (default: airsim)")
    parser.add_argument("--port", type=int, default=AIRSIM_PORT, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--stall", type=_share, default=0.0, metavar="SHARE", help="of the time that simContinueForTime loses"
    )
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X", help="simulated seconds a wall second")
    parser.add_argument("--realtime", action="store_true", help="simContinueForTime takes its wall seconds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        with interruption.interruptible():
            world = StandIn(Dialect(arguments.dialect), speed=arguments.speed, stall=arguments.stall)
            with Server(world, arguments.port, arguments.realtime) as server:
                print(f"{arguments.dialect} on 127.0.0.1:{server.port}; Ctrl-C ends it.", flush=True)
                threading.Event().wait()
    except SettingsError as error:
        print(f"server: {error}\n  next: {parser.prog} --help", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        print("server: ended.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
