"""The activations, a record each: references, exporters, importers, bounds and the native engine are made from it.

To add one: a member of :class:`policy.spec.Activation`, its record here, and for the native engine
``python -m quarl.policy.activations > device/engine/activations.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

from quarl.policy.spec import Activation

Step = tuple[str, ...]
"""An operator of a graph, the last part of its result's name, and its operands: ``x``, or the name of a result."""


@dataclass(frozen=True)
class Nonlinearity:
    """An activation f(x).

    Attributes:
        native: its number in native artifacts, which it keeps.
        exact: f in double precision, an expression in C and in Python: of x, slope (the network's negative_slope),
            tanh(), and positive() and negative(), which are the larger and the smaller of their argument and 0.
        fast: f in float32 with numpy's functions, as far as policy/quantize.py names them, in the same names.
        onnx, tflite: f as float operators.
        slope: the largest |f'|.
        takes_slope: whether the network's negative_slope is in it.
        is_homogeneous: whether a positive factor passes through: f(k x) = k f(x).
        int8_version: lowest version of TFLite's operator that takes int8; None: its levels are looked up.
        int8_map: scale and zero point that this operator gives its output; None: any.
        onnx_names, torch_names: in the frameworks that policies come from.
    """

    native: int
    exact: str
    fast: str
    onnx: tuple[Step, ...]
    tflite: tuple[Step, ...]
    slope: float = 1.0
    takes_slope: bool = False
    is_homogeneous: bool = False
    int8_version: int | None = None
    int8_map: tuple[float, int] | None = None
    onnx_names: tuple[str, ...] = ()
    torch_names: tuple[str, ...] = ()

    @property
    def readers(self) -> int:
        """How often its ONNX operators read x."""
        return sum(step[2:].count("x") for step in self.onnx)


NONLINEARITIES = {
    Activation.NONE: Nonlinearity(0, "x", "x", (), (), is_homogeneous=True, torch_names=("Identity",)),
    Activation.RELU: Nonlinearity(
        1,
        "positive(x)",
        "positive(x)",
        (("Relu", "activated", "x"),),
        (("RELU", "activated", "x"),),
        is_homogeneous=True,
        onnx_names=("Relu",),
        torch_names=("ReLU",),
    ),
    Activation.TANH: Nonlinearity(
        2,
        "tanh(x)",
        "tanh(x)",
        (("Tanh", "activated", "x"),),
        (("TANH", "activated", "x"),),
        int8_version=2,
        int8_map=(1 / 128, 0),
        onnx_names=("Tanh",),
        torch_names=("Tanh",),
    ),
    Activation.SIGMOID: Nonlinearity(
        3,
        "(1.0 + tanh(x / 2.0)) / 2.0",
        "1.0 / (1.0 + exp(-x))",
        (("Sigmoid", "activated", "x"),),
        (("LOGISTIC", "activated", "x"),),
        slope=0.25,
        int8_version=2,
        int8_map=(1 / 256, -128),
        onnx_names=("Sigmoid",),
        torch_names=("Sigmoid",),
    ),
    # Clevert et al. 2016, α = 1: eˣ − 1 = 2 t / (1 − t) with t = tanh x/2, x ≤ 0.
    Activation.ELU: Nonlinearity(
        4,
        "positive(x) + 2.0 * tanh(negative(x) / 2.0) / (1.0 - tanh(negative(x) / 2.0))",
        "where(x > 0, x, expm1(negative(x)))",
        (("Elu", "activated", "x"),),
        (("ELU", "activated", "x"),),
        int8_version=1,
        onnx_names=("Elu",),
        torch_names=("ELU",),
    ),
    Activation.LEAKY_RELU: Nonlinearity(
        5,
        "positive(x) + slope * negative(x)",
        "where(x > 0, x, slope * x)",
        (("LeakyRelu", "activated", "x"),),
        (("LEAKY_RELU", "activated", "x"),),
        takes_slope=True,
        is_homogeneous=True,
        onnx_names=("LeakyRelu",),
        torch_names=("LeakyReLU",),
    ),
    Activation.SILU: Nonlinearity(
        6,
        "x * ((1.0 + tanh(x / 2.0)) / 2.0)",
        "x * (1.0 / (1.0 + exp(-x)))",
        (("Sigmoid", "sigmoid", "x"), ("Mul", "activated", "x", "sigmoid")),
        (("LOGISTIC", "sigmoid", "x"), ("MUL", "activated", "x", "sigmoid")),
        slope=1.1,  # 1.0998 at 2.4
        onnx_names=("Swish",),
        torch_names=("SiLU",),
    ),
}


def header() -> str:
    """``device/engine/activations.h``: number, name and f of each activation that has one."""
    lines = [
        f"    X({nonlinearity.native}, NATIVE_{kind.name}, {nonlinearity.exact.replace('tanh(', 'tanh64(')})"
        for kind, nonlinearity in NONLINEARITIES.items()
    ]
    return "\n".join(
        [
            "/* Made by python -m quarl.policy.activations: number in a native artifact, name, f(x). */",
            "#define EACH_ACTIVATION(X) \\",
            " \\\n".join(lines),
            "",
        ]
    )


if __name__ == "__main__":
    print(header(), end="")
