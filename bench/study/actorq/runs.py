"""Runs of ``python -m train.actorq`` as a user types them: their plans, and what their bundles say of them."""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.command_line import BenchError
from bench.measuring.children import last_words, run_to_end
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from train.actorq.plan import Plan

NAMES = {32: "fp32", 16: "fp16", 8: "int8"}
CARTPOLE_BALANCE = "dm_control,cartpole_balance"
CURVE = "learning_curve.csv"
SKIPPED_ROUNDS = 2  # the first is compiled
LONGEST_S = 1800.0


@dataclass(frozen=True)
class Run:
    """What came of one run.

    Attributes:
        provenance: of its bundle.
        curve: rows of its learning curve, as numbers; an empty field is left out.
        wall_s, cpu_s: of the whole command, and of all its processes but Ray's own.
    """

    provenance: Mapping[str, Any]
    curve: Sequence[Mapping[str, float]]
    wall_s: float
    cpu_s: float

    @property
    def told(self) -> Mapping[str, Any]:
        """What the distributed part of it said."""
        found: Mapping[str, Any] = self.provenance["actorq"]
        return found

    @property
    def rates(self) -> dict[str, float]:
        """See :func:`rates_of`."""
        return rates_of(self.curve, int(self.provenance["settings"]["updates"]))


def run(words: Sequence[str]) -> Run:
    """Do one run; its bundle is read and thrown away.

    Args:
        words: what is typed after ``python -m train.actorq``, without ``--output-path``.

    Raises:
        BenchError: it failed, with its last words, or took too long.
    """
    from policy.bundle import Bundle
    from train.actorq import VARIABLES

    typed = f"python -m train.actorq {' '.join(words)}"
    with tempfile.TemporaryDirectory() as temporary:
        bundle = Path(temporary) / "bundle"
        command = [sys.executable, "-m", "train.actorq", *words, "--quiet", "--output-path", str(bundle)]
        began = time.monotonic()
        try:
            done = run_to_end(
                command, folder=PROJECT_ROOT, environment={**os.environ, **VARIABLES}, timeout_s=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{typed} took more than {LONGEST_S:g} s.") from None
        wall_s = time.monotonic() - began
        if done.returncode:
            raise BenchError(f"{typed} ended with {done.returncode}:\n{last_words(done)}")
        provenance = Bundle.load(bundle).spec.provenance
        curve = read_curve((bundle / CURVE).read_text(encoding="utf-8"))
    cpu_s = float(provenance["cpu_s"]) + sum(provenance["actorq"]["cpu_s"].values())
    return Run(provenance, curve, wall_s, cpu_s)


def read_curve(text: str) -> list[dict[str, float]]:
    """Rows of a learning curve's file."""
    return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(text.splitlines())]


def rates_of(curve: Sequence[Mapping[str, float]], updates: int) -> dict[str, float]:
    """Steps and updates per second of a learning curve, between the compiled rounds and the last row but one.

    The last row is written after the policy was judged, which belongs to no actor.

    Args:
        curve: with ``step``, ``updates`` and ``wall_s``.
        updates: of one of the learner's rounds.

    Returns:
        ``steps_per_s``, ``updates_per_s`` and the ``seconds`` that they were counted over.

    Raises:
        BenchError: there are not two such rows.
    """
    counted = [row for row in curve[:-1] if row["updates"] >= SKIPPED_ROUNDS * updates]
    if len(counted) < 2:
        raise BenchError("a run was over too soon to be measured.")
    steps, made, seconds = (counted[-1][name] - counted[0][name] for name in ("step", "updates", "wall_s"))
    return {"steps_per_s": steps / seconds, "updates_per_s": made / seconds, "seconds": seconds}


def planned(words: Sequence[str]) -> Plan:
    """The plan that a command would make, for measuring its parts without it."""
    from train.actorq.__main__ import parser
    from train.actorq.plan import make_plan

    with redirect_stdout(StringIO()):
        return make_plan(parser().parse_args([*words, "--quiet"]))


def amdahl(share: float, faster: float) -> float:
    """How many times as fast the whole becomes if a share of it becomes so many times as fast."""
    return 1.0 / (1.0 - share + share / faster)


def spread(values: Sequence[float]) -> str:
    """Median, smallest and largest of ratios: ``2.10× [2.02, 2.31]``."""
    return f"{statistics.median(values):.2f}× [{min(values):.2f}, {max(values):.2f}]"
