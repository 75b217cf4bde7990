"""Graphs in the runtimes that take and give numpy's arrays: tflite-runtime, LiteRT, onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.policy.spec import DiscreteHead, MultiDiscreteHead, PolicySpec

Floats = NDArray[np.float32]
NOTHING: Floats = np.zeros(0, np.float32)
STATE, NEXT_STATE = "state", "next_state"
"""Names of a recurrent policy's further tensors: convert/interface.py."""


class _Arrays:
    """Inputs as these runtimes take them."""

    def input(self, values: Sequence[float]) -> Floats:
        """See :class:`device.agent.executing.Executor`: (1, N)."""
        return np.asarray(values, np.float32)[None]

    def is_finite(self, observation: Floats) -> bool:
        """See :class:`device.agent.executing.Executor`."""
        # Their squares' sum is finite where all of them are; where it is not, one of them may just be very large.
        return math.isfinite(np.vdot(observation, observation)) or bool(np.isfinite(observation).all())


class LiteExecutor(_Arrays):
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
        tensors = _match(spec, inputs, results)
        self._input, self._outputs = tensors.observation.key, tensors.outputs.key
        self._action = None if tensors.action is None else tensors.action.key
        self._state = None if tensors.state is None else tensors.state.key
        self._next = None if tensors.next_state is None else tensors.next_state.key
        self._choose, self._sensed = _components(spec), spec.input_size
        self._set, self._invoke, self._get = interpreter.set_tensor, interpreter.invoke, interpreter.get_tensor

    def decide(self, observation: Floats) -> Any:
        """See :class:`device.agent.executing.Executor`."""
        if self._state is None:
            self._set(self._input, observation)
        else:
            self._set(self._input, observation[:, : self._sensed])
            self._set(self._state, observation[:, self._sensed :])
        self._invoke()
        if self._action is not None:
            return self._get(self._action).item()
        return self._choose(self._get(self._outputs)[0])

    def outputs(self) -> Floats:
        """See :class:`device.agent.executing.Executor`."""
        result: Floats = self._get(self._outputs)[0]
        return result

    def state(self) -> Floats:
        """See :class:`device.agent.executing.Executor`."""
        return NOTHING if self._next is None else self._get(self._next)[0]


class OnnxExecutor(_Arrays):
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
        tensors = _match(spec, inputs, results)
        # Observation and state lie one behind the other, and so each is a view that a tensor is bound to.
        self._whole = np.zeros((1, spec.observation_size), np.float32)
        self._outputs, self._next = (np.zeros((1, size), np.float32) for size in (spec.output_size, spec.state_size))
        self._action = None if tensors.action is None else np.zeros(tensors.action.shape, tensors.action.dtype)
        binding = session.io_binding()
        _bind(binding.bind_input, tensors.observation, self._whole[:, : spec.input_size])
        _bind(binding.bind_input, tensors.state, self._whole[:, spec.input_size :])
        _bind(binding.bind_output, tensors.outputs, self._outputs)
        _bind(binding.bind_output, tensors.next_state, self._next)
        _bind(binding.bind_output, tensors.action, self._action)
        self._run, self._binding, self._choose = session.run_with_iobinding, binding, _components(spec)

    def decide(self, observation: Floats) -> Any:
        """See :class:`device.agent.executing.Executor`."""
        np.copyto(self._whole, observation)
        self._run(self._binding)
        return self._choose(self._outputs[0].copy()) if self._action is None else self._action.item()

    def outputs(self) -> Floats:
        """See :class:`device.agent.executing.Executor`."""
        return self._outputs[0].copy()

    def state(self) -> Floats:
        """See :class:`device.agent.executing.Executor`."""
        return self._next[0].copy()


def onnx_session_options(module: Any) -> Any:
    """Fresh options of onnxruntime, with integer products that are exact on every processor.

    x86 without VNNI multiplies uint8 by int8 in pairs whose 16-bit sum saturates: int8 policies were up to 66 output
    steps off there. With this entry the weights become uint8 when a session begins on such a processor, whose products
    cannot saturate; on others nothing changes.
    """
    options = module.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


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


def _bind(bind: Any, tensor: _Tensor | None, array: NDArray[Any] | None) -> None:
    if tensor is not None:
        assert array is not None
        bind(tensor.key, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


def _components(spec: PolicySpec) -> Callable[[Floats], Any]:
    """Return what makes the choice of a graph's outputs (A,) where the graph does not choose itself."""
    head = spec.head
    return (lambda outputs: head.choose(outputs.tolist())) if isinstance(head, MultiDiscreteHead) else lambda row: row


class _Found(NamedTuple):
    """The tensors of a graph, by what they mean; without a state, or where the graph makes no choice, None."""

    observation: _Tensor
    outputs: _Tensor
    action: _Tensor | None
    state: _Tensor | None
    next_state: _Tensor | None


def _match(spec: PolicySpec, inputs: list[_Tensor], results: list[_Tensor]) -> _Found:
    """Return the tensors of a graph, told apart by type and shape, which every converter keeps; states by their names.

    Raises:
        AgentError: RUNTIME: the graph is not one of this policy; says what it has and what is wanted.
    """
    state = [t for t in inputs if t.name == STATE and spec.state_size]
    following = [t for t in results if t.name == NEXT_STATE and spec.state_size]
    rest = [t for t in inputs if t not in state], [t for t in results if t not in following]
    floats = [t for t in rest[1] if t.dtype == np.float32 and t.shape == (1, spec.output_size)]
    integers = [t for t in rest[1] if t.dtype in (np.int32, np.int64) and np.prod(t.shape, dtype=int) == 1]
    source = [t for t in rest[0] if t.dtype == np.float32 and t.shape == (1, spec.input_size)]
    of_state = [(t.dtype, t.shape) for t in (*state, *following)]
    if (
        (len(rest[0]), len(source), len(floats)) == (1, 1, 1)
        and len(rest[1]) - 1 == len(integers) == int(isinstance(spec.head, DiscreteHead))
        and of_state == 2 * bool(spec.state_size) * [(np.float32, (1, spec.state_size))]
    ):
        return _Found(
            source[0], floats[0], *(tensors[0] if tensors else None for tensors in (integers, state, following))
        )
    wanted = f"float32[1, {spec.input_size}]" + (f" and {STATE} [1, {spec.state_size}]" if spec.state_size else "")
    outputs = f"float32[1, {spec.output_size}]" + (" and an integer [1]" if isinstance(spec.head, DiscreteHead) else "")
    outputs += f" and {NEXT_STATE} [1, {spec.state_size}]" if spec.state_size else ""
    raise AgentError(
        ErrorCode.RUNTIME,
        f"the graph must take {wanted} and return {outputs} for policy {spec.name!r}, got "
        f"{', '.join(map(str, inputs))} and {', '.join(map(str, results))}.",
        "Convert the policy again.",
    )
