"""``python -m train``: train a policy and write its bundle.

    python -m train --task navigation --policy I --method ppo
    python -m train --task CartPole-v1 --policy I --method dqn --output-path artifacts/cartpole

Exit codes: 0 trained; 1 training diverged; 2 wrong usage; 130 interrupted (checkpoint and bundle are written).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.policies import POLICIES

if TYPE_CHECKING:
    from train.run import Run, RunRequest, Trained
    from train.tasks import Task

BEGAN = time.monotonic()
METHODS = {"ppo": "PPOSettings", "dqn": "DQNSettings", "distill": "DistillSettings"}
PROJECT_ROOT = Path(__file__).resolve().parent.parent
DIVERGED, USAGE, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The options; the same names mean the same in every command of the project."""
    options = argparse.ArgumentParser(
        prog="python -m train", description="Train a policy and write its bundle.", epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options.add_argument(
        "--task", default="navigation", help="navigation (default) or a Gymnasium id such as CartPole-v1"
    )
    options.add_argument("--policy", choices=list(POLICIES), help="network of the case study (default I on navigation)")
    options.add_argument("--model", metavar="LAYERS", help="network instead of --policy: 400,300 or nature (images)")
    options.add_argument("--layer-norm", action="store_true", help="normalise every hidden fully connected layer")
    options.add_argument("--method", choices=list(METHODS), help="algorithm (default ppo; distill for policy III)")
    options.add_argument("--preset", help="navigation: arena to train on (default: the settings file's mixture)")
    options.add_argument("--steps", type=int, help="environment steps in all (default: the settings file's)")
    options.add_argument("--seed", type=int, default=0, help="everything random follows from it (default 0)")
    options.add_argument("--output-path", type=Path, help="folder of the bundle (default artifacts/POLICY)")
    options.add_argument("--resume", action="store_true", help="go on from the checkpoint of the same run")
    options.add_argument("--minutes", type=float, help="stop after so many minutes, whatever the steps")
    options.add_argument(
        "--stop-at-success", type=float, metavar="SHARE", help="stop when the greedy success reaches it"
    )
    options.add_argument(
        "--stop-at-return", type=float, metavar="RETURN", help="stop when the mean greedy return reaches it"
    )
    options.add_argument("--stop-preset", default="", help="arena on which the two are judged (default: trained on)")
    options.add_argument("--evaluate-every", type=int, help="steps between two greedy evaluations")
    options.add_argument("--evaluate-episodes", type=int, help="episodes of each")
    options.add_argument("--final-episodes", type=int, help="episodes of the last evaluation, kept in the bundle")
    options.add_argument("--teacher", default="II", help="--method distill: bundle to learn from (default II)")
    options.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override one setting")
    options.add_argument("--quiet", action="store_true", help="show no progress")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    quiet_libraries()
    from policy.errors import PolicyError
    from train.checkpoint import CheckpointError
    from train.presets import SettingsError
    from train.run import DivergenceError
    from train.tasks import TaskError

    try:
        return run_training(arguments)
    except DivergenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    except (SettingsError, TaskError, CheckpointError, PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted at once; the last checkpoint is kept: add --resume to go on.", file=sys.stderr)
        return INTERRUPTED


def quiet_libraries() -> None:
    """Before numpy and TensorFlow load: one BLAS thread (matrices are small, the update has its own), no banners."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # the same numbers whatever the CPU offers oneDNN


def run_training(arguments: argparse.Namespace) -> int:
    """Train as asked and write the bundle."""
    from train.models import DEFAULT_POLICY
    from train.presets import load_settings
    from train.results import write_result
    from train.run import Run
    from train.tasks import make_task

    method = arguments.method or ("distill" if arguments.policy == "III" else "ppo")
    found = load_settings(arguments.task, method, arguments.policy or DEFAULT_POLICY)
    task = make_task(arguments.task, arguments.preset, found.task)
    if task.is_image:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow loads: its convolutions are 1.7 times as fast
    request, settings = make_request(arguments, method, found, task)
    with Run(request, task, BEGAN) as run:
        trained = algorithm(method, run, settings, arguments.teacher)
        bundle = write_result(run, trained, found.source)
        run.progress.say(
            f"{bundle.path}: {trained.steps:,} steps, {run.outcome}; {run.wall_s:.0f} s, {run.cpu_s:.0f} CPU-s. "
            f"Next: python -m train.evaluate --input-path {bundle.path}"
        )
        return INTERRUPTED if run.outcome == "interrupted" else 0


def make_request(arguments: argparse.Namespace, method: str, found: Any, task: Task) -> tuple[RunRequest, Any]:
    """The run that the arguments and the settings file describe, and the algorithm's settings."""
    from train import presets
    from train.models import choose_network
    from train.run import RunRequest

    for option in ("steps", "evaluate_every", "evaluate_episodes", "final_episodes"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise presets.SettingsError(f"--{option.replace('_', '-')} {value} is too few; take at least 1.")
    kind = settings_class(method)
    settings = presets.build(kind, {**found.settings, **presets.parse_overrides(arguments.set)})
    steps = arguments.steps or found.steps
    evaluate_every = arguments.evaluate_every or found.evaluate_every or max(steps // presets.DEFAULT_EVALUATIONS, 1)
    name, network = choose_network(task, arguments.policy, arguments.model, arguments.layer_norm, found.network)
    request = RunRequest(
        task=arguments.task,
        policy=name,
        method=method,
        network=network,
        steps=steps,
        seed=arguments.seed,
        output_path=arguments.output_path or default_output(arguments.task, name, method),
        resume=arguments.resume,
        minutes=arguments.minutes,
        stop_at_success=arguments.stop_at_success,
        stop_at_return=arguments.stop_at_return,
        stop_preset=arguments.stop_preset,
        evaluate_every=evaluate_every,
        evaluate_episodes=arguments.evaluate_episodes or found.evaluate_episodes,
        final_episodes=arguments.final_episodes or found.final_episodes,
        settings=json.loads(
            json.dumps({**dataclasses.asdict(settings), "preset": arguments.preset, "task": found.task})
        ),
        quiet=arguments.quiet,
    )
    return request, settings


def default_output(task: str, policy: str, method: str) -> Path:
    """artifacts/POLICY for the case study's task; another task never overwrites its policies."""
    name = policy if task == "navigation" else f"{task.replace('/', '_')}-{method}-{policy}"
    return PROJECT_ROOT / "artifacts" / name


def settings_class(method: str) -> Any:
    """The settings dataclass of an algorithm; imports it, and TensorFlow with it."""
    from importlib import import_module

    return getattr(import_module(f"train.{method}"), METHODS[method])


def algorithm(method: str, run: Run, settings: Any, teacher: str) -> Trained:
    """Run the algorithm."""
    if method == "ppo":
        from train import ppo

        return ppo.train(run, settings)
    if method == "dqn":
        from train import dqn

        return dqn.train(run, settings)
    from train import distill

    return distill.train(run, settings, teacher)


if __name__ == "__main__":
    sys.exit(main())
