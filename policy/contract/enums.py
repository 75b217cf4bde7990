"""The contract's enums: precisions, formats, runtimes, activations, squashings."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from quarl.policy.errors import SpecError
from quarl.policy.json_values import JsonValueError, read

E = TypeVar("E", bound=Enum)


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

    @property
    def bits(self) -> int:
        """Bits of one weight; of ``MIXED``, of most."""
        if self is Precision.MIXED:
            return Precision.INT4.bits
        return int(self.value.removeprefix("fp").removeprefix("int"))

    @property
    def is_integer(self) -> bool:
        """Whether the artifact computes with integers."""
        return self not in (Precision.FP32, Precision.FP16)

    @property
    def typed(self) -> str:
        """The value to type behind ``BITS=``."""
        return self.value if self is Precision.MIXED else str(self.bits)

    @property
    def formats(self) -> tuple[ArtifactFormat, ...]:
        """The formats that hold artifacts of this precision."""
        return tuple(each for each in ArtifactFormat if each.holds(self))

    @property
    def runtimes(self) -> tuple[RuntimeName, ...]:
        """The runtimes that execute artifacts of this precision."""
        return tuple(each for each in RuntimeName if each.artifact_format in self.formats)

    @classmethod
    def from_bits(cls, bits: int) -> Precision:
        """The precision that ``BITS=bits`` names: 32 is fp32, 16 is fp16, 8 … 2 are int8 … int2."""
        for precision in cls:
            if precision.bits == bits:
                return precision
        raise SpecError(
            f"BITS={bits} is no known precision; allowed are 32, 16, 8 … 2 and mixed.", "Type BITS=8, for example."
        )

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Read ``int8``, ``8`` or ``mixed``."""
        if text.isdigit():
            return cls.from_bits(int(text))
        return parse_enum(cls, text, "precision")


class ArtifactFormat(Enum):
    """File format of an artifact; the value is the file's suffix."""

    TFLITE = "tflite"
    ONNX = "onnx"
    NATIVE = "native"
    """Integers alone, packed: docs/native.md."""

    def holds(self, precision: Precision) -> bool:
        """Whether there are artifacts of this precision."""
        return self is not ArtifactFormat.NATIVE or precision.is_integer


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


def executions(precisions: Iterable[Precision], runtimes: Iterable[RuntimeName]) -> list[tuple[Precision, RuntimeName]]:
    """Every precision in every runtime that executes it.

    Raises:
        SpecError: a runtime executes none of those that there are.
    """
    wanted, requested = list(precisions), list(runtimes)
    for runtime in requested:
        if wanted and not any(runtime.artifact_format.holds(precision) for precision in wanted):
            raise SpecError(
                f"the runtime {runtime.value} executes int8 … int2; asked for is {', '.join(p.value for p in wanted)}.",
                "Type BITS=8, or take another runtime.",
            )
    return [(p, r) for p in wanted for r in requested if r.artifact_format.holds(p)]


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
    """No squashing: −1 and 1 stand for low and high, and what lies beyond is passed on."""


def parse_enum(kind: type[E], value: object, what: str) -> E:
    """Read an enum by its value; a SpecError names what is allowed."""
    try:
        member: E = read(kind, value, what)
    except JsonValueError as error:
        raise SpecError(f"{error}.") from None
    return member
