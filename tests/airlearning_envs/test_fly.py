"""``quarl fly``, in the embedded simulator and in the stand-in, and ``quarl record``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")
import imageio.v3 as imageio

from quarl.airlearning_envs import record
from quarl.airlearning_envs.fly import main
from quarl.airlearning_envs.simulators.airsim.stand_in import Server, StandIn


def test_the_same_episodes_in_both_simulators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "flight.gif"
    common = ["--preset", "shipped", "--episodes", "2", "--seed", "3", "--json"]
    assert main(common) == 0
    embedded = json.loads(capsys.readouterr().out)
    with Server(StandIn()) as server:
        where = ["--simulator", "airsim", "--address", f"127.0.0.1:{server.port}", "--client", "own"]
        assert main([*common, *where, "--record", str(film)]) == 0
    served = json.loads(capsys.readouterr().out)
    assert film.stat().st_size > 1000 and served["record"] == str(film)
    assert served["causes"] == embedded["causes"] and served["not_counted"] == {}
    assert served["through"] == "stand-in for AirSim, the project's own client" and embedded["through"] == "numpy"


def test_the_embedded_simulator_is_filmed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "flight.gif"
    assert main(["--preset", "easy", "--episodes", "3", "--record", str(film)]) == 0
    assert film.exists() and "of 3 episodes reached the goal" in capsys.readouterr().out


def test_what_is_finished_is_shown_when_the_server_ends(capsys: pytest.CaptureFixture[str]) -> None:
    world = StandIn()
    with Server(world) as server:
        resets = 0
        reset = world._reset

        def ending() -> None:
            nonlocal resets
            resets += 1
            if resets == 3:
                server.__exit__(None, None, None)
            reset()

        world._reset = ending  # type: ignore[method-assign]
        world._methods = world._table()
        where = ["--simulator", "airsim", "--address", f"127.0.0.1:{server.port}", "--client", "own"]
        assert main(["--episodes", "9", "--json", *where]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 2 and "closed the connection" in err


def test_nobody_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with Server(StandIn()) as server:
        pass
    assert main(["--simulator", "airsim", "--address", f"127.0.0.1:{server.port}"]) == 2
    assert "no simulator at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--address", "127.0.0.1:1"], "add simulator='airsim'"),
        (["--simulator", "airsim", "--address", "nonsense:port"], "allowed is host:port"),
        (["--simulator", "airsim", "--dialect", "unreal"], "allowed are airsim, colosseum, cosys"),
        (["--preset", "mars"], "allowed are"),
        (["--record", "flight.txt"], ".gif or .mp4"),
        (["--settings", '{"wind": 1}'], "not known"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--episodes", "0"], ["--assets", "box"], ["--origin", "1"], ["--settings", "[]"]]
)
def test_what_cannot_be_read_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


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
