"""``quarl convert``: what it prints, writes and refuses."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import __main__ as cli
from quarl.convert import pipeline, rewrite
from quarl.convert.calibration import inspect
from quarl.convert.pipeline import Converted, convert, convert_each
from quarl.policy.bundle import Bundle, copy_bundle, write_bundle
from quarl.policy.errors import BundleError, QuantizationError
from quarl.policy.reading import CALIBRATION_FILE, GOLDEN_FILE, WEIGHTS_FILE
from quarl.policy.reference import Weights, forward_integer
from quarl.policy.rewrites import Rewrite
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    Normaliser,
    PolicySpec,
    Precision,
    Recipe,
    RuntimeName,
    TrainedQuantization,
)
from tests.convert.conftest import Capture, Patch, Runtimes, Small, contents, make_observations, make_spec, make_weights
from tests.refusals import refused


def test_every_precision_in_every_format(bundle: Bundle, capsys: Capture) -> None:
    assert cli.main(["--policy", str(bundle.path), "--bits", "32,16,8,4,mixed"]) == 0
    printed = capsys.readouterr().out
    written = Bundle.load(bundle.path)
    assert set(written.manifest.artifacts) == {
        f"{precision}.{suffix}"
        for precision in ("fp32", "fp16", "int8", "int4", "mixed")
        for suffix in ("tflite", "onnx", "native")
    }
    for name, entry in written.manifest.artifacts.items():
        assert name in printed
        runtimes = {runtime.value for runtime in entry.runtimes}
        own = {"onnx": {"onnxruntime"}, "native": {"native"}, "tflite": {"litert", "tflite-runtime"}}
        assert runtimes == own[name.split(".")[1]]
    packed = written.artifact(Precision.INT4, ArtifactFormat.NATIVE)
    assert packed.runtimes[RuntimeName.NATIVE].max_error_steps == 0.0
    four = written.artifact(Precision.INT4, ArtifactFormat.TFLITE)
    assert "4 bits" in four.scheme
    assert "4-bit weights in an int8 container: size and speed are int8's" in four.execution
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration(), 4)
    reference = forward_integer(bundle.spec, network, bundle.golden().observations)
    np.testing.assert_array_equal(written.read_expected(four).outputs, reference)
    eight = written.artifact(Precision.INT8, ArtifactFormat.ONNX)
    assert "3 QGemm, 0 float Gemm" in eight.execution


def test_json_is_one_document_with_the_figures(bundle: Bundle, capsys: Capture) -> None:
    assert cli.main(["--policy", str(bundle.path), "--bits", "8", "--format", "tflite", "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)
    assert (figures["policy"], figures["file"], figures["precision"]) == ("small", "int8.tflite", "int8")
    assert figures["bytes"] == (bundle.path / "int8.tflite").stat().st_size
    assert 0.2 < figures["ratio_to_fp32"] < 1.0 and figures["runtimes"]["litert"]["max_error_steps"] == 0.0


def test_converting_again_gives_the_same_bytes(bundle: Bundle) -> None:
    arguments = ["--policy", str(bundle.path), "--bits", "16,8"]
    assert cli.main(arguments) == 0
    first = {path.name: path.read_bytes() for path in bundle.path.iterdir()}
    assert cli.main(arguments) == 0
    assert {path.name: path.read_bytes() for path in bundle.path.iterdir()} == first


def test_a_copy_of_the_bundle_converts_from_any_folder(bundle: Bundle, tmp_path: Path) -> None:
    copy = copy_bundle(bundle, tmp_path / "elsewhere" / "small", origin="zoo")
    command = [sys.executable, "-m", "quarl.convert", "--policy", "./small", "--bits", "8", "--format", "onnx"]
    done = subprocess.run(command, cwd=copy.path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (copy.path / "int8.onnx").exists() and "int8.onnx" in done.stdout


def test_conversion_imports_no_tensorflow(bundle: Bundle) -> None:
    script = (
        "import sys; from quarl.convert.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'tensorflow', 'keras', 'tf2onnx'} & set(sys.modules); "
        "print(heavy, file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    command = [sys.executable, "-c", script, "--policy", str(bundle.path), "--bits", "32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_conversion_that_is_killed_leaves_nothing(bundle: Bundle, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = set(bundle.path.iterdir())
    command = [sys.executable, "-m", "quarl.convert", "--policy", str(bundle.path), "--bits", "8", "--format", "onnx"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.DEVNULL) as process:
        started = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and not started.read_text():  # until a runtime's process is there
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL and list(temporary.rglob("*")) == []
    assert set(bundle.path.iterdir()) == before


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE])
def test_a_bundle_that_is_damaged_between_two_artifacts_is_refused(bundle: Bundle, name: str) -> None:
    def damage(_: Converted) -> None:
        path = bundle.path / name
        path.write_bytes(path.read_bytes()[::-1])

    formats = ArtifactFormat.TFLITE, ArtifactFormat.NATIVE  # of one precision: quantized once
    jobs = [(bundle, Precision.INT8, artifact_format) for artifact_format in formats]
    with refused(BundleError, "wrong_sha256"):
        convert_each(jobs, damage)
    assert (bundle.path / "int8.tflite").exists() and not (bundle.path / "int8.native").exists()


def test_formats_of_one_precision_share_what_is_quantized(bundle: Bundle, monkeypatch: Patch) -> None:
    made: list[Precision] = []
    quantize = pipeline.quantize

    def counted(one: Bundle, precision: Precision, recipe: Recipe | None = None) -> pipeline.Quantized:
        made.append(precision)
        return quantize(one, precision, recipe)

    monkeypatch.setattr(pipeline, "quantize", counted)
    done = pipeline.convert_all([bundle], [Precision.FP16, Precision.INT8], list(ArtifactFormat))
    assert made == [Precision.FP16, Precision.INT8] and len(done) == 6
    for each in done:
        alone = pipeline.build(bundle, each.entry.precision, each.entry.format)
        assert alone.data == (bundle.path / each.entry.file).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bits", "9"], ["got 9", "32, 16, 8 … 2"]),
        (["--policy", "NoSuchPolicy", "--bits", "8"], ["no policy 'NoSuchPolicy'", "artifacts/NoSuchPolicy"]),
        (["--policy", "./nothing/here"], ["manifest.json is missing"]),
    ],
)
def test_what_cannot_be_done_is_said_with_the_next_step(
    capsys: Capture, arguments: list[str], words: list[str]
) -> None:
    assert cli.main(arguments) == 1
    printed = capsys.readouterr().err
    for word in words:
        assert word in printed


def test_the_calibration_table_is_printed_on_request(bundle: Bundle, capsys: Capture) -> None:
    assert cli.main(["--policy", str(bundle.path), "--bits", "32", "--format", "tflite", "--calibration"]) == 0
    printed = capsys.readouterr().out
    assert "activation ranges over 400 recorded observations" in printed
    for tensor in ("input", "dense_0", "dense_1", "head"):
        assert tensor in printed


def test_missing_makes_only_what_is_not_there(bundle: Bundle, capsys: Capture) -> None:
    arguments = ["--policy", str(bundle.path), "--missing"]
    assert cli.main([*arguments, "--bits", "8"]) == 0
    before = (bundle.path / "int8.tflite").stat().st_mtime_ns
    assert "Policy small" not in capsys.readouterr().err, "the command behind it says which policy it works on"
    assert cli.main([*arguments, "--bits", "8"]) == 0 and "nothing to convert" in capsys.readouterr().out
    assert cli.main([*arguments, "--bits", "8,16", "--json"]) == 0
    made = [figures["file"] for figures in json.loads(capsys.readouterr().out)]
    assert made == ["fp16.tflite", "fp16.onnx", "fp16.native"]
    (bundle.path / "fp16.onnx").unlink()
    assert cli.main([*arguments, "--bits", "8,16", "--json"]) == 0
    made = [figures["file"] for figures in json.loads(capsys.readouterr().out)]
    assert made == ["fp16.onnx"], "listed, but its file is gone; and nothing else is made with it"
    assert (bundle.path / "int8.tflite").stat().st_mtime_ns == before


def test_a_disk_that_is_full_is_said(bundle: Bundle, monkeypatch: Patch, capsys: Capture) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "fp32.tflite")

    monkeypatch.setattr("quarl.policy.bundle.os.fsync", full)
    assert cli.main(["--policy", str(bundle.path), "--bits", "32"]) == 1
    assert "fp32.tflite: No space left" in capsys.readouterr().err
    assert Bundle.load(bundle.path).manifest.artifacts == {}


def test_the_table_names_every_quantized_tensor_with_its_range(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    report = inspect(spec, weights, network, calibration, golden)
    assert [item.name for item in report.ranges] == ["input", "dense_0", "dense_1", "head"]
    assert (report.rows, report.warnings) == (400, ())
    # The normaliser clips at ±3, which 400 rows reach; one of 255 steps is then 3 / 127.
    first = report.ranges[0]
    assert (first.low, first.high) == (-3.0, 3.0) and first.step == pytest.approx(3.0 / 127)
    assert first.clipped == 0.0
    for item in report.ranges[1:3]:
        assert item.low == 0.0 and item.step == pytest.approx(item.high / 255)


def test_few_repeated_and_frozen_rows_are_warned_of(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    frozen = calibration[:40].copy()
    frozen[:, 5:] = 0.25
    frozen[10:] = frozen[0]
    warnings = inspect(spec, weights, network, frozen, golden).warnings
    assert any("only 40 calibration rows" in warning for warning in warnings)
    assert any("only 10 of 40" in warning for warning in warnings)
    assert any("'velocity'" in warning and "5, 6" in warning for warning in warnings)
    assert not any("'ranges'" in warning for warning in warnings)


def test_an_empty_or_broken_set_is_refused(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    with pytest.raises(QuantizationError, match="must have observations"):
        inspect(spec, weights, network, calibration[:0], golden)
    with pytest.raises(QuantizationError, match="must have observations"):
        quantize_network(spec, weights, calibration[:0])
    broken = calibration.copy()
    broken[3, 1] = np.inf
    with refused(QuantizationError, "not_finite"):
        quantize_network(spec, weights, broken)


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
