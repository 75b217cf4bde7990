"""``--bits auto``: which precision is taken, what is written of it, and what is refused afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.api import Policy
from quarl.convert import __main__ as cli
from quarl.convert import ladder as climbing
from quarl.convert import pipeline
from quarl.convert.ladder import FRESH_SEED, SEED, Judge, Question, climb, float_layers
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.payloads import parse_member_settings
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.errors import BundleError
from quarl.policy.ladder import (
    FLOOR,
    LADDER_FILE,
    AcceptanceError,
    Ladder,
    Loss,
    Prefer,
    Rung,
    choose_precisions,
    read_ladder,
    require_artifact,
)
from quarl.policy.places import ZOO
from quarl.policy.reference import forward_float
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from quarl.train.suites.errors import TaskError
from tests.convert.conftest import Capture, Patch
from tests.refusals import refused

TFLITE, ONNX, NATIVE = ArtifactFormat
INT4, MIXED, INT8 = Precision.INT4, Precision.MIXED, Precision.INT8
LITERT, ENGINE = RuntimeName.LITERT, RuntimeName.NATIVE
KEPT, LOST, UNDECIDED = Loss(0.2, -0.4, 0.8, 400), Loss(9.0, 7.0, 11.0, 50), Loss(0.7, -1.0, 2.4, 400)


def make_ladder(*losses: Loss | None, **changes: Any) -> Ladder:
    """int4, mixed, int8 and fp32; only native packs, and it has no fp32."""
    sizes = {INT4: 50, MIXED: 60, INT8: 90}
    rungs = [
        Rung(
            precision,
            0.9,
            {TFLITE: 100, NATIVE: sizes[precision]},
            loss,
            None,
            {LITERT: 50, ENGINE: 30 - precision.bits},
        )
        for precision, loss in zip(sizes, losses, strict=True)
    ]
    rungs.append(Rung(Precision.FP32, 1.0, {TFLITE: 400}, None, None, {LITERT: 99}))
    ladder = Ladder("0" * 64, Precision.FP32, "CartPole-v1", "", SEED, 1.0, Prefer.SIZE, tuple(rungs))
    return replace(ladder, **changes)


TAKEN: dict[str, tuple[list[Loss | None], list[ArtifactFormat], Prefer, Precision]] = {
    "the smallest": ([KEPT, KEPT, KEPT], [NATIVE], Prefer.SIZE, INT4),
    "of equal containers the one with more bits": ([KEPT, KEPT, KEPT], [TFLITE], Prefer.SIZE, INT8),
    "the fastest": ([KEPT, KEPT, KEPT], [TFLITE, NATIVE], Prefer.SPEED, INT8),
    "not what loses more": ([LOST, KEPT, KEPT], [NATIVE], Prefer.SIZE, MIXED),
    "not what is not decided": ([UNDECIDED, LOST, KEPT], [NATIVE], Prefer.SIZE, INT8),
    "what was trained": ([LOST, LOST, LOST], [TFLITE, NATIVE], Prefer.SIZE, Precision.FP32),
    "actions, where the return is not known": ([None, None, None], [TFLITE], Prefer.SIZE, Precision.FP32),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken(case: str) -> None:
    losses, formats, prefer, taken = TAKEN[case]
    ladder = make_ladder(*losses, prefer=prefer)
    assert choose_precisions(ladder, "auto", formats) == (taken,)
    assert f"taken for {formats[0].value}" in ladder.describe("small", formats[:1]) or taken is Precision.FP32


def test_a_device_of_a_fleet_gets_what_is_taken_for_its_runtime() -> None:
    ladder = make_ladder(KEPT, KEPT, KEPT)
    taken = {"native": INT4, "litert": INT8}
    for runtime, precision in taken.items():
        assert parse_member_settings(Member("pi@a", bits="auto", runtime=runtime), ladder)[0] == (precision,)


def test_a_task_that_is_not_installed_leaves_the_actions(pole: Bundle, monkeypatch: Patch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise TaskError("the suite is not installed.")

    monkeypatch.setattr("quarl.train.suites.make.make_task", absent)
    ladder = climb(pole, Question())
    assert ladder.task == "" and "not installed" in ladder.hints[0]
    assert all(rung.loss is None for rung in ladder.rungs)


def test_nothing_is_taken_where_nothing_keeps_the_return() -> None:
    with refused(BundleError, "nothing_keeps_the_return", shows=["native", "--max-loss"]):
        make_ladder(LOST, UNDECIDED, LOST).choose([NATIVE])
    with refused(BundleError, "no_ladder", shows=["quarl convert --bits auto"]):
        choose_precisions(None, "auto", [TFLITE])
    assert choose_precisions(None, "32,8,8", []) == (Precision.FP32, INT8)


class Episodes:
    """A task of which a policy's returns are what ``decide`` is, an episode a number, of some seed."""

    name, presets, is_image = "made", ("",), False

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def evaluate(self, decide: Any, episodes: int, seed: int, preset: str) -> Any:
        self.asked.append((episodes, seed))
        own = np.random.default_rng(seed).normal(100.0, 10.0, episodes)
        lost = decide(np.zeros((episodes, 1)))
        return type("Evaluation", (), {"different": list(own - lost)})


def lose(loss: Any, monkeypatch: Patch) -> tuple[Loss | None, list[tuple[int, int]]]:
    task = Episodes()
    monkeypatch.setattr(climbing, "deciding", lambda spec, results: results)
    judge = Judge(task, "", SEED, 50, 1.0, None, np.ravel, {})  # type: ignore[arg-type]
    return judge.lose(loss), task.asked[1::2]


def test_as_many_episodes_as_the_differences_ask_for(monkeypatch: Patch) -> None:
    noise = np.random.default_rng(3).normal(size=800)
    assert lose(lambda rows: 30.0 + noise[: len(rows)], monkeypatch)[1] == [(50, SEED)], "lost beyond doubt"
    found, asked = lose(lambda rows: 0.01 * noise[: len(rows)], monkeypatch)
    assert asked == [(50, SEED)] and found is not None and found.high < 0.1
    found, asked = lose(lambda rows: 2.5 * noise[: len(rows)], monkeypatch)
    assert asked[0] == (50, SEED) and 50 < asked[1][0] < 800 and found is not None and found.episodes == asked[1][0]
    assert lose(lambda rows: 40.0 * noise[: len(rows)], monkeypatch)[1][-1] == (800, SEED), "not more than sixteenfold"


def test_equal_episodes_are_no_certainty(monkeypatch: Patch) -> None:
    found, asked = lose(np.ravel, monkeypatch)
    assert asked == [(50, SEED), (300, SEED)] and found == Loss(0.0, 0.0, 1.0, 300)


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return copy_bundle(Bundle.load(ZOO / "benchmark" / "cartpole-ppo"), tmp_path_factory.mktemp("pole") / "pole", "zoo")


def test_integers_that_decide_the_contrary_are_not_taken(pole: Bundle, monkeypatch: Patch) -> None:
    def other(spec: Any, weights: Any, *rest: Any) -> Any:
        return quantize_network(spec, {**weights, "head/kernel": -weights["head/kernel"]}, *rest)

    monkeypatch.setattr(pipeline, "quantize_network", other)
    ladder = climb(pole, Question(episodes=20))
    int8 = ladder.rung(INT8)
    assert int8 is not None and int8.loss is not None and int8.loss.low > 50 and int8.agreement < FLOOR
    assert (ladder.task, ladder.choose([TFLITE])) == ("CartPole-v1", Precision.W8)
    assert read_ladder(pole) == ladder
    taken = ladder.rung(Precision.W8)
    assert taken is not None and taken.fresh is not None and ladder.seed == SEED != FRESH_SEED
    assert any("to blame" in hint for hint in ladder.hints) and "loses more" in ladder.describe("pole")


def test_the_layer_to_blame_is_the_one_of_too_few_bits(pole: Bundle) -> None:
    rows = pole.golden().observations
    own = forward_float(pole.spec, pole.weights(), rows)
    for worst in ("dense_0", "head"):
        bits = {layer: 2 if layer == worst else 8 for layer in ("dense_0", "dense_1", "head")}
        base, by_layer = float_layers(pole, bits, rows, own)
        assert max(by_layer, key=lambda layer: by_layer[layer]) == worst and by_layer[worst] > base + (1 - base) / 2


def test_auto_writes_for_each_format_what_keeps_the_actions(
    bundle: Bundle, capsys: Capture, monkeypatch: Patch
) -> None:
    words = ["--policy", str(bundle.path), "--bits", "auto", "--max-loss", "5"]
    assert cli.main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found, ladder = answer["ladders"]["small"], read_ladder(Bundle.load(bundle.path))
    assert found["task"] == "" and "not known" in found["hints"][0] and ladder is not None
    for entry in answer["artifacts"]:
        (precision,) = choose_precisions(ladder, "auto", [ArtifactFormat(entry["format"])])
        assert entry["precision"] == precision.value and entry["fp32_agreement"] > 0.9
    assert {entry["format"] for entry in answer["artifacts"]} >= {"tflite", "onnx"}
    made = Policy(Bundle.load(bundle.path)).convert(bits="auto", max_loss=5.0)
    assert [one.precision for one in made.artifacts] == [entry["precision"] for entry in answer["artifacts"]]
    assert "at most 5 %" in str(made) and made.to_dict()["ladder"]["rungs"][0]["bytes"]["tflite"] > 0
    monkeypatch.setattr(cli, "climb", None)  # what is known already is not asked again
    assert cli.main([*words, "--missing"]) == 0 and "nothing to convert" in capsys.readouterr().out


def test_what_falls_is_not_deployed_unless_accepted(bundle: Bundle, capsys: Capture) -> None:
    assert cli.main(["--policy", str(bundle.path), "--bits", "2", "--format", "native"]) == 1
    assert cli.main(["--policy", str(bundle.path), "--bits", "2", "--format", "native", "--accept"]) == 0
    loaded, two = Bundle.load(bundle.path), Precision.INT2
    with refused(AcceptanceError, "acceptance", shows=["int2.native", "--accept", "--bits auto"]):
        require_artifact(loaded, None, two, NATIVE, accept=False)
    kept = require_artifact(loaded, None, two, NATIVE, accept=True)
    assert kept.agreement < FLOOR and kept.return_lost is None
    ladder = make_ladder(KEPT, KEPT, KEPT)
    judged = replace(ladder, rungs=(*ladder.rungs, Rung(two, kept.agreement, {NATIVE: 9}, LOST, KEPT)))
    with refused(AcceptanceError, "acceptance"):
        require_artifact(loaded, judged, two, NATIVE, accept=False)
    judged = replace(ladder, rungs=(*ladder.rungs, Rung(two, kept.agreement, {NATIVE: 9}, KEPT, UNDECIDED)))
    assert require_artifact(loaded, judged, two, NATIVE, accept=False).return_lost == UNDECIDED, (
        "that of fresh episodes"
    )


def test_a_ladder_of_other_weights_counts_for_nothing(bundle: Bundle, tmp_path: Path) -> None:
    assert read_ladder(bundle) is None
    make_ladder(KEPT, KEPT, KEPT).write(bundle.path)
    assert read_ladder(bundle) is None
    (bundle.path / LADDER_FILE).write_text("{")
    with refused(BundleError, "bundle", shows=[LADDER_FILE, "--bits auto"]):
        read_ladder(bundle)


@pytest.mark.slow
def test_the_fastest_is_counted(pole: Bundle, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climbing, "TRIED", (Precision.INT4, Precision.INT8))
    words = ["--policy", str(pole.path), "--bits", "auto", "--format", "native", "--prefer", "speed", "--json"]
    assert cli.main([*words, "--episodes", "10"]) == 0
    rungs = json.loads(capsys.readouterr().out)["ladders"]["cartpole-ppo"]["rungs"]
    counts = {rung["precision"]: rung["instructions"] for rung in rungs}
    assert counts["int4"]["native"] < counts["int8"]["native"] < 10_000 and set(counts["fp32"]) == {"native"}
