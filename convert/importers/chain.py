"""What every reader of a foreign file returns: the policy as one chain of steps, from the observation to the output.

A reader (ONNX, Stable-Baselines3, rsl_rl, CleanRL, Keras, LEAPP) knows a file format and nothing of bundles; what makes
a bundle of a chain knows bundles and no file format. A chain acts on rows: (batch, n), or images (batch, H, W, C).
What a reader cannot express as these steps it refuses, by the name that the file gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.errors import PolicyError
from quarl.policy.quantize import exactly
from quarl.policy.reference import exact_program
from quarl.policy.spec import Activation, Cell, DiscreteHead, Memory, MultiDiscreteHead, Recurrence, Remembered

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class ForeignError(PolicyError):
    """A foreign file cannot be read, or holds what a bundle cannot express; nothing was written."""


@dataclass(frozen=True)
class Input:
    """A named part of the observation.

    Attributes:
        name: as the file calls it, or ``"observation"``.
        shape: of one observation's part; images are (height, width, channels), whatever the file has.
        unit: "1" where the file says none.
        element_names: one for each element of a row, or none.
        memory: of a part that holds earlier periods, too: ``shape`` is then (periods, …).
    """

    name: str
    shape: tuple[int, ...]
    unit: str = "1"
    element_names: tuple[str, ...] = ()
    memory: Memory | None = None


@dataclass(frozen=True)
class Affine:
    """y = x · scale + offset; each (n,), or (1,) for all elements alike."""

    scale: Doubles
    offset: Doubles


@dataclass(frozen=True)
class Clip:
    """y = min(max(x, low), high); each (n,) or (1,), ±inf where nothing is cut."""

    low: Doubles
    high: Doubles


@dataclass(frozen=True)
class Dense:
    """y = x W + b: kernel (in, out), bias (out,). Images are flattened in the order (H, W, C) before it."""

    kernel: Floats
    bias: Floats


@dataclass(frozen=True)
class Convolution:
    """A square convolution without padding: kernel (side, side, in, out), bias (out,), one stride."""

    kernel: Floats
    bias: Floats
    stride: int


@dataclass(frozen=True)
class Recurrent:
    """A recurrent layer, its gates as in :mod:`policy.spec`.

    Its state comes in the observation's last elements, those of several layers in order, and the next states leave
    behind the outputs.

    Attributes:
        cell: its kind.
        kernel, bias: of what is fed to it, (in, gates) and (gates,).
        state_kernel, state_bias: of its hidden state, (units, gates) and (gates,).
    """

    cell: Cell
    kernel: Floats
    bias: Floats
    state_kernel: Floats
    state_bias: Floats

    @property
    def recurrence(self) -> Recurrence:
        """Kind and sizes, as the contract has them."""
        return Recurrence(self.cell, len(self.state_kernel))


@dataclass(frozen=True)
class LayerNorm:
    """y = γ (x − mean x) / √(var x + ε) + β over the layer's width; γ and β (n,)."""

    gamma: Floats
    beta: Floats
    epsilon: float


@dataclass(frozen=True)
class Activate:
    """An activation; ``negative_slope`` is a LeakyReLU's. Tanh behind the last Dense squashes the actions."""

    activation: Activation
    negative_slope: float = 0.01


@dataclass(frozen=True)
class Opaque:
    """A whole ONNX graph, which no other steps express; the only step before Affine and Clip.

    Attributes:
        data: the graph: ``observation`` [1, n] and, where there are states, ``state`` [1, s] to ``outputs`` [1, m] and
            ``next_state`` [1, s].
        execute: rows (batch, n + s), float32, to (batch, m + s).
        outputs: m.
        states: elements of each state.
        reason: what of it the contract cannot express.
    """

    data: bytes = field(repr=False)
    execute: Callable[[Floats], Floats] = field(repr=False)
    outputs: int
    states: tuple[int, ...]
    reason: str


Step = Affine | Clip | Dense | Convolution | Recurrent | LayerNorm | Activate | Opaque


@dataclass(frozen=True)
class Discrete:
    """The action is the first largest output; or of each of several choices, one behind the other.

    Attributes:
        names: of the actions of one choice, or empty.
        counts: outputs of each choice; empty for one choice among all outputs.
    """

    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    def head(self, outputs: int) -> DiscreteHead | MultiDiscreteHead:
        """Return the head that chooses so among this many outputs.

        Raises:
            ForeignError: there are other names or choices than outputs.
        """
        if self.counts:
            if sum(self.counts) != outputs:
                raise ForeignError(f"the policy must have {sum(self.counts)} outputs for its choices, got {outputs}.")
            return MultiDiscreteHead(self.counts)
        names = self.names or tuple(map(str, range(outputs)))
        if len(names) != outputs:
            raise ForeignError(f"the policy must have {outputs} action names, one per output, got {len(names)}.")
        return DiscreteHead(names)


@dataclass(frozen=True)
class Continuous:
    """The output is the action; ``names`` are its elements' or empty. Bounds and scale are steps of the chain."""

    names: tuple[str, ...] = ()
    unit: str = "1"


@dataclass(frozen=True)
class ForeignPolicy:
    """A policy as a file holds it.

    Attributes:
        source: program and version, e.g. ``"Stable-Baselines3 2.9.2 PPO"``.
        inputs: in the order in which they are concatenated into the observation; an image comes first.
        steps: from the concatenated raw observation to the output, in order.
        actions: None where the file does not say what the outputs mean.
        period_s: between two decisions, in seconds; None where the file does not say.
        ignored: what the file has and a policy does not need ("value network: 8 tensors"), a phrase each.
        assumed: what the file does not say and the reader took for granted, a sentence each.
        original: the file's own program, where one can run here: raw observations (batch, n) to what :func:`run` gives,
            independent of ``steps``; None where there is none.
        provenance: JSON values for policy.json: versions, training steps, hashes of the files.
        as_opaque: reads it as one ONNX graph, given what the contract cannot express; None where that is no way.
    """

    source: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    actions: Discrete | Continuous | None
    period_s: float | None = None
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    original: Callable[[Floats], Floats] | None = None
    provenance: dict[str, Any] | None = None
    as_opaque: Callable[[str], ForeignPolicy] | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether the action is the largest output's number."""
        return isinstance(self.actions, Discrete)

    @property
    def is_opaque(self) -> bool:
        """Whether it is an ONNX graph that no other steps express."""
        return any(isinstance(step, Opaque) for step in self.steps)

    @property
    def state_size(self) -> int:
        """Elements of its states."""
        return state_size(self.steps)


def relabel(policy: ForeignPolicy, change: Callable[[ForeignPolicy], ForeignPolicy]) -> ForeignPolicy:
    """Return the policy with names, units and the like changed, also where it is read as one ONNX graph later."""
    as_opaque = policy.as_opaque
    result = change(policy)
    return result if as_opaque is None else replace(result, as_opaque=lambda reason: relabel(as_opaque(reason), change))


def run(policy: ForeignPolicy, observations: np.ndarray) -> Doubles:
    """Return the outputs (batch, m) of the chain for raw observations (batch, n), in float64, step by step, nothing
    folded.

    Of a recurrent policy, the states are the last of the n elements, and the next states stand behind the m outputs.
    """
    return through(policy.steps, as_rows(policy, observations))


def count_outputs(policy: ForeignPolicy) -> int:
    """Return how many numbers the policy gives, states left out."""
    outputs = run(policy, np.zeros((1, sum(math.prod(part.shape) for part in policy.inputs))))
    return int(outputs.shape[1]) - state_size(policy.steps)


def as_rows(policy: ForeignPolicy, observations: np.ndarray) -> Doubles:
    """Raw observations (batch, n) as the chain takes them: the same, or images (batch, H, W, C), in float64."""
    x = np.asarray(observations, np.float64)
    first = policy.inputs[0]
    if len(policy.inputs) == 1 and len(first.shape) == 3:
        x = x.reshape(len(x), *first.shape)
    return x


def through(steps: Iterable[Step], x: Doubles) -> Doubles:
    """Apply these steps, from the observation on, to rows or images, in float64; errors of shapes are numpy's."""
    steps, rows = tuple(steps), x.reshape(len(x), -1)
    first = rows.shape[1] - state_size(steps)
    following = list[Doubles]()
    if first < rows.shape[1]:
        x = rows[:, :first]
    for step in steps:
        if isinstance(step, Opaque):
            x, next_state = np.split(step.execute(rows.astype(np.float32)).astype(np.float64), [step.outputs], axis=1)
            following.append(next_state)
        elif isinstance(step, Recurrent):
            size = step.recurrence.state_size
            following.append(_next_state(step, x, rows[:, first : first + size]))
            first, x = first + size, following[-1][:, : len(step.state_kernel)]
        else:
            x = _step(step, x)
    return np.concatenate([x, *following], axis=1) if following else x


def state_size(steps: Iterable[Step]) -> int:
    """Elements of the states of these steps."""
    return sum(sum(state_sizes(step)) for step in steps)


def state_sizes(step: Step) -> tuple[int, ...]:
    """Elements of each state of a step."""
    if isinstance(step, Opaque):
        return step.states
    return (step.recurrence.state_size,) if isinstance(step, Recurrent) else ()


def exclude_states(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """Return the inputs without the states of recurrent layers."""
    return tuple(part for part in inputs if part.memory is None or part.memory.of is not Remembered.STATE)


def state_inputs(
    steps: Iterable[Step], inputs: Iterable[Input], initial: Iterable[Doubles] | None = None
) -> tuple[Input, ...]:
    """Return the inputs with those of the recurrent layers' states behind them.

    Args:
        steps: of the chain.
        inputs: without states.
        initial: what each state is before the first period, (state_size,); zeros where None.
    """
    sizes = [size for step in steps for size in state_sizes(step)]
    all_inputs = list(inputs)
    for index, values in enumerate([np.zeros(size) for size in sizes] if initial is None else initial):
        name = f"state_{index}"
        while name in {part.name for part in all_inputs}:
            name += "_of_the_network"
        first = tuple(float(np.float32(value)) for value in values)
        all_inputs.append(Input(name, (1, len(first)), memory=Memory(Remembered.STATE, first)))
    return tuple(all_inputs)


def _next_state(step: Recurrent, x: Doubles, state: Doubles) -> Doubles:
    """(batch, state_size): the hidden state first."""
    fed = x @ step.kernel.astype(np.float64) + step.bias
    hidden = state[:, : len(step.state_kernel)] @ step.state_kernel.astype(np.float64) + step.state_bias
    return exact_program(step.recurrence.program(), fed, hidden, state)


def rows_channels_last(kernel: np.ndarray, image: tuple[int, int, int]) -> np.ndarray:
    """Return a dense kernel's rows (C, H, W), as PyTorch flattens an image (H, W, C), in the order (H, W, C) of a
    chain."""
    height, width, channels = image
    rows = kernel.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
    return np.ascontiguousarray(rows.reshape(len(kernel), -1))


def _step(step: Affine | Clip | Dense | Convolution | LayerNorm | Activate, x: Doubles) -> Doubles:
    if isinstance(step, Affine):
        return x * step.scale + step.offset
    if isinstance(step, Clip):
        return np.clip(x, step.low, step.high)
    if isinstance(step, Dense):
        return np.asarray(x.reshape(len(x), -1) @ step.kernel.astype(np.float64) + step.bias)
    if isinstance(step, Convolution):
        from quarl.policy.reference import convolve

        return convolve(x, step.kernel.astype(np.float64), step.stride) + step.bias
    if isinstance(step, LayerNorm):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + step.epsilon)
        return centred / deviation * step.gamma + step.beta
    return exactly(step.activation, x, step.negative_slope)
