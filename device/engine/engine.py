"""An artifact in the native engine, from Python: by ctypes alone."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import threading
import weakref
from array import array
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from quarl.device.engine import SHIPPED, find_shipped_library

LINE = 64
MOST_THREADS = 4
"""Bytes of a cache line, and most threads that decide together, as in engine.h."""


class Mode(IntEnum):
    """How a layer is multiplied."""

    DENSE = 0
    """All rows of weights."""
    SPARSE = 1
    """The rows of weights whose input is not zero."""


_METH_O, _CAPSULE = 0x0008, b"native"
"""The flag of CPython's methodobject.h; the capsule's name that python.c asks for."""


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


OUTPUTS_AT, STATE_AT = 20, 92
"""Where an artifact says how many outputs and observed floats it has, and how many floats of state: format.h."""


class _Room:
    """Bytes at the beginning of a page, so at a multiple of a cache line, all 0 where they are not given; those that
    nobody writes to take no memory.

    Attributes:
        address, size: where they are, and how many.
        content: they; of ``bytes`` that are given a copy.
    """

    def __init__(self, size: int, content: bytes | mmap.mmap = b"") -> None:
        self.size = size
        if isinstance(content, mmap.mmap):
            self.content = content
        else:
            self.content = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.content[: len(content)] = content
        self._held = ctypes.c_char.from_buffer(self.content)  # which keeps it from being unmapped
        self.address = ctypes.addressof(self._held)


class _Bound(ctypes.Structure):
    """``struct native_bound`` of python.c."""

    _fields_ = (("engine", ctypes.c_void_p), ("outputs", ctypes.c_void_p), ("observation", ctypes.c_size_t))


class NativeError(ValueError):
    """An artifact that the engine refuses; says why."""


class Engine:
    """One artifact, opened.

    Attributes:
        outputs: float32 (A + S,), of the last decision: logits, or the action's elements, and what a recurrent policy
            is given behind the next observation.
        used: the set of kernels that it runs with.
        helpers: threads that compute parts of large layers. They end when the engine is dropped, or with :meth:`close`.
    """

    def __init__(
        self,
        library: Path,
        artifact: bytes | mmap.mmap,
        observation_size: int,
        result_size: int,
        threads: int = 1,
    ) -> None:
        """Check and prepare an artifact.

        Args:
            library: of :func:`device.engine.building.library`.
            artifact: the file's bytes, which are copied; or what :func:`policy.reading.map_verified` returns, which is
                used as it is.
            observation_size, result_size: of the policy, states included.
            threads: number of threads that decide together where layers are large enough for it, 1 to ``MOST_THREADS``.

        Raises:
            NativeError: the engine refuses it, or it is another policy's; or this many threads are not possible.
        """
        if not 1 <= threads <= MOST_THREADS:
            raise NativeError(f"threads must be 1 to {MOST_THREADS} for the native engine, got {threads}.")
        self._c = _declare_signatures(ctypes.CDLL(str(library)))
        self._artifact = _Room(len(artifact), artifact)
        self._memory = self._open_memory()
        outputs, sensed = struct.unpack_from("<2I", artifact, OUTPUTS_AT)
        (state,) = struct.unpack_from("<I", artifact, STATE_AT)
        if (outputs + state, sensed + state) != (result_size, observation_size):
            raise NativeError(
                f"the artifact must take {observation_size} numbers and return {result_size} for this policy, got "
                f"{sensed + state} and {outputs + state}."
            )
        self.outputs = array("f", bytes(4 * result_size))
        self._engine = ctypes.c_void_p(self._memory.address)
        self._observation_size = observation_size
        self._begun = array("f", bytes(4 * observation_size))
        self.used = self.kernels[0]
        self._kept: tuple[object, ...] = ()
        self.helpers: tuple[threading.Thread, ...] = self._start_helpers(threads) if threads > 1 else ()
        self.decide: Callable[[Any], int] = self._bind_decide()
        """One decision; ``outputs`` holds what it made.

        Takes a raw observation, a C-contiguous buffer of float32 (N,) or (1, N): of numpy, or ``array("f")``; gives the
        index of the first largest output of a discrete policy, 0 of a continuous one. ValueError: it is something else.
        """

    def _open_memory(self) -> _Room:
        """Return the memory of an engine of this artifact."""
        artifact = self._artifact
        memory = _Room(max(self._c.native_memory(artifact.address, artifact.size), LINE))
        error = self._c.native_open(memory.address, memory.size, artifact.address, artifact.size)
        if error:
            raise NativeError(f"the artifact {self._c.native_message(error).decode()}.")
        return memory

    def _start_helpers(self, threads: int) -> tuple[threading.Thread, ...]:
        """Threads that wait in the library for large layers; none where this artifact has no such."""
        others = [self._open_memory() for _ in range(threads - 1)]
        pointers = (ctypes.c_void_p * len(others))(*(memory.address for memory in others))
        if not self._c.native_team(self._engine, pointers, threads):
            return ()
        # Not self, which has to be dropped for them to end; all memory that they touch. And self needs the others' when
        # they have ended.
        self._kept = references = (self._artifact, self._memory, others)
        self._finalizer = weakref.finalize(self, _stop, self._c, self._engine, references)
        helpers = tuple(
            threading.Thread(target=_work, args=(self._c, self._engine, number, references), daemon=True)
            for number in range(1, threads)
        )
        for helper in helpers:
            helper.start()
        return helpers

    def close(self, seconds: float = 5.0) -> None:
        """End the helpers, and wait so long for each; decisions are then made without them."""
        if self.helpers:
            self._finalizer()
        for helper in self.helpers:
            helper.join(seconds)
        self.helpers = ()

    @property
    def in_c(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]:
        """``native_decide``, ``native_has_moved`` and this engine, for a caller in C, one call at a time."""
        functions = (self._c.native_decide, self._c.native_has_moved)
        decide, has_moved = (ctypes.cast(function, ctypes.c_void_p) for function in functions)
        return decide, has_moved, self._engine

    def _bind_decide(self) -> Callable[[Any], int]:
        """Return the engine's function for this artifact as one of the interpreter's own: see ``python.c``."""
        bound = _Bound(self._engine.value, self.outputs.buffer_info()[0], 4 * self._observation_size)
        function = ctypes.cast(self._c.native_python_decide, ctypes.c_void_p)
        method = _Method(b"decide", function, _METH_O, None)
        capsule = _python("PyCapsule_New", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ctypes.addressof(bound), _CAPSULE, None
        )
        # The function holds its module, whatever that is: everything that it points to.
        references = (bound, method, self._memory, self._artifact, self._kept, self.outputs, self._c)
        make = _python("PyCFunction_NewEx", ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        decide: Callable[[Any], int] = make(ctypes.addressof(method), capsule, references)
        return decide

    def levels(self, observation: Any, layers: int) -> array[int]:
        """Return the levels, int8, behind the first ``layers`` layers, flat; of the input for 0."""
        self._take(observation)
        fed = self._begun.buffer_info()[0]
        levels = array("b", bytes(self._c.native_levels(self._engine, fed, layers, None, 0)))
        self._c.native_levels(self._engine, fed, layers, levels.buffer_info()[0], len(levels))
        return levels

    def begin(self, observation: Any) -> None:
        """Take an observation, float32 (N,) or (1, N), whose layers :meth:`repeat` then computes."""
        self._take(observation)
        self._c.native_levels(self._engine, self._begun.buffer_info()[0], 0, None, 0)

    def _take(self, observation: Any) -> None:
        memoryview(self._begun).cast("B")[:] = memoryview(observation).cast("B")

    def repeat(self, layer: int, times: int) -> None:
        """Compute one layer this many times, of what the one before it made: after :meth:`begin`, layer after layer."""
        self._c.native_repeat(self._engine, self._begun.buffer_info()[0], layer, times)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The mode of every layer."""
        return tuple(Mode(self._c.native_mode(self._engine, i)) for i in range(self._c.native_layers(self._engine)))

    @modes.setter
    def modes(self, modes: tuple[Mode, ...]) -> None:
        for index, mode in enumerate(modes):
            self._c.native_set_mode(self._engine, index, int(mode))

    def use(self, kernels: str) -> None:
        """Run with this set of kernels.

        Raises:
            NativeError: it does not run on this processor; names those that do.
        """
        if not self._c.native_use(self._engine, kernels.encode()):
            raise NativeError(f"the kernels {kernels!r} do not run on this processor; {', '.join(self.kernels)} do.")
        self.used = kernels

    @property
    def kernels(self) -> tuple[str, ...]:
        """The sets of kernels that run on this processor, the fastest first."""
        return kernels_of(self._c)


@functools.cache
def library() -> Path:
    """Return the shared library: the release's, or in a checkout one that is compiled now if it is not there yet."""
    if (path := find_shipped_library(SHIPPED)) is not None:
        return path
    from quarl.device.engine import building  # no release has it

    return building.library()


def memory_needed(library: Path, artifact: bytes) -> int:
    """Bytes that the engine works in for an artifact, as many as any of its kernels takes; 0 if it refuses it."""
    aligned = _Room(len(artifact), artifact)
    return int(_declare_signatures(ctypes.CDLL(str(library))).native_memory(aligned.address, aligned.size))


def kernels_here(library: Path) -> tuple[str, ...]:
    """Return the sets of kernels that run on this processor, the fastest first."""
    return kernels_of(_declare_signatures(ctypes.CDLL(str(library))))


def kernels_of(loaded: ctypes.CDLL) -> tuple[str, ...]:
    """Return the sets of kernels that run here, of a library that is loaded, the fastest first."""
    kernels: list[str] = []
    while (name := loaded.native_kernels(len(kernels))) is not None:
        kernels.append(name.decode())
    return tuple(kernels)


def _python(name: str, *arguments: Any) -> Callable[..., Any]:
    """Return a function of the interpreter that makes an object."""
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)((name, ctypes.pythonapi))


def _work(loaded: ctypes.CDLL, engine: ctypes.c_void_p, number: int, kept: object) -> None:
    loaded.native_work(engine, number)


def _stop(loaded: ctypes.CDLL, engine: ctypes.c_void_p, kept: object) -> None:
    loaded.native_stop(engine)


def _declare_signatures(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, integer, words = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
        ("native_memory", size, (pointer, size)),
        ("native_open", integer, (pointer, size, pointer, size)),
        ("native_message", words, (integer,)),
        ("native_levels", size, (pointer, pointer, ctypes.c_uint, pointer, size)),
        ("native_repeat", None, (pointer, pointer, ctypes.c_uint, ctypes.c_uint)),
        ("native_team", integer, (pointer, pointer, ctypes.c_uint)),
        ("native_work", None, (pointer, ctypes.c_uint)),
        ("native_stop", None, (pointer,)),
        ("native_layers", ctypes.c_uint, (pointer,)),
        ("native_mode", integer, (pointer, ctypes.c_uint)),
        ("native_set_mode", None, (pointer, ctypes.c_uint, integer)),
        ("native_kernels", words, (ctypes.c_uint,)),
        ("native_use", integer, (pointer, words)),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
