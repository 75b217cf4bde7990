"""The levels, ranges and activation table of a policy, with numbers worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from quarl.bench.study import weights
from quarl.bench.study.measures.activations import activation_ranges, range_of, table
from quarl.bench.study.measures.levels import levels_of, parameters, table_of, title_of
from quarl.bench.tables import to_markdown
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import Affine, Scheme
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    WeightRange,
)
from tests.refusals import refused


def make_bundle(path: Path, name: str = "two", method: str = "dqn", hidden: tuple[int, ...] = (2,)) -> Bundle:
    """Two inputs, hidden layers with layer normalisation, two actions."""
    spec = PolicySpec(
        name=name,
        observation=(ObservationField("x", (2,), "m"),),
        normaliser=Normaliser((0.0, 0.0), (1.0, 1.0), 10.0),
        network=NetworkSpec(hidden, layer_norm=True),
        head=DiscreteHead(("left", "right")),
        control_period_s=0.1,
        environment=EnvironmentSpec("Two-v0"),
        provenance={"task": "Two-v0", "algorithm": method},
    )
    tensors = {"head/kernel": np.array([[-1, 0], [1, 3]], np.float32), "head/bias": np.zeros(2, np.float32)}
    for index in range(len(hidden)):
        tensors |= {
            f"dense_{index}/kernel": np.array([[-1, 0], [1, 3]], np.float32),
            f"dense_{index}/bias": np.array([0.5, -0.5], np.float32),
            f"dense_{index}/gamma": np.ones(2, np.float32),
            f"dense_{index}/beta": np.zeros(2, np.float32),
        }
    observations = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    return write_bundle(path / name, spec, tensors, observations, observations[:16])


def test_quarl_levels_by_hand() -> None:
    # δ = (1 + 3) / 2² = 1, z = ⌊1 / 1⌋ = 1: the levels are 1 · (0 … 3 − 1)
    levels = levels_of(np.array([-1.0, 0.25, 3.0], np.float32), 2, Scheme.QUARL, is_kernel=False)
    np.testing.assert_array_equal(levels.positions(), [-1.0, 0.0, 1.0, 2.0])
    assert (levels.count, levels.step, levels.smallest_step) == (4, 1.0, 1.0)
    assert levels.words == "4 levels\nstep 1"


def test_every_quarl_weight_is_one_of_the_levels() -> None:
    from quarl.policy.quantize import quarl

    values = np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    positions = levels_of(values, 3, Scheme.QUARL, is_kernel=True).positions().astype(np.float32)
    assert set(np.unique(quarl(values, 3))) <= set(positions)


def test_symmetric_levels_are_those_of_the_widest_channel() -> None:
    # 3 bits: 2² − 1 = 3 levels on each side; channels reach 1.5 and 6, so the steps are 0.5 and 2
    levels = levels_of(np.array([[1.5, -6.0], [-1.0, 2.0]], np.float32), 3, Scheme.SYMMETRIC, is_kernel=True)
    np.testing.assert_array_equal(levels.positions(), [-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0])
    assert (levels.count, levels.step, levels.smallest_step) == (7, 2.0, 0.5)


def test_scales_that_were_trained_are_kept() -> None:
    # s = 2 · mean |W| / √(2¹ − 1) = 2 · 2.5 = 5 at 2 bits, where the largest weight alone would give 4
    values = np.array([[1.0], [-4.0]], np.float32)
    trained = levels_of(values, 2, Scheme.SYMMETRIC, is_kernel=True, weight_range=WeightRange.MEAN)
    np.testing.assert_array_equal(trained.positions(), [-5.0, 0.0, 5.0])
    assert levels_of(values, 2, Scheme.SYMMETRIC, is_kernel=True).positions()[-1] == 4.0


def test_what_has_no_levels_says_why() -> None:
    values = np.array([-1.0, 3.0], np.float32)
    assert levels_of(values, 8, Scheme.SYMMETRIC, is_kernel=False).words == "int32 on the device"
    assert levels_of(0 * values, 8, Scheme.QUARL, is_kernel=True).words.startswith("all 0")
    assert levels_of(0 * values[:, None], 8, Scheme.SYMMETRIC, is_kernel=True).words.startswith("all 0")
    assert levels_of(values[None] * [0, 1], 2, Scheme.SYMMETRIC, is_kernel=True).smallest_step == 3.0, "not that of 0s"
    assert levels_of(values, 32, Scheme.QUARL, is_kernel=True).words == "float32: no levels"
    with refused(QuantizationError, "bits_out_of_range"):
        levels_of(values, 9, Scheme.SYMMETRIC, is_kernel=True)
    with pytest.raises(QuantizationError, match="quarl and symmetric"):
        levels_of(values, 8, Scheme.QUARL_RELEASED, is_kernel=True)


def test_the_table_has_each_parameter(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    made = table_of(bundle, parameters(bundle, 2, Scheme.QUARL), 2, Scheme.QUARL)
    assert [row[0] for row in made.rows] == [
        "dense_0/kernel", "dense_0/bias", "dense_0/gamma", "dense_0/beta", "head/kernel", "head/bias",
    ]  # fmt: skip
    assert made.title == "two (DQN): 2 bits, quarl"
    # weights −1, 0, 1, 3: mean 0.75, deviation √((1.75² + 0.75² + 0.25² + 2.25²) / 4) = √2.1875
    assert made.rows[0] == ("dense_0/kernel", "4", "−1", "3", "4", "1.47902", "1", "1", "4")
    assert made.rows[1][:5] == ("dense_0/bias", "2", "−0.5", "0.5", "1")
    assert made.rows[3][-3:] == ("–", "–", "–"), "all 0"


def test_activation_range_by_hand() -> None:
    # levels −128 … 127 of step 0.1 around zero: −12.8 … 12.7; what is a step beyond that is clipped
    values = np.array([-13.0, -12.84, 0.0, 12.74, 12.82], np.float32)
    found = range_of("head", values, Affine(0.1, 0))
    assert found.count == 5
    assert found.clipped == pytest.approx(2 / 5)
    assert (found.bottom, found.top) == pytest.approx((-12.8, 12.7))
    assert found.low == pytest.approx(-13.0) and found.high == pytest.approx(12.82)
    assert found.inner_steps == pytest.approx(255.0), "what is clipped uses no further steps"
    inner = range_of("dense_0", np.arange(1001, dtype=np.float32), Affine(4.0, -128))
    assert (inner.inner_low, inner.inner_high) == pytest.approx((1.0, 999.0))
    assert inner.inner_steps == pytest.approx(998 / 4)


def test_activation_table_has_each_tensor_of_the_int8_policy(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    ranges = activation_ranges(bundle)
    assert [each.name for each in ranges] == ["input", "dense_0 before norm", "dense_0", "head"]
    observations = bundle.calibration()
    assert ranges[0].low == observations.min() and ranges[0].high == observations.max()
    # x W + b by hand: columns −x₀ + x₁ + 0.5 and 3 x₁ − 0.5
    before = np.stack([observations[:, 1] - observations[:, 0] + 0.5, 3 * observations[:, 1] - 0.5])
    assert (ranges[1].low, ranges[1].high) == pytest.approx((before.min(), before.max()), rel=1e-5)
    assert ranges[0].step == pytest.approx(np.ptp(observations) / 255, rel=0.02)
    assert [each.clipped for each in ranges[:3]] == [0.0, 0.0, 0.0], "the ranges were made from these"
    text = to_markdown(table(bundle, ranges))
    assert "300 calibration observations" in text and "only the largest output decides" in text


def level_lines(figure: Figure) -> list[int]:
    """Lines of levels in each panel that has any."""
    found = [[len(c.get_segments()) for c in axes.collections if isinstance(c, LineCollection)] for axes in figure.axes]
    return [counts[0] for counts in found if counts]


def texts(figure: Figure) -> list[str]:
    """Every word of a figure, after a check that none is cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = []
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text.figure is figure:
            box = text.get_window_extent(canvas.get_renderer())
            if text in [*figure.texts, *(label for axes in figure.axes for label in (axes.title, *axes.texts))]:
                assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1, f"{text.get_text()!r} is cut"
                assert box.y0 >= -1 and box.y1 <= figure.bbox.height + 1, f"{text.get_text()!r} is cut"
            found.append(text.get_text())
    return found


@pytest.mark.slow
def test_levels_are_lines_until_they_are_too_dense(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    few = weights.picture([bundle], [parameters(bundle, 4, Scheme.QUARL)], 4, Scheme.QUARL)
    assert level_lines(few) == [16] * 4, "β and the head's biases are 0"
    labels = texts(few)
    assert any("weights: dense_0, n=4" in text for text in labels)
    assert not any("too dense" in text for text in labels)
    many = weights.picture([bundle], [parameters(bundle, 8, Scheme.QUARL)], 8, Scheme.QUARL)
    assert level_lines(many) == [2] * 4
    assert any("range 4; 256 levels\nstep 0.0156: too dense, ends dotted" in text for text in texts(many))


def test_beside_each_other_they_share_axes_and_say_what_is_missing(tmp_path: Path) -> None:
    bundles = [make_bundle(tmp_path), make_bundle(tmp_path, "three", "ppo", (2, 2))]
    assert [title_of(bundle) for bundle in bundles] == ["two (DQN)", "three (PPO)"]
    views = [parameters(bundle, 3, Scheme.SYMMETRIC) for bundle in bundles]
    figure = weights.picture(bundles, views, 3, Scheme.SYMMETRIC)
    labels = texts(figure)
    assert "two (DQN): all layers, n=8" in labels and "three (PPO): all layers, n=12" in labels
    assert "no dense_1" in labels
    assert level_lines(figure) == [7] * 5
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


@pytest.mark.slow
def test_command_writes_pictures_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundles = [make_bundle(tmp_path), make_bundle(tmp_path, "three", "ppo", (2, 2))]
    paths = [str(bundle.path) for bundle in bundles]
    view = tmp_path / "view"
    assert weights.main([paths[0], "-b", "4", "--output-path", str(view), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["parameter"] == "dense_0/kernel"
    files = sorted(view.iterdir())
    assert [file.name for file in files] == ["output.txt", "weights-4bit-quarl.png", "weights-4bit-quarl.svg"]
    before = [file.read_bytes() for file in files]
    assert weights.main([paths[0], "--bits", "4", "--output-path", str(view)]) == 0
    assert [file.read_bytes() for file in files] == before, "the same picture gives the same file"
    assert weights.main([*paths, "--output-path", str(tmp_path / "beside")]) == 0
    assert (tmp_path / "beside" / "beside-8bit-quarl.png").stat().st_size > 10_000
    assert "three (PPO): 8 bits, quarl" in (tmp_path / "beside" / "output.txt").read_text()
    capsys.readouterr()
    assert weights.main([paths[1], "--activations", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [(each["bundle"], each["name"]) for each in found][-2:] == [("three", "dense_1"), ("three", "head")]
    assert weights.main([paths[1], "--ranges", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["policy"], [*row["worth"]]) == ("three", ["minmax", "percentile-99.99", "mse"])


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weights.main([str(make_bundle(tmp_path).path), "-b", "40", "--output-path", str(tmp_path)]) == 1
    assert "40" in capsys.readouterr().err
