"""TensorBoard's event file, written without TensorBoard: its writer loads TensorFlow, which a short run does without.

A file is a sequence of records (length, masked CRC of the length, data, masked CRC of the data), little-endian; the
data is an ``Event`` in protocol buffers' wire format. Sources: tensorflow/core/lib/io/record_writer.cc,
tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected (RFC 3720, appendix B.4)
MASK_DELTA = 0xA282EAD8  # added to a rotated CRC, so that a CRC of a CRC is none (tensorflow/core/lib/hash/crc32c.h)
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types
FILE_VERSION = b"brain.Event:2"


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C; of ``b"123456789"`` it is 0xE3069283."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The CRC rotated right by 15 bits plus a constant, as records keep it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, kind: int, data: bytes) -> bytes:
    """One field of a message; ``data`` is its encoded value."""
    length = varint(len(data)) if kind == BYTES else b""
    return varint(number << 3 | kind) + length + data


def scalars(step: int, values: Mapping[str, float], wall_time: float) -> bytes:
    """An ``Event`` {wall_time 1, step 2, summary 5 {value 1 {tag 1, simple_value 2}}}."""
    summary = b"".join(
        field(1, BYTES, field(1, BYTES, name.encode()) + field(2, FLOAT, struct.pack("<f", value)))
        for name, value in values.items()
    )
    return field(1, DOUBLE, struct.pack("<d", wall_time)) + field(2, VARINT, varint(step)) + field(5, BYTES, summary)


class EventFile:
    """Appends scalars to a new event file of a folder."""

    def __init__(self, folder: Path) -> None:
        now = time.time()
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._write(field(1, DOUBLE, struct.pack("<d", now)) + field(3, BYTES, FILE_VERSION))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of a step by name."""
        self._write(scalars(step, values, time.time()))

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + struct.pack("<I", masked(crc32c(length))))
        self._file.write(data + struct.pack("<I", masked(crc32c(data))))

    def flush(self) -> None:
        """Bring everything to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
