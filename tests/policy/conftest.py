"""What the tests of the contract share."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarl.policy.bundle import Bundle, write_bundle
from tests.policy.small_bundle import CALIBRATION, GOLDEN, SPEC, WEIGHTS


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN, {"learning_curve.csv": b"step,return\n"})
