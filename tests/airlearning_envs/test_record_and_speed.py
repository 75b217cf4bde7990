"""The two commands of this room: filming a flight, and measuring the simulator's speed."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import pytest

from airlearning_envs import record
from bench.study.speed import env_speed


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
    arguments = ["--preset", "hard", "--envs", "4", "--steps", "60", "--rounds", "1"]
    assert env_speed.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["cpu_model"] and report["numpy"]
    assert [s["face"] for s in report["speeds"]] == ["core", "vector"]
    for speed in report["speeds"]:
        assert speed["steps_per_s"] > 0 and speed["episodes"] > 0 and speed["envs"] == 4
    assert env_speed.main(arguments) == 0
    assert "steps/s" in capsys.readouterr().out


def test_speed_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert env_speed.main(["--preset", "soft"]) == 2
    assert "allowed are easy, medium, shipped, hard" in capsys.readouterr().err
    assert env_speed.main(["--envs", "0"]) == 2
    assert env_speed.main(["--preset", "easy", "--steps", "5", "--rounds", "1", "--at-least", "1e15"]) == 1
