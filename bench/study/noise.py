"""Does a noisy rangefinder forgive few bits of the observation, or need more of them?

    python -m bench.study noise I --bits 5,4 --noise 0,1 --episodes 200
    python -m bench.study noise --keep                       measures what is not kept yet of I and II
    python -m bench.study noise --stored --update-docs       fills docs/layers.md, draws the picture

Only the normalised observation is quantized, to n bits over the range that calibration saw; the policy stays float. All
widths fly the same episodes of preset hard under the same noise of the rays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import share_scale
from bench.report.lines import Lines
from bench.report.pivot import Pivot
from bench.study.bundles import of_bundles, perceptron, quantized
from bench.study.experiment import SUCCESS, EpisodePlan, SeedResult
from bench.study.records import Condition
from policy.quantization import FLOAT_BITS, Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    import argparse

BITS, NOISE, PRESET, BATCH = (8, 6, 5, 4, 3), (0.0, 0.5, 1.0, 2.0), "hard", 128

CELL = "{{ success_difference | estimate(100, '+') if bits else success | estimate(100) }}"
TABLE = """\
Bits of the observation under a noisy rangefinder
Float: % success on preset {{ preset }}, n={{ episodes | thousands }} for each number, with Wilson's 95 % interval. \
Bits: points more than with the float observation on the same episodes under the same noise, Newcombe's paired 95 % \
interval.
Noise: standard deviation of each ray's error, in metres of a range of 20; the policies were trained without any. Only \
the observation is quantized, simulated in float.
{{ results.measured }}
"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options --bits and --noise."""
    parser.add_argument("--bits", type=command_line.bits(2, 16), default=BITS, help="of the observation")
    parser.add_argument("--noise", type=command_line.numbers, default=NOISE, metavar="0,0.5", help="of a ray, metres")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """The float observation and each width, under each noise."""
    return [{"noise": m, **({"bits": n} if n else {})} for m in arguments.noise for n in (None, *arguments.bits)]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Fly with this noise of the rays and this width of the observation."""
    from airlearning_envs.config import preset
    from airlearning_envs.flights import fly

    bundle = perceptron(subject)
    widths = Widths(Scheme.SYMMETRIC, FLOAT_BITS, None, condition["bits"]) if "bits" in condition else None
    decide, measures = quantized(bundle, widths)
    config = preset(PRESET).with_settings({"range_noise_m": condition["noise"]})
    for seed in episodes.seeds:
        flown = fly(config, decide, episodes.count, seed, BATCH)
        yield SeedResult(PRESET, seed, flown.episode_return.tolist(), flown.success.tolist(), measures)


BITS_UNDER_NOISE = Pivot(
    name="noise",
    words=TABLE,
    lead={"policy": "{{ subject }}", "observation": "{{ bits ~ ' bits' if bits else 'float' }}"},
    columns=[{"noise {{ '%g' % noise }} m": CELL}],
    facts=lambda results: {"preset": PRESET, "episodes": max(row["episodes"] for row in results.summary)},
)
OVER_BITS = Lines(
    stem="noise",
    title=TABLE.partition("\n")[0],
    below=f"success on preset {PRESET}, n={{{{ rows | map(attribute='episodes') | max | thousands }}}} a point; "
    "bars: 95 % intervals",
    x="bits",
    x_label="bits",
    line="noise",
    labels=lambda rows: {m: (f"noise {m:g} m", n) for n, m in enumerate(sorted({row["noise"] for row in rows}))},
    y=SUCCESS,
    rows=lambda results: [{**row, "bits": row["bits"] or "float"} for row in results.summary],
    scale=share_scale,
)
EXPERIMENT = of_bundles(
    count=lambda subject: 400,
    name="noise",
    question="does a noisy rangefinder forgive few bits of the observation?",
    factors=("noise", "bits"),
    within=("noise",),
    subjects=("I", "II"),
    options=options,
    grid=grid,
    measure=measure,
    tables=[BITS_UNDER_NOISE],
    figures=[OVER_BITS],
)
