"""Executes artifacts in the runtimes that a device has, each runtime in a process of its own.

A process of its own because tflite_runtime must not meet tensorflow in one process (``vector::reserve``), because a
runtime that crashes on a bad graph must not take the conversion with it, and because that is how the agent runs them.
The agent's own adapters run them here too: what is checked is what a device executes. One process serves a whole
conversion: JSON lines on standard input, one reply per line.

    python -m convert.executor litert
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from device.agent.golden import decide_all
from device.agent.runtimes import installed_runtimes, open_artifact
from policy.errors import PolicyError
from policy.quantization import Floats
from policy.spec import PolicySpec, RuntimeName, parse_enum

# For one artifact on all observations, importing the runtime included. Policy III on 512 takes seconds; who waits ten
# minutes waits for a runtime that hangs.
TIMEOUT_S = 600.0


class ExecutionError(PolicyError):
    """A runtime refused an artifact, crashed or hung on it, or is not installed."""


@dataclass(frozen=True)
class Execution:
    """What a runtime made of a batch of observations, one at a time.

    Attributes:
        version: of the runtime.
        outputs: float32 (n, output_size).
        actions: int64 (n,) of a discrete head, float32 (n, output_size) of a continuous one.
    """

    version: str
    outputs: Floats
    actions: np.ndarray


class RuntimeProcess:
    """One runtime in a process of its own, started again after a crash or when it hung; a context manager.

    What the two tell each other lies in files without a name: the kernel removes them however the processes end.
    """

    def __init__(self, runtime: RuntimeName) -> None:
        self.runtime = runtime
        self._open = ExitStack()
        self._artifact, self._spec, self._fed, self._made, self._said = (self._unnamed() for _ in range(5))
        self._process = self._start()

    def _unnamed(self) -> IO[bytes]:
        return self._open.enter_context(tempfile.TemporaryFile())

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "convert.executor", self.runtime.value]
        given = [file.fileno() for file in (self._artifact, self._spec, self._fed, self._made)]
        # A file, not a pipe: a runtime may say much, and nobody reads while it works.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=_emptied(self._said), text=True,
            pass_fds=given,
        )  # fmt: skip

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._open.close()

    def _end(self) -> None:
        """Let the process end by the end of its input, or by force if it does not."""
        try:
            with suppress(BrokenPipeError):
                self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def execute(self, spec: PolicySpec, data: bytes, observations: np.ndarray) -> Execution:
        """Run an artifact of a policy on raw observations (n, observation_size), one at a time, on one thread.

        Raises:
            ExecutionError: the runtime refused the artifact, crashed or hung; says what it said.
        """
        _emptied(self._artifact).write(data)
        _emptied(self._spec).write(spec.to_json().encode())
        np.save(_emptied(self._fed), observations.astype(np.float32), allow_pickle=False)
        for file in (self._artifact, self._spec, self._fed):
            file.flush()
        reply = self._request(
            {
                "artifact": _path(self._artifact),
                "spec": _path(self._spec),
                "observations": _path(self._fed),
                "outputs": _path(self._made),
            }
        )
        if "error" in reply:
            raise ExecutionError(reply["error"])
        with np.load(_path(self._made), allow_pickle=False) as archive:
            return Execution(reply["version"], archive["outputs"], archive["actions"])

    def _request(self, job: dict[str, str]) -> dict[str, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        # A process that has died neither reads nor answers: the missing answer says it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            # One reply per request: nothing of it can be in the buffer yet, so the descriptor tells.
            if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
                self._process.kill()
                raise ExecutionError(
                    f"{self.runtime.value} did not end on the artifact within {TIMEOUT_S:g} s and was killed: "
                    f"{self._restart()}",
                    "Is the machine very busy? Then convert again; otherwise the graph makes this runtime hang.",
                )
            line = self._process.stdout.readline()
        if line:
            reply: dict[str, str] = json.loads(line)
            return reply
        code = self._process.wait()
        said = self._restart()
        if code < 0:
            raise ExecutionError(f"{self.runtime.value} crashed on the artifact ({signal.Signals(-code).name}): {said}")
        raise ExecutionError(
            f"{self.runtime.value} ended with exit code {code} on the artifact: {said}",
            "Is it installed? The pinned version is in requirements.txt.",
        )

    def _restart(self) -> str:
        """Another process in the place of one that has ended or was killed; returns what that one said last."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        said = Path(_path(self._said)).read_text(errors="replace").strip()[-800:] or "it said nothing"
        self._process = self._start()
        return said


def _emptied(file: IO[bytes]) -> IO[bytes]:
    file.seek(0)
    file.truncate()
    return file


def _path(file: IO[bytes]) -> str:
    """What opens a file without a name, here and in a process that inherited it under the same number."""
    return f"/dev/fd/{file.fileno()}"


@contextmanager
def runtime_processes(
    runtimes: tuple[RuntimeName, ...] = tuple(RuntimeName),
) -> Iterator[dict[RuntimeName, RuntimeProcess]]:
    """All these runtimes, started side by side."""
    with ExitStack() as stack:
        yield {runtime: stack.enter_context(RuntimeProcess(runtime)) for runtime in runtimes}


def _serve(runtime: RuntimeName, job: dict[str, str]) -> dict[str, str]:
    try:
        spec = PolicySpec.from_json(Path(job["spec"]).read_bytes())
        executor = open_artifact(runtime, Path(job["artifact"]), spec)
        observations = np.load(job["observations"], allow_pickle=False)
        outputs, actions = decide_all(executor, observations[:, None])
        with Path(job["outputs"]).open("wb") as made:
            np.savez(made, outputs=outputs, actions=actions)
    except Exception as error:  # whatever a runtime raises is its answer to this artifact, and belongs to the caller
        return {"error": str(error) or type(error).__name__}
    return {"version": installed_runtimes()[runtime]}


def main(argv: list[str] | None = None) -> int:
    """Serve jobs for one runtime until standard input ends."""
    arguments = sys.argv[1:] if argv is None else argv
    runtime = parse_enum(RuntimeName, arguments[0] if arguments else "", "runtime")
    # Runtimes print what they like from C++: from here on descriptor 1 is the log, and replies go to a copy of it.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_serve(runtime, json.loads(line))), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
