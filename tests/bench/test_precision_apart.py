"""python -m bench.study apart: what follows from numbers made up by hand, and one small real run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.apart import command as precision_apart
from bench.study.apart import flying as precision_apart_flying
from bench.study.apart import store as precision_apart_store
from bench.study.apart.figure import apart_figure
from bench.study.apart.flying import widths_of
from bench.study.apart.store import PARTS, Apart, Contrast, Point, costliest, fewest_bits, first_loss
from bench.study.layers.episodes import Asked, contrast, current
from bench.study.sweep import store as study_store
from policy.bundle import Bundle
from policy.quantization import Scheme
from policy.simulated import Widths


def point(part: str, bits: int, error: float, half: float = 0.5) -> Point:
    return Point(part, bits, Estimate(500 - 5 * error, None, None), Estimate(error, error - half, error + half), 0.1)


def made(name: str = "cartpole-dqn", **changes: object) -> Apart:
    """At 3 bits the observation costs most; at 2 weights and observation alike; hidden activations nothing."""
    errors = {"weights": (0.0, 1.0, 4.8, 98.0), "hidden": (0.0, 0.0, 0.0, 1.6), "input": (0.0, 0.0, 40.0, 98.0)}
    points = tuple(point(p, n, e) for p in PARTS for n, e in zip((8, 4, 3, 2), errors[p], strict=True))
    even, more, less = Estimate(0.0, -1.0, 1.0), Estimate(30.0, 25.0, 35.0), Estimate(-30.0, -35.0, -25.0)
    contrasts = (
        Contrast(3, "weights", "hidden", more),
        Contrast(3, "weights", "input", less),
        Contrast(3, "hidden", "input", less),
        Contrast(2, "weights", "hidden", more),
        Contrast(2, "weights", "input", even),
        Contrast(2, "hidden", "input", less),
    )
    values = Apart(
        bundle=name,
        task="CartPole-v1",
        algorithm="dqn",
        weights_sha256="0" * 64,
        preset="",
        seeds=(0, 2, 4),
        episodes=100,
        observations=512,
        reference=Estimate(500.0, 500.0, 500.0),
        points=points,
        contrasts=contrasts,
        seconds=10.0,
        cpu_seconds=9.0,
        machine="a machine",
        code="v0.1",
        date="2026-11-20",
    )
    return dataclasses.replace(values, **changes)  # type: ignore[arg-type]


# --- what follows from the numbers ------------------------------------------------------------------------------------


def test_the_other_two_keep_eight_bits() -> None:
    assert widths_of("weights", 3) == Widths(Scheme.SYMMETRIC, 3, 8, 8)
    assert widths_of("hidden", 3) == Widths(Scheme.SYMMETRIC, 8, 3, 8)
    assert widths_of("input", 3) == Widths(Scheme.SYMMETRIC, 8, 8, 3)
    assert widths_of("hidden", 3).interface_bits == 8


def test_fewest_bits_want_the_whole_interval_and_all_larger_widths() -> None:
    # intervals end at 0.5, 1.5, 5.3 and 98.5
    assert fewest_bits(made().of_part("weights"), 5.0) == 4
    assert fewest_bits(made().of_part("weights"), 2.0) == 4
    assert fewest_bits(made().of_part("weights"), 1.0) == 8
    assert fewest_bits(made().of_part("weights"), 0.4) is None
    assert fewest_bits(made().of_part("hidden"), 5.0) == 2
    # good again at 2 bits does not count where 3 are bad
    assert fewest_bits([point("input", 8, 0.0), point("input", 3, 40.0), point("input", 2, 0.0)], 5.0) == 8


def test_what_costs_most_is_decided_by_pairs() -> None:
    assert costliest(made(), 3) == "input"
    assert costliest(made(), 2) is None  # weights and observation are alike
    assert costliest(made(), 5) is None  # not measured
    # 0.5 … 0.9 % more is surely more, and means nothing
    hardly = [dataclasses.replace(c, more=Estimate(0.7, 0.5, 0.9)) if c.bits == 3 else c for c in made().contrasts]
    assert costliest(made(contrasts=tuple(hardly)), 3) is None


def test_what_is_lost_first() -> None:
    assert first_loss(made()) == (3, ("input",))  # weights' interval at 3 bits, 4.3 … 5.3, holds 5
    assert first_loss(made(), 99.0) is None
    assert first_loss(made(), 60.0) == (2, ("weights", "input"))


def test_a_contrast_by_hand() -> None:
    # fp32 earns 100 and 300, mean 200; one earns 20 and 10 less than the other: 10 % and 5 % of the mean
    found = contrast([60.0, 280.0], [80.0, 290.0], [100.0, 300.0])
    assert found.value == pytest.approx(7.5)
    # s = 3.5355, 1.96 · s / √2 = 4.9
    assert (found.low, found.high) == (pytest.approx(2.6), pytest.approx(12.4))
    with pytest.raises(command_line.BenchError, match="return is 0"):
        contrast([1.0, 2.0], [1.0, 2.0], [-1.0, 1.0])


def test_tables_say_it() -> None:
    parts, costs = precision_apart.tables([made()])
    assert parts.rows[0] == ("cartpole-dqn, n=300", "weights", "4", "4", "1.00 [0.50, 1.50]", "4.80 [4.30, 5.30]",
                             "98.0 [97.5, 98.5]")  # fmt: skip
    assert parts.rows[2][1:4] == ("observation", "4", "4")
    assert costs.rows == (("cartpole-dqn", "observation, at 3 bits", "–", "observation", "–"),)
    notes = " ".join(costs.notes)
    assert "the observation alone in 1, several at once in 0; none down to 2 bits in 0 of 1 policies" in notes
    assert (
        "Costs most at 2 bits: the weights in 0, the hidden activations in 0, the observation in 0, not decided in 1"
        in notes
    )


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_picture_is_whole(count: int, texts: Callable[[Figure], list[str]]) -> None:
    found = texts(apart_figure([made(f"policy-{number}") for number in range(count)]))
    assert sum("n=300" in text for text in found) == count
    assert {"2", "3", "4", "8"} <= set(found)
    assert {"weights (kernels)", "hidden activations", "observation", "100"} <= set(found)


def test_parts_in_words() -> None:
    assert precision_apart.joined(("weights", "input")) == "weights and observation"
    assert precision_apart.joined(PARTS) == "all three"


def test_all_widths_have_ticks_whoever_comes_last(texts: Callable[[Figure], list[str]]) -> None:
    few = tuple(each for each in made().points if each.bits != 3)
    assert {"2", "3", "4", "8"} <= set(texts(apart_figure([made(), made("last", points=few)])))


# --- kept -------------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = precision_apart_store.write(made(), tmp_path)
    assert path.name == "apart-cartpole-dqn.json"
    assert precision_apart_store.read(tmp_path) == [made()]
    assert study_store.read_sweeps(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "sweep"}, "it is a 'sweep' of version 1, not a 'precision-apart'"),
        ({"format_version": 2}, "of version 2"),
        ({"points": [{"part": "weights"}]}, "mean_return"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_other_documents_are_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "apart-x.json"
    path.write_text(json.dumps({**json.loads(made().to_json()), **change}), encoding="utf-8")
    with pytest.raises(StoreError, match=words) as raised:
        precision_apart_store.read(tmp_path)
    assert "next: python -m bench.study apart --keep" in str(raised.value)


def test_answers_about_other_weights_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = made("somebody's-own")
    assert current([made(), elsewhere], "precision_apart") == [elsewhere]
    said = capsys.readouterr().err
    assert "cartpole-dqn: the kept answer is about other weights" in said
    assert "python -m bench.study apart cartpole-dqn --keep" in said


# --- as it is typed ---------------------------------------------------------------------------------------------------


def test_a_small_real_run(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = balancing(tmp_path / "by-hand")
    monkeypatch.setattr(precision_apart_store, "STUDY", tmp_path / "study")
    typed = [str(bundle.path), "--bits", "4,2", "--seeds", "1,3", "--episodes", "4"]
    assert precision_apart.main([*typed, "--keep", "--json"]) == command_line.EXIT_OK
    (printed,) = json.loads(capsys.readouterr().out)["answers"]
    assert [(p["part"], p["bits"]) for p in printed["points"]] == [(p, n) for p in PARTS for n in (8, 4, 2)]
    at_eight = [p["relative_error"] for p in printed["points"] if p["bits"] == 8]
    assert at_eight[0] == at_eight[1] == at_eight[2]
    # pushes of 0.1, 0.5, 10 and 3: 2-bit weights keep the angle alone, and the policy falls earlier
    (kept,) = precision_apart_store.read()
    two = kept.point("weights", 2)
    assert two is not None and two.relative_error.value > 5.0
    assert len(kept.contrasts) == 6

    def flown_again(asked: Asked, *_: object) -> Apart:
        raise command_line.BenchError(f"{asked.name} was flown again")

    monkeypatch.setattr(precision_apart_flying, "measure", flown_again)
    # what was typed was measured already, and 2 bits alone too; a default asks for nothing
    for more in (["--bits", "8,2"], ["--seeds", "3,1"], ["--episodes", "4"], []):
        assert precision_apart.main([str(bundle.path), "--only-missing", *more]) == command_line.EXIT_OK
    for more in (["--bits", "3"], ["--seeds", "1"], ["--episodes", "5"]):
        assert precision_apart.main([str(bundle.path), "--only-missing", *more]) == command_line.EXIT_FAILED
        said = capsys.readouterr().err
        assert f"by-hand: kept with other {more[0]} than asked for" in said and "was flown again" in said
    # measured once, it is shown without flying
    assert (
        precision_apart.main([str(bundle.path), "--stored", "--output-path", str(tmp_path / "drawn")])
        == command_line.EXIT_OK
    )
    assert "One part with few bits" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "precision-apart.svg").exists()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--bits", "9"], "allowed are 2 … 8"),
        (["--seeds", "1,1"], "names a seed twice"),
        (["--episodes", "0"], "at least 1"),
        (["I", "II", "--stored", "--update-docs"], "not with I, II alone"),
    ],
)
def test_wrong_arguments_are_named(typed: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        precision_apart.main(typed)
    assert stopped.value.code == command_line.EXIT_USAGE
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "words"), [("no-such-policy", "there is no policy"), ("zoo/benchmark/pong-ppo", "has convolutions")]
)
def test_bundles_that_cannot_be_asked(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert precision_apart.main([name]) == command_line.EXIT_USAGE
    assert words in capsys.readouterr().err


def test_nothing_stored_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision_apart_store, "STUDY", tmp_path)
    assert precision_apart.main(["--stored"]) == command_line.EXIT_FAILED
    assert "no answer is stored" in capsys.readouterr().err
