"""The trainings of the study of wide weights: cells, the means that are tried, and what is typed for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.study.qat.training import bundle_of, settings_hash, typed

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from train.runs.request import RunRequest

__all__ = ["CELLS", "PLAIN", "VARIANTS", "Cell", "Variant", "request_of", "settings_hash", "trained"]


@dataclass(frozen=True)
class Cell:
    """A method on a task, with the settings file's network and steps.

    Attributes:
        name: of the cell.
        task, method: as they are typed for training.
        steps: of every training; None for the settings file's.
    """

    name: str
    task: str
    method: str
    steps: int | None = None


@dataclass(frozen=True)
class Variant:
    """A means against wide weights.

    Attributes:
        name: as it is typed and stored.
        words: what is added to the training's command line.
        label: in words.
    """

    name: str
    words: tuple[str, ...]
    label: str


# Of the cells that train in seconds, those whose committed policies lose most to QuaRL's quantizer at four bits or at
# three (python -m bench.study sweep CELL --weights-only): 497, 289, 151, 100, 64 and, at three, 81 % of the return.
CELLS = (
    Cell("acrobot-dqn", "Acrobot-v1", "dqn"),
    Cell("pendulum-ddpg", "Pendulum-v1", "ddpg"),
    Cell("pendulum-ppo", "Pendulum-v1", "ppo"),
    Cell("mountaincar-dqn", "MountainCar-v0", "dqn"),
    Cell("cartpole-dqn", "CartPole-v1", "dqn"),
    Cell("cartpole-a2c", "CartPole-v1", "a2c"),
)
# Strengths were chosen before anything was measured, the same for all cells: in these trainings the steps' sizes add up
# to 0.4 (A2C) … 11 (Acrobot), so that λ = 0.1 takes 4 … 66 % of a weight that nothing renews, and λ = 1 32 % … all of
# it; the orthogonal draw of a layer of 64 has a deviation of 1.4 / √64, so that κ = 4 cuts few weights and κ = 2 many.
VARIANTS = (
    Variant("plain", (), "plain"),
    Variant("layer-norm", ("--layer-norm",), "layer normalisation"),
    Variant("decay-0.1", ("--set", "weight_decay=0.1"), "weight decay 0.1"),
    Variant("decay-1", ("--set", "weight_decay=1"), "weight decay 1"),
    Variant("clip-4", ("--set", "weight_clip=4"), "weight clipping 4"),
    Variant("clip-2", ("--set", "weight_clip=2"), "weight clipping 2"),
)
PLAIN = VARIANTS[0]


def words_of(cell: Cell, variant: Variant, seed: int, scratch: Path) -> list[str]:
    """What is typed after ``python -m train``."""
    words = ["--task", cell.task, "--method", cell.method, "--seed", str(seed), "--quiet", "--final-episodes", "1"]
    words += ["--steps", str(cell.steps)] if cell.steps else []
    return [*words, *variant.words, "--output-path", str(scratch / f"{cell.name}-{variant.name}-seed{seed}")]


def request_of(cell: Cell, variant: Variant, seed: int, scratch: Path) -> RunRequest:
    """What that training would be, without starting it."""
    return typed(words_of(cell, variant, seed, scratch))


def trained(cell: Cell, variant: Variant, seed: int, scratch: Path, reuse: bool) -> Bundle:
    """The bundle of a training: one that is there already where that is allowed, else trained now.

    Raises:
        BenchError: training failed.
    """
    return bundle_of(words_of(cell, variant, seed, scratch), reuse)
