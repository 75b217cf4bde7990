"""A bundle: the folder that holds one trained policy and everything ever made from it.

    policy.json           the PolicySpec, with where it came from
    weights.safetensors   float32 master weights (host only; never pickle)
    calibration.npz       "observations": float32 (n, observation_size) recorded from real rollouts (host only);
                          images as uint8 grey levels, which read back as the same float32 numbers
    golden.npz            "observations", "outputs", "actions": what every artifact is checked against
    int8.tflite, …        artifacts;  int8.golden.npz: the reference's outputs of that precision
    manifest.json         size and hash of each of them, and the parity figures of each artifact

Loading verifies sizes, hashes, shapes and the spec, and names what is wrong; where the weights are needed, it also
computes the golden outputs again. A bundle comes from elsewhere: its files are read by ``policy.reading.files``, its
arrays by ``policy.reading.arrays``. A device holds a part of the bundle under the same manifest; it reads only, and
what writes bundles, ``policy.bundle_writer``, stays on the host.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from policy import network
from policy.errors import BundleError, SpecError
from policy.json_values import shortened
from policy.manifest import MANIFEST_FILE, ArtifactEntry, FileRecord, Manifest
from policy.reading.arrays import LARGEST_NPZ, Wanted, read_arrays
from policy.reading.files import (
    LARGEST_MANIFEST,
    LARGEST_OTHER,
    LARGEST_SPEC,
    MIB,
    FileState,
    file_state,
    is_there,
    read_file,
    verified,
    verify,
)
from policy.spec import ArtifactFormat, PolicySpec, Precision

SPEC_FILE, WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE = (
    "policy.json",
    "weights.safetensors",
    "calibration.npz",
    "golden.npz",
)
WEIGHTS_HEADER, ARTIFACT_OVERHEAD = MIB, 16 * MIB
"""Bytes that weights.safetensors and an artifact may have beside their parameters."""
DEVICE_FILES = (SPEC_FILE, GOLDEN_FILE)
LARGEST_TOLERANCE = 0.25
"""Largest tolerance, as a share of an output's span, mean over the golden observations: a wider one checks nothing."""
HOST_FILES = (*DEVICE_FILES, WEIGHTS_FILE, CALIBRATION_FILE)

Made = TypeVar("Made")


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
        """The golden vectors of a policy on these observations, by the numpy reference, alike on every processor."""
        outputs = network.forward_float(spec, weights, observations, exact=True)
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
        """All three of a bundle (host only)."""
        return cls(bundle.weights(), bundle.calibration(), bundle.golden())


@dataclass(frozen=True)
class Bundle:
    """A verified bundle. Make one with :meth:`load`.

    Weights, calibration and golden vectors are read and verified once, and once more where their file has been written
    since. Their arrays are read-only: all who ask get the same ones.
    """

    path: Path
    spec: PolicySpec
    manifest: Manifest
    _kept: dict[str, tuple[FileState | None, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path | str, require: tuple[str, ...] = HOST_FILES, manifest: str = "") -> Bundle:
        """Open a bundle and verify every file of it that is present.

        Args:
            path: the folder.
            require: files that must be present: HOST_FILES, or DEVICE_FILES on a device.
            manifest: sha256 that manifest.json must have; empty: any.

        Raises:
            BundleError: names the file that is missing, truncated, tampered with, of a future version or inconsistent.
        """
        folder = Path(path)
        with _named(folder):
            return cls._load(folder, require, read_manifest(folder, manifest))

    @classmethod
    def _load(cls, folder: Path, require: tuple[str, ...], manifest: Manifest) -> Bundle:
        records = manifest.records()
        for name in (*require, SPEC_FILE):
            if name not in records:
                raise BundleError(f"{folder / MANIFEST_FILE} does not list {name}, which is needed here.")
        spec = read_spec(folder, manifest)
        bundle = cls(folder, spec, manifest)
        used = {GOLDEN_FILE, *{WEIGHTS_FILE, CALIBRATION_FILE}.intersection(require)}
        for name, record in records.items():
            if name in used:
                bundle._keep(name)
            elif name != SPEC_FILE and (name in require or is_there(folder / name)):
                verify(folder / name, record, bundle._largest(name))
        golden = bundle.golden()
        if CALIBRATION_FILE in require:
            bundle._made(CALIBRATION_FILE, bundle._calibration)
        if WEIGHTS_FILE in require:
            from policy.bundle_checks import check_golden_outputs  # not on the device

            hashes = tuple(records[name].sha256 for name in (SPEC_FILE, WEIGHTS_FILE, GOLDEN_FILE))
            where = folder / GOLDEN_FILE
            check_golden_outputs(spec, bundle.weights(), golden.observations, golden.outputs, where, hashes)
        return bundle

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The float32 master weights, verified against their hash and the spec's shapes (host only)."""
        return dict(self._made(WEIGHTS_FILE, self._weights))

    def calibration(self) -> NDArray[np.float32]:
        """Raw observations recorded from real rollouts, float32 (n, observation_size) (host only)."""
        return _as_float32(self._made(CALIBRATION_FILE, self._calibration))

    def golden(self) -> Golden:
        """The golden vectors; their shapes are checked."""
        arrays = self._made(GOLDEN_FILE, self._golden)
        return Golden(_as_float32(arrays["observations"]), arrays["outputs"], arrays["actions"])

    def forget(self) -> None:
        """Keep nothing of what was read, where memory is scarce; whoever asks next reads it again."""
        self._kept.clear()

    def _keep(self, name: str) -> Any:
        """Read a file of the bundle, verified, and keep its bytes until something is made of them."""
        state = file_state(self.path / name)  # before it is read: one that is written meanwhile is read again
        data = self.data(name)
        self._kept[name] = state, data
        return data

    def _made(self, name: str, make: Callable[[bytes], Made]) -> Made:
        """What ``make`` makes of a file, verified: what it made before, unless the file has been written since."""
        state, kept = self._kept.get(name, (None, None))
        if state is None or state != file_state(self.path / name):
            kept = self._keep(name)
        if isinstance(kept, bytes):
            kept = make(kept)
            self._kept[name] = self._kept[name][0], kept
        made: Made = kept
        return made

    def _weights(self, data: bytes) -> dict[str, NDArray[np.float32]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load  # not on the device

        with _named(self.path / WEIGHTS_FILE):
            try:
                weights: dict[str, NDArray[np.float32]] = load(data)
                network.check_weights(self.spec, weights)
            except (SafetensorError, SpecError) as error:
                raise BundleError(f"{self.path / WEIGHTS_FILE}: {error}") from error
        for array in weights.values():
            array.flags.writeable = False
        return weights

    def _calibration(self, data: bytes) -> np.ndarray:
        return self._arrays(data, CALIBRATION_FILE, {"observations": self._observations})["observations"]

    def _golden(self, data: bytes) -> dict[str, np.ndarray]:
        spec, where = self.spec, self.path / GOLDEN_FILE
        actions = Wanted(("int64",), None) if spec.is_discrete else self._outputs
        wanted = {"observations": self._observations, "outputs": self._outputs, "actions": actions}
        arrays = self._arrays(data, GOLDEN_FILE, wanted)
        if not len(arrays["outputs"]):
            raise BundleError(f"{where} holds no golden vectors.", "Make or fetch the bundle again.")
        if not np.array_equal(arrays["actions"], network.choose_actions(spec, arrays["outputs"])):
            raise BundleError(f"{where}: an action is not the one that its outputs choose.")
        return arrays

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
            f"Type: make convert BITS={precision.typed} POLICY={self.spec.name}",
        )

    def has_artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> bool:
        """Whether the artifact is listed and its file is there (:meth:`load` verified what is)."""
        return any(
            (entry.precision, entry.format) == (precision, artifact_format) and is_there(self.path / entry.file)
            for entry in self.manifest.artifacts.values()
        )

    def artifact_data(self, entry: ArtifactEntry) -> bytes:
        """The bytes of an artifact, verified against the manifest."""
        return verified(self.path / entry.file, entry.record, self._largest(entry.file))

    def data(self, name: str) -> bytes:
        """The bytes of a file that the manifest lists, verified."""
        return verified(self.path / name, self._record(name), self._largest(name))

    def expected(self, entry: ArtifactEntry) -> Expected:
        """What this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        if (entry.output_step is None) is entry.precision.is_integer or (
            entry.output_step is not None and len(entry.output_step) != self.spec.output_size
        ):
            raise BundleError(
                f"{self.path / MANIFEST_FILE}: the output_step of {entry.file} is {entry.output_step}; allowed are "
                f"{f'{self.spec.output_size} steps' if entry.precision.is_integer else 'none, of floats'}."
            )
        golden_outputs = self._made(GOLDEN_FILE, self._golden)["outputs"]
        wanted = {"outputs": self._outputs, "tolerance": self._outputs}
        arrays = self._arrays(self.data(entry.golden_file), entry.golden_file, wanted)
        outputs, tolerance = arrays["outputs"], arrays["tolerance"]
        if not len(outputs) == len(tolerance) == len(golden_outputs):
            raise BundleError(f"{self.path / entry.golden_file} does not belong to the bundle's golden observations.")
        largest = tolerance.mean(axis=0) / network.output_spans(self.spec, golden_outputs)
        if tolerance.min() < 0 or largest.max() > LARGEST_TOLERANCE:
            raise BundleError(
                f"{self.path / entry.golden_file}: the tolerance is {largest.max():.3g} of what output "
                f"{int(largest.argmax())} spans; allowed are 0 to {LARGEST_TOLERANCE:g}.",
                f"Type: make convert BITS={entry.precision.typed} POLICY={self.spec.name}",
            )
        return Expected(outputs, tolerance)

    @property
    def _observations(self) -> Wanted:
        return Wanted(("float32", "uint8") if self.spec.is_image else ("float32",), self.spec.observation_size)

    @property
    def _outputs(self) -> Wanted:
        return Wanted(("float32",), self.spec.output_size)

    def _record(self, name: str) -> FileRecord:
        try:
            return self.manifest.records()[name]
        except KeyError:
            raise BundleError(f"{self.path / MANIFEST_FILE} does not list {name}, which is needed here.") from None

    def _largest(self, name: str) -> int:
        """Bytes that a file of this policy may have at most."""
        if name == SPEC_FILE:
            return LARGEST_SPEC
        if name == WEIGHTS_FILE:
            return 4 * self._parameters + WEIGHTS_HEADER
        if name in self.manifest.artifacts:
            return 8 * self._parameters + ARTIFACT_OVERHEAD
        return LARGEST_NPZ if name.endswith(".npz") else LARGEST_OTHER

    @property
    def _parameters(self) -> int:
        return sum(math.prod(shape) for shape in network.weight_shapes(self.spec).values())

    def _arrays(self, data: bytes, name: str, wanted: dict[str, Wanted]) -> dict[str, np.ndarray]:
        arrays = read_arrays(data, wanted, str(self.path / name))
        for key, array in arrays.items():
            # A block at a time: the truth values of all would be a quarter as large again.
            if not all(np.isfinite(array[start : start + 1024]).all() for start in range(0, len(array), 1024)):
                raise BundleError(f"{self.path / name}: {key!r} holds NaN or infinity.")
            array.flags.writeable = False
        return arrays


def read_manifest(folder: Path, sha256: str = "") -> Manifest:
    """The manifest of a bundle's folder; nothing else of it is looked at.

    Args:
        folder: the bundle's.
        sha256: that the file must have; empty: any.

    Raises:
        BundleError: it is missing, cannot be read, or is another one.
    """
    path = folder / MANIFEST_FILE
    with _named(path):
        data = read_file(path, LARGEST_MANIFEST)
        if sha256 not in ("", hashlib.sha256(data).hexdigest()):
            raise BundleError(f"{path} is not the one that this release was signed with.", "Deploy the policy again.")
        return Manifest.from_json(data, path)


def read_spec(folder: Path, manifest: Manifest) -> PolicySpec:
    """The spec of a bundle's folder, verified; no other file of it is looked at.

    Raises:
        BundleError: it is not listed, not that of the manifest, or cannot be read.
    """
    with _named(folder):
        try:
            record = manifest.records()[SPEC_FILE]
            spec = PolicySpec.from_json(verified(folder / SPEC_FILE, record, LARGEST_SPEC))
        except KeyError:
            raise BundleError(f"{folder / MANIFEST_FILE} does not list {SPEC_FILE}, which is needed here.") from None
        except SpecError as error:
            raise BundleError(f"{folder / SPEC_FILE}: {error}") from error
    if spec.name != manifest.policy:
        raise BundleError(f"{folder}: the manifest is of policy {manifest.policy!r}, policy.json of {spec.name!r}.")
    return spec


def _as_float32(observations: np.ndarray) -> NDArray[np.float32]:
    """Observations as float32, read-only; grey levels are kept as they are stored, a quarter as large."""
    floats: NDArray[np.float32] = observations.astype(np.float32, copy=False)
    floats.flags.writeable = False
    return floats


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise a BundleError that names what was read, whatever else reading raised: it is the bundle's fault too."""
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        shown = shortened(str(error))
        raise BundleError(f"{path} cannot be read: {type(error).__name__} {shown}.") from error
