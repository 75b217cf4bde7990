"""The agent: takes one line, answers one line. Whatever a line asks, the answer is a reply and the agent lives on."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quarl.device.agent import AGENT_VERSION, conditions, measure, memory
from quarl.device.agent.executing import choice_values
from quarl.device.agent.fingerprint import emulation, fingerprint, mhz_nominal
from quarl.device.agent.measure import Statistics
from quarl.device.agent.memory import MemoryLog
from quarl.device.agent.operations import (
    Act,
    FlyEpisodes,
    Hello,
    Help,
    Latency,
    Load,
    Memory,
    Request,
    TimedPath,
    help_reply,
    parse_request,
)
from quarl.device.agent.protocol import PROTOCOL_VERSION, AgentError, ErrorCode, encode, parse_json, request_id
from quarl.device.agent.runtimes import find_installed_runtimes
from quarl.device.agent.serving import Serving, load
from quarl.policy.errors import BundleError, PolicyError, SpecError
from quarl.policy.reading import ArtifactEntry, is_regular, read_manifest, read_spec
from quarl.policy.spec import PolicySpec

PROGRESS_INTERVAL_NS = 500_000_000
SIMULATOR = ("numpy", "quarl.airlearning_envs.flights")
"""What flights on the device need."""
SLOW_CLOCK = 0.9
"""A clock below this share of the nominal one is mentioned."""


class Agent:
    """Holds what is served and answers requests.

    Args:
        bundle: the bundle's folder; it is read when a request needs it.
        threads: threads of the runtime where a load request names none.
        emit: writes a line before the reply (progress).
        manifest: sha256 that the bundle's manifest must have, as its release was signed with; empty: any.
    """

    def __init__(
        self, bundle: Path, threads: int = 1, emit: Callable[[bytes], None] = lambda line: None, manifest: str = ""
    ) -> None:
        self._path, self._threads, self._emit, self._manifest = bundle, threads, emit, manifest
        self._serving: Serving | None = None
        memory.give_back_free_heap()
        self._memory = MemoryLog(baseline=memory.read().now)
        self._ready_ns: int | None = None
        self.ended = False

    def ready(self) -> None:
        """Remember how long starting took; the first request is about to be read."""
        self._ready_ns = since_process_start_ns()

    def handle(self, line: bytes) -> bytes:
        """Answer one request line with one reply line; never raises an Exception."""
        name: str | None = None
        identity: dict[str, Any] = {}
        try:
            data = parse_json(line)
            name = data["op"] if isinstance(data.get("op"), str) else None
            if "id" in data:
                identity = {"id": request_id(data)}
            body = self.answer(parse_request(data))
            return encode({"ok": True, "op": name, **identity, **body})
        except Exception as error:
            return encode({"ok": False, "op": name and name[:60], **identity, "error": error_reply(error)})

    def answer(self, request: Request) -> dict[str, Any]:
        """Return the body of the reply to a valid request.

        Raises:
            PolicyError: the request is refused.
        """
        if isinstance(request, Help):
            return help_reply()
        if isinstance(request, Hello):
            return self._hello()
        if isinstance(request, Load):
            return self.load(request)
        if isinstance(request, Latency):
            return self._latency(request, self.serving)
        if isinstance(request, Memory):
            return self._measure_memory(request, self.serving)
        if isinstance(request, FlyEpisodes):
            return self._fly(request, self.serving)
        if isinstance(request, Act):
            return self._act(request, self.serving)
        self.ended = True
        return {"decisions": 0 if self._serving is None else self._serving.decisions}

    def _fly(self, request: FlyEpisodes, serving: Serving) -> dict[str, Any]:
        if importlib.util.find_spec("numpy") is None:
            raise AgentError(
                ErrorCode.UNAVAILABLE,
                "flights on this device need numpy, which is not installed here.",
                "Simulate on the host (bench/success.py --on loop), or install numpy on this device (apt-get install "
                "python3-numpy).",
            )
        from quarl.device.agent.flights import fly_episodes  # the simulator costs import time

        return fly_episodes(serving, request, self._progress("episodes"))

    @property
    def serving(self) -> Serving:
        """What is served.

        Raises:
            AgentError: NOT_LOADED: nothing is.
        """
        if self._serving is None:
            raise AgentError(
                ErrorCode.NOT_LOADED,
                "nothing is loaded yet; load an artifact first.",
                'Type {"op": "load", "precision": "int8"}',
            )
        return self._serving

    def _hello(self) -> dict[str, Any]:
        runtimes = find_installed_runtimes()
        bundle, bundle_error = None, None
        try:
            bundle = describe_bundle(self._path, self._manifest)
        except PolicyError as error:
            bundle_error = error_reply(error)
        return {
            "protocol": PROTOCOL_VERSION,
            "agent": {"version": AGENT_VERSION, "pid": os.getpid(), "ready_ns": self._ready_ns},
            "device": fingerprint(),
            "runtimes": {name.value: version for name, version in runtimes.items()},
            "preferred_runtime": next((name.value for name in runtimes), None),
            "simulator": all(map(importlib.util.find_spec, SIMULATOR)),
            "bundle": bundle,
            "bundle_error": bundle_error,
            "loaded": None if self._serving is None else self._serving.to_dict(),
        }

    def load(self, request: Load) -> dict[str, Any]:
        """Verify an artifact and serve it; a refused one leaves the old one serving. Returns the reply's body.

        Raises:
            PolicyError: it is not as it should be.
        """
        # What was served goes on being served unless everything about the new artifact is right.
        decisions = 0 if self._serving is None else self._serving.decisions
        loaded = load(self._path, request, self._threads, self._memory, self._manifest)
        loaded.decisions = decisions
        self._serving = loaded
        return {
            "loaded": loaded.to_dict(),
            "golden": loaded.golden,
            "memory": self._memory.to_dict(),
            "cold": loaded.cold,
        }

    def _latency(self, request: Latency, serving: Serving) -> dict[str, Any]:
        call: Callable[[Any], object]
        inputs: list[Any]
        if request.path is TimedPath.RUNTIME:
            call, inputs = serving.executor.decide, serving.observations
        else:
            call = self.handle
            inputs = [serving.request_line(row) for row in serving.rows]
            if not (reply := json.loads(self.handle(inputs[0])))["ok"]:
                raise AgentError(ErrorCode.INTERNAL, f"the timed decision failed: {reply['error']['message']}", "")
        looks = [conditions.look()]
        progress = self._progress("latency")

        def between(done: int) -> None:
            looks.append(conditions.look())
            progress(done, request.runs)

        usage = resource.getrusage(resource.RUSAGE_SELF)
        times = measure.time_calls(call, inputs, request.warmup, request.runs, between)
        used = resource.getrusage(resource.RUSAGE_SELF)
        looks.append(conditions.look())
        if request.path is TimedPath.RUNTIME:
            serving.decisions += request.warmup + request.runs
        times.sort()
        reasons = conditions.invalid_reasons(looks)
        return {
            "loaded": serving.to_dict(),
            "path": request.path.value,
            "warmup": request.warmup,
            "cold_first_ns": serving.cold["first_ns"],
            "load_ns": serving.cold["total_ns"],
            **vars(Statistics.of(times)),
            "samples_ns": measure.thin(times),
            "timer": measure.timer_overhead(),
            "before": asdict(looks[0]),
            "after": asdict(looks[-1]),
            "context_switches": {
                "voluntary": used.ru_nvcsw - usage.ru_nvcsw,
                "involuntary": used.ru_nivcsw - usage.ru_nivcsw,
            },
            "page_faults": {"minor": used.ru_minflt - usage.ru_minflt, "major": used.ru_majflt - usage.ru_majflt},
            "valid": not reasons,
            "invalid_reasons": reasons,
            "notes": notes(looks),
        }

    def _measure_memory(self, request: Memory, serving: Serving) -> dict[str, Any]:
        rows = serving.observations
        self._memory.start_running()
        for index in range(request.runs):
            serving.executor.decide(rows[index % len(rows)])
        self._memory.end_running()
        serving.decisions += request.runs
        return {
            "loaded": serving.to_dict(),
            "memory": self._memory.to_dict(),
            "artifact_bytes": serving.entry.record.size,
            "runs": request.runs,
        }

    def _act(self, request: Act, serving: Serving) -> dict[str, Any]:
        begin = time.perf_counter_ns()
        inputs = [value for value in (request.observation, request.observations, request.period) if value is not None]
        if len(inputs) != 1:
            raise AgentError(
                ErrorCode.BAD_FIELD if inputs else ErrorCode.MISSING_FIELD,
                'act takes one of "observation" (a list of numbers), "observations" (a list of them) and "period".',
                f'For example: {{"op": "act", "observation": {serving.example(4)}}}',
            )
        if request.period is not None:
            rows = [serving.observe_period(request.period, request.start)]
        elif request.observation is not None:
            rows = [serving.read_observation(request.observation)]
        else:
            listed = enumerate(request.observations or ())
            rows = [serving.read_observation(row, f"observations[{index}]") for index, row in listed]
        actions: list[Any] = []
        outputs, times, states = [], [], []
        for row in rows:
            start = time.perf_counter_ns()
            action = serving.executor.decide(row)
            times.append(time.perf_counter_ns() - start)
            row_outputs = serving.finite_outputs(
                f"observations[{len(actions)}]" if request.observations else "this observation"
            )
            if request.period is not None:
                serving.settle()
            elif serving.bundle.spec.state_size:
                states.append(serving.executor.state().tolist())
            actions.append(serving.bundle.spec.head.to_action(choice_values(action)))
            if request.outputs:
                outputs.append(row_outputs)
        serving.decisions += len(rows)
        single = request.observations is None
        reply: dict[str, Any] = {"action": actions[0]} if single else {"actions": actions}
        if request.outputs:
            reply["outputs"] = outputs[0] if single else outputs
        if states:
            reply |= {"state": states[0]} if single else {"states": states}
        reply["inference_ns"] = times[0] if single else times
        reply["request_ns"] = time.perf_counter_ns() - begin
        return reply

    def _progress(self, operation: str) -> Callable[[int, int], None]:
        due = 0

        def progress(done: int, total: int) -> None:
            nonlocal due
            now = time.monotonic_ns()
            if now >= due:
                due = now + PROGRESS_INTERVAL_NS
                self._emit(encode({"progress": {"op": operation, "done": done, "total": total}}))

        return progress


def describe_bundle(path: Path, sha256: str = "") -> dict[str, Any]:
    """Return what the bundle says of itself; other files than its spec are verified when something is loaded from it.

    Raises:
        BundleError: the manifest or the spec is missing, damaged or unreadable, or the manifest has another sha256.
    """
    manifest = read_manifest(path, sha256)
    spec = read_spec(path, manifest)
    present = [entry for name, entry in sorted(manifest.artifacts.items()) if is_regular(path / name)]
    return describe_policy(path, spec, present)


def describe_policy(path: Path, spec: PolicySpec, artifacts: Sequence[ArtifactEntry]) -> dict[str, Any]:
    """Return the bundle of the protocol's hello, with these of its artifacts."""
    return {
        "path": str(path),
        "policy": spec.name,
        "observation_size": spec.observation_size,
        "output_size": spec.output_size,
        "discrete": spec.is_discrete,
        "control_period_s": spec.control_period_s,
        "environment": spec.environment.id,
        "precisions": sorted({entry.precision.value for entry in artifacts}),
        "artifacts": [
            {
                "file": entry.file,
                "precision": entry.precision.value,
                "format": entry.format.value,
                "bytes": entry.record.size,
            }
            for entry in artifacts
        ],
    }


def error_reply(error: Exception) -> dict[str, str]:
    """Return the "error" of a reply. What nobody foresaw is logged with its place and reported as internal."""
    if isinstance(error, AgentError):
        return error.to_json()
    if isinstance(error, PolicyError):
        code = {SpecError: ErrorCode.SPEC, BundleError: ErrorCode.BUNDLE}.get(type(error), ErrorCode.BAD_REQUEST)
        message = str(error).removesuffix(error.next_step).rstrip()
        return {"code": code.value, "message": message, "next": error.next_step or "Deploy again."}
    import traceback  # only here

    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    message = f"{type(error).__name__}: {error}"[:500]
    return {"code": ErrorCode.INTERNAL.value, "message": message, "next": "See the agent's log (stderr)."}


def notes(looks: list[conditions.Conditions]) -> list[str]:
    """Return what a reader of the figures should know although it does not make them invalid."""
    notes = []
    cpuinfo = conditions.read_cpuinfo(conditions.ROOT)
    emulated, _, evidence = emulation(conditions.ROOT, cpuinfo, os.uname().machine, os.uname().release)
    if emulated:
        notes.append(f"emulated: {'; '.join(evidence)}")
    nominal, clock = mhz_nominal(conditions.ROOT, cpuinfo), looks[-1].mhz_firmware or looks[-1].mhz_now
    if nominal and clock and clock < SLOW_CLOCK * nominal:
        notes.append(f"the clock was {clock:.0f} MHz at the end, of {nominal:.0f} MHz")
    if looks[0].throttled is not None and looks[0].throttled.occurred:
        notes.append(f"since boot, before this measurement: {', '.join(looks[0].throttled.occurred)}")
    if looks[0].governor not in (None, "performance"):
        notes.append(f"the clock is governed by {looks[0].governor!r}, so the first runs may be slower")
    if (looks[0].load_1min or 0.0) > (os.cpu_count() or 1):
        notes.append(f"other work kept the cores busy: load average {looks[0].load_1min}")
    return notes


def since_process_start_ns() -> int | None:
    """Time since this process began, ns, to the kernel's tick (10 ms); None where /proc does not say."""
    try:
        # Field 22 of /proc/self/stat, in ticks since boot; the name before it may hold spaces and parentheses.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
