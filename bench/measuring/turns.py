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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from policy.contract.enums import RuntimeName

if TYPE_CHECKING:
    import numpy as np

    from policy.spec import PolicySpec

TURNS, TURN_S, PARTS, WARM_UP_S = 11, 0.2, 50, 0.3


@dataclass(frozen=True)
class Contestant:
    """An artifact in a runtime; ``kernels`` is the native engine's set, "" of another runtime."""

    runtime: RuntimeName
    kernels: str
    artifact: bytes

    @property
    def name(self) -> str:
        """``native (avx2)``; ``litert``."""
        return f"{self.runtime.value} ({self.kernels})" if self.kernels else self.runtime.value


def timed_in_turns(
    spec: PolicySpec,
    observations: np.ndarray,
    contestants: Sequence[Contestant],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[float]]:
    """For each contestant the nanoseconds of a decision in each of TURNS turns.

    Args:
        spec: the policy.
        observations: raw float32 (n, observation_size); decisions go through them, over and over.
        contestants: at least one; each decides for about TURN_S a turn.
        progress: called with (turns done, turns).
    """
    import numpy as np

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "spec.json").write_text(spec.to_json())
        np.save(folder / "observations.npy", observations.astype(np.float32)[:, None], allow_pickle=False)
        workers = []
        for number, each in enumerate(contestants):
            (folder / str(number)).write_bytes(each.artifact)
            command = [sys.executable, "-m", __name__, str(folder), str(number), each.runtime.value, each.kernels]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(_ended, worker)
            workers.append(worker)
        counts = [max(1, round(TURN_S * 1e9 / _asked(worker, 0))) for worker in workers]
        found: list[list[float]] = [[] for _ in workers]
        for turn in range(TURNS):
            for times, worker, count in zip(found, workers, counts, strict=True):
                times.append(_asked(worker, count))
            progress(turn + 1, TURNS)
        return found


def _asked(worker: subprocess.Popen[str], count: int) -> float:
    """Nanoseconds of a decision, of so many; 0: of what WARM_UP_S has room for."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(f"{count}\n")
    worker.stdin.flush()
    answer: float = json.loads(worker.stdout.readline())
    return answer


def _ended(worker: subprocess.Popen[str]) -> None:
    worker.communicate()


def _serve(folder: Path, number: str, runtime: RuntimeName, kernels: str) -> None:
    import numpy as np

    from device.agent.runtimes import open_artifact
    from device.native import engine
    from policy.spec import PolicySpec

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    spec = PolicySpec.from_json((folder / "spec.json").read_bytes())
    artifact = (folder / number).read_bytes()
    rows = list(np.load(folder / "observations.npy", allow_pickle=False))
    decide: Callable[[np.ndarray], object]
    if kernels:
        opened = engine.Engine(engine.library(), artifact, spec.observation_size, spec.output_size)
        opened.use(kernels)
        decide = opened.decide
    else:
        decide = open_artifact(runtime, artifact, spec).decide
    for line in sys.stdin:
        print(json.dumps(_decision_ns(decide, rows, int(line))), flush=True)


def _decision_ns(decide: Callable[[np.ndarray], object], rows: list[np.ndarray], count: int) -> float:
    """Of PARTS equal parts of ``count`` decisions, at least one each; 0: of as many as WARM_UP_S has room for."""
    fed, size = itertools.cycle(rows), max(1, count // PARTS)
    means: list[float] = []
    elapsed = 0.0
    while len(means) < PARTS if count else elapsed < WARM_UP_S * 1e9:
        part = list(itertools.islice(fed, size))
        begin = time.perf_counter_ns()
        for row in part:
            decide(row)
        means.append((time.perf_counter_ns() - begin) / size)
        elapsed += means[-1] * size
    return statistics.median(means)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2], RuntimeName(sys.argv[3]), sys.argv[4])
