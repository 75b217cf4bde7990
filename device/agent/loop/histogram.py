"""A histogram of nanoseconds that never grows: buckets of equal relative width, as of an HDR histogram."""

from __future__ import annotations

from array import array
from typing import Any

from device.agent.measure import PERCENTILES, required_runs

SUB_BITS = 5
"""Each power of two has 2^SUB_BITS buckets: a value is known to 3 %."""
LARGEST = 2**40 - 1
"""ns, 18 minutes: what is longer is counted as this."""
_BUCKETS = (41 - SUB_BITS) << SUB_BITS


class Histogram:
    """Counts of durations in ns. Negative ones count as 0.

    Attributes:
        count: how many were added.
        largest: the largest of them, exactly.
    """

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * _BUCKETS))
        self.count = self.largest = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        if duration_ns < 0:
            duration_ns = 0
        if duration_ns > self.largest:
            self.largest = duration_ns
            if duration_ns > LARGEST:
                duration_ns = LARGEST
        self.count += 1
        shift = duration_ns.bit_length() - SUB_BITS - 1
        self._buckets[duration_ns if shift <= 0 else (shift << SUB_BITS) + (duration_ns >> shift)] += 1

    def clear(self) -> None:
        """Forget everything; nothing is allocated."""
        self._buckets[:] = array("Q", bytes(8 * _BUCKETS))
        self.count = self.largest = 0

    def buckets(self) -> list[tuple[int, int]]:
        """The upper edges (ns, inclusive) of the buckets that are not empty, with their counts."""
        return [(_upper_edge(index), count) for index, count in enumerate(self._buckets) if count]

    def quantile(self, share: float) -> int:
        """The smallest edge that at least this share of all durations do not exceed, in ns; 0 where there are none."""
        need, seen = share * self.count, 0
        for edge, count in self.buckets():
            seen += count
            if seen >= need - 1e-9:
                return min(edge, self.largest)
        return 0

    def above(self, limit_ns: int) -> int:
        """How many are longer than a limit, to the width of a bucket."""
        return sum(count for edge, count in self.buckets() if edge > limit_ns)

    def to_dict(self) -> dict[str, Any]:
        """Count, percentiles that the count supports, maximum, buckets; ns."""
        known = {name: share for name, share in PERCENTILES.items() if self.count >= required_runs(share)}
        return {
            "count": self.count,
            "percentiles": {name: self.quantile(share) for name, share in known.items()},
            "max": self.largest,
            "buckets": self.buckets(),
        }


def _upper_edge(index: int) -> int:
    if index < 2 << SUB_BITS:
        return index
    shift = (index >> SUB_BITS) - 1
    return ((index - (shift << SUB_BITS) + 1) << shift) - 1
