"""An artifact as a policy: whole batches of observations decided by the runtime that a device has.

The runtime lives in a process of its own, as on a device: it never meets TensorFlow, and one that crashes does not take
the evaluation with it. An artifact decides one observation at a time; the process takes a batch in one message and
goes through its rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from quarl.convert.executor import ExecutionError, RuntimeProcess
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError
from quarl.policy.history import remembers
from quarl.policy.pilot import deciding
from quarl.policy.reading import ArtifactEntry
from quarl.policy.spec import PolicySpec, Precision, RuntimeName
from quarl.train.suites.episodes import Decide

START_TIMEOUT_S = 120.0  # importing a runtime on a busy machine takes seconds
BATCH_TIMEOUT_S = 600.0


def find_artifact(bundle: Bundle, name_or_path: str, precision: Precision, runtime: RuntimeName) -> ArtifactEntry:
    """Return the bundle's artifact of this precision that this runtime executes; ``name_or_path`` is the bundle as
    typed.

    Raises:
        BundleError: it was not made yet, or was not verified in this runtime; says what to type.
    """
    if not bundle.has_artifact(precision, runtime.artifact_format):
        there = ", ".join(sorted(name for name in bundle.manifest.artifacts if (bundle.path / name).exists()))
        from quarl.policy.places import ZOO

        if ZOO in bundle.path.resolve().parents:  # what comes with the repository is converted in a working copy
            name_or_path = bundle.spec.name
            then = f", and evaluate its working copy: --input-path {name_or_path}"
        else:
            then = "."
        raise BundleError(
            f"{bundle.path} has no {precision.value} artifact for {runtime.value} "
            f"({runtime.artifact_format.value}); it has {there or 'none'}.",
            f"Type: quarl convert --bits {precision.bits_argument} --policy {name_or_path}{then}",
        )
    entry = bundle.artifact(precision, runtime.artifact_format)
    if runtime not in entry.runtimes:
        raise BundleError(
            f"{bundle.path / entry.file} was not verified in {runtime.value}, only in "
            f"{', '.join(sorted(name.value for name in entry.runtimes))}.",
            f"Type: quarl convert --bits {precision.bits_argument} --policy {name_or_path}",
        )
    return entry


class ArtifactPolicy(RuntimeProcess):
    """An artifact in a runtime's own process, as a function of raw observations; a context manager.

    Attributes:
        version: of the runtime, once entered.
    """

    def __init__(self, spec: PolicySpec, data: bytes, runtime: RuntimeName) -> None:
        """Args: the policy, the artifact's verified bytes, and what executes them."""
        super().__init__(runtime)
        self._spec, self._data = spec, data
        self.version = ""

    def __enter__(self) -> Self:
        """Load the artifact.

        Raises:
            ExecutionError: the runtime is not installed, refused the artifact, crashed or hung; says what it said.
        """
        try:
            nothing = np.empty((0, self._spec.observation_size), np.float32)
            self.version = self.execute(self._spec, self._data, nothing, START_TIMEOUT_S).version
        except BaseException:
            self.__exit__()
            raise
        return self

    @cached_property
    def decide(self) -> Decide:
        """What each period brings to actions; see :data:`train.suites.episodes.Decide`.

        It raises an ExecutionError where the runtime crashed or hung, that says what it said.
        """
        if remembers(self._spec.observation):
            return deciding(self._spec, lambda observations: self.execute_again(observations, BATCH_TIMEOUT_S).outputs)
        return lambda observations: self.execute_again(observations, BATCH_TIMEOUT_S).actions

    def _failure(self, late_s: float | None, code: int, stderr: str) -> ExecutionError:
        late, ended = ("decide", "while it was deciding") if self.version else ("start", "before it was ready")
        reason = f"ended {ended}" if late_s is None else f"did not {late} within {late_s:g} s"
        return ExecutionError(
            f"{self.runtime.value} {reason} (exit code {code}): {stderr}.",
            "Convert the policy again, or try another --runtime.",
        )
