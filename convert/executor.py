"""Executes artifacts in the runtimes that a device has, each runtime in a process of its own.

A process of its own because tflite_runtime must not meet tensorflow in one process (``vector::reserve``), because a
runtime that crashes on a bad graph must not take the conversion with it, and because that is how the agent runs them.
One process serves a whole conversion: JSON lines on standard input, one reply per line.

    python -m convert.executor litert
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from policy.errors import PolicyError
from policy.spec import RuntimeName, parse_enum

Run = Callable[[np.ndarray], dict[str, np.ndarray]]

DISTRIBUTIONS = {
    RuntimeName.TFLITE_RUNTIME: "tflite-runtime",
    RuntimeName.LITERT: "ai-edge-litert",
    RuntimeName.ONNXRUNTIME: "onnxruntime",
}


class ExecutionError(PolicyError):
    """A runtime refused an artifact, crashed on it or is not installed."""


@dataclass(frozen=True)
class Execution:
    """What a runtime made of a batch of observations, one at a time.

    Attributes:
        version: of the runtime.
        outputs: by name of the graph's output, each (n, …): the n results one behind another.
    """

    version: str
    outputs: dict[str, np.ndarray]


class RuntimeProcess:
    """One runtime in a process of its own; a context manager."""

    def __init__(self, runtime: RuntimeName) -> None:
        self.runtime = runtime
        self._files = tempfile.TemporaryDirectory(prefix="convert-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "convert.executor", runtime.value],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._files.cleanup()

    def execute(self, data: bytes, observations: np.ndarray) -> Execution:
        """Run an artifact on raw observations (n, observation_size), one at a time, on one thread.

        Raises:
            ExecutionError: the runtime refused the artifact or crashed; says what it said.
        """
        folder = Path(self._files.name)
        artifact, fed, made = folder / "artifact", folder / "observations.npy", folder / "outputs.npz"
        artifact.write_bytes(data)
        np.save(fed, observations.astype(np.float32), allow_pickle=False)
        reply = self._request({"artifact": str(artifact), "observations": str(fed), "outputs": str(made)})
        if "error" in reply:
            raise ExecutionError(f"{self.runtime.value} cannot execute the artifact: {reply['error']}")
        with np.load(made, allow_pickle=False) as archive:
            return Execution(str(reply["version"]), {name: archive[name] for name in archive.files})

    def _request(self, job: dict[str, str]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            _, said = self._process.communicate()
            raise ExecutionError(
                f"{self.runtime.value} ended with exit code {self._process.returncode}: {said.strip()[-800:]}",
                "Is it installed? The pinned version is in requirements.txt.",
            )
        reply: dict[str, Any] = json.loads(line)
        return reply


@contextmanager
def runtime_processes(
    runtimes: tuple[RuntimeName, ...] = tuple(RuntimeName),
) -> Iterator[dict[RuntimeName, RuntimeProcess]]:
    """All these runtimes, started side by side."""
    with ExitStack() as stack:
        yield {runtime: stack.enter_context(RuntimeProcess(runtime)) for runtime in runtimes}


def _tflite(interpreter_class: Any, data: bytes) -> Run:
    interpreter = interpreter_class(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    (fed,) = interpreter.get_input_details()
    names = {int(detail["index"]): str(detail["name"]) for detail in interpreter.get_output_details()}

    def run(observation: np.ndarray) -> dict[str, np.ndarray]:
        interpreter.set_tensor(fed["index"], observation)
        interpreter.invoke()
        return {name: interpreter.get_tensor(index) for index, name in names.items()}

    return run


def _tflite_runtime(data: bytes) -> Run:
    from tflite_runtime.interpreter import Interpreter

    return _tflite(Interpreter, data)


def _litert(data: bytes) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    return _tflite(Interpreter, data)


def _onnxruntime(data: bytes) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    fed = session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]

    def run(observation: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {fed: observation}), strict=True))

    return run


LOADERS: dict[RuntimeName, Callable[[bytes], Run]] = {
    RuntimeName.TFLITE_RUNTIME: _tflite_runtime,
    RuntimeName.LITERT: _litert,
    RuntimeName.ONNXRUNTIME: _onnxruntime,
}


def _serve(runtime: RuntimeName, job: dict[str, str]) -> dict[str, str]:
    try:
        run = LOADERS[runtime](Path(job["artifact"]).read_bytes())
        observations = np.load(job["observations"], allow_pickle=False)
        results = [run(observation[None]) for observation in observations]
        np.savez(job["outputs"], **{name: np.concatenate([r[name] for r in results]) for name in results[0]})
    except Exception as error:  # whatever a runtime raises is its answer to this artifact, and belongs to the caller
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": metadata.version(DISTRIBUTIONS[runtime])}


def main(argv: list[str] | None = None) -> int:
    """Serve jobs for one runtime until standard input ends."""
    arguments = sys.argv[1:] if argv is None else argv
    runtime = parse_enum(RuntimeName, arguments[0] if arguments else "", "runtime")
    for line in sys.stdin:
        print(json.dumps(_serve(runtime, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
