"""Training speed: medians and ratios by hand, the table of rows, refusals, and a training of our own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.bench.study import running, speed
from quarl.bench.study.experiment import Results, load_stored
from quarl.bench.study.peers.times import median_time, ratio
from quarl.bench.study.records import Record
from quarl.bench.study.speed import EXPERIMENT, SB3

Recorded = Callable[..., Record]
NAME = "ppo,Pendulum-v1"


def run(cpu_s: float, reached: bool = True) -> dict[str, Any]:
    return {"return": cpu_s, "import_cpu_s": 0.5, "reached": reached}


@pytest.fixture
def trained(recorded: Recorded) -> Callable[..., list[Record]]:
    """Trainings of one side, each of (CPU s, reached, steps)."""

    def make(program: str, *runs: tuple[float, bool, int]) -> list[Record]:
        return [
            recorded(
                {"program": program} if program else {}, [cpu_s], NAME, 10 + number, reached=reached, steps=steps,
                import_cpu_s=0.5, judging_cpu_s=0.1, versions={"numpy": "1.26.4"}, load=2.4 + number,
            )
            for number, (cpu_s, reached, steps) in enumerate(runs)
        ]  # fmt: skip

    return make


def test_the_median_counts_a_run_that_did_not_reach_as_the_longest() -> None:
    assert median_time([run(3.0), run(1.0), run(2.0)]) == (2.0, True)
    assert median_time([run(3.0), run(1.0), run(2.0)], training_only=True) == (1.5, True)
    # Sorted: 3 s, 5 s, never; it stopped after 2 s, which is no sign of speed.
    assert median_time([run(2.0, reached=False), run(5.0), run(3.0)]) == (5.0, True)
    assert median_time([run(2.0, reached=False), run(9.0, reached=False), run(3.0)]) == (9.0, False)


def test_the_ratio_says_when_it_is_a_bound_or_unknown() -> None:
    assert ratio((0.5, True), (4.0, True)) == "8.00×"
    assert ratio((0.5, True), (4.0, False)) == "> 8.00×"
    assert ratio((0.5, False), (4.0, True)) == ratio((0.5, True), None) == "–"


def test_the_table_of_rows(trained: Callable[..., list[Record]]) -> None:
    ours = trained("", (1.0, True, 3000), (0.75, True, 2000), (2.0, True, 4000))
    theirs = trained(SB3, (9.0, False, 90_000), (8.0, False, 90_000), (7.0, True, 50_000))
    (made,) = Results(EXPERIMENT, [*ours, *theirs]).tables()
    assert made.rows == (
        ("ppo Pendulum-v1", "−200", "1.00", "> 9.00", "> 9.00×", "0.5", "> 8.50", "> 17.0×", "3,000", "90,000"),
    )
    assert "seeds 10, 11, 12," in made.notes[0]
    assert "a machine; 2026-11-20; code v0.1; load average 4.4 while" in made.notes[-1]
    assert "ours: numpy 1.26.4; stable-baselines3: numpy 1.26.4" in made.notes[-1]
    (alone,) = Results(EXPERIMENT, ours).tables()
    assert alone.rows[0][3:5] == ("–", "–")
    short = [{**record, "condition": {"limit": 2048}} for record in ours]
    (both,) = Results(EXPERIMENT, [*ours, *short]).tables()
    assert [row[0] for row in both.rows] == ["ppo Pendulum-v1", "ppo Pendulum-v1, 2,048 steps at most"]


def test_a_missing_environment_is_named_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "PEERS_PYTHON", tmp_path / "python")
    monkeypatch.setattr(running, "measure_cell", lambda *_: pytest.fail("it trained"))
    assert speed.main([]) == cli.EXIT_FAILED
    assert "next: make peers" in capsys.readouterr().err
    assert speed.main(["ppo,Pong", "--ours-only"]) == cli.EXIT_USAGE
    assert "no cell 'ppo,Pong'" in capsys.readouterr().err


def test_both_sides_are_trained_in_turn_and_ours_is_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int, int | None]] = []

    def fake(side: str, seconds: float) -> Any:
        def train(cell: speed.SpeedCell, seed: int, limit: int | None) -> tuple[float, dict[str, Any]]:
            order.append((side, seed, limit))
            return seconds, {
                "reached": True, "steps": 8, "import_cpu_s": 0.25, "judging_cpu_s": 0.0, "versions": {"numpy": "2"},
            }  # fmt: skip

        return train

    monkeypatch.setattr(speed, "PEERS_PYTHON", tmp_path)
    monkeypatch.setattr(speed, "train_ours", fake("ours", 0.5))
    monkeypatch.setattr(speed, "train_sb3", fake("theirs", 4.0))
    words = [NAME, "--seeds", "1,2", "--steps", "64", "--keep", "--results", str(tmp_path)]
    assert speed.main(words) == cli.EXIT_OK
    assert order == [("ours", 1, 64), ("theirs", 1, 64), ("ours", 2, 64), ("theirs", 2, 64)]
    kept = load_stored(dataclasses.replace(EXPERIMENT, folder=tmp_path)).found
    assert [(each["condition"], each["seed"], each["returns"]) for each in kept] == [
        ({"limit": 64}, 1, [0.5]), ({"limit": 64}, 2, [0.5]),
        ({"limit": 64, "program": SB3}, 1, [4]), ({"limit": 64, "program": SB3}, 2, [4]),
    ]  # fmt: skip
    assert speed.main(words) == cli.EXIT_OK
    assert len(order) == 4, "what is kept is not measured again"
    assert speed.main([*words, "--again"]) == cli.EXIT_OK
    assert len(order) == 8


def test_every_cell_has_settings_of_the_zoo_and_of_ours() -> None:
    zoo = json.loads(speed.ZOO.read_text(encoding="utf-8"))
    assert set(zoo["cells"]) == {name.replace(",", " ") for name in speed.CELLS}
    for name, known in speed.CELLS.items():
        assert zoo["cells"][name.replace(",", " ")]["source"].startswith(f"hyperparams/{known.method}.yml")
        assert json.loads(speed.settings_file(known).read_text(encoding="utf-8"))["settings"]["engine"] == "numpy"
        assert speed.identity(name) != speed.identity("ppo,CartPole-v1") or name == "ppo,CartPole-v1"


def test_one_training_of_ours() -> None:
    easy = dataclasses.replace(speed.CELLS["ppo,CartPole-v1"], target=5.0)
    seconds, found = speed.train_ours(easy, seed=0, limit=2048)
    assert found["reached"]
    assert found["steps"] <= 2048
    assert found["mean_return"] >= 5.0
    assert 0 < found["import_cpu_s"] < seconds
    assert found["versions"]["python"].startswith("3.11")
    hard = dataclasses.replace(easy, target=501.0)
    assert not speed.train_ours(hard, seed=0, limit=1024)[1]["reached"]


def test_the_zoos_words_for_settings() -> None:
    from quarl.bench.study.peers.stable_baselines3_run import arguments_of

    options = arguments_of({"learning_rate": "lin_0.2", "train_freq": [1, "episode"], "gamma": 0.98})
    assert options["learning_rate"](1.0) == 0.2
    assert options["learning_rate"](0.25) == pytest.approx(0.05)  # a quarter of the steps is left
    assert (options["train_freq"], options["gamma"]) == ((1, "episode"), 0.98)
