"""All rows of a layer's weights, or those whose input is not zero: measured on this device, and kept.

What is decided is the same either way, to the bit; only the time differs, and with it which rows come out zero. The
artifact says what is faster on most devices; a device that measures otherwise does otherwise.

A release's files are compared with its record, so what was measured lies beside the releases, in
``~/quarl/policies/POLICY/native-modes.json``. A bundle that lies elsewhere, in a checkout, is measured at every start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.device.engine.engine import Engine, Mode
from quarl.policy.reading import new_sha256

OBSERVATIONS = 32
"""Most observations that are measured with, taken evenly from those that there are."""
SECONDS = 0.1
"""Seconds after which no further observation is begun; two are measured all the same."""
CLEARLY = 0.97
"""A layer leaves the artifact's mode for one whose time is a smaller part of that one's."""
ENOUGH_NS, MOST_TIMES = 50_000, 64
"""A layer is repeated until it takes so long, at most so often: a call from Python takes about 1000 ns of its own."""
TURNS = 3
Clock = Callable[[], int]
KEPT_FILE = "native-modes.json"
MOST_KEPT, MOST_BYTES = 32, 1 << 16
"""Most artifacts and most bytes of the file."""


@dataclass(frozen=True)
class Measured:
    """The times of one layer, ns.

    Attributes:
        faster: the artifact's mode, unless the other one is clearly faster.
        dense_ns, sparse_ns: the median over the observations.
    """

    faster: Mode
    dense_ns: float
    sparse_ns: float


def measure_modes(
    engine: Engine,
    observations: Sequence[Any],
    seconds: float = SECONDS,
    clock: Clock = time.perf_counter_ns,
) -> tuple[Measured, ...]:
    """Time every layer in both modes, in turns; the engine's modes stay as they are.

    Args:
        engine: with the modes that its artifact asks for.
        observations: real ones, each a buffer of float32 (N,) or (1, N); at least one.
        seconds: no further observation is begun after so long, but two are measured.
        clock: nanoseconds.
    """
    usual = engine.modes
    dense, sparse = ((mode,) * len(usual) for mode in (Mode.DENSE, Mode.SPARSE))
    times: dict[Mode, list[list[float]]] = {Mode.DENSE: [], Mode.SPARSE: []}
    repeats = [1] * len(usual)
    begun = clock()
    try:
        repeats = [
            max(1, min(MOST_TIMES, int(ENOUGH_NS / max(layer_ns, 1.0))))
            for layer_ns in _fastest(engine, observations[0], usual, repeats, clock)
        ]
        spread = observations[:: -(-len(observations) // OBSERVATIONS)]
        for count, observation in enumerate(spread):
            if count > 1 and clock() - begun > 1e9 * seconds:
                break
            turn_times = [_times(engine, observation, modes, repeats, clock) for modes in (dense, sparse) * TURNS]
            for index, mode in enumerate((Mode.DENSE, Mode.SPARSE)):
                times[mode].append([min(turns) for turns in zip(*turn_times[index::2])])
    finally:
        engine.modes = usual
    medians = [[_median(layer_ns) for layer_ns in zip(*times[mode])] for mode in (Mode.DENSE, Mode.SPARSE)]
    return tuple(
        Measured(_faster(mode, (dense_ns, sparse_ns)), dense_ns, sparse_ns)
        for mode, dense_ns, sparse_ns in zip(usual, *medians)
    )


def _median(values: Sequence[float]) -> float:
    """As of the module statistics, which takes a megabyte."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[-half - 1]) / 2


def _faster(usual: Mode, times: tuple[float, float]) -> Mode:
    other = Mode(1 - usual)
    return other if times[other] < CLEARLY * times[usual] else usual


def _fastest(
    engine: Engine, observation: Any, modes: tuple[Mode, ...], repeats: list[int], clock: Clock
) -> list[float]:
    """Return each layer's shorter time, ns, of two decisions: the first one's caches are cold."""
    both = [_times(engine, observation, modes, repeats, clock) for _ in range(2)]
    return [min(pair) for pair in zip(*both)]


def _times(engine: Engine, observation: Any, modes: tuple[Mode, ...], repeats: list[int], clock: Clock) -> list[float]:
    """Nanoseconds of each layer: layer after layer, so that the caches hold what they hold in a decision."""
    engine.modes = modes
    engine.begin(observation)
    times = []
    for layer, count in enumerate(repeats):
        start = clock()
        engine.repeat(layer, count)
        times.append((clock() - start) / count)
    return times


def find_kept_file(bundle: Path) -> Path | None:
    """Return where the measurements of a bundle's policy are kept; None of a bundle that lies in no release."""
    release = bundle.resolve().parent
    lies_in_one = release.parent.name == "releases" and (release / "release").is_file()
    return release.parent.parent / KEPT_FILE if lies_in_one else None


def key_of(engine: Engine, library: Path, artifact: str) -> dict[str, str]:
    """Key of a measurement: artifact, the engine's library, its kernels, the processor's kind."""
    fingerprint = new_sha256(library.read_bytes()).hexdigest()
    return {"artifact": artifact, "library": fingerprint, "kernels": engine.used, "machine": os.uname().machine}


def read_kept_modes(path: Path | None, key: dict[str, str], layers: int) -> tuple[Mode, ...] | None:
    """Return the modes that were measured before; None where none were, or what is there cannot be used."""
    for entry in _entries(path):
        modes = entry.get("modes")
        if {name: entry.get(name) for name in key} != key or not isinstance(modes, list) or len(modes) != layers:
            continue
        if all(type(mode) is int and mode in (0, 1) for mode in modes):
            return tuple(map(Mode, modes))
    return None


def keep_modes(path: Path | None, key: dict[str, str], measured: Sequence[Measured]) -> None:
    """Keep what was measured, the newest first. A device whose disk cannot be written goes without."""
    if path is None:
        return
    new: dict[str, Any] = {
        **key,
        "modes": [int(item.faster) for item in measured],
        "dense_ns": [round(item.dense_ns) for item in measured],
        "sparse_ns": [round(item.sparse_ns) for item in measured],
    }
    others = [item for item in _entries(path) if {name: item.get(name) for name in key} != key]
    data = json.dumps({"measured": [new, *others][:MOST_KEPT]}).encode()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as stream:
            stream.write(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _entries(path: Path | None) -> list[dict[str, Any]]:
    """Return the entries of the file; none where it is missing, damaged, or no file."""
    if path is None:
        return []
    try:
        # Neither a link nor a pipe: the one leads elsewhere, the other never ends.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        content = json.loads(data) if data and len(data) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return []
    entries = content.get("measured") if isinstance(content, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
