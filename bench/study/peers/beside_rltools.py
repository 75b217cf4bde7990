"""RLtools beside ours: a training of its PPO, and the table of both, for bench/study/speed.py.

RLtools is C++ that is compiled for one task and one set of settings at a time; its Python package starts the compiler
when it is called. Both ways in which a user meets it are measured: with an environment in C++, its own Pendulum, and
with Gymnasium's. Each training compiles anew, and what the compiler takes stands apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quarl.bench.report.text import fixed
from quarl.bench.study.experiment import Results
from quarl.bench.study.measures.children import started
from quarl.bench.study.peers.times import EPISODES, SpeedCell, median_steps, median_time, ratio, shown
from quarl.bench.study.records import rows
from quarl.bench.tables import Table, group_by, tabulate
from quarl.policy.places import PROJECT_ROOT

NAME = "rltools"
PYTHON = PROJECT_ROOT / ".venv-rltools" / "bin" / "python"
HERE = Path(__file__).parent
ZOO = HERE / "rltools_zoo.json"
PROGRAMS = {"rltools": "its own Pendulum, in C++", "rltools-gymnasium": "Gymnasium's Pendulum"}
"""What RLtools trains in, by the name that the rows have of it."""

SIDES = ("ours", NAME)

TABLE = """\
PPO on Pendulum-v1 beside RLtools: CPU seconds until the greedy policy reaches the return above
Medians of the seeds {{ seeds }}, ours and RLtools in turn, counted and judged as above; RLtools is judged in \
Gymnasium's Pendulum, and what starts that up is part of the judging where it trains in its own. Compiled before: \
without the CPU time of the compiler, which each new setting asks for once.
What differs beside the programs: our settings were tuned for this measure (on other seeds), RLtools' are those that \
its zoo publishes; RLtools makes {{ each | thousands }} steps between two judgements, ours the \
steps stated above; RLtools' own Pendulum counts the torque's cost before the torque is cut, Gymnasium's \
and ours after; matrices are multiplied by Intel's MKL in RLtools, and by numpy's OpenBLAS in ours.
Settings: train/settings; RLtools: {{ source }}
Measured on {{ where }}; load average {{ load }} while it ran. \
{% for side, of in versions.items() %}{{ side }}: {% for each in of.items() %}{{ each | join(" ") }}\
{{ ", " if not loop.last }}{% endfor %}{{ "; " if not loop.last }}{% endfor %}.
"""


def settings_of(cell: SpeedCell) -> list[dict[str, Any]]:
    """RLtools' settings for a cell; empty where it is not measured there."""
    found = json.loads(ZOO.read_text(encoding="utf-8"))["cells"].get(f"{cell.method} {cell.task}")
    return [found] if found else []


def train_rltools(program: str, cell: SpeedCell, seed: int, limit: int | None) -> tuple[float, dict[str, Any]]:
    """One training in .venv-rltools, and what it says; the time is without the compiler's."""
    (settings,) = settings_of(cell)
    job = {**vars(cell), "seed": seed, "episodes": EPISODES, **settings}
    job["steps"] = min(limit or job["steps"], job["steps"])
    job["environment"] = str(HERE / "rltools_pendulum") if program == NAME else None
    text = started([str(PYTHON), str(HERE / "rltools_run.py")], json.dumps(job))
    provenance = json.loads(text.splitlines()[-1])
    return provenance.pop("cpu_s"), provenance


def beside(results: Results) -> list[dict[str, Any]]:
    """What was measured in turn with RLtools."""
    return [run for run in rows(results.found, results.experiment.factors) if run["beside"] is not None]


def sides(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each environment that RLtools trains in."""
    for runs in group_by(beside(results), lambda run: (run["subject"], run["limit"], run["beside"])).values():
        both = {side: [run for run in runs if (run["program"] is None) == (side == "ours")] for side in SIDES}
        if not all(both.values()):
            continue
        compiling = [{**run, "return": run["return"] + run["compile_cpu_s"]} for run in both[NAME]]
        times = {
            "": {side: median_time(of) for side, of in both.items()},
            ", compiling in": {"ours": median_time(both["ours"]), NAME: median_time(compiling)},
            ", imports left out": {side: median_time(of, training_only=True) for side, of in both.items()},
        }
        yield {
            "program": PROGRAMS[runs[0]["beside"]],
            "limit": runs[0]["limit"],
            "time": {f"{side}{part}": shown(of[side]) for part, of in times.items() for side in both},
            "faster": {part: ratio(of["ours"], of[NAME]) for part, of in times.items()},
            "steps": {side: median_steps(of) for side, of in both.items()},
        }


def facts(results: Results) -> dict[str, Any]:
    """What the notes tell of all runs."""
    document = json.loads(ZOO.read_text(encoding="utf-8"))
    (settings,) = (cell["settings"] for cell in document["cells"].values())
    found = beside(results)
    measured = Results(results.experiment, [run for run in results.found if "beside" in run["condition"]])
    return {
        "source": document["source"],
        "each": settings["N_ENVIRONMENTS"] * settings["ON_POLICY_RUNNER_STEPS_PER_ENV"],
        "seeds": measured.seeds,
        "where": measured.where,
        "load": f"{max((run['load'] for run in found), default=0):g}",
        "versions": {NAME if run["program"] else "ours": run["versions"] for run in found},
    }


def times_table(results: Results) -> list[Table]:
    """A line for each environment that RLtools trains in."""
    lines = []
    for row in sides(results):
        time, faster, limit = row["time"], row["faster"], row["limit"]
        lines.append(
            {
                "RLtools trains in": row["program"] + (f", {limit:,} steps at most" if limit else ""),
                "ours": time["ours"],
                "RLtools, compiled before": time[NAME],
                "times as fast": faster[""],
                "RLtools, compiling in": time[f"{NAME}, compiling in"],
                "times as fast, compiling in": faster[", compiling in"],
                "ours, imports left out": time["ours, imports left out"],
                "RLtools, imports left out": time[f"{NAME}, imports left out"],
                "times as fast, imports left out": faster[", imports left out"],
                "steps, ours": fixed(row["steps"]["ours"]),
                "steps, RLtools": fixed(row["steps"][NAME]),
            }
        )
    return [tabulate("training-speed-rltools", TABLE, lines, **facts(results))] if lines else []
