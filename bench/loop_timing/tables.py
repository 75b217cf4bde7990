"""The tables of bench/loop.py: what a round trip through the loop's socket takes, and how punctual its clock is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quarl.airlearning_envs.config import PRESETS
from quarl.bench.flights import LATENCY_FLOWN, late_rows
from quarl.bench.report import store
from quarl.bench.report.selection import Selection
from quarl.bench.report.text import format_fixed, nanoseconds, times
from quarl.bench.tables import Table, tabulate
from quarl.device.agent.measure import PERCENTILES, compute_required_runs

PRESET = "hard"
MEASURED_ON = """\
Policy {{ results.policy }}, {{ results.precision }}, on {{ results.target }}: {{ results.device | machine }}\
{{ ", EMULATED: its times are an emulator's" if results.device.emulated }}.
Kernel {{ kernel }}; governor {{ governor or "not known" }}; throttling bits {{ throttled or "not known" }}. Requested \
of the kernel: {{ granted }}.
Measured on {{ results.machine }}; code {{ results.code }}.
"""
ROUND_TRIP_WORDS = (
    """\
A round trip through the loop's socket
Echo: the same frame sent back by the same process, in turn with the observations. Share: from the frame's being read \
to the action's being written, beside the runtime's own call, both in that process and in these turns. \
{{ pairs | thousands }} of each after a warm-up; medians. Core: processor time over time.
{% for row in verdicts %}
{{ row.runtime }}: polling before each wait takes a whole core and saves {{ row.saved | ns }} of {{ row.slept | ns }} \
a round trip: {{ "%.1f" | format(100 * row.saved / period) }} % of a period at 200 decisions a second.
{% endfor %}
"""
    + MEASURED_ON
)
PUNCTUALITY_WORDS = (
    """\
How punctual the loop is{{ ", EMULATED" if results.device.emulated }}
Woke: after the tick. Sent: the action, after the tick. Age: of its observation then; the robot's program sends two a \
period. Kernel: cyclictest's latency for the same period in the same seconds\
{{ "" if cyclic else " (rt-tests is not installed there)" }}. Loads: {{ loads | join(", ") }}. Percentiles \
only where the counts support them; known to 3 %.
{% if flown %}
How late it may be: {{ flown }}. How late it is: at most {{ latest | ns }} after its tick in these rows.
{% endif %}
"""
    + MEASURED_ON
)
PERCENTILE_COLUMNS = {
    "woke": ("woke_late", "p50", "p99", "p99.9", "max"),
    "kernel": ("kernel", "p50", "p99", "max"),
    "sent": ("sent_late", "p99", "max"),
    "jitter": ("jitter", "p99"),
    "age": ("age", "p99", "max"),
}
"""Which percentiles of a time stand in the table, by the word before each."""
PERIOD_NS = 5_000_000
"""Of 200 decisions a second, beside which polling is compared."""


def _read_percentile(histogram: Mapping[str, Any], name: str) -> int | None:
    return histogram["percentiles"].get(name)


def _share(status: Mapping[str, Any]) -> float:
    return float(status["counts"]["cpu_s"] / status["counts"]["seconds"])


def round_trips(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each runtime and way of waiting; medians in ns."""
    for pair in document["pairs"]:
        counts = pair["status"]["counts"]
        medians = {name: _read_percentile(pair[f"{name}_ns"], "p50") or 0 for name in ("echo", "round_trip")}
        inner = {name: _read_percentile(counts[f"{name}_ns"], "p50") or 0 for name in ("answered", "runtime")}
        yield {
            "runtime": pair["runtime"],
            "wait": pair["wait"],
            **medians,
            "ratio": medians["round_trip"] / medians["echo"],
            "share": inner["answered"],
            "call": inner["runtime"],
            "times": inner["answered"] / inner["runtime"],
            "core": _share(pair["status"]),
        }


def _verdicts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = {(row["runtime"], row["wait"]): row["round_trip"] for row in round_trips(document)}
    names = dict.fromkeys(runtime for runtime, _ in rows)
    return [
        {"runtime": name, "slept": rows[name, "sleeps"], "saved": rows[name, "sleeps"] - rows[name, "polls"]}
        for name in names
    ]


def _of_kernel(found: Mapping[str, Any] | None, name: str) -> int | None:
    """Return a percentile of cyclictest's histogram, ns; None where the count does not support it."""
    if found is None:
        return None
    buckets = [tuple(map(int, pair.split(":"))) for pair in found["buckets"].split()]
    count, seen = sum(number for _, number in buckets), 0
    if count < compute_required_runs(PERCENTILES[name]):
        return None
    for microseconds, number in buckets:
        seen += number
        if seen >= PERCENTILES[name] * count:
            return 1000 * int(microseconds)
    return None


def punctuality(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each load and rate; ns."""
    for run in document["clock"]:
        counts, kernel = run["status"]["counts"], run["cyclictest_us"]
        names = ("woke_late", "sent_late", "age", "jitter")
        times = {
            f"{name}_{share}": _read_percentile(counts[f"{name}_ns"], share)
            for name in names
            for share in ("p50", "p99", "p99.9")
        }
        yield {
            "load": run["load"],
            "rate": run["rate"],
            **{key.replace(".", "_"): value for key, value in times.items()},
            **{f"{name}_max": counts[f"{name}_ns"]["max"] for name in names},
            **{f"kernel_{share.replace('.', '_')}": _of_kernel(kernel, share) for share in ("p50", "p99", "p99.9")},
            "kernel_max": 1000 * kernel["max"] if kernel else None,
            "missed": counts["missed_per_million"],
            "ticks": counts["ticks"] + counts["skipped"],
            "fallback": counts["fallback"],
            "hold_expired": counts.get("hold_expired"),  # not in what was stored before it was counted
        }


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    rows = document["clock"] or [{}]
    looks = [entry.get(when, {}) for entry in rows for when in ("before", "after")]
    words = [look["throttled"] for look in looks if look.get("throttled")]
    statuses = [entry["status"] for entry in (*document["pairs"], *document["clock"])]
    granted = {
        f"{entry['name']} {'granted' if entry['granted'] else 'not granted (' + entry['reason'] + ')'}": None
        for status in statuses
        for entry in status["granted"]
    }
    return {
        "pairs": document["pairs"][0]["round_trip_ns"]["count"] if document["pairs"] else 0,
        "verdicts": _verdicts(document),
        "period": PERIOD_NS,
        "kernel": f"{rows[0].get('kernel', 'not known')} {rows[0].get('preemption', '')}".strip(),
        "governor": ", ".join(sorted({look.get("governor") or "" for look in looks} - {""})),
        "throttled": ", ".join(sorted({hex(entry["raw"]) for entry in words})),
        "granted": "; ".join(granted),
        "cyclic": any(entry.get("cyclictest_us") for entry in rows),
        "loads": [f"{name} ({command})" for name, command in document["loads"].items() if command],
        "latest": max((row["sent_late_max"] for row in punctuality(document)), default=0),
        "flown": may_be_late(document["policy"], document["precision"]),
    }


def may_be_late(policy: str, precision: str) -> str:
    """Up to which command latency a policy flew as well as without, in words; empty where that was not flown."""
    path = store.results_for(LATENCY_FLOWN)
    rows = list(late_rows(Selection.of_target(store.read_results(path), None), PRESET)) if path.exists() else []
    mine = [row for row in rows if (row["policy"], row["precision"]) == (policy, precision) and row["loss"] is not None]
    worse = next((row for row in mine if row["header"].endswith(" ms") and row["loss"].high < 0), None)
    if not mine or worse is None:
        return ""
    as_good = [row["header"] for row in mine[: mine.index(worse)]]
    period = 1000 * PRESETS[PRESET].control_period_s
    return (
        f"Policy {policy} in {precision} loses success in {PRESET} with commands {worse['header']} late, and "
        f"{'not measurably with ' + as_good[-1] if as_good else 'nothing shorter was flown'}, of a period of "
        f"{period:g} ms (quarl bench table latency-flown)"
    )


def round_trip_table(document: Mapping[str, Any]) -> Table:
    """Return a line for each runtime and way of waiting."""
    lines = [
        {
            "runtime": row["runtime"],
            "between frames it": row["wait"],
            "echo": nanoseconds(row["echo"]),
            "round trip": nanoseconds(row["round_trip"]),
            "over echo": times(row["ratio"]),
            "loop's share": nanoseconds(row["share"]),
            "runtime's call": nanoseconds(row["call"]),
            "over call": times(row["times"]),
            "core": f"{row['core']:.2f}",
        }
        for row in round_trips(document)
    ]
    return tabulate("loop-round-trips", ROUND_TRIP_WORDS, lines, left=2, results=document, **_facts(document))


def punctuality_table(document: Mapping[str, Any]) -> Table:
    """Return a line for each load and rate."""
    lines = []
    for row in punctuality(document):
        columns = {
            f"{title} {share}": nanoseconds(row[f"{name}_{share.replace('.', '_')}"])
            for title, (name, *shares) in PERCENTILE_COLUMNS.items()
            for share in shares
        }
        lines.append(
            {
                "load": row["load"],
                "decisions a second": f"{row['rate']:g}",
                "ticks": f"{row['ticks']:,}",
                **columns,
                "missed per million": format_fixed(row["missed"]),
                "fallbacks": str(row["fallback"]),
            }
        )
    name = "loop-punctuality" + "-emulated" * bool(document["device"]["emulated"])
    return tabulate(name, PUNCTUALITY_WORDS, lines, left=2, once=True, results=document, **_facts(document))
