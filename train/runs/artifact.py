"""An artifact as a policy: whole batches of observations decided by the runtime that a device has.

The runtime lives in a process of its own, as on a device: it never meets TensorFlow, and one that crashes does not take
the evaluation with it. An artifact decides one observation at a time; the process takes a batch in one message and
goes through its rows. On standard input and output, little-endian, after one line of JSON that says the version or
the error:

    request: rows (uint32), 1 if the observations are uint8 and 0 if float32 (uint8), then the raw observations
    reply:   the actions, int64 (rows,) of a discrete policy, float32 (rows, size) of a continuous one
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from policy.bundle import Bundle
from policy.errors import BundleError, PolicyError
from policy.manifest import ArtifactEntry
from policy.spec import PolicySpec, Precision, RuntimeName, parse_enum
from train.suites.episodes import Actions, Observations

HEADER = struct.Struct("<IB")
START_TIMEOUT_S = 120.0  # importing a runtime on a busy machine takes seconds
BATCH_TIMEOUT_S = 600.0


class ArtifactError(PolicyError):
    """A runtime is not installed, refused the artifact, crashed or hung."""


def find_artifact(bundle: Bundle, asked_for: str, precision: Precision, runtime: RuntimeName) -> ArtifactEntry:
    """The bundle's artifact that this runtime executes.

    Args:
        bundle: as loaded.
        asked_for: what the user typed for it, for the command in the message.
        precision: of the artifact.
        runtime: that shall execute it.

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
            f"Type: make convert POLICY={asked_for} BITS={precision.bits}{then}",
        )
    entry = bundle.artifact(precision, runtime.artifact_format)
    if runtime not in entry.runtimes:
        raise BundleError(
            f"{bundle.path / entry.file} was not verified in {runtime.value}, only in "
            f"{', '.join(sorted(name.value for name in entry.runtimes))}.",
            f"Type: make convert POLICY={asked_for} BITS={precision.bits}",
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
        command = [sys.executable, "-m", "train.runs.artifact", self._runtime.value, str(folder)]
        with self._said.open("w") as said:  # a file, not a pipe: nobody reads while it works
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        try:
            reply = json.loads(self._line())
            if "error" in reply:
                raise ArtifactError(reply["error"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.version = reply["version"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            self._input.close()  # it ends by itself at the end of its input
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._folder.cleanup()

    @property
    def _input(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    @property
    def _output(self) -> BinaryIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def decide(self, observations: Observations) -> Actions:
        """Raw observations (n, …) to actions; see :data:`train.suites.episodes.Decide`.

        Raises:
            ArtifactError: the runtime crashed or hung; says what it said.
        """
        images = observations.dtype == np.uint8
        rows = np.ascontiguousarray(observations if images else observations.astype(np.float32, copy=False))
        with suppress(BrokenPipeError):  # a process that has died does not answer either: that says it
            self._input.write(HEADER.pack(len(rows), images))
            self._input.write(rows.data)
            self._input.flush()
        shape, kind = action_shape(self._spec, len(rows))
        reply: Actions = np.empty(shape, kind)
        self._read_into(memoryview(reply.data).cast("B"))
        return reply

    def _line(self) -> str:
        if not select.select([self._output], [], [], START_TIMEOUT_S)[0]:
            raise self._failed(f"did not start within {START_TIMEOUT_S:g} s")
        line = self._output.readline()
        if not line:
            raise self._failed("ended before it was ready")
        return line.decode()

    def _read_into(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            # Only one reply can be under way, and what readline or readinto left in the buffer is none of it.
            if not select.select([self._output], [], [], BATCH_TIMEOUT_S)[0]:
                raise self._failed(f"did not decide within {BATCH_TIMEOUT_S:g} s")
            part = os.read(self._output.fileno(), len(view) - done)
            if not part:
                raise self._failed("ended while it was deciding")
            view[done : done + len(part)] = part
            done += len(part)

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


def serve(executor: Any, spec: PolicySpec, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end."""
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        rows, images = HEADER.unpack(header)
        kind = np.dtype(np.uint8 if images else np.float32)
        data = requests.read(rows * spec.observation_size * kind.itemsize)
        observations = np.frombuffer(data, kind).reshape(rows, 1, spec.observation_size)
        shape, action = action_shape(spec, rows)
        decided: Actions = np.empty(shape, action)
        for row in range(rows):
            decided[row] = executor.decide(observations[row].astype(np.float32, copy=False))
        replies.write(decided.tobytes())
        replies.flush()


def main(argv: list[str] | None = None) -> int:
    """``python -m train.runs.artifact RUNTIME FOLDER``: serve the folder's artifact until standard input ends."""
    from device.agent.runtimes import installed_runtimes, open_artifact

    name, folder = sys.argv[1:] if argv is None else argv
    runtime = parse_enum(RuntimeName, name, "runtime")
    # Runtimes print what they like from C++: from here on descriptor 1 is the log, and replies go to a copy of it.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        try:
            spec = PolicySpec.from_json((Path(folder) / "policy.json").read_bytes())
            executor = open_artifact(runtime, Path(folder) / "artifact", spec)
            ready = {"version": installed_runtimes()[runtime]}
        except Exception as error:  # whatever a runtime raises is its answer to this artifact
            ready = {"error": str(error) or type(error).__name__}
        replies.write((json.dumps(ready) + "\n").encode())
        replies.flush()
        if "error" not in ready:
            serve(executor, spec, sys.stdin.buffer, replies)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
