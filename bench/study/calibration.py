"""How many recorded observations does the calibration of int8 need?

    python -m bench.study calibration I --rows 1 16 --episodes 50
    python -m bench.study calibration --keep                     measures what is not kept yet
    python -m bench.study calibration --stored --update-docs     fills docs/calibration.md, draws the picture

Ranges are those of so many of a bundle's calibration observations, drawn at random; larger draws hold smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench import command_line
from bench.report.lines import error_lines
from bench.report.pivot import Pivot
from bench.study.bundles import PERCEPTRONS, fly, of_bundles, open_perceptron
from bench.study.experiment import EpisodePlan, Results, SeedResult
from bench.study.records import Condition
from policy.quantization import Scheme
from policy.simulated import Widths, simulate
from train.deciding import decide_with, float_decide

ROWS, DRAW, INT8 = (1, 4, 16, 64, 256, 1024), 0, Widths(Scheme.SYMMETRIC, 8, activation_bits=8)
WORDS = """\
Relative error of int8 in %, by the number of observations that its ranges were calibrated with
Error: (fp32 − int8) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); \
negative: better than fp32; 0: less than 0.005 % in all three numbers; without brackets: all episodes are equal. \
One draw of observations a policy: the interval knows the episodes, not other draws.
{{ results.measured }}
"""


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Fly the policy in float32, or in int8 with ranges from so many observations."""
    bundle, task = open_perceptron(subject)
    decide = float_decide(bundle)
    if condition:
        observations = np.random.default_rng(DRAW).permutation(bundle.calibration())[: condition["rows"]]
        decide = decide_with(bundle.spec, simulate(bundle.spec, bundle.weights(), observations, INT8))
    yield from fly(task, decide, episodes, {})


def calibrated(results: Results) -> list[dict[str, Any]]:
    """The rows of int8."""
    return [row for row in results.summary if row["rows"]]


ERRORS = Pivot(
    name="calibration",
    words=WORDS,
    lead={"policy": "{{ subject }}, n={{ episodes | thousands }}", "preset": "{{ preset or '–' }}"},
    columns=[{"{{ rows | thousands }}": "{{ error | lost }}"}],
    rows=calibrated,
)
OVER_ROWS = error_lines(
    stem="calibration",
    title="How many observations the calibration of int8 needs",
    x="rows",
    x_label="calibration observations",
    line="preset",
    labels={"": ("int8", 0), "hard": ("int8, preset hard", 0), "shipped": ("int8, preset shipped", 1)},
    rows=calibrated,
)
EXPERIMENT = of_bundles(
    name="calibration",
    question="how many observations does the calibration of int8 need?",
    factors=("rows",),
    subjects=PERCEPTRONS,
    options=lambda parser: parser.add_argument(
        "--rows", type=command_line.positive, nargs="+", default=ROWS, help="numbers of observations"
    ),
    grid=lambda arguments, subject: [{}, *({"rows": rows} for rows in arguments.rows)],
    measure=measure,
    tables=[ERRORS],
    figures=[OVER_ROWS],
)
