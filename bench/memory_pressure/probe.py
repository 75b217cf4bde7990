"""Runs on the device, alone: load one TFLite model, decide a few times, and say what the memory went through.

    python3 pressure_probe.py write   < {"path", "head", "size", "fills": [[offset, size, pattern], …]}   (base64)
    python3 pressure_probe.py measure < {"path", "runtime", "warmup", "runs"}
    python3 pressure_probe.py hold MEGABYTES     until its input ends: memory that another program works with

Only the standard library, numpy and one runtime. Prints one JSON object.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

COUNTERS = ("pgmajfault", "pswpin", "pswpout", "pgpgin", "pgpgout")
"""Counters of /proc/vmstat: major faults; pages swapped in and out; KiB read from and written to disks, by anyone."""
_CHUNK = 1 << 22
_PAGE = 4096


def vmstat() -> dict[str, int]:
    """Return the counters of the whole system."""
    rows = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return {name: int(value) for name, value in rows if name in COUNTERS}


def status() -> dict[str, int]:
    """Memory of this process, bytes."""
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "VmSwap", "RssAnon", "RssFile"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def meminfo() -> dict[str, int]:
    """Memory of the machine, bytes."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[0] in ("MemTotal:", "SwapTotal:")}


def faults() -> tuple[int, int]:
    """(major, minor) page faults of this process so far: fields 12 and 10 of its stat."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[9]), int(fields[7])


def write(request: dict[str, Any]) -> dict[str, Any]:
    """Write a model out of its head and its patterns; under another name until it is whole."""
    path = Path(request["path"])
    part = path.with_name(path.name + ".part")
    begun = time.perf_counter()
    with part.open("wb") as stream:
        stream.write(base64.b64decode(request["head"]))
        stream.truncate(request["size"])
        for offset, size, pattern in request["fills"]:
            block = base64.b64decode(pattern)
            block *= max(1, _CHUNK // len(block))
            stream.seek(offset)
            while size > 0:
                size -= stream.write(block[:size])
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    return {"bytes": path.stat().st_size, "seconds": time.perf_counter() - begun}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Load, warm up, decide."""
    import numpy as np

    module = importlib.import_module(
        {"litert": "ai_edge_litert.interpreter", "tflite-runtime": "tflite_runtime.interpreter"}[request["runtime"]]
    )
    before, begun = vmstat(), time.perf_counter_ns()
    interpreter = module.Interpreter(model_path=request["path"], num_threads=1)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]
    action = next(row["index"] for row in interpreter.get_output_details() if row["name"] == "action")
    loaded_ns, loaded = time.perf_counter_ns() - begun, status()
    load = {name: value - before[name] for name, value in vmstat().items()}
    observation = np.random.default_rng(0).normal(size=source["shape"]).astype(np.float32)
    runs = []
    for _ in range(request["warmup"] + request["runs"]):
        counted, (major, minor) = vmstat(), faults()
        begun = time.perf_counter_ns()
        interpreter.set_tensor(source["index"], observation)
        interpreter.invoke()
        chosen = int(interpreter.get_tensor(action)[0])
        took = time.perf_counter_ns() - begun
        now_major, now_minor = faults()
        row = {name: value - counted[name] for name, value in vmstat().items()}
        runs.append({"ns": took, "major_faults": now_major - major, "minor_faults": now_minor - minor, **row})
    return {
        "runtime_version": getattr(module, "__version__", ""),
        "inputs": int(source["shape"][-1]),
        "action": chosen,
        "load_ns": loaded_ns,
        "load": load,
        "after_load": loaded,
        "after_runs": status(),
        "warmup": runs[: request["warmup"]],
        "runs": runs[request["warmup"] :],
        "machine": meminfo(),
    }


def hold(megabytes: int) -> None:
    """Take memory and go on using it, as a desktop does, until standard input ends."""
    import numpy as np

    block = np.ones(megabytes * 1_000_000, np.uint8)
    print("held", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        block[::_PAGE] += 1


def main() -> int:
    """Return one request from standard input, one answer."""
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
        return 0
    request = json.load(sys.stdin)
    answer = {"write": write, "measure": measure}[sys.argv[1]](request)
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
