"""How a quantized policy executes: said once, so that no report claims size or speed from a simulation.

What convert/ makes for fewer than 8 bits is an int8 model with fewer levels. Nothing is packed, the kernel is the int8
kernel, and the file is as large as the int8 one (REFERENCE: what runs as int8 has to be reported as such). Schemes and
widths that no runtime executes are evaluated in float, on numbers that lie on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from policy.quantization import FLOAT_BITS, LARGEST_WEIGHT_BITS, Scheme
from policy.spec import RuntimeName

KERNELS = {
    RuntimeName.LITERT: "int8 × int8 → int32 by XNNPACK",
    RuntimeName.TFLITE_RUNTIME: "int8 × int8 → int32 by the built-in kernels",
    RuntimeName.ONNXRUNTIME: "int8 × int8 → int32 where onnxruntime fuses (QGemm, QLinearConv), else float",
}
DEVICE_ACTIVATION_BITS = 8


@dataclass(frozen=True)
class Execution:
    """How a device executes a policy of some widths.

    Attributes:
        artifact: the precision's word (``int4``) of the artifact that computes these very numbers; None where there is
            none, so that the numbers are simulated and neither size nor speed follows from them.
        container_bytes: bytes that one weight takes in the artifact's file; None without an artifact.
        packed: whether several weights share a byte; no artifact of this project does.
        kernel: what multiplies, in words.
        words: all of that as one sentence for reports.
    """

    artifact: str | None
    container_bytes: int | None
    packed: bool
    kernel: str
    words: str


def execution_of(
    scheme: Scheme,
    weight_bits: int,
    activation_bits: int | None,
    runtime: RuntimeName = RuntimeName.LITERT,
    trained: bool = False,
) -> Execution:
    """How these widths execute in a runtime.

    Args:
        scheme: of the weights.
        weight_bits: 2 … 32; 32 is float.
        activation_bits: of the hidden layers' outputs, None for float.
        runtime: that executes the artifact.
        trained: the policy was trained with quantizers of this width, so that its artifact's activations have it too.
    """
    if weight_bits == FLOAT_BITS and activation_bits is None:
        return Execution("fp32", 4, False, "float32", "float32 arithmetic, 4 bytes a weight")
    if scheme is Scheme.FP16:
        words = "2 bytes a weight in the file, widened to float32 when loaded: arithmetic, speed and memory of fp32"
        return Execution("fp16", 2, False, "float32", words)
    device_bits = weight_bits if trained else DEVICE_ACTIVATION_BITS
    if scheme is Scheme.SYMMETRIC and weight_bits <= LARGEST_WEIGHT_BITS and activation_bits == device_bits:
        word, kernel = f"int{weight_bits}", KERNELS[runtime]
        if weight_bits == LARGEST_WEIGHT_BITS:
            return Execution(word, 1, False, kernel, f"{kernel}, 1 byte a weight")
        limit = 2 ** (weight_bits - 1) - 1
        words = (
            f"{weight_bits}-bit weights in an int8 container, levels −{limit} … {limit}, unpacked (1 byte a weight): "
            f"size, speed and kernel are int8's ({kernel})"
        )
        return Execution(word, 1, False, kernel, words)
    words = "simulated: float32 arithmetic on quantized numbers; no artifact computes this, so no size or speed follows"
    return Execution(None, None, False, "float32", words)
