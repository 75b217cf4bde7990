"""One artifact: verified (hash, spec, golden vectors), and only then served; and the observations that it takes."""

from __future__ import annotations

import gc
import json
import math
import mmap
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl.device.agent import memory
from quarl.device.agent.executing import Executor, Input, results, runtime_error
from quarl.device.agent.golden import check_golden
from quarl.device.agent.memory import MemoryLog
from quarl.device.agent.operations import Load
from quarl.device.agent.protocol import AgentError, ErrorCode, short
from quarl.device.agent.runtimes import (
    find_imported_runtime,
    find_installed_runtimes,
    import_runtime,
    open_artifact,
    way_to_install,
)
from quarl.policy.errors import BundleError
from quarl.policy.history import History, extract_step_inputs, remembers
from quarl.policy.reading import DEVICE_FILES, ArtifactEntry, BundleFiles
from quarl.policy.spec import PolicySpec, RuntimeName

NAVIGATION_IDS = ("AirLearning/Navigation-v0", "AirLearning/NavigationContinuous-v0")
"""Environments whose simulator ships to the device and feeds the policy there."""
NAVIGATION_DEPTH_ID = "AirLearning/NavigationDepth-v0"
"""The same simulator with a depth picture in place of the ranges."""
_NUMBERS = {int, float}
_LARGEST = 3.4028234663852886e38
"""The largest float32."""


@dataclass
class Serving:
    """A verified artifact in a runtime.

    Attributes:
        bundle, entry: what it was loaded from.
        runtime, runtime_version, threads: what executes it.
        executor: the artifact in the runtime.
        golden: what the golden vectors showed, as the protocol says it.
        cold: how long the steps of loading took, likewise.
        history: what it remembers of earlier periods, where a caller gives this period's values alone.
        rows: the golden observations, float32 (N,), to measure with.
        observations: the same as the executor takes them.
        decisions: inferences that requests have asked for.
    """

    bundle: BundleFiles
    entry: ArtifactEntry
    runtime: RuntimeName
    runtime_version: str
    threads: int
    executor: Executor
    golden: dict[str, Any]
    cold: dict[str, int]
    history: History = field(repr=False)
    rows: list[array[float]] = field(repr=False)
    observations: list[Input] = field(repr=False)
    decisions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the LOADED of the protocol."""
        return describe_loaded(self.bundle.spec, self.entry, self.runtime, self.runtime_version, self.threads)

    def finite_outputs(self, where: str) -> list[float]:
        """Return the outputs of the decision that was just made: argmax of NaN is an action, too, and none to act on.

        Raises:
            AgentError: NOT_FINITE: names the observation. A next state that is not finite is refused likewise.
        """
        outputs: list[float] = self.executor.outputs().tolist()
        # doubles that were float32: their sum is finite where all of them are
        finite = math.isfinite(sum(outputs))
        if not finite or (self.bundle.spec.state_size and not self.executor.is_finite(self.executor.state())):
            wrong = next(value for value in results(self.executor) if not math.isfinite(value))
            raise AgentError(
                ErrorCode.NOT_FINITE,
                f"{self.entry.file} computes {wrong} from {where}; that is no decision.",
                "Take the robot's own fallback; the observation may be outside of all that the policy was trained on.",
            )
        return outputs

    def read_observation(self, values: Any, where: str = "observation") -> Input:
        """Return one raw observation from JSON as the executor takes it.

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
        if not _are_finite(values):
            raise _bad_element(spec, values, where)
        return self.executor.input(values)

    def observe_period(self, values: list[Any], start: bool) -> Input:
        """Return the observation, as the executor takes it, of this period's values and of what came before.

        Args:
            values: from JSON: a row of each field that does not remember actions.
            start: whether an episode begins with them.

        Raises:
            AgentError: BAD_OBSERVATION, as :meth:`read_observation`; nothing is remembered of them then.
        """
        if len(values) != self.history.values_size:
            names = ", ".join(f"{name} ({size})" for name, size in self.history.brought)
            raise AgentError(
                ErrorCode.BAD_OBSERVATION,
                f"period is {len(values)} values; policy {self.bundle.spec.name!r} takes {self.history.values_size} "
                f"numbers of each: {names}.",
                'For example: {"op": "act", "period": [0.0, …], "start": true}',
            )
        if not _are_finite(values):
            wrong = [type(value) not in _NUMBERS or not abs(value) <= _LARGEST for value in values].index(True)
            raise AgentError(
                ErrorCode.BAD_OBSERVATION,
                f"period[{wrong}] is {short(values[wrong])}; allowed are finite numbers up to ±{_LARGEST:.3g}.",
                "Send raw values in physical units; the normaliser is inside the artifact.",
            )
        if start:
            self.history.reset()
        return self.executor.input(self.history.observe(values))

    def settle(self) -> None:
        """Remember what came of the decision that was just made from remembered values."""
        self.history.record_action(self.executor.outputs(), self.executor.state())

    def request_line(self, row: Sequence[float]) -> bytes:
        """Return how a controller asks for an observation's action: of a policy that remembers, what the period
        brings."""
        fields = self.bundle.spec.observation
        inputs = {"period": extract_step_inputs(fields, list(row))} if remembers(fields) else {"observation": list(row)}
        return json.dumps({"op": "act", **inputs, "outputs": False}).encode()

    def example(self, count: int) -> str:
        """Return the first numbers of a golden observation, as one would type them."""
        numbers = [f"{value:.3g}" for value in self.rows[0][:count]]
        return f"[{', '.join(numbers)}{', …' if self.bundle.spec.observation_size > count else ''}]"


def describe_loaded(
    spec: PolicySpec, entry: ArtifactEntry, runtime: RuntimeName, version: str, threads: int
) -> dict[str, Any]:
    """Return the LOADED of the protocol, of an artifact in a runtime."""
    return {
        "policy": spec.name,
        "file": entry.file,
        "precision": entry.precision.value,
        "format": entry.format.value,
        "scheme": entry.scheme,
        "execution": entry.execution,
        "bytes": entry.record.size,
        "sha256": entry.record.sha256,
        "runtime": runtime.value,
        "runtime_version": version,
        "threads": threads,
    }


def _are_finite(values: list[Any]) -> bool:
    """Return whether all are numbers that float32 holds. On the decide path: the whole list at a time."""
    good = {*map(type, values)} <= _NUMBERS and min(values) >= -_LARGEST and max(values) <= _LARGEST
    return good and math.isfinite(sum(values))  # the sum finds a NaN, which compares as it likes


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
    return AgentError(
        ErrorCode.BAD_OBSERVATION, f"{where} must hold numbers within the range of float32.", "Send finite numbers."
    )


def load(path: Path, request: Load, threads: int, log: MemoryLog, manifest: str = "") -> Serving:
    """Verify an artifact on this device and return it ready to serve.

    Args:
        path: the bundle.
        request: precision, runtime, threads.
        threads: of the runtime where the request names none.
        log: gets the memory before and after.
        manifest: sha256 that the bundle's manifest must have; empty: any.

    Raises:
        BundleError: something of the bundle is missing, damaged or tampered with.
        SpecError: the policy was trained on another observation than this device's simulator feeds; names the field.
        AgentError: the runtime is missing or refuses the artifact, or a golden vector differs.
    """
    begin, in_use = time.perf_counter_ns(), find_imported_runtime()
    bundle = BundleFiles.open_verified(path, DEVICE_FILES, manifest)
    runtime, entry = choose(bundle, request, in_use)
    if runtime is not RuntimeName.NATIVE:  # which needs no numpy; the simulator does, and flights are checked again
        check_simulator(bundle.spec)
    if not (bundle.path / entry.file).exists():
        raise BundleError(
            f"{bundle.path / entry.file} is listed but not on this device.",
            "Deploy this precision: quarl deploy --bits …",
        )
    expected, golden = bundle.read_expected_rows(entry), bundle.golden_rows()
    rows = list(golden.observations.floats())
    bundle.forget()
    verified = time.perf_counter_ns()

    import_runtime(runtime)
    imported = time.perf_counter_ns()
    gc.collect()
    memory.give_back_free_heap()
    log.before_load = memory.read().now
    log.loads += 1

    built_from = time.perf_counter_ns()
    count = request.threads or threads
    # These very bytes are verified and executed: the file may change, and be cut off, whenever it likes.
    model = map_artifact(bundle, entry) if runtime is RuntimeName.NATIVE else bundle.artifact_data(entry)
    executor = open_artifact(runtime, model, bundle.spec, count)
    built = time.perf_counter_ns()
    observations: list[Input] = [executor.input(row) for row in rows]
    try:
        executor.decide(observations[0])
        first = time.perf_counter_ns()
        check = check_golden(bundle.spec, entry, executor, observations, expected, golden, runtime)
        checked = time.perf_counter_ns()
        if runtime is RuntimeName.NATIVE:
            from quarl.device.agent.native_executor import NativeExecutor

            assert isinstance(executor, NativeExecutor)
            executor.choose_modes(observations, bundle.path, entry.record.sha256)
    except AgentError:
        raise
    except (ValueError, RuntimeError) as error:  # a graph that can be built and not executed
        raise runtime_error(runtime, error) from error
    end = time.perf_counter_ns()
    memory.give_back_free_heap()
    log.after_load, log.running_peak, log.peak_reset = memory.read().now, None, False
    return Serving(
        bundle=bundle,
        entry=entry,
        runtime=runtime,
        runtime_version=find_installed_runtimes()[runtime],
        threads=count,
        executor=executor,
        golden=check,
        cold={
            "import_ns": 0 if in_use else imported - verified,
            "verify_ns": verified - begin,
            "build_ns": built - built_from,
            "first_ns": first - built,
            "golden_ns": checked - first,
            "total_ns": end - begin,
        },
        history=History(bundle.spec.observation),
        rows=rows,
        observations=observations,
    )


def map_artifact(bundle: BundleFiles, entry: ArtifactEntry) -> mmap.mmap:
    """Return a native artifact's verified bytes as the engine takes them without a copy of its own.

    Of a release its file is mapped. Nobody writes to it again: another release is another folder that a link is
    switched to, and a file that is removed stays as long as it is mapped. A bundle in a checkout, or an upload that is
    checked, is read instead: cut off while it is mapped, its file would end the agent with SIGBUS.

    Raises:
        BundleError: the file is missing, damaged or tampered with.
    """
    from quarl.device.engine import modes

    return bundle.map_artifact(entry, in_place=modes.find_kept_file(bundle.path) is not None)


def check_simulator(spec: PolicySpec) -> None:
    """Refuse a navigation policy that was trained on another observation than the simulator here feeds.

    Raises:
        SpecError: names the field that differs.
    """
    if spec.environment.id in (*NAVIGATION_IDS, NAVIGATION_DEPTH_ID):
        # Only where it is needed: it costs import time.
        from quarl.airlearning_envs.config import NavigationConfig
        from quarl.airlearning_envs.rules import depth_fields, observation_fields

        fields = depth_fields if spec.environment.id == NAVIGATION_DEPTH_ID else observation_fields
        spec.check_observation(fields(NavigationConfig()))


def choose(bundle: BundleFiles, request: Load, in_use: RuntimeName | None) -> tuple[RuntimeName, ArtifactEntry]:
    """Return the runtime and the artifact that a request means.

    Raises:
        AgentError: the runtime is not installed, or another one is in use in this process.
        BundleError: the bundle has no such artifact; says which there are and what to type.
    """
    installed = tuple(find_installed_runtimes())
    if not installed:
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"no inference runtime is installed here; supported are {', '.join(name.value for name in RuntimeName)}.",
            f"Type: pip install {RuntimeName.LITERT.distribution}",
        )
    if request.runtime is not None and request.runtime not in installed:
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"the runtime {request.runtime.value} is not installed here; "
            f"installed are: {', '.join(name.value for name in installed)}.",
            way_to_install(request.runtime),
        )
    if in_use is not None and request.runtime not in (None, in_use):
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"this agent already runs on {in_use.value}; a process uses one runtime only, so that measurements are "
            "of that runtime alone.",
            'Type {"op": "bye"} and start a new agent for the other runtime.',
        )
    wanted = request.runtime or in_use
    candidates = (wanted,) if wanted else installed
    for name in candidates[:-1]:
        try:
            return name, bundle.artifact(request.precision, name.artifact_format)
        except BundleError:
            continue
    return candidates[-1], bundle.artifact(request.precision, candidates[-1].artifact_format)
