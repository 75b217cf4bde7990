"""``python -m train.evaluate``: judge a bundle's float policy on fresh greedy episodes, beside the blind baseline.

    python -m train.evaluate --task navigation --input-path zoo/I --episodes 3000 --preset hard --seed 7

Exit codes: 0 judged; 2 wrong usage or a bundle that cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from train.__main__ import quiet_libraries

if TYPE_CHECKING:
    from train.tasks import Evaluation, Task

USAGE = 2


def parser() -> argparse.ArgumentParser:
    """The options; the same names mean the same in every command of the project."""
    options = argparse.ArgumentParser(
        prog="python -m train.evaluate", description="Judge a bundle's float policy on fresh greedy episodes."
    )
    options.add_argument("--task", help="default: the task that the bundle was trained on")
    options.add_argument("--input-path", default="I", help="bundle: a folder, or a name such as I (default)")
    options.add_argument("--episodes", type=int, default=1000, help="episodes a preset (default 1000)")
    options.add_argument(
        "--preset", action="append", help="arena; may be repeated (default: those the task is judged on)"
    )
    options.add_argument("--seed", type=int, default=7, help="which episodes (default 7)")
    options.add_argument("--json", action="store_true", help="print one JSON document")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    quiet_libraries()
    from policy.errors import PolicyError
    from train.tasks import TaskError

    try:
        if arguments.episodes < 1:
            raise TaskError(f"--episodes {arguments.episodes} is too few; take at least 1.")
        report = judge_bundle(arguments)
    except (TaskError, PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    return 0


def judge_bundle(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fly the bundle's policy and the baseline on the same episodes; the report as JSON values."""
    from policy.locate import working_bundle
    from train.results import greedy
    from train.tasks import make_task

    bundle = working_bundle(arguments.input_path)
    name = arguments.task or str(bundle.spec.provenance.get("task", "navigation"))
    task = make_task(name)
    bundle.spec.check_observation(task.observation)
    presets = tuple(arguments.preset or task.presets)
    if arguments.preset and task.presets == ("",):
        from train.tasks import TaskError

        raise TaskError(f"--preset means nothing to the task {name}. Leave it out.")
    rows = [
        {"policy": who, **dataclasses.asdict(result)}
        for preset in presets
        for who, result in judged(task, greedy(bundle.spec, bundle.weights()), bundle.spec.name, preset, arguments)
    ]
    return {"task": name, "bundle": str(bundle.path), "seed": arguments.seed, "precision": "fp32", "results": rows}


def judged(
    task: Task, decide: Any, name: str, preset: str, arguments: argparse.Namespace
) -> list[tuple[str, Evaluation]]:
    """The policy's result on one preset, and the baseline's where the task has one."""
    results = [(name, task.evaluate(decide, arguments.episodes, arguments.seed, preset))]
    if task.baseline is not None:
        results.append(("blind", task.evaluate(task.baseline, arguments.episodes, arguments.seed, preset)))
    return results


def print_report(report: dict[str, Any]) -> None:
    """The report as a table."""
    from rich.console import Console
    from rich.table import Table

    has_success = any(row["success"] is not None for row in report["results"])
    table = Table(title=f"{report['bundle']} on {report['task']}, greedy, fp32, seed {report['seed']}")
    for heading in ("policy", "preset", "episodes", *(("success", "95 %") if has_success else ()), "return", "steps"):
        table.add_column(heading, justify="left" if heading in ("policy", "preset") else "right")
    for row in report["results"]:
        share: tuple[str, ...] = ()
        if has_success:
            low, high = row["interval"]
            share = (f"{100 * row['success']:.1f} %", f"{100 * low:.1f} – {100 * high:.1f}")
        low, high = row["return_interval"]
        table.add_row(
            row["policy"],
            row["preset"] or "–",
            str(row["episodes"]),
            *share,
            f"{row['mean_return']:.2f} [{low:.2f}, {high:.2f}]",
            f"{row['mean_length']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
