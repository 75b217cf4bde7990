"""Executors on this machine timed in turns, each in a process of its own: ratios of one run, from Python's call on.

A process is told how many decisions to make, and answers with the median of PARTS parts' mean times, which what else
the machine does in between hardly moves; those of all contestants follow each other, turn after turn, on one core.
Every decision sees another observation.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.policy.spec import RuntimeName

if TYPE_CHECKING:
    from quarl.policy.spec import PolicySpec

TURNS, TURN_S, PARTS, WARM_UP_S = 11, 0.2, 50, 0.3
ACTIONS, BYTES = "actions", "bytes"


Decide = Callable[[np.ndarray], object]
"""Observation (1, observation_size) to an action, or what holds one."""


@dataclass(frozen=True)
class TimedProgram:
    """A program that decides, and answers on its standard input's lines as :func:`serve` does."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """A contestant's answers.

    Attributes:
        actions: its choice on each observation; empty for a continuous policy.
        bytes: size of the file that it was made from.
        turns_ns: nanoseconds of a decision, in each of TURNS turns.
    """

    actions: Sequence[int]
    bytes: int
    turns_ns: Sequence[float]


@contextmanager
def prepare_folder(spec: PolicySpec, observations: np.ndarray) -> Iterator[Path]:
    """Prepare a folder with what contestants read: ``spec.json``, ``observations.npy`` (n, 1, observation_size) in
    float32."""
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        folder = Path(name)
        (folder / "spec.json").write_text(spec.to_json())
        np.save(folder / "observations.npy", observations.astype(np.float32)[:, None], allow_pickle=False)
        yield folder


def of_runtime(folder: Path, runtime: RuntimeName, kernels: str, artifact: bytes) -> TimedProgram:
    """Return an artifact in a runtime; ``kernels`` is the native engine's set, "" of another runtime."""
    name = f"{runtime.value} ({kernels})" if kernels else runtime.value
    file = folder / f"{len(list(folder.iterdir()))}.{runtime.artifact_format.value}"
    file.write_bytes(artifact)
    return TimedProgram(name, (sys.executable, "-m", __name__, str(file), runtime.value, kernels))


def time_in_turns(
    contestants: Sequence[TimedProgram], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Timed]:
    """Time every contestant for about TURN_S a turn.

    Raises:
        BenchError: one of them ends before it answers.
    """
    with ExitStack() as stack:
        workers = []
        for entry in contestants:
            environment = {**os.environ, **entry.environment}
            command, pipe = list(entry.command), subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
            stack.callback(process.communicate)
            workers.append((entry.name, process))
        actions, sizes = ([_answer(*worker, word) for worker in workers] for word in (ACTIONS, BYTES))
        counts = [max(1, round(TURN_S * 1e9 / _answer(*worker, 0))) for worker in workers]
        times_by_worker: list[list[float]] = [[] for _ in workers]
        for turn in range(TURNS):
            for times, worker, count in zip(times_by_worker, workers, counts, strict=True):
                times.append(_answer(*worker, count))
            progress(turn + 1, TURNS)
        return [Timed(*entry) for entry in zip(actions, sizes, times_by_worker, strict=True)]


def _answer(name: str, worker: subprocess.Popen[str], question: str | int) -> Any:
    """Return the answer to ACTIONS, BYTES, or a count: nanoseconds of a decision; to 0: of WARM_UP_S of them."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(f"{question}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended, and answers nothing
    if not (line := worker.stdout.readline()):
        from quarl.bench.command_line import BenchError  # whose packages the others' environment does not have

        raise BenchError(f"{name} exited with status {worker.wait()} before it answered; its error output is above.")
    return json.loads(line)


def take_core() -> None:
    """Bind the process to one core, before anything is opened: programs make as many threads as they see cores."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def serve(
    decide: Decide,
    rows: Sequence[np.ndarray],
    size: int,
    time_part: Callable[[int], float] | None = None,
) -> None:
    """Answer the questions on standard input until it ends.

    Args:
        decide: what is timed.
        rows: observations, gone through over and over.
        size: bytes of what it was made from.
        time_part: nanoseconds of that many decisions, measured by itself; default: by this process around each call.
    """
    time_part = time_part or _clock(decide, rows)
    for line in sys.stdin:
        answer: Any
        if (word := line.strip()) == ACTIONS:
            answer = _actions(decide, rows)
        else:
            answer = size if word == BYTES else _decision_ns(time_part, int(word))
        print(json.dumps(answer), flush=True)


def _actions(decide: Decide, rows: Sequence[np.ndarray]) -> list[int]:
    chosen = [decide(row) for row in rows]
    return [int(action) for action in chosen if isinstance(action, int | np.integer)]


def _clock(decide: Decide, rows: Sequence[np.ndarray]) -> Callable[[int], float]:
    fed = itertools.cycle(rows)

    def time_part(count: int) -> float:
        part = list(itertools.islice(fed, count))
        begin = time.perf_counter_ns()
        for row in part:
            decide(row)
        return time.perf_counter_ns() - begin

    return time_part


def _decision_ns(time_part: Callable[[int], float], count: int) -> float:
    """Median ns of a decision over PARTS parts of ``count`` decisions, at least one each; 0: over WARM_UP_S of them."""
    size = max(1, count // PARTS)
    means: list[float] = []
    elapsed = 0.0
    while len(means) < PARTS if count else elapsed < WARM_UP_S * 1e9:
        means.append(time_part(size) / size)
        elapsed += means[-1] * size
    return statistics.median(means)


def main(artifact: Path, runtime: RuntimeName, kernels: str) -> None:
    """Serve an artifact in a runtime."""
    take_core()
    from quarl.device.agent.runtimes import open_artifact
    from quarl.device.engine import engine
    from quarl.policy.spec import PolicySpec

    spec = PolicySpec.from_json((artifact.parent / "spec.json").read_bytes())
    data = artifact.read_bytes()
    rows = list(np.load(artifact.parent / "observations.npy", allow_pickle=False))
    if not kernels:
        serve(open_artifact(runtime, data, spec).decide, rows, len(data))
        return
    opened = engine.Engine(engine.library(), data, spec.observation_size, spec.output_size)
    opened.use(kernels)
    serve(opened.decide, rows, len(data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), RuntimeName(sys.argv[2]), sys.argv[3])


# --- what the tables show ---------------------------------------------------------------------------------------------


def add_speed_ups(rows: Sequence[Mapping[str, Any]], *same: str) -> Iterator[dict[str, Any]]:
    """Yield the rows with their median, and how many times as fast as LiteRT each is, turn by turn.

    Args:
        rows: a contestant each.
        same: what LiteRT's row has in common; its int8 where the precision is not among that.
    """

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in same)

    bases = [row for row in rows if row["runtime"] == "litert"]
    base = {key(row): row for row in bases if "precision" in same or row["precision"] == "int8"}
    for row in rows:
        yield {**row, "median_ns": statistics.median(row["turns_ns"]), "as_fast": _speed_up(row, base[key(row)])}


def _speed_up(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return how many times as fast as the base, turn by turn: ``2.08× [2.01, 2.56]``."""
    if row is base:
        return "1 (base)"
    ratios = [a / b for a, b in zip(base["turns_ns"], row["turns_ns"], strict=True)]
    return f"{statistics.median(ratios):.2f}× [{min(ratios):.2f}, {max(ratios):.2f}]"


def timing_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the notes say of the turns."""
    return {"results": document, "turns": TURNS, "turn_s": TURN_S, "parts": PARTS}
