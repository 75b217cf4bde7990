"""Runs that did not end: they replace nothing, are said to be what they are, and the same command goes on with them."""

import io
import pydoc
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quarl.policy.bundle import Bundle
from quarl.train.runs.progress import TrainingProgress, time_left
from quarl.train.runs.request import TRAINING_FOLDER, UNFINISHED
from quarl.train.runs.run import Run
from tests.train.small_runs import PPO, assert_same_weights, curve, train

RUN = [*PPO, "--steps", "1024"]  # four iterations
NARROW = [*RUN[:2], "--model", "8", *RUN[4:]]
OLDEST = Path(__file__).with_name("oldest.safetensors")
"""The checkpoint of NARROW, interrupted in its second iteration."""
GOING_ON = "Going on with the run that was interrupted at step 512"


def at_row(monkeypatch: pytest.MonkeyPatch, row: int, happens: Callable[[], None]) -> None:
    """Something happens in the iteration that ends with this row of the curve; only in the next run."""
    report, rows = Run.report, 0

    def reporting(self: Run, *arguments: Any) -> None:
        nonlocal rows
        rows += 1
        if rows == row:
            happens()
        report(self, *arguments)

    monkeypatch.setattr(Run, "report", reporting)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupted(output: Path, *options: str) -> int:
    """Ctrl-C in the second iteration."""
    with pytest.MonkeyPatch.context() as patch:
        at_row(patch, 2, ctrl_c)
        return train(output, *options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("there", [True, False], ids=["over a bundle", "where there was none"])
def test_an_interrupted_run_replaces_nothing_and_the_same_command_goes_on(
    there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, folder = tmp_path / "I", tmp_path / TRAINING_FOLDER / "I"
    if there:
        assert train(output, *PPO, "--steps", "256") == 0
    before = files(output) if there else None
    assert interrupted(output, *RUN) == 130
    assert (files(output) if output.exists() else None) == before
    kept = Bundle.load(folder / UNFINISHED).spec
    assert (kept.name, kept.provenance["ended"], kept.provenance["steps"]) == ("I", "interrupted", 512)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{folder / UNFINISHED}: 512 steps, interrupted")
    assert (f"{output} is as it was" if there else f"There is no {output}") in last
    assert last.endswith("To go on, type the same command again.")

    assert train(output, *RUN) == 0
    assert capsys.readouterr().err.startswith(GOING_ON)
    assert Bundle.load(output).spec.provenance["resumed_at"] == [512]
    assert not (folder / UNFINISHED).exists()
    assert train(tmp_path / "whole", *RUN) == 0
    assert_same_weights(tmp_path / "whole", output)
    assert curve(tmp_path / "whole") == curve(output)
    # A run that has ended is not gone on with: the same command trains again.
    assert train(output, *RUN) == 0
    assert "Going on" not in capsys.readouterr().err
    assert "resumed_at" not in Bundle.load(output).spec.provenance


def test_a_checkpoint_of_the_oldest_version_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has none of the settings, nor of the statistics, that were added since; a field's ``before`` says the rest."""
    folder = tmp_path / TRAINING_FOLDER / "I"
    (folder / UNFINISHED).mkdir(parents=True)
    shutil.copy(OLDEST, folder / "checkpoint.safetensors")
    assert train(tmp_path / "I", *NARROW) == 0
    assert capsys.readouterr().err.startswith(GOING_ON)
    assert Bundle.load(tmp_path / "I").spec.provenance["resumed_at"] == [512]
    shutil.copy(OLDEST, folder / "checkpoint.safetensors")
    assert train(tmp_path / "I", *NARROW, "--resume", "--set", "weight_clip=1") == 2
    assert "settings.weight_clip = 0.0" in capsys.readouterr().err.replace("\n", " ")


def test_other_options_and_fresh_put_it_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / TRAINING_FOLDER
    assert interrupted(tmp_path / "I", *RUN) == 130
    checkpoint = (folder / "I" / "checkpoint.safetensors").read_bytes()
    capsys.readouterr()
    assert interrupted(tmp_path / "I", *RUN, "--seed", "4") == 130
    printed = capsys.readouterr().err
    assert printed.startswith("Starting over") and "step 512" in printed and "seed = 3" in printed
    assert (folder / "I.previous" / "checkpoint.safetensors").read_bytes() == checkpoint
    assert train(tmp_path / "I", *RUN, "--seed", "4", "--fresh") == 0
    assert "Going on" not in capsys.readouterr().err
    assert Bundle.load(tmp_path / "I").spec.provenance["steps"] == 1024
    assert train(tmp_path / "I", *RUN, "--fresh", "--resume") == 2
    assert "Leave one of them out" in capsys.readouterr().err


def test_a_run_that_was_killed_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while its bundle was being written, when all its steps were made."""

    def killed(*arguments: object) -> None:
        raise SystemExit

    monkeypatch.setattr("quarl.train.runs.results.write_bundle", killed)
    with pytest.raises(SystemExit):
        train(tmp_path / "I", *RUN)
    monkeypatch.undo()
    assert train(tmp_path / "I", *RUN) == 0
    assert capsys.readouterr().err.startswith("Going on with the run that was interrupted at step 1,024")
    assert Bundle.load(tmp_path / "I").spec.provenance["ended"] == "all steps made"


def test_the_minutes_of_a_run_that_is_gone_on_with_are_those_of_all_of_it(tmp_path: Path) -> None:
    # The minutes count from the start of the process, which is that of all the tests: more than they may take.
    assert interrupted(tmp_path / "I", *RUN, "--minutes", "6000") == 130
    past = Bundle.load(tmp_path / TRAINING_FOLDER / "I" / UNFINISHED).spec.provenance["wall_s"]
    minutes = f"{past / 60 / 2:.6f}"  # half of what it has taken already
    assert train(tmp_path / "I", *RUN, "--minutes", minutes) == 0
    origin = Bundle.load(tmp_path / "I").spec.provenance
    assert origin["steps"] == 512 + 256
    assert origin["ended"].endswith("minutes were over")


def test_ctrl_c_in_the_first_iteration_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of compiling, where a library makes an error of its own of KeyboardInterrupt."""
    assert train(tmp_path / "I", *RUN) == 0
    assert train(tmp_path / "I", *RUN, "--seed", "4") == 0  # there is a previous run, too
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()

    def compiling(*arguments: object) -> None:
        try:
            ctrl_c()
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr("quarl.train.accelerator.table.build_accelerated_update", compiling)
    assert train(tmp_path / "I", *RUN, "--seed", "5") == 130
    printed = capsys.readouterr().err
    assert printed == f"interrupted; there was no checkpoint yet; {tmp_path / 'I'} is as it was.\n"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert train(tmp_path / "new" / "I", *RUN) == 130
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    "where", ["quarl.train.runs.results.evaluate_final_policy", "quarl.train.runs.run.save_checkpoint"]
)
def test_ctrl_c_when_all_steps_are_made_ends_at_once_and_loses_nothing(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = cast("Callable[..., None]", pydoc.locate(where))

    def interrupting(*arguments: Any) -> None:
        ctrl_c()
        there(*arguments)

    monkeypatch.setattr(where, interrupting)
    assert train(tmp_path / "I", *RUN) == 130
    printed = capsys.readouterr().err
    assert printed.startswith("interrupted; the checkpoint of step 1,024 is kept")
    assert not (tmp_path / "I").exists()
    monkeypatch.undo()
    assert train(tmp_path / "I", *RUN) == 0


class InterruptingScreen(io.RawIOBase):
    """Standard error that is no terminal: Ctrl-C arrives while a line of progress is being written."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += bytes(data)
        if b": step 512 of" in bytes(data):
            ctrl_c()
        return len(data)


def test_ctrl_c_while_progress_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarl.train.runs.progress.LINE_EVERY_S", 0.0)
    screen = InterruptingScreen()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(screen), line_buffering=True))
    assert train(tmp_path / "I", *(word for word in RUN if word != "--quiet")) == 130
    printed = screen.written.decode()
    assert printed.count("Stopping: ") == 1
    assert "512 steps, interrupted" in printed.splitlines()[-1]


def test_ctrl_c_while_libraries_load_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quarl.train", *RUN, "--output-path", str(tmp_path / "I")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert printed.startswith("interrupted; ") and printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_time_left_is_that_of_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter((100.0, 160.0, 164.0, 170.0))  # a minute's compiling, then 2 steps a second
    monkeypatch.setattr("quarl.train.runs.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = TrainingProgress("I ppo", steps=1000, start=900)
    for step in (901, 903, 921):
        progress.update(step, {"return": 1.0})
    first, last = capsys.readouterr().err.splitlines()
    assert first == "I ppo: step 901 of 1,000  return 1.00"
    assert last == "I ppo: step 921 of 1,000  2 steps/s  return 1.00  0:40 left"


def test_the_time_left_is_the_sooner_of_steps_and_minutes() -> None:
    assert time_left(754.0, None) == "12:34 left"
    assert time_left(754.0, 65.4) == "1:05 left"
    assert time_left(5.0, 65.4) == "0:05 left"
    assert time_left(2 * 3600 + 60.0, -3.0) == "0:00 left"
    assert time_left(2 * 3600 + 61.0, None) == "2:01:01 left"
