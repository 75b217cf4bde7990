"""One artifact that passed every check and is served: its executor, and the observations it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device.agent.protocol import AgentError, ErrorCode, short
from device.agent.runtimes import Executor
from policy.bundle import Bundle
from policy.manifest import ArtifactEntry
from policy.spec import PolicySpec, RuntimeName

_NUMBERS = {int, float}
_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Serving:
    """A verified artifact in a runtime.

    Attributes:
        bundle, entry: what it was loaded from.
        runtime, runtime_version, threads: what executes it.
        executor: the artifact in the runtime.
        golden: what the golden vectors showed, as the protocol says it.
        cold: how long the steps of loading took, likewise.
        observations: the golden observations, each float32 (1, N) and C-contiguous, to measure with.
        decisions: inferences that requests have asked for.
    """

    bundle: Bundle
    entry: ArtifactEntry
    runtime: RuntimeName
    runtime_version: str
    threads: int
    executor: Executor
    golden: dict[str, Any]
    cold: dict[str, int]
    observations: list[NDArray[np.float32]] = field(repr=False)
    decisions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The LOADED of the protocol."""
        return {
            "policy": self.bundle.spec.name,
            "file": self.entry.file,
            "precision": self.entry.precision.value,
            "format": self.entry.format.value,
            "scheme": self.entry.scheme,
            "execution": self.entry.execution,
            "bytes": self.entry.record.size,
            "sha256": self.entry.record.sha256,
            "runtime": self.runtime.value,
            "runtime_version": self.runtime_version,
            "threads": self.threads,
        }

    def read_observation(self, values: Any, where: str = "observation") -> NDArray[np.float32]:
        """One raw observation from JSON as float32 (1, N).

        Raises:
            AgentError: BAD_OBSERVATION: the length, or the name of the first element that is no finite float32.
        """
        spec = self.bundle.spec
        if type(values) is not list or len(values) != spec.observation_size:
            received = f"{len(values)} values" if isinstance(values, list) else short(values)
            wanted = f"{spec.observation_size} numbers: " + ", ".join(f"{f.name} ({f.size})" for f in spec.observation)
            raise AgentError(
                ErrorCode.BAD_OBSERVATION,
                f"{where} is {received}; policy {spec.name!r} takes a list of {wanted}.",
                f'For example: {{"op": "act", "observation": {self.example(4)}}}',
            )
        # On the decide path, where numpy's own checks of so few numbers would take longer than a small policy.
        good = {*map(type, values)} <= _NUMBERS and min(values) >= -_LARGEST and max(values) <= _LARGEST
        if not good or not math.isfinite(sum(values)):  # the sum finds a NaN, which compares as it likes
            raise _bad_element(spec, values, where)
        return np.array([values], np.float32)

    def example(self, count: int) -> str:
        """The first numbers of a golden observation, as one would type them."""
        numbers = [f"{value:.3g}" for value in self.observations[0][0][:count].tolist()]
        return f"[{', '.join(numbers)}{', …' if self.bundle.spec.observation_size > count else ''}]"


def element_name(spec: PolicySpec, index: int) -> str:
    """Name of an element of the flattened observation, e.g. ``ranges[7]`` or ``goal_distance``."""
    for observed in spec.observation:
        if index < observed.size:
            return observed.name if observed.size == 1 else f"{observed.name}[{index}]"
        index -= observed.size
    raise IndexError(index)


def _bad_element(spec: PolicySpec, values: list[Any], where: str) -> AgentError:
    for index, value in enumerate(values):
        if type(value) not in _NUMBERS:
            received = f"is {short(value)}"
        elif isinstance(value, float) and not math.isfinite(value):
            received = f"is {value} (a larger number than a double holds is read as inf)"
        elif abs(value) > _LARGEST:
            received = "is beyond the range of float32"
        else:
            continue
        return AgentError(
            ErrorCode.BAD_OBSERVATION,
            f"{where}[{index}] ({element_name(spec, index)}) {received}; "
            f"allowed are finite numbers up to ±{_LARGEST:.3g}.",
            "Send the raw observation in physical units; the normaliser is inside the artifact.",
        )
    return AgentError(ErrorCode.BAD_OBSERVATION, f"{where} holds a number that float32 cannot.", "Send finite numbers.")
