"""From a trained network to its bundle: recorded observations, provenance, learning curve."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.bundle import Bundle, write_bundle
from policy.network import choose_actions, forward_float
from policy.spec import ContinuousHead, PolicySpec
from train.episodes import Actions, Decide, Observations
from train.logs import CURVE_FILE, PICTURE_FILE, draw_curve
from train.run import Run, Trained, describe
from train.tasks import Task, episode_seed

RECORDED_EPISODES = 64  # greedy episodes a preset
CALIBRATION_ROWS = 4096
GOLDEN_ROWS = 512
VERSIONS_OF = ("tensorflow-cpu", "numpy", "gymnasium")


def policy_spec(run: Run, trained: Trained) -> PolicySpec:
    """The contract of what was trained, its provenance still empty."""
    task = run.task
    head = task.head
    if isinstance(head, ContinuousHead):
        head = dataclasses.replace(head, squash=trained.squash)
    return PolicySpec(
        name=policy_name(run),
        observation=task.observation,
        normaliser=trained.normaliser,
        network=run.request.network,
        head=head,
        control_period_s=task.control_period_s,
        environment=task.environment,
    )


def policy_name(run: Run) -> str:
    """The bundle's folder names the policy: on a device, policies of one name replace each other.

    Signs that a device's folder may not have become ``-``.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run.request.output_path.resolve().name).strip(".-") or run.request.policy


def greedy(spec: PolicySpec, weights: Mapping[str, NDArray[np.float32]]) -> Decide:
    """The policy as a function of raw observations, through the reference forward pass of the contract."""

    def decide(observation: Observations) -> Actions:
        return choose_actions(spec, forward_float(spec, weights, observation))

    return decide


def record_observations(task: Task, decide: Decide, seed: int, purpose: str, rows: int) -> NDArray[np.float32]:
    """Raw observations of greedy episodes on all presets of the task, in equal shares, (≤ rows, size) float32.

    For every element the rows with its smallest and its largest value are kept, so that a calibration sees the ends of
    every range; the rest is drawn without replacement.
    """
    share = rows // len(task.presets)
    kept: list[NDArray[Any]] = []
    for preset in task.presets:
        seen: list[NDArray[Any]] = []

        def recording(observation: Observations, seen: list[NDArray[Any]] = seen) -> Actions:
            seen.append(observation.copy())
            return decide(observation)

        task.evaluate(recording, RECORDED_EPISODES, episode_seed(seed, purpose), preset)
        every = np.unique(np.concatenate(seen), axis=0)
        ends = np.unique(np.concatenate([every.argmin(axis=0), every.argmax(axis=0)]))
        others = np.setdiff1d(np.arange(len(every)), ends)
        generator = np.random.default_rng(episode_seed(seed, purpose))
        drawn = generator.choice(others, size=min(max(share - len(ends), 0), len(others)), replace=False)
        kept.append(every[np.concatenate([ends[:share], drawn])])
    return np.concatenate(kept).astype(np.float32)


def provenance(run: Run, trained: Trained, settings_source: str) -> dict[str, Any]:
    """Where the policy came from, as JSON values."""
    request = run.request
    last = {name: round(value, 6) for name, value in run.last_row.items() if value == value}
    return {
        "algorithm": request.method,
        "network": request.policy,
        "task": request.task,
        "seed": request.seed,
        "steps": trained.steps,
        "ended": run.outcome,
        "settings": dict(request.settings),
        "settings_source": settings_source,
        "training": last,
        "cpu_s": round(run.cpu_s, 1),
        "wall_s": round(run.wall_s, 1),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS_OF}},
        **trained.notes,
    }


def judged_finally(run: Run, decide: Decide) -> list[dict[str, Any]]:
    """Greedy success or return on fresh episodes of every preset, as JSON values."""
    request, task = run.request, run.task
    seed = episode_seed(request.seed, "final judgement")
    rows: list[dict[str, Any]] = []
    for preset in task.presets:
        result = task.evaluate(decide, request.final_episodes, seed, preset)
        run.progress.say(f"final: {describe(result)}")
        row: dict[str, Any] = {
            "preset": preset,
            "episodes": result.episodes,
            "mean_return": round(result.mean_return, 4),
        }
        if result.success is not None and result.interval is not None:
            row |= {"success": round(result.success, 5), "interval_95": [round(side, 5) for side in result.interval]}
        rows.append(row)
    return rows


def write_result(run: Run, trained: Trained, settings_source: str) -> Bundle:
    """Judge the greedy policy, record its rollouts and write the bundle with its learning curve, atomically."""
    request, task = run.request, run.task
    curve = run.curve.read_text(encoding="utf-8")
    spec = policy_spec(run, trained)
    decide = greedy(spec, trained.weights)
    origin = {**provenance(run, trained, settings_source), "judged": judged_finally(run, decide)}
    spec = dataclasses.replace(spec, provenance=origin)
    calibration = record_observations(task, decide, request.seed, "calibration", CALIBRATION_ROWS)
    golden = record_observations(task, decide, request.seed, "golden", GOLDEN_ROWS)
    title = f"Policy {request.policy} on {request.task}: {request.method}, seed {request.seed}, {trained.steps:,} steps"
    extra = {CURVE_FILE: curve.encode(), PICTURE_FILE: draw_curve(curve, title)}
    return write_bundle(request.output_path, spec, trained.weights, calibration, golden, extra)
