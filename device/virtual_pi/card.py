"""The bytes of an SD card: a partition table, a swap partition and an ext4 partition, written without a loop mount."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from quarl.device.virtual_pi.errors import BuildError

MIB = 1 << 20
SECTOR = 512
CARD_BYTES = 4096 * MIB
"""QEMU's SD card wants a power of two."""
SWAP_BYTES = 1024 * MIB
_ALIGNMENT = MIB
_PAGE = 4096
_SWAP_TYPE, _LINUX_TYPE = 0x82, 0x83


def partition_table(parts: list[tuple[int, int, int]]) -> bytes:
    """A master boot record: 446 bytes of nothing, four entries of 16 bytes, the signature 55 AA.

    Args:
        parts: (type, first byte, bytes) of up to four partitions.
    """
    entries = b""
    for kind, first, size in parts:
        # status, first in cylinders (unused: FE FF FF), type, last in cylinders, first sector, sectors
        entries += struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", kind, b"\xfe\xff\xff", first // SECTOR, size // SECTOR)
    return bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa"


def swap_header(size: int) -> bytes:
    """The first page of a swap area (Linux' union swap_header, version 1): last page, no bad pages, a magic word."""
    page = bytearray(_PAGE)
    struct.pack_into("<III", page, 1024, 1, size // _PAGE - 1, 0)
    page[-10:] = b"SWAPSPACE2"
    return bytes(page)


def write_card(card: Path, root: Path) -> None:
    """Write a card: swap first, then an ext4 file system with everything under ``root``. The file is sparse.

    Raises:
        BuildError: mke2fs failed.
    """
    swap_first = _ALIGNMENT
    root_first = swap_first + SWAP_BYTES
    root_bytes = CARD_BYTES - root_first
    with card.open("wb") as stream:
        stream.truncate(CARD_BYTES)
        stream.write(partition_table([(_SWAP_TYPE, swap_first, SWAP_BYTES), (_LINUX_TYPE, root_first, root_bytes)]))
        stream.seek(swap_first)
        stream.write(swap_header(SWAP_BYTES))
    result = subprocess.run(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-m", "1", "-d", str(root)),
            # The file is sparse: what was never written reads as zeros, so nothing need be zeroed, now or later.
            *("-E", f"offset={root_first},assume_storage_prezeroed=1,lazy_itable_init=0,lazy_journal_init=0"),
            *(str(card), f"{root_bytes // 1024}k"),
        ],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    )
    if result.returncode != 0:
        raise BuildError(f"mke2fs failed: {result.stderr.strip()[-500:]}", "Is there room in the cache folder? df -h")
