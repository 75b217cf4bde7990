"""Is an artifact what weights and calibration make? ``quarl convert --verify`` asks, and what packs it for others."""

from __future__ import annotations

import numpy as np

from quarl.convert.pipeline import build
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError, QuantizationError
from quarl.policy.golden import refuse_wrong_outputs
from quarl.policy.reading import ArtifactEntry

ROUNDING = 1e-3
"""A tolerance is stored as float32, and computed again on another processor."""


def check_artifact(bundle: Bundle, entry: ArtifactEntry) -> None:
    """Build an artifact of a bundle again, and compare it and what a device will hold it to; nothing is executed.

    Raises:
        BundleError: it is another one, or its expected outputs, tolerance or step are others; names which.
    """
    next_step = f"Convert it again: quarl convert --bits {entry.precision.bits_argument} --policy {bundle.spec.name}"
    try:
        candidate = build(bundle, entry.precision, entry.format, entry.recipe if entry.precision.is_integer else None)
    except QuantizationError as error:
        raise BundleError(f"{bundle.path}: {entry.file} cannot come from this policy: {error}", next_step) from error
    if bundle.artifact_data(entry) != candidate.data:
        raise BundleError(
            f"{bundle.path / entry.file} does not match these weights and this calibration.",
            next_step,
            code="artifact_not_rebuilt",
        )
    wanted, stored, where = candidate.reference, bundle.read_expected(entry), bundle.path / entry.golden_file
    wrong = ~(np.abs(stored.outputs.astype(np.float64) - wanted.outputs) <= wanted.own_tolerance[0])
    whose = "these weights and this calibration"
    refuse_wrong_outputs(wrong, wanted.outputs, stored.outputs, where, whose, next_step)
    if (stored.tolerance > wanted.tolerance * (1 + ROUNDING)).any():
        raise BundleError(f"{where}: the tolerance is wider than this artifact's.", next_step, code="wider_tolerance")
    # Both have steps, or none: Bundle.expected has compared that with the precision.
    step, stated_step = (np.array([] if value is None else value) for value in (wanted.step, entry.output_step))
    most_off, allowed = (1.0 if value is None else value for value in (entry.most_off, wanted.most_off))
    if not np.allclose(step, stated_step, rtol=ROUNDING, atol=0.0) or most_off > allowed * (1 + ROUNDING):
        raise BundleError(
            f"{bundle.path}: output_step or tolerance of {entry.file} in the manifest does not match.", next_step
        )
