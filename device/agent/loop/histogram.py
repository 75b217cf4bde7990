"""A histogram of nanoseconds that never grows: buckets of equal relative width, as of an HDR histogram."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, compress
from typing import Any

from quarl.device.agent.measure import PERCENTILES, required_runs

SUB_BITS = 5
"""Each power of two has 2^SUB_BITS buckets: a value is known to 3 %."""
LARGEST_DURATION = 2**40 - 1
"""ns, 18 minutes: what is longer is counted as this."""
BUCKETS = (41 - SUB_BITS) << SUB_BITS


class Histogram:
    """Counts of durations in ns. Negative ones count as 0.

    Attributes:
        count: how many were added.
        largest: the largest of them, exactly.
    """

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * BUCKETS))
        self.count = self.largest = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        if duration_ns < 0:
            duration_ns = 0
        if duration_ns > self.largest:
            self.largest = duration_ns
            if duration_ns > LARGEST_DURATION:
                duration_ns = LARGEST_DURATION
        self.count += 1
        shift = duration_ns.bit_length() - SUB_BITS - 1
        self._buckets[duration_ns if shift <= 0 else (shift << SUB_BITS) + (duration_ns >> shift)] += 1

    def clear(self) -> None:
        """Forget everything; nothing is allocated."""
        self._buckets[:] = array("Q", bytes(8 * BUCKETS))
        self.count = self.largest = 0

    def buckets(self) -> list[tuple[int, int]]:
        """The upper edges (ns, inclusive) of the buckets that are not empty, with their counts."""
        return list(compress(zip(_EDGES, self._buckets), self._buckets))

    def quantile(self, share: float) -> int:
        """The smallest edge that at least this share of all durations do not exceed, in ns; 0 where there are none."""
        return self._quantiles(self.buckets(), [share])[0]

    def _quantiles(self, buckets: list[tuple[int, int]], shares: Iterable[float]) -> list[int]:
        seen = list(accumulate(count for _, count in buckets))
        places = [bisect_left(seen, share * self.count - 1e-9) for share in shares]
        return [min(buckets[place][0], self.largest) if place < len(buckets) else 0 for place in places]

    def above(self, limit_ns: int) -> int:
        """How many are longer than a limit, to the width of a bucket."""
        return sum(count for edge, count in self.buckets() if edge > limit_ns)

    def to_dict(self) -> dict[str, Any]:
        """Count, percentiles that the count supports, maximum, buckets; ns."""
        known = {name: share for name, share in PERCENTILES.items() if self.count >= required_runs(share)}
        buckets = self.buckets()  # once: a loop replies this between two ticks
        return {
            "count": self.count,
            "percentiles": dict(zip(known, self._quantiles(buckets, known.values()))),
            "max": self.largest,
            "buckets": buckets,
        }


def _upper_edge(index: int) -> int:
    if index < 2 << SUB_BITS:
        return index
    shift = (index >> SUB_BITS) - 1
    return ((index - (shift << SUB_BITS) + 1) << shift) - 1


_EDGES = [_upper_edge(index) for index in range(BUCKETS)]
