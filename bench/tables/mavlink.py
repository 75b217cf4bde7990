"""The table of bench/mavlink.py: the same episodes with MAVLink between the policy and the drone, and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airlearning_envs.flights import wilson_interval
from bench.report.intervals import Estimate, paired_difference
from bench.report.pivot import Pivot

WORDS = """\
Flown through MAVLink
{{ results.episodes | thousands }} episodes of each preset, {{ results.precision }} in LiteRT, the same ones both \
ways, over one served loop. Success in percent with 95 % intervals: Wilson, and of the difference, paired on the \
same episodes, Newcombe's method 10. Alike: episodes that end for the same cause after as many decisions. Time is \
simulated: each period waits for its setpoint. What MAVLink changes is the resolution of OBSTACLE_DISTANCE, one \
centimetre, and of the yaw, a float32: a range that is half a centimetre off now and then decides another action, \
and the flights part from there.
Measured on {{ results.machine }}; code {{ results.code }}.
"""
REACHED = "goal"


def rows_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each policy."""
    for each in document["flown"]:
        through, without = each["through"], each["without"]
        reached = [[flight["cause"] == REACHED for flight in flights] for flights in (through, without)]
        rates = [
            Estimate(sum(row) / len(row), *wilson_interval(sum(row), len(row))) if row else None for row in reached
        ]
        alike = sum((a["cause"], a["steps"]) == (b["cause"], b["steps"]) for a, b in zip(through, without, strict=True))
        difference = paired_difference(*reached)
        yield {
            "policy": each["policy"],
            "preset": each["preset"],
            "through": rates[0],
            "without": rates[1],
            "difference": difference.estimate,
            "alike": alike,
            "decisions": sum(flight["steps"] for flight in through),
        }


MAVLINK = Pivot(
    name="mavlink",
    words=WORDS,
    lead={"policy": "{{ policy }}", "preset": "{{ preset }}"},
    columns=[
        {"% success through MAVLink": "{{ through | percent }}", "without": "{{ without | percent }}"},
        {"points": "{{ difference | percent('+') }}", "alike": "{{ alike | thousands }}"},
        {"decisions": "{{ decisions | thousands }}"},
    ],
    rows=rows_of,
    grouped=True,
)
