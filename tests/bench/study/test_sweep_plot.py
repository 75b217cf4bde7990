"""The sweet-spot plots hold every width, say n and what the marks are, and cut nothing off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench import command_line
from bench.report.intervals import Estimate
from bench.study.sweep import plot as sweep_plot
from bench.study.sweep.store import Change, Outcome, Sweep, Width, write_sweep
from policy.quantization import Scheme

Texts = Callable[[Figure], list[str]]


def flown(sweep: Sweep) -> Sweep:
    """The same with two presets and success, as navigation has."""

    def outcomes(outcome: Outcome) -> tuple[Outcome, ...]:
        success = Estimate(0.9, 0.85, 0.94)
        return tuple(replace(outcome, preset=preset, success=success) for preset in ("hard", "shipped"))

    def changes(change: Change) -> tuple[Change, ...]:
        return tuple(replace(change, preset=preset) for preset in ("hard", "shipped"))

    def width(one: Width) -> Width:
        return replace(one, outcomes=outcomes(one.outcomes[0]), changes=changes(one.changes[0]))

    widths = tuple(width(one) for one in sweep.widths)
    return replace(sweep, bundle="II", task="navigation", reference=outcomes(sweep.reference[0]), widths=widths)


def test_a_bundles_picture_says_everything(made_sweep: Sweep, texts: Texts) -> None:
    schemes = [
        made_sweep,
        replace(made_sweep, scheme=Scheme.SYMMETRIC),
        replace(made_sweep, variant="weights"),
        replace(made_sweep, scheme=Scheme.QUARL_RELEASED),
        replace(made_sweep, variant="a4"),
    ]
    figure = sweep_plot.bundle_figure(schemes)
    said = texts(figure)
    assert any(text.startswith("How few bits cartpole-dqn takes on CartPole-v1\n") for text in said)
    assert any("300 episodes a point (100 of each seed 0, 2, 4)" in text and "95 %" in text for text in said)
    assert {"4", "8", "fp16", "32", "fp32", "return", "bits of the weights"} <= set(said)
    assert sum(text.startswith(("quarl", "symmetric")) for text in said) == 5
    assert any("activations of 4 bits" in text for text in said)
    (axes,) = figure.axes
    # one mark for each scheme's integer widths, and fp16 once; the widths stand in order, fp16 after 16
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "fp16", "32"]
    colours = [container.lines[0].get_color() for container in axes.containers]
    assert len(colours) == 6 and len(set(colours)) == 6


def test_a_scheme_keeps_its_colour_from_picture_to_picture(made_sweep: Sweep) -> None:
    symmetric = replace(made_sweep, scheme=Scheme.SYMMETRIC)
    alone = sweep_plot.bundle_figure([symmetric]).axes[0].containers[0]
    beside = sweep_plot.bundle_figure([symmetric, made_sweep]).axes[0].containers[-1]
    assert alone.lines[0].get_color() == beside.lines[0].get_color()


def test_points_are_where_the_numbers_are(made_sweep: Sweep) -> None:
    figure = sweep_plot.bundle_figure([made_sweep])
    integers, half = figure.axes[0].containers
    assert integers.lines[0].get_ydata().tolist() == [118.6, 499.0, 500.0]
    assert half.lines[0].get_ydata().tolist() == [500.0]
    (_, _, (bars,)) = integers.lines
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([109.8, 127.4])


def test_a_task_with_presets_and_success(made_sweep: Sweep, texts: Texts) -> None:
    one = flown(made_sweep)
    figure = sweep_plot.task_figure([one, replace(one, bundle="I", algorithm="ppo")])
    said = texts(figure)
    assert len(figure.axes) == 4
    assert {"\npreset hard", "\npreset shipped", "success", "return", "I (PPO)", "II (DQN)"} <= set(said)
    assert {"86 %", "90 %"} <= set(said)


def test_a_task_without_presets(made_sweep: Sweep, texts: Texts) -> None:
    sweeps = [made_sweep, replace(made_sweep, bundle="cartpole-ppo", algorithm="ppo", trained_bits=4)]
    said = texts(sweep_plot.task_figure(sweeps))
    assert any(text.startswith("How few bits policies of CartPole-v1 take") for text in said)
    assert any(text.startswith("quarl: the paper's quantizer") and "diamonds: fp16" in text for text in said)
    assert {"cartpole-dqn", "cartpole-ppo, trained at 4 bits"} <= set(said)


@pytest.mark.slow
def test_files_are_written_and_the_same_again(tmp_path: Path, made_sweep: Sweep) -> None:
    sweeps = [made_sweep, replace(made_sweep, bundle="cartpole-ppo", algorithm="ppo")]
    files = sweep_plot.save_figures(sweeps, tmp_path)
    stems = ["sweetspot-cartpole-dqn", "sweetspot-cartpole-ppo", "sweetspot-task-cartpole-v1-quarl"]
    assert [file.name for file in files] == [f"{stem}{suffix}" for stem in stems for suffix in (".png", ".svg")]
    before = {file: file.read_bytes() for file in files}
    sweep_plot.save_figures(sweeps, tmp_path)
    assert {file: file.read_bytes() for file in files} == before


def test_what_is_not_stored_is_said(tmp_path: Path, made_sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--study", str(tmp_path), "--output", str(tmp_path / "pictures")]
    assert sweep_plot.main(where) == command_line.EXIT_FAILED
    assert "python -m bench.study sweep cartpole-dqn --keep" in capsys.readouterr().err
    write_sweep(made_sweep, tmp_path)
    assert sweep_plot.main([*where, "--only", "nothing"]) == command_line.EXIT_USAGE
    assert "there are sweeps of cartpole-dqn" in capsys.readouterr().err
    assert sweep_plot.main([*where, "--only", "cartpole-dqn"]) == command_line.EXIT_OK
    assert "sweetspot-cartpole-dqn.png" in capsys.readouterr().out
