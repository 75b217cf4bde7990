"""Width of the weights against the error of quantization: by hand, and what the words may claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from quarl.bench import command_line
from quarl.bench.report.intervals import Correlation
from quarl.bench.study import cells, sweep, width
from quarl.bench.study.experiment import Results
from quarl.bench.study.records import Record
from quarl.bench.study.width import DEVICE, QUARL_8, Point, compare_pairs, correlations, points
from quarl.bench.tables import Table, to_markdown
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, ObservationField, PolicySpec
from quarl.train.intervals import Estimate


def point(name: str, span: float, percent: float, half: float = 0.5, task: str = "", source: str = DEVICE) -> Point:
    error = Estimate(percent, percent - half, percent + half)
    return Point(name, task or name, 100, -span / 2, span / 2, span**0.5 / 8, {source: error})


def table_of(found: list[Point]) -> Table:
    (table,) = width.errors_table(found)
    return table


def test_width_counts_the_weights_of_all_layers_and_no_biases(tmp_path: Path) -> None:
    spec = PolicySpec(
        "x-dqn", (ObservationField("x", (2,), "m"),), Normaliser((0.0,), (1.0,)), NetworkSpec((1,)),
        DiscreteHead(("left", "right")), 0.1, EnvironmentSpec("X-v0"), provenance={"task": "X-v0", "algorithm": "dqn"},
    )  # fmt: skip
    weights = {
        "dense_0/kernel": np.array([[-1.0], [1.0]], np.float32),
        "dense_0/bias": np.array([50.0], np.float32),
        "head/kernel": np.array([[1.0, 3.0]], np.float32),
        "head/bias": np.array([-50.0, 0.0], np.float32),
    }
    observations = np.eye(2, dtype=np.float32)
    counted = Point.of(write_bundle(tmp_path / "x-dqn", spec, weights, observations, observations), {})
    # −1, 1, 1, 3: mean 1, deviation √((4 + 0 + 0 + 4) / 4) = √2
    assert (counted.weights, counted.low, counted.high) == (4, -1.0, 3.0)
    assert (counted.range, counted.deviation, counted.ratio) == pytest.approx((4.0, 2**0.5, 4 / 2**0.5))
    assert (counted.name, counted.task) == ("x-dqn", "X-v0")


def test_words_claim_no_more_than_the_interval() -> None:
    assert width.verdict(Correlation(0.6, 0.1, 0.9, 12)) == "wider weights go with larger errors"
    assert "do not decide" in width.verdict(Correlation(0.6, -0.01, 0.9, 12))
    assert "against the paper" in width.verdict(Correlation(-0.6, -0.9, -0.1, 12))


def test_findings_in_words() -> None:
    rising = [point(f"task{i}-dqn", 1.0 + i, 2.0 * i) for i in range(9)]
    notes = " ".join(table_of(rising).notes)
    assert "9 policies, of which 8 have an error that differs from 0" in notes, "the first is 0 ± 0.5"
    assert "range of the weights: 1.00 [1.00, 1.00] (n=9" in notes and "wider weights go with larger errors" in notes
    assert "Of 2 intervals of 95 %" in notes and "up to 10 % of such tables" in notes  # 1 − 0.95² = 0.0975
    assert "that of int8 artifact with the range of the weights" in notes
    few = " ".join(table_of(rising[:3]).notes)
    assert "nothing can be correlated" in few and "Spearman" not in few and "by chance" not in few
    alike = [point(f"task{i}-dqn", 1.0 + i, 0.0, 0.0) for i in range(9)]
    assert correlations(alike, DEVICE) == {}


def test_policies_of_one_task_are_compared_beyond_their_intervals() -> None:
    # wide 5 ± 0.5 over narrow 1 ± 0.5: agrees; the third, widest, 1.2 ± 0.5: against the first, undecided to the other
    found = [
        point("a-dqn", 3.0, 5.0, task="a"),
        point("a-ppo", 1.0, 1.0, task="a"),
        point("a-a2c", 9.0, 1.2, task="a"),
        point("b-ppo", 2.0, 0.0, task="b"),
    ]
    assert compare_pairs(found, DEVICE) == (1, 1, ["a"] * 3)
    assert "task: 3 (a); the wider one" in " ".join(table_of(found).notes)
    assert compare_pairs(found[2:], DEVICE) == (0, 0, [])


def test_table_has_both_sources_and_says_what_is_missing() -> None:
    device = [point(f"task{i}-dqn", 1.0 + i, -2.0 * i) for i in range(8)]
    text = to_markdown(table_of([*device, point("II-ppo", 20.0, 0.25, source=QUARL_8)]))
    assert "| task1-dqn | 100 | −1.00 … 1.00 | 2.00 | 0.177 | 11.3 | −2.00 [−2.50, −1.50] | – |" in text
    assert "| II-ppo |" in text and "| – | 0.25 [−0.25, 0.75] |" in text
    assert "against the paper's claim" in text and "no cause" in text


def test_errors_are_those_of_the_sweep_of_weights_alone(swept: Callable[..., list[Record]]) -> None:
    bundles = [Bundle.load(path.parent) for path in sorted(ZOO.glob("benchmark/*/manifest.json"))][:9]
    alone = [({**sweep.PAPERS, "bits": bits}, 450.0) for bits in (4, 8)]
    conditions = [({}, 500.0), *alone, ({"scheme": "quarl", "bits": 8}, 1.0)]
    rows = [row for bundle in bundles for row in swept(bundle.spec.name, conditions=conditions)]
    found = points(bundles, Results(cells.EXPERIMENT, []), Results(sweep.EXPERIMENT, rows))
    assert [sorted(each.errors) for each in found] == [["QuaRL's 4 bits", "QuaRL's 8 bits"]] * 9
    assert {round(error.value, 9) for each in found for error in each.errors.values()} == {10.0}
    assert [each.range for each in found] == sorted(each.range for each in found)
    with pytest.raises(command_line.BenchError, match="evaluated"):  # of seven policies nothing can be correlated
        points(bundles[:7], Results(cells.EXPERIMENT, []), Results(sweep.EXPERIMENT, rows))


def test_pictures_name_every_policy(texts: Callable[[Figure], list[str]]) -> None:
    found = [point(f"task{i}-dqn", 1.0 + i, i) for i in range(8)]
    found.append(point("mountaincarcontinuous-ddpg", 20.0, 0.25, source=QUARL_8))
    drawn = width.pictures(found)
    assert list(drawn) == ["width-and-error", "width-and-error-deviations"]
    for figure in drawn.values():
        notes = texts(figure)
        assert {each.name for each in found} <= set(notes)
        assert any("n=8   Spearman's ρ = 1.00 [1.00, 1.00]" in text for text in notes)
