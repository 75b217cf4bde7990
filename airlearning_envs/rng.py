"""Random numbers as a pure function of (seed, episode, stream, counter): no generator, no state, no order.

Every draw is a hash of its coordinates (splitmix64, Steele, Lea and Flood 2014), computed for whole arrays at
once. So episode k is the same whichever batch it flies in, at whichever position, on whichever machine, and
two policies can be compared on exactly the same episodes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: splitmix64's increment
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


class Stream(IntEnum):
    """What a number is drawn for; draws of different streams are independent."""

    GOAL_DISTANCE = 1
    START = 2
    HEADING = 3
    OBSTACLE_COUNT = 4
    OBSTACLE_SIZE = 5
    OBSTACLE_PLACE = 6
    MOVER_PLACE = 7
    MOVER_VELOCITY = 8
    GAINS = 9
    WIND = 10
    GUST = 11
    RANGE_NOISE = 12
    RANGE_DROPOUT = 13
    MOTION_NOISE = 14
    LATENCY = 15
    ACTION = 16


def mix(words: Words) -> Words:
    """splitmix64's finaliser: a bijection of 64-bit words in which every output bit depends on every input bit."""
    z = words ^ (words >> np.uint64(30))
    z = z * _FACTOR_1
    z ^= z >> np.uint64(27)
    z *= _FACTOR_2
    z ^= z >> np.uint64(31)
    return z


def episode_keys(seed: int, episode_ids: NDArray[np.integer]) -> Words:
    """Return one key per episode, uint64 of the shape of ``episode_ids``.

    Any integer is a seed (it is taken modulo 2^64); episode ids are non-negative.
    """
    ids = np.asarray(episode_ids).astype(np.uint64)
    # Chained, not added: a sum of two equal hashes would make episode 1 of seed 0 episode 0 of seed 1.
    seed_word = mix(np.array([seed % 2**64], dtype=np.uint64) + GOLDEN)
    return mix(seed_word + (ids + np.uint64(1)) * GOLDEN)


def words(keys: Words, stream: Stream, counters: NDArray[np.integer] | int) -> Words:
    """64 random bits for each key and counter (broadcast together); counters are below 2^48."""
    # At least one dimension: numpy warns when a scalar wraps around, which is the point of this arithmetic.
    offset = np.atleast_1d(np.asarray(counters)).astype(np.uint64) + np.uint64(int(stream) << 48)
    return mix(keys + (offset + np.uint64(1)) * GOLDEN)


def uniforms(keys: Words, stream: Stream, counters: NDArray[np.integer] | int) -> NDArray[np.float32]:
    """Multiples of 2^-24 in [0, 1), float32."""
    return (words(keys, stream, counters) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def integers(
    keys: Words, stream: Stream, counters: NDArray[np.integer] | int, low: int, high: int
) -> NDArray[np.int64]:
    """Integers in [low, high], both included."""
    span = np.uint64(high - low + 1)
    return ((words(keys, stream, counters) >> np.uint64(32)) * span >> np.uint64(32)).astype(np.int64) + low


def normals(keys: Words, stream: Stream, counters: NDArray[np.integer] | int) -> NDArray[np.float32]:
    """Return standard normal numbers (Box and Muller 1958), float32; both uniforms come from the one word of a
    counter."""
    bits = words(keys, stream, counters)
    # (0, 1] keeps the logarithm finite; float64 keeps the last float32 bit the same on all machines.
    radius = np.sqrt(-2.0 * np.log(((bits >> np.uint64(32)) + np.uint64(1)).astype(np.float64) * 2.0**-32))
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    return (radius * np.cos(angle)).astype(np.float32)
