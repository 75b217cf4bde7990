"""Files that a command is given: no pipe, no device, and no archive that claims more than it holds."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quarl.airlearning_envs.compare_flight import read_recording
from quarl.bench.report import json_lines
from quarl.convert.importers import recordings, registry, weights
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.zip_members import open_zip, read_untrusted
from quarl.policy.errors import BundleError
from tests.refusals import refused

FILES = Path(__file__).parent / "files" / "sb3" / "ppo_cartpole"
POLICY = registry.read(FILES / "policy.zip")
WEIGHTS = """{"layout": "torch", "observation": [["state", 2]], "steps": [{"dense": "a"}]}"""


@pytest.fixture(params=["FIFO", "device", "folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What is no regular file; a link to it, whose ending says what it is taken for, is one neither."""
    path = tmp_path / "special"
    {"FIFO": os.mkfifo, "folder": os.mkdir, "device": lambda link: link.symlink_to("/dev/zero")}[request.param](path)
    return path


@pytest.mark.parametrize("ending", [".zip", ".onnx", ".keras", ".pt", ".npz", ".safetensors"])
def test_a_policy_must_be_a_regular_file(ending: str, special: Path, tmp_path: Path) -> None:
    policy, spec = tmp_path / f"policy{ending}", tmp_path / "spec.json"
    policy.symlink_to(special)
    spec.write_text(WEIGHTS)
    is_weights = ending in weights.IMPORTER.endings
    with pytest.raises(ForeignError, match=r"regular|does not apply|YAML"):  # a folder may be LEAPP's
        registry.read(policy, spec=spec if is_weights else None)


def test_what_goes_with_a_policy_must_be_a_regular_file(special: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **{"a.weight": np.eye(2)})
    for read in (
        lambda: recordings.load_recording(special, POLICY),
        lambda: recordings.read_pairs(special, POLICY, 2),
        lambda: registry.read(FILES / "policy.zip", vecnormalize=special),
        lambda: registry.read(tmp_path / "w.npz", spec=special),
    ):
        with pytest.raises(ForeignError, match="regular"):
            read()
    with pytest.raises(json_lines.StoreError, match="regular"):
        json_lines.read(special, str)
    with refused(BundleError, "not_a_regular_file"):
        read_recording(special)


def test_a_link_to_a_file_and_a_name_with_a_colon_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "real.npz", **{"dense/kernel:0": np.arange(3.0)})
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    members = open_zip(read_untrusted(tmp_path / "link.npz"), "it")
    np.testing.assert_array_equal(members.array("dense/kernel:0"), np.arange(3.0))
    with pytest.raises(ForeignError):
        read_untrusted(tmp_path / "link.npz", 100)


def npy(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An npy member whose header says this."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


HOSTILE = {
    "10^12 rows": npy("(1000000000000, 4)"),
    "one row more than there is": npy("(33, 4)", data=bytes(32 * 16)),
    "one row less than there is": npy("(31, 4)", data=bytes(32 * 16)),
    "a negative side": npy("(-32, -4)", data=bytes(32 * 16)),
    "pickles": npy("(32, 4)", "|O", bytes(32 * 32)),
    "no npy": b"rows of anything",
    "nothing": b"",
    "a future npy": b"\x93NUMPY\x09\x00" + bytes(100),
    "brackets": npy("(" * 5000 + ")" * 5000),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_an_array_is_allocated_where_its_member_has_it(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("observations.npy", content)
    tracemalloc.start()
    try:
        with pytest.raises(ForeignError, match=r"member observations"):
            recordings.load_recording(tmp_path / "rows.npz", POLICY)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("place", "value"), [(8, 99), (6, 1)], ids=["compression method 99", "encrypted"])
def test_members_that_no_numpy_writes_are_refused(place: int, value: int, tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, observations=np.zeros((32, 4), np.float32))
    data = bytearray(file.getvalue())
    struct.pack_into("<H", data, place, value)  # APPNOTE.TXT 4.3.7, and two bytes further in the directory, 4.3.12
    struct.pack_into("<H", data, data.index(b"PK\x01\x02") + place + 2, value)
    (tmp_path / "rows.npz").write_bytes(data)
    with pytest.raises(ForeignError, match="encrypted or"):
        recordings.load_recording(tmp_path / "rows.npz", POLICY)


def test_a_recording_is_bounded_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "rows.npz", observations=np.zeros((1000, 4), np.uint8), outputs=np.zeros((1000, 2)))
    monkeypatch.setattr(recordings, "LARGEST_RECORDING", 32_000)
    assert len(recordings.read_pairs(tmp_path / "rows.npz", POLICY, 2).observations) == 1000
    monkeypatch.setattr(recordings, "LARGEST_RECORDING", 31_999)  # 1,000 · 4 · 4 and, as they are, 1,000 · 2 · 8 bytes
    with pytest.raises(ForeignError):
        recordings.read_pairs(tmp_path / "rows.npz", POLICY, 2)


MODULE = """
from quarl.convert.importers.chain import ForeignPolicy
from quarl.convert.importers.registry import Importer

def read(path, output=None):
    return ForeignPolicy(f"another program, {output}", (), (), None)

IMPORTER = Importer("Another", (".another",), read, ("output",))
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package with a format."""
    (tmp_path / "another_format.py").write_text(MODULE)
    metadata = tmp_path / "another_format-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another-format\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[quarl.importers]\nanother = another_format:IMPORTER\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.importers.cache_clear()
    yield
    registry.importers.cache_clear()


def test_every_format_is_an_entry_point() -> None:
    assert {each.name for each in registry.importers()} >= {"ONNX", "LEAPP", "exploy", "Stable-Baselines3", "Keras"}


@pytest.mark.usefixtures("_installed")
def test_another_package_adds_a_format(tmp_path: Path) -> None:
    path = tmp_path / "policy.another"
    path.write_text("")
    assert registry.read(path, output="mean", spec=None).source == "another program, mean"
    with pytest.raises(ForeignError, match="--spec"):
        registry.read(path, spec=path)


def test_what_is_of_no_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_text("")
    for name in ("policy.txt", "absent.onnx"):
        with pytest.raises(ForeignError, match="Stable-Baselines3"):
            registry.read(tmp_path / name)
