"""The host's side of keras_baseline.py: start it, let it take its turns, end it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from quarl.bench.command_line import BenchError
from quarl.bench.device_session.keras_baseline import CALLS
from quarl.bench.report.document import Kind, Report

STOP_SECONDS = 10
MAX_WARMUP = 50
"""A framework's call is a hundred times slower than a runtime's and is warm after a few calls."""


@dataclass(frozen=True)
class FrameworkCall:
    """A contestant of :func:`bench.device_session.questions.ask_latency`: a way to call the float policy."""

    process: subprocess.Popen[str]
    call: str
    policy: str
    target: str
    version: str
    device: Mapping[str, Any]

    def time_block(self, warmup: int, runs: int, path: str) -> dict[str, Any]:
        """Time some runs."""
        request = {"call": self.call, "warmup": min(warmup, MAX_WARMUP), "runs": runs}
        return _exchange(self.process, json.dumps(request) + "\n")

    def report(self, kind: Kind, run: str, **measured: Any) -> Report:
        """Return a report on the host's own processor."""
        return Report(
            kind=kind,
            run=run,
            policy=self.policy,
            precision="fp32",
            runtime=self.call,
            runtime_version=self.version,
            threads=1,
            target=self.target,
            device=self.device,
            **measured,
        )


@contextmanager
def framework_calls(bundle: Path, policy: str, target: str) -> Iterator[list[FrameworkCall]]:
    """Keras' ``model(x)`` and a ``tf.function`` of the policy, in a process of their own.

    Raises:
        BenchError: the process did not start.
    """
    command = [sys.executable, "-m", "quarl.bench.device_session.keras_baseline", "--bundle", str(bundle)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as process,
    ):
        try:
            ready = _exchange(process, "", log)
            yield [
                FrameworkCall(process, call, policy, target, ready["versions"][call], ready["device"]) for call in CALLS
            ]
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _exchange(process: subprocess.Popen[str], request: str, log: IO[str] | None = None) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if request:
            process.stdin.write(request)
            process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        tail = ""
        if log is not None:
            log.seek(0)
            tail = " / ".join(log.read().strip().splitlines()[-3:])
        raise BenchError(
            f"the Keras baseline exited with status {process.wait()}: {tail or 'it printed nothing'}.",
            "Add --no-baseline to measure without it.",
        )
    reply: dict[str, Any] = json.loads(line)
    return reply
