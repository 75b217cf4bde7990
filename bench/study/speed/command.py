"""Training speed: CPU seconds until the greedy policy reaches a return, ours against Stable-Baselines3.

    make peers                                   once: Stable-Baselines3 in an environment of its own
    python -m bench.study speed --keep        five cells, three seeds, both side by side (about ten minutes)
    python -m bench.study speed --cell dqn,CartPole-v1 --seeds 10 --ours-only

Both are started as a user starts them, on the same core, one after the other, and judged alike: at fixed intervals the
deterministic policy plays fresh episodes, and the run ends when their mean return reaches the goal. Counted is the
processor time of the process from its start, libraries and compilation included, the judging left out; the time from
the end of the imports on stands beside it. Ours takes its settings from train/settings, Stable-Baselines3 those of
RL Baselines3 Zoo (peers/). --keep stores the answer in results/training-speed.json, from where bench/table.py
makes its table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import command_line
from bench.measuring.children import last_words, run_to_end
from bench.study.speed.table import OURS, SB3, Outcome, kept_file, table
from policy.locate import PROJECT_ROOT

ROOT = PROJECT_ROOT
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = Path(__file__).with_name("peers")
SEEDS = (10, 11, 12)  # 0 to 9 were for choosing settings
EPISODES = 20  # of each judgement
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Cell:
    """A method on a task: the mean return to reach, and the steps between two judgements of either side."""

    method: str
    task: str
    target: float
    every: int

    @property
    def name(self) -> str:
        """``"ppo CartPole-v1"``."""
        return f"{self.method} {self.task}"


CELLS = (
    Cell("ppo", "CartPole-v1", 475.0, 1000),
    Cell("ppo", "Pendulum-v1", -200.0, 2000),
    Cell("dqn", "CartPole-v1", 475.0, 1000),
    Cell("a2c", "CartPole-v1", 475.0, 1000),
    Cell("ddpg", "Pendulum-v1", -200.0, 1000),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, judge, compare, print."""
    parser = command_line.parser(__doc__, "-m bench.study speed")
    parser.add_argument("--cell", type=cell, action="append", metavar="METHOD,TASK", help="default: all five")
    parser.add_argument("--seeds", type=seeds, default=SEEDS, metavar="10,11,12", help="default: %(metavar)s")
    parser.add_argument("--ours-only", action="store_true", help="do without the environment of make peers")
    parser.add_argument("--steps", type=command_line.positive, help="at most so many steps (default: the settings')")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--keep", action="store_true", help="store the answer in results/training-speed.json")
    return command_line.guarded(_run, parser.parse_args(argv))


def cell(text: str) -> Cell:
    """``dqn,CartPole-v1`` as the cell of that name."""
    for known in CELLS:
        if text.replace(",", " ").split() == known.name.split():
            return known
    names = "; ".join(known.name.replace(" ", ",") for known in CELLS)
    raise argparse.ArgumentTypeError(f"there is no cell {text!r}; there are {names}")


def seeds(text: str) -> tuple[int, ...]:
    """``10,11,12`` as numbers."""
    return tuple(command_line.not_negative(word) for word in command_line.words(text))


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import store
    from bench.report import tables as rendering
    from bench.study.speed.env_speed import one_core
    from policy.files import write_atomically

    if arguments.keep and (arguments.ours_only or arguments.cell or arguments.steps):
        raise command_line.BenchError("--keep stores a whole table; it takes no --cell, --steps and --ours-only.")
    if not arguments.ours_only:
        require_peers()
    with one_core():  # what is started here inherits it
        document = measure(arguments.cell or CELLS, arguments.seeds, not arguments.ours_only, arguments.steps)
    if arguments.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        rendering.print_table(table(document), command_line.console())
    if arguments.keep:
        if kept_file().exists():
            kept = json.loads(kept_file().read_text(encoding="utf-8"))
            store.refuse_less(kept_file(), amounts(kept), amounts(document), "seeds")
        write_atomically(kept_file(), (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    return command_line.EXIT_OK


def amounts(document: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """Seeds that each side of each cell was trained with."""
    return {
        (found["method"], found["task"], side): len(runs)
        for found in document["cells"]
        for side, runs in found["runs"].items()
    }


def require_peers(python: Path = PEERS_PYTHON) -> None:
    """Refuse before anything is trained where Stable-Baselines3 is missing.

    Raises:
        BenchError: names the command that installs it.
    """
    if not python.exists():
        raise command_line.BenchError(
            f"{python} does not exist: Stable-Baselines3 is not installed.", "make peers (or add --ours-only)"
        )


def measure(cells: Sequence[Cell], chosen_seeds: Sequence[int], peers: bool, steps: int | None) -> dict[str, Any]:
    """Train every cell with every seed, ours and theirs in turn; the document that is stored."""
    from datetime import UTC, datetime

    from bench.report.document import code_version
    from bench.report.machine import describe_machine

    settings = json.loads((PEERS / "stable_baselines3_zoo.json").read_text(encoding="utf-8"))
    versions: dict[str, Any] = {}
    measured = []
    for wanted in cells:
        outcomes: dict[str, list[Outcome]] = {side: [] for side in ((OURS, SB3) if peers else (OURS,))}
        for seed in chosen_seeds:
            for side in outcomes:
                if side == OURS:
                    outcome, versions[side] = train_ours(wanted, seed, steps)
                else:
                    outcome, versions[side] = train_sb3(wanted, seed, settings["cells"][wanted.name], steps)
                outcomes[side].append(outcome)
                reached = "reached" if outcome.reached else "did not reach"
                command_line.say(
                    f"{wanted.name}, seed {seed}: {side} {reached} {wanted.target:g} at {outcome.steps:,} steps, "
                    f"{outcome.cpu_s:.2f} CPU-s ({outcome.training_cpu_s:.2f} without the imports)"
                )
        runs = {side: [asdict(outcome) for outcome in found] for side, found in outcomes.items()}
        measured.append({**asdict(wanted), "runs": runs})
    return {
        "machine": describe_machine().sentence(),
        "load": round(os.getloadavg()[2], 1),
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "code": code_version(),
        "episodes": EPISODES,
        "versions": versions,
        "settings": {OURS: "train/settings", SB3: settings["source"]},
        "cells": measured,
    }


def train_ours(wanted: Cell, seed: int, steps: int | None) -> tuple[Outcome, dict[str, str]]:
    """One ``python -m train``, and what its bundle says."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        command = [sys.executable, "-m", "train", "--task", wanted.task, "--method", wanted.method]
        command += ["--seed", str(seed), f"--stop-at-return={wanted.target}", "--evaluate-every", str(wanted.every)]
        command += ["--evaluate-episodes", str(EPISODES), "--final-episodes", str(EPISODES), "--quiet"]
        command += ["--output-path", str(bundle), *(["--steps", str(steps)] if steps else [])]
        started(command)
        said = json.loads((bundle / "policy.json").read_text(encoding="utf-8"))["provenance"]
    outcome = Outcome(
        seed=seed,
        reached=said["ended"].startswith("greedy return reached"),
        steps=said["steps"],
        mean_return=said["training"].get("greedy_return", math.nan),
        cpu_s=round(said["cpu_s"] - said["judging_cpu_s"], 3),
        import_cpu_s=said["start_cpu_s"],
        judging_cpu_s=said["judging_cpu_s"],
    )
    return outcome, said["versions"]


def train_sb3(wanted: Cell, seed: int, found: Mapping[str, Any], steps: int | None) -> tuple[Outcome, dict[str, str]]:
    """One training in .venv-peers, and what it says."""
    job = {**asdict(wanted), "seed": seed, "episodes": EPISODES, "noise_std": None, **found}
    job["n_timesteps"] = min(steps or job["n_timesteps"], job["n_timesteps"])
    text = started([str(PEERS_PYTHON), str(PEERS / "stable_baselines3_run.py")], json.dumps(job))
    said = json.loads(text.splitlines()[-1])
    versions = said.pop("versions")
    rounded = {name: round(value, 3) if name.endswith("_s") else value for name, value in said.items()}
    return Outcome(seed=seed, **rounded), versions


def started(command: Sequence[str], job: str = "") -> str:
    """Run a program of the checkout with one thread; its standard output.

    Raises:
        BenchError: it failed; with the end of what it said.
    """
    environment = {**os.environ, **ONE_THREAD}
    done = run_to_end(command, job, folder=ROOT, environment=environment)
    if done.returncode:
        said = f"{' '.join(command)} failed with status {done.returncode}:\n{last_words(done)}"
        raise command_line.BenchError(said)
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
