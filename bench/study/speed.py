"""Training speed: CPU seconds until the greedy policy reaches a return, ours against Stable-Baselines3."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.text import format_fixed
from quarl.bench.study import command
from quarl.bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult, look_up
from quarl.bench.study.measures.children import run_child
from quarl.bench.study.peers.times import EPISODES, SpeedCell, format_seconds, median_steps, median_time, ratio
from quarl.bench.study.records import Condition, rows
from quarl.bench.tables import Table, group_by, tabulate
from quarl.policy.places import PROJECT_ROOT

PEERS_PYTHON = PROJECT_ROOT / ".venv-peers" / "bin" / "python"
PEERS = Path(__file__).with_name("peers")
ZOO = PEERS / "stable_baselines3_zoo.json"
SB3 = "stable-baselines3"
SEEDS = (10, 11, 12)  # 0 to 9, 20 to 27 and 100 to 105 were for choosing settings

TABLE = """\
CPU seconds until the greedy policy reaches a return
Medians of the seeds {{ results.seeds }}, which chose no setting; one core, one thread, both in turn. Processor time \
of the process from its start (imports left out: from their end on) until the mean return of {{ episodes }} fresh \
greedy episodes reaches the goal; the evaluation itself is left out on both sides. > where the median run did not \
reach it within its steps.
What differs beside the programs: our settings were tuned for this measure (on other seeds), SB3's are those that its \
zoo publishes, with its network sizes and a DDPG that learns nothing before 10,000 steps; our classic tasks are array \
environments, tested step by step against Gymnasium's, in which SB3 trains.
Steps between two evaluations: {% for row in rows %}\
{{ row.cell.method }} {{ row.cell.task }} {{ row.cell.every | thousands }}\
{{ ", " if not loop.last }}{% endfor %}. Settings: train/settings; SB3: {{ source }}
Measured on {{ results.where }}; load average {{ load }} while it ran. \
{% for side, of in versions.items() %}{{ side }}: {% for each in of.items() %}{{ each | join(" ") }}\
{{ ", " if not loop.last }}{% endfor %}{{ "; " if not loop.last }}{% endfor %}.
"""


CELLS = {
    f"{cell.method},{cell.task}": cell
    for cell in (
        SpeedCell("ppo", "CartPole-v1", 475.0, 1000),
        SpeedCell("ppo", "Pendulum-v1", -200.0, 2000),
        SpeedCell("dqn", "CartPole-v1", 475.0, 1000),
        SpeedCell("a2c", "CartPole-v1", 475.0, 1000),
        SpeedCell("ddpg", "Pendulum-v1", -200.0, 1000),
    )
}


def about(subject: str) -> str:
    """Return the cell in words."""
    cell = look_up(subject, CELLS)
    return f"{cell.method} on {cell.task} until {cell.target:g}"


def settings_file(cell: SpeedCell) -> Path:
    """Return the file of train/settings that ours is trained with.

    Raises:
        BenchError: there is none.
    """
    from quarl.train.runs.presets import settings_path
    from quarl.train.suites.names import resolve

    path = settings_path(resolve(cell.task), cell.method)
    if path is None:
        raise command_line.BenchError(f"train/settings has no settings file for {cell.method} on {cell.task}.")
    return path


def identity(subject: str) -> str:
    """SHA-256 of the settings of both sides: after a change of either, a cell is measured again."""
    cell, zoo = look_up(subject, CELLS), json.loads(ZOO.read_text(encoding="utf-8"))["cells"]
    our_settings = json.loads(settings_file(cell).read_text(encoding="utf-8"))
    both = [our_settings, zoo[f"{cell.method} {cell.task}"]]
    return hashlib.sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.Options):
    """What to measure.

    Attributes:
        ours_only: do without Stable-Baselines3
        steps: limit of the steps (default: the settings file's)
    """

    ours_only: bool = False
    steps: command_line.Positive | None = None


def grid(options: Options, subject: str) -> list[Condition]:
    """Stable-Baselines3, with which ours is measured in turn; or ours alone.

    Raises:
        BenchError: Stable-Baselines3 is not installed.
    """
    limit = {"limit": options.steps} if options.steps else {}
    if options.ours_only:
        return [limit]
    if not PEERS_PYTHON.exists():
        raise command_line.BenchError(
            f"{PEERS_PYTHON} does not exist: {SB3} is not installed.", "make peers (or type --ours-only)"
        )
    return [{**limit, "program": SB3}]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Yield a training of each seed, ours and theirs in turn; a value is its processor time, s, without the judging.

    ``load``: the load average of the last quarter of an hour; times on a busy machine are to be known as such.
    """
    cell, program, limit = CELLS[subject], condition.get("program"), condition.get("limit")
    with one_core():  # what is started here inherits it
        for seed in episodes.seeds:
            for side in (None, *([program] if program else [])):
                seconds, measures = (train_sb3 if side else train_ours)(cell, seed, limit)
                measures["load"] = round(os.getloadavg()[2], 1)
                yield SeedResult("", seed, [seconds], measures=measures, reference=side is None)


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process on one of its cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def train_ours(cell: SpeedCell, seed: int, limit: int | None) -> tuple[float, dict[str, Any]]:
    """Return one ``quarl train``, and what its bundle says."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        command = [sys.executable, "-m", "quarl.train", "--task", cell.task, "--method", cell.method]
        command += ["--seed", str(seed), f"--stop-at-return={cell.target}", "--evaluate-every", str(cell.every)]
        command += ["--evaluate-episodes", str(EPISODES), "--final-episodes", str(EPISODES), "--quiet"]
        command += ["--output-path", str(bundle), *(["--steps", str(limit)] if limit else [])]
        run_child(command)
        provenance = json.loads((bundle / "policy.json").read_text(encoding="utf-8"))["provenance"]
    return provenance["cpu_s"] - provenance["judging_cpu_s"], {
        "reached": provenance["ended"].startswith("greedy return reached"),
        "steps": provenance["steps"],
        "mean_return": provenance["training"].get("greedy_return"),
        "import_cpu_s": provenance["start_cpu_s"],
        "judging_cpu_s": provenance["judging_cpu_s"],
        "versions": provenance["versions"],
    }


def train_sb3(cell: SpeedCell, seed: int, limit: int | None) -> tuple[float, dict[str, Any]]:
    """Return one training in .venv-peers, and what it says."""
    settings = json.loads(ZOO.read_text(encoding="utf-8"))["cells"][f"{cell.method} {cell.task}"]
    job = {**vars(cell), "seed": seed, "episodes": EPISODES, "noise_std": None, **settings}
    job["n_timesteps"] = min(limit or job["n_timesteps"], job["n_timesteps"])
    text = run_child([str(PEERS_PYTHON), str(PEERS / "stable_baselines3_run.py")], json.dumps(job))
    provenance = json.loads(text.splitlines()[-1])
    return provenance.pop("cpu_s"), provenance


SIDES = {"ours": None, "SB3": SB3}


def sides(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell: medians over the seeds, both sides beside each other."""
    every = rows(results.found, results.experiment.factors)
    for of_cell in group_by(every, lambda run: (run["subject"], run["limit"])).values():
        first = of_cell[0]
        row = {"cell": CELLS[first["subject"]], "limit": first["limit"], "steps": {}, "time": {}, "faster": {}}
        runs = {side: [run for run in of_cell if run["program"] == program] for side, program in SIDES.items()}
        for part, training_only in (("", False), (", imports left out", True)):
            times = {side: median_time(of, training_only) if of else None for side, of in runs.items()}
            row["time"] |= {f"{side}{part}": format_seconds(time) for side, time in times.items()}
            row["faster"][part] = ratio(*times.values())
        for side, of in runs.items():
            row["steps"][side] = median_steps(of)
        yield row


def facts(results: Results) -> dict[str, Any]:
    """Return what the notes tell of all runs."""
    run_rows = rows(results.found, results.experiment.factors)
    return {
        "episodes": EPISODES,
        "source": json.loads(ZOO.read_text(encoding="utf-8"))["source"],
        "load": f"{max(run['load'] for run in run_rows):g}",
        "versions": {run["program"] or "ours": run["versions"] for run in run_rows},
    }


def times_table(results: Results) -> list[Table]:
    """CPU seconds and steps of each cell, beside Stable-Baselines3's."""
    rows = list(sides(results))
    lines = []
    for row in rows:
        cell, limit = row["cell"], row["limit"]
        line = {"method and task": f"{cell.method} {cell.task}" + (f", {limit:,} steps at most" if limit else "")}
        line["return"] = format_fixed(cell.target)
        for part, faster in row["faster"].items():
            line |= {f"{side}{part}": row["time"][f"{side}{part}"] for side in SIDES}
            line[f"times as fast{part}"] = faster
        lines.append({**line, **{f"steps, {side}": format_fixed(steps) for side, steps in row["steps"].items()}})
    return [tabulate("training-speed", TABLE, lines, results=results, rows=rows, **facts(results))]


EXPERIMENT = Experiment(
    name="speed",
    factors=("limit", "program"),
    within=("limit",),
    subjects=tuple(CELLS),
    grid=grid,
    measure=measure,
    identity=identity,
    about=about,
    episodes=lambda options, subject: EpisodePlan(options.seeds or SEEDS, 1),
    tables=[times_table],
    timed=True,
)


@cli.verb()
def speed(options: Options) -> int:
    """Training speed: CPU seconds until the greedy policy reaches a return, ours against Stable-Baselines3.

    make peers                                        once: Stable-Baselines3, in an environment of its own
        quarl study speed                       five cells, three seeds, both in turn (about ten minutes)
        quarl study speed dqn,CartPole-v1 --seeds 10 --ours-only
        quarl study speed --keep --again --update-docs    measures all again, fills docs/algorithms/training-speed.md

    Both are started by their usual commands, on the same core, one after the other, with the same evaluation: at fixed
    intervals the deterministic policy plays fresh episodes, and the run ends when their mean return reaches the goal.
    The processor time of the process is counted from its start, with libraries and compilation and without evaluations;
    a second column counts it from the end of the imports. Ours takes its settings from train/settings,
    Stable-Baselines3 those of RL Baselines3 Zoo (peers/).
    """
    return command.run(__name__, options)


main = cli.of("study speed")
