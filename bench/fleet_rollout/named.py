"""Rollouts to the devices of a fleet.toml: real ones, or virtual Pis. Nothing is done to them but what is typed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.fleet_rollout.steps import TOO_SHORT_MS, took
from bench.fleet_rollout.typed import typed

STEPS = (
    ("first", 8, ()),
    ("idle", 8, ()),
    ("next", 4, ()),
    ("fallen", 6, ("--deadline-ms", f"{TOO_SHORT_MS:f}")),
)
"""Name, bits and more words of each command."""


def rollouts(file: Path, policy: str, soak_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Type each command for all devices of the file; what each told and took.

    Args:
        file: the fleet.toml.
        policy: name of the policy; its artifacts have to be there.
        soak_s: seconds for which each phase is watched.
        say: takes a sentence on what is done now.
    """
    rows = []
    for name, bits, words in STEPS:
        say(f"{name}: int{bits} …")
        options = ("--fleet", str(file), "--policy", policy, "--bits", str(bits), "--soak", f"{soak_s:g}")
        done = typed((*options, *words), os.environ)
        states = dict(Counter(done.states.values()).most_common())
        say(f"{name}: {done.seconds:.1f} s, exit status {done.status}, {states or done.error[-300:]}")
        brought = [event for event in done.events if event.get("state") == "switched"]
        rows.append(
            {
                "step": name,
                "precision": f"int{bits}",
                **took(done),
                "states": states,
                "device_s": [event["seconds"] for event in brought],
                "kinds": len({event["digest"] for event in brought}),
            }
        )
    devices = sum(rows[0]["states"].values())
    whole = [each["states"] == {"proved": devices} and each["exit_status"] == 0 for each in rows[:3]]
    back = rows[-1]["states"].get("rolled back") == 1 and rows[-1]["exit_status"] == 1
    return {"policy": policy, "devices": devices, "soak_s": soak_s, "steps": rows, "holds": all(whole) and back}
