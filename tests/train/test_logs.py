"""The learning curve: CSV, TensorBoard events and the picture."""

import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train.logs import CurveLog, column, draw_curve, read_rows


def write(folder: Path, steps: range, resume_from: int | None = None) -> None:
    log = CurveLog(folder, resume_from)
    for step in steps:
        log.add(step, {"return": step / 2, "success": math.nan, "greedy_success_hard": 0.5 if step == 20 else math.nan})
    log.close()


def test_rows_can_be_read_back_and_gaps_stay_gaps(tmp_path: Path) -> None:
    write(tmp_path, range(10, 40, 10))
    rows = read_rows((tmp_path / "learning_curve.csv").read_text())
    assert column(rows, "return") == ([10, 20, 30], [5, 10, 15])
    assert column(rows, "greedy_success_hard") == ([20], [0.5])
    assert column(rows, "success") == ([], [])


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, range(10, 60, 10))
    with (tmp_path / "learning_curve.csv").open("a") as file:
        file.write("60,3")  # a row that an interruption cut short
    write(tmp_path, range(30, 50, 10), resume_from=20)
    rows = read_rows((tmp_path / "learning_curve.csv").read_text())
    assert column(rows, "return") == ([10, 20, 30, 40], [5, 10, 15, 20])


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    write(tmp_path, range(10, 40, 10))
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    assert "return" in events.Tags()["tensors"]
    assert [event.step for event in events.Tensors("return")] == [10, 20, 30]
    assert [float(event.tensor_proto.float_val[0]) for event in events.Tensors("return")] == [5.0, 10.0, 15.0]


def test_the_picture_is_a_png_that_shows_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, range(10, 40, 10))
    text = (tmp_path / "learning_curve.csv").read_text()
    picture = draw_curve(text, "a title")
    assert picture.startswith(b"\x89PNG")
    assert picture != draw_curve(text, "another title")
