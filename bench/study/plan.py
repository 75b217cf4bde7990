"""Which commands the quantization study consists of: the whole one, and the quick one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAVIGATION = ("I", "II", "III")
SCHEMES = (["--scheme", "quarl"], ["--scheme", "quarl", "--weights-only"], ["--scheme", "quarl-released"],
           ["--scheme", "symmetric"])  # fmt: skip
WEIGHTS_ONLY = ["--scheme", "quarl", "--weights-only"]
SLOW = ("box2d", "pybullet", "mujoco", "dm_control")
"""Suites whose simulators make a sweep of all widths take an hour: fewer widths and episodes."""
ATARI = "atari"
QUICK_EPISODES = {ATARI: "4", **dict.fromkeys(SLOW, "10")}  # of the quick study; of the others 100
CARTPOLE = [f"zoo/benchmark/cartpole-{method}" for method in ("dqn", "ppo", "a2c")]
PICTURES = (
    ["bench.study", "cells", "--stored", "--update-docs"],
    ["bench.study", "sweep-plot"],
    ["bench.study", "qat", "--stored", "--update-docs"],
    ["bench.study", "width", "--keep", "--update-docs"],
    ["bench.study", "weights", "--beside", *CARTPOLE, "-b", "4", "--output-path", "docs/figures/weights"],
    ["bench.study", "apart", "--stored", "--update-docs"],
    ["bench.study", "layers", "--stored", "--update-docs"],
    ["bench.study", "budgets", "--stored", "--update-docs"],
    ["bench.study", "wide", "--stored", "--update-docs"],
)


@dataclass(frozen=True)
class Step:
    """One command of the project's Python: what follows ``python``."""

    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """As it is typed."""
        return shlex.join(["python", *self.words])


def module(*words: object) -> Step:
    """``python -m …``."""
    return Step(("-m", *map(str, words)))


def benchmark_bundles(root: Path) -> dict[str, str]:
    """The suite of every bundle of zoo/benchmark, by name."""
    from policy.bundle import Bundle
    from train.suites.names import resolve

    folders = sorted(path.parent for path in (root / "zoo" / "benchmark").glob("[!.]*/manifest.json"))
    return {folder.name: resolve(str(Bundle.load(folder).spec.provenance["task"])).suite.value for folder in folders}


@dataclass(frozen=True)
class Plan:
    """What is measured, in any order and beside each other, and then what is drawn of it, one after the other."""

    measured: tuple[Step, ...]
    drawn: tuple[Step, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return (*self.measured, *self.drawn)


def full_plan(root: Path, update_docs: bool = False) -> Plan:
    """The whole study; the pictures and pages of docs/ are made where that is asked for."""
    suites = benchmark_bundles(root)
    measured = [Step(("bench/success.py", "--policy", ",".join(NAVIGATION), "--precision", "fp32,fp16,int8"))]
    # The longest first: the last ones fill the gaps.
    for name in sorted(suites, key=lambda name: (suites[name] != ATARI, suites[name] not in SLOW)):
        measured += [module("bench.study", "cells", "--only", name)]
        measured += [
            module("bench.study", "sweep", f"zoo/benchmark/{name}", *words, "--keep") for words in _sweeps(suites[name])
        ]
    for name in NAVIGATION:
        measured += [module("bench.study", "sweep", f"zoo/{name}", *scheme, "--keep") for scheme in SCHEMES]
    return Plan(tuple(measured), tuple(module(*words) for words in PICTURES) if update_docs else ())


def _sweeps(suite: str) -> Iterator[list[str]]:
    """The sweeps of a benchmark policy of this suite."""
    if suite == ATARI:
        yield [*WEIGHTS_ONLY, "--bits", "2-8", "--seeds", "0", "--episodes", "20"]
    elif suite in SLOW:
        for scheme in (WEIGHTS_ONLY, ["--scheme", "symmetric"]):
            yield [*scheme, "--bits", "2-8", "--episodes", "20"]
    else:
        yield from SCHEMES


def quick_plan(root: Path, folder: Path) -> Plan:
    """The same tables in minutes: few episodes, and sweeps of the paper's quantizer at 8, 4 and 2 bits.

    Args:
        root: of the checkout.
        folder: for the answers, relative to it.
    """
    measured = []
    suites = benchmark_bundles(root)
    for name in sorted(suites, key=lambda name: (suites[name] != ATARI, suites[name] not in SLOW)):
        few = ["--episodes", QUICK_EPISODES.get(suites[name], "100")]
        measured.append(module("bench.study", "cells", "--only", name, *few, "--answers", folder / "cells.json"))
        if suites[name] != ATARI:
            at = ["--seeds", "0", "--bits", "2,4,8", "--output", folder / f"sweep-{name}.json"]
            measured.append(module("bench.study", "sweep", f"zoo/benchmark/{name}", *WEIGHTS_ONLY, *few, *at))
    drawn = module("bench.study", "sweep-plot", "--study", folder, "--output", folder / "pictures")
    return Plan(tuple(measured), (drawn,))
