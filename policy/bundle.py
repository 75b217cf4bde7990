"""A bundle: the folder that holds one trained policy and everything ever made from it.

    policy.json           the PolicySpec, with where it came from
    weights.safetensors   float32 master weights (host only; never pickle)
    calibration.npz       "observations": float32 (n, observation_size) recorded from real rollouts (host only);
                          images as uint8 grey levels, which read back as the same float32 numbers
    golden.npz            "observations", "outputs", "actions": what every artifact is checked against
    int8.tflite, …        artifacts;  int8.golden.npz: the reference's outputs of that precision
    manifest.json         size and hash of each of them, and the parity figures of each artifact

Loading verifies sizes, hashes, shapes and the spec, and names what is wrong; where the weights are needed, the golden
outputs are computed again. A device holds part of a bundle under the same manifest and reads it by ``policy.reading``;
this module stays on the host.
"""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import uuid
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from quarl.policy.errors import BundleError, SpecError
from quarl.policy.files import PART, lock_folder, write_atomically
from quarl.policy.golden import check_golden_outputs, covering, foreign_tolerance
from quarl.policy.json_values import abbreviate, is_file_name
from quarl.policy.reading import (
    CALIBRATION_FILE,
    DEVICE_FILES,
    GOLDEN_FILE,
    LARGEST_ARRAYS,
    LARGEST_NPZ,
    LARGEST_OTHER,
    LARGEST_RECORD,
    LARGEST_SPEC,
    MANIFEST_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    ArtifactEntry,
    BundleFiles,
    FileRecord,
    Manifest,
    Stored,
    read_manifest,
    wrap_read_errors,
)
from quarl.policy.reference import Weights, as_batch, check_weights, choose_actions, forward_float, grey_levels
from quarl.policy.spec import PolicySpec, require

# --- reading --------------------------------------------------------------------------------------------------------

HOST_FILES = (*DEVICE_FILES, WEIGHTS_FILE, CALIBRATION_FILE)


@dataclass(frozen=True)
class Golden:
    """Real observations with what the float policy makes of them.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, result_size).
        actions: what :func:`policy.reference.choose_actions` makes of the outputs.
    """

    observations: NDArray[np.float32]
    outputs: NDArray[np.float32]
    actions: np.ndarray

    @classmethod
    def record(cls, spec: PolicySpec, weights: Weights, observations: np.ndarray) -> Golden:
        """Return the golden vectors of a policy on these observations, by the numpy reference, alike on every
        processor."""
        outputs = forward_float(spec, weights, observations, exact=True)
        return cls(as_batch(spec, observations), outputs, choose_actions(spec, outputs))


@dataclass(frozen=True)
class Expected:
    """What an artifact has to compute on the golden observations.

    Attributes:
        outputs: of the numpy reference of its precision, (n, result_size).
        tolerance: largest allowed |output − outputs| on a device, likewise, in the outputs' units.
    """

    outputs: np.ndarray
    tolerance: np.ndarray


@dataclass(frozen=True)
class Contents:
    """What artifacts are made of, and what they are checked against: a bundle's files, verified.

    Attributes:
        weights: float32 master weights by name.
        calibration: raw observations, float32 (n, observation_size).
        golden: the golden vectors.
    """

    weights: dict[str, NDArray[np.float32]]
    calibration: NDArray[np.float32]
    golden: Golden

    @classmethod
    def of(cls, bundle: Bundle) -> Contents:
        """Return all three of a bundle (host only)."""
        return cls(bundle.weights(), bundle.calibration(), bundle.golden())


@dataclass(frozen=True)
class Bundle(BundleFiles):
    """A verified bundle with its arrays. Make one with :meth:`load`.

    Weights, calibration and golden vectors are read and verified once, and once more where their file has been written
    since. Their arrays are read-only: all who ask get the same ones.
    """

    @classmethod
    def load(cls, path: Path | str, require: tuple[str, ...] = HOST_FILES) -> Bundle:
        """Open a bundle and verify every file of it that is present.

        Args:
            path: the folder.
            require: files that must be present: HOST_FILES, or DEVICE_FILES on a device.

        Raises:
            BundleError: names the file that is missing, truncated, tampered with, of a future version or inconsistent.
        """
        bundle = cls.open_verified(path, require)
        with wrap_read_errors(bundle.path):
            if CALIBRATION_FILE in require:
                bundle.calibration()
            if WEIGHTS_FILE in require:
                golden, records = bundle.golden(), bundle.manifest.records()
                hashes = tuple(records[name].sha256 for name in (SPEC_FILE, WEIGHTS_FILE, GOLDEN_FILE))
                where = bundle.path / GOLDEN_FILE
                check_golden_outputs(bundle.spec, bundle.weights(), golden.observations, golden.outputs, where, hashes)
        return bundle

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the float32 master weights, verified against their hash and the spec's shapes (host only)."""
        return dict(self._load_cached(WEIGHTS_FILE, self._weights))

    def calibration(self) -> NDArray[np.float32]:
        """Raw observations recorded from real rollouts, float32 (n, observation_size) (host only)."""
        return _as_float32(self._load_cached(CALIBRATION_FILE, self._calibration))

    def golden(self) -> Golden:
        """Return the golden vectors; their shapes are checked."""
        rows = self.golden_rows()
        return Golden(_as_float32(_array(rows.observations)), _array(rows.outputs), _array(rows.actions))

    def read_expected(self, entry: ArtifactEntry) -> Expected:
        """Return what this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        rows = self.read_expected_rows(entry)
        return Expected(_array(rows.outputs), _array(rows.tolerance))

    def _weights(self, data: bytes) -> dict[str, NDArray[np.float32]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        with wrap_read_errors(self.path / WEIGHTS_FILE):
            try:
                weights: dict[str, NDArray[np.float32]] = load(data)
                check_weights(self.spec, weights)
            except (SafetensorError, SpecError) as error:
                raise BundleError(f"{self.path / WEIGHTS_FILE}: {error}") from error
        for array in weights.values():
            array.flags.writeable = False
        return weights

    def _calibration(self, data: bytes) -> np.ndarray:
        return _array(self._arrays(data, CALIBRATION_FILE, {"observations": self._observations})["observations"])


def _array(stored: Stored) -> np.ndarray:
    array = np.frombuffer(stored.data, stored.type).reshape(stored.shape)
    array.flags.writeable = False
    return array


def _as_float32(observations: np.ndarray) -> NDArray[np.float32]:
    """Observations as float32, read-only; grey levels are kept as they are stored, a quarter as large."""
    floats: NDArray[np.float32] = observations.astype(np.float32, copy=False)
    floats.flags.writeable = False
    return floats


# --- writing --------------------------------------------------------------------------------------------------------
# Writing is atomic: interrupted at any point, it leaves the old bundle or the new one.

NO_GOLDEN_ROWS = "golden_observations must have at least one row, got none."
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def write_bundle(
    path: Path | str,
    spec: PolicySpec,
    weights: Weights,
    calibration: np.ndarray,
    golden_observations: np.ndarray,
    extra_files: Mapping[str, bytes] | None = None,
    golden_outputs: np.ndarray | None = None,
) -> Bundle:
    """Write a new bundle, in place of one of the same path, atomically; the golden outputs are computed here.

    Args:
        path: the folder to make.
        spec, weights: the policy.
        calibration: raw observations (n, observation_size) recorded from real rollouts.
        golden_observations: likewise; other ones than the calibration's make a better test. Those of the calibration's
            are added that excite units which none of them does.
        extra_files: more files to keep in the bundle by plain name, e.g. the learning curve.
        golden_outputs: what another program made of the golden observations, (n, result_size): the policy's own, which
            are stored, may differ from them by the roundings of float32 only.

    Raises:
        SpecError: the weights or observations do not fit the spec, or are none that a bundle can hold, or the policy
            does not compute ``golden_outputs``; nothing was written.
    """
    check_weights(spec, weights)
    _check_observations(spec, calibration, "calibration")
    _check_observations(spec, golden_observations, "golden_observations")
    require(np.size(golden_observations) > 0, NO_GOLDEN_ROWS, "Record some, apart from the calibration set.")
    for name in extra_files or {}:
        require(
            is_file_name(name) and name not in (*HOST_FILES, MANIFEST_FILE),
            f"the name of an extra file must be plain, printable and none of the bundle's own, got {abbreviate(name)}.",
        )
    observations = as_batch(spec, golden_observations), as_batch(spec, calibration)
    if golden_outputs is not None:
        _check_outputs(spec, weights, observations[0], golden_outputs)
    golden = Golden.record(spec, weights, covering(spec, weights, *observations))
    contents = {
        SPEC_FILE: spec.to_json().encode(),
        WEIGHTS_FILE: save({name: np.ascontiguousarray(value) for name, value in weights.items()}),
        CALIBRATION_FILE: npz(observations=_compact_observations(spec, as_batch(spec, calibration))),
        GOLDEN_FILE: npz(
            observations=_compact_observations(spec, golden.observations),
            outputs=golden.outputs,
            actions=golden.actions,
        ),
        **(extra_files or {}),
    }
    PolicySpec.from_json(contents[SPEC_FILE])
    for name, data in contents.items():
        largest = {SPEC_FILE: LARGEST_SPEC, WEIGHTS_FILE: LARGEST_RECORD}.get(name, LARGEST_OTHER)
        largest = LARGEST_NPZ if name.endswith(".npz") else largest
        require(len(data) <= largest, f"{name} must have at most {largest} bytes, got {len(data)}.")
    manifest = Manifest(spec.name, {name: FileRecord.of(data) for name, data in contents.items()})
    with lock_folder(Path(path).parent):
        _replace_folder(Path(path), {**contents, MANIFEST_FILE: manifest.to_json().encode()})
    return Bundle.load(path)


def _check_observations(spec: PolicySpec, observations: np.ndarray, what: str) -> None:
    """Refuse what :meth:`Bundle.load` would refuse once it is written."""
    batch = as_batch(spec, observations)
    require(bool(np.isfinite(batch).all()), f"{what} must be finite, got NaN or infinity.")
    columns = spec.observation_size + (2 * spec.result_size if what == "golden_observations" else 0)
    most = LARGEST_ARRAYS // (4 * columns)
    require(len(batch) <= most, f"{what} must have at most {most} rows for this policy, got {len(batch)}.")


def _check_outputs(spec: PolicySpec, weights: Weights, observations: np.ndarray, wanted: np.ndarray) -> None:
    """Refuse a policy that does not compute what another program did."""
    own = forward_float(spec, weights, observations, exact=True)
    require(own.shape == wanted.shape, f"golden_outputs must have the shape {own.shape}, got {wanted.shape}.")
    tolerance = foreign_tolerance(spec, weights, observations, wanted)
    wrong = ~(np.abs(own.astype(np.float64) - wanted) <= tolerance)
    if wrong.any():
        row, output = (int(place) for place in np.argwhere(wrong)[0])
        raise SpecError(
            f"golden_outputs must be the policy's own outputs: output {output} of observation {row} is "
            f"{wanted[row, output]:g}, the policy computes {own[row, output]:g}; "
            f"{int(wrong.any(axis=1).sum())} of {len(wrong)} observations differ.",
            "Check that weights, activations, normaliser and golden_outputs come from the same policy.",
            code="golden_mismatch",
        )


def _compact_observations(spec: PolicySpec, observations: NDArray[np.float32]) -> np.ndarray:
    """Images as uint8, a quarter of the bytes; observations that are no grey levels stay float32."""
    levels = grey_levels(observations) if spec.is_image else None
    return observations if levels is None else levels


def add_artifact(bundle: Bundle, entry: ArtifactEntry, data: bytes, expected: Expected) -> Bundle:
    """Put an artifact that passed the parity gate into the bundle. The manifest is written last, atomically.

    Checks of the same bytes against the same golden outputs, in runtimes that are not installed now, are kept.

    Args:
        bundle: as loaded.
        entry: its record must be that of ``data``.
        data: the artifact.
        expected: of it, on the golden observations.
    """
    with lock_folder(bundle.path):
        for left in bundle.path.glob(f".*{PART}"):  # by a process that was killed; the lock says it is not at work
            left.unlink(missing_ok=True)
        # Read again: another process may have added another artifact meanwhile.
        current = read_manifest(bundle.path)
        golden = _golden_data(replace(bundle, manifest=current), entry, expected)
        valid = current.without_stale(current.with_artifact(entry, FileRecord.of(golden)))
        if valid != current:
            # An interruption between the files must not leave a manifest that calls the new ones tampered with.
            write_atomically(bundle.path / MANIFEST_FILE, valid.to_json().encode())
        if (earlier := valid.artifacts.get(entry.file)) is not None:
            entry = entry.with_earlier_checks(earlier)
        manifest = valid.with_artifact(entry, FileRecord.of(golden))
        write_atomically(bundle.path / entry.golden_file, golden)
        write_atomically(bundle.path / entry.file, data)
        write_atomically(bundle.path / MANIFEST_FILE, manifest.to_json().encode())
    return replace(bundle, manifest=manifest)


def _golden_data(bundle: Bundle, entry: ArtifactEntry, expected: Expected) -> bytes:
    """Return an artifact's golden file: the one that is there if it holds the same arrays.

    Another zlib compresses them to other bytes, and the other artifacts of this precision would be taken for stale.
    """
    outputs, tolerance = expected.outputs.astype(np.float32), expected.tolerance.astype(np.float32)
    if entry.golden_file in bundle.manifest.files:
        with suppress(BundleError):
            there = bundle.read_expected(entry)
            if np.array_equal(there.outputs, outputs) and np.array_equal(there.tolerance, tolerance):
                return bundle.data(entry.golden_file)
    return npz(outputs=outputs, tolerance=tolerance)


def copy_bundle(source: Bundle, path: Path, origin: str) -> Bundle:
    """Return a copy of a bundle's files without its artifacts, whose manifest says where it came from.

    Two that copy to the same path at once have to hold :func:`policy.files.lock_folder` of its parent, each.
    """
    files = {
        name: record
        for name, record in source.manifest.files.items()
        if name not in {entry.golden_file for entry in source.manifest.artifacts.values()}
    }
    contents = {name: source.data(name) for name in files}
    manifest = Manifest(source.manifest.policy, files, {}, origin)
    _replace_folder(path, {**contents, MANIFEST_FILE: manifest.to_json().encode()})
    return Bundle.load(path)


def npz(**arrays: np.ndarray) -> bytes:
    """Arrays as a compressed npz file with the same bytes for the same arrays (fixed dates inside)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _replace_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.old")
    try:
        part.mkdir()
        for name, data in contents.items():
            write_atomically(part / name, data)
        if not (path.exists() and _exchange(part, path)):
            if path.exists():
                path.rename(old)
            part.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that neither is ever absent (renameat2: Linux 3.15, glibc 2.28).

    Returns:
        False where the system or the file system cannot; then nothing was done.
    """
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    paths = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return bool(renameat2(*paths, RENAME_EXCHANGE) == 0)
