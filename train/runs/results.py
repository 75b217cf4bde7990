"""From a trained network to its bundle: recorded observations, provenance, learning curve."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.locate import code_version
from quarl.policy.pilot import watch_observations
from quarl.policy.rewrites import equalise, rewritten
from quarl.policy.spec import ContinuousHead, Memory, NetworkSpec, ObservationField, PolicySpec, Remembered, Squash
from quarl.train.deciding import greedy
from quarl.train.intervals import RETURN_INTERVAL
from quarl.train.networks.policy import Policy
from quarl.train.runs.logs import CURVE_FILE, PICTURE_FILE, draw_curve, thin_curve
from quarl.train.runs.request import RunRequest, Trained
from quarl.train.runs.run import Run, describe
from quarl.train.suites.episodes import Actions, Decide, Observations
from quarl.train.suites.names import NEEDS
from quarl.train.suites.task import Task, episode_seed

RECORDED_EPISODES = 64  # greedy episodes a preset
MOST_SEEN = 100_000
"""Observations of a preset that are looked at."""
CALIBRATION_ROWS = 4096
GOLDEN_ROWS = 512
# An image policy's episodes have thousands of frames, and a frame is as large as a thousand small observations.
RECORDED_IMAGE_EPISODES = 4
RECORDED_EPISODES_WITH_IMAGES = 16
CALIBRATION_IMAGES = 256
GOLDEN_IMAGES = 64
UNPAIRED = (
    "not seeded one by one: a resumed run begins new ones, and two policies cannot be compared episode by episode"
)
VERSIONS_OF = ("tensorflow-cpu", "numpy", "gymnasium")


class EnoughError(Exception):
    """As many observations were seen as are looked at."""


def policy_spec(request: RunRequest, task: Task, policy: Policy, squash: Squash = Squash.TANH) -> PolicySpec:
    """Return the contract of what was trained, its provenance still empty; ``squash`` is of a continuous task's
    outputs."""
    head = task.head
    if isinstance(head, ContinuousHead):
        head = dataclasses.replace(head, squash=squash)
    return PolicySpec(
        name=bundle_name(request),
        observation=task.observation + states_of(request.network),
        normaliser=policy.normaliser,
        network=request.network,
        head=head,
        control_period_s=task.control_period_s,
        environment=task.environment,
        quantization=policy.quantization,
        fallback=task.fallback,
    )


def states_of(network: NetworkSpec) -> tuple[ObservationField, ...]:
    """Return the observation's fields of a network's recurrent layers, which are zero at the start of an episode."""
    return tuple(
        ObservationField(name, (1, layer.state_size), "1", memory=Memory(Remembered.STATE, (0.0,) * layer.state_size))
        for name, layer in network.states.items()
    )


def bundle_name(request: RunRequest) -> str:
    """Return the bundle's folder names the policy: on a device, policies of one name replace each other.

    Signs that a device's folder may not have become ``-``.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", request.output_path.resolve().name).strip("._-")[:64] or request.policy


def record_observations(task: Task, decide: Decide, seed: int, purpose: str, rows: int) -> NDArray[Any]:
    """Raw observations of greedy episodes on all presets of the task, in equal shares, (≤ rows, size) float32.

    For every element the rows with its smallest and its largest value are kept, so that a calibration sees the ends of
    every range; the rest is drawn without replacement. Of an image with a vector behind it, the vector's elements.
    """
    if task.is_image:
        return record_images(task, decide, seed, purpose, rows)
    share = rows // len(task.presets)
    samples: list[NDArray[Any]] = []
    for preset in task.presets:
        seen: list[NDArray[Any]] = []

        def keep(observation: Observations, seen: list[NDArray[Any]] = seen) -> None:
            seen.append(observation.copy())
            if len(seen) * len(observation) >= MOST_SEEN:
                raise EnoughError

        episodes = RECORDED_EPISODES_WITH_IMAGES if task.vector_size else RECORDED_EPISODES
        with suppress(EnoughError):
            task.evaluate(watch_observations(decide, keep), episodes, episode_seed(seed, purpose), preset)
        every = np.unique(np.concatenate(seen), axis=0)
        elements = every[:, -task.vector_size :]  # all of them where no image is before them
        ends = np.unique(np.concatenate([elements.argmin(axis=0), elements.argmax(axis=0)]))
        others = np.setdiff1d(np.arange(len(every)), ends)
        generator = np.random.default_rng(episode_seed(seed, purpose))
        drawn = generator.choice(others, size=min(max(share - len(ends), 0), len(others)), replace=False)
        samples.append(every[np.concatenate([ends[:share], drawn])])
    return np.concatenate(samples).astype(np.float32)


def record_images(task: Task, decide: Decide, seed: int, purpose: str, rows: int) -> NDArray[np.uint8]:
    """Different images of greedy episodes on all presets of the task, in equal shares, (≤ rows, size) uint8.

    Every image of the episodes is as likely as any other to be kept, and no more than ``rows`` are held at a time
    (Vitter 1985, algorithm R).
    """
    share = rows // len(task.presets)
    samples: list[NDArray[np.uint8]] = []
    for preset in task.presets:
        generator = np.random.default_rng(episode_seed(seed, purpose))
        reservoir: list[NDArray[np.uint8]] = []
        seen = 0

        def recording(
            observation: Observations,
            reservoir: list[NDArray[np.uint8]] = reservoir,
            generator: np.random.Generator = generator,
        ) -> Actions:
            nonlocal seen
            for image in observation:
                seen += 1
                if len(reservoir) < share:
                    reservoir.append(image.copy())
                elif (place := int(generator.integers(seen))) < share:
                    reservoir[place] = image.copy()
            return decide(observation)

        task.evaluate(recording, RECORDED_IMAGE_EPISODES, episode_seed(seed, purpose), preset)
        samples.append(np.unique(np.stack(reservoir).reshape(len(reservoir), -1), axis=0))
    return np.concatenate(samples)


def provenance(run: Run, trained: Trained, settings_source: str) -> dict[str, Any]:
    """Return where the policy came from, as JSON values."""
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
        "command": request.command,
        "code": code_version(),
        "training": last,
        "cpu_s": round(run.cpu_s, 3),
        "start_cpu_s": round(run.start_cpu_s, 3),
        "judging_cpu_s": round(run.judging_cpu_s, 3),
        "wall_s": round(run.wall_s, 1),
        "versions": versions(),
        **trained.notes,
        **({} if run.task.paired else {"episodes": UNPAIRED}),
        **({"resumed_at": run.resumed_at} if run.resumed_at else {}),
        **({"replanned": run.replanned} if run.replanned else {}),
    }


def versions() -> dict[str, str]:
    """Python, the packages that every run rests on, and the benchmark suites that this process has imported."""
    package_versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS_OF}}
    for module, distribution in (pair for _, modules in NEEDS.values() for pair in modules.items()):
        if module in sys.modules:
            with suppress(metadata.PackageNotFoundError):  # packaged under another name: no reason to lose a run
                package_versions[distribution] = metadata.version(distribution)
    return package_versions


def evaluate_final_policy(run: Run, decide: Decide) -> list[dict[str, Any]]:
    """Greedy success or return on fresh episodes of every preset, as JSON values."""
    request, task = run.request, run.task
    seed = episode_seed(request.seed, "final judgement")
    rows: list[dict[str, Any]] = []
    for preset in task.presets:
        result = task.evaluate(decide, request.final_episodes, seed, preset)
        run.progress.say(f"final: {describe(result)}")
        mean = round(result.mean_return, 4)
        row: dict[str, Any] = {"preset": preset, "episodes": result.episodes, "seed": seed, "mean_return": mean}
        if result.return_interval is not None:
            row[RETURN_INTERVAL] = [round(side, 4) for side in result.return_interval]
        if result.success is not None and result.interval is not None:
            row |= {"success": round(result.success, 5), "interval_95": [round(side, 5) for side in result.interval]}
        rows.append(row)
    return rows


def write_result(run: Run, trained: Trained, settings_source: str) -> Bundle:
    """Judge the greedy policy, record its rollouts and write the bundle with its learning curve, atomically.

    It goes to ``run.bundle_path``: not in another's place where the run was interrupted. Always rewritten where a
    rewrite fits, which costs nothing in fp32; what was evaluated, and checkpoints, have the raw weights. An interrupted
    run ends soon: its policy is not evaluated.
    """
    request, task = run.request, run.task
    curve = run.curve.read_text(encoding="utf-8")
    spec = policy_spec(request, task, trained.policy, trained.squash)
    decide = greedy(spec, trained.policy.weights)
    origin = {
        **provenance(run, trained, settings_source),
        "judged": [] if run.was_interrupted else evaluate_final_policy(run, decide),
    }
    spec = dataclasses.replace(spec, provenance=origin)
    if still := [f"{spec.element(place)} at {value:g}" for place, value, _ in spec.normaliser.still]:
        run.progress.say(
            f"Constant throughout training: {', '.join(still[:8])}{', …' * (len(still) > 8)}. The policy ignores these "
            "elements; a robot's loop counts their changes (untrained).",
            always=True,
        )
    rows = (CALIBRATION_IMAGES, GOLDEN_IMAGES) if task.has_image else (CALIBRATION_ROWS, GOLDEN_ROWS)
    calibration = record_observations(task, decide, request.seed, "calibration", rows[0])
    golden = record_observations(task, decide, request.seed, "golden", rows[1])
    title = f"Policy {request.policy} on {request.task}: {request.method}, seed {request.seed}, {trained.steps:,} steps"
    extra = {CURVE_FILE: thin_curve(curve).encode(), PICTURE_FILE: draw_curve(curve, title)}
    weights = equalise(spec, trained.policy.weights, calibration)
    spec, weights = rewritten(spec, weights, calibration)
    bundle = write_bundle(run.bundle_path, spec, weights, calibration, golden, extra)
    run.bundle_written()
    return bundle
