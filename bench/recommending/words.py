"""The recommender's answer as it is read, filled from its document: a table with notes, and four lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.recommending.thresholds import number
from bench.report.document import Report
from bench.report.intervals import Estimate
from bench.report.notes import machine_notes, said_of
from bench.report.store import answer_file, kept_answer
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled, kilobytes, megabytes, nanoseconds, three_digits

Document = Mapping[str, Any]
NEAR = 2.0  # times as large or small; what is further off says that the choice stands
AS_INT8 = "as int8"
RECOMMEND = "recommend"

EXPLANATION = """\
{% set at_floor = candidates | rejectattr("points_short_of_floor") | list %}
{% set in_time = candidates | selectattr("times_deadline", "le", 1) | list %}
{% set met = at_floor | selectattr("times_deadline", "le", 1) | list %}
{% set as_fast = candidates | selectattr("as_fast_as_the_fastest") | list %}
{% set fastest = as_fast | min(attribute="p50_ns") %}
{% macro time(one) %}
p99 {{ one.p99_ns | ns }}{{ ", " ~ one.times_deadline | digits ~ " times the deadline" if one.times_deadline > 1 }}\
{% endmacro %}
{% macro task(one) %}
{{ quality }} {{ share(one) }} %{{ ", " ~ one.points_short_of_floor | digits ~ " points short of the floor" \
if one.points_short_of_floor }}\
{% endmacro %}
{% if recommended %}
{% set chosen, next = candidates[:2] %}
Deploy {{ chosen.name }}{{ " (in an int8 container, run as int8 is)" if chosen.runs_as_int8 }}: {{ quality }} \
{{ share(chosen) }} % (floor {{ floor }} %), p99 {{ chosen.p99_ns | ns }} (deadline {{ deadline }} ms), artifact \
{{ chosen.artifact_bytes | kb }} KB, {{ chosen.resident_bytes | mb }} MB resident.
{% if met | length == 1 %}
Why: of {{ candidates | length }} candidates it alone meets both.
{% elif as_fast | length == 1 %}
Why: {{ met | length }} of {{ candidates | length }} candidates meet both, and its p50 of {{ chosen.p50_ns | ns }} is \
the shortest, by more than the measurement spreads.
{% else %}
Why: {{ met | length }} of {{ candidates | length }} candidates meet both, and {{ as_fast | length }} are as fast as \
the fastest ({{ fastest.name }}, p50 {{ fastest.p50_ns | ns }}), for all that was measured; of these it has \
{{ {"artifact_bytes": "the smallest artifact", "resident_bytes": "the least memory, no artifact being smaller", \
"p50_ns": "the shortest p50, none being smaller or lighter"}[decided_by] }}.
{% endif %}
{% if next.verdict != "meets both" %}
Not {{ next.name }}: {{ task(next) }}; {{ time(next) }}.
{% elif next.as_fast_as_the_fastest %}
Not {{ next.name }}: as fast (p50 {{ next.p50_ns | ns }}), but {{ next.artifact_bytes | kb }} KB and \
{{ next.resident_bytes | mb }} MB resident.
{% elif next.runs_as_int8 and next.runtime == chosen.runtime %}
Not {{ next.name }}: it runs as int8 does, in an int8 container, so it is neither smaller nor faster.
{% else %}
Not {{ next.name }}: its p50 of {{ next.p50_ns | ns }} is {{ (next.p50_ns / fastest.p50_ns) | digits }} times the \
shortest, by more than the measurement spreads.
{% endif %}
{% else %}
{% set best = (at_floor and in_time or candidates) | max(attribute="quality.low") %}
{% set quickest = (at_floor or candidates) | min(attribute="p99_ns") %}
None of {{ candidates | length }} candidates meets both the floor and the deadline.
Floor {{ floor }} %: reached by {{ at_floor | length or "none" }}\
{% if not at_floor %}
, not by {{ reference.name }} either; {{ best.name }} comes nearest, {{ task(best) }}\
{{ ": no precision mends that, training may" if candidates | map(attribute="quality.value") | max < demand.floor }}\
{% elif in_time %}
; of those in time {{ best.name }} comes nearest, {{ task(best) }}\
{% endif %}
.
Deadline {{ deadline }} ms: kept by {{ in_time | length or "none" }}; the quickest{{ " at the floor" if at_floor }} is \
{{ quickest.name }}, {{ time(quickest) }}.
{% endif %}
"""

CHANGE = """\
{% set instead %}
{% if not change %}{% elif change.episodes and change.would_be %}
; --episodes {{ change.episodes }} may show that the floor is met as it is, for the mean is above it\
{% elif change.episodes %}
 (perhaps {{ chosen.name }} after --episodes {{ change.episodes }})\
{% elif change.training %}
; to keep the floor, train with quantizers (not measured here): {{ change.training }}\
{% endif %}
{% endset %}
{% if not change %}
Nearest: none; no floor above 0 is reached by anything.
{% elif not recommended %}
Nearest: {{ change.command }} would give {{ change.would_be.name }}{{ instead }}.
{% elif change.factor <= near %}
What would change it: with {{ moved }}, {{ gives(change) }}{{ instead }}.
{% else %}
What would change it: no number that is near (with {{ moved }}, {{ gives(change) }}); \
{{ "without " ~ chosen.runtime ~ " (--runtime " ~ without_its_runtime.runtimes | join(",") ~ ") " ~ \
gives(without_its_runtime) if without_its_runtime else "no other runtime was measured" }}.
{% endif %}
"""

NOTES = """\
{% set games %}{{ "{:,}".format(episodes) }} greedy episodes{{ " of preset " ~ preset if preset }}, seed {{ seed }}, \
the same for every artifact{% endset %}
{% if quality == "success" %}
Success: share of {{ games }}; 95 % intervals (Wilson). The floor is held against the lower end.
{% else %}
Return kept: share of the mean return F of {{ reference.name }}\
{{ " (the width of the quantizers that it was trained with)" if reference.precision != "fp32" }} over {{ games }}, \
1 − (F − this one's) / |F|; 95 % intervals of paired means (Student's t). The task has no success, so the floor is \
held against the lower end of this. Without brackets: all episodes are equal, which says nothing of other ones.
{% endif %}
Played on {{ played_on }}.
{{ "{:,}".format(timed.runs) }} decisions timed of each, in {{ timed.block_p50_ns | length }} turns (A B A B), each by \
an agent of its own after {{ timed.warmup }} untimed ones, path {{ path }}; in brackets the least and the greatest p50 \
of a turn. Candidates whose turns overlap count as equally fast.
{{ machines }}
{% if target == "local" %}
local is this machine. Times of the device that the policy is for: --target pi@raspberrypi
{% endif %}
{% for runtime, reason in excluded_runtimes.items() %}
No {{ runtime }}: {{ reason }}
{% endfor %}
{% if invalid %}
NOT VALID: {{ invalid | join(", ") }}. Measure again before you rely on it.
{% endif %}
{% if other_presets %}
This policy is judged on other presets, too: --preset {{ other_presets | join(", --preset ") }}.
{% endif %}
{{ said }}
How few bits: {{ fewest_bits_at_the_floor or "none of them" }} is the narrowest at the floor. \
Fewer than 8 bits run as int8 does, unpacked in an int8 container: size, speed and kernel are int8's; the native \
engine alone packs them.
"""


def explanation(document: Document) -> tuple[str, ...]:
    """What, why it, and why not the runner-up; or that nothing meets both, and by how much which is missed."""
    return filled(
        EXPLANATION,
        **document,
        floor=percent(document["demand"]["floor"]),
        deadline=number(document["demand"]["deadline_ms"]),
        share=_share,
    )


def what_would_change_it(document: Document) -> str:
    """One line: the nearest demand with another answer, and what else may help without giving way."""
    moved, change, asked = "", document["change"], document["demand"]
    for option, key in (("--success-floor", "floor"), ("--deadline-ms", "deadline_ms")):
        if change is not None and change[key] != asked[key]:
            moved = f"{option} {number(change[key])}, {apart(asked[key], change[key])}"
    return filled(CHANGE, **document, chosen=document["candidates"][0], moved=moved, gives=_gives, near=NEAR)[0]


def table(document: Document) -> Table:
    """The candidates in the order of the verdict, then the widths that only played."""
    reports = [Report.from_dict(each) for each in document["reports"] if each["latency"]]
    demand, quality = document["demand"], document["quality"]
    floor, deadline = percent(demand["floor"]), number(demand["deadline_ms"])
    where = f", preset {document['preset']}" if document["preset"] else ""
    notes = filled(
        NOTES,
        **document,
        timed=reports[0].latency,
        machines="\n".join(machine_notes(reports)),
        said="\n".join(said_of(reports)),
        invalid=[f"{r.precision} {r.runtime}: {'; '.join(r.invalid_reasons)}" for r in reports if not r.valid],
    )
    title = f"{document['bundle']}{where}: floor {floor} % {quality}, deadline {deadline} ms"
    rows = [row(each, f"% {quality}") for each in (*document["candidates"], *document["fewer_bits"])]
    return Table.of(RECOMMEND, title, rows, notes, left=3)


def kept_table() -> Table:
    """The table of the stored answer, with its sentences; ``python -m bench.recommend … --output`` writes it there.

    Raises:
        StoreError: nothing is stored.
    """
    document = kept_answer(answer_file(RECOMMEND), "python -m bench.recommend II --output results/recommend.json")
    made = table(document)
    return replace(made, notes=(*explanation(document), what_would_change_it(document), *made.notes))


def row(each: Document, quality: str) -> dict[str, str]:
    """An artifact's line of the table; of p50 with its turns, ``1.36 µs [1.33, 1.42]``."""
    unknown = AS_INT8 if each["runs_as_int8"] else NOT_KNOWN
    times, memory = (unknown, unknown), unknown
    if turns := each.get("turns_ns"):
        said = [nanoseconds(value).split() for value in (each["p50_ns"], min(turns), max(turns))]
        alike = len({unit for _, unit in said}) == 1
        ends = (value if alike else f"{value} {unit}" for value, unit in said[1:])
        times = f"{' '.join(said[0])} [{', '.join(ends)}]", nanoseconds(each["p99_ns"])
        memory = megabytes(each["resident_bytes"])
    mean = estimate(Estimate(**each["mean_return"]))
    size = kilobytes(each["artifact_bytes"])
    return {
        **{name: each[name] for name in ("precision", "runtime", "verdict")},
        quality: _share(each),
        "return": mean,
        "p50": times[0],
        "p99": times[1],
        "KB artifact": size,
        "MB resident": memory,
    }


def percent(share: float) -> str:
    """``95``, ``99.5``."""
    return f"{100 * share:.6g}"


def apart(old: float, new: float) -> str:
    """``3.7 % lower``, ``12,000 times lower``."""
    ratio, direction = max(old / new, new / old), "higher" if new > old else "lower"
    distance = f"{three_digits(ratio)} times" if ratio >= NEAR else f"{three_digits(100 * abs(new - old) / old)} %"
    return f"{distance} {direction}"


def _gives(change: Document) -> str:
    return f"it would be {change['would_be']['name']}" if change["would_be"] else "nothing would meet both"


def _share(each: Document) -> str:
    return estimate(Estimate(**each["quality"]), 100)
