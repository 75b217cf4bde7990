"""How a quantized policy executes: said once, so that no report claims size or speed from a simulation.

What convert/ makes for fewer than 8 bits is an int8 model with fewer levels. Nothing is packed, the kernel is the int8
kernel, and the file is as large as the int8 one (REFERENCE: what runs as int8 has to be reported as such). Schemes and
widths that no runtime executes are evaluated in float, on numbers that lie on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from quarl.policy.quantize import FLOAT_BITS, Scheme
from quarl.policy.spec import LARGEST_WEIGHT_BITS

KERNEL = "int8 × int8 → int32 by XNNPACK"
"""LiteRT's kernel for the layers of an int8 model."""
DEVICE_ACTIVATION_BITS = 8


@dataclass(frozen=True)
class ExecutedWidths:
    """How a device executes a policy of some widths, in words.

    ``artifact``: the precision's word (``int4``) of the artifact that computes these very numbers; None where there is
    none, so that the numbers are simulated and neither size nor speed follows from them.
    """

    artifact: str | None
    words: str


def execution_of(
    scheme: Scheme, weight_bits: int, activation_bits: int | None, trained: bool = False
) -> ExecutedWidths:
    """Return how these widths execute in LiteRT.

    Args:
        scheme: of the weights.
        weight_bits: 2 … 32; 32 is float.
        activation_bits: of the hidden layers' outputs, None for float.
        trained: the policy was trained with quantizers of this width, so that its artifact's activations have it too.
    """
    if weight_bits == FLOAT_BITS and activation_bits is None:
        return ExecutedWidths("fp32", "float32 arithmetic, 4 bytes a weight")
    if scheme is Scheme.FP16:
        words = "2 bytes a weight in the file, widened to float32 when loaded: arithmetic, speed and memory of fp32"
        return ExecutedWidths("fp16", words)
    device_bits = weight_bits if trained else DEVICE_ACTIVATION_BITS
    if scheme is not Scheme.SYMMETRIC or weight_bits > LARGEST_WEIGHT_BITS or activation_bits != device_bits:
        words = "simulated: float32 arithmetic on quantized numbers; no artifact computes this, so no size or speed"
        return ExecutedWidths(None, f"{words} follows")
    words, limit = f"{KERNEL}, 1 byte a weight", 2 ** (weight_bits - 1) - 1
    if weight_bits < LARGEST_WEIGHT_BITS:
        words = (
            f"{weight_bits}-bit weights in an int8 container, levels −{limit} … {limit}, unpacked (1 byte a weight): "
            f"size, speed and kernel are int8's ({KERNEL})"
        )
    return ExecutedWidths(f"int{weight_bits}", words)
