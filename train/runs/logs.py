"""The learning curve as a CSV file and as TensorBoard event files, and drawn as a picture."""

from __future__ import annotations

import csv
import io
import math
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

CURVE_FILE = "learning_curve.csv"
PICTURE_FILE = "learning_curve.png"
STEP = "step"
CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected (RFC 3720, appendix B.4)
MASK_DELTA = 0xA282EAD8  # added to a rotated CRC, so that a CRC of a CRC is none (tensorflow/core/lib/hash/crc32c.h)


TABLE = list(range(256))
for _ in range(8):
    TABLE = [(value >> 1) ^ (CASTAGNOLI if value & 1 else 0) for value in TABLE]


def crc32c(data: bytes) -> int:
    """CRC-32C; of ``b"123456789"`` it is 0xE3069283."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def mask_crc(crc: int) -> int:
    """Return the CRC rotated right by 15 bits plus a constant, as records keep it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


class EventFile:
    """Appends scalars to a new event file of a folder, without TensorBoard's own writer, which loads TensorFlow.

    A file is a sequence of records (length, masked CRC of the length, data, masked CRC of the data), little-endian; the
    data is an ``Event`` in protocol buffers' wire format. Source: tensorflow/core/lib/io/record_writer.cc.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # of the extra "train"; importers read curves without it

        self._event = Event
        self.file = (folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}").open("wb")
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of a step by name."""
        event = self._event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def _write(self, event: Event) -> None:
        data = event.SerializeToString()
        for part in (struct.pack("<Q", len(data)), data):
            self.file.write(part + struct.pack("<I", mask_crc(crc32c(part))))


class CurveLog:
    """One row per iteration in ``learning_curve.csv`` and the same numbers as TensorBoard scalars.

    Look at the latter with ``tensorboard --logdir <the training folder>``.
    """

    def __init__(self, folder: Path, resume_from: int | None = None) -> None:
        """Open the logs; with ``resume_from``, keep the rows up to that step and drop what came after it."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / CURVE_FILE
        self._columns: list[str] = []
        rows: list[dict[str, str]] = []
        if resume_from is not None and self.path.exists():
            rows = [row for row in read_rows(self.path.read_text()) if int(row[STEP]) <= resume_from]
            self._columns = list(rows[0]) if rows else []
        self._file = self.path.open("w", newline="", encoding="utf-8")
        self._csv: csv.DictWriter[str] | None = None
        for row in rows:
            self._write(row)
        self._events = EventFile(folder)

    def add(self, step: int, row: Mapping[str, float]) -> None:
        """Append a row; NaN means "not measured" and is left empty. Columns are those of the first row:
        a resumed run may have been begun by a version of the program that logged less."""
        self._columns = self._columns or [STEP, *row]
        measured = {name: value for name, value in row.items() if not math.isnan(value)}
        self._write({STEP: str(step)} | {name: f"{value:.7g}" for name, value in measured.items()})
        self._events.add(step, measured)

    def flush(self) -> None:
        """Bring everything to the disk."""
        self._file.flush()
        self._events.file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        self._events.file.close()

    def _write(self, row: Mapping[str, str]) -> None:
        if self._csv is None:
            self._csv = csv.DictWriter(self._file, self._columns, restval="", extrasaction="ignore")
            self._csv.writeheader()
        self._csv.writerow(row)


def read_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a curve; a last line that an interruption cut short is dropped."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [row for row in rows if None not in row.values() and row.get(STEP, "").isdigit()]


def read_curve(text: str) -> list[dict[str, float]]:
    """Return the same rows as numbers, without what was not measured."""
    return [{name: float(value) for name, value in row.items() if value} for row in read_rows(text)]


def column(rows: Sequence[Mapping[str, str]], name: str) -> tuple[list[float], list[float]]:
    """Return (steps, values) of the rows that have a value in this column."""
    filled = [row for row in rows if row.get(name)]
    return [float(row[STEP]) for row in filled], [float(row[name]) for row in filled]


def thin_curve(text: str, most: int = 1000) -> str:
    """Return a curve of at most about ``most`` rows for a bundle: every evaluation, and of the other rows every so
    many.

    Where episodes are so long that few rows end one, all of those are kept too.
    """
    rows = read_rows(text)
    if len(rows) <= most:
        return text
    period = math.ceil(len(rows) / most)
    ended = sum(bool(row.get("return")) for row in rows)
    kept_rows = [
        row
        for index, row in enumerate(rows)
        if index % period == 0
        or index == len(rows) - 1
        or any(name.startswith("greedy_") and value for name, value in row.items())
        or (ended <= most and row.get("return"))
    ]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(rows[0]))
    writer.writeheader()
    writer.writerows(kept_rows)
    return buffer.getvalue()


def draw_curve(text: str, title: str) -> bytes:
    """Return the learning curve as a PNG: success (or return) while exploring and evaluated greedily, against steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_rows(text)
    quantity = "success" if column(rows, "success")[0] else "return"
    figure = Figure(figsize=(7.0, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps, values = column(rows, quantity)
    axes.plot(steps, values, color="#9db4c8", linewidth=0.8, label="training episodes")
    names = [name for name in (rows[0] if rows else {}) if name.startswith(f"greedy_{quantity}")]
    for name, colour in zip(names, ("#c2410c", "#1d4ed8", "#15803d"), strict=False):
        steps, values = column(rows, name)
        preset = name.removeprefix(f"greedy_{quantity}").strip("_")
        label = f"greedy, {preset}" if preset else "greedy"
        axes.plot(steps, values, color=colour, marker="o", markersize=3, linewidth=1.4, label=label)
    axes.set_title(title)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(quantity)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e5 else f"{value:g}")
    if quantity == "success":
        axes.set_ylim(0.0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": ""})
    return buffer.getvalue()
