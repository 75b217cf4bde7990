"""Which precision and which runtime should this policy be deployed with? Measured, not looked up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.recommending import Candidate
    from quarl.bench.tables import Table

EXIT_NONE = 3
RECOMMEND = "recommend"
FEWEST_RUNS = 662  # that support p99: device.agent.measure.required_runs, which loads numpy's neighbours
COMMAND = "quarl recommend II --output results/recommend.json"

_percent = cli.number_reader(float, lambda percent: 0.0 < percent < 100.0, "must be above 0 and below 100")
_deadline = cli.number_reader(float, lambda time: 0.0 < time < math.inf, "is no time in milliseconds; type 20, or 0.5")
_episodes = cli.number_reader(int, lambda n: n >= 2, "is too few: one episode has no interval; type 2 or more")
_runs = cli.number_reader(
    int, lambda n: n >= FEWEST_RUNS, f"is too few: they do not support a p99; type {FEWEST_RUNS} or more"
)


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Timing, command_line.Targeting, command_line.Printing):
    """What to measure.

    Attributes:
        bundle: a folder, or a name such as II, cartpole-dqn
        max_loss: percent of the return that may be lost
        deadline_ms: of p99
        episodes: on which returns are compared at first (default: 500 of navigation, 10 of images, else 50)
        runtime: consider these only (default: all that the target can have)
        runs: timed decisions of each, at least 662
        output: also write the JSON document to this file
    """

    bundle: str = field(kw_only=False)
    max_loss: Annotated[float, cli.reads(_percent, "PERCENT")] = 1.0
    deadline_ms: Annotated[float, cli.reads(_deadline, "MS")] = 20.0
    episodes: Annotated[int | None, cli.reads(_episodes)] = None
    runtime: command_line.Runtimes = ()
    runs: Annotated[int, cli.reads(_runs)] = 2000
    output: Path | None = None


@heartbeat()
@cli.verb()
def recommend(options: Options) -> int:
    """Recommend a precision and a runtime for a policy, from measurements.

        quarl recommend II --max-loss 1 --deadline-ms 20
        quarl recommend cartpole-dqn --target pi@raspberrypi
        quarl recommend path/to/bundle --episodes 300 --json --output answer.json

    The precisions that keep the return are those of quarl convert --bits auto. Each is converted in a temporary copy
    for every runtime that the target can have, deployed over SSH, and timed in turns with the others. Of those whose
    p99 keeps the deadline, the fastest p50 is recommended, and of equally fast ones the smallest. docs/recommend.md has
    the complete rule. Nothing is stored, and the bundle is not changed.

    Exit status 3: nothing that keeps the return keeps the deadline; the last line names one that would be kept.
    """
    from quarl.bench import tables
    from quarl.bench.recommending import measure, rank
    from quarl.bench.report import store
    from quarl.bench.report.machine import this_machine
    from quarl.convert.ladder import Question
    from quarl.device.agent.runtimes import PREFERENCE
    from quarl.policy import json_values
    from quarl.policy.errors import PolicyError
    from quarl.policy.locate import code_version, working_bundle

    began = time.monotonic()
    try:
        bundle = working_bundle(options.bundle)
    except PolicyError as error:
        raise command_line.UsageError(str(error)) from error
    command_line.say(f"{bundle.spec.name}: reaching {options.target} …")
    runtimes = [name for name in PREFERENCE if name in (options.runtime or PREFERENCE)]
    question = Question(options.max_loss, episodes=options.episodes)
    ladder, candidates, reports, excluded, left = measure(
        bundle, question, options.target, runtimes, options.runs, options.path, options.deadline_ms
    )
    command_line.say(f"  {left}")
    ranked = rank(candidates)
    document = {
        "bundle": options.bundle,
        "policy": bundle.spec.name,
        "weights_sha256": ladder.weights_sha256,
        "target": options.target,
        "deadline_ms": options.deadline_ms,
        "path": options.path,
        "ladder": json_values.write(ladder),
        "recommended": asdict(ranked[0]) if ranked[0].in_time else None,
        "candidates": [asdict(candidate) for candidate in ranked],
        "excluded_runtimes": excluded,
        "left_on_target": left,
        "played_on": this_machine(),
        "code": code_version(),
        "reports": [report.to_dict() for report in reports],
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.output is not None:
        store.write_answer(options.output, document)
    table, sentences = make_table(document)
    if options.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        tables.print_table(table, command_line.console())
        print("\n".join(sentences))
    command_line.say(f"{document['seconds']:.0f} s")
    return cli.EXIT_OK if document["recommended"] else EXIT_NONE


WORDS = """\
{{ policy }}{{ where }}: at most {{ "%g" | format(ladder.max_loss) }} % of the {{ what }} lost, \
deadline {{ "%g" | format(deadline_ms) }} ms
Agreement and {{ what }} lost: {% if ladder.task %}on golden and calibration observations, and on the same greedy \
episodes as the policy itself, seed {{ ladder.seed }}; 95 % intervals (Student's t, paired){% else %}on golden and \
calibration observations; the task is not known{% endif %}. Played on {{ played_on }}.
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
{{ conditions }}
"""


def make_table(document: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """Return the candidates, best first, then the precisions that do not keep the return; and what to do."""
    from quarl.bench.recommending import Candidate
    from quarl.bench.report.document import Report
    from quarl.bench.report.notes import machine_notes, report_notes
    from quarl.bench.report.text import kilobytes, megabytes, nanoseconds
    from quarl.bench.tables import tabulate
    from quarl.policy import json_values
    from quarl.policy.ladder import Ladder
    from quarl.policy.spec import Precision

    ladder: Ladder = json_values.read(Ladder, document["ladder"])
    candidates = [Candidate(**{**one, "turns_ns": tuple(one["turns_ns"])}) for one in document["candidates"]]
    lost = "return lost, %" if ladder.task else "decisions lost, %"
    lines = []
    for place, one in enumerate(candidates):
        outcome = "chosen" if place == 0 else "keeps both"
        lines.append(
            {
                "precision": one.precision,
                "runtime": one.runtime,
                "verdict": outcome if one.in_time else "too late",
                **_kept(ladder, Precision(one.precision), lost),
                "p50": _spread(one),
                "p99": nanoseconds(one.p99_ns),
                "KB artifact": kilobytes(one.bytes),
                "MB resident": megabytes(one.resident_bytes),
            }
        )
    for rung in reversed(ladder.rungs):
        if not ladder.keeps(rung):
            outcome = "not decided" if ladder.keeps(rung) is None else "loses more"
            cells = {"precision": rung.precision.value, "runtime": "any", "verdict": outcome}
            size = kilobytes(min(rung.bytes.values()))
            untimed = {"p50": "", "p99": "", "KB artifact": size, "MB resident": ""}
            lines.append({**cells, **_kept(ladder, rung.precision, lost), **untimed})
    reports = [Report.from_dict(report) for report in document["reports"] if report["latency"]]
    table = tabulate(
        RECOMMEND,
        WORDS,
        lines,
        left=3,
        **{key: document[key] for key in ("policy", "deadline_ms", "path", "target", "excluded_runtimes", "played_on")},
        ladder=ladder,
        what="return" if ladder.task else "decisions",
        where=f" on {ladder.task}{f', preset {ladder.preset}' if ladder.preset else ''}" if ladder.task else "",
        timed=reports[0].latency,
        machines="\n".join(machine_notes(reports)),
        conditions="\n".join(report_notes(reports)),
        invalid=[f"{r.precision} {r.runtime}: {'; '.join(r.invalid_reasons)}" for r in reports if not r.valid],
    )
    return table, list(_sentences(document, ladder, candidates))


def _sentences(document: Mapping[str, Any], ladder: Any, candidates: Sequence[Candidate]) -> Iterator[str]:
    from quarl.bench.report.text import kilobytes, nanoseconds
    from quarl.policy.spec import Precision

    best, bundle = candidates[0], document["bundle"]
    if not best.in_time:
        deadline = math.ceil(best.p99_ns / 1e3) / 1e3
        yield f"Nothing that keeps the return decides within {document['deadline_ms']:g} ms."
        yield f"Nearest: {best.name}, by --deadline-ms {deadline:g} (p99 {nanoseconds(best.p99_ns)})."
        return
    as_fast = [one for one in candidates if one.in_time and one.as_fast_as(best)]
    bits = Precision(best.precision).bits_argument
    target = "" if document["target"] == "local" else f" --target {document['target']}"
    yield f"Deploy {best.name}: quarl deploy --policy {bundle} --bits {bits} --runtime {best.runtime}{target}"
    several = f"{len(as_fast)} are as fast, and it is the smallest of them"
    of_them = "it is the fastest" if len(as_fast) == 1 else several
    yield (
        f"Why: {sum(one.in_time for one in candidates)} of {len(candidates)} candidates keep return and deadline; "
        f"{of_them} (p50 {nanoseconds(best.p50_ns)}, {kilobytes(best.bytes)} KB)."
    )
    yield from ladder.hints


def _kept(ladder: Any, precision: Any, lost: str) -> dict[str, str]:
    rung = ladder.rung(precision)
    loss = rung.fresh or rung.loss
    shown = f"{loss.percent:.2f} [{loss.low:.2f}, {loss.high:.2f}]" if loss is not None else "–"
    if not ladder.task:
        shown = f"{100 * (1 - rung.agreement):.1f}"
    return {"% agreement": f"{100 * rung.agreement:.1f}", lost: shown}


def _spread(candidate: Candidate) -> str:
    """Return a p50 with the least and the greatest of its turns: ``1.36 µs [1.33, 1.42]``."""
    from quarl.bench.report.text import nanoseconds

    times = candidate.p50_ns, min(candidate.turns_ns), max(candidate.turns_ns)
    (median, unit), *ends = (nanoseconds(item).split() for item in times)
    alike = all(item[1] == unit for item in ends)
    return f"{median} {unit} [{', '.join(item[0] if alike else ' '.join(item) for item in ends)}]"


def load_kept_table() -> Table:
    """Return the table of the stored answer, with its sentences.

    Raises:
        StoreError: nothing is stored.
    """
    from quarl.bench.report.store import answer_file, read_answer

    table, sentences = make_table(read_answer(answer_file(RECOMMEND), COMMAND))
    return replace(table, notes=(*sentences, *table.notes))


main = cli.of("recommend")

if __name__ == "__main__":
    raise SystemExit(main())
