"""What a policy's actions can be, as a reader of its package needs it."""

from __future__ import annotations

import math

from quarl.policy.spec import ContinuousHead, Head, Squash


def action_bounds(head: Head) -> list[tuple[float, float]]:
    """Return the least and the largest value of each element of an action, in its unit; none where actions have no
    bounds."""
    if not isinstance(head, ContinuousHead):
        return []
    pairs = list(zip(head.low, head.high, strict=True))
    if head.squash is not Squash.NONE:
        return pairs
    if head.limit == math.inf:
        return []
    # a = (low + high) / 2 + y · (high − low) / 2, |y| ≤ limit
    return [
        ((low + high) / 2 - head.limit * (high - low) / 2, (low + high) / 2 + head.limit * (high - low) / 2)
        for low, high in pairs
    ]
