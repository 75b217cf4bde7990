"""The inference runtimes behind one face. Each is imported only when it is asked for; a process should use one of them.

Order of preference among the installed ones that can execute an artifact:

1. LiteRT: the fastest in every precision on x86 and Arm, and still maintained;
2. tflite-runtime: the same kernels, older; all there is for a 32-bit Pi;
3. onnxruntime: about three times the overhead a call, which is most of a small policy's time;
4. native, the project's own engine, for artifacts of its own: where it is asked for.

Every graph takes "observation" float32 (1, N) and gives "logits" float32 (1, A) and "action" integer (1,);
a continuous policy's graph gives "action" float32 (1, A) alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device import native
from device.agent.protocol import AgentError, ErrorCode
from policy.spec import PolicySpec, RuntimeName

PREFERENCE = (RuntimeName.LITERT, RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE)

PACKAGES = {
    RuntimeName.LITERT: "ai_edge_litert",
    RuntimeName.TFLITE_RUNTIME: "tflite_runtime",
    RuntimeName.ONNXRUNTIME: "onnxruntime",
}

CHECKED = 8
"""Observations on which the native engine decides alike before and after its layers' modes were chosen."""

Floats = NDArray[np.float32]


class Executor(Protocol):
    """A loaded artifact."""

    def decide(self, observation: Floats) -> Any:
        """One decision, with as little around the runtime as possible.

        Args:
            observation: raw float32 (1, N), C-contiguous.

        Returns:
            int for a discrete policy, float32 (A,) for a continuous one.
        """

    def outputs(self) -> Floats:
        """Outputs (A,) of the last decision: logits, or the continuous action. A copy."""


def installed_runtimes() -> dict[RuntimeName, str]:
    """The runtimes that are installed here with their versions, in order of preference; none is imported."""
    found: dict[RuntimeName, str] = {}
    for name in PREFERENCE:
        if name is RuntimeName.NATIVE:
            if native.is_here():
                found[name] = native.VERSION
            continue
        spec = importlib.util.find_spec(PACKAGES[name])
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations))).parent
            found[name] = _distribution_version(folder, str(name.distribution))
    return found


def _distribution_version(folder: Path, distribution: str) -> str:
    # importlib.metadata would import the whole e-mail package for this; the folder's name says it too.
    prefix = distribution.replace("-", "_") + "-"
    for entry in sorted(folder.glob(f"{prefix}*.dist-info")):
        return entry.name.removeprefix(prefix).removesuffix(".dist-info")
    return "unknown"


def imported_runtime() -> RuntimeName | None:
    """The runtime that this process has imported, if any; one whose import failed leaves its package, but is none."""
    return next((name for name in PREFERENCE if _module_of(name) in sys.modules), None)


def _module_of(name: RuntimeName) -> str:
    if name is RuntimeName.NATIVE:
        return "device.native.engine"
    return PACKAGES[name] if name is RuntimeName.ONNXRUNTIME else f"{PACKAGES[name]}.interpreter"


def import_runtime(name: RuntimeName) -> Any:
    """The runtime's module. onnxruntime is kept from reporting to its maker: this one place imports it.

    Raises:
        AgentError: UNAVAILABLE: it is not installed or cannot be loaded here; says why and which ones are installed.
    """
    # onnxruntime 1.31 otherwise writes a device id and a database into ~/.cache and sends events from a thread.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        if name is RuntimeName.NATIVE:
            from device.native import engine  # by name, so that it is found to be a part of a release

            return engine
        return importlib.import_module(_module_of(name))
    except Exception as error:  # a wheel for another C library or numpy raises whatever it likes
        installed = ", ".join(f"{other.value} {version}" for other, version in installed_runtimes().items()) or "none"
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"the runtime {name.value} cannot be imported here ({type(error).__name__}: {error}); "
            f"installed are: {installed}.",
            way_to_install(name),
        ) from error


def way_to_install(name: RuntimeName) -> str:
    """Advice to type where a runtime is missing."""
    return f"Type: pip install {name.distribution}" if name.distribution else "Deploy the policy with RUNTIME=native."


def open_artifact(name: RuntimeName, model: Path | bytes, spec: PolicySpec, threads: int = 1) -> Executor:
    """Load an artifact into a runtime.

    Args:
        name: the runtime.
        model: the artifact's bytes, verified; or its path, which a runtime maps, so that whoever changes the file
            changes what is decided.
        spec: the policy; the graph's inputs and outputs must be its.
        threads: threads of the runtime.

    Raises:
        AgentError: UNAVAILABLE (no such runtime here) or RUNTIME (the runtime refuses the graph, or the graph is not
            one of this policy).
    """
    module = import_runtime(name)
    try:
        if name is RuntimeName.ONNXRUNTIME:
            return OnnxExecutor(module, model, spec, threads)
        if name is RuntimeName.NATIVE:
            return NativeExecutor(module, model, spec, threads)
        return LiteExecutor(module, model, spec, threads)
    except AgentError:
        raise
    except Exception as error:  # each runtime has errors of its own kinds
        raise runtime_error(name, error) from error


def runtime_error(name: RuntimeName, error: Exception) -> AgentError:
    """RUNTIME: the runtime refuses an artifact, in its own words."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return AgentError(
        ErrorCode.RUNTIME,
        f"{name.value} cannot execute this artifact: {first_line}",
        "Convert it again, or load another runtime or precision.",
    )


class LiteExecutor:
    """tflite-runtime and LiteRT, which share one interface.

    ``set_tensor``, ``invoke``, ``get_tensor`` is the fastest public way: holding a view of a tensor would make
    ``invoke`` refuse, and making a new one each time costs more than the copy of a few floats.
    """

    def __init__(self, module: Any, model: Path | bytes, spec: PolicySpec, threads: int) -> None:
        content = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
        interpreter = module.Interpreter(**content, num_threads=threads)
        interpreter.allocate_tensors()
        inputs = [_Tensor(d["index"], d["name"], d["shape"], d["dtype"]) for d in interpreter.get_input_details()]
        results = [_Tensor(d["index"], d["name"], d["shape"], d["dtype"]) for d in interpreter.get_output_details()]
        source, outputs, action = _match(spec, inputs, results)
        self._input, self._outputs = source.key, outputs.key
        self._action = None if action is None else action.key
        self._set, self._invoke, self._get = interpreter.set_tensor, interpreter.invoke, interpreter.get_tensor

    def decide(self, observation: Floats) -> Any:
        """See :class:`Executor`."""
        self._set(self._input, observation)
        self._invoke()
        if self._action is None:
            return self._get(self._outputs)[0]
        return self._get(self._action).item()

    def outputs(self) -> Floats:
        """See :class:`Executor`."""
        result: Floats = self._get(self._outputs)[0]
        return result


class OnnxExecutor:
    """onnxruntime with input and outputs bound to fixed arrays, so that a call allocates and looks up nothing."""

    def __init__(self, module: Any, model: Path | bytes, spec: PolicySpec, threads: int) -> None:
        module.set_default_logger_severity(3)  # errors only
        options = onnx_session_options(module)
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = module.ExecutionMode.ORT_SEQUENTIAL
        content = model if isinstance(model, bytes) else str(model)
        session = module.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs = [_Tensor(a.name, a.name, a.shape, _ONNX_TYPES.get(a.type)) for a in session.get_inputs()]
        results = [_Tensor(a.name, a.name, a.shape, _ONNX_TYPES.get(a.type)) for a in session.get_outputs()]
        source, outputs, action = _match(spec, inputs, results)
        self._observation = np.zeros((1, spec.observation_size), np.float32)
        self._outputs = np.zeros((1, spec.output_size), np.float32)
        self._action = None if action is None else np.zeros(action.shape, action.dtype)
        binding = session.io_binding()
        _bind(binding.bind_input, source.key, self._observation)
        _bind(binding.bind_output, outputs.key, self._outputs)
        if action is not None:
            _bind(binding.bind_output, action.key, self._action)
        self._run, self._binding = session.run_with_iobinding, binding

    def decide(self, observation: Floats) -> Any:
        """See :class:`Executor`."""
        np.copyto(self._observation, observation)
        self._run(self._binding)
        return self._outputs[0].copy() if self._action is None else self._action.item()

    def outputs(self) -> Floats:
        """See :class:`Executor`."""
        return self._outputs[0].copy()


class NativeExecutor:
    """The project's own engine; ``decide``: see :class:`Executor`.

    Its helping threads begin only where an artifact has layers that are large enough, and end with the executor.

    Raises:
        AgentError: BAD_FIELD: more threads than it takes.
    """

    def __init__(self, module: Any, model: Path | bytes, spec: PolicySpec, threads: int) -> None:
        if threads > module.MOST_THREADS:
            raise AgentError(
                ErrorCode.BAD_FIELD,
                f"threads is {threads}; the native engine takes 1 to {module.MOST_THREADS}.",
                f"Load it with threads={module.MOST_THREADS}, or fewer.",
            )
        artifact = model if isinstance(model, bytes) else model.read_bytes()
        self._library: Path = module.library()
        self._engine = module.Engine(self._library, artifact, spec.observation_size, spec.output_size, threads)
        self.decide = self._engine.decide if spec.is_discrete else self._continuous

    def _continuous(self, observation: Floats) -> Floats:
        self._engine.decide(observation)
        return self.outputs()

    def outputs(self) -> Floats:
        """See :class:`Executor`."""
        result: Floats = self._engine.outputs.copy()
        return result

    def choose_modes(self, observations: Sequence[Floats], bundle: Path, sha256: str) -> None:
        """Execute each layer as is faster on this device: as was measured before, or is measured now.

        Args:
            observations: real ones, each float32 (1, N).
            bundle: the folder; of a release, what is measured is kept for its next start.
            sha256: of the artifact.

        Raises:
            AgentError: RUNTIME: the engine then decides otherwise than before, which no choice may make it do.
        """
        from device.native import modes  # as import_runtime: by name, and only where it is asked for

        engine, path, few = self._engine, modes.kept_file(bundle), observations[:CHECKED]
        before = [(self.decide(each), self.outputs().tobytes())[1] for each in few]
        key = modes.key_of(engine, self._library, sha256)
        chosen = modes.kept_modes(path, key, len(engine.modes))
        if chosen is None:
            measured = modes.measured_modes(engine, observations)
            chosen = tuple(each.faster for each in measured)
            modes.keep_modes(path, key, measured)
        engine.modes = chosen
        if before != [(self.decide(each), self.outputs().tobytes())[1] for each in few]:
            raise runtime_error(RuntimeName.NATIVE, ValueError("it decides otherwise in another mode of its layers"))

    @property
    def modes(self) -> tuple[str, ...]:
        """How each layer is executed: ``dense``, all rows of weights, or ``sparse``, those that count."""
        return tuple(mode.name.lower() for mode in self._engine.modes)


def onnx_session_options(module: Any) -> Any:
    """Fresh options of onnxruntime, with integer products that are exact on every processor.

    x86 without VNNI multiplies uint8 by int8 in pairs whose 16-bit sum saturates: int8 policies were up to 66 output
    steps off there. With this entry the weights become uint8 when a session begins on such a processor, whose products
    cannot saturate; on others nothing changes.
    """
    options = module.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def _bind(bind: Any, name: str, array: NDArray[Any] | None) -> None:
    assert array is not None
    bind(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


_ONNX_TYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}


class _Tensor:
    """An input or output of a graph as a runtime describes it; ``key`` is what the runtime calls it by."""

    def __init__(self, key: Any, name: str, shape: Any, dtype: Any) -> None:
        self.key, self.name, self.shape = key, name, tuple(shape)
        self.dtype = None if dtype is None else np.dtype(dtype)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def _match(spec: PolicySpec, inputs: list[_Tensor], results: list[_Tensor]) -> tuple[_Tensor, _Tensor, _Tensor | None]:
    """(observation, outputs, action or None) of a graph, told apart by type and shape, which every converter keeps.

    Raises:
        AgentError: RUNTIME: the graph is not one of this policy; says what it has and what is wanted.
    """
    floats = [t for t in results if t.dtype == np.float32 and t.shape == (1, spec.output_size)]
    integers = [t for t in results if t.dtype in (np.int32, np.int64) and np.prod(t.shape, dtype=int) == 1]
    source = [t for t in inputs if t.dtype == np.float32 and t.shape == (1, spec.observation_size)]
    wanted_results = 2 if spec.is_discrete else 1
    if (
        len(inputs) == len(source) == len(floats) == 1
        and len(results) == wanted_results
        and len(integers) == wanted_results - 1
    ):
        return source[0], floats[0], integers[0] if spec.is_discrete else None
    outputs = f"float32[1, {spec.output_size}]" + (" and an integer [1]" if spec.is_discrete else "")
    raise AgentError(
        ErrorCode.RUNTIME,
        f"the graph takes {', '.join(map(str, inputs))} and gives {', '.join(map(str, results))}; policy "
        f"{spec.name!r} needs float32[1, {spec.observation_size}] to {outputs}.",
        "Convert the policy again.",
    )
