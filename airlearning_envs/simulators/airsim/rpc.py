"""msgpack-rpc over TCP, AirSim's own way of being called, with nothing but the msgpack package.

A request is ``[0, id, method, arguments]``, its answer ``[1, id, error, result]``; several may be under way on one
connection, and answers come in any order. Notifications (type 2) are passed over.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NoReturn

import msgpack
import numpy as np

from quarl.airlearning_envs.errors import SettingsError

REQUEST, RESPONSE = 0, 1
AIRSIM_PORT = 41451
LARGEST_FRAME_BYTES = 16 << 20
"""Largest message, bytes; a depth picture of 256 x 144 is 184 kB."""
_CHUNK_BYTES = 1 << 16
STAND_IN = "StandIn"
"""Key of the settings by which the stand-in (``quarl airsim``) shows what it is."""


class AirSimError(SettingsError):
    """A simulator that is reached over RPC did not do what was asked; the message says what to type next."""


class NotReachableError(AirSimError):
    """Nobody listens at the address."""


class NotRpcError(AirSimError):
    """The program that listens at the address does not speak msgpack-rpc."""


class NoAnswerError(AirSimError):
    """No answer came in time."""


class ConnectionLostError(AirSimError):
    """The connection was closed before the answer."""


class RpcError(AirSimError):
    """The server answered with an error: :attr:`text` in its own words."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__(f"AirSim refused {method}: {text}")
        self.text = text


class FrameError(ValueError):
    """The received bytes are no message of msgpack-rpc, or more than the largest."""


class Frames:
    """Messages out of a stream of bytes; nothing but numbers, texts, bytes, lists and maps can come out."""

    def __init__(self, largest_bytes: int = LARGEST_FRAME_BYTES) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=largest_bytes)

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Yield the messages that are complete with these bytes.

        Raises:
            FrameError: no list with a type in front, broken, or too large.
        """
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                if not isinstance(message, list) or len(message) not in (3, 4) or message[0] not in (0, 1, 2):
                    raise FrameError(f"{str(message)[:40]!r} is no message of msgpack-rpc")
                yield message
        except msgpack.exceptions.BufferFull:
            raise FrameError("a message of more than 16 MB") from None
        except FrameError:
            raise
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise FrameError(f"broken msgpack: {error}") from None


def pack_message(message: list[Any], single: bool = False) -> bytes:
    """Return a message's bytes.

    Args:
        message: of numbers (numpy's, too), texts, bytes, lists and maps.
        single: floats in single precision, as AirSim sends them.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, (np.generic, np.ndarray)):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} does not travel over msgpack")

    return bytes(msgpack.packb(message, default=plain, use_single_float=single))


class Rpc:
    """A connection to a server.

    Args:
        host, port: where it listens.
        timeout_s: an answer comes within this time, or :class:`NoAnswerError` does.

    Raises:
        NotReachableError: nobody listens there.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = AIRSIM_PORT, timeout_s: float = 30.0) -> None:
        self._where, self._timeout_s = f"{host}:{port}", timeout_s
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise NotReachableError(
                f"no simulator at {self._where}: {error.strerror or error}. Start AirSim there, or one that stands in "
                f"for it: quarl airsim --port {port}"
            ) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self._ids = itertools.count(1)
        self._asked: dict[int, str] = {}
        self._answers: dict[int, tuple[Any, Any]] = {}

    def call(self, method: str, *args: Any) -> Any:
        """Ask and wait for the answer.

        Raises:
            RpcError: the server answers with an error.
            NotRpcError, NoAnswerError, ConnectionLostError: there is no answer.
        """
        return self.wait(self.send(method, *args))

    def send(self, method: str, *args: Any) -> int:
        """Ask and do not wait: what :meth:`wait`, :meth:`has_answer` and :meth:`forget` take."""
        number = next(self._ids)
        data = pack_message([REQUEST, number, method, list(args)])
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except TimeoutError:
            self._no_answer(method)
        except OSError:
            self._raise_lost(method)
        self._asked[number] = method
        return number

    def wait(self, number: int, timeout_s: float | None = None) -> Any:
        """Return the answer to what was sent; raises as :meth:`call` does."""
        method, end = self._asked[number], time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while number not in self._answers:
            left = end - time.monotonic()
            if left <= 0.0 or not self._read(left, method):
                self._no_answer(method)
        del self._asked[number]
        error, result = self._answers.pop(number)
        if error is not None:
            raise RpcError(method, error if isinstance(error, str) else repr(error))
        return result

    def has_answer(self, number: int) -> bool:
        """Return whether the answer to what was sent has come; does not wait."""
        while number not in self._answers and self._read(0.0, self._asked[number]):
            pass
        return number in self._answers

    def forget(self, number: int) -> None:
        """Drop a call's answer: nobody will wait for it."""
        self._asked.pop(number, None)
        self._answers.pop(number, None)

    def _read(self, seconds: float, method: str) -> bool:
        """Take in what comes within a time; whether something came."""
        try:
            self._socket.settimeout(seconds)
            data = self._socket.recv(_CHUNK_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            self._raise_lost(method)
        if not data:
            self._raise_lost(method)
        try:
            for message in self._frames.feed(data):
                if message[0] == RESPONSE and len(message) == 4 and message[1] in self._asked:
                    self._answers[message[1]] = message[2], message[3]
        except FrameError as error:
            raise NotRpcError(
                f"{self._where} is no AirSim: {error}. AirSim's settings.json names its port, ApiServerPort (default "
                f"{AIRSIM_PORT}): give that one."
            ) from None
        return True

    def _no_answer(self, method: str) -> NoReturn:
        raise NoAnswerError(
            f"{self._where} did not answer {method} in {self._timeout_s:g} s. Is it paused, or does its window ask "
            "something? Look at it, then type the same command again."
        )

    def _raise_lost(self, method: str) -> NoReturn:
        raise ConnectionLostError(
            f"{self._where} closed the connection during {method}: the simulator ended. Start it, then type the same "
            "command again."
        )

    def fileno(self) -> int:
        """File descriptor of the socket, for a selector; see :meth:`listen`."""
        return self._socket.fileno()

    def listen(self, method: str) -> None:
        """Take in what has come while ``method`` is waited for elsewhere.

        Raises:
            ConnectionLostError: it is the end.
        """
        self._read(0.0, method)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> Rpc:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
