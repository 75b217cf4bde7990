"""Runs inside qemu-aarch64: the agent itself, with markers around its calls. Standard library, numpy, agent only.

A marker is a function of five machine instructions, ``hint #N`` and the return of an object, in memory that may be
executed. Python calls it like any built-in function, which costs a good hundred instructions; a pair of markers
with nothing between them is counted as well, to be subtracted.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.device.agent.server import Agent

BEGIN, END, EMPTY_CACHES = 0x60, 0x61, 0x62
"""Numbers of the hints, as in counter.c."""
PAIR = "pair"
WARM_UP = "warm-up"
_METH_NOARGS = 0x0004  # of CPython's methodobject.h
_SLOT = 64  # bytes for each marker


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def marker_code(number: int) -> bytes:
    """Machine code of ``PyObject *marker(PyObject *self, PyObject *unused)``, AArch64, which returns self."""
    return struct.pack(
        "<5I",
        0xD503201F | number << 5,  # hint #number
        0xF9400001,  # ldr x1, [x0]      self->ob_refcnt
        0x91000421,  # add x1, x1, #1
        0xF9000001,  # str x1, [x0]
        0xD65F03C0,  # ret
    )


def make_markers(numbers: tuple[int, ...]) -> list[Callable[[], object]]:
    """Built-in functions that execute one hint each."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    base = ctypes.addressof(ctypes.c_char.from_buffer(page))
    new = ctypes.pythonapi.PyCMethod_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
    markers = []
    for slot, number in enumerate(numbers):
        code = marker_code(number)
        page[_SLOT * slot : _SLOT * slot + len(code)] = code
        definition = _MethodDef(b"marker", base + _SLOT * slot, _METH_NOARGS, None)
        _KEPT.append((page, definition))
        markers.append(new(ctypes.addressof(definition), object(), None, None))
    return markers


_KEPT: list[Any] = []  # what the built-in functions point to


def main(argv: list[str]) -> int:
    """``guest.py BUNDLE PRECISION RUNTIME WARMUP RUNS ANSWER``: count, and write what each line of counts is."""
    bundle, precision, runtime, warmup, runs, answer = argv
    begin, end, empty_caches = make_markers((BEGIN, END, EMPTY_CACHES))
    labels: list[str] = []

    def count_call(call: Callable[[Any], object], argument: Any, label: str) -> None:
        begin()
        call(argument)
        end()
        labels.append(label)

    def pair(label: str) -> None:
        begin()
        end()
        labels.append(label)

    agent = Agent(Path(bundle))
    request = {"op": "load", "precision": precision, "runtime": runtime, "threads": 1}
    reply = json.loads(agent.handle(json.dumps(request).encode()))
    if reply["ok"]:
        wanted = int(warmup) + int(runs)
        row_indices = [index % len(agent.serving.rows) for index in range(wanted)]
        rows = [agent.serving.observations[index] for index in row_indices]
        values = [agent.serving.rows[index].tolist() for index in row_indices]
        lines = [agent.serving.request_line(row) for row in values]
        decide = agent.serving.executor.decide
        for index in range(wanted):
            pair(WARM_UP if index < int(warmup) else PAIR)
        for path, call, arguments in (("runtime", decide, rows), ("decide", agent.handle, lines)):
            for argument in arguments[: int(warmup)]:
                count_call(call, argument, WARM_UP)
            for argument in arguments[int(warmup) :]:
                count_call(call, argument, f"{path}_warm")
            for argument in arguments[int(warmup) :]:
                empty_caches()
                count_call(call, argument, f"{path}_cold")
    hello = json.loads(agent.handle(b'{"op": "hello"}'))
    Path(answer).write_text(json.dumps({"load": reply, "device": hello.get("device"), "labels": labels}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
