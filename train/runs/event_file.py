"""TensorBoard's event file, written without its writer: that loads TensorFlow, which a short run does without.

A file is a sequence of records (length, masked CRC of the length, data, masked CRC of the data), little-endian; the
data is an ``Event`` in protocol buffers' wire format. Source: tensorflow/core/lib/io/record_writer.cc.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

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


def masked(crc: int) -> int:
    """The CRC rotated right by 15 bits plus a constant, as records keep it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


class EventFile:
    """Appends scalars to a new event file of a folder."""

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of a step by name."""
        event = Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def _write(self, event: Event) -> None:
        data = event.SerializeToString()
        for part in (struct.pack("<Q", len(data)), data):
            self._file.write(part + struct.pack("<I", masked(crc32c(part))))

    def flush(self) -> None:
        """Bring everything to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
