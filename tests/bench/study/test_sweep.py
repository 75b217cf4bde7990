"""python -m bench.study sweep: what its widths mean, paired episodes, and the command as it is typed."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import command_line
from bench.report.intervals import Estimate
from bench.study.sweep import command as sweep
from bench.study.sweep import store as study_store
from bench.study.sweep.flying import Asked, Flown, decide_with, share_differing, widths_of
from bench.study.sweep.store import Sweep
from policy.bundle import Bundle
from policy.bundle_writer import write_bundle
from policy.locate import ZOO
from policy.network import choose_actions
from policy.quantization import Scheme
from policy.quantization_aware import TrainedQuantization
from policy.simulated import Widths, forward_simulated, simulate
from policy.spec import ContinuousHead, PolicySpec, Squash

Balancing = Callable[..., Bundle]


@pytest.fixture(scope="module")
def bundle(balancing: Balancing, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return balancing(tmp_path_factory.mktemp("sweep") / "by-hand")


# --- what is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2,4,8", ("2", "4", "8")),
        ("2-5", ("2", "3", "4", "5")),
        ("8,fp16,7-9", ("8", "fp16", "7", "9")),
        ("32", ("32",)),
    ],
)
def test_widths_are_read(text: str, names: tuple[str, ...]) -> None:
    assert sweep.read_widths(text) == names


@pytest.mark.parametrize("text", ["1", "33", "8-4", "2-33", "int8", "-4", "", "4-", "fp32"])
def test_widths_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"no width|empty"):
        sweep.read_widths(text)


def test_there_are_sixteen_widths_by_default() -> None:
    assert len(sweep.WIDTHS) == 16
    assert sweep.read_widths(",".join(sweep.WIDTHS)) == sweep.WIDTHS


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("4", Asked(Scheme.QUARL), Widths(Scheme.QUARL, 4, 4)),
        ("4", Asked(Scheme.QUARL, weights_only=True), Widths(Scheme.QUARL, 4)),
        ("4", Asked(Scheme.QUARL, activation_bits=6, input_bits=3), Widths(Scheme.QUARL, 4, 6, 3)),
        ("32", Asked(Scheme.QUARL), Widths(Scheme.QUARL, 32)),
        ("32", Asked(Scheme.QUARL, activation_bits=3), Widths(Scheme.QUARL, 32, 3)),
        ("4", Asked(Scheme.QUARL_RELEASED), Widths(Scheme.QUARL_RELEASED, 4)),
        ("4", Asked(Scheme.SYMMETRIC), Widths(Scheme.SYMMETRIC, 4, 8)),
        ("12", Asked(Scheme.SYMMETRIC), Widths(Scheme.SYMMETRIC, 12, 12)),
        ("4", Asked(Scheme.SYMMETRIC, weights_only=True), Widths(Scheme.SYMMETRIC, 4)),
        ("fp16", Asked(Scheme.SYMMETRIC, activation_bits=4), Widths(Scheme.FP16, 16)),
    ],
)
def test_what_a_width_means(name: str, asked: Asked, expected: Widths, bundle: Bundle) -> None:
    assert widths_of(name, asked, bundle.spec) == expected


def test_the_observation_keeps_eight_bits_unless_asked(bundle: Bundle) -> None:
    assert widths_of("4", Asked(Scheme.QUARL), bundle.spec).observation_bits == 8
    assert widths_of("12", Asked(Scheme.QUARL), bundle.spec).observation_bits == 12
    assert widths_of("12", Asked(Scheme.QUARL, input_bits=3), bundle.spec).observation_bits == 3
    assert widths_of("4", Asked(Scheme.QUARL, weights_only=True), bundle.spec).observation_bits is None


def test_a_policys_own_width_has_its_own_activations(bundle: Bundle) -> None:
    trained = TrainedQuantization(4, {"input": (-1.0, 1.0), "dense_0": (0.0, 1.0)})
    spec = replace(bundle.spec, quantization=trained)
    assert widths_of("4", Asked(Scheme.SYMMETRIC), spec).activation_bits == 4
    assert widths_of("5", Asked(Scheme.SYMMETRIC), spec).activation_bits == 8


def test_it_says_that_a_policy_was_trained_with_quantizers(bundle: Bundle, tmp_path: Path) -> None:
    trained = TrainedQuantization(4, {"input": (-1.0, 1.0), "dense_0": (0.0, 6.0)})
    spec = replace(bundle.spec, quantization=trained)
    golden = bundle.golden().observations
    made = write_bundle(tmp_path / spec.name, spec, bundle.weights(), bundle.calibration(), golden)
    opened, task = sweep.open_bundle(str(made.path))
    done = sweep.sweep(opened, task, ("4", "5"), Asked(Scheme.SYMMETRIC), (0,), 2)
    assert done.trained_bits == 4
    # at its own width the artifact's activations have it too; at another one they have 8 bits
    assert [(width.activation_bits, width.execution.artifact) for width in done.widths] == [(4, "int4"), (8, "int5")]


# --- what is counted ------------------------------------------------------------------------------------------------


def test_changes_are_paired_by_hand() -> None:
    reference = Flown("hard", (10.0, 20.0, 30.0, 40.0), (True, True, True, False))
    flown = Flown("hard", (8.0, 18.0, 28.0, 38.0), (True, False, True, True))
    change = flown.change_from(reference)
    # 2 less in every episode, unlike as these are: the difference has no interval left; 200 / 25 = 8 % of the mean
    assert change.mean_return == Estimate(-2.0, -2.0, -2.0)
    assert change.relative_error is not None and change.relative_error.value == pytest.approx(8.0)
    assert change.success is not None and change.success.value == 0.0
    outcome = flown.outcome()
    assert (outcome.episodes, outcome.mean_return.value) == (4, 23.0)
    assert outcome.success is not None and outcome.success.value == 0.75


def test_which_actions_differ(bundle: Bundle) -> None:
    assert share_differing(bundle.spec, np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])) == 0.25
    continuous: PolicySpec = replace(bundle.spec, head=ContinuousHead((-1.0, 0.0), (1.0, 10.0), Squash.TANH))
    reference = np.zeros((3, 2), np.float32)
    # a hundredth of the ranges is 0.02 and 0.1
    actions = np.array([[0.019, 0.09], [0.021, 0.0], [0.0, -0.11]], np.float32)
    assert share_differing(continuous, actions, reference) == pytest.approx(2 / 3)


# --- flying ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(bundle: Bundle) -> Sweep:
    """The hand-made policy that balances, at four widths."""
    opened, task = sweep.open_bundle(str(bundle.path))
    return sweep.sweep(opened, task, ("2", "8", "fp16", "32"), Asked(Scheme.SYMMETRIC), (0, 4), 6)


def test_every_width_flies_the_same_episodes(swept: Sweep) -> None:
    assert [width.name for width in swept.widths] == ["2", "8", "fp16", "32"]
    assert swept.reference[0].episodes == 12
    # 32 bits are the float policy
    last = swept.widths[-1]
    assert last.outcomes == swept.reference
    assert (last.actions_differ, last.changes[0].mean_return) == (0.0, Estimate(0.0, 0.0, 0.0))
    assert last.execution.artifact == "fp32"
    # pushes of 0.1, 0.5, 10 and 3: half precision keeps them; 2 bits only the angle
    assert swept.width("fp16").changes[0].relative_error == Estimate(0.0, 0.0, 0.0)  # type: ignore[union-attr]
    two = swept.width("2")
    assert two is not None and two.actions_differ > 0.02
    assert two.changes[0].mean_return.value < 0.0


def test_the_same_again_is_the_same(swept: Sweep, bundle: Bundle) -> None:
    opened, task = sweep.open_bundle(str(bundle.path))
    again = sweep.sweep(opened, task, ("8", "2"), Asked(Scheme.SYMMETRIC), (0, 4), 6)
    assert again.widths == (swept.width("8"), swept.width("2"))
    assert again.reference == swept.reference


def test_it_decides_as_the_simulation_does(bundle: Bundle) -> None:
    spec = bundle.spec
    simulated = simulate(spec, bundle.weights(), bundle.calibration(), Widths(Scheme.QUARL, 3, 3))
    observations = bundle.golden().observations
    expected = choose_actions(spec, forward_simulated(spec, simulated, observations))
    np.testing.assert_array_equal(decide_with(spec, simulated)(observations), expected)


def test_tables_say_what_was_done(swept: Sweep) -> None:
    (table,) = sweep.tables(swept)
    assert table.title == "by-hand on CartPole-v1: symmetric"
    assert [row[0] for row in table.rows] == ["fp32", "2 bits", "8 bits", "fp16", "32 bits"]
    assert table.rows[1][1:4] == ("2", "8", "8")
    assert table.rows[4][1:4] == ("32", "float", "float")
    notes = " ".join(table.notes)
    assert "12 greedy episodes (6 of each seed 0, 4)" in notes
    assert "2: 2-bit weights in an int8 container" in notes
    assert "s computing" in notes


@pytest.mark.parametrize(
    ("estimate", "factor", "sign", "text"),
    [
        (Estimate(482.06, 477.3, 486.9), 1.0, "", "482.1 [477.3, 486.9]"),
        (Estimate(0.9071, 0.868, 0.935), 100.0, "", "90.7 [86.8, 93.5]"),
        (Estimate(-0.034, -0.171, 0.118), 1.0, "+", "−0.03 [−0.17, +0.12]"),
        (Estimate(15010.4, 14000.0, 16000.0), 1.0, "", "15,010 [14,000, 16,000]"),
        (Estimate(-0.001, 0.0, 0.0), 1.0, "+", "0.00"),
        (Estimate(7.0, None, None), 1.0, "", "7.00"),
        (None, 1.0, "", "–"),
    ],
)
def test_numbers_as_people_read_them(estimate: Estimate | None, factor: float, sign: str, text: str) -> None:
    assert sweep.bracketed(estimate, factor, sign) == text


# --- as it is typed -------------------------------------------------------------------------------------------------


def test_the_command_keeps_what_it_prints(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_store, "STUDY", tmp_path / "study")
    monkeypatch.setattr(study_store.write_sweep, "__defaults__", (tmp_path / "study",))
    typed = [str(bundle.path), "--bits", "4", "--seeds", "1", "--episodes", "3", "--weights-only", "--json", "--keep"]
    assert sweep.main([*typed, "--output", str(tmp_path / "more" / "answer.json")]) == command_line.EXIT_OK
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("ok") is True
    kept = tmp_path / "study" / "sweep-by-hand-quarl-weights.json"
    assert json.loads(kept.read_text()) == printed == json.loads((tmp_path / "more" / "answer.json").read_text())
    assert study_store.read_sweep(kept).widths[0].activation_bits is None


def test_an_answer_of_other_weights_than_the_committed_ones_is_not_kept(
    balancing: Balancing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "sweep", lambda *_: pytest.fail("it flew"))
    own = balancing(tmp_path / "cartpole-dqn")
    assert sweep.main([str(own.path), "--keep"]) == command_line.EXIT_USAGE
    said = capsys.readouterr().err
    assert "has other weights than zoo/benchmark/cartpole-dqn" in said
    assert f"python -m bench.study sweep {tmp_path / 'my-cartpole-dqn'} --keep" in said
    # the committed weights, wherever they lie, and names that the repository does not have
    shutil.copytree(ZOO / "benchmark" / "cartpole-dqn", tmp_path / "copy" / "cartpole-dqn")
    for path in (tmp_path / "copy" / "cartpole-dqn", balancing(tmp_path / "mine").path):
        sweep.check_keeping(Bundle.load(path), "sweep")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["no-such-policy"], "there is no policy 'no-such-policy'; known are"),
        (["zoo/no-such-policy"], "manifest.json is missing"),
    ],
)
def test_an_unknown_bundle_is_a_usage_error(typed: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([*typed, "--json"]) == command_line.EXIT_USAGE
    said = capsys.readouterr()
    assert words in said.err
    assert words in json.loads(said.out)["error"]["message"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["I", "--bits", "33"], "allowed are 2 … 32, and fp16"),
        (["I", "--bits", "int8"], "type 2-32, or 2,4,8,fp16"),
        (["I", "--scheme", "binary"], "'quarl', 'quarl-released', 'symmetric'"),
        (["I", "--activation-bits", "32"], "allowed are 2 … 31"),
        (["I", "--scheme", "quarl-released", "--activation-bits", "8"], "take --scheme quarl or symmetric"),
        (["I", "--weights-only", "--input-bits", "8"], "--weights-only leaves"),
        (["I", "--seeds", "1,1"], "names a seed twice"),
        (["I", "--episodes", "0"], "at least 1"),
        ([], "bundle"),
    ],
)
def test_wrong_arguments_are_named(typed: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        sweep.main(typed)
    assert stopped.value.code == command_line.EXIT_USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_images_with_float_activations_take_the_compiled_graph() -> None:
    bundle = Bundle.load(ZOO / "benchmark" / "pong-ppo")
    spec, golden = bundle.spec, bundle.golden()
    simulated = simulate(spec, bundle.weights(), bundle.calibration(), Widths(Scheme.QUARL_RELEASED, 16))
    few = golden.observations[:4]
    reference = choose_actions(spec, forward_simulated(spec, simulated, few))
    np.testing.assert_array_equal(decide_with(spec, simulated)(few), reference)
