"""Files of a bundle that would hang a reader, fill its memory or lead it elsewhere are refused by name, at once."""

from __future__ import annotations

import io
import os
import socket
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy.bundle import Bundle, add_artifact, npz
from quarl.policy.errors import BundleError
from quarl.policy.reading import CALIBRATION_FILE, DEVICE_FILES, GOLDEN_FILE, MANIFEST_FILE, SPEC_FILE, WEIGHTS_FILE
from quarl.policy.spec import ArtifactFormat, Precision
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, OUTPUTS, WEIGHTS, change, entry_of, sign
from tests.refusals import refused

ALL_FILES = [
    MANIFEST_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    CALIBRATION_FILE,
    GOLDEN_FILE,
    "learning_curve.csv",
    "int8.tflite",
    "int8.golden.npz",
]
MEMORY_ALLOWED = 100 * 10**6  # bytes
BOMB_ROWS = 100_000_000  # 1.2 GB of observations


@pytest.fixture
def full(bundle: Bundle) -> Bundle:
    return add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_ALLOWED
    finally:
        tracemalloc.stop()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_out(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def link_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize(
    ("put", "words"),
    [
        (fifo, "FIFO"),
        (endless_link, "symbolic link"),
        (link_out, "symbolic link"),
        (link_nowhere, "symbolic link"),
        (Path.mkdir, "a folder"),
        (unix_socket, "socket"),
    ],
)
def test_what_is_no_regular_file_is_refused(full: Bundle, name: str, put: Callable[[Path], None], words: str) -> None:
    """None of them is opened to be read: a FIFO would be waited for for ever, /dev/zero has no end."""
    (full.path / name).unlink()
    put(full.path / name)
    with refused(BundleError, "not_a_regular_file", shows=[words]):
        Bundle.load(full.path)


def test_a_device_file_is_refused(bundle: Bundle) -> None:
    (bundle.path / SPEC_FILE).unlink()
    try:
        os.mknod(bundle.path / SPEC_FILE, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")
    with refused(BundleError, "not_a_regular_file"):
        Bundle.load(bundle.path)


def test_a_link_to_the_bundle_itself_is_followed(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle.path)
    Bundle.load(tmp_path / "current")


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        (MANIFEST_FILE, 2**40, "at most 1048576"),
        (SPEC_FILE, 2**24, "at most 3145728"),
        (GOLDEN_FILE, 2**29, r"golden\.npz"),
        (WEIGHTS_FILE, 2**29, r"weights\.safetensors"),
        ("int8.tflite", 2**29, r"int8\.tflite"),
        ("learning_curve.csv", 2**29, r"learning_curve\.csv"),
        ("learning_curve.csv", 2**40, "1099511627776"),
    ],
)
def test_a_file_that_is_too_large_is_not_read(full: Bundle, name: str, size: int, words: str) -> None:
    os.truncate(full.path / name, size)  # sparse: it takes no room

    def say_so(manifest: dict[str, Any]) -> None:
        (manifest["artifacts"][0] if name == "int8.tflite" else manifest["files"][name])["bytes"] = size

    if name != MANIFEST_FILE:
        change(full.path, MANIFEST_FILE, say_so)
    with little_memory(), pytest.raises(BundleError, match=words):
        Bundle.load(full.path)


def bomb(rows: int, columns: int = 3, claimed_rows: int | None = None) -> bytes:
    """An npz whose observations are rows of zeros, deflated to a thousandth, written without holding them."""
    buffer = io.BytesIO()
    header = io.BytesIO()
    shape = (rows if claimed_rows is None else claimed_rows, columns)
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("observations.npy", "w") as member:
        member.write(header.getvalue())
        zeros, left = bytes(2**20), rows * columns * 4
        while left:
            left -= member.write(zeros[: min(left, len(zeros))])
    return buffer.getvalue()


@pytest.fixture(scope="module")
def large_bomb() -> bytes:
    return bomb(10_000_000)


def with_size(data: bytes, size: int) -> bytes:
    """The archive, with another uncompressed size of its first member in both of its headers."""
    changed, packed = bytearray(data), struct.pack("<I", size)
    changed[22:26] = packed
    place = data.rindex(b"PK\x01\x02")
    changed[place + 24 : place + 28] = packed
    return bytes(changed)


def test_a_bomb_is_not_unpacked(bundle: Bundle, large_bomb: bytes) -> None:
    """120 MB of rows that fit the spec; and a header that claims 1.2 GB, in an archive that agrees with it."""
    lying = with_size(bomb(10, claimed_rows=BOMB_ROWS), 128 + 12 * BOMB_ROWS)
    for data, size in ((large_bomb, "120000000"), (lying, "1200000000")):
        sign(bundle.path, CALIBRATION_FILE, data)
        with little_memory(), refused(BundleError, "arrays_too_large", shows=[size]):
            Bundle.load(bundle.path)


def test_a_header_that_lies_allocates_nothing(bundle: Bundle) -> None:
    small = bomb(10)
    for data in (bomb(10, claimed_rows=BOMB_ROWS), bomb(10, claimed_rows=9), with_size(small, 2**31), small[:-30]):
        sign(bundle.path, CALIBRATION_FILE, data)
        with little_memory(), pytest.raises(BundleError, match=CALIBRATION_FILE):
            Bundle.load(bundle.path)


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as written:
        for name, data in members:
            written.writestr(name, data)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def npy_headed(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


ROWS = npy(CALIBRATION)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npz(observations=CALIBRATION, more=np.zeros(3)), "'more.npy'"),
        (archive(("observations.npy", ROWS), ("../out.npy", b"")), "out.npy"),
        (archive(("observations.npy", ROWS), ("observations.npy", ROWS)), "twice"),
        (archive(("observations", ROWS)), "got 'observations'"),
        (archive(("observations.npy", ROWS), method=zipfile.ZIP_BZIP2), "method 12"),
        (archive(("observations.npy", ROWS), method=zipfile.ZIP_LZMA), "method 14"),
        (archive(("observations.npy", b"")), "begins with b''"),
        (archive(("observations.npy", b"no magic")), "begins with b'no magic'"),
        (archive(("observations.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff")), "npy file of version 1.0"),
        (archive(("observations.npy", npy_headed(b"[" * 60_000))), "header"),
        (archive(("observations.npy", npy_headed(b"{" + b"'descr': '<f4', " * 600 + b"}"))), "header"),
        (archive(("observations.npy", ROWS + b"more")), "244 bytes"),
        (archive(("observations.npy", npy(np.asfortranarray(CALIBRATION)))), "Fortran order"),
        (archive(), "'observations' is missing"),
        (npz(observations=CALIBRATION) + b"behind", "plain zip archive"),
        (b"before" + npz(observations=CALIBRATION), "end of the file"),
        (archive(*((f"{index}.npy", b"") for index in range(1000))), "its directory of"),
        (b"", "zip archive"),
        (b"PK\x05\x06" + bytes(18), "'observations' is missing"),
    ],
)
def test_an_archive_that_is_none_is_refused(bundle: Bundle, data: bytes, words: str) -> None:
    sign(bundle.path, CALIBRATION_FILE, data)
    with little_memory(), refused(BundleError, "bundle", shows=[CALIBRATION_FILE, words]):
        Bundle.load(bundle.path)


def test_every_npz_is_read_alike(full: Bundle) -> None:
    sign(
        full.path,
        "int8.golden.npz",
        npz(outputs=OUTPUTS, tolerance=EXPECTED.tolerance.astype(np.float32), observations=GOLDEN),
    )
    loaded = Bundle.load(full.path, DEVICE_FILES)
    entry = loaded.artifact(Precision.INT8, ArtifactFormat.TFLITE)
    with refused(BundleError, "bundle", shows=["int8.golden.npz", "'observations.npy'"]):
        loaded.read_expected(entry)


def test_weights_of_a_lying_header_are_refused(bundle: Bundle) -> None:
    for header in (b'{"head/bias":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4000000000]}}', b"[" * 5000):
        sign(bundle.path, WEIGHTS_FILE, struct.pack("<Q", len(header)) + header)
        with little_memory(), pytest.raises(BundleError, match=WEIGHTS_FILE):
            Bundle.load(bundle.path)
    assert WEIGHTS  # those of the policy are untouched
