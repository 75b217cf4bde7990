"""Real runs of ``python -m train.actorq`` that the simulation of ActorQ is checked against."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.measuring.children import last_words, run_to_end
from bench.report.store import RESULTS
from bench.study.actorq.layout import Layout, Rates, Services
from bench.study.actorq.simulation import horizon_s, simulate
from bench.study.actorq.training import rates_of

if TYPE_CHECKING:
    from bench.study.actorq.services import Setup

POINT_ACTORS, POINT_RATIOS, POINT_SECONDS = (1, 2, 4), (16.0,), 10.0
POINT_BITS = (32, 8)
POINT_ROUNDS = 150.0
STARTING_S, LONGEST_S = 60.0, 240.0
MOST_STEPS = 150_000.0
AGAIN = "python -m bench.study actorq-scaling --keep --point-seconds 20"


def real_runs(
    setup: Setup,
    services: Mapping[int, Services],
    n_step: int,
    cores: int,
    ratios: Sequence[float],
    seconds: float,
) -> list[dict[str, Any]]:
    """Runs at each ratio, number of actors and precision, long enough by what is simulated for them."""
    points = []
    for ratio, actors, bits in itertools.product(ratios, POINT_ACTORS, POINT_BITS):
        own = dataclasses.replace(setup.layout(n_step), n_actors=actors, samples_per_insert=ratio, cores=cores)
        expected = shared(services[bits], own)
        steps = steps_of(own, expected, setup.learning_starts, seconds)
        point = real_run(setup.command(actors, bits, ratio, steps), own.updates, LONGEST_S)
        points.append({"n_actors": actors, "bits": bits, "samples_per_insert": ratio, **point})
        command_line.say(
            f"{actors} actors in {bits} bits, {ratio:g} samples per insertion: {point['steps_per_s']:.0f} steps/s, "
            f"{point['updates_per_s']:.1f} updates/s; simulated {expected.steps_per_s:.0f} and "
            f"{expected.updates_per_s:.1f}"
        )
    return points


def shared(services: Services, layout: Layout) -> Rates:
    """The simulation that a real run on this machine is compared with."""
    return simulate(services, layout, horizon_s(services, layout, POINT_ROUNDS), MOST_STEPS)


def steps_of(layout: Layout, expected: Rates, learning_starts: int, seconds: float) -> int:
    """Steps of a real run: until learning begins, what the replay's slack lets pass, and so many seconds of both."""
    rows = max(layout.rows, int(layout.n_actors * (layout.insert_every + layout.n_step) * layout.samples_per_insert))
    slack = 2 * rows / layout.samples_per_insert
    return learning_starts + int(slack + expected.steps_per_s * seconds)


def real_run(command: Sequence[str], updates: int, longest_s: float) -> dict[str, float]:
    """Rates of one ``python -m train.actorq``, after the rounds that compile, and the actors' breakdown.

    Raises:
        BenchError: it failed, or was too short to be measured.
    """
    from train.actorq.variables import VARIABLES

    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        typed = [sys.executable, "-m", "train.actorq", *command, "--output-path", str(bundle)]
        typed += ["--minutes", f"{(longest_s - STARTING_S) / 60:g}"]
        try:
            environment = {**os.environ, **VARIABLES}
            done = run_to_end(typed, folder=RESULTS.parent, environment=environment, timeout_s=longest_s)
        except subprocess.TimeoutExpired:
            raise command_line.BenchError(f"a run took more than {longest_s:g} s: {' '.join(command)}", AGAIN) from None
        if done.returncode:
            said = f"python -m train.actorq failed with status {done.returncode}:\n{last_words(done)}"
            raise command_line.BenchError(said, AGAIN)
        with (bundle / "learning_curve.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        provenance = json.loads((bundle / "policy.json").read_text(encoding="utf-8"))["provenance"]
    return {**rates_of(rows, updates, AGAIN), "breakdown": provenance["actorq"]["breakdown"]}
