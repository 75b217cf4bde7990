"""The tables of bench/native.py and quarl peers: what one decision takes in each program, beside LiteRT."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from quarl.bench.report.pivot import Pivot

RUNTIMES_WORDS = """\
The native engine beside the other runtimes
One decision at batch 1, one thread, from Python's call to the action: median over {{ results.turns }} turns, each \
about {{ results.turn_s }} s of every contestant on one core, one process each; of a turn the median of \
{{ results.parts }} parts' means. As fast as LiteRT: its time over this one's in the same turn, the median and in \
brackets the least and the greatest.
Exact: native gives the levels of quarl.policy.reference after every layer, with each of its sets of kernels (tests).
Measured on {{ results.machine }}; {{ results.versions }}; code {{ results.code }}.
"""
PROGRAMS_WORDS = """\
The native engine beside other programs
One decision at batch 1, one thread: median over {{ results.turns }} turns, each about {{ results.turn_s }} s of every \
contestant on one core, one process each; of a turn the median of {{ results.parts }} parts' means. From Python's call \
to the action; "in C": from a loop in C, without Python. As fast as LiteRT's int8: its time over this one's in the \
same turn, the median and in brackets the least and the greatest. Acts as fp32: share of the golden observations on \
which it chooses what the float policy chooses.
ncnn's int8 has one scale for what a layer is fed, from the same calibration observations; MNN's int8 are weights \
of 8 bits (--weightQuantBits 8); OpenVINO's is the graph with quantize and dequantize operators that onnxruntime \
executes. emlearn's C is floats, compiled for this processor ({{ results.flags }}). LiteRT executes \
by XNNPACK's kernels.
Measured on {{ results.machine }}; {{ results.versions }}; code {{ results.code }}.
"""


def timed(document: Mapping[str, Any], *same: str) -> Iterator[dict[str, Any]]:
    """A row for each contestant with its speed-up over LiteRT's int8, or over LiteRT with the same of these names."""

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in same)

    bases = [row for row in document["rows"] if row["runtime"] == "litert"]
    base = {key(row): row for row in bases if "precision" in same or row["precision"] == "int8"}
    for row in document["rows"]:
        yield {**row, "median_ns": statistics.median(row["turns_ns"]), "as_fast": as_fast(row, base[key(row)])}


def as_fast(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """How many times as fast as the base, turn by turn: ``2.08× [2.01, 2.56]``."""
    if row is base:
        return "1 (base)"
    ratios = [a / b for a, b in zip(base["turns_ns"], row["turns_ns"], strict=True)]
    return f"{statistics.median(ratios):.2f}× [{min(ratios):.2f}, {max(ratios):.2f}]"


def by_speed(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of each policy, in the order of these, the fastest first."""
    rows = list(timed(document, "policy"))
    order = list(dict.fromkeys(row["policy"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["policy"]), row["median_ns"]))


RUNTIMES = Pivot(
    name="native",
    words=RUNTIMES_WORDS,
    lead={"policy": "{{ policy }}", "precision": "{{ precision }}", "runtime": "{{ runtime }}"},
    columns=[
        {
            "one decision": "{{ median_ns | ns }}",
            "as fast as LiteRT": "{{ as_fast }}",
            "KB artifact": "{{ bytes | kb }}",
        }
    ],
    rows=lambda document: timed(document, "policy", "precision"),
    gathered=False,
)
PROGRAMS = Pivot(
    name="peers",
    words=PROGRAMS_WORDS,
    lead={"policy": "{{ policy }}", "program": "{{ runtime }}", "precision": "{{ precision }}"},
    columns=[
        {"one decision": "{{ median_ns | ns }}", "as fast as LiteRT's int8": "{{ as_fast }}"},
        {"acts as fp32, %": "{{ '%.1f' | format(100 * acts_as_fp32) }}", "KB": "{{ bytes | kb }}"},
    ],
    rows=by_speed,
    gathered=False,
)
