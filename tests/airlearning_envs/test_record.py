"""Filming a flight: quarl record."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import pytest

from quarl.airlearning_envs import record


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
    assert record.main(["--policy", "no-such-policy"]) == 1
    with pytest.raises(SystemExit):
        record.main(["--settings", "[1]"])
    assert not list(tmp_path.iterdir())
