"""The verdict as it is read: three sentences, what would change it, and the table of candidates with its notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quarl.bench.recommending.thresholds import number
from quarl.bench.recommending.verdict import Verdict
from quarl.bench.report.document import Report
from quarl.bench.report.notes import machine_notes, report_notes
from quarl.bench.report.store import answer_file, read_answer
from quarl.bench.report.text import NOT_KNOWN, estimate, fill_sentences, kilobytes, megabytes, nanoseconds, three_digits
from quarl.bench.tables import Table, tabulate

NEAR = 2.0  # times as large or small; what is further off says that the choice stands
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
{{ quality }} {{ one.quality | estimate(100) }} %\
{{ ", " ~ one.points_short_of_floor | digits ~ " points short of the floor" if one.points_short_of_floor }}\
{% endmacro %}
{% if recommended %}
{% set chosen, next = candidates[:2] %}
Deploy {{ chosen.name }}{{ " (in an int8 container, run as int8 is)" if chosen.runs_as_int8 }}: {{ quality }} \
{{ chosen.quality | estimate(100) }} % (floor {{ floor }} %), p99 {{ chosen.p99_ns | ns }} \
(deadline {{ deadline }} ms), artifact {{ chosen.artifact_bytes | kb }} KB, \
{{ chosen.resident_bytes | mb }} MB resident.
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
{% macro gives(other) %}
{{ "it would be " ~ other.would_be.name if other.would_be else "nothing would meet both" }}\
{% endmacro %}
{% set chosen = candidates[0] %}
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

TITLE_AND_NOTES = """\
{{ bundle }}{{ ", preset " ~ preset if preset }}: floor {{ floor }} % {{ quality }}, deadline {{ deadline }} ms
{% set games %}{{ episodes | thousands }} greedy episodes{{ " of preset " ~ preset if preset }}, seed {{ seed }}, \
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
{{ timed.runs | thousands }} decisions timed of each, in {{ timed.block_p50_ns | length }} turns (A B A B), each by \
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
This policy is evaluated on other presets, too: --preset {{ other_presets | join(", --preset ") }}.
{% endif %}
{{ conditions }}
How few bits: {{ fewest_bits_at_the_floor or "none of them" }} is the narrowest at the floor. \
Fewer than 8 bits run as int8 does, unpacked in an int8 container: size, speed and kernel are int8's; the native \
engine alone packs them.
"""


def facts(verdict: Verdict) -> dict[str, Any]:
    """Return what the sentences name: all of the verdict, and its limits as they are typed."""
    demand, change, moved = verdict.demand, verdict.change or {}, ""
    for option, name in (("--success-floor", "floor"), ("--deadline-ms", "deadline_ms")):
        old = getattr(demand, name)
        if (new := change.get(name, old)) != old:
            moved = f"{option} {number(new)}, {apart(old, new)}"
    limits = {"floor": f"{100 * demand.floor:.6g}", "deadline": number(demand.deadline_ms)}
    return {**vars(verdict), **limits, "moved": moved, "near": NEAR}


def facts_of_reports(verdict: Verdict) -> dict[str, Any]:
    """Return what the notes name beside that: how the times were measured, and on which machine."""
    reports = [Report.from_dict(document) for document in verdict.reports if document["latency"]]
    return {
        **facts(verdict),
        "timed": reports[0].latency,
        "machines": "\n".join(machine_notes(reports)),
        "conditions": "\n".join(report_notes(reports)),
        "invalid": [f"{r.precision} {r.runtime}: {'; '.join(r.invalid_reasons)}" for r in reports if not r.valid],
    }


def spread(value: float, turns: Sequence[float]) -> str:
    """Return a time with the least and the greatest of its turns: ``1.36 µs [1.33, 1.42]``."""
    (median, unit), *ends = (nanoseconds(item).split() for item in (value, min(turns), max(turns)))
    alike = all(item[1] == unit for item in ends)
    return f"{median} {unit} [{', '.join(item[0] if alike else ' '.join(item) for item in ends)}]"


def candidates_table(verdict: Verdict) -> Table:
    """Return the candidates in the order of the verdict, then the widths that were only evaluated, not timed."""
    lines = []
    for candidate in (*verdict.candidates, *verdict.fewer_bits):
        untimed = "as int8" if candidate["runs_as_int8"] else NOT_KNOWN
        is_timed = candidate.get("p99_ns") is not None
        lines.append(
            {
                **{name: str(candidate[name]) for name in ("precision", "runtime", "verdict")},
                f"% {verdict.quality}": estimate(candidate["quality"], 100),
                "return": estimate(candidate["mean_return"]),
                "p50": spread(candidate["p50_ns"], candidate["turns_ns"]) if "turns_ns" in candidate else untimed,
                "p99": nanoseconds(candidate["p99_ns"]) if is_timed else untimed,
                "KB artifact": kilobytes(candidate["artifact_bytes"]),
                "MB resident": megabytes(candidate["resident_bytes"]) if is_timed else untimed,
            }
        )
    return tabulate(RECOMMEND, TITLE_AND_NOTES, lines, left=3, **facts_of_reports(verdict))


def sentences(verdict: Verdict) -> dict[str, Any]:
    """Return the sentences by their names in the JSON document.

    ``explanation``: what, why it, and why not the runner-up; or that nothing meets both, and by how much each is
    missed. ``what_would_change_it``: the nearest limits with another answer, and what may help without giving way.
    """
    named = facts(verdict)
    return {
        "explanation": fill_sentences(EXPLANATION, **named),
        "what_would_change_it": fill_sentences(CHANGE, **named)[0],
    }


def load_kept_table() -> Table:
    """Return the table of the stored answer, with its sentences; ``quarl recommend … --output`` writes it there.

    Raises:
        StoreError: nothing is stored.
    """
    command = "quarl recommend II --output results/recommend.json"
    verdict = Verdict.of_document(read_answer(answer_file(RECOMMEND), command))
    words = sentences(verdict)
    table = candidates_table(verdict)
    return replace(table, notes=(*words["explanation"], words["what_would_change_it"], *table.notes))


def apart(old: float, new: float) -> str:
    """``3.7 % lower``, ``12,000 times lower``."""
    ratio, direction = max(old / new, new / old), "higher" if new > old else "lower"
    distance = f"{three_digits(ratio)} times" if ratio >= NEAR else f"{three_digits(100 * abs(new - old) / old)} %"
    return f"{distance} {direction}"
