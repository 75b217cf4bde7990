"""The learning curve: CSV, TensorBoard events and the picture."""

import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from quarl.train.runs.logs import CurveLog, column, crc32c, draw_curve, mask_crc, read_rows, thin_curve


def write(folder: Path, steps: range, resume_from: int | None = None) -> None:
    log = CurveLog(folder, resume_from)
    for step in steps:
        log.add(step, {"return": step / 2, "success": math.nan, "greedy_success_hard": 0.5 if step == 20 else math.nan})
    log.close()


def test_rows_are_read_back_by_tensorboard_too_and_drawn(tmp_path: Path) -> None:
    write(tmp_path, range(10, 40, 10))
    text = (tmp_path / "learning_curve.csv").read_text()
    rows = read_rows(text)  # where gaps stay gaps
    assert column(rows, "return") == ([10, 20, 30], [5, 10, 15])
    assert column(rows, "greedy_success_hard") == ([20], [0.5])
    assert column(rows, "success") == ([], [])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["return", "greedy_success_hard"]
    assert [(event.step, event.value) for event in events.Scalars("return")] == [(10, 5.0), (20, 10.0), (30, 15.0)]
    assert [event.step for event in events.Scalars("greedy_success_hard")] == [20]
    picture = draw_curve(text, "a title")
    assert picture.startswith(b"\x89PNG")
    assert picture != draw_curve(text, "another title")


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, range(10, 60, 10))
    with (tmp_path / "learning_curve.csv").open("a") as file:
        file.write("60,3")  # a row that an interruption cut short
    write(tmp_path, range(30, 50, 10), resume_from=20)
    rows = read_rows((tmp_path / "learning_curve.csv").read_text())
    assert column(rows, "return") == ([10, 20, 30, 40], [5, 10, 15, 20])


def test_checksums_of_records_by_hand() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert mask_crc(0x80000001) == 0x30000 + 0xA282EAD8  # the outer bits come together in the middle: 1 0000 and 2 0000


def test_a_thinned_curve_keeps_evaluations_and_ended_episodes() -> None:
    lines = ["step,return,greedy_return"]
    lines += [f"{k},{5 if k % 50 == 7 else ''},{9 if k % 99 == 0 else ''}" for k in range(1, 1001)]
    text = "\n".join(lines) + "\n"
    assert thin_curve(text, 2000) == text
    rows = read_rows(thin_curve(text, 100))
    assert 100 < len(rows) < 140
    assert [row["step"] for row in rows if row["greedy_return"]] == [str(k) for k in range(99, 1001, 99)]
    assert sum(bool(row["return"]) for row in rows) == 20
    assert rows[-1]["step"] == "1000"
