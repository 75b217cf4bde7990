"""Trainings of a study's cells: a method on a task with some seed, trained once and found again by its settings.

A bundle lies in artifacts/trained/CODE/NAME-SETTINGS-seedN: SETTINGS begins the hash of everything that was asked of
the training but its seed, CODE is the commit, so that what a row says of its code holds for its training, too. One that
was interrupted goes on where it stopped.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from quarl import cli
from quarl.bench.study.bundles import open_bundle, quantize_policy
from quarl.bench.study.experiment import EpisodePlan, Experiment, SeedResult, look_up
from quarl.bench.study.measures.children import run_child
from quarl.bench.study.records import round_numbers
from quarl.policy.files import lock_folder
from quarl.policy.locate import code_version
from quarl.policy.places import ARTIFACTS

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.policy.simulate import Widths
    from quarl.train.runs.request import RunRequest

TRAINED = ARTIFACTS / "trained"
DIGITS = 4  # of a return: an interval over trainings is wider than what that loses


@dataclass(frozen=True)
class Training:
    """A method on a task, with the settings file's settings.

    Attributes:
        task, method: as they are typed for training.
        policy: network of the case study; None for the settings file's.
        steps: of every training; None for the settings file's.
    """

    task: str
    method: str
    policy: str | None = None
    steps: int | None = None


@functools.cache
def identity(cell: Training, *more: object) -> str:
    """SHA-256 of what the trainings of a cell share, the settings file's numbers among it, and of what is given."""
    from quarl.train.runs.models import DEFAULT_POLICY
    from quarl.train.runs.presets import load_settings

    training_settings = asdict(load_settings(cell.task, cell.method, cell.policy or DEFAULT_POLICY))
    shared = [asdict(cell), {name: training_settings[name] for name in ("steps", "settings", "task", "network")}, *more]
    return _sha256(shared)


def about(subject: str, cells: Mapping[str, Training]) -> str:
    """Return one line: what a subject trains."""
    cell = look_up(subject, cells)
    return f"{subject}: {cell.method} on {cell.task}"


def of_cells(
    cells: Mapping[str, Training],
    seeds: tuple[int, ...],
    count: Callable[[str], int],
    chosen: Callable[[str], Sequence[object]] = lambda subject: (),
    **declared: Any,
) -> Experiment:
    """Return an experiment whose subjects are cells of trainings, stale where their settings are others.

    Args:
        cells: by name.
        seeds: of the trainings, where none are asked for.
        count: episodes of each where none are asked for, by subject.
        chosen: what else a cell's trainings depend on, by subject.
        declared: what else :class:`bench.study.experiment.Experiment` takes.
    """
    return Experiment(
        subjects=tuple(cells),
        identity=lambda subject: identity(look_up(subject, cells), *chosen(subject)),
        about=lambda subject: about(subject, cells),
        episodes=lambda options, subject: EpisodePlan(options.seeds or seeds, options.episodes or count(subject)),
        of_trainings=True,
        **declared,
    )


def settings_of(request: RunRequest) -> dict[str, Any]:
    """Return all options of a training but its seed."""
    from quarl.policy.spec import network_values

    return {**request.settings, "steps": request.steps, "network": network_values(request.network)}


def train_once(cell: Training, seed: int, *words: str) -> Bundle:
    """Return the bundle of a training; it is trained now where there is none of these settings, seed and code yet.

    Args:
        cell: what is trained.
        seed: everything random follows from it.
        words: further ones of ``quarl train``.

    Raises:
        BenchError: training failed, or ended without the quantizers that were asked for.
    """
    from quarl.policy.bundle import Bundle
    from quarl.policy.errors import PolicyError

    typed = ["--task", cell.task, "--method", cell.method, "--seed", str(seed), "--quiet", "--final-episodes", "1"]
    typed += ["--policy", cell.policy] if cell.policy else []
    typed += ["--steps", str(cell.steps)] if cell.steps else []
    typed += words
    name = f"{cell.policy or cell.task}-{cell.method}-{_sha256(settings_of(make_request(typed)))[:12]}-seed{seed}"
    folder = TRAINED / code_version() / name.replace("/", "-")
    with lock_folder(folder.with_name(f".{folder.name}")):  # another process may want the same one
        try:
            return Bundle.load(folder)
        except PolicyError:
            run_child([sys.executable, "-m", "quarl.train", *typed, "--output-path", str(folder)])
            return Bundle.load(folder)


def make_request(words: list[str]) -> RunRequest:
    """Return the request that ``quarl train`` makes of these arguments; nothing is trained."""
    from quarl.train.__main__ import make_request, quantization_settings
    from quarl.train.runs.models import DEFAULT_POLICY
    from quarl.train.runs.presets import load_settings
    from quarl.train.suites.make import make_task

    arguments = cli.options("train", words)
    training_settings = load_settings(arguments.task, arguments.method, arguments.policy or DEFAULT_POLICY)
    task = make_task(arguments.task, options=training_settings.task)
    request, _ = make_request(arguments, arguments.method, training_settings, task, quantization_settings(arguments))
    return request


def fly_episodes(
    bundle: Bundle, widths: Widths | None, count: int, purpose: str, measures: Mapping[str, Any]
) -> Iterator[SeedResult]:
    """Greedy episodes of a training at these widths, None for float, on every preset that its task is evaluated on.

    Args:
        bundle: of the training; its seed and ``purpose`` give the episodes, which are those of no training.
        widths: of the quantization.
        count: episodes on each preset.
        purpose: of the study.
        measures: are kept beside the training's name, which has the hash of its settings.
    """
    from quarl.train.suites.task import episode_seed

    provenance = bundle.spec.provenance
    decide, _ = quantize_policy(bundle, widths)
    _, task = open_bundle(str(bundle.path))
    for preset in task.presets:
        results = task.evaluate(decide, count, episode_seed(provenance["seed"], purpose), preset)
        yield SeedResult(
            preset,
            provenance["seed"],
            [float(f"{earned:.{DIGITS}g}") for earned in results.returns],
            results.successes or None,
            {"training": bundle.path.name, **measures},
        )


def origin(bundle: Bundle) -> dict[str, Any]:
    """Origin of a training, for the rows that are of the training itself: its steps, settings and weights."""
    from quarl.policy.reading import WEIGHTS_FILE

    provenance = bundle.spec.provenance
    return {
        "steps": provenance["steps"],
        "settings": round_numbers(provenance["settings"]),
        "weights_sha256": bundle.manifest.files[WEIGHTS_FILE].sha256,
    }


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
