"""A bundle: the folder that holds one trained policy and everything ever made from it.

    policy.json           the PolicySpec, with where it came from
    weights.safetensors   float32 master weights (host only; never pickle)
    calibration.npz       "observations": float32 (n, observation_size) recorded from real rollouts (host only);
                          images as uint8 grey levels, which read back as the same float32 numbers
    golden.npz            "observations", "outputs", "actions": what every artifact is checked against
    int8.tflite, …        artifacts;  int8.golden.npz: the reference's outputs of that precision
    manifest.json         size and hash of each of them, and the parity figures of each artifact

Loading verifies sizes, hashes, shapes and the spec, and names what is wrong. A device holds a part of the bundle under
the same manifest; it reads only, and what writes bundles, ``policy.bundle_writer``, stays on the host.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
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
LARGEST_TOLERANCE = 0.25
"""Of what an output spans, on the mean over the golden observations: a wider one checks nothing."""
HOST_FILES = (*DEVICE_FILES, WEIGHTS_FILE, CALIBRATION_FILE)


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
class Expected:
    """What an artifact has to compute on the golden observations.

    Attributes:
        outputs: of the numpy reference of its precision, (n, output_size).
        tolerance: largest allowed |output − outputs| on a device, likewise, in the outputs' units.
    """

    outputs: np.ndarray
    tolerance: np.ndarray


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
        manifest = read_manifest(folder)
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

        data = self.data(WEIGHTS_FILE)
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

    def data(self, name: str) -> bytes:
        """The bytes of a file that the manifest lists, verified."""
        return _verified(self.path / name, self._record(name))

    def expected(self, entry: ArtifactEntry) -> Expected:
        """What this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        arrays, golden = self._arrays(entry.golden_file), self.golden()
        outputs, tolerance = (
            self._checked(arrays, name, entry.golden_file, self.spec.output_size) for name in ("outputs", "tolerance")
        )
        if not len(outputs) == len(tolerance) == len(golden.outputs):
            raise BundleError(f"{self.path / entry.golden_file} does not belong to the bundle's golden observations.")
        largest = tolerance.mean(axis=0) / network.output_spans(self.spec, golden.outputs)
        if tolerance.min() < 0 or largest.max() > LARGEST_TOLERANCE:
            raise BundleError(
                f"{self.path / entry.golden_file}: the tolerance is {largest.max():.3g} of what output "
                f"{int(largest.argmax())} spans; allowed are 0 to {LARGEST_TOLERANCE:g}.",
                f"Type: make convert BITS={entry.precision.bits} POLICY={self.spec.name}",
            )
        return Expected(outputs, tolerance)

    def _record(self, name: str) -> FileRecord:
        try:
            return self.manifest.records()[name]
        except KeyError:
            raise BundleError(f"{self.path / MANIFEST_FILE} does not list {name}, which is needed here.") from None

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        data = self.data(name)
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


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle's folder; nothing else of it is looked at.

    Raises:
        BundleError: it is missing or cannot be read.
    """
    return Manifest.from_json(_read(folder / MANIFEST_FILE), folder / MANIFEST_FILE)


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
    try:
        found = FileRecord.of_file(path)
    except FileNotFoundError:
        raise BundleError(f"{path} is missing.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error
    _compare(path, found, record)


def _compare(path: Path, found: FileRecord, wanted: FileRecord) -> None:
    if found.size != wanted.size:
        state = "truncated" if found.size < wanted.size else "longer than it was written"
        raise BundleError(f"{path} is {state}: {found.size} bytes, the manifest says {wanted.size}.")
    if found.sha256 != wanted.sha256:
        raise BundleError(
            f"{path} was tampered with or damaged: its sha256 is not the manifest's.", "Make or fetch the bundle again."
        )
