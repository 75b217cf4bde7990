"""Which devices of a fleet get which fault: a share of it each, spread over it, none of them a canary."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device.host.local_fleet import Fault

SHARES = {
    "dies before the switch": 0.005,
    "unreachable": 0.025,
    "slow": 0.05,
    "silent": 0.025,
    "dies after the switch": 0.005,
    "other host key": 0.01,
    "disk full": 0.01,
}
"""Share of the fleet by what is wrong, in the order in which a small fleet has them."""
FULL, SLOW = "disk full", "slow"
DYING = ("dies before the switch", "dies after the switch")
SLOW_BYTES_PER_S, SLOW_DELAY_S = 50e3, 0.05
MOST = 0.5
"""Share of the devices other than the canaries that may be ill: in a batch of two or more, one is well."""
SEED = 7


def chosen(names: Sequence[str], canaries: int, left_out: Sequence[str] = ()) -> dict[str, str]:
    """What is wrong, by device.

    Args:
        names: of the devices, in the order of the rollout.
        canaries: so many of the first are well.
        left_out: faults that cannot be had here.
    """
    others = names[canaries:]
    room = int(MOST * len(others))
    counts = {what: max(1, round(share * len(names))) for what, share in SHARES.items() if what not in left_out}
    faults = [what for what, count in counts.items() for _ in range(count)]
    if len(faults) > room:  # of each one first, then more of those of which there are more
        faults = [*counts, *(what for what, count in counts.items() for _ in range(count - 1))][:room]
    random.Random(SEED).shuffle(faults)
    return {others[place * len(others) // len(faults)]: what for place, what in enumerate(faults)}


def fault(what: str) -> Fault:
    """The fault of the embedded fleet that is called so here."""
    from device.host.local_fleet import Fault, FaultKind, When

    return {
        "dies before the switch": Fault.dies_in_switch(When.BEFORE),
        "dies after the switch": Fault.dies_in_switch(When.AFTER),
        "unreachable": Fault(FaultKind.UNREACHABLE),
        "silent": Fault(FaultKind.SILENT),
        "other host key": Fault(FaultKind.OTHER_KEY),
        SLOW: Fault.slow(SLOW_BYTES_PER_S, SLOW_DELAY_S),
        FULL: Fault(FaultKind.FULL),
    }[what]
