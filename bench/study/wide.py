"""Do layer normalisation, weight decay or weight clipping narrow the weights, and do policies then take fewer bits?

    python -m bench.study wide --keep                        six cells, six variants, three seeds: 108 trainings
    python -m bench.study wide cartpole-dqn --variants plain,clip-2 --seeds 0
    python -m bench.study wide --stored --update-docs        fills docs/wide-weights.md, draws its picture

For every cell and seed a policy is trained plainly and with each means, all else equal: settings file, seed, steps.
Each is then quantized after training, by QuaRL's quantizer (weights only) and as devices do (symmetric, one scale an
output channel, activations of 8 bits), and all fly the same episodes as its floats. Intervals are about trainings; over
cells a means is counted once a cell, by the mean of its trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import command_line
from bench.report.tables import Table
from bench.study import trainings
from bench.study.experiment import Episodes, Experiment, Played, Results
from bench.study.records import Condition
from bench.study.trainings import Cell, flown, origin, trained
from policy.network import layer_names
from policy.quantization import Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    from policy.bundle import Bundle

# Of the cells that train in seconds, those whose committed policies lose most to QuaRL's quantizer at four bits or at
# three (python -m bench.study sweep CELL --weights-only).
CELLS = {
    "acrobot-dqn": Cell("Acrobot-v1", "dqn"),
    "pendulum-ddpg": Cell("Pendulum-v1", "ddpg"),
    "pendulum-ppo": Cell("Pendulum-v1", "ppo"),
    "mountaincar-dqn": Cell("MountainCar-v0", "dqn"),
    "cartpole-dqn": Cell("CartPole-v1", "dqn"),
    "cartpole-a2c": Cell("CartPole-v1", "a2c"),
}
# Strengths were chosen before anything was measured, the same for all cells: in these trainings the steps' sizes add up
# to 0.4 (A2C) … 11 (Acrobot), so that λ = 0.1 takes 4 … 66 % of a weight that nothing renews, and λ = 1 32 % … all of
# it; the orthogonal draw of a layer of 64 has a deviation of 1.4 / √64, so that κ = 4 cuts few weights and κ = 2 many.
VARIANTS: dict[str, Condition] = {
    "plain": {},
    "layer-norm": {"layer_norm": True},
    "decay-0.1": {"weight_decay": 0.1},
    "decay-1": {"weight_decay": 1},
    "clip-4": {"weight_clip": 4},
    "clip-2": {"weight_clip": 2},
}
LABELS = {
    "plain": "plain",
    "layer-norm": "layer normalisation",
    "decay-0.1": "weight decay 0.1",
    "decay-1": "weight decay 1",
    "clip-4": "weight clipping 4",
    "clip-2": "weight clipping 2",
}
MEANS = [name for name in VARIANTS if name != "plain"]
QUARL, SYMMETRIC = Scheme.QUARL.value, Scheme.SYMMETRIC.value
SCHEMES = {QUARL: "QuaRL's", SYMMETRIC: "symmetric"}
STYLES = {QUARL: 1, SYMMETRIC: 3}  # those of sweeps
BITS = (8, 6, 4, 3, 2)
DEVICE_ACTIVATION_BITS = 8
SEEDS, EPISODES = (0, 1, 2), 100
PURPOSE = "study of wide weights"  # of the flown episodes


def options(parser: argparse.ArgumentParser) -> None:
    """--variants."""
    parser.add_argument(
        "--variants", type=read_variants, metavar="NAME", help=f"several with , (default: {', '.join(VARIANTS)})"
    )


def read_variants(text: str) -> list[str]:
    """``plain,clip-2`` as names of variants."""
    names = list(dict.fromkeys(command_line.words(text)))
    if unknown := [name for name in names if name not in VARIANTS]:
        raise argparse.ArgumentTypeError(f"there is no variant {unknown[0]!r}; there are {', '.join(VARIANTS)}")
    return names


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Each variant in floats, and quantized both ways to each width."""
    found = []
    for name in arguments.variants or VARIANTS:
        found += [VARIANTS[name], *(quantized(name, scheme, bits) for scheme in SCHEMES for bits in BITS)]
    return found


def quantized(variant: str, scheme: str, bits: int) -> Condition:
    """A variant after quantization."""
    return {**VARIANTS[variant], "scheme": scheme, "bits": bits}


def identity(subject: str) -> str:
    """Of a cell: what its trainings share; what they differ in are conditions."""
    trainings.about(subject, CELLS)
    return trainings.identity(CELLS[subject])


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """Trains what is not there, and flies it."""
    words = ["--layer-norm"] if asked.get("layer_norm") else []
    for name in ("weight_decay", "weight_clip"):
        words += ["--set", f"{name}={asked[name]}"] if name in asked else []
    widths = None
    if "bits" in asked:
        activations = DEVICE_ACTIVATION_BITS if asked["scheme"] == SYMMETRIC else None
        widths = Widths(Scheme(asked["scheme"]), asked["bits"], activations)
    for seed in episodes.seeds:
        bundle = trained(CELLS[subject], seed, *words)
        measures = {} if widths else {**origin(bundle), **width_of(bundle)}
        yield from flown(bundle, widths, episodes.count, PURPOSE, measures)


def width_of(bundle: Bundle) -> dict[str, Any]:
    """How wide the weights are, biases left out.

    Measures: ``range`` and ``std`` of all layers together; ``layers``, each layer's range in its own standard
    deviations, and ``ratio``, their mean: 2ⁿ levels over the range leave a step of ratio / 2ⁿ deviations.
    """
    weights = bundle.weights()
    kernels = {layer: weights[f"{layer}/kernel"].ravel().astype(np.float64) for layer in layer_names(bundle.spec)}
    every = np.concatenate(list(kernels.values()))
    layers = {layer: float(np.ptp(kernel) / kernel.std()) for layer, kernel in kernels.items()}
    return {
        "range": float(np.ptp(every)),
        "std": float(every.std()),
        "ratio": fmean(layers.values()),
        "layers": layers,
    }


def tables(results: Results) -> list[Table]:
    return []


EXPERIMENT = Experiment(
    name="wide",
    question="do narrower weights quantize better?",
    factors=("layer_norm", "weight_decay", "weight_clip", "scheme", "bits"),
    subjects=tuple(CELLS),
    grid=grid,
    measure=measure,
    identity=identity,
    episodes=lambda arguments, subject: Episodes(arguments.seeds or SEEDS, arguments.episodes or EPISODES),
    tables=tables,
    about=lambda subject: trainings.about(subject, CELLS),
    options=options,
    within=("layer_norm", "weight_decay", "weight_clip"),
    of_trainings=True,
)
