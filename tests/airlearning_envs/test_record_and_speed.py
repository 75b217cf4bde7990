"""The two commands of this room: filming a flight, and measuring the simulator's speed."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import pytest

from airlearning_envs import record
from bench.study import command, env_speed
from bench.study.experiment import Results


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_flight_is_filmed(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "films" / f"flight{suffix}"
    arguments = ["--preset", "hard", "--policy", "blind", "--episode", "3", "--side", "160", "--json"]
    assert record.main([*arguments, "--output", str(film)]) == 0
    report = json.loads(capsys.readouterr().out)
    pictures = imageio.imread(film, index=None)
    assert pictures.shape[1:] == (160, 160, 3)
    # 20 frames a second of flight and 1.5 s of the last one (a GIF merges equal frames).
    assert report["frames"] == round(report["flight_time_s"] * 20) + 30
    assert pictures.shape[0] >= report["frames"] - 30
    assert [path.name for path in film.parent.iterdir()] == [film.name], "no draft is left behind"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "flight.avi"], ".gif or .mp4"),
        (["--preset", "soft"], "easy, medium, shipped, hard"),
        (["--settings", '{"gravity": 1}'], "'gravity' is not known"),
        (["--policy", "no-such-policy"], "no-such-policy"),
        (["--settings", "[1]"], "allowed is a JSON object"),
        (["--settings", '{"max_steps": 1e999}'], "max_steps is inf"),
    ],
)
def test_wrong_film_orders_write_nothing(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record.main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_speed_is_reported_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["hard", "--envs", "4", "--steps", "60", "--rounds", "2"]
    assert command.main("bench.study.env_speed", [*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["face"] for row in rows] == ["core", "vector"]
    for row in rows:
        assert row["return"]["value"] > 0 and len(row["steps_per_cpu_s"]) == 2
        assert row["ended"] > 0 and row["envs"] == 4 and row["numpy"]
    assert command.main("bench.study.env_speed", [*words, "--face", "core"]) == 0
    shown = capsys.readouterr().out
    assert "steps/s" in shown and "one core, numpy" in shown and "vector" not in shown


def test_speed_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main("bench.study.env_speed", ["soft"]) == 2
    assert "there are easy, medium, shipped, hard" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        command.main("bench.study.env_speed", ["--envs", "0"])
    assert stopped.value.code == 2
    slow = ["easy", "--envs", "4", "--steps", "5", "--rounds", "1", "--face", "core", "--at-least", "1e15"]
    assert command.main("bench.study.env_speed", slow) == 1
    assert "easy/core makes " in capsys.readouterr().err


def test_speed_is_the_median_of_the_rounds() -> None:
    record = {
        "subject": "hard", "condition": {"face": "core", "envs": 64, "steps": 1000}, "preset": "", "seed": 0,
        "returns": [1000.0, 4000.0, 2000.0], "successes": None,
        "measures": {"steps_per_cpu_s": [3.0, 9.0, 5.0], "ended": 7},
        "machine": "a machine", "code": "v0.1", "date": "2026-11-20",
    }  # fmt: skip
    (table,) = Results(env_speed.EXPERIMENT, [record]).tables()
    assert table.rows == (("hard", "core", "64", "1,000", "3", "2,000", "5", "7"),)
