"""quarl rewrite: the same policy in fp32 with its files, atomically; refused where nothing applies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import rewrite
from quarl.convert.pipeline import convert
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.reading import CALIBRATION_FILE
from quarl.policy.reference import Weights
from quarl.policy.rewrites import Rewrite
from quarl.policy.spec import ArtifactFormat, Normaliser, PolicySpec, Precision, TrainedQuantization
from tests.convert.conftest import Capture, Patch, Runtimes, contents, make_observations, make_spec, make_weights


@pytest.fixture
def values(tmp_path: Path) -> Bundle:
    """Action values with much in common, of an observation that nothing normalises."""
    spec = make_spec()
    calibration, golden = make_observations(spec, 400, 1), make_observations(spec, 64, 2)
    spec = replace(spec, normaliser=Normaliser((0.0,) * 8, (1.0,) * 8, 50.0), provenance={"algorithm": "dqn"})
    weights = make_weights(spec)
    weights["head/kernel"] += 2.0
    return write_bundle(tmp_path / "values", spec, weights, calibration, golden, {"learning_curve.csv": b"step\n"})


def test_a_bundle_is_rewritten_in_place(values: Bundle, runtimes: Runtimes, capsys: Capture) -> None:
    wide = convert(values, Precision.INT8, ArtifactFormat.TFLITE, runtimes).entry
    before, path, golden = Bundle.load(values.path), str(values.path), values.golden()
    assert "int8.tflite" in before.manifest.artifacts and rewrite.main(["--policy", path]) == 0
    printed = capsys.readouterr().out
    assert "the mean over the actions is subtracted" in printed and f"quarl convert --policy {path}" in printed

    after = Bundle.load(values.path)
    assert after.spec.provenance == {"algorithm": "dqn", "rewrites": ["centred", "normalised"]}
    assert not after.manifest.artifacts and "int8.golden.npz" not in contents(values.path)
    kept = {CALIBRATION_FILE, "learning_curve.csv"}
    assert {name: after.manifest.files[name] for name in kept} == {name: before.manifest.files[name] for name in kept}
    assert np.array_equal(after.golden().observations, golden.observations)
    assert np.array_equal(after.golden().actions, golden.actions)
    assert np.abs(after.golden().outputs.mean(axis=1)).max() < 1e-4
    narrow = convert(after, Precision.INT8, ArtifactFormat.TFLITE, runtimes).entry
    assert wide.output_step is not None and narrow.output_step is not None
    assert narrow.output_step[0] < 0.5 * wide.output_step[0] and narrow.fp32_agreement >= wide.fp32_agreement

    left = contents(values.path)
    assert rewrite.main(["--policy", path]) == 1
    assert "has nothing to rewrite: it has a normaliser, and its actions have 0%" in capsys.readouterr().err
    assert contents(values.path) == left


def test_where_one_of_several_is_refused_none_is_written(values: Bundle, tmp_path: Path, capsys: Capture) -> None:
    ranges = {"input": (-1.0, 1.0), "dense_0": (0.0, 1.0), "dense_1": (0.0, 1.0)}
    spec = replace(values.spec, name="trained", quantization=TrainedQuantization(8, ranges))
    trained = write_bundle(tmp_path / "trained", spec, values.weights(), values.calibration(), values.calibration()[:9])
    left = contents(values.path), contents(trained.path)
    assert rewrite.main(["--policy", f"{values.path},{trained.path}"]) == 1
    assert "quantization-aware training" in capsys.readouterr().err
    assert (contents(values.path), contents(trained.path)) == left
    assert rewrite.main(["--policy", str(values.path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rewritten"].values()
    assert found == [Rewrite.CENTRED.value, Rewrite.NORMALISED.value]


def test_what_cannot_be_found_or_is_not_named_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert rewrite.main(["--policy", str(tmp_path / "absent")]) == 1 and "absent" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        rewrite.main(["--policy", ","])
    assert stopped.value.code == 2


def test_a_rewrite_that_computes_something_else_is_not_written(
    values: Bundle, monkeypatch: Patch, capsys: Capture
) -> None:
    left = contents(values.path)

    def wrong(spec: PolicySpec, weights: Weights, *_: object) -> tuple[PolicySpec, Weights]:
        return spec, {**weights, "head/bias": weights["head/bias"] + np.float32(1)}

    monkeypatch.setattr(rewrite, "rewritten", wrong)
    assert rewrite.main(["--policy", str(values.path)]) == 1 and "golden_outputs" in capsys.readouterr().err
    assert contents(values.path) == left
