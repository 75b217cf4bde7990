"""A server that stands in for AirSim: one drone of the embedded dynamics behind AirSim's RPC, on this machine only.

        quarl airsim --dialect airsim --port 41451

Without ``--realtime`` ``simContinueForTime`` takes no wall time, so that a program which steps the simulator is tried
in a moment; otherwise time passes as on a clock while it is not paused.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators

from quarl import cli
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.airsim.dialects import Dialect
from quarl.airlearning_envs.simulators.airsim.rpc import (
    AIRSIM_PORT,
    REQUEST,
    RESPONSE,
    FrameError,
    Frames,
    pack_message,
)
from quarl.airlearning_envs.simulators.airsim.stand_in import RpcFault, StandIn, Task

TICK_S = 0.02


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
                connection.sendall(pack_message([RESPONSE, number, error, result], single=True))

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


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Stand in for AirSim.

    Attributes:
        dialect: whose RPC
        port: 0 takes a free one
        stall: share of the time that simContinueForTime loses: 0 to less than 1
        speed: simulated seconds a wall second: more than 0 to 1000
        realtime: simContinueForTime takes its wall seconds
    """

    dialect: Literal["airsim", "colosseum", "cosys"] = "airsim"
    port: int = AIRSIM_PORT
    stall: Annotated[float, Parameter(metavar="SHARE", validator=validators.Number(gte=0.0, lt=1.0))] = 0.0
    speed: Annotated[float, Parameter(metavar="X", validator=validators.Number(gt=0.0, lte=1000.0))] = 1.0
    realtime: bool = False


@cli.verb(left="the server has ended.")
def serve(options: Options) -> None:
    """Stand in for AirSim with one drone of the embedded dynamics, on 127.0.0.1, until Ctrl-C.

    quarl airsim
    quarl airsim --dialect cosys --port 0 --realtime
    """
    world = StandIn(Dialect(options.dialect), speed=options.speed, stall=options.stall)
    with Server(world, options.port, options.realtime) as server:
        print(f"{options.dialect} on 127.0.0.1:{server.port}; Ctrl-C ends it.", flush=True)
        threading.Event().wait()


main = cli.of("airsim")

if __name__ == "__main__":
    raise SystemExit(main())
