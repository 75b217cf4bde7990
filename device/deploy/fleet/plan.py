"""The order in which a release reaches the devices of a fleet: some canaries, then batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import Member

CANARY = "canary"


class PlanError(HostError):
    """The size of a batch cannot be read."""


@dataclass(frozen=True)
class BatchSize:
    """How many devices are changed at a time, canaries apart: a count, or a share of the fleet."""

    text: str

    @classmethod
    def parse(cls, text: str) -> BatchSize:
        """Read ``10`` or ``25%``.

        Raises:
            PlanError: it is neither.
        """
        number = text.removesuffix("%")
        share = text.endswith("%")
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= (100 if share else 10**6):
            raise PlanError(
                f"The batch must be a number of devices (10) or a percentage of them (1% to 100%), got {text!r}.",
                "Type --batch 25%, for example.",
            )
        return cls(text)

    def of(self, devices: int) -> int:
        """Return the number of devices in a batch of a fleet of this size; at least one."""
        number = int(self.text.removesuffix("%"))
        return max(1, math.ceil(devices * number / 100)) if self.text.endswith("%") else number


USUAL_BATCH = BatchSize("25%")


def batches(members: Sequence[Member], size: int) -> list[tuple[str, tuple[Member, ...]]]:
    """Name and devices of each batch, in order."""
    parts = [tuple(members[start : start + size]) for start in range(0, len(members), size)]
    return [(f"batch {number} of {len(parts)}", part) for number, part in enumerate(parts, 1)]
