"""An artifact as a policy: whole batches of observations decided by the runtime that a device has.

The runtime lives in a process of its own, as on a device: it never meets TensorFlow, and one that crashes does not take
the evaluation with it. An artifact decides one observation at a time; the process takes a batch in one message and
goes through its rows. Its first message is a line of JSON that says the version or the error; then, little-endian:

    request: the type of an observation's numbers ("B" uint8, "f" float32), then the raw observations
    reply:   the actions, int64 (rows,) of a discrete policy, float32 (rows, size) of a continuous one
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from policy.bundle import Bundle
from policy.errors import BundleError, PolicyError
from policy.manifest import ArtifactEntry
from policy.spec import PolicySpec, Precision, RuntimeName, parse_enum
from train.suites.episodes import Actions, Observations

START_TIMEOUT_S = 120.0  # importing a runtime on a busy machine takes seconds
BATCH_TIMEOUT_S = 600.0


class ArtifactError(PolicyError):
    """A runtime is not installed, refused the artifact, crashed or hung."""


def find_artifact(bundle: Bundle, asked_for: str, precision: Precision, runtime: RuntimeName) -> ArtifactEntry:
    """The bundle's artifact of this precision that this runtime executes; ``asked_for`` is the bundle as typed.

    Raises:
        BundleError: it was not made yet, or was not verified in this runtime; says what to type.
    """
    if not bundle.has_artifact(precision, runtime.artifact_format):
        there = ", ".join(sorted(name for name in bundle.manifest.artifacts if (bundle.path / name).exists()))
        from policy.locate import ZOO

        if ZOO in bundle.path.resolve().parents:  # what comes with the repository is converted in a working copy
            asked_for = bundle.spec.name
            then = f", and evaluate its working copy: --input-path {asked_for}"
        else:
            then = "."
        raise BundleError(
            f"{bundle.path} has no {precision.value} artifact for {runtime.value} "
            f"({runtime.artifact_format.value}); it has {there or 'none'}.",
            f"Type: make convert POLICY={asked_for} BITS={precision.typed}{then}",
        )
    entry = bundle.artifact(precision, runtime.artifact_format)
    if runtime not in entry.runtimes:
        raise BundleError(
            f"{bundle.path / entry.file} was not verified in {runtime.value}, only in "
            f"{', '.join(sorted(name.value for name in entry.runtimes))}.",
            f"Type: make convert POLICY={asked_for} BITS={precision.typed}",
        )
    return entry


class ArtifactPolicy:
    """An artifact in a runtime's own process, as a function of raw observations; a context manager.

    Attributes:
        version: of the runtime, once entered.
    """

    def __init__(self, spec: PolicySpec, data: bytes, runtime: RuntimeName) -> None:
        """Args: the policy, the artifact's verified bytes, and what executes them."""
        self._spec, self._data, self._runtime = spec, data, runtime
        self.version = ""

    def __enter__(self) -> ArtifactPolicy:
        self._folder = tempfile.TemporaryDirectory(prefix="evaluate-")
        folder = Path(self._folder.name)
        (folder / "artifact").write_bytes(self._data)
        (folder / "policy.json").write_text(self._spec.to_json(), encoding="utf-8")
        self._said = folder / "said"
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "train.runs.artifact", self._runtime.value, str(folder), str(theirs.fileno())]
        with self._said.open("w") as said, theirs:  # runtimes print what they like, from C++, too
            self._process = subprocess.Popen(command, stdout=said, stderr=said, pass_fds=[theirs.fileno()])
        try:
            ready = f"did not start within {START_TIMEOUT_S:g} s", "ended before it was ready"
            reply = json.loads(self._answer(START_TIMEOUT_S, *ready))
            if "error" in reply:
                raise ArtifactError(reply["error"])
        except BaseException:
            self.__exit__()
            raise
        self.version = reply["version"]
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()  # then the process ends by itself
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def decide(self, observations: Observations) -> Actions:
        """Raw observations (n, …) to actions; see :data:`train.suites.episodes.Decide`.

        Raises:
            ArtifactError: the runtime crashed or hung; says what it said.
        """
        kind = np.dtype(np.uint8 if observations.dtype == np.uint8 else np.float32)
        with suppress(OSError):  # a process that has died does not answer either: that says it
            self._pipe.send_bytes(kind.char.encode() + observations.astype(kind, copy=False).tobytes())
        late = f"did not decide within {BATCH_TIMEOUT_S:g} s"
        reply = self._answer(BATCH_TIMEOUT_S, late, "ended while it was deciding")
        shape, action = action_shape(self._spec, len(observations))
        return np.frombuffer(reply, action).reshape(shape).copy()

    def _answer(self, timeout_s: float, late: str, ended: str) -> bytes:
        """The next message; ``late`` and ``ended`` say what happened where none came."""
        if not self._pipe.poll(timeout_s):
            raise self._failed(late)
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._failed(ended) from None

    def _failed(self, what: str) -> ArtifactError:
        self._process.kill()
        code = self._process.wait()
        said = self._said.read_text(errors="replace").strip()[-600:] or "it said nothing"
        return ArtifactError(
            f"{self._runtime.value} {what} (exit code {code}): {said}.",
            "Convert the policy again, or try another --runtime.",
        )


def action_shape(spec: PolicySpec, rows: int) -> tuple[tuple[int, ...], type]:
    """Shape and type of the actions of so many observations."""
    return ((rows,), np.int64) if spec.is_discrete else ((rows, spec.output_size), np.float32)


def serve(executor: Any, spec: PolicySpec, pipe: Connection) -> None:
    """Answer requests until they end."""
    with suppress(EOFError):
        while True:
            request = pipe.recv_bytes()
            observations = np.frombuffer(request, np.dtype(request[:1].decode()), offset=1)
            observations = observations.reshape(-1, 1, spec.observation_size)
            shape, action = action_shape(spec, len(observations))
            decided: Actions = np.empty(shape, action)
            for row, observation in enumerate(observations):
                # behind the request's first byte floats lie at odd addresses
                decided[row] = executor.decide(np.require(observation, np.float32, ["C", "A"]))
            pipe.send_bytes(decided.tobytes())


def main(argv: list[str] | None = None) -> int:
    """``python -m train.runs.artifact RUNTIME FOLDER DESCRIPTOR``: serve the folder's artifact on an open pipe."""
    from device.agent.runtimes import installed_runtimes, open_artifact

    name, folder, descriptor = sys.argv[1:] if argv is None else argv
    runtime = parse_enum(RuntimeName, name, "runtime")
    with Connection(int(descriptor)) as pipe:
        try:
            spec = PolicySpec.from_json((Path(folder) / "policy.json").read_bytes())
            executor = open_artifact(runtime, Path(folder) / "artifact", spec)
            ready = {"version": installed_runtimes()[runtime]}
        except Exception as error:  # whatever a runtime raises is its answer to this artifact
            ready = {"error": str(error) or type(error).__name__}
        pipe.send_bytes(json.dumps(ready).encode())
        if "error" not in ready:
            serve(executor, spec, pipe)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
