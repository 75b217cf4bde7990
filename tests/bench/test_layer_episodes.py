"""Which bundles are asked: opened before anything flies, and which kept answers are about their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import command_line
from bench.study.apart import command as precision_apart
from bench.study.apart import flying as precision_apart_flying
from bench.study.layers import command as layer_widths
from bench.study.layers import episodes as layer_episodes
from bench.study.layers import flying as layer_flying
from bench.study.layers.episodes import Asked, current, open_all, weights_sha256
from bench.study.sweep import command as sweep
from policy.bundle import Bundle
from policy.locate import ZOO

Balancing = Callable[..., Bundle]


@dataclass(frozen=True)
class Answer:
    """What is kept of a bundle."""

    bundle: str
    weights_sha256: str


@pytest.mark.parametrize(
    ("command", "flying"), [(layer_widths, layer_flying), (precision_apart, precision_apart_flying)]
)
def test_a_missing_suite_is_named_before_anything_flies(
    command: object, flying: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = sweep.open_bundle

    def without_mujoco(name: str) -> tuple[Bundle, object]:
        if "walker2d" in name:
            raise command_line.UsageError("MuJoCo is not installed here.")
        return opened(name)

    monkeypatch.setattr(sweep, "open_bundle", without_mujoco)
    monkeypatch.setattr(flying, "measure", lambda *_: pytest.fail("it flew"))
    assert command.main(["cartpole-dqn", "walker2d-ddpg"]) == command_line.EXIT_USAGE  # type: ignore[attr-defined]
    assert "MuJoCo is not installed" in capsys.readouterr().err


def test_what_is_done_is_not_opened(balancing: Balancing, tmp_path: Path) -> None:
    own = str(balancing(tmp_path / "mine").path)
    assert [asked.name for asked in open_all(["walker2d-ddpg", "cartpole-dqn", own], {"walker2d-ddpg", "mine"}, 3)] == [
        "cartpole-dqn"
    ]


def test_a_committed_bundles_answer_is_not_replaced(balancing: Balancing, tmp_path: Path) -> None:
    own = str(balancing(tmp_path / "cartpole-dqn").path)
    (asked,) = open_all([own], {}, 3)
    assert asked == Asked(asked.bundle, asked.task, 3)
    with pytest.raises(command_line.UsageError, match="has other weights than zoo/benchmark/cartpole-dqn") as raised:
        open_all([own], {}, 3, "layer_widths")
    assert "python -m bench.study layers" in raised.value.next_step
    assert len(open_all(["cartpole-dqn"], {}, 3, "layer_widths")) == 1


def test_answers_of_own_bundles_go_stale_too(
    balancing: Balancing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layer_episodes, "ARTIFACTS", tmp_path)
    first = Answer("mine", weights_sha256(balancing(tmp_path / "mine")))
    gone = Answer("gone", "0" * 64)
    path = str(tmp_path / "mine")
    assert current([first, gone], "layer_widths") == [first, gone]
    assert current([first, gone], "layer_widths", [path]) == [first], "a path means its folder's name"
    balancing(tmp_path / "mine", sign=-1.0)  # trained anew
    assert current([first, gone], "layer_widths") == [gone]
    assert "next: python -m bench.study layers mine --keep" in capsys.readouterr().err
    assert current([first, gone], "layer_widths", [path]) == []
    assert f"next: python -m bench.study layers {path} --keep" in capsys.readouterr().err


def test_a_committed_bundles_answer_is_not_an_own_ones(
    balancing: Balancing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Answer("cartpole-dqn", weights_sha256(Bundle.load(ZOO / "benchmark" / "cartpole-dqn")))
    own = str(balancing(tmp_path / "cartpole-dqn").path)
    assert current([kept], "layer_widths", ["cartpole-dqn"]) == [kept]
    assert current([kept], "layer_widths", [own]) == []
    # --keep would be refused
    assert capsys.readouterr().err.endswith(f"next: python -m bench.study layers {own}\n")
