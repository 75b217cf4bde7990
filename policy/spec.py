"""PolicySpec: everything a consumer must know to feed a policy and to use what comes out.

The spec is a tree of frozen dataclasses, and its JSON document the same tree. It
answers the questions that an exported network alone leaves open: which observation fields in which order and unit, how
they are normalised, what the actions mean, how often a decision is due, and in which environment it was trained.
"""

from __future__ import annotations

import json
import math
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import accumulate, islice, product
from typing import Any, ClassVar, Optional, TypeVar, Union

from quarl.policy import json_values
from quarl.policy.errors import SpecError
from quarl.policy.json_values import (
    LONGEST_NAME,
    OMITTED,
    POLICY_NAMES_ALLOWED,
    JsonValueError,
    abbreviate,
    is_policy_name,
    is_text,
    null_is,
    read,
)

# --- limits ---------------------------------------------------------------------------------------------------------

# The graphs compute in float32: what is larger than this is infinite there, and what is smaller has no reciprocal.
LARGEST_FLOAT32, SMALLEST_DIVISOR, LARGEST_DIVISOR = 3.4028235e38, 1.2e-38, 8.0e37
STILL_SCALE = 1e30
"""A normaliser's scale of an element that never moved in training: z is 0 wherever it is."""
STILL_SHARE = 2.0**-23
"""A change of at most this share of an element's value counts as none: it is one step of float32."""

# What no policy comes near: a document that claims more would only be worked on for long, or fill the memory.
LARGEST_SIDE = 2**24
"""Elements of an observation, a layer, a kernel's side or a stride."""
MOST_OUTPUTS = 65_536
LARGEST_PROGRAM = 256 << 20
"""Bytes of an opaque program."""
MOST_LAYERS, MOST_SIDES = 1000, 8
MOST_LISTED = 8
"""Words that a message lists."""


def require(condition: bool, message: str, next_step: str = "") -> None:
    """Raise SpecError(message) unless the condition holds."""
    if not condition:
        raise SpecError(message, next_step)


def require_name(name: str, what: str) -> None:
    """Raise SpecError unless it is printable text of at most LONGEST_NAME characters."""
    require(
        is_text(name),
        f"{what} must be at most {LONGEST_NAME} printable characters, no control characters, got {abbreviate(name)}.",
    )


def require_names(names: tuple[str, ...], count: int, what: str) -> None:
    """Raise SpecError unless there are no names, or ``count`` printable ones."""
    require(len(names) in (0, count), f"{what} must have {count} element names or none, got {len(names)}.")
    for name in names:
        require_name(name, f"the name of an element of {what}")


def require_member(kind: type[Enum], value: object, what: str) -> None:
    """Raise SpecError unless ``value`` is a member of the enum: its text is not."""
    allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    require(isinstance(value, kind), f"{what} must be one of {allowed}, got {abbreviate(value)}.")


def join_words(words: Iterable[str]) -> str:
    """Return the first words of many, by commas."""
    some = list(islice(words, MOST_LISTED + 1))
    return ", ".join(some[:MOST_LISTED]) + ", …" * (len(some) > MOST_LISTED)


def require_few_outputs(count: int) -> None:
    """Raise SpecError for a head of more than MOST_OUTPUTS outputs."""
    require(count <= MOST_OUTPUTS, f"the head must have at most {MOST_OUTPUTS} outputs, got {count}.")


def require_start(start: int, what: str) -> None:
    """Raise SpecError unless a float32, as which a fallback is kept, holds the number and those behind it."""
    require(
        abs(start) <= LARGEST_SIDE - MOST_OUTPUTS, f"{what} must be a number up to ±2**24, got {abbreviate(start)}."
    )


# --- enums ----------------------------------------------------------------------------------------------------------

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class Precision(Enum):
    """What the weights of an artifact are stored as. ``INT7`` … ``INT2`` live in an int8 container, but natively."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT7 = "int7"
    INT6 = "int6"
    INT5 = "int5"
    INT4 = "int4"
    INT3 = "int3"
    INT2 = "int2"
    MIXED = "mixed"
    """8, 4 or 2 bits by layer: ``convert.mixed``."""
    W8 = "w8"
    """Weights in 8 bits, one scale per output channel; everything else is float32."""
    W4 = "w4"
    DYNAMIC = "dynamic"
    """int8 whose activations get a scale of their own in each decision; everything between the sums is float32."""

    @property
    def bits(self) -> int:
        """Bits of one weight; of ``MIXED``, of most."""
        if self in (Precision.MIXED, Precision.DYNAMIC):
            return (Precision.INT4 if self is Precision.MIXED else Precision.INT8).bits
        return int(self.value.lstrip("fpintw"))

    @property
    def is_weight_only(self) -> bool:
        """Whether weights alone are stored as levels: activations are floats, or get levels in each decision."""
        return self in (Precision.W8, Precision.W4, Precision.DYNAMIC)

    @property
    def is_integer(self) -> bool:
        """Whether activations have levels that calibration fixes."""
        return self not in (Precision.FP32, Precision.FP16) and not self.is_weight_only

    @property
    def bits_argument(self) -> str:
        """The value to type behind ``BITS=``."""
        return self.value if self is Precision.MIXED or self.is_weight_only else str(self.bits)

    @classmethod
    def from_bits(cls, bits: int) -> Precision:
        """Return the precision that ``BITS=bits`` names: 32 is fp32, 16 is fp16, 8 … 2 are int8 … int2."""
        for precision in cls:
            if precision.bits == bits:
                return precision
        raise SpecError(
            f"the precision must be 32, 16, 8 … 2 bits, mixed, w8, w4 or dynamic, got {bits}.",
            "Type --bits 8 (make: BITS=8).",
        )

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Read ``int8``, ``8``, ``mixed`` or ``w8``."""
        if text.isdigit():
            return cls.from_bits(int(text))
        return parse_enum(cls, text, "precision")


class ArtifactFormat(Enum):
    """File format of an artifact; the value is the file's suffix."""

    TFLITE = "tflite"
    ONNX = "onnx"
    NATIVE = "native"
    """Weights in as many bits as they have: device/engine/FORMAT.md."""

    def expresses(self, precision: Precision) -> bool:
        """Whether the format can hold artifacts of a precision at all."""
        return precision is not Precision.DYNAMIC or self is ArtifactFormat.NATIVE


class RuntimeName(Enum):
    """An inference runtime that can execute artifacts on a device."""

    TFLITE_RUNTIME = "tflite-runtime"
    LITERT = "litert"
    ONNXRUNTIME = "onnxruntime"
    NATIVE = "native"
    """The project's own engine: ``device/engine``."""

    @property
    def artifact_format(self) -> ArtifactFormat:
        """The format that this runtime executes."""
        own = {RuntimeName.ONNXRUNTIME: ArtifactFormat.ONNX, RuntimeName.NATIVE: ArtifactFormat.NATIVE}
        return own.get(self, ArtifactFormat.TFLITE)

    @property
    def distribution(self) -> str | None:
        """The name that pip installs it by; None of the project's own engine, which comes with a release."""
        if self is RuntimeName.NATIVE:
            return None
        return "ai-edge-litert" if self is RuntimeName.LITERT else self.value


def executions(precisions: Sequence[Precision], runtimes: Sequence[RuntimeName]) -> list[tuple[Precision, RuntimeName]]:
    """Return every precision in every one of the runtimes whose format expresses it.

    Raises:
        SpecError: a precision has no such runtime.
    """
    pairs = [pair for pair in product(precisions, runtimes) if pair[1].artifact_format.expresses(pair[0])]
    for precision in precisions:
        if runtimes and all(precision is not executed for executed, _ in pairs):
            names = ", ".join(runtime.value for runtime in runtimes)
            raise SpecError(
                f"{precision.value} artifacts are executed by the native engine only, got {names}.",
                "Add --runtime native, or type other --bits.",
            )
    return pairs


class Activation(Enum):
    """Nonlinearity behind a hidden layer."""

    RELU = "relu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ELU = "elu"
    """x, or eˣ − 1 below zero (Clevert et al. 2016, with α = 1)."""
    LEAKY_RELU = "leaky_relu"
    """x, or ``network.negative_slope`` · x below zero."""
    SILU = "silu"
    """x / (1 + e⁻ˣ), also called swish."""
    NONE = "none"


class Ranges(Enum):
    """Where an activation's 8 bits end, given the values of recorded observations."""

    MINMAX = "minmax"
    """At the least and the largest."""
    PERCENTILE = "percentile-99.99"
    """Beyond all but one in 10,000 at either end."""
    MSE = "mse"
    """Where rounding and clipping together change the values least, in the mean square."""


@dataclass(frozen=True)
class Recipe:
    """How a policy becomes integers.

    Attributes:
        bits: of the weights: of all layers, or of each by its name.
        ranges: of the activations.
    """

    bits: Union[int, Mapping[str, int]]
    ranges: Ranges = Ranges.MINMAX


class Squash(Enum):
    """How a continuous head brings its raw outputs into [-1, 1]."""

    TANH = "tanh"
    CLIP = "clip"
    NONE = "none"
    """No squashing: −1 and 1 stand for low and high, and what lies beyond is passed on."""


def parse_enum(kind: type[E], value: object, what: str) -> E:
    """Read an enum by its value; a SpecError names what is allowed."""
    try:
        member: E = read(kind, value, what)
    except JsonValueError as error:
        raise SpecError(f"{error}.") from None
    return member


# --- recurrent layers -----------------------------------------------------------------------------------------------
# A recurrent layer consists of two linear layers, ``recurrent_<i>`` of its input and ``state_<i>`` of its hidden state,
# and a float program that computes the next state from their sums:
#
#     a = x W + b,   c = h U + d
#     GRU (Cho et al. 2014; the reset gate after the product, as in cuDNN and PyTorch), gates r, z, n:
#         r = σ(a_r + c_r),   z = σ(a_z + c_z),   n = tanh(a_n + r c_n),   h' = n + z (h − n)
#     LSTM (Hochreiter & Schmidhuber 1997, with Gers's forget gate), gates i, f, g, o; its state is h with s behind it:
#         s' = σ(a_f + c_f) s + σ(a_i + c_i) tanh(a_g + c_g),   h' = σ(a_o + c_o) tanh(s')
#
# A program is a list of steps. Its first values are a, c and the state, every step adds a vector, and the last vector
# is the result. Programs are computed in float32 at every precision.

MOST_UNITS = 1024
"""Of a recurrent layer."""
STATE = "state_"
"""Begins the name of the linear layer of a hidden state."""
PROGRAM = "program"
"""The name of an opaque program among the weights: its bytes, uint8."""


class FloatOperator(Enum):
    """What a step does, element by element where nothing else is stated."""

    TAKE = "take"
    """The elements at ``places``."""
    JOIN = "join"
    """All operands, one behind the other."""
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    TANH = "tanh"
    SIGMOID = "sigmoid"


@dataclass(frozen=True)
class FloatStep:
    """One operator on earlier values.

    Attributes:
        operator: see :class:`FloatOperator`.
        operands: numbers of values; those of a binary operator have the same size.
        places: of TAKE.
    """

    operator: FloatOperator
    operands: tuple[int, ...]
    places: range = range(0)


class Cell(Enum):
    """The kind of a recurrent layer."""

    GRU = "gru"
    LSTM = "lstm"


_GATES = {Cell.GRU: 3, Cell.LSTM: 4}
_VECTORS = {Cell.GRU: 1, Cell.LSTM: 2}


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer.

    Attributes:
        cell: its kind.
        units: elements of its hidden state, which is what the next layer is fed.
        behind: this many fully connected hidden layers stand before it.
    """

    cell: Cell
    units: int
    behind: int = 0

    def __post_init__(self) -> None:
        require_member(Cell, self.cell, "network.recurrences.cell")
        require(
            0 < self.units <= MOST_UNITS,
            f"network.recurrences must have 1 … {MOST_UNITS} units, got {abbreviate(self.units)}.",
        )

    @property
    def gate_size(self) -> int:
        """Outputs of each of its two linear layers: those of all gates, one gate behind the other."""
        return _GATES[self.cell] * self.units

    @property
    def state_size(self) -> int:
        """Floats that it remembers; the first ``units`` are the hidden state."""
        return _VECTORS[self.cell] * self.units

    def program(self) -> tuple[FloatStep, ...]:
        """From the sums of what is fed (gate_size,), of the hidden state (likewise) and the state to the next state."""
        return _gru(self.units) if self.cell is Cell.GRU else _lstm(self.units)


def _take(value: int, first: int, count: int) -> FloatStep:
    return FloatStep(FloatOperator.TAKE, (value,), range(first, first + count))


def _gru(n: int) -> tuple[FloatStep, ...]:
    add, multiply = FloatOperator.ADD, FloatOperator.MULTIPLY
    return (
        _take(0, 0, 2 * n),  # 3: a_r, a_z
        _take(1, 0, 2 * n),  # 4: c_r, c_z
        FloatStep(add, (3, 4)),
        FloatStep(FloatOperator.SIGMOID, (5,)),
        _take(6, 0, n),  # 7: r
        _take(6, n, n),  # 8: z
        _take(0, 2 * n, n),  # 9: a_n
        _take(1, 2 * n, n),  # 10: c_n
        FloatStep(multiply, (7, 10)),
        FloatStep(add, (9, 11)),
        FloatStep(FloatOperator.TANH, (12,)),  # 13: n
        FloatStep(FloatOperator.SUBTRACT, (2, 13)),
        FloatStep(multiply, (8, 14)),
        FloatStep(add, (13, 15)),
    )


def _lstm(n: int) -> tuple[FloatStep, ...]:
    add, multiply, sigmoid, tanh = (
        FloatOperator.ADD,
        FloatOperator.MULTIPLY,
        FloatOperator.SIGMOID,
        FloatOperator.TANH,
    )
    return (
        FloatStep(add, (0, 1)),  # 3
        _take(3, 0, 2 * n),
        FloatStep(sigmoid, (4,)),  # 5: i, f
        _take(3, 2 * n, n),
        FloatStep(tanh, (6,)),  # 7: g
        _take(3, 3 * n, n),
        FloatStep(sigmoid, (8,)),  # 9: o
        _take(5, 0, n),
        _take(5, n, n),
        _take(2, n, n),  # 12: s
        FloatStep(multiply, (11, 12)),
        FloatStep(multiply, (10, 7)),
        FloatStep(add, (13, 14)),  # 15: s'
        FloatStep(tanh, (15,)),
        FloatStep(multiply, (9, 16)),  # 17: h'
        FloatStep(FloatOperator.JOIN, (17, 15)),
    )


# --- outputs --------------------------------------------------------------------------------------------------------


# A choice is what a head makes of its outputs: indices from 0, as graphs, golden vectors and training have them. An
# action is what the environment takes, and what an agent replies: a choice counted from the action space's start.


@dataclass(frozen=True)
class DiscreteHead:
    """One output (logit or action value) per named action; the action is the first largest one.

    Attributes:
        action_names: of the actions, in the order of the outputs.
        start: number of the first action, as the environment counts them.
    """

    KIND: ClassVar[str] = "discrete"
    action_names: tuple[str, ...]
    start: int = field(default=0, metadata=OMITTED)

    def __post_init__(self) -> None:
        require(len(self.action_names) >= 2, f"a discrete head needs at least 2 actions, got {len(self.action_names)}.")
        require_few_outputs(len(self.action_names))
        require_start(self.start, "head.start")
        for name in self.action_names:
            require_name(name, "an action's name")
        repeated = sorted(name for name, count in Counter(self.action_names).items() if count > 1)
        require(not repeated, f"a discrete head names an action twice: {abbreviate(repeated)}.")

    @property
    def size(self) -> int:
        """Number of actions."""
        return len(self.action_names)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: a number."""
        return ()

    @property
    def parts(self) -> tuple[slice, ...]:
        """Places of the outputs that are compared with each other."""
        return (slice(0, self.size),)

    @property
    def numbers(self) -> tuple[range, ...]:
        """The numbers of the actions of each choice: there is one."""
        return (range(self.start, self.start + self.size),)

    def describe(self) -> str:
        """Return ``one of 25 actions``."""
        return f"one of {self.size} actions" + (f" counted from {self.start}" if self.start else "")

    def choose(self, outputs: Sequence[float]) -> int:
        """Return the index of the first largest of the outputs, (size,)."""
        return outputs.index(max(outputs))

    def to_action(self, choice: int) -> int:
        """Return the number by which the environment calls a choice."""
        return self.start + choice

    def allows(self, action: Sequence[float]) -> bool:
        """Return whether it is one action."""
        return len(action) == 1 and action[0] in self.numbers[0]

    @property
    def allowed_actions(self) -> str:
        """The actions that :meth:`allows` lets pass, for messages."""
        numbers = f", {self.start} … {self.start + self.size - 1}" if self.start else ""
        return f"the index of one of its {self.size} actions{numbers}"

    @property
    def example(self) -> tuple[float, ...]:
        """An action, to be typed."""
        return (self.start,)


@dataclass(frozen=True)
class MultiDiscreteHead:
    """Several choices at once: component i has ``counts[i]`` outputs, its action is the first largest of them.

    The outputs stand one component behind the other. Zeros and ones (MultiBinary) are components of two outputs.

    Attributes:
        counts: number of choices of each component.
        starts: number of each component's first choice, as the environment counts them; empty where all are 0.
        names: of the components, or none.
    """

    KIND: ClassVar[str] = "multi_discrete"
    counts: tuple[int, ...]
    starts: tuple[int, ...] = field(default=(), metadata=OMITTED)
    names: tuple[str, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            len(self.counts) > 0 and min(self.counts) >= 2,
            f"head.counts must be one or more components of at least 2 choices, got {abbreviate(self.counts)}.",
        )
        require_few_outputs(self.size)
        fits = not self.starts or (len(self.starts) == len(self.counts) and any(self.starts))
        require(
            fits,
            f"head.starts must be absent, or one number a component of which one is not 0, got "
            f"{abbreviate(self.starts)} for {len(self.counts)} components.",
        )
        for start in self.starts:
            require_start(start, "head.starts")
        require_names(self.names, len(self.counts), "the head")

    @property
    def size(self) -> int:
        """Number of outputs."""
        return sum(self.counts)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: (components,)."""
        return (len(self.counts),)

    @property
    def parts(self) -> tuple[slice, ...]:
        """Places of each component's outputs."""
        return tuple(slice(end - count, end) for end, count in zip(accumulate(self.counts), self.counts))

    @property
    def numbers(self) -> tuple[range, ...]:
        """The numbers of the actions of each component."""
        starts = self.starts or (0,) * len(self.counts)
        return tuple(range(start, start + count) for start, count in zip(starts, self.counts))

    def describe(self) -> str:
        """Return ``3 choices, among 2, 3, 4 actions``."""
        several = "s" * (len(self.counts) > 1)
        return f"{len(self.counts)} choice{several}, among {join_words(map(str, self.counts))} actions"

    def choose(self, outputs: Sequence[float]) -> list[int]:
        """Return the index of the first largest output (size,) of each component, counted inside the component."""
        components = [outputs[part] for part in self.parts]
        return [component.index(max(component)) for component in components]

    def to_action(self, choice: Sequence[int]) -> list[int]:
        """Return the numbers by which the environment calls a choice."""
        return [numbers[index] for numbers, index in zip(self.numbers, choice)]

    def allows(self, action: Sequence[float]) -> bool:
        """Return whether it is one action."""
        return len(action) == len(self.counts) and all(value in numbers for value, numbers in zip(action, self.numbers))

    @property
    def allowed_actions(self) -> str:
        """The actions that :meth:`allows` lets pass, for messages."""
        ends = (f"{numbers[0]} … {numbers[-1]}" for numbers in self.numbers)
        return f"{len(self.counts)} whole numbers: {join_words(ends)}"

    @property
    def example(self) -> tuple[float, ...]:
        """An action, to be typed."""
        return tuple(numbers[0] for numbers in self.numbers)


@dataclass(frozen=True)
class ContinuousHead:
    """a = low + (squash(clip(y, −limit, limit)) + 1) / 2 · (high − low), element by element, inside every graph.

    Attributes:
        low, high: what −1 and 1 stand for, in ``unit``: the bounds of a squashed action.
        squash: of the raw outputs.
        limit: largest |y| that is squashed; ``inf``, for all.
        names: of the action's elements, e.g. of joints; or none.
        unit: their physical unit, or ``"1"``.
    """

    KIND: ClassVar[str] = "continuous"
    low: tuple[float, ...]
    high: tuple[float, ...]
    squash: Squash
    limit: float = field(default=math.inf, metadata=OMITTED)
    names: tuple[str, ...] = field(default=(), metadata=OMITTED)
    unit: str = field(default="1", metadata=OMITTED)

    def __post_init__(self) -> None:
        require_member(Squash, self.squash, "head.squash")
        require(self.limit > 0, f"head.limit must be positive, got {self.limit}.")
        require_names(self.names, len(self.low), "the head")
        require_name(self.unit, "the unit of the head's actions")
        require(
            len(self.low) == len(self.high) > 0,
            f"head must have as many lows as highs, and at least one, got {len(self.low)} and {len(self.high)}.",
        )
        require_few_outputs(len(self.low))
        finite = all(abs(v) <= LARGEST_FLOAT32 for v in (*self.low, *self.high))
        ordered = all(low < high for low, high in zip(self.low, self.high))
        require(
            finite and ordered,
            f"head bounds must be finite with low < high, got {abbreviate(self.low)} … {abbreviate(self.high)}.",
        )

    @property
    def size(self) -> int:
        """Number of action elements."""
        return len(self.low)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: (size,)."""
        return (self.size,)

    @property
    def is_bounded(self) -> bool:
        """Whether no action leaves the bounds."""
        return self.squash is not Squash.NONE

    def describe(self) -> str:
        """Return ``3 numbers``."""
        return f"{self.size} number{'s' * (self.size > 1)}"

    def choose(self, outputs: T) -> T:
        """Return the outputs (size,): they are the action."""
        return outputs

    def to_action(self, choice: T) -> T:
        """Return the choice: it is the action."""
        return choice

    def allows(self, action: Sequence[float]) -> bool:
        """Return whether it is one action."""
        return len(action) == self.size and all(
            math.isfinite(value) and (not self.is_bounded or least <= value <= most)
            for value, least, most in zip(action, self.low, self.high)
        )

    @property
    def allowed_actions(self) -> str:
        """The actions that :meth:`allows` lets pass, for messages."""
        return f"{self.size} finite numbers" + (" within the head's bounds" if self.is_bounded else "")

    @property
    def example(self) -> tuple[float, ...]:
        """The action nearest to zero, as a rule no movement."""
        ends = zip(self.low, self.high) if self.is_bounded else [(0.0, 0.0)] * self.size
        return tuple(min(max(0.0, low), high) for low, high in ends)


Head = Union[DiscreteHead, MultiDiscreteHead, ContinuousHead]


@dataclass(frozen=True)
class EnvironmentSpec:
    """Where the policy was trained: an environment id and the settings it was made with (JSON values)."""

    id: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name(self.id, "environment.id")


# --- layers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A square convolution without padding: ``filters`` outputs, ``kernel`` × ``kernel`` inputs, ``stride``."""

    filters: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        sizes = (self.filters, self.kernel, self.stride)
        require(
            all(0 < size <= LARGEST_SIDE for size in sizes),
            f"network.convolutions must have three sizes of 1 … {LARGEST_SIDE}, got {abbreviate(sizes)}.",
        )

    def output_side(self, side: int) -> int:
        """Height or width of the output for an input of ``side``: ⌊(side − kernel) / stride⌋ + 1."""
        return (side - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class OpaqueProgram:
    """A network that no layers here express: an ONNX graph, executed by onnxruntime alone, head included.

    Attributes:
        size: bytes of the graph, which is the bundle's only weight, ``program``.
        reason: what of it the layers cannot express.
        states: elements of each state that it takes and replaces, in the observation's order.
    """

    size: int
    reason: str
    states: tuple[int, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            0 < self.size <= LARGEST_PROGRAM,
            f"network.opaque.size must be 1 … {LARGEST_PROGRAM} bytes, got {abbreviate(self.size)}.",
        )
        require(
            all(0 < size <= LARGEST_SIDE for size in self.states) and len(self.states) <= MOST_LAYERS,
            f"network.opaque.states must be 1 … {LARGEST_SIDE} elements each, got {abbreviate(self.states)}.",
        )


@dataclass(frozen=True)
class NetworkSpec:
    """Convolutions, then fully connected layers, each with an activation; then a linear head. Or an opaque program.

    Attributes:
        hidden: widths of the fully connected layers; none for a linear policy.
        activation: after every convolution and every hidden layer.
        activations: one for each of these layers, where they are not alike; ``activation`` is the first of them.
        negative_slope: of a LeakyReLU, in 0 … 1.
        convolutions: none for a multilayer perceptron. Their input is the observation's first field, an image of
            shape (height, width, channels); their output is flattened in C order. Vector fields that follow the image
            pass them by: they stand behind the flattened output in the input of the first fully connected layer.
        layer_norm: whether the linear part of every *hidden* fully connected layer is normalised over its width before
            the activation: y = γ (x − mean x) / √(var x + 10⁻⁵) + β (Ba et al. 2016).
        recurrences: recurrent layers among the fully connected ones, in order; none for a policy that forgets.
        opaque: what computes the policy instead of layers, or None.
    """

    hidden: tuple[int, ...]
    activation: Activation = Activation.RELU
    convolutions: tuple[Convolution, ...] = field(default=(), metadata=OMITTED)
    layer_norm: bool = field(default=False, metadata=OMITTED)
    activations: tuple[Activation, ...] = field(default=(), metadata=OMITTED)
    negative_slope: float = field(default=0.01, metadata=OMITTED)
    recurrences: tuple[Recurrence, ...] = field(default=(), metadata=OMITTED)
    opaque: Optional[OpaqueProgram] = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        layered = (*self.hidden, *self.convolutions, *self.recurrences)
        require(not (self.opaque and layered), "network must have layers or an opaque program, got both.")
        require(
            all(0 < width <= LARGEST_SIDE for width in self.hidden),
            f"network.hidden must be widths of 1 … {LARGEST_SIDE}, got {abbreviate(self.hidden)}.",
        )
        layers = len(self.convolutions) + len(self.hidden)
        together = layers + 2 * len(self.recurrences)
        require(
            together <= MOST_LAYERS, f"network must have at most {MOST_LAYERS} layers before the head, got {together}."
        )
        require(not (self.recurrences and self.convolutions), "a network must not mix convolutions and recurrence.")
        places = [recurrence.behind for recurrence in self.recurrences]
        require(
            places == sorted(places) and all(0 <= place <= len(self.hidden) for place in places),
            f"network.recurrences must follow ascending numbers of hidden layers, at most {len(self.hidden)}, "
            f"got {abbreviate(places)}.",
        )
        require(layers <= MOST_LAYERS, f"network takes at most {MOST_LAYERS} layers before the head, got {layers}.")
        for kind in (self.activation, *self.activations):
            require_member(Activation, kind, "network.activation")
        require(
            not self.activations or (len(self.activations) == layers and self.activations[0] is self.activation),
            f"network.activations must be empty or {layers}, the first being network.activation, "
            f"{self.activation.value!r}, got {abbreviate([a.value for a in self.activations])}.",
        )
        require(0.0 <= self.negative_slope <= 1.0, f"network.negative_slope must be 0 … 1, got {self.negative_slope}.")

    @property
    def is_relu(self) -> bool:
        """Whether a ReLU follows every convolution and every hidden layer."""
        return set(self.activations or (self.activation,)) == {Activation.RELU}

    def activation_of(self, layer: str) -> Activation:
        """Return the activation of a layer before the head, by the layer's name; none of a recurrent layer's sums."""
        if layer.startswith(("recurrent_", STATE)):
            return Activation.NONE
        return self.activations[self._activated_names.index(layer)] if self.activations else self.activation

    @property
    def _activated_names(self) -> tuple[str, ...]:
        convolutions = (f"conv_{index}" for index in range(len(self.convolutions)))
        return (*convolutions, *(f"dense_{index}" for index in range(len(self.hidden))))

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Names of all linear layers before the head, in order: ``conv_0``, …, ``dense_0``, …, and where they stand
        ``recurrent_<i>`` with ``state_<i>`` behind it."""
        names = list(self._activated_names)
        for index, recurrence in reversed(list(enumerate(self.recurrences))):
            names[recurrence.behind : recurrence.behind] = [f"recurrent_{index}", f"{STATE}{index}"]
        return tuple(names)

    @property
    def states(self) -> dict[str, Recurrence]:
        """The recurrent layers by the name of their state's linear layer, in order."""
        return {f"{STATE}{index}": recurrence for index, recurrence in enumerate(self.recurrences)}

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Floats of each state, in the observation's order: the recurrent layers', or the opaque program's."""
        return self.opaque.states if self.opaque else tuple(recurrence.state_size for recurrence in self.recurrences)

    @property
    def state_size(self) -> int:
        """Floats of all states, one behind the other."""
        return sum(self.state_sizes)

    def image_shapes(self, observation: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """(height, width, channels) of the observation and after each convolution.

        Raises:
            SpecError: the observation is no image, or too small for a kernel.
        """
        require(
            len(observation) == 3,
            f"a network with convolutions must get an image (height, width, channels), got {observation}.",
        )
        shapes = [(observation[0], observation[1], observation[2])]
        for layer in self.convolutions:
            height, width = layer.output_side(shapes[-1][0]), layer.output_side(shapes[-1][1])
            require(height > 0 and width > 0, f"an image of {shapes[-1]} is too small for {layer}.")
            shapes.append((height, width, layer.filters))
        return tuple(shapes)

    def dense_inputs(self, observation: tuple[int, ...], vector: int = 0) -> int:
        """Return inputs of the first fully connected layer for an observation of that shape.

        Args:
            observation: its shape; of its image, where there are convolutions.
            vector: floats that follow the image and pass the convolutions by.
        """
        return math.prod(self.image_shapes(observation)[-1] if self.convolutions else observation) + vector


NATURE_CONVOLUTIONS = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""The convolutions of the Nature DQN (Mnih et al. 2015, Methods); a hidden layer of 512 follows them."""


def network_shapes(
    network: NetworkSpec, observation: tuple[int, ...], outputs: int, vector: int = 0
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a network, in the order of its layers.

    ``conv_<i>/kernel`` is (height, width, in, out), ``dense_<i>/kernel`` and ``head/kernel`` are (in, out),
    ``<layer>/bias`` is (out,), and with layer normalisation ``dense_<i>/gamma`` and ``dense_<i>/beta`` are (out,). Of a
    recurrent layer ``recurrent_<i>/kernel`` is (in, gates) and ``state_<i>/kernel`` (units, gates).

    Args:
        network: the layers.
        observation: shape of what the first layer takes, as :func:`observation_shape` gives it.
        outputs: of the head.
        vector: floats that follow the image; the last ``vector`` rows of the first dense kernel are theirs.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    images = network.image_shapes(observation) if network.convolutions else ()
    for index, layer in enumerate(network.convolutions):
        shapes[f"conv_{index}/kernel"] = (layer.kernel, layer.kernel, images[index][2], layer.filters)
        shapes[f"conv_{index}/bias"] = (layer.filters,)
    width = network.dense_inputs(observation, vector)
    recurrences, states = iter(network.recurrences), network.states
    hidden = iter(network.hidden)
    for name in network.hidden_names[len(network.convolutions) :]:
        if name in states:  # its input is the hidden state
            recurrence = states[name]
            fan_in, outputs_of_it, width = recurrence.units, recurrence.gate_size, recurrence.units
        elif name.startswith("dense_"):
            fan_in, outputs_of_it = width, next(hidden)
            width = outputs_of_it
        else:
            fan_in, outputs_of_it = width, next(recurrences).gate_size
        shapes[f"{name}/kernel"] = (fan_in, outputs_of_it)
        shapes[f"{name}/bias"] = (outputs_of_it,)
        if network.layer_norm and name.startswith("dense_"):
            shapes[f"{name}/gamma"] = (outputs_of_it,)
            shapes[f"{name}/beta"] = (outputs_of_it,)
    shapes["head/kernel"] = (width, outputs)
    shapes["head/bias"] = (outputs,)
    return shapes


# --- observation ----------------------------------------------------------------------------------------------------


class Remembered(Enum):
    """What a field of earlier periods holds."""

    OBSERVATION = "observation"
    """The field's own values; the last row is this period's."""
    ACTION = "action"
    """The policy's actions; the last row is that of the period before."""
    STATE = "state"
    """What a recurrent layer of the policy made of the period before, one row."""


@dataclass(frozen=True)
class Memory:
    """A field's rows are successive control periods, the oldest first.

    Attributes:
        of: what they hold.
        initial: one row, which stands in for the periods before the first, in the field's unit.
    """

    of: Remembered
    initial: tuple[float, ...]

    def __post_init__(self) -> None:
        require_member(Remembered, self.of, "observation.memory.of")
        finite = all(abs(value) <= LARGEST_FLOAT32 for value in self.initial)
        require(finite, f"observation.memory.initial must be finite, got {abbreviate(self.initial)}.")


@dataclass(frozen=True)
class ObservationField:
    """One named part of the observation vector.

    Attributes:
        name: what it is, e.g. ``"goal_distance"``.
        shape: its shape; the field is flattened in C order into the observation vector.
        unit: its physical unit, e.g. ``"m"``, or ``"1"`` when it has none.
        element_names: one for each element of a row in C order, e.g. of joints; or none.
        memory: of a field that holds earlier periods, too: ``shape`` is then (periods, …). Of any other, None, and it
            is a single row.
    """

    name: str
    shape: tuple[int, ...]
    unit: str
    element_names: tuple[str, ...] = field(default=(), metadata=OMITTED)
    memory: Optional[Memory] = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        require(bool(self.name), "an observation field has no name.")
        require_name(self.name, "an observation field's name")
        require_name(self.unit, f"the unit of observation field {self.name!r}")
        require(
            all(0 < side <= LARGEST_SIDE for side in self.shape) and len(self.shape) <= MOST_SIDES,
            f"observation field {self.name!r} must have at most {MOST_SIDES} dimensions of 1 … {LARGEST_SIDE}, "
            f"got {abbreviate(self.shape)}.",
        )
        if self.memory is not None:
            initial_size = len(self.memory.initial)
            require(
                bool(self.shape) and initial_size * self.shape[0] == self.size,
                f"observation field {self.name!r} of shape {self.shape} remembers rows of {initial_size} elements.",
            )
            require(
                self.shape[0] == 1 or self.memory.of is not Remembered.STATE,
                f"observation field {self.name!r} must have one row of state, got {self.shape[0]}.",
            )
        require_names(self.element_names, self.row_size, f"observation field {self.name!r}")

    @property
    def size(self) -> int:
        """Number of floats of this field."""
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Number of floats of one period."""
        return self.size if self.memory is None else self.size // self.shape[0]

    @property
    def row(self) -> ObservationField:
        """The field as one period brings it."""
        if self.memory is None:
            return self
        return ObservationField(self.name, self.shape[1:], self.unit, self.element_names)

    @property
    def is_state(self) -> bool:
        """Whether it is what a recurrent layer remembers."""
        return self.memory is not None and self.memory.of is Remembered.STATE

    @property
    def is_brought(self) -> bool:
        """Whether each period brings a row of it from outside the policy."""
        return self.memory is None or self.memory.of is Remembered.OBSERVATION


@dataclass(frozen=True)
class Normaliser:
    """z = clip((x − mean) / scale, low, high), element by element, in float32, inside every exported graph.

    Attributes:
        mean: one value per observation element, in the element's unit; or a single one for all elements alike (images).
        scale: likewise, positive.
        clip: the largest |z|, dimensionless and positive: low = −clip, high = clip; ``inf`` switches clipping off.
        low, high: bounds of z one by one, in place of ``clip``, which is then ``inf``; or none.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    clip: float = field(default=10.0, metadata=null_is(math.inf))
    low: tuple[float, ...] = field(default=(), metadata=OMITTED)
    high: tuple[float, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.scale),
            f"normaliser must have as many means as scales, got {len(self.mean)} and {len(self.scale)}.",
        )
        require(all(abs(m) <= LARGEST_FLOAT32 for m in self.mean), "normaliser.mean must be finite in float32.")
        require(
            all(SMALLEST_DIVISOR <= s <= LARGEST_DIVISOR for s in self.scale),
            f"normaliser.scale must be positive and between {SMALLEST_DIVISOR:g} and {LARGEST_DIVISOR:g}, "
            "so that it and its reciprocal are float32 numbers.",
        )
        require(self.clip > 0, f"normaliser.clip must be positive, got {self.clip}.")
        if self.low or self.high:
            require(self.clip == math.inf, "normaliser must have a clip or bounds, got both.")
            counts = len(self.low), len(self.high)
            require(
                counts == (len(self.mean), len(self.mean)),
                f"normaliser has {counts[0]} lows and {counts[1]} highs for {len(self.mean)} means.",
            )
            pairs = zip(self.low, self.high)
            require(
                all(-LARGEST_FLOAT32 <= low < high <= LARGEST_FLOAT32 for low, high in pairs),
                "normaliser.low and normaliser.high must be finite in float32, with low < high.",
            )

    @property
    def still(self) -> tuple[tuple[int, float, float], ...]:
        """Elements that never moved in training: place, value, and the smallest change that is one."""
        pairs = enumerate(zip(self.mean, self.scale))
        return tuple((place, mean, STILL_SHARE * abs(mean)) for place, (mean, scale) in pairs if scale >= STILL_SCALE)


# --- quantizers of training -----------------------------------------------------------------------------------------

SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS = 2, 8
"""Widths of the integers that weights are stored as."""
INPUT = "input"
"""Name of the normalised observation among the ranges."""


class WeightRange(Enum):
    """What a channel's scale is taken from."""

    LARGEST = "largest"
    """s = max |W| / (2ⁿ⁻¹ − 1): nothing is clipped. That of post-training quantization."""
    MEAN = "mean"
    """s = 2 · mean |W| / √(2ⁿ⁻¹ − 1), where learned step sizes begin (Esser et al. 2020, section 2.1): with few bits
    the largest weight leaves the others no levels."""


@dataclass(frozen=True)
class TrainedQuantization:
    """How a policy was quantized while it learned.

    Attributes:
        bits: of weights and of hidden layers' outputs, 2 … 8.
        ranges: (low, high) of the normalised observation (``input``), and of the output of every hidden layer by name
            (low is 0, after a ReLU), as monitored in training.
        weight_range: what the weights' scales are taken from.
    """

    bits: int
    ranges: Mapping[str, tuple[float, float]]
    weight_range: WeightRange = WeightRange.LARGEST

    def __post_init__(self) -> None:
        require_member(WeightRange, self.weight_range, "quantization.weight_range")
        require(
            SMALLEST_WEIGHT_BITS <= self.bits <= LARGEST_WEIGHT_BITS,
            f"quantization.bits must be {SMALLEST_WEIGHT_BITS} … {LARGEST_WEIGHT_BITS}, got {self.bits}.",
        )
        for name, (low, high) in self.ranges.items():
            require(
                -LARGEST_FLOAT32 <= low <= high <= LARGEST_FLOAT32,
                f"quantization.ranges.{name} must be finite and ordered, got {low} … {high}.",
            )
            require(name == INPUT or low == 0.0, f"quantization.ranges.{name} must begin at 0 (ReLU), got {low}.")


# --- the spec -------------------------------------------------------------------------------------------------------

__all__ = [
    "NATURE_CONVOLUTIONS",
    "SPEC_FORMAT_VERSION",
    "Activation",
    "ArtifactFormat",
    "ContinuousHead",
    "Convolution",
    "DiscreteHead",
    "EnvironmentSpec",
    "Head",
    "Memory",
    "MultiDiscreteHead",
    "NetworkSpec",
    "Normaliser",
    "ObservationField",
    "PolicySpec",
    "Precision",
    "Remembered",
    "RuntimeName",
    "Squash",
    "network_values",
    "parse_enum",
    "require",
]
SPEC_FORMAT_VERSION = 1


@dataclass(frozen=True)
class PolicySpec:
    """The whole contract of one policy; see the module's docstring.

    Attributes:
        name: e.g. ``"III"``.
        observation: the fields in the order in which they are concatenated; those of recurrent layers' states last.
        normaliser: applied to the raw observation inside the graph.
        network: the layers between the normalised observation and the head.
        head: what the outputs mean.
        control_period_s: time between two decisions, in seconds.
        environment: id and settings of the training environment.
        provenance: algorithm, seed, steps, versions, training return, … (JSON values; free form).
        quantization: the quantizers it was trained with, or None: its artifact of that width uses them.
        delay_s: time from an observation to the effect of its action that the policy was trained with, in seconds.
        fallback: what to do where no action can be computed: the action's elements, in its unit; of a discrete head the
            action's number alone; empty where nothing is known to be safe.
    """

    name: str
    observation: tuple[ObservationField, ...]
    normaliser: Normaliser
    network: NetworkSpec
    head: Head
    control_period_s: float
    environment: EnvironmentSpec
    provenance: Mapping[str, Any] = field(default_factory=dict, metadata=OMITTED)
    quantization: Optional[TrainedQuantization] = field(default=None, metadata=OMITTED)
    delay_s: float = field(default=0.0, metadata=OMITTED)
    fallback: tuple[float, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            is_policy_name(self.name),
            f"policy.name must be {POLICY_NAMES_ALLOWED}, got {abbreviate(self.name)}.",
            "Type another --output-path: the policy is named after that folder.",
        )
        require(len(self.observation) > 0, "policy.observation has no fields.")
        repeated = [name for name, count in Counter(f.name for f in self.observation).items() if count > 1]
        require(not repeated, f"policy.observation repeats a field name: {abbreviate(repeated)}.")
        require(
            self.observation_size <= LARGEST_SIDE,
            f"policy.observation must have at most {LARGEST_SIDE} elements, got {abbreviate(self.observation_size)}.",
        )
        self._check_states()
        normaliser_size, wanted = len(self.normaliser.mean), self.input_size
        require(normaliser_size in (1, wanted), f"normaliser must have 1 or {wanted} elements, got {normaliser_size}.")
        self._check_memory()
        require(not (self.network.opaque and self.quantization), "an opaque program must not have quantization.")
        if self.network.convolutions:
            self.network.image_shapes(self.observation[0].shape)
            for behind in self.observation[1:]:
                require(
                    len(behind.shape) <= 1,
                    "a network with convolutions takes an image field first, and vector fields may follow; "
                    f"{behind.name!r} behind the image has the shape {abbreviate(behind.shape)}.",
                )
        period = self.control_period_s
        require(0 < period < math.inf, f"control_period_s must be positive and finite, got {period}.")
        require(0 <= self.delay_s < math.inf, f"delay_s must be finite and not negative, got {self.delay_s}.")
        if self.fallback:
            self.check_fallback(self.fallback)
        if self.quantization is not None:
            require(
                self.network.is_relu,
                "quantization requires ReLU activations, whose ranges begin at 0.",
            )
            require(
                self.vector_size == 0,
                "quantization is given for a network of an image and vector fields; allowed are networks of either, "
                "because the range that image and vector share is not monitored in training.",
                "Train without --quantization-method, and convert: the ranges then come from recorded rollouts.",
            )
            require(
                not self.network.recurrences,
                "quantization is not supported for a network with recurrent layers.",
                "Train without --quantization-method, and convert: the ranges then come from recorded rollouts.",
            )
            wanted_ranges, ranges = {INPUT, *self.network.hidden_names}, set(self.quantization.ranges)
            require(
                ranges == wanted_ranges,
                f"quantization.ranges must be of {abbreviate(sorted(wanted_ranges))}, "
                f"got {abbreviate(sorted(ranges))}.",
            )

    def _check_states(self) -> None:
        states = [field for field in self.observation if field.is_state]
        wanted = list(self.network.state_sizes)
        require(
            [field.size for field in states] == wanted
            and list(self.observation[len(self.observation) - len(states) :]) == states,
            f"policy.observation must end in states of {abbreviate(wanted)} elements, "
            f"got {abbreviate([field.size for field in states])}.",
        )
        require(len(states) < len(self.observation), "policy.observation must have a field that is not a state.")

    def _check_memory(self) -> None:
        remembers = any(field.memory for field in self.observation)
        require(not (self.network.convolutions and remembers), "a network with convolutions takes no memory fields.")
        for obs_field in self.observation:
            if obs_field.memory is not None and obs_field.memory.of is Remembered.ACTION:
                fits = isinstance(self.head, ContinuousHead) and obs_field.row_size == self.head.size
                require(
                    fits,
                    f"{obs_field.name!r} must remember as many actions as a continuous head has, "
                    f"got {obs_field.row_size}.",
                )

    def check_fallback(self, fallback: tuple[float, ...]) -> None:
        """Let an action pass that this policy may fall back to.

        Raises:
            SpecError: it is none of its actions; says what is allowed.
        """
        fits = self.head.allows(fallback)
        require(fits, f"fallback must be empty or {self.head.allowed_actions}, got {abbreviate(fallback)}.")

    @property
    def fallback_example(self) -> str:
        """What may be typed for a fallback action: the one nearest to zero, as a rule no movement."""
        values = ",".join(str(value) if isinstance(value, int) else f"{value:g}" for value in self.head.example)
        return f"--fallback {values}" if isinstance(self.head, DiscreteHead) else f"--fallback={values}"

    def fallback_or(self, given: tuple[float, ...]) -> tuple[float, ...]:
        """Return the fallback action of a robot's loop: the one that is given, or else the policy's own.

        Raises:
            SpecError: there is none, or it is no action of the policy.
        """
        fallback = given or self.fallback
        require(
            bool(fallback),
            f"policy {self.name!r} declares no fallback action, and a loop needs one: before the first observation, "
            "and when one is stale or not finite.",
            f"Name it, for example: {self.fallback_example}",
        )
        self.check_fallback(fallback)
        return fallback

    @property
    def observation_size(self) -> int:
        """Number of floats of the flattened observation, states included."""
        return sum(f.size for f in self.observation)

    def element(self, place: int) -> str:
        """Return the name of an observation element: its field's, with its place there where the field has several."""
        ends = list(accumulate(field.size for field in self.observation))
        index = bisect_right(ends, place)
        field = self.observation[index]
        return field.name if field.size == 1 else f"{field.name}[{place - ends[index] + field.size}]"

    @property
    def state_size(self) -> int:
        """Number of floats of the observation's last fields, which the recurrent layers made of the period before."""
        return self.network.state_size

    @property
    def input_size(self) -> int:
        """Number of floats of the observation without them."""
        return self.observation_size - self.state_size

    @property
    def result_size(self) -> int:
        """Number of floats that a decision makes: the head's outputs, and behind them the next states."""
        return self.output_size + self.state_size

    @property
    def step_inputs(self) -> tuple[ObservationField, ...]:
        """The fields as each period brings them: a row of those that remember observations, none of what it remembers
        of itself."""
        return tuple(field.row for field in self.observation if field.is_brought)

    @property
    def vector_size(self) -> int:
        """Number of floats that follow the image and pass the convolutions by; 0 without convolutions."""
        return sum(f.size for f in self.observation[1:]) if self.network.convolutions else 0

    @property
    def output_size(self) -> int:
        """Number of outputs of the head."""
        return self.head.size

    @property
    def is_image(self) -> bool:
        """Whether the observation is one image (height, width, channels) of grey levels 0 … 255."""
        return len(self.observation) == 1 and len(self.observation[0].shape) == 3

    @property
    def is_imported(self) -> bool:
        """Whether another program trained it: ``quarl import`` says so in its provenance."""
        return str(self.provenance.get("how", "")).startswith("imported from ")

    @property
    def is_bounded(self) -> bool:
        """Whether no action leaves the bounds of a continuous head."""
        return isinstance(self.head, ContinuousHead) and self.head.is_bounded

    @property
    def is_plain_choice(self) -> bool:
        """Whether the action is the index, from 0, of the first largest of all outputs."""
        return isinstance(self.head, DiscreteHead) and self.head.start == 0

    @property
    def is_discrete(self) -> bool:
        """Whether the head chooses by its largest outputs, once or several times."""
        return not isinstance(self.head, ContinuousHead)

    def check_observation(self, fields: Sequence[ObservationField]) -> None:
        """Refuse a consumer that brings other fields in a period than the policy was trained on.

        Raises:
            SpecError: names the first field that differs and how.
        """
        own_fields = self.step_inputs
        for index in range(max(len(fields), len(own_fields))):
            mine = own_fields[index] if index < len(own_fields) else None
            fed = fields[index] if index < len(fields) else None
            if mine != fed:
                raise SpecError(
                    f"policy {self.name!r} was trained on another observation: field {index} must be "
                    f"{_describe(mine)}, got {_describe(fed)}.",
                    "Use the environment that it was trained in, or train a policy for this one.",
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return {"format_version": SPEC_FORMAT_VERSION, **json_values.write(self)}

    def to_json(self) -> str:
        """Return the spec as an indented JSON document that ends in a newline.

        Raises:
            SpecError: the environment's settings or the provenance hold what :meth:`from_json` would refuse.
        """
        try:
            for name in ("settings", "provenance"):
                json_values.check_free(self.provenance if name == "provenance" else self.environment.settings, name)
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json: {error}.") from None
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> PolicySpec:
        """Read what :meth:`to_json` wrote.

        Raises:
            SpecError: the text is no JSON, of a future version, lacks a field or has an unknown one (which is named).
        """
        try:
            data = json_values.parse_object(text)
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json cannot be read: {error}.") from error
        version = data.get("format_version")
        require(
            type(version) is int and version == SPEC_FORMAT_VERSION,  # True and 1.0 equal 1
            f"format_version of policy.json must be {SPEC_FORMAT_VERSION}, got {abbreviate(version)}.",
            "Use the quarl version that wrote it, or train the policy again.",
        )
        # Without what it stands for, another policy would run.
        unknown = sorted(data.keys() - {"format_version", *(field.name for field in fields(cls))})
        require(
            not unknown,
            f"policy.json has fields that this version does not know: {abbreviate(unknown)}.",
            "Import the policy again, or use the quarl version that wrote it.",
        )
        try:
            spec: PolicySpec = json_values.read(cls, data)
        except KeyError as error:
            raise SpecError(f"policy.json lacks the field {error.args[0]!r}.") from error
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json: {error}.") from error
        except SpecError:
            raise
        except Exception as error:  # whatever else a document that nobody wrote may bring about
            raise SpecError(f"policy.json cannot be read: {type(error).__name__} {abbreviate(str(error))}.") from error
        return spec


def network_values(network: NetworkSpec) -> dict[str, Any]:
    """JSON values; what a plain multilayer perceptron does not have is left out."""
    values: dict[str, Any] = json_values.write(network)
    return values


def observation_shape(spec: PolicySpec) -> tuple[int, ...]:
    """Return what the network's first layer takes: (height, width, channels) for convolutions, else (input_size,).

    Of an image and vector fields it is the image's; :func:`split` parts them.
    """
    return spec.observation[0].shape if spec.network.convolutions else (spec.input_size,)


def weight_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of the policy; see :func:`network_shapes`. Of an opaque program its bytes."""
    if spec.network.opaque is not None:
        return {PROGRAM: (spec.network.opaque.size,)}
    return network_shapes(spec.network, observation_shape(spec), spec.output_size, spec.vector_size)


def output_spans(spec: PolicySpec, smallest: float, largest: float) -> list[float]:
    """Return what each output can be or was, (output_size,): the bounds of a continuous head; of a discrete one, whose
    outputs are compared with each other, and of one without bounds, all from the smallest to the largest that there
    were, if they differ."""
    if isinstance(spec.head, ContinuousHead) and spec.is_bounded:
        return list(map(operator.sub, spec.head.high, spec.head.low))
    return [largest - smallest or math.inf] * spec.output_size


def _describe(observed: ObservationField | None) -> str:
    if observed is None:
        return "absent"
    return f"{observed.name!r} of shape {observed.shape} in {observed.unit!r}"
