"""Does a noisy rangefinder forgive few bits of the observation, or need more of them?

    python -m bench.study noise I --bits 5,4 --noise 0,1 --episodes 200
    python -m bench.study noise --keep                       measures what is not kept yet of I and II
    python -m bench.study noise --stored --update-docs       fills docs/layers.md, draws the picture

Only the normalised observation is quantized, to n bits over the range that calibration saw; the policy stays float. All
widths fly the same episodes of preset hard under the same noise of the rays.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import facets, panels_of, share_scale
from bench.report.tables import Table
from bench.report.text import estimate, filled
from bench.study.experiment import SUCCESS, SUCCESS_LOST, Episodes, Played, Results
from bench.study.flying import of_bundles, open_perceptron, quantized
from bench.study.records import Condition
from policy.quantization import FLOAT_BITS, Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BITS, NOISE, PRESET, BATCH = (8, 6, 5, 4, 3), (0.0, 0.5, 1.0, 2.0), "hard", 128

NOTES = """\
Float: % success on preset {{ preset }}, n={{ episodes }} for each number, with Wilson's 95 % interval. Bits: points \
more than with the float observation on the same episodes under the same noise, Newcombe's paired 95 % interval.
Noise: standard deviation of each ray's error, in metres of a range of 20; the policies were trained without any. Only \
the observation is quantized, simulated in float.
{{ measured }}
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--bits, --noise."""
    parser.add_argument("--bits", type=command_line.bits(2, 16), default=BITS, help="of the observation")
    parser.add_argument("--noise", type=command_line.numbers, default=NOISE, metavar="0,0.5", help="of a ray, metres")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Under each noise the float observation, and each width."""
    return [{"noise": m, **({"bits": n} if n else {})} for m in arguments.noise for n in (None, *arguments.bits)]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """Fly with this noise of the rays and this width of the observation."""
    from airlearning_envs.config import preset
    from airlearning_envs.flights import fly

    bundle, _ = open_perceptron(subject)
    widths = Widths(Scheme.SYMMETRIC, FLOAT_BITS, None, asked["bits"]) if "bits" in asked else None
    decide, measures = quantized(bundle, widths)
    config = preset(PRESET).with_settings({"range_noise_m": asked["noise"]})
    for seed in episodes.seeds:
        flown = fly(config, decide, episodes.count, seed, BATCH)
        yield Played(PRESET, seed, flown.episode_return.tolist(), flown.success.tolist(), measures)


def tables(results: Results) -> list[Table]:
    """Success at each width, a column for each noise, and what it loses to the float observation."""
    summary = results.summary
    noises = sorted(summary.noise.unique())
    rows: list[tuple[str, ...]] = []
    for (subject, bits), group in summary.fillna({"bits": FLOAT_BITS}).groupby(["subject", "bits"], sort=False):
        word, what, sign = ("float", SUCCESS, "") if bits == FLOAT_BITS else (f"{bits:g} bits", SUCCESS_LOST, "+")
        found = dict(zip(group.noise, group[what], strict=True))
        rows.append((subject, word, *(estimate(found.get(m), 100.0, sign) for m in noises)))
    notes = filled(NOTES, preset=PRESET, episodes=f"{max(summary.episodes):,}", measured=results.measured)
    headers = ("policy", "observation", *(f"noise {m:g} m" for m in noises))
    return [Table("noise", "Bits of the observation under a noisy rangefinder", headers, tuple(rows), notes, left=2)]


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each policy, success against bits, a line for each noise."""
    summary = results.summary.fillna({"bits": "float"})
    panels = panels_of(summary, "subject", "noise", "bits", SUCCESS, "noise {:g} m")
    places, title = list(dict.fromkeys(summary.bits)), "Bits of the observation under a noisy rangefinder"
    said = f"success on preset {PRESET}, n={max(summary.episodes):,} a point; bars: 95 % intervals"
    return {"noise": facets(panels, places, title=title, said=said, x_label="bits", scale=share_scale)}


EXPERIMENT = of_bundles(
    count=lambda subject: 400,
    name="noise",
    question="does a noisy rangefinder forgive few bits of the observation?",
    factors=("noise", "bits"),
    within=("noise",),
    subjects=("I", "II"),
    grid=grid,
    measure=measure,
    tables=tables,
    figures=figures,
    options=options,
)
