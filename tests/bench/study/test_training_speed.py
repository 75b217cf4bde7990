"""bench/study/speed/command.py: medians and ratios by hand, the stored answer, refusals, and a training of our own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench import command_line
from bench.report.store import StoreError, refuse_less
from bench.study.speed import command as training_speed
from bench.study.speed import table as training_table
from bench.study.speed.table import OURS, SB3, Outcome, median_time, ratio


def outcome(cpu_s: float, reached: bool = True, steps: int = 1000, seed: int = 10) -> Outcome:
    return Outcome(seed, reached, steps, 480.0, cpu_s, import_cpu_s=0.5, judging_cpu_s=0.1)


def document(**sides: list[Outcome]) -> dict[str, Any]:
    runs = {name: [dataclasses.asdict(found) for found in outcomes] for name, outcomes in sides.items()}
    return {
        "machine": "a machine",
        "time": "2026-11-20T12:00:00Z",
        "code": "abc",
        "episodes": 20,
        "versions": {name: {"numpy": "1.26.4"} for name in runs},
        "settings": {OURS: "train/settings", SB3: "the zoo"},
        "cells": [{**dataclasses.asdict(training_speed.CELLS[1]), "runs": runs}],
    }


def test_the_median_counts_a_run_that_did_not_reach_as_the_longest() -> None:
    assert median_time([outcome(3.0), outcome(1.0), outcome(2.0)]) == (2.0, True)
    assert median_time([outcome(3.0), outcome(1.0), outcome(2.0)], training_only=True) == (1.5, True)
    # Sorted: 3 s, 5 s, never; it stopped after 2 s, which is no sign of speed.
    assert median_time([outcome(2.0, reached=False), outcome(5.0), outcome(3.0)]) == (5.0, True)
    assert median_time([outcome(2.0, reached=False), outcome(9.0, reached=False), outcome(3.0)]) == (9.0, False)


def test_the_ratio_says_when_it_is_a_bound_or_unknown() -> None:
    assert ratio((0.5, True), (4.0, True)) == "8.00×"
    assert ratio((0.5, True), (4.0, False)) == "> 8.00×"
    assert ratio((0.5, False), (4.0, True)) == "–"


def test_the_table_of_a_stored_answer() -> None:
    ours = [outcome(1.0, steps=3000), outcome(0.75, steps=2000), outcome(2.0, steps=4000)]
    theirs = [outcome(9.0, False, 90_000), outcome(8.0, False, 90_000), outcome(7.0, True, 50_000)]
    made = training_table.table(document(**{OURS: ours, SB3: theirs}))
    assert made.rows == (
        ("ppo Pendulum-v1", "−200", "1.00", "> 9.00", "> 9.00×", "0.5", "> 8.50", "> 17.0×", "3,000", "90,000"),
    )
    assert "seeds 10" in made.notes[0]
    alone = training_table.table(document(**{OURS: ours}))
    assert alone.rows[0][3:5] == ("–", "–")


def test_the_stored_answer_is_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "training-speed.json"
    monkeypatch.setattr(training_table, "kept_file", lambda: stored)
    with pytest.raises(StoreError, match=r"nothing was measured yet[\s\S]*speed --keep"):
        training_table.kept_table()
    stored.write_text("{}")
    with pytest.raises(StoreError, match="damaged"):
        training_table.kept_table()
    stored.write_text(json.dumps(document(**{OURS: [outcome(1.0)], SB3: [outcome(4.0)]})))
    assert training_table.kept_table().rows[0][2:5] == ("1.00", "4.00", "4.00×")


def test_a_missing_environment_is_named_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(command_line.BenchError, match="make peers"):
        training_speed.require_peers(tmp_path / "python")
    monkeypatch.setattr(training_speed.require_peers, "__defaults__", (tmp_path / "python",))
    monkeypatch.setattr(training_speed, "measure", lambda *_: pytest.fail("it trained"))
    assert training_speed.main([]) == command_line.EXIT_FAILED
    assert "next: make peers" in capsys.readouterr().err
    assert training_speed.main(["--keep", "--ours-only"]) == command_line.EXIT_FAILED
    with pytest.raises(SystemExit):
        training_speed.main(["--cell", "ppo,Pong"])


def test_every_cell_has_settings_of_the_zoo_and_of_ours() -> None:
    zoo = json.loads((training_speed.PEERS / "stable_baselines3_zoo.json").read_text(encoding="utf-8"))
    assert set(zoo["cells"]) == {known.name for known in training_speed.CELLS}
    for known in training_speed.CELLS:
        assert zoo["cells"][known.name]["source"].startswith(f"hyperparams/{known.method}.yml")
        ours = training_speed.ROOT / "train" / "settings" / f"{known.task}-{known.method}.json"
        assert json.loads(ours.read_text(encoding="utf-8"))["settings"]["engine"] == "numpy"


def test_one_training_of_ours() -> None:
    easy = dataclasses.replace(training_speed.CELLS[0], target=5.0)
    found, versions = training_speed.train_ours(easy, seed=0, steps=2048)
    assert found.reached
    assert found.steps <= 2048
    assert found.mean_return >= 5.0
    assert 0 < found.import_cpu_s < found.cpu_s
    assert versions["python"].startswith("3.11")
    hard = dataclasses.replace(training_speed.CELLS[0], target=501.0)
    assert not training_speed.train_ours(hard, seed=0, steps=1024)[0].reached


def test_the_zoos_words_for_settings() -> None:
    from bench.study.speed.peers.stable_baselines3_run import arguments_of

    said = arguments_of({"learning_rate": "lin_0.2", "train_freq": [1, "episode"], "gamma": 0.98})
    assert said["learning_rate"](1.0) == 0.2
    assert said["learning_rate"](0.25) == pytest.approx(0.05)  # a quarter of the steps is left
    assert (said["train_freq"], said["gamma"]) == ((1, "episode"), 0.98)


def test_a_stored_answer_gives_way_to_no_smaller_one() -> None:
    three, two = (document(**{OURS: [outcome(1.0)] * count, SB3: [outcome(2.0)] * 3}) for count in (3, 2))
    old, new = training_speed.amounts(three), training_speed.amounts(two)
    with pytest.raises(StoreError, match=r"ppo Pendulum-v1 ours, .* 2 instead of 3 seeds; nothing was written"):
        refuse_less(Path("training-speed.json"), old, new, "seeds")
    refuse_less(Path("training-speed.json"), new, old, "seeds")
