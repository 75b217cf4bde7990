"""Training speed: CPU seconds until the greedy policy reaches a return, ours against Stable-Baselines3.

    make peers                                        once: Stable-Baselines3 in an environment of its own
    python -m bench.study speed                       five cells, three seeds, both in turn (about ten minutes)
    python -m bench.study speed dqn,CartPole-v1 --seeds 10 --ours-only
    python -m bench.study speed --keep --again --update-docs     measures all anew, fills docs/training-speed.md

Both are started as a user starts them, on the same core, one after the other, and judged alike: at fixed intervals the
deterministic policy plays fresh episodes, and the run ends when their mean return reaches the goal. Counted is the
processor time of the process from its start, libraries and compilation included, the judging left out; the time from
the end of the imports on stands beside it. Ours takes its settings from train/settings, Stable-Baselines3 those of
RL Baselines3 Zoo (peers/).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.pivot import Pivot, alike
from bench.report.text import NOT_KNOWN, three_digits
from bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult, known
from bench.study.measures.children import started
from bench.study.records import Condition, rows
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    import argparse

PEERS_PYTHON = PROJECT_ROOT / ".venv-peers" / "bin" / "python"
PEERS = Path(__file__).with_name("peers")
ZOO = PEERS / "stable_baselines3_zoo.json"
SB3 = "stable-baselines3"
SEEDS = (10, 11, 12)  # 0 to 9 were for choosing settings
EPISODES = 20  # of each judgement

TABLE = """\
CPU seconds until the greedy policy reaches a return
Medians of the seeds {{ results.seeds }}, which chose no setting; one core, one thread, both in turn. Processor time \
of the process from its start (imports left out: from their end on) until the mean return of {{ episodes }} fresh \
greedy episodes reaches the goal; the judging itself is left out on both sides. > where the median run did not reach \
it within its steps.
What differs beside the programs: our settings were tuned for this measure (on other seeds), SB3's are those that its \
zoo publishes, with its network sizes and a DDPG that learns nothing before 10,000 steps; our classic tasks are array \
environments, tested step by step against Gymnasium's, in which SB3 trains.
Steps between two judgements: {% for row in rows %}\
{{ row.cell.method }} {{ row.cell.task }} {{ row.cell.every | thousands }}\
{{ ", " if not loop.last }}{% endfor %}. Settings: train/settings; SB3: {{ source }}
Measured on {{ results.where }}; load average {{ load }} while it ran. \
{% for side, of in versions.items() %}{{ side }}: {% for each in of.items() %}{{ each | join(" ") }}\
{{ ", " if not loop.last }}{% endfor %}{{ "; " if not loop.last }}{% endfor %}.
"""


@dataclass(frozen=True)
class SpeedCell:
    """A method on a task: the mean return to reach, and the steps between two judgements of either side."""

    method: str
    task: str
    target: float
    every: int


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
    """The cell in words."""
    cell = known(subject, CELLS)
    return f"{cell.method} on {cell.task} until {cell.target:g}"


def settings_file(cell: SpeedCell) -> Path:
    """The file of train/settings that ours is trained with.

    Raises:
        BenchError: there is none.
    """
    from train.runs.presets import settings_path
    from train.suites.names import resolve

    found = settings_path(resolve(cell.task), cell.method)
    if found is None:
        raise command_line.BenchError(f"train/settings has no file of {cell.method} on {cell.task}.")
    return found


def identity(subject: str) -> str:
    """SHA-256 of the settings of both sides: whoever changes them asks for another measurement."""
    cell, zoo = known(subject, CELLS), json.loads(ZOO.read_text(encoding="utf-8"))["cells"]
    ours = json.loads(settings_file(cell).read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps([ours, zoo[f"{cell.method} {cell.task}"]], sort_keys=True).encode()).hexdigest()


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options --ours-only and --steps."""
    parser.add_argument("--ours-only", action="store_true", help="do without the environment of make peers")
    parser.add_argument("--steps", type=command_line.positive, help="at most so many steps (default: the settings')")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Stable-Baselines3, with which ours is measured in turn; or ours alone.

    Raises:
        BenchError: Stable-Baselines3 is missing.
    """
    limit = {"limit": arguments.steps} if arguments.steps else {}
    if arguments.ours_only:
        return [limit]
    if not PEERS_PYTHON.exists():
        raise command_line.BenchError(
            f"{PEERS_PYTHON} does not exist: Stable-Baselines3 is not installed.", "make peers (or add --ours-only)"
        )
    return [{**limit, "program": SB3}]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """A training of each seed, ours and theirs in turn; a value is its processor time, s, without the judging.

    ``load``: the load average of the last quarter of an hour; times on a busy machine are to be known as such.
    """
    sides = [train_ours, *([train_sb3] if "program" in condition else [])]
    with one_core():  # what is started here inherits it
        for seed in episodes.seeds:
            for train in sides:
                seconds, measures = train(CELLS[subject], seed, condition.get("limit"))
                measures["load"] = round(os.getloadavg()[2], 1)
                yield SeedResult("", seed, [seconds], measures=measures, reference=train is sides[0])


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
    """One ``python -m train``, and what its bundle says."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        command = [sys.executable, "-m", "train", "--task", cell.task, "--method", cell.method]
        command += ["--seed", str(seed), f"--stop-at-return={cell.target}", "--evaluate-every", str(cell.every)]
        command += ["--evaluate-episodes", str(EPISODES), "--final-episodes", str(EPISODES), "--quiet"]
        command += ["--output-path", str(bundle), *(["--steps", str(limit)] if limit else [])]
        started(command)
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
    """One training in .venv-peers, and what it says."""
    settings = json.loads(ZOO.read_text(encoding="utf-8"))["cells"][f"{cell.method} {cell.task}"]
    job = {**vars(cell), "seed": seed, "episodes": EPISODES, "noise_std": None, **settings}
    job["n_timesteps"] = min(limit or job["n_timesteps"], job["n_timesteps"])
    text = started([str(PEERS_PYTHON), str(PEERS / "stable_baselines3_run.py")], json.dumps(job))
    provenance = json.loads(text.splitlines()[-1])
    return provenance.pop("cpu_s"), provenance


def median_time(runs: Sequence[Mapping[str, Any]], training_only: bool = False) -> tuple[float, bool]:
    """The median CPU time, s, and whether it was reached: a run that did not reach the goal counts as the longest.

    Where the median run did not reach the goal, the time is a lower bound: the longest time that one took.
    """
    times = [run["return"] - (run["import_cpu_s"] if training_only else 0.0) for run in runs]
    reached = sorted(time for time, run in zip(times, runs, strict=True) if run["reached"])
    middle = (len(runs) - 1) // 2  # of an even number the lower one
    return (reached[middle], True) if middle < len(reached) else (max(times), False)


def shown(time: tuple[float, bool] | None) -> str:
    """``0.318``, with ``>`` where it is a bound."""
    return NOT_KNOWN if time is None else f"{'' if time[1] else '> '}{three_digits(time[0])}"


def ratio(ours: tuple[float, bool] | None, theirs: tuple[float, bool] | None) -> str:
    """How many times as fast ours is: ``"8.1×"``, with ``>`` where theirs did not reach, ``"–"`` where ours did not."""
    if ours is None or theirs is None or not ours[1]:
        return NOT_KNOWN
    return f"{'' if theirs[1] else '> '}{three_digits(theirs[0] / ours[0])}×"


SIDES = {"ours": None, "SB3": SB3}


def sides(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each cell: medians over the seeds, both sides beside each other."""
    every = rows(results.found, results.experiment.factors)
    for of_cell in alike(every, "{{ subject }} {{ limit }}").values():
        first = of_cell[0]
        row = {"cell": CELLS[first["subject"]], "limit": first["limit"], "steps": {}, "time": {}, "faster": {}}
        runs = {side: [run for run in of_cell if run["program"] == program] for side, program in SIDES.items()}
        for part, training_only in (("", False), (", imports left out", True)):
            times = {side: median_time(of, training_only) if of else None for side, of in runs.items()}
            row["time"] |= {f"{side}{part}": shown(time) for side, time in times.items()}
            row["faster"][part] = ratio(*times.values())
        for side, of in runs.items():
            steps = sorted(run["steps"] for run in of)
            row["steps"][side] = steps[(len(steps) - 1) // 2] if steps else None
        yield row


def facts(results: Results) -> dict[str, Any]:
    """What the notes tell of all runs."""
    found = rows(results.found, results.experiment.factors)
    return {
        "episodes": EPISODES,
        "source": json.loads(ZOO.read_text(encoding="utf-8"))["source"],
        "load": f"{max(run['load'] for run in found):g}",
        "versions": {run["program"] or "ours": run["versions"] for run in found},
    }


TIMES = Pivot(
    name="training-speed",
    words=TABLE,
    lead={
        "method and task": "{{ cell.method }} {{ cell.task }}"
        "{% if limit %}, {{ limit | thousands }} steps at most{% endif %}"
    },
    columns=[
        {"return": "{{ cell.target | fixed }}"},
        *(
            {
                **{f"{side}{part}": f"{{{{ time['{side}{part}'] }}}}" for side in SIDES},
                f"times as fast{part}": f"{{{{ faster['{part}'] }}}}",
            }
            for part in ("", ", imports left out")
        ),
        {f"steps, {side}": f"{{{{ steps['{side}'] | fixed }}}}" for side in SIDES},
    ],
    rows=sides,
    facts=facts,
)
EXPERIMENT = Experiment(
    name="speed",
    question="how fast is training, beside Stable-Baselines3?",
    factors=("limit", "program"),
    within=("limit",),
    subjects=tuple(CELLS),
    options=options,
    grid=grid,
    measure=measure,
    identity=identity,
    about=about,
    episodes=lambda arguments, subject: EpisodePlan(arguments.seeds or SEEDS, 1),
    tables=[TIMES],
    samples="",
    timed=True,
)
