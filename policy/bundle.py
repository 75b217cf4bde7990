"""A bundle: the folder that holds one trained policy and everything ever made from it.

    policy.json           the PolicySpec, with where it came from
    weights.safetensors   float32 master weights (host only; never pickle)
    calibration.npz       "observations": float32 (n, observation_size) recorded from real rollouts (host only);
                          images as uint8 grey levels, which read back as the same float32 numbers
    golden.npz            "observations", "outputs", "actions": what every artifact is checked against
    int8.tflite, …        artifacts;  int8.golden.npz: the reference's outputs of that precision
    manifest.json         size and hash of each of them, and the parity figures of each artifact

Loading verifies sizes, hashes, shapes and the spec, and names what is wrong. Writing is atomic: whenever it is cut off,
the bundle is the old one or the new one. A device holds a part of the bundle under the same manifest.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import io
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy import network
from policy.errors import BundleError, SpecError
from policy.manifest import MANIFEST_FILE, ArtifactEntry, FileRecord, Manifest
from policy.spec import ArtifactFormat, PolicySpec, Precision

SPEC_FILE, WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE = (
    "policy.json",
    "weights.safetensors",
    "calibration.npz",
    "golden.npz",
)
DEVICE_FILES = (SPEC_FILE, GOLDEN_FILE)
HOST_FILES = (*DEVICE_FILES, WEIGHTS_FILE, CALIBRATION_FILE)
HASH_BLOCK_BYTES = 2**20
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@dataclass(frozen=True)
class Golden:
    """Real observations with what the float policy makes of them.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, output_size).
        actions: int64 (n,) of a discrete head, float32 (n, output_size) of a continuous one.
    """

    observations: NDArray[np.float32]
    outputs: NDArray[np.float32]
    actions: np.ndarray

    @classmethod
    def record(cls, spec: PolicySpec, weights: network.Weights, observations: np.ndarray) -> Golden:
        """The golden vectors of a policy on these observations, computed by the numpy reference."""
        outputs = network.forward_float(spec, weights, observations)
        return cls(network.as_batch(spec, observations), outputs, network.choose_actions(spec, outputs))


@dataclass(frozen=True)
class Bundle:
    """A verified bundle. Make one with :meth:`load`."""

    path: Path
    spec: PolicySpec
    manifest: Manifest

    @classmethod
    def load(cls, path: Path | str, require: tuple[str, ...] = HOST_FILES) -> Bundle:
        """Open a bundle and verify every file of it that is present.

        Args:
            path: the folder.
            require: files that must be present: HOST_FILES, or DEVICE_FILES on a device.

        Raises:
            BundleError: names the file that is missing, truncated, tampered with, of a future version or inconsistent.
        """
        folder = Path(path)
        manifest = Manifest.from_json(_read(folder / MANIFEST_FILE), folder / MANIFEST_FILE)
        records = manifest.records()
        for name in require:
            if name not in records:
                raise BundleError(f"{folder / MANIFEST_FILE} does not list {name}, which is needed here.")
        for name, record in records.items():
            if name != SPEC_FILE and (name in require or (folder / name).exists()):
                _verify(folder / name, record)
        if SPEC_FILE not in records:
            raise BundleError(f"{folder / MANIFEST_FILE} does not list {SPEC_FILE}, which is needed here.")
        try:
            spec = PolicySpec.from_json(_verified(folder / SPEC_FILE, records[SPEC_FILE]))
        except SpecError as error:
            raise BundleError(f"{folder / SPEC_FILE}: {error}") from error
        if spec.name != manifest.policy:
            raise BundleError(f"{folder}: the manifest is of policy {manifest.policy!r}, policy.json of {spec.name!r}.")
        bundle = cls(folder, spec, manifest)
        bundle.golden()
        if CALIBRATION_FILE in require:
            bundle.calibration()
        if WEIGHTS_FILE in require:
            bundle.weights()
        return bundle

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The float32 master weights, verified against their hash and the spec's shapes (host only)."""
        from safetensors import SafetensorError
        from safetensors.numpy import load  # not on the device

        data = _verified(self.path / WEIGHTS_FILE, self._record(WEIGHTS_FILE))
        try:
            weights: dict[str, NDArray[np.float32]] = load(data)
            network.check_weights(self.spec, weights)
        except (SafetensorError, SpecError) as error:
            raise BundleError(f"{self.path / WEIGHTS_FILE}: {error}") from error
        return weights

    def calibration(self) -> NDArray[np.float32]:
        """Raw observations recorded from real rollouts, float32 (n, observation_size) (host only)."""
        arrays = self._arrays(CALIBRATION_FILE)
        return self._observations(arrays, CALIBRATION_FILE)

    def golden(self) -> Golden:
        """The golden vectors; their shapes are checked."""
        arrays = self._arrays(GOLDEN_FILE)
        observations = self._observations(arrays, GOLDEN_FILE)
        outputs = self._checked(arrays, "outputs", GOLDEN_FILE, self.spec.output_size)
        actions = arrays.get("actions", np.zeros(0))
        wanted = network.choose_actions(self.spec, outputs)
        if not len(outputs) == len(observations) > 0 or actions.shape != wanted.shape or actions.dtype != wanted.dtype:
            raise BundleError(f"{self.path / GOLDEN_FILE}: observations, outputs and actions do not belong together.")
        if not np.array_equal(actions, wanted):
            raise BundleError(f"{self.path / GOLDEN_FILE}: an action is not the one that its outputs choose.")
        return Golden(observations, outputs, actions)

    def artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> ArtifactEntry:
        """The artifact of this precision and format.

        Raises:
            BundleError: there is none; says which there are and what to type.
        """
        for entry in self.manifest.artifacts.values():
            if entry.precision is precision and entry.format is artifact_format:
                return entry
        raise BundleError(
            f"{self.path} has no {precision.value} {artifact_format.value} artifact; "
            f"it has {', '.join(sorted(self.manifest.artifacts)) or 'none'}.",
            f"Type: make convert BITS={precision.bits} POLICY={self.spec.name}",
        )

    def has_artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> bool:
        """Whether the artifact is listed and its file is there (:meth:`load` verified what is)."""
        return any(
            (entry.precision, entry.format) == (precision, artifact_format) and (self.path / entry.file).exists()
            for entry in self.manifest.artifacts.values()
        )

    def artifact_data(self, entry: ArtifactEntry) -> bytes:
        """The bytes of an artifact, verified against the manifest."""
        return _verified(self.path / entry.file, entry.record)

    def expected_outputs(self, entry: ArtifactEntry) -> NDArray[np.float32]:
        """What the numpy reference of this precision computes on the golden observations, (n, output_size)."""
        outputs = self._checked(self._arrays(entry.golden_file), "outputs", entry.golden_file, self.spec.output_size)
        if len(outputs) != len(self.golden().observations):
            raise BundleError(f"{self.path / entry.golden_file} does not belong to the bundle's golden observations.")
        return outputs

    def _record(self, name: str) -> FileRecord:
        try:
            return self.manifest.records()[name]
        except KeyError:
            raise BundleError(f"{self.path / MANIFEST_FILE} does not list {name}, which is needed here.") from None

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        data = _verified(self.path / name, self._record(name))
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        except Exception as error:  # numpy, zipfile, zlib and the tokenizer of headers raise a dozen kinds
            raise BundleError(f"{self.path / name} is no readable npz file: {error}") from error

    def _observations(self, arrays: dict[str, np.ndarray], name: str) -> NDArray[np.float32]:
        stored = arrays.get("observations")
        if stored is not None and stored.dtype == np.uint8 and self.spec.is_image:
            arrays = {"observations": stored.astype(np.float32)}
        return self._checked(arrays, "observations", name, self.spec.observation_size)

    def _checked(self, arrays: dict[str, np.ndarray], key: str, name: str, width: int) -> NDArray[np.float32]:
        array = arrays.get(key)
        if array is None or array.dtype != np.float32 or array.ndim != 2 or array.shape[1] != width:
            found = "absent" if array is None else f"{array.dtype}{list(array.shape)}"
            raise BundleError(f"{self.path / name}: {key!r} is {found}; the spec wants float32[n, {width}].")
        if not np.isfinite(array).all():
            raise BundleError(f"{self.path / name}: {key!r} holds NaN or infinity.")
        return array


def write_bundle(
    path: Path | str,
    spec: PolicySpec,
    weights: network.Weights,
    calibration: np.ndarray,
    golden_observations: np.ndarray,
    extra_files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write a new bundle, in place of one of the same path, atomically; the golden outputs are computed here.

    Args:
        path: the folder to make.
        spec, weights: the policy.
        calibration: raw observations (n, observation_size) recorded from real rollouts.
        golden_observations: likewise; other ones than the calibration's make a better test.
        extra_files: more files to keep in the bundle by plain name, e.g. the learning curve.

    Raises:
        SpecError: the weights or observations do not fit the spec.
    """
    from safetensors.numpy import save  # not on the device

    network.check_weights(spec, weights)
    golden = Golden.record(spec, weights, golden_observations)
    contents = {
        SPEC_FILE: spec.to_json().encode(),
        WEIGHTS_FILE: save({name: np.ascontiguousarray(value) for name, value in weights.items()}),
        CALIBRATION_FILE: npz(observations=_stored(spec, network.as_batch(spec, calibration))),
        GOLDEN_FILE: npz(
            observations=_stored(spec, golden.observations), outputs=golden.outputs, actions=golden.actions
        ),
        **(extra_files or {}),
    }
    manifest = Manifest(spec.name, {name: FileRecord.of(data) for name, data in contents.items()})
    with locked(Path(path).parent):
        _replace_folder(Path(path), {**contents, MANIFEST_FILE: manifest.to_json().encode()})
    return Bundle.load(path)


def _stored(spec: PolicySpec, observations: NDArray[np.float32]) -> np.ndarray:
    """Images as uint8, a quarter of the bytes; observations that are no grey levels stay float32."""
    levels = network.grey_levels(observations) if spec.is_image else None
    return observations if levels is None else levels


def add_artifact(bundle: Bundle, entry: ArtifactEntry, data: bytes, expected_outputs: np.ndarray) -> Bundle:
    """Put an artifact that passed the parity gate into the bundle. The manifest is written last, atomically.

    Args:
        bundle: as loaded.
        entry: its record must be that of ``data``.
        data: the artifact.
        expected_outputs: the reference's outputs on the golden observations, float32 (n, output_size).
    """
    golden = npz(outputs=expected_outputs.astype(np.float32))
    with locked(bundle.path):
        # Read again: another process may have added another artifact meanwhile.
        current = Manifest.from_json(_read(bundle.path / MANIFEST_FILE), bundle.path / MANIFEST_FILE)
        valid = current.without_stale(current.with_artifact(entry, FileRecord.of(golden)))
        if valid != current:
            # An interruption between the files must not leave a manifest that calls the new ones tampered with.
            write_atomically(bundle.path / MANIFEST_FILE, valid.to_json().encode())
        manifest = valid.with_artifact(entry, FileRecord.of(golden))
        write_atomically(bundle.path / entry.golden_file, golden)
        write_atomically(bundle.path / entry.file, data)
        write_atomically(bundle.path / MANIFEST_FILE, manifest.to_json().encode())
    return replace(bundle, manifest=manifest)


def copy_bundle(source: Bundle, path: Path, origin: str) -> Bundle:
    """A copy of a bundle's files without its artifacts, whose manifest says where it came from.

    Two that copy to the same path at once have to hold :func:`locked` of its parent, each.
    """
    files = {
        name: record
        for name, record in source.manifest.files.items()
        if name not in {entry.golden_file for entry in source.manifest.artifacts.values()}
    }
    contents = {name: _verified(source.path / name, record) for name, record in files.items()}
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


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes that change what is in it; readers need no lock.

    The kernel drops the lock when its process ends, however it ends. A file system without locks goes without.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        hint = "Train one (make train POLICY=I) or name one that exists." if path.name == MANIFEST_FILE else ""
        raise BundleError(f"{path} is missing.", hint) from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error


def _verified(path: Path, record: FileRecord) -> bytes:
    data = _read(path)
    _compare(path, FileRecord.of(data), record)
    return data


def _verify(path: Path, record: FileRecord) -> None:
    """As :func:`_verified`, a block at a time: a device has little memory, and the agent's peak is measured."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while block := stream.read(HASH_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    except FileNotFoundError:
        raise BundleError(f"{path} is missing.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error
    _compare(path, FileRecord(size, digest.hexdigest()), record)


def _compare(path: Path, found: FileRecord, wanted: FileRecord) -> None:
    if found.size != wanted.size:
        state = "truncated" if found.size < wanted.size else "longer than it was written"
        raise BundleError(f"{path} is {state}: {found.size} bytes, the manifest says {wanted.size}.")
    if found.sha256 != wanted.sha256:
        raise BundleError(
            f"{path} was tampered with or damaged: its sha256 is not the manifest's.", "Make or fetch the bundle again."
        )
