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

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl.policy import network
from quarl.policy.bundle_checks import check_golden_outputs
from quarl.policy.errors import BundleError, SpecError
from quarl.policy.manifest import ArtifactEntry
from quarl.policy.reading.arrays import Stored
from quarl.policy.reading.bundle_files import (
    CALIBRATION_FILE,
    DEVICE_FILES,
    GOLDEN_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    BundleFiles,
    named,
)
from quarl.policy.spec import PolicySpec

HOST_FILES = (*DEVICE_FILES, WEIGHTS_FILE, CALIBRATION_FILE)


@dataclass(frozen=True)
class Golden:
    """Real observations with what the float policy makes of them.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, result_size).
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
        """All three of a bundle (host only)."""
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
        bundle = cls.opened(path, require)
        with named(bundle.path):
            if CALIBRATION_FILE in require:
                bundle.calibration()
            if WEIGHTS_FILE in require:
                golden, records = bundle.golden(), bundle.manifest.records()
                hashes = tuple(records[name].sha256 for name in (SPEC_FILE, WEIGHTS_FILE, GOLDEN_FILE))
                where = bundle.path / GOLDEN_FILE
                check_golden_outputs(bundle.spec, bundle.weights(), golden.observations, golden.outputs, where, hashes)
        return bundle

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The float32 master weights, verified against their hash and the spec's shapes (host only)."""
        return dict(self._made(WEIGHTS_FILE, self._weights))

    def calibration(self) -> NDArray[np.float32]:
        """Raw observations recorded from real rollouts, float32 (n, observation_size) (host only)."""
        return _as_float32(self._made(CALIBRATION_FILE, self._calibration))

    def golden(self) -> Golden:
        """The golden vectors; their shapes are checked."""
        rows = self.golden_rows()
        return Golden(_as_float32(_array(rows.observations)), _array(rows.outputs), _array(rows.actions))

    def expected(self, entry: ArtifactEntry) -> Expected:
        """What this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        rows = self.expected_rows(entry)
        return Expected(_array(rows.outputs), _array(rows.tolerance))

    def _weights(self, data: bytes) -> dict[str, NDArray[np.float32]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        with named(self.path / WEIGHTS_FILE):
            try:
                weights: dict[str, NDArray[np.float32]] = load(data)
                network.check_weights(self.spec, weights)
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
