"""Mutated bundles, read as the host reads them and as the agent does."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.rebuild import check_artifact
from quarl.device.agent.server import Agent
from quarl.policy.bundle import HOST_FILES, Bundle, npz
from quarl.policy.errors import PolicyError
from quarl.policy.quantize import to_fp16
from quarl.policy.reading import GOLDEN_FILE, MANIFEST_FILE, FileRecord
from quarl.policy.reference import choose_actions, forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import Precision
from tests.fuzz.values import scrambled, spoiled, text_of

Files = dict[str, bytes]
SPECIAL = ("fifo", "folder", "/dev/zero", "/dev/null", "away", "itself", "gone")
ACTED = 200
"""Observations that an accepted artifact decides on."""


def mutated(files: Files, chance: random.Random) -> tuple[Files, dict[str, str]]:
    """A bundle's files with one to three faults, and which of them are no regular files."""
    made, special = dict(files), {}
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        name = chance.choice(sorted(made))
        match chance.randrange(12):
            case 10 | 11:  # a bit of an artifact, or what it is held to
                name = chance.choice(sorted(each for each in made if each.endswith((".tflite", ".golden.npz"))))
                made[name] = flipped(made[name], chance) if name.endswith("tflite") else widened(made[name], chance)
            case 0:
                special[name] = chance.choice(SPECIAL)
            case 1 | 2:
                made[name] = scrambled(made[name], chance)
            case 3:
                other = chance.choice(sorted(made))
                made[name], made[other] = made[other], made[name]
            case 4 | 5 if name.endswith(".npz"):
                made[name] = repacked(made[name], chance)
            case _:
                name = chance.choice(["policy.json", MANIFEST_FILE])
                try:
                    made[name] = text_of(spoiled(json.loads(made[name]), chance))
                except (ValueError, RecursionError):  # it was spoiled before
                    made[name] = scrambled(made[name], chance)
    if chance.random() < 0.6:
        made[MANIFEST_FILE] = mended(made)
    return made, special


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One bit of it turned."""
    place = chance.randrange(len(data)) if data else 0
    return (
        data[:place] + bytes(byte ^ (1 << chance.randrange(8)) for byte in data[place : place + 1]) + data[place + 1 :]
    )


def widened(data: bytes, chance: random.Random) -> bytes:
    """The tolerance of an artifact made wider, where it is one."""
    try:
        with np.load(io.BytesIO(data)) as archive:
            outputs, tolerance = archive["outputs"], archive["tolerance"]
    except Exception:  # spoiled before
        return scrambled(data, chance)
    return npz(outputs=outputs, tolerance=tolerance * np.float32(chance.choice([1.5, 10, 1e3])))


def mended(files: Files) -> bytes:
    """The manifest with sizes and hashes of what there is: a fault that no hash shows."""
    try:
        manifest = json.loads(files[MANIFEST_FILE])
        for name, record in manifest["files"].items():
            record.update(bytes=len(files[name]), sha256=FileRecord.of(files[name]).sha256)
        for entry in manifest["artifacts"]:
            data = files[entry["file"]]
            entry.update(bytes=len(data), sha256=FileRecord.of(data).sha256)
        return json.dumps(manifest).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files[MANIFEST_FILE]


def repacked(data: bytes, chance: random.Random) -> bytes:
    """An npz file with another array, member or header."""
    try:
        with np.load(io.BytesIO(data)) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    except Exception:  # spoiled before
        return scrambled(data, chance)
    name = chance.choice(sorted(arrays))
    array, buffer = arrays[name], io.BytesIO()
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":  # likewise
        return scrambled(data, chance)
    if (fault := chance.randrange(9)) < 5:
        arrays[name] = (
            lambda: array.astype(chance.choice([np.float64, np.int8, np.float16, np.complex64])),
            lambda: array[: chance.randrange(len(array) + 1)],
            lambda: array.reshape(-1),
            lambda: np.where(np.arange(array.size).reshape(array.shape) == 3, np.nan, array).astype(array.dtype),
            lambda: (array * np.float32(chance.choice([0.0, -1.0, 1.01, 1e30]))).astype(array.dtype),
        )[fault]()
    np.savez_compressed(buffer, **arrays)
    if fault >= 5:
        with zipfile.ZipFile(buffer, "a") as archive:
            extra = chance.choice(["more.npy", "../more.npy", f"{name}.npy", "pickled.npy"])
            header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
            shape = chance.choice(["(10000000000, 32)", "(5,)", "(-1, 3)", "(" * 30])
            text = f"{{'descr': '{chance.choice(['<f4', '|O', '<U9'])}', 'fortran_order': False, 'shape': {shape}, }}"
            contents = (b"", b"\x80\x04N.", header + text.ljust(117).encode() + b"\n", bytes(1 << 20))[fault - 5]
            archive.writestr(extra, contents, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def put(folder: Path, files: Files, special: dict[str, str]) -> None:
    """Write a bundle; a file of ``special`` is a FIFO, a device, a folder or a link in its place."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        path, kind = folder / name, special.get(name)
        if kind is None:
            path.write_bytes(data)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "away":
            outside = folder.with_name(f"{folder.name}-{name}")
            outside.write_bytes(data)
            path.symlink_to(outside)
        elif kind == "itself":
            path.symlink_to(name)
        elif kind != "gone":
            path.symlink_to(kind)


def tried(folder: Path, observations: np.ndarray, precision: str) -> str:
    """What host and agent make of a bundle, in a word: ``refused``, ``harmless``, or what is wrong."""
    try:
        bundle = Bundle.load(folder, HOST_FILES)
        for entry in bundle.manifest.artifacts.values():
            if entry.precision.value == precision:
                check_artifact(bundle, entry)  # as before it is sent
    except PolicyError:
        bundle = None
    agent = Agent(folder)
    reply = json.loads(agent.handle(json.dumps({"op": "load", "precision": precision}).encode()))
    hello = json.loads(agent.handle(b'{"op": "hello"}'))
    error = (reply if not reply["ok"] else hello).get("error") or hello.get("bundle_error") or {}
    if error.get("code") == "internal":
        return f"internal: {error['message'][:200]}"
    if not reply["ok"]:
        return "refused" if bundle is None else "refused by the agent"
    acted = json.loads(agent.handle(json.dumps({"op": "act", "observations": observations.tolist()}).encode()))
    if not acted["ok"]:
        return "refused" if acted["error"]["code"] in ("bad_observation", "not_finite") else f"act: {acted['error']}"
    if bundle is None:
        return "refused by the host"
    wanted = choose_actions(bundle.spec, reference(bundle, Precision(reply["loaded"]["precision"]), observations))
    return "harmless" if np.array_equal(np.array(acted["actions"]), wanted) else "acts otherwise than its label"


def reference(bundle: Bundle, precision: Precision, observations: np.ndarray) -> np.ndarray:
    """What a bundle's own weights say in a precision, (n, output_size)."""
    spec, weights = bundle.spec, bundle.weights()
    if precision.is_integer:
        network = quantize_network(spec, weights, bundle.calibration(), precision.bits)
        return forward_integer(spec, network, observations)
    if precision is Precision.FP16:
        weights = {name: to_fp16(value).astype(np.float32) for name, value in weights.items()}
    return forward_float(spec, weights, observations)


def files_of(folder: Path) -> Files:
    """A bundle's files."""
    assert (folder / GOLDEN_FILE).exists()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
