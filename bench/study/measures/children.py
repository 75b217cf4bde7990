"""Programs that a command of this folder starts and waits for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from quarl.bench.command_line import BenchError
from quarl.policy.places import PROJECT_ROOT

GRACE_S = 30.0
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_to_end(
    command: Sequence[str],
    standard_input: str = "",
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints; whatever ends the waiting ends the program too, in good order if it can.

    Args:
        command: the program and its words.
        standard_input: to its standard input.
        folder: where it runs (default: here).
        environment: all of its variables (default: this process's).
        timeout_s: seconds it may take.

    Raises:
        subprocess.TimeoutExpired: it took longer. It was asked to end, and killed if it did not within 30 s.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=environment,
    ) as process:  # fmt: skip
        try:
            out, errors = process.communicate(standard_input, timeout_s)
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def run_child(command: Sequence[str], standard_input: str = "") -> str:
    """Run a program of the checkout with one thread; its standard output.

    Raises:
        BenchError: it failed; with the end of what it said.
    """
    done = run_to_end(command, standard_input, folder=PROJECT_ROOT, environment={**os.environ, **ONE_THREAD})
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed with status {done.returncode}:\n{last_words(done)}")
    return done.stdout


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a program that failed wrote to its standard error."""
    return "\n".join(done.stderr.strip().splitlines()[-5:])
