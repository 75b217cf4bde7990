"""The ways to a server: AirSim's own Python client in a process of its own, or the project's RPC, in any dialect.

``airsim`` (for AirSim) and ``cosysairsim`` (for Cosys-AirSim) are used where ``make airsim`` has installed them;
Colosseum's structs are arrays, which no client of these sends, so it is spoken to directly.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import os
import selectors
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.airsim.dialects import BadCastError, Dialect, decode, detect, encode, fields_of
from quarl.airlearning_envs.simulators.airsim.rpc import (
    AIRSIM_PORT,
    AirSimError,
    ConnectionLostError,
    NoAnswerError,
    NotRpcError,
    Rpc,
    RpcError,
)
from quarl.policy.places import PROJECT_ROOT

Kind = TypeVar("Kind")

CLIENTS_PYTHON = PROJECT_ROOT / ".venv-airsim" / "bin" / "python"
"""The Python that ``make airsim`` makes."""
PACKAGES = {Dialect.AIRSIM: "airsim", Dialect.COSYS: "cosysairsim"}
AUTO, OWN, THEIRS = CLIENTS = ("auto", "own", "theirs")
"""Which client to use: theirs where it is installed, the project's, or theirs and nothing else."""
_START_S = 60.0


class Link(ABC):
    """Calls to a server.

    Attributes:
        dialect: its own.
        through: in words, which client it is.
    """

    dialect: Dialect
    through: str

    @abstractmethod
    def call(self, kind: type[Kind], method: str, *args: Any) -> Kind:
        """Return the answer as a struct, list, number or text.

        Raises:
            RpcError: the server refuses.
            AirSimError: there is no answer, or another one than expected.
        """

    @abstractmethod
    def start(self, method: str, *args: Any) -> int:
        """Send a move and do not wait for its end; what :meth:`answer` takes. Only the last one is kept."""

    @abstractmethod
    def answer(self, number: int) -> bool | None:
        """Return the answer to a move, or None while it is under way."""

    @abstractmethod
    def close(self) -> None:
        """Hang up."""

    def _decode_answer(self, kind: type[Kind], method: str, value: Any) -> Kind:
        if kind is type(None):  # whatever it says
            return None
        try:
            return decode(kind, value, self.dialect)
        except BadCastError:
            raise AirSimError(
                f"{method} answered {str(value)[:60]!r}, which is no {kind.__name__} of {self.dialect.value}. Leave "
                "the dialect out: it is detected."
            ) from None


class OwnLink(Link):
    """The project's own RPC."""

    def __init__(self, rpc: Rpc, dialect: Dialect) -> None:
        self._rpc, self.dialect = rpc, dialect
        self._started: int | None = None
        self.through = "the project's own client"

    def call(self, kind: type[Kind], method: str, *args: Any) -> Kind:  # noqa: D102
        return self._decode_answer(kind, method, self._rpc.call(method, *self._encode_arguments(args)))

    def start(self, method: str, *args: Any) -> int:  # noqa: D102
        if self._started is not None:
            self._rpc.forget(self._started)
        self._started = self._rpc.send(method, *self._encode_arguments(args))
        return self._started

    def answer(self, number: int) -> bool | None:  # noqa: D102
        return bool(self._rpc.wait(number)) if self._rpc.has_answer(number) else None

    def close(self) -> None:  # noqa: D102
        self._rpc.close()

    def _encode_arguments(self, args: tuple[Any, ...]) -> list[Any]:
        return [encode(argument, self.dialect) for argument in args]


class ClientLink(Link):
    """AirSim's own client behind a pipe (:mod:`airlearning_envs.simulators.airsim.bridge`).

    Args:
        rpc: a connection to the same server, on which its end shows at once.
        dialect: one of :data:`PACKAGES`.
        host, port: of the server.
        timeout_s: an answer comes within this time.
    """

    def __init__(self, rpc: Rpc, dialect: Dialect, host: str, port: int, timeout_s: float) -> None:
        self._rpc, self.dialect, self._timeout_s = rpc, dialect, timeout_s
        self._numbers = itertools.count(1)
        package = PACKAGES[dialect]
        command = [str(CLIENTS_PYTHON), "-I", str(Path(__file__).with_name("bridge.py"))]
        self._process = subprocess.Popen(
            [*command, package, host, str(port), f"{timeout_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command, which hangs up in order
        )
        self._pending = b""
        self.through = f"{package}'s own client"
        try:
            self._ask({"method": "ping", "args": []}, "ping", _START_S)
        except BaseException:
            self.close()
            raise

    def call(self, kind: type[Kind], method: str, *args: Any) -> Kind:  # noqa: D102
        value = self._ask({"method": method, "args": self._tag_structs(args)}, method)
        return self._decode_answer(kind, method, value)

    def start(self, method: str, *args: Any) -> int:  # noqa: D102
        number = next(self._numbers)
        self._ask({"method": method, "args": self._tag_structs(args), "move": number}, method)
        return number

    def answer(self, number: int) -> bool | None:  # noqa: D102
        value: bool | None = self._ask({"answer": number}, "a move")
        return value

    def close(self) -> None:  # noqa: D102
        self._rpc.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, request: dict[str, Any], method: str, timeout_s: float | None = None) -> Any:
        assert self._process.stdin is not None
        number = next(self._numbers)
        try:
            self._process.stdin.write(json.dumps({**request, "id": number}).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended, or was closed here
            raise self._build_ended_error() from None
        reply = json.loads(self._line(method, timeout_s or self._timeout_s + 5.0))
        while reply["id"] != number:  # of a call that was interrupted
            reply = json.loads(self._line(method, timeout_s or self._timeout_s + 5.0))
        if "error" not in reply:
            return _numbers(reply["result"])
        if reply["kind"] == "RPCError":
            raise RpcError(method, reply["error"])
        if reply["kind"] == "TimeoutError":
            raise NoAnswerError(f"AirSim did not answer {method} in {self._timeout_s:g} s. Is its window open?")
        raise AirSimError(f"{self.through} failed at {method}: {reply['error']}")

    def _line(self, method: str, timeout_s: float) -> bytes:
        """Return the next line of the client; a server that ends is noticed on the other connection."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            selector.register(self._rpc, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = end - time.monotonic()
                ready = [key.fileobj for key, _ in selector.select(max(left, 0.0))]
                if self._process.stdout in ready:
                    data = os.read(self._process.stdout.fileno(), 1 << 16)
                    if not data:
                        raise self._build_ended_error()
                    self._pending += data
                elif self._rpc in ready:
                    self._rpc.listen(method)
                elif left <= 0.0:
                    raise NoAnswerError(f"{self.through} did not answer {method} in {timeout_s:g} s. Type it again.")
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _tag_structs(self, value: Any) -> Any:
        """Return a value whose structs have their names, as the bridge builds them."""
        if isinstance(value, (list, tuple)):
            return [self._tag_structs(item) for item in value]
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        names = [name for name, _ in fields_of(type(value), self.dialect)]
        return {
            "struct": type(value).__name__,
            "fields": {name: self._tag_structs(getattr(value, name)) for name in names},
        }

    def _build_ended_error(self) -> AirSimError:
        return ConnectionLostError(
            f"{self.through} ended. Try it by hand: {CLIENTS_PYTHON.relative_to(PROJECT_ROOT)} -c 'import "
            f"{PACKAGES[self.dialect]}'; `make airsim` reinstalls it."
        )


def _numbers(value: Any) -> Any:
    """Return an answer of the bridge with its pictures as lists of numbers."""
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "float32" in value:
        return np.frombuffer(base64.b64decode(value["float32"]), "<f4").tolist()
    return {name: b"" if name == "image_data_uint8" else _numbers(item) for name, item in value.items()}


def read_address(address: str) -> tuple[str, int]:
    """Read ``host:port``, or a host alone.

    Raises:
        SettingsError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(AIRSIM_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingsError(f"address is {address!r}; allowed is host:port, e.g. 127.0.0.1:{AIRSIM_PORT}.")
    return host, int(port)


def connect(address: str, dialect: Dialect | None = None, client: str = AUTO, timeout_s: float = 30.0) -> Link:
    """Reach a server and find out which one it is.

    Args:
        address: host:port.
        dialect: which it is; found out where None.
        client: one of :data:`CLIENTS`.
        timeout_s: an answer comes within this time.

    Raises:
        SettingsError: an argument is not allowed.
        AirSimError: nobody answers there, or not as AirSim does.
    """
    if client not in CLIENTS:
        raise SettingsError(f"client is {client!r}; allowed are {', '.join(CLIENTS)}.")
    host, port = read_address(address)
    rpc = Rpc(host, port, timeout_s)
    try:
        detected = detect(rpc.call)
        if dialect is not None and dialect is not detected:
            raise AirSimError(
                f"{address} speaks {detected.value}, not {dialect.value}; leave the dialect out: it is detected."
            )
        installed = detected in PACKAGES and CLIENTS_PYTHON.exists()
        if client == THEIRS and not installed:
            raise SettingsError(
                f"client is {THEIRS!r}; of {detected.value} there is none"
                + (": type make airsim." if detected in PACKAGES else f", allowed are {AUTO} and {OWN}.")
            )
        if installed and client != OWN:
            return ClientLink(rpc, detected, host, port, timeout_s)
        return OwnLink(rpc, detected)
    except (RpcError, TypeError, ValueError) as error:
        rpc.close()
        if isinstance(error, SettingsError) and not isinstance(error, RpcError):
            raise
        raise NotRpcError(
            f"{address} answers, but not as AirSim does ({error}). AirSim's settings.json names its port, "
            f"ApiServerPort (default {AIRSIM_PORT}): give that one."
        ) from None
    except BaseException:
        rpc.close()
        raise
