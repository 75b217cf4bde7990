"""A MODEL of how long a Raspberry Pi 3b's core needs for what was counted: two bounds and a roofline, no measurement.

Let N be the instructions, M1 the misses of the L1 caches, f the clock. Of those misses, let m2 miss in the L2 as well
when it replaces as suits best, M2 when as suits worst, of the two ways that are counted (qemu_counter/cache.h).

    lower = max( N / (2 f),  64 B · m2 / bandwidth )           everything overlaps, two instructions every cycle
    upper = N / (½ f) + (M1 − M2) · t_L2 + M2 · t_DRAM         nothing overlaps, one instruction every two cycles

A Cortex-A53 issues at most two instructions a cycle, in order (Arm DDI 0500, section 1.1: "dual-issue"), which makes
the lower one a bound. The least sustained rate of ½ is an assumption, not a measurement: loads, multiply-accumulates
and mispredicted branches stall an in-order core for some cycles each; a loop of dependent operations is slower still.
Not in the model: prefetching (the upper bound has none), what else the Pi does, system calls, throttling.

The roofline knows nothing of instructions, only of multiply-accumulates (MACs) and of the bytes of weights:

    roofline = max( MACs / (MACs a cycle · f),  bytes of weights / bandwidth  where they do not fit into the L2 )

(as if weights that do not fit came from DRAM every time, all of them; where they are hardly larger, some may stay). The
native engine skips rows of weights behind zeros: its sparse roofline has that share of MACs and bytes that is left.

Figures: REFERENCE section 5 (Raspberry Pi 3b: latencies, bandwidth, MACs a cycle, cache sizes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quarl.bench.qemu_counter.counting import Counted
from quarl.policy.reference import WeightBits, layer_names
from quarl.policy.simulate import bits_by_layer
from quarl.policy.spec import PolicySpec, Precision, weight_shapes

CLOCK_HZ = 1.2e9
IPC_HIGH, IPC_LOW = 2.0, 0.5
L2_LATENCY_NS = 29.0
"""The greater of 23 to 29 ns."""
DRAM_LATENCY_NS = 173.0
BANDWIDTH_BYTES_PER_S = 2.44e9
"""One core's reads; the greater of 2.2 to 2.44 GB/s."""
LINE_BYTES = 64
PACKED_BITS = (2, 4, 8)
L1_BYTES, L2_BYTES = 32 << 10, 512 << 10
FLOAT_MACS_PER_CYCLE, INTEGER_MACS_PER_CYCLE = 2.0, 4.0
"""Fed with weights from memory. Fewer than 8 bits are multiplied as int8 by all runtimes, and stored so by all but the
native one, which packs them in 2, 4 or 8."""

ASSUMPTIONS = {
    "clock_hz": CLOCK_HZ,
    "ipc_high": IPC_HIGH,
    "ipc_low": IPC_LOW,
    "l2_latency_ns": L2_LATENCY_NS,
    "dram_latency_ns": DRAM_LATENCY_NS,
    "bandwidth_bytes_per_s": BANDWIDTH_BYTES_PER_S,
    "float_macs_per_cycle": FLOAT_MACS_PER_CYCLE,
    "integer_macs_per_cycle": INTEGER_MACS_PER_CYCLE,
}
"""Assumptions that are stored beside every modelled number."""


class Level(Enum):
    """The nearest memory that holds all weights at once."""

    L1 = "L1"
    L2 = "L2"
    DRAM = "DRAM"


@dataclass(frozen=True)
class Bounds:
    """The model's answer, in nanoseconds."""

    lower_ns: float
    upper_ns: float


@dataclass(frozen=True)
class Weights:
    """A policy's weights as they are multiplied.

    Attributes:
        macs: multiply-accumulates of one decision.
        bytes: kernels and biases as a core without fp16 arithmetic reads them: fp16 is unpacked to fp32 on loading.
        level: where they fit.
    """

    macs: int
    bytes: int
    level: Level

    @classmethod
    def of(cls, spec: PolicySpec, precision: Precision, packed: WeightBits | None = None) -> Weights:
        """Worked out from the shapes; the native engine stores weights of ``packed`` bits in the next of 2, 4 or 8."""
        shapes = weight_shapes(spec)
        kernels = {name: shapes[f"{name}/kernel"] for name in layer_names(spec)}
        macs = {name: shape[0] * shape[1] for name, shape in kernels.items() if len(shape) == 2}
        biases = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
        bits = bits_by_layer(spec, packed or (32 if is_float(precision) else 8))
        stored = {name: next((b for b in PACKED_BITS if b >= width), width) for name, width in bits.items()}
        size = sum(count * stored[name] for name, count in macs.items()) // 8 + 4 * biases  # biases: fp32, or int32
        return cls(sum(macs.values()), size, level_of(size))


def is_float(precision: Precision) -> bool:
    """Return whether the arithmetic is in fp32."""
    return not precision.is_integer and precision is not Precision.DYNAMIC


def level_of(size: int) -> Level:
    """Return the nearest memory of ``size`` bytes or more."""
    if size <= L1_BYTES:
        return Level.L1
    return Level.L2 if size <= L2_BYTES else Level.DRAM


def bounds(counted: Counted) -> Bounds:
    """Return the two bounds of what was counted; see the module's equations."""
    fewest, most = sorted((counted.l2_misses, counted.l2_random_misses))
    issue_ns = counted.instructions / (IPC_HIGH * CLOCK_HZ) * 1e9
    stream_ns = LINE_BYTES * fewest / BANDWIDTH_BYTES_PER_S * 1e9
    slow_ns = counted.instructions / (IPC_LOW * CLOCK_HZ) * 1e9
    wait_ns = (counted.l1_misses - most) * L2_LATENCY_NS + most * DRAM_LATENCY_NS
    return Bounds(max(issue_ns, stream_ns), slow_ns + wait_ns)


def roofline_ns(weights: Weights, precision: Precision, read: float = 1.0) -> float:
    """Return the roofline's bound where that share of the weights is read, in nanoseconds; see the module's
    equations."""
    rate = FLOAT_MACS_PER_CYCLE if is_float(precision) else INTEGER_MACS_PER_CYCLE
    compute_ns = weights.macs / (rate * CLOCK_HZ) * 1e9
    stream_ns = weights.bytes / BANDWIDTH_BYTES_PER_S * 1e9 if weights.level is Level.DRAM else 0.0
    return read * max(compute_ns, stream_ns)
