"""Width of the weights against the error of int8: by hand, and what the words may claim."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bench.report.intervals import Correlation
from bench.report.tables import filled, pages, to_markdown
from bench.study.width import command as command
from bench.study.width.command import error_words, notes, table
from bench.study.width.figure import save_figure, width_figure
from bench.study.width.points import DEVICE, QUARL_8, Error, Point, Width, correlations, read, study_errors
from policy.bundle_writer import write_bundle
from policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, ObservationField, PolicySpec

ROOT = Path(__file__).resolve().parents[3]


def point(name: str, width: float, percent: float, half: float = 0.5, task: str = "", source: str = DEVICE) -> Point:
    made = Width(name, task or name, name.rpartition("-")[2], 100, -width / 2, width / 2, width**0.5 / 8)
    return Point(made, {source: Error(percent, percent - half, percent + half, 100)})


def test_error_by_hand() -> None:
    # fp32 earns 100 on average, int8 98: 2 %; d = (3, 1), R = 0.02, d − R f = (3 − 2.2, 1 − 1.8) = (0.8, −0.8):
    # s = √1.28, half the interval 100 · 12.7062 · √1.28 / √2 / 100 = 10.165
    found = Error.of([107.0, 89.0], [110.0, 90.0])
    assert found is not None
    assert (found.percent, found.low, found.high) == pytest.approx((2.0, 2.0 - 10.16496379, 2.0 + 10.16496379))
    assert not found.is_seen and found.episodes == 2
    # of a negative return: int8 loses 1 of −100
    worse = Error.of([-102.0, -100.0], [-101.0, -99.0])
    assert worse is not None and worse.percent == pytest.approx(1.0)
    same = Error.of([500.0, 500.0], [500.0, 500.0])
    assert same is not None and error_words(same) == "0" and not same.is_seen
    assert Error.of([1.0, -1.0], [1.0, -1.0]) is None, "0 has no fractions"


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
    width = Width.of(write_bundle(tmp_path / "x-dqn", spec, weights, observations, observations))
    # −1, 1, 1, 3: mean 1, deviation √((4 + 0 + 0 + 4) / 4) = √2
    assert (width.weights, width.low, width.high) == (4, -1.0, 3.0)
    assert (width.range, width.deviation, width.ratio) == pytest.approx((4.0, 2**0.5, 4 / 2**0.5))
    assert (width.task, width.method) == ("X-v0", "dqn")


def test_words_claim_no_more_than_the_interval() -> None:
    assert command.verdict(Correlation(0.6, 0.1, 0.9, 12)) == "wider weights go with larger errors"
    assert "do not decide" in command.verdict(Correlation(0.6, -0.01, 0.9, 12))
    assert "against the paper" in command.verdict(Correlation(-0.6, -0.9, -0.1, 12))


def test_findings_in_words() -> None:
    rising = [point(f"task{i}-dqn", 1.0 + i, 2.0 * i) for i in range(9)]
    said = " ".join(notes(rising))
    assert "9 policies, of which 8 have an error that differs from 0" in said, "the first is 0 ± 0.5"
    assert "range of the weights: 1.00 [1.00, 1.00] (n=9" in said and "wider weights go with larger errors" in said
    few = " ".join(notes(rising[:3]))
    assert "nothing can be correlated" in few and "Spearman" not in few
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
    (said,) = command.within_tasks(found, DEVICE)
    assert "task: 3 (a)" in said and "in 1, the smaller one in 1, and nothing is decided in 1." in said
    assert command.within_tasks(found[2:], DEVICE) == []


def test_table_has_both_sources_and_says_what_is_missing() -> None:
    device = [point(f"task{i}-dqn", 1.0 + i, -2.0 * i) for i in range(8)]
    both = [*device, point("II-ppo", 20.0, 0.25, source=QUARL_8)]
    text = to_markdown(table(both))
    assert "| 2 | task1-dqn | 100 | −1.00 … 1.00 | 2.00 | 0.177 | 11.3 | −2.00 [−2.50, −1.50] | – |" in text
    assert "| 9 | II-ppo |" in text and "| – | 0.25 [−0.25, 0.75] |" in text
    assert "against the paper's claim" in text and "no cause" in text
    assert "Of 2 intervals of 95 %" in text and "up to 10 % of such tables" in text  # 1 − 0.95² = 0.0975


def test_errors_of_kept_sweeps(tmp_path: Path) -> None:
    from bench.measuring.execution import Execution
    from bench.report.intervals import Estimate
    from bench.study.sweep.store import Change, Outcome, Sweep, write_sweep
    from bench.study.sweep.store import Width as SweptWidth
    from policy.quantization import Scheme

    def change(preset: str, percent: float) -> Change:
        return Change(preset, Estimate(-1.0, -2.0, 0.0), Estimate(percent, percent - 1, percent + 1), None)

    execution = Execution(None, None, False, "simulated", "simulated")
    widths = tuple(
        SweptWidth(name, int(name), int(name), 8, 0.0, execution, (), (change("shipped", 9.0), change("hard", percent)))
        for name, percent in (("4", 7.0), ("8", 0.5))
    )
    reference = tuple(Outcome(preset, 30, Estimate(10.0, 9.0, 11.0), None) for preset in ("shipped", "hard"))
    made = Sweep(
        bundle="II", task="navigation", algorithm="ppo", weights_sha256="abc", scheme=Scheme.QUARL, variant="weights",
        seeds=(0, 2, 4), episodes=10, observations=16, seconds=1.0, cpu_seconds=1.0, machine="", code="", date="",
        reference=reference, widths=widths,
    )  # fmt: skip
    write_sweep(made, tmp_path)
    for other in ({"variant": ""}, {"scheme": Scheme.SYMMETRIC}):
        write_sweep(dataclasses.replace(made, bundle="I", **other), tmp_path)  # type: ignore[arg-type]
    found = study_errors(tmp_path)
    assert found == {
        "quarl-8": {("II", "abc"): Error(0.5, -0.5, 1.5, 30)},
        "quarl-4": {("II", "abc"): Error(7.0, 6.0, 8.0, 30)},
    }
    assert study_errors(tmp_path / "none") == {"quarl-8": {}, "quarl-4": {}}


@pytest.mark.slow
def test_picture_has_a_row_for_each_source_and_every_number(tmp_path: Path) -> None:
    found = [
        point(f"task{i}-{m}", 1.0 + i, i)
        for i, m in enumerate(("dqn", "ppo", "a2c", "ddpg", "d4pg", "new", "dqn", "ppo"))
    ]
    found.append(point("II-ppo", 20.0, 0.25, source=QUARL_8))
    figure = width_figure(found)
    FigureCanvasAgg(figure).draw()
    assert len(figure.axes) == 4
    numbers = {word for axes in figure.axes for text in axes.texts for word in text.get_text().split(", ")}
    assert {str(number) for number in range(1, 10)} <= numbers
    assert any("ρ = 1.00" in text.get_text() for text in figure.axes[0].texts)
    assert any(text.get_text() == "n=1" for text in figure.axes[2].texts)
    legend = figure.legends[0]
    assert {text.get_text() for text in legend.get_texts()} == {"DQN", "PPO", "A2C", "DDPG", "D4PG", "NEW"}
    assert "9  II-ppo" in legend.get_title().get_text()
    first = [file.read_bytes() for file in save_figure(found, tmp_path)]
    assert [file.read_bytes() for file in save_figure(found, tmp_path)] == first


def test_close_points_share_a_label() -> None:
    found = [point(f"task{i}-dqn", width, 0.0) for i, width in enumerate((1.0, 1.01, 30.0, 30.1, 100.0))]
    texts = {text.get_text() for text in width_figure(found).axes[0].texts}
    assert {"1, 2", "3, 4", "5"} <= texts


def test_command_keeps_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [point(f"task{i}-dqn", 1.0 + i, 2.0 * i) for i in range(8)]
    monkeypatch.setattr(command, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(command, "measure", lambda: found)
    assert command.main(["--stored"]) == 1
    assert "--keep" in capsys.readouterr().err
    assert command.main(["--keep", "--json", "--output-path", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["correlations"]["device"]["range"]["rho"] == pytest.approx(1.0)
    assert read(tmp_path / "kept.json") == found
    assert (tmp_path / "width-and-error.svg").exists()
    assert command.main(["--stored", "--markdown"]) == 0
    assert "task4-dqn" in capsys.readouterr().out


def test_the_committed_page_is_that_of_the_kept_measurements() -> None:
    made = table(read(command.KEPT))
    for page in (path.read_text(encoding="utf-8") for path in pages()):
        assert filled(page, [made]) == page, "type: python -m bench.study width --stored --update-docs"
