"""The parts of a policy's contract: its enums, the observation's fields, normaliser, network, heads and environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeVar

from policy.errors import SpecError
from policy.json_values import OMITTED, JsonValueError, null_is, read, shortened
from policy.reading.names import LONGEST_NAME, is_text

# The graphs compute in float32: what is larger than this is infinite there, and what is smaller has no reciprocal.
LARGEST_FLOAT32, SMALLEST_DIVISOR, LARGEST_DIVISOR = 3.4028235e38, 1.2e-38, 8.0e37

# What no policy comes near: a document that claims more would only be worked on for long, or fill the memory.
LARGEST_SIDE = 2**24
"""Elements of an observation, a layer, a kernel's side or a stride."""
MOST_OUTPUTS = 65_536
MOST_LAYERS, MOST_SIDES = 1000, 8

E = TypeVar("E", bound=Enum)


class Precision(Enum):
    """What the weights of an artifact are stored as. ``INT7`` … ``INT2`` live in an int8 container."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT7 = "int7"
    INT6 = "int6"
    INT5 = "int5"
    INT4 = "int4"
    INT3 = "int3"
    INT2 = "int2"

    @property
    def bits(self) -> int:
        """Bits of one weight."""
        return int(self.value.removeprefix("fp").removeprefix("int"))

    @property
    def is_integer(self) -> bool:
        """Whether the artifact computes with integers."""
        return self.value.startswith("int")

    @classmethod
    def from_bits(cls, bits: int) -> Precision:
        """The precision that ``BITS=bits`` names: 32 is fp32, 16 is fp16, 8 … 2 are int8 … int2."""
        for precision in cls:
            if precision.bits == bits:
                return precision
        raise SpecError(
            f"BITS={bits} is no known precision; allowed are 32, 16 and 8 … 2.", "Type BITS=8, for example."
        )

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Read ``int8`` or ``8``."""
        if text.isdigit():
            return cls.from_bits(int(text))
        return parse_enum(cls, text, "precision")


class ArtifactFormat(Enum):
    """File format of an artifact; the value is the file's suffix."""

    TFLITE = "tflite"
    ONNX = "onnx"


class RuntimeName(Enum):
    """An inference runtime that can execute artifacts on a device."""

    TFLITE_RUNTIME = "tflite-runtime"
    LITERT = "litert"
    ONNXRUNTIME = "onnxruntime"

    @property
    def artifact_format(self) -> ArtifactFormat:
        """The format that this runtime executes."""
        return ArtifactFormat.ONNX if self is RuntimeName.ONNXRUNTIME else ArtifactFormat.TFLITE

    @property
    def distribution(self) -> str:
        """The name that pip installs it by."""
        return "ai-edge-litert" if self is RuntimeName.LITERT else self.value


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


class Squash(Enum):
    """How a continuous head brings its raw outputs into [-1, 1]."""

    TANH = "tanh"
    CLIP = "clip"
    NONE = "none"
    """Not at all: −1 and 1 stand for low and high, and what lies beyond is passed on."""


def parse_enum(kind: type[E], value: object, what: str) -> E:
    """Read an enum by its value; a SpecError names what is allowed."""
    try:
        member: E = read(kind, value, what)
    except JsonValueError as error:
        raise SpecError(f"{error}.") from None
    return member


def require(condition: bool, message: str, next_step: str = "") -> None:
    """Raise SpecError(message) unless the condition holds."""
    if not condition:
        raise SpecError(message, next_step)


def require_name(name: str, what: str) -> None:
    """Raise SpecError unless it is printable text of at most LONGEST_NAME characters."""
    require(
        is_text(name),
        f"{what} is {shortened(name)}; allowed are {LONGEST_NAME} printable characters, no control signs.",
    )


def require_names(names: tuple[str, ...], count: int, what: str) -> None:
    """Raise SpecError unless there are no names, or ``count`` printable ones."""
    require(len(names) in (0, count), f"{what} has {len(names)} names for {count} elements.")
    for name in names:
        require_name(name, f"the name of an element of {what}")


def require_member(kind: type[Enum], value: object, what: str) -> None:
    """Raise SpecError unless ``value`` is a member of the enum: its text is not."""
    allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    require(isinstance(value, kind), f"{what} is {shortened(value)}; allowed are {allowed}.")


def require_few_outputs(count: int) -> None:
    """Raise SpecError for a head of more than MOST_OUTPUTS outputs."""
    require(count <= MOST_OUTPUTS, f"the head has {count} outputs; allowed are {MOST_OUTPUTS}.")


@dataclass(frozen=True)
class ObservationField:
    """One named part of the observation vector.

    Attributes:
        name: what it is, e.g. ``"goal_distance"``.
        shape: its shape; the field is flattened in C order into the observation vector.
        unit: its physical unit, e.g. ``"m"``, or ``"1"`` when it has none.
        element_names: one for each element in C order, e.g. of joints; or none.
    """

    name: str
    shape: tuple[int, ...]
    unit: str
    element_names: tuple[str, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(bool(self.name), "an observation field has no name.")
        require_name(self.name, "an observation field's name")
        require_name(self.unit, f"the unit of observation field {self.name!r}")
        require(
            all(0 < side <= LARGEST_SIDE for side in self.shape) and len(self.shape) <= MOST_SIDES,
            f"observation field {self.name!r} has the shape {shortened(self.shape)}; "
            f"allowed are up to {MOST_SIDES} sides of 1 … {LARGEST_SIDE}.",
        )
        require_names(self.element_names, self.size, f"observation field {self.name!r}")

    @property
    def size(self) -> int:
        """Number of floats of this field."""
        return math.prod(self.shape)


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
            len(self.mean) == len(self.scale), f"normaliser has {len(self.mean)} means but {len(self.scale)} scales."
        )
        require(all(abs(m) <= LARGEST_FLOAT32 for m in self.mean), "normaliser.mean must be finite in float32.")
        require(
            all(SMALLEST_DIVISOR <= s <= LARGEST_DIVISOR for s in self.scale),
            f"normaliser.scale must be positive and between {SMALLEST_DIVISOR:g} and {LARGEST_DIVISOR:g}, "
            "so that it and its reciprocal are float32 numbers.",
        )
        require(self.clip > 0, f"normaliser.clip is {self.clip}; it must be positive.")
        if self.low or self.high:
            require(self.clip == math.inf, "normaliser has both a clip and bounds; allowed is one of them.")
            found = len(self.low), len(self.high)
            require(
                found == (len(self.mean), len(self.mean)),
                f"normaliser has {found[0]} lows and {found[1]} highs for {len(self.mean)} means.",
            )
            pairs = zip(self.low, self.high, strict=True)
            require(
                all(-LARGEST_FLOAT32 <= low < high <= LARGEST_FLOAT32 for low, high in pairs),
                "normaliser.low and normaliser.high must be finite in float32, with low < high.",
            )


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
            f"network.convolutions has {shortened(sizes)}; all three must be positive, {LARGEST_SIDE} at most.",
        )

    def output_side(self, side: int) -> int:
        """Height or width of the output for an input of ``side``: ⌊(side − kernel) / stride⌋ + 1."""
        return (side - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class NetworkSpec:
    """Convolutions, then fully connected layers, each with an activation; then a linear head.

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
    """

    hidden: tuple[int, ...]
    activation: Activation = Activation.RELU
    convolutions: tuple[Convolution, ...] = field(default=(), metadata=OMITTED)
    layer_norm: bool = field(default=False, metadata=OMITTED)
    activations: tuple[Activation, ...] = field(default=(), metadata=OMITTED)
    negative_slope: float = field(default=0.01, metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            all(0 < width <= LARGEST_SIDE for width in self.hidden),
            f"network.hidden is {shortened(self.hidden)}; widths must be positive, {LARGEST_SIDE} at most.",
        )
        layers = len(self.convolutions) + len(self.hidden)
        require(layers <= MOST_LAYERS, f"network has {layers} layers before the head; allowed are {MOST_LAYERS}.")
        for kind in (self.activation, *self.activations):
            require_member(Activation, kind, "network.activation")
        require(
            not self.activations or (len(self.activations) == layers and self.activations[0] is self.activation),
            f"network.activations are {len(self.activations)}, from {shortened([a.value for a in self.activations])}; "
            f"allowed are none, or {layers} of which the first is network.activation, {self.activation.value!r}.",
        )
        require(
            0.0 <= self.negative_slope <= 1.0, f"network.negative_slope is {self.negative_slope}; allowed are 0 … 1."
        )

    @property
    def is_relu(self) -> bool:
        """Whether a ReLU follows every layer before the head."""
        return set(self.activations or (self.activation,)) == {Activation.RELU}

    def activation_of(self, layer: str) -> Activation:
        """Of a layer before the head, by its name."""
        return self.activations[self.hidden_names.index(layer)] if self.activations else self.activation

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Names of all layers before the head, in order: ``conv_0``, …, ``dense_0``, …"""
        convolutions = (f"conv_{index}" for index in range(len(self.convolutions)))
        return (*convolutions, *(f"dense_{index}" for index in range(len(self.hidden))))

    def image_shapes(self, observation: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """(height, width, channels) of the observation and after each convolution.

        Raises:
            SpecError: the observation is no image, or too small for a kernel.
        """
        require(
            len(observation) == 3,
            f"the network's convolutions take an image (height, width, channels); the observation is {observation}.",
        )
        shapes = [(observation[0], observation[1], observation[2])]
        for layer in self.convolutions:
            height, width = layer.output_side(shapes[-1][0]), layer.output_side(shapes[-1][1])
            require(height > 0 and width > 0, f"an image of {shapes[-1]} is too small for {layer}.")
            shapes.append((height, width, layer.filters))
        return tuple(shapes)

    def dense_inputs(self, observation: tuple[int, ...], vector: int = 0) -> int:
        """Inputs of the first fully connected layer for an observation of that shape.

        Args:
            observation: its shape; of its image, where there are convolutions.
            vector: floats that follow the image and pass the convolutions by.
        """
        return math.prod(self.image_shapes(observation)[-1] if self.convolutions else observation) + vector


NATURE_CONVOLUTIONS = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""The convolutions of the Nature DQN (Mnih et al. 2015, Methods); a hidden layer of 512 follows them."""


@dataclass(frozen=True)
class DiscreteHead:
    """One output (logit or action value) per named action; the action is the first largest one."""

    KIND: ClassVar[str] = "discrete"
    action_names: tuple[str, ...]

    def __post_init__(self) -> None:
        require(len(self.action_names) >= 2, f"a discrete head needs two actions, got {len(self.action_names)}.")
        require_few_outputs(len(self.action_names))
        for name in self.action_names:
            require_name(name, "an action's name")
        repeated = sorted(name for name, count in Counter(self.action_names).items() if count > 1)
        require(not repeated, f"a discrete head names an action twice: {shortened(repeated)}.")

    @property
    def size(self) -> int:
        """Number of actions."""
        return len(self.action_names)


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
        require(self.limit > 0, f"head.limit is {self.limit}; it must be positive.")
        require_names(self.names, len(self.low), "the head")
        require_name(self.unit, "the unit of the head's actions")
        require(len(self.low) == len(self.high) > 0, f"head has {len(self.low)} lows but {len(self.high)} highs.")
        require_few_outputs(len(self.low))
        finite = all(abs(v) <= LARGEST_FLOAT32 for v in (*self.low, *self.high))
        ordered = all(low < high for low, high in zip(self.low, self.high, strict=True))
        require(
            finite and ordered,
            f"head bounds {shortened(self.low)} … {shortened(self.high)} must be finite with low < high.",
        )

    @property
    def size(self) -> int:
        """Number of action elements."""
        return len(self.low)


@dataclass(frozen=True)
class EnvironmentSpec:
    """Where the policy was trained: an environment id and the settings it was made with (JSON values)."""

    id: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name(self.id, "environment.id")
