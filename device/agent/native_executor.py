"""The project's own engine as an executor: without numpy, which a device need not have for it."""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quarl.device.agent.executing import Input, runtime_error
from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.policy.spec import DiscreteHead, PolicySpec, RuntimeName

CHECKED = 8
"""Observations on which the engine decides alike before and after its layers' modes were chosen."""


class NativeExecutor:
    """See :class:`device.agent.executing.Executor`.

    Its helping threads begin only where an artifact has layers that are large enough, and end with the executor.

    Raises:
        AgentError: BAD_FIELD: more threads than it takes.
    """

    def __init__(self, module: Any, model: Path | bytes | mmap.mmap, spec: PolicySpec, threads: int) -> None:
        if threads > module.MOST_THREADS:
            raise AgentError(
                ErrorCode.BAD_FIELD,
                f"threads must be 1 to {module.MOST_THREADS} for the native engine, got {threads}.",
                f"Load it with threads={module.MOST_THREADS}, or fewer.",
            )
        artifact = model.read_bytes() if isinstance(model, Path) else model
        self._output_size = spec.output_size
        self._library: Path = module.library()
        self._engine = module.Engine(self._library, artifact, spec.observation_size, spec.result_size, threads)
        self._choose = spec.head.choose
        # Of several components the engine's index over all outputs means nothing.
        self.decide = self._engine.decide if isinstance(spec.head, DiscreteHead) else self._by_outputs

    @staticmethod
    def input(values: Sequence[float]) -> Input:
        """See :class:`device.agent.executing.Executor`."""
        return values if isinstance(values, memoryview) else array("f", values)

    @staticmethod
    def is_finite(observation: Input) -> bool:
        """See :class:`device.agent.executing.Executor`."""
        return math.isfinite(sum(observation))  # as doubles, any number of float32 have a finite sum

    def _by_outputs(self, observation: Input) -> Any:
        self._engine.decide(observation)
        return self._choose(self.outputs())

    def outputs(self) -> array[float]:
        """See :class:`device.agent.executing.Executor`."""
        result: array[float] = self._engine.outputs[: self._output_size]
        return result

    def state(self) -> array[float]:
        """See :class:`device.agent.executing.Executor`."""
        result: array[float] = self._engine.outputs[self._output_size :]
        return result

    def choose_modes(self, observations: Sequence[Input], bundle: Path, sha256: str) -> None:
        """Execute each layer as is faster on this device: as was measured before, or is measured now.

        Args:
            observations: real ones, of :meth:`input`.
            bundle: the folder; of a release, what is measured is kept for its next start.
            sha256: of the artifact.

        Raises:
            AgentError: RUNTIME: the engine then decides otherwise than before, which no choice may make it do.
        """
        from quarl.device.engine import modes  # as import_runtime: by name, and only where it is asked for

        engine, path, few = self._engine, modes.find_kept_file(bundle), observations[:CHECKED]
        before = [(self.decide(item), self.outputs().tobytes())[1] for item in few]
        key = modes.key_of(engine, self._library, sha256)
        chosen = modes.read_kept_modes(path, key, len(engine.modes))
        if chosen is None:
            measured = modes.measure_modes(engine, observations)
            chosen = tuple(item.faster for item in measured)
            modes.keep_modes(path, key, measured)
        engine.modes = chosen
        if before != [(self.decide(item), self.outputs().tobytes())[1] for item in few]:
            raise runtime_error(
                RuntimeName.NATIVE, ValueError("its decisions differ between two modes of its layers, which must agree")
            )

    @property
    def in_c(self) -> tuple[Any, Any, Any]:
        """See :attr:`device.engine.engine.Engine.in_c`."""
        functions: tuple[Any, Any, Any] = self._engine.in_c
        return functions

    @property
    def modes(self) -> tuple[str, ...]:
        """How each layer is executed: ``dense``, all rows of weights, or ``sparse``, those that count."""
        return tuple(mode.name.lower() for mode in self._engine.modes)
