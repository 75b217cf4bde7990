"""python -m bench.study wide: what is compared worked by hand, what is kept, and the command as it is typed."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.study.qat.training import settings_hash
from bench.study.wide.store import Answer, Kernel, Quantized
from bench.study.wide.training import CELLS, VARIANTS
from matplotlib.figure import Figure

from bench import command_line
from bench.report import tables as rendering
from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.speed import command as training_speed
from bench.study.wide import command as wide_weights
from bench.study.wide import plot as wide_plot
from bench.study.wide import statistics as wide_statistics
from bench.study.wide import store as wide_store
from bench.study.wide import table as wide_table
from bench.study.wide import training as wide_training
from policy.bundle import Bundle
from policy.quantization import Scheme

Texts = Callable[[Figure], list[str]]
QUARL_4 = (Scheme.QUARL, 4)


def around(value: float, half: float) -> Estimate:
    return Estimate(round(value, 3), round(value - half, 3), round(value + half, 3))


def answer(variant: str = "plain", seed: int = 0, at_4: float = 300.0, high: float = 1.0, **changes: object) -> Answer:
    """A policy of two layers on CartPole, quantized to two widths, with made-up returns."""

    def quantized(scheme: Scheme, bits: int, value: float) -> Quantized:
        return Quantized(scheme, bits, around(value, 3.0), around(value - 500.0, 3.0))

    made = Answer(
        cell="cartpole-dqn",
        variant=variant,
        seed=seed,
        task="CartPole-v1",
        method="dqn",
        steps=50_048,
        engine="tensorflow" if variant == "layer-norm" else "numpy",
        settings_sha256=variant,
        episodes=100,
        weights_sha256="0" * 64,
        cpu_s=4.5,
        kernels=(Kernel("dense_0", -1.0, high, 0.5, 256), Kernel("head", -1.5, 1.5, 0.5, 128)),
        low=-1.5,
        high=1.5,
        deviation=0.5,
        mean_return=around(500.0, 0.0),
        quantized=(quantized(*QUARL_4, at_4), quantized(Scheme.SYMMETRIC, 4, 500.0)),
        machine="a machine",
        code="v0.1",
        date="2026-11-20",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


# --- what is compared -----------------------------------------------------------------------------------------------


def test_width_of_the_weights_by_hand() -> None:
    # dense_0: 2 / 0.5 = 4 deviations; head: 3 / 0.5 = 6; their mean is 5. Twice the weights are as many deviations.
    assert answer().ratio == 5.0
    doubled = Kernel("head", -3.0, 3.0, 1.0, 128)
    assert (doubled.range, doubled.ratio) == (6.0, answer().kernels[1].ratio)
    assert answer().range == 3.0


def test_a_gain_over_two_trainings_by_hand() -> None:
    ones, others = [around(400.0, 3.0), around(380.0, 3.0)], [around(300.0, 4.0), around(300.0, 4.0)]
    # Differences 100 and 80, each ± √(3² + 4²) = 5. Student: 12.706 · s / √2 with s = √200, that is 127.06.
    gained = wide_statistics.gain(ones, others)
    assert gained.value == 90.0 and gained.high is not None
    assert gained.high - gained.value == pytest.approx(127.06)
    single = wide_statistics.gain(ones[:1], others[:1])
    assert (single.value, single.low, single.high) == (100.0, 95.0, 105.0)
    # Two that agree: the noise over episodes is left, √(5² + 5²) / 2.
    agreeing = wide_statistics.gain([ones[0]] * 2, [others[0]] * 2)
    assert agreeing.high is not None and agreeing.high - agreeing.value == pytest.approx(math.sqrt(50) / 2)
    assert wide_statistics.gain([wide_statistics.exact(4.0)], [wide_statistics.exact(5.0)]) == Estimate(
        -1.0, None, None
    )


def test_order_of_width_and_loss_by_hand() -> None:
    wider = [answer(seed=seed, at_4=400.0 - 10 * seed, high=0.1 * seed) for seed in range(8)]
    wider = [replace(each, high=1.5 + each.seed) for each in wider]
    for measure in ("range", "ratio"):
        found = wide_statistics.correlation(wider, measure, QUARL_4)
        assert found is not None and (found.rho, found.pairs) == (pytest.approx(1.0), 8)  # the wider, the more is lost
        assert wide_statistics.correlation(wider, measure, (Scheme.SYMMETRIC, 4)) is None, "all lose nothing"
        assert wide_statistics.correlation(wider[:7], measure, QUARL_4) is None, "too few"
    reversed_loss = [replace(each, quantized=other.quantized) for each, other in zip(wider, wider[::-1], strict=True)]
    turned = wide_statistics.correlation(reversed_loss, "ratio", QUARL_4)
    assert turned is not None and turned.rho == pytest.approx(-1.0)


def test_sides_of_zero() -> None:
    found = [around(2.0, 1.0), around(1.0, 1.0), around(-2.0, 1.0), Estimate(5.0, None, None), None, around(0.0, 0.0)]
    assert [wide_statistics.side(each) for each in found] == [1, 0, -1, 0, 0, 0]


def test_signs_over_cells_by_hand() -> None:
    """Six pairs above plain, one equal, one without a plain training: 2 · 2⁻⁶ = 0.03125."""
    plain = [answer(cell=cell, seed=seed) for cell in ("a", "b") for seed in range(4)][:7]
    better = [answer("clip-2", cell=each.cell, seed=each.seed, at_4=301.0) for each in plain[:6]]
    equal, alone = answer("clip-2", cell="b", seed=2), answer("clip-2", cell="c", at_4=9.0)
    found = wide_statistics.signs(
        [*plain, *better, equal, alone], "clip-2", lambda each: each.at(*QUARL_4).change.value
    )
    assert (found.above, found.below, found.p_value) == (6, 0, pytest.approx(0.03125))
    worse = wide_statistics.signs([*plain, *better], "clip-2", lambda each: -each.at(*QUARL_4).change.value)
    assert (worse.above, worse.below) == (0, 6)


def test_a_means_is_compared_with_the_plain_training_of_its_seed() -> None:
    plain = [answer(seed=0, at_4=300.0), answer(seed=1, at_4=200.0)]
    clipped = [answer("clip-2", 0, 310.0, high=0.0), answer("clip-2", 1, 211.0, high=0.1), answer("clip-2", 2, 9.0)]
    first, second = wide_statistics.rows_of([*plain, *clipped])
    assert (first.variant, first.ratio_gain, first.return_gain, first.quantized_gain) == ("plain", None, None, {})
    assert second.seeds == (0, 1, 2) and second.singles[QUARL_4] == (310.0, 211.0, 9.0)
    # dense_0 has 1 / 0.5 = 2 and 1.1 / 0.5 = 2.2 deviations instead of 4: the mean of the layers is 1 and 0.9 less.
    assert second.ratio_gain is not None and second.ratio_gain.value == pytest.approx(-0.95)
    assert second.quantized_gain[QUARL_4].value == pytest.approx(10.5), "seed 2 has no plain training"
    error = first.errors[QUARL_4]
    assert error is not None and error.value == pytest.approx(50.0)  # (500 − 250) / 500
    (alone,) = wide_statistics.rows_of(clipped)
    assert alone.return_gain is None and alone.quantized_gain == {}


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_kept_answers_are_read_again_and_the_newest_of_a_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "study" / "wide-weights.json"
    assert wide_store.read(path) == []
    for each in (answer("clip-2"), answer(seed=1), answer(), answer(at_4=123.0)):
        assert wide_store.keep(each, path) == []
    assert wide_store.read(path) == [answer(at_4=123.0), answer(seed=1), answer("clip-2")], "plain comes first"
    assert wide_store.read(path)[0].at(*QUARL_4).mean_return.value == 123.0
    with pytest.raises(KeyError, match="symmetric at 8 bits"):
        answer().at(Scheme.SYMMETRIC, 8)
    # Another settings file: the other seeds of this variant are of the old one, the other variants are not.
    assert wide_store.keep(answer(settings_sha256="other"), path) == [answer(seed=1)]
    other_cell = answer(cell="cartpole-a2c", episodes=7)
    assert wide_store.keep(other_cell, path) == []
    assert wide_store.keep(answer("decay-1", episodes=7), path) == [answer(settings_sha256="other"), answer("clip-2")]
    assert [each.key for each in wide_store.read(path)] == [
        ("cartpole-dqn", "decay-1", 0),
        ("cartpole-a2c", "plain", 0),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        (
            '{"kind": "qat", "format_version": 1, "answers": []}',
            "it is a 'qat' of version 1, not a 'wide-weights' of 1",
        ),
        ('{"kind": "wide-weights", "format_version": 2, "answers": []}', "version 2"),
        ('{"kind": "wide-weights", "format_version": 1, "answers": [{"cell": "I"}]}', "holds no answers of this kind"),
        ("[]", "holds no answers of this kind"),
    ],
)
def test_what_is_no_such_document_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wide-weights.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=said) as caught:
        wide_store.read(path)
    assert "next: python -m bench.study wide --keep" in str(caught.value)


# --- what is shown --------------------------------------------------------------------------------------------------


def several() -> list[Answer]:
    """Three trainings each: clipping narrows and helps at 4 bits, decay does nothing that could be told."""
    clipped = [answer("clip-2", seed, 400.0 + seed, high=0.01 * seed) for seed in range(3)]
    decayed = [answer("decay-1", seed, value, high=value / 300) for seed, value in enumerate((310.0, 200.0, 390.0))]
    return [*(answer(seed=seed) for seed in range(3)), *decayed, *clipped]


def test_tables_count_what_is_beyond_the_noise() -> None:
    summary, weights, quarl, symmetric, orders = wide_table.tables(several())
    assert summary.headers == ("", "narrower", "fp32", "QuaRL's 4", "symmetric 4")
    assert summary.rows == (
        ("weight decay 1", "1 : 2", "0 : 0", "2 : 1", "0 : 0"),
        ("weight clipping 2", "3 : 0", "0 : 0", "3 : 0", "0 : 0"),
    )
    assert "3 pairs of 1 cells" in summary.title
    assert "of these 8 would be" in summary.notes[1]  # 2 means × (weights, fp32, two quantizers)
    # Six of six are p = 0.03 and nine of nine p = 0.004, one of eight tests at 0.05 / 8 = 0.00625.
    for cells, shown in (("ab", "6 : 0†"), ("abc", "9 : 0‡")):
        more = [replace(each, cell=cell) for cell in cells for each in several()]
        assert wide_table.tables(more)[0].rows[1][3] == shown
    plain, _, clipped = weights.rows
    assert plain[:2] == ("cartpole-dqn", "plain") and plain[5] == "–"
    assert clipped[5].startswith("−0.99 [") and clipped[5].endswith("] ↓")
    assert clipped[7] == "0.00"
    assert "3 trainings (seeds 0, 1, 2), 100 episodes of each" in weights.notes[0]
    assert quarl.rows[2][2].startswith("+19.8 [") and quarl.rows[2][2].endswith("] ↑")  # (500 − 401) / 500
    assert not quarl.rows[1][2].endswith(("↑", "↓"))
    assert symmetric.rows[2][2] == "0.00 [−0.35, +0.35]"  # three times ± 0.6: 0.6 / √3
    assert orders.headers == ("cell", "trainings", "4 bits: range", "4 bits: range / std")
    assert orders.rows[0][:3] == ("cartpole-dqn", "9", "–"), "range: all alike"
    assert orders.rows[0][3].startswith("+0.") and "Of 1 intervals 0 lie above 0" in orders.notes[1]
    assert "no artifact computes this" in quarl.notes[1] and "int8 container" in symmetric.notes[1]


def test_tables_say_which_engine_trained_what() -> None:
    weights = wide_table.tables([answer(), answer("layer-norm")])[1]
    said = next(note for note in weights.notes if note.startswith("Engines"))
    assert "numpy: plain; tensorflow: layer normalisation" in said


def test_the_picture_says_what_it_shows(texts: Texts, tmp_path: Path) -> None:
    said = texts(wide_plot.figure_of(wide_statistics.rows_of(several())))
    assert any("3 trainings (seeds 0, 1, 2), 100 episodes of each" in text for text in said)
    assert any("95 % intervals" in text for text in said)
    assert {"cartpole-dqn", "plain", "weight decay 1", "weight clipping 2", "fp32", "4"} <= set(said)
    files = wide_plot.save_figure(several(), tmp_path)
    assert [file.name for file in files] == ["wide-weights.png", "wide-weights.svg"]
    assert all(file.stat().st_size > 1000 for file in files)


@pytest.mark.slow
def test_the_page_has_the_tables_of_what_is_kept() -> None:
    text = (rendering.ROOT / "docs" / "wide-weights.md").read_text(encoding="utf-8")
    kept = wide_store.read()
    assert {each.cell for each in kept} == {cell.name for cell in CELLS}
    made = wide_table.tables(kept)
    assert all(f"<!-- table:{table.name} -->" in text for table in made)
    assert rendering.filled(text, made) == text, "python -m bench.study wide --stored --update-docs"


# --- the command ----------------------------------------------------------------------------------------------------


def test_what_is_typed_is_checked() -> None:
    assert wide_weights.read_cells("pendulum-ppo,acrobot-dqn,pendulum-ppo") == (CELLS[2], CELLS[0])
    assert wide_weights.read_variants("plain,clip-2") == (VARIANTS[0], VARIANTS[-1])
    with pytest.raises(argparse.ArgumentTypeError, match="there is no cell 'I'; there are acrobot-dqn"):
        wide_weights.read_cells("I")
    with pytest.raises(argparse.ArgumentTypeError, match="there is no variant 'clip'; there are plain, layer-norm"):
        wide_weights.read_variants("clip")


def test_trainings_differ_in_the_means_alone(tmp_path: Path) -> None:
    plain, norm, light, heavy, loose, tight = (
        wide_training.request_of(CELLS[0], variant, 0, tmp_path) for variant in VARIANTS
    )
    assert (light.settings["weight_decay"], heavy.settings["weight_decay"]) == (0.1, 1.0)
    assert (loose.settings["weight_clip"], tight.settings["weight_clip"]) == (4.0, 2.0)
    for other in (light, heavy, loose, tight):
        off = {**other.settings, "weight_decay": 0.0, "weight_clip": 0.0}
        assert (off, other.network, other.steps) == (plain.settings, plain.network, plain.steps)
    assert norm.network == replace(plain.network, layer_norm=True)
    assert {**norm.settings, "engine": "numpy"} == plain.settings, "numpy's engine knows no layer normalisation"
    assert len({settings_hash(each) for each in (plain, norm, light, heavy, loose, tight)}) == 6
    other_seed = wide_training.request_of(CELLS[0], VARIANTS[0], 1, tmp_path)
    assert settings_hash(other_seed) == settings_hash(plain)


@pytest.mark.slow
def test_a_small_study_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(CELLS[-1], steps=2048)
    monkeypatch.setattr(wide_weights, "CELLS", (small,))
    for function in (wide_store.read, wide_store.keep):
        monkeypatch.setattr(function, "__defaults__", (tmp_path / "wide-weights.json",))
    typed = ["--cells", small.name, "--variants", "plain,clip-2", "--seeds", "5", "--episodes", "3", "--json"]
    again = [*typed, "--scratch", str(tmp_path), "--keep", "--only-missing"]
    assert wide_weights.main(again) == command_line.EXIT_OK
    plain, clipped = json.loads(capsys.readouterr().out)["answers"]
    assert (plain["variant"], clipped["variant"], clipped["seed"], clipped["episodes"]) == ("plain", "clip-2", 5, 3)
    assert clipped["engine"] == "numpy" and 2048 <= clipped["steps"] < 4096
    assert [(each["scheme"], each["bits"]) for each in clipped["quantized"]] == [
        (scheme, bits) for scheme in ("quarl", "symmetric") for bits in (8, 6, 4, 3, 2)
    ]
    weights = Bundle.load(tmp_path / f"{small.name}-clip-2-seed5").weights()
    for kernel in clipped["kernels"]:
        values = weights[f"{kernel['layer']}/kernel"]
        assert kernel["high"] == pytest.approx(float(values.max()), rel=1e-5)
        assert kernel["high"] <= 2.0 / math.sqrt(values.shape[0]) * 1.000001
    assert clipped["low"] == pytest.approx(min(float(np.min(value)) for value in weights.values()), rel=1e-5)
    assert max(each["high"] for each in plain["kernels"][1:-1]) > 0.25 * 1.1, "beyond 2 / √64"

    def refused(command: object, job: str = "") -> str:
        raise command_line.BenchError("it trained again")

    monkeypatch.setattr(training_speed, "started", refused)
    assert wide_weights.main(again) == command_line.EXIT_OK, "answered already"
    assert json.loads(capsys.readouterr().out)["answers"] == [plain, clipped]
    (tmp_path / "wide-weights.json").unlink()
    assert wide_weights.main(again) == command_line.EXIT_OK, "both bundles are there"
    for one, other in zip(json.loads(capsys.readouterr().out)["answers"], (plain, clipped), strict=True):
        assert one["quantized"] == other["quantized"], "the same episodes"
    assert wide_weights.main([*typed, "--scratch", str(tmp_path / "new")]) == command_line.EXIT_FAILED
    assert "it trained again" in capsys.readouterr().err
    page = tmp_path / "README.md"
    names = (
        "wide-weights-summary",
        "wide-weights",
        *(f"wide-weights-{kind}" for kind in ("quarl", "symmetric", "orders")),
    )
    page.write_text("".join(f"<!-- table:{name} -->\n<!-- /table:{name} -->\n" for name in names), encoding="utf-8")
    monkeypatch.setattr(rendering.update_pages, "__defaults__", (tmp_path,))
    monkeypatch.setattr("bench.study.sweep.plot.STUDY_FIGURES", tmp_path / "figures")
    assert wide_weights.main(["--stored", "--update-docs", "--cells", small.name]) == command_line.EXIT_OK
    assert "weight clipping 2" in page.read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "wide-weights.png").exists()


@pytest.mark.parametrize("fewer", [["--cells", "pendulum-ppo"], ["--variants", "plain,clip-2"], ["--seeds", "0"]])
def test_the_page_is_not_filled_with_some_rows(fewer: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        wide_weights.main(["--stored", "--update-docs", *fewer])
    assert stopped.value.code == command_line.EXIT_USAGE
    assert f"{fewer[0]} would leave rows out" in " ".join(capsys.readouterr().err.split())
