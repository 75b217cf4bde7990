"""Takes a freshly trained bundle into zoo/benchmark, under its cell's name, if it is no worse than the one there.

    python -m bench.study place /tmp/x/pong-ppo

Both are judged as float policies on the same episodes; the judgement stands in the provenance of the one that is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.command_line import BenchError, say
from bench.study.cells import BENCHMARK, EPISODES, SEED
from train.intervals import RETURN_INTERVAL, brackets

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from train.suites.task import Evaluation

LARGEST_BYTES = 16e6
"""A committed bundle stays small: the largest networks here (Nature's, 6.8 MB) and their recordings fit."""


def main(argv: Sequence[str]) -> int:
    """Judge, copy; returns the exit status."""
    parser = command_line.parser(__doc__, "-m bench.study place")
    parser.add_argument("bundle", type=Path, metavar="FOLDER", help="the bundle")
    parser.add_argument("--episodes", type=command_line.positive, default=EPISODES, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=SEED, help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="also if it is worse than the one there")

    def run(arguments: argparse.Namespace) -> int:
        name = place(arguments.bundle, BENCHMARK, arguments.episodes, arguments.seed, arguments.force)
        say(f"next: python -m bench.study cells {name} --keep")
        return command_line.EXIT_OK

    return command_line.guarded(run, parser.parse_args(argv))


def place(source: Path, zoo: Path, episodes: int, seed: int, force: bool) -> str:
    """Copy a bundle to ``zoo/TASK-METHOD`` without artifacts, its policy renamed to that; returns the name.

    Its provenance gets the judgement of these episodes, with interval, in place of a shorter one.

    Args:
        source: the bundle's folder.
        zoo: where it shall go.
        episodes, seed: on which the float policy, and that of the bundle there, are judged.
        force: also if it is worse.

    Raises:
        BenchError: its mean return is lower than that of the bundle there, or it is too large for a repository.
        PolicyError: it is no readable bundle, or of another task than it says.
    """
    from policy.bundle import HOST_FILES, Bundle
    from policy.bundle_writer import write_bundle

    fresh = Bundle.load(source)
    name = cell_name(fresh)
    goldens = {entry.golden_file for entry in fresh.manifest.artifacts.values()}
    kept = {file: record for file, record in fresh.manifest.files.items() if file not in goldens}  # no artifact's
    size = sum(record.size for record in kept.values())
    if size > LARGEST_BYTES:
        raise BenchError(f"{source} has {size / 1e6:.1f} MB without artifacts; a committed one has 16 at most.")
    result = judged(fresh, episodes, seed)
    interval = result.return_interval
    say(f"{source}: {result.mean_return:.2f} {brackets(interval, '.2f')} over {episodes} episodes")
    target = zoo / name
    if target.exists() and target.resolve() != source.resolve():  # of itself only the judgement is renewed
        before = judged(Bundle.load(target), episodes, seed)
        say(f"{target}: {before.mean_return:.2f} on the same episodes")
        if result.mean_return < before.mean_return and not force:
            raise BenchError(
                f"{source} reaches {result.mean_return:.2f}, less than the {before.mean_return:.2f} of {target}. "
                "Nothing was changed.",
                f"python -m bench.study place {source} --force, if it shall replace it all the same",
            )
    row: dict[str, Any] = {
        "preset": result.preset,
        "episodes": result.episodes,
        "seed": seed,
        "mean_return": round(result.mean_return, 4),
    }
    if interval is not None:
        row[RETURN_INTERVAL] = [round(side, 4) for side in interval]
    spec = dataclasses.replace(fresh.spec, name=name, provenance={**fresh.spec.provenance, "judged": [row]})
    extra = {file: (source / file).read_bytes() for file in kept if file not in HOST_FILES}
    write_bundle(target, spec, fresh.weights(), fresh.calibration(), fresh.golden().observations, extra)
    say(f"{target}: written; commit it with: git add {target}")
    return name


def cell_name(bundle: Bundle) -> str:
    """``pong-ppo``: the task's word and the method, as the provenance has them.

    Raises:
        BenchError: the provenance does not say them.
    """
    from train.suites.names import resolve

    origin = bundle.spec.provenance
    missing = [key for key in ("task", "algorithm", "seed", "steps", "cpu_s") if key not in origin]
    if missing:
        raise BenchError(
            f"{bundle.path}/policy.json does not say where the policy comes from: its provenance lacks "
            f"{', '.join(missing)}.",
            "train it with python -m train, which writes them",
        )
    return f"{resolve(str(origin['task'])).short_name}-{origin['algorithm']}"


def judged(bundle: Bundle, episodes: int, seed: int) -> Evaluation:
    """The float policy on episodes of its own task."""
    from bench.study.bundles import task_of
    from train.deciding import greedy

    task = task_of(bundle)
    return task.evaluate(greedy(bundle.spec, bundle.weights()), episodes, seed, task.presets[0])
