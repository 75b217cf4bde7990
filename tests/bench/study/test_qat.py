"""python -m bench.study qat: intervals worked by hand, what is kept, and the command as it is typed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from bench.study.qat.statistics import holds, over_trainings, relative_error, rows_of, student, within_words
from bench.study.qat.store import Answer
from matplotlib.figure import Figure

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.qat import command as qat
from bench.study.qat import plot as qat_plot
from bench.study.qat import store as qat_store
from bench.study.qat import table as qat_table
from bench.study.qat import training as qat_training
from bench.study.speed import command as training_speed
from bench.study.sweep.store import Change, Outcome
from policy.bundle import Bundle

Texts = Callable[[Figure], list[str]]


def around(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def answer(seed: int = 0, bits: int = 4, ptq: float = 400.0, qat_return: float = 499.0, **changes: object) -> Answer:
    """CartPole at 500, with made-up losses."""

    def outcome(value: float, half: float) -> tuple[Outcome, ...]:
        return (Outcome("", 100, around(value, half), None),)

    def change(value: float, half: float, of: float) -> tuple[Change, ...]:
        return (Change("", around(value, half), around(-100 * value / of, 1.0), None),)

    made = Answer(
        cell="cartpole-ppo",
        task="CartPole-v1",
        method="ppo",
        steps=120_000,
        settings_sha256="a" * 64,
        seed=seed,
        bits=bits,
        episodes=100,
        float_sha256=str(seed) * 64,
        quantized_updates=944,
        cpu_s=6.1,
        reference=outcome(500.0, 0.0),
        ptq=outcome(ptq, 10.0),
        qat=outcome(qat_return, 1.0),
        ptq_change=change(ptq - 500.0, 10.0, 500.0),
        qat_change=change(qat_return - 500.0, 1.0, 500.0),
        gain=change(qat_return - ptq, 10.0, ptq),
        machine="a machine",
        code="v0.1",
        date="2026-11-20",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def flown_on_two(made: Answer) -> Answer:
    """The same with two presets and success, as navigation has."""

    def outcomes(of: tuple[Outcome, ...], share: float) -> tuple[Outcome, ...]:
        success = Estimate(share, share - 0.05, share + 0.05)
        return tuple(replace(of[0], preset=preset, success=success) for preset in ("hard", "shipped"))

    def changes(of: tuple[Change, ...]) -> tuple[Change, ...]:
        return tuple(replace(of[0], preset=preset) for preset in ("hard", "shipped"))

    return replace(
        made,
        cell="I",
        task="navigation",
        reference=outcomes(made.reference, 0.91),
        ptq=outcomes(made.ptq, 0.5),
        qat=outcomes(made.qat, 0.9),
        ptq_change=changes(made.ptq_change),
        qat_change=changes(made.qat_change),
        gain=changes(made.gain),
    )


def test_means_over_trainings_by_hand() -> None:
    # s = 2, t(2) = 4.303: 4.303 · 2 / √3 = 4.969; episodes alone: √3 / 3 = 0.577
    joined = over_trainings([around(10.0, 1.0), around(12.0, 1.0), around(14.0, 1.0)])
    assert joined.value == 12.0
    assert (joined.low, joined.high) == pytest.approx((7.031, 16.969), abs=1e-3)
    # trainings that happen to agree: the episodes' interval is left
    joined = over_trainings([around(12.0, 1.0)] * 3)
    assert (joined.low, joined.high) == pytest.approx((12 - 0.57735, 12 + 0.57735), abs=1e-5)
    # one episode each: only the trainings tell; one of one: nothing does
    joined = over_trainings([Estimate(10.0, None, None), Estimate(12.0, None, None)])
    assert (joined.low, joined.high) == pytest.approx((11 - 12.706, 11 + 12.706), abs=1e-3)
    assert over_trainings([Estimate(3.0, None, None)]) == Estimate(3.0, None, None)


def test_relative_error_by_hand() -> None:
    # F = 100, Q = 90: R = 0.1. Both trainings agree, so over episodes: var = 1 − 0.1 (1 + 4 − 4) + 0.01 · 4 = 0.94
    found = relative_error([around(100.0, 2.0)] * 2, [around(90.0, 2.0)] * 2, [around(-10.0, 1.0)] * 2)
    assert found is not None and found.value == pytest.approx(10.0)
    assert found.high - found.value == pytest.approx(np.sqrt(2 * 0.94) / 2)  # type: ignore[operator]
    # f = 80, 120 and q = 72, 108 lose a tenth in either training: the trainings' spread is no spread of the error
    exact = [Estimate(value, value, value) for value in (80.0, 120.0, 72.0, 108.0, -8.0, -12.0)]
    assert relative_error(exact[:2], exact[2:4], exact[4:]) == Estimate(*[pytest.approx(10.0)] * 3)
    # negative returns: lower is worse
    worse = relative_error([around(-100.0, 0.0)], [around(-110.0, 0.0)], [around(-10.0, 0.0)])
    assert worse is not None and worse.value == pytest.approx(10.0)
    assert relative_error([around(0.0, 1.0)], [around(1.0, 1.0)], [around(1.0, 1.0)]) is None


def test_one_training_has_the_episodes_own_interval() -> None:
    generator = np.random.default_rng(3)
    f = generator.normal(5.0, 2.0, 60)
    q = 0.7 * f + generator.normal(0.0, 1.0, 60)
    estimates = [[Estimate.of_mean(list(values))] for values in (f, q, q - f)]
    expected = Estimate.of_relative_error(list(q), list(f))
    found = relative_error(*estimates)
    assert found is not None and expected is not None
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_students_quantiles() -> None:
    assert student(2) == 4.303
    assert student(10) == pytest.approx(2.228, abs=0.01)
    assert student(30) == pytest.approx(2.042, abs=0.01)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (around(0.5, 1.0), "yes"),
        (around(1.5, 1.0), "undecided, the mean is +1.5 %"),
        (around(-0.5, 3.0), "undecided, the mean is −0.5 %"),
        (around(9.0, 1.0), "no"),
        (Estimate(1.0, None, None), "below, without an interval"),
        (None, "not defined, float's return is 0"),
    ],
)
def test_within_the_limit(error: Estimate | None, words: str) -> None:
    assert within_words(error) == words


def test_a_difference_is_noise_where_its_interval_holds_zero() -> None:
    assert holds(around(1.0, 1.5), 0.0) and not holds(around(2.0, 1.5), 0.0)
    # 498, 499, 500 against 400 each: gains 98, 99, 100, s = 1, half 4.303 / √3 = 2.484 < the episodes' 10 · √3 / 3
    (row,) = rows_of([answer(seed, qat_return=498.0 + seed) for seed in range(3)])
    assert not row.is_noise
    assert (row.gain.value, row.gain.high) == pytest.approx((99.0, 99.0 + 5.7735), abs=1e-3)
    assert row.qat_error is not None and row.qat_error.value == pytest.approx(0.2)
    assert row.qat_by_seed == (498.0, 499.0, 500.0)
    (row,) = rows_of([answer(seed, ptq=ptq) for seed, ptq in enumerate((400.0, 500.0, 490.0))])
    assert row.is_noise


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    file = tmp_path / "qat.json"
    assert qat_store.read(file) == []
    assert qat_store.keep(answer(seed=1), file) == []
    qat_store.keep(answer(seed=0, bits=2), file)
    qat_store.keep(answer(seed=0, bits=8), file)
    assert [kept.key[1:] for kept in qat_store.read(file)] == [(0, 8), (0, 2), (1, 4)]
    assert qat_store.read(file)[2] == answer(seed=1)
    # the last one of its kind takes the place of the one before
    assert qat_store.keep(answer(seed=1, qat_return=450.0), file) == []
    assert [kept.qat[0].mean_return.value for kept in qat_store.read(file)] == [499.0, 499.0, 450.0]
    assert max(map(len, file.read_text().splitlines())) < 1800


def test_what_an_answer_makes_stale_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "qat.json"
    for kept in (answer(), answer(seed=1), answer(bits=2), answer(cell="cartpole-a2c")):
        qat_store.keep(kept, file)
    # another float training of seed 0
    stale = qat_store.keep(answer(bits=8, float_sha256="f" * 64), file)
    assert [each.key for each in stale] == [("cartpole-ppo", 0, 4), ("cartpole-ppo", 0, 2)]
    # other settings
    stale = qat_store.keep(answer(settings_sha256="b" * 64), file)
    assert [each.key for each in stale] == [("cartpole-ppo", 0, 8), ("cartpole-ppo", 1, 4)]
    assert [each.key for each in qat_store.read(file)] == [("cartpole-a2c", 0, 4), ("cartpole-ppo", 0, 4)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged"),
        ("[1]", "holds no answers"),
        ('{"kind": "sweep", "format_version": 1}', "it is a 'sweep'"),
        ('{"kind": "qat", "format_version": 9}', "version 9"),
        ('{"kind": "qat", "format_version": 1, "answers": [{"cell": "I"}]}', "holds no answers"),
    ],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "qat.json"
    file.write_text(text)
    with pytest.raises(StoreError, match=words):
        qat_store.read(file)


def test_the_table_says_what_is_noise_and_how_it_executes() -> None:
    answers = [answer(seed, bits) for seed in range(3) for bits in (8, 4)]
    answers += [answer(seed, bits=2, ptq=ptq) for seed, ptq in enumerate((400.0, 500.0, 490.0))]
    made = qat_table.table(answers)
    assert made.headers[-1] == "QAT − PTQ"
    assert [row[1] for row in made.rows] == ["8", "4", "2"]
    assert made.rows[1][4:7] == ("499.0 [498.4, 499.6]", "+20.0 [+18.8, +21.2]", "+0.20 [+0.08, +0.32]")
    notes = "\n".join(made.notes)
    assert "3 trainings (seed 0, 1, 2), 100 episodes of each" in notes
    assert "QAT is better than PTQ at 8, 4 bits, inside the noise at 2 bits." in notes
    assert "Within 2 % of float, 4 bits: yes" in notes
    assert "QAT 4: 4-bit weights in an int8 container" in notes and "PTQ 4, PTQ 2: simulated" in notes
    assert "on a machine; 2026-11-20; code v0.1" in notes
    assert "An interval that is a point" in notes


def test_the_table_of_several_cells() -> None:
    made = qat_table.table([answer(), answer(seed=1), flown_on_two(answer())])
    assert [row[0] if row else "" for row in made.rows] == ["cartpole-ppo", "", "I, hard", "", "I, shipped"]
    assert [row[-1] for row in made.rows if row] == ["–", "91.0 / 50.0 / 90.0", "91.0 / 50.0 / 90.0"]
    assert "learns in floats first: half. " in made.notes[0]
    late = qat_table.table([answer(), flown_on_two(answer(quant_delay=0.2))])
    assert "learns in floats first: half; I 0.2." in late.notes[0]
    assert "1 training (seed 0)" in made.notes[0] and "2 trainings (seed 0, 1)" in made.notes[0]


def test_the_picture_holds_every_width(texts: Texts) -> None:
    answers = [answer(seed, bits) for seed in range(3) for bits in (8, 4, 2)]
    figure = qat_plot.figure_of(rows_of([*answers, flown_on_two(answer())]))
    said = texts(figure)
    assert any(text.startswith("Learning with few bits, or quantizing afterwards") for text in said)
    assert {"cartpole-ppo\n3 trainings a point, 100 episodes each", "2", "4", "8", "float"} - set(said) <= {"float"}
    assert any("95 % intervals" in text for text in said)
    assert {"quantized after training (PTQ)", "trained with quantizers (QAT)", "fp32"} <= set(said)
    assert len([axes for axes in figure.axes if axes.axison]) == 3
    ptq, learned = figure.axes[0].containers
    assert ptq.lines[0].get_ydata().tolist() == [400.0] * 3
    assert learned.lines[0].get_ydata().tolist() == [499.0] * 3
    assert learned.lines[0].get_color() != ptq.lines[0].get_color()


def test_trifles_look_like_trifles() -> None:
    rows = rows_of([answer(seed, ptq=499.2, qat_return=500.0) for seed in range(3)])
    low, high = qat_plot.figure_of(rows).axes[0].get_ylim()
    assert (low, high) == pytest.approx((450 - 50 / 12, 500 + 50 / 12))


@pytest.mark.slow
def test_pictures_are_written_and_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "qat.json"
    typed = ["--stored", str(file), "--output", str(tmp_path / "pictures")]
    assert qat_plot.main(typed) == command_line.EXIT_FAILED
    assert "python -m bench.study qat --keep" in capsys.readouterr().err
    for kept in (answer(), answer(cell="cartpole-a2c")):
        qat_store.keep(kept, file)
    assert qat_plot.main([*typed, "--only", "I"]) == command_line.EXIT_USAGE
    assert qat_plot.main(typed) == command_line.EXIT_OK
    files = sorted((tmp_path / "pictures").iterdir())
    assert {each.stem for each in files} == {"qat", "qat-cartpole-ppo", "qat-cartpole-a2c"} and len(files) == 6
    before = {each: each.read_bytes() for each in files}
    assert qat_plot.main(typed) == command_line.EXIT_OK
    assert {each: each.read_bytes() for each in files} == before


def test_widths_and_cells_as_they_are_typed() -> None:
    assert qat.read_bits("8-2") == qat.read_bits("2-8") == (8, 7, 6, 5, 4, 3, 2)
    assert qat.read_bits("3,8,4-4") == (8, 4, 3)
    assert [cell.name for cell in qat.read_cells("II,cartpole-dqn")] == ["II", "cartpole-dqn"]
    for wrong in ("9", "8-1", "fp16", "2-4-8"):
        with pytest.raises(argparse.ArgumentTypeError, match="training takes 8 … 2"):
            qat.read_bits(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="there is no cell 'pong-ppo'; there are cartpole-ppo"):
        qat.read_cells("I,pong-ppo")


def test_trainings_of_one_cell_share_their_settings(tmp_path: Path) -> None:
    cell = qat.CELLS[-1]
    reference = qat_training.request_of(cell, 0, 8, tmp_path)
    quantized = qat_training.request_of(cell, 2, 3, tmp_path)
    assert (reference.steps, reference.settings["learning_rate"]) == (2_000_000, 0.0005)
    assert quantized.settings["quantization_bits"] == 3 and quantized.seed == 2
    assert quantized.output_path == tmp_path / "II-qat3-seed2"
    assert qat_training.settings_hash(reference) == qat_training.settings_hash(quantized)
    for other in (replace(cell, steps=3_000_000), replace(cell, quant_delay=0.25)):
        assert qat_training.settings_hash(qat_training.request_of(other, 0, 8, tmp_path)) != qat_training.settings_hash(
            reference
        )
    in_floats = qat_training.request_of(replace(cell, quant_delay=0.25), 0, None, tmp_path)
    assert in_floats.settings == qat_training.request_of(cell, 0, None, tmp_path).settings, "the same float training"


def test_trainings_from_before_a_setting_are_of_the_same_settings_without_it(tmp_path: Path) -> None:
    now = qat_training.request_of(qat.CELLS[0], 0, 4, tmp_path)
    assert (now.settings["weight_decay"], now.settings["weight_clip"]) == (0.0, 0.0)
    before = {name: value for name, value in now.settings.items() if name not in ("weight_decay", "weight_clip")}
    assert qat_training.settings_hash(replace(now, settings=before)) == qat_training.settings_hash(now)
    held = replace(now, settings={**now.settings, "weight_clip": 2.0})
    assert qat_training.settings_hash(held) != qat_training.settings_hash(now)
    provenance = {"settings": before, "seed": 0, "ended": qat_training.TRAINED, "steps": now.steps}
    quantization = SimpleNamespace(bits=4)
    spec = SimpleNamespace(provenance=provenance, network=now.network, quantization=quantization)
    assert qat_training.is_of(cast(Bundle, SimpleNamespace(spec=spec)), now)
    assert not qat_training.is_of(cast(Bundle, SimpleNamespace(spec=spec)), held)


@pytest.mark.slow
def test_a_small_study_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(qat.CELLS[0], steps=2048, episodes=3)
    monkeypatch.setattr(qat, "CELLS", (small,))
    monkeypatch.setattr(qat_store, "FILE", tmp_path / "qat.json")
    monkeypatch.setattr(qat_store.read, "__defaults__", (tmp_path / "qat.json",))
    monkeypatch.setattr(qat_store.keep, "__defaults__", (tmp_path / "qat.json",))
    typed = ["--cells", small.name, "--seeds", "5", "--scratch", str(tmp_path), "--keep", "--only-missing", "--json"]
    assert qat.main([*typed, "--bits", "3"]) == command_line.EXIT_OK
    (made,) = json.loads(capsys.readouterr().out)["answers"]
    assert (made["cell"], made["seed"], made["bits"], made["episodes"]) == (small.name, 5, 3, 3)
    assert made["quantized_updates"] > 0
    learned = Bundle.load(tmp_path / "cartpole-ppo-qat3-seed5")
    assert learned.spec.quantization is not None and learned.spec.quantization.bits == 3
    assert qat_training.is_of(learned, qat_training.request_of(small, 5, 3, tmp_path))
    for other in (
        qat_training.request_of(small, 5, None, tmp_path),
        qat_training.request_of(small, 4, 3, tmp_path),
        qat_training.request_of(replace(small, steps=4096), 5, 3, tmp_path),
    ):
        assert not qat_training.is_of(learned, other)

    def refused(command: object, job: str = "") -> str:
        raise command_line.BenchError("it trained again")

    monkeypatch.setattr(training_speed, "started", refused)
    assert qat.main([*typed, "--bits", "3"]) == command_line.EXIT_OK, "answered already"
    assert json.loads(capsys.readouterr().out)["answers"] == [made]
    (tmp_path / "qat.json").unlink()
    assert qat.main([*typed, "--bits", "3"]) == command_line.EXIT_OK, "both bundles are there"
    again = json.loads(capsys.readouterr().out)["answers"][0]
    assert again["qat"] == made["qat"] and again["ptq"] == made["ptq"], "the same episodes"
    assert qat.main([*typed, "--bits", "2"]) == command_line.EXIT_FAILED
    assert "it trained again" in capsys.readouterr().err
    assert qat.main(["--stored", "--cells", small.name]) == command_line.EXIT_OK
    assert "QAT is" in capsys.readouterr().out
