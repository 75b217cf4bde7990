"""An element that stood still in the recordings is named, and --range makes int8 follow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.calibration import inspect
from quarl.convert.executor import runtime_processes
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.options import ImportOptions
from quarl.convert.pipeline import build_graph
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import Activation, ArtifactFormat, NetworkSpec, PolicySpec, Precision, RuntimeName, weight_shapes
from tests.convert.conftest import Capture, make_spec

SIZE, ROWS, COMMAND = 6, 800, 5
RUNTIMES = {
    RuntimeName.LITERT: ArtifactFormat.TFLITE,
    RuntimeName.ONNXRUNTIME: ArtifactFormat.ONNX,
    RuntimeName.NATIVE: ArtifactFormat.NATIVE,
}


def imported(folder: Path, *options: str, noise: float = 0.0, fields: str = "") -> int:
    """Import a policy that follows a command of −100 … 100, which was 0, up to ``noise``, when it was recorded."""
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(16, SIZE)) / np.sqrt(SIZE)
    kernel[:, COMMAND] *= 0.02
    tensors = {"a.weight": kernel, "a.bias": np.zeros(16), "b.weight": generator.normal(size=(2, 16)) / 4}
    np.savez(folder / "p.npz", **{"b.bias": np.zeros(2)}, **tensors)
    (folder / "p.json").write_text(
        '{"source": "a test", "layout": "torch", "actions": "continuous", "period_s": 0.02,'
        f'"observation": [["obs", {SIZE}, "1"]], "steps": [{{"dense": "a"}}, {{"activation": "tanh"}}, '
        '{"dense": "b"}, {"activation": "tanh"}]}'
    )
    rows = generator.normal(size=(ROWS, SIZE)).astype(np.float32)
    rows[:, COMMAND] *= noise
    np.savez(folder / "o.npz", observations=rows)
    words = [str(folder / "p.npz"), "--spec", str(folder / "p.json"), "--observations", str(folder / "o.npz")]
    words += ["--fields", fields] if fields else []
    return main([*words, "--output-path", str(folder / "out"), *options])


@pytest.mark.parametrize(
    ("noise", "fields"),
    [(0.0, ""), (1e-5, ""), (0.0, f"body:{COMMAND}:1,command:1:1")],
    ids=["still", "hardly", "field"],
)
def test_an_element_that_stood_still_is_named_at_import_and_at_conversion(
    tmp_path: Path, capsys: Capture, noise: float, fields: str
) -> None:
    assert imported(tmp_path, noise=noise, fields=fields) == 0
    assert f"--range {COMMAND} " in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "out")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    network = quantize_network(spec, weights, calibration)
    (warning,) = inspect(spec, weights, network, calibration, bundle.golden().observations).warnings
    assert f"--range {COMMAND} " in warning


def test_a_range_makes_int8_follow_in_every_format(tmp_path: Path, capsys: Capture) -> None:
    assert imported(tmp_path, "--range", str(COMMAND), "-100", "100", "--range", "0", "-9", "9") == 0
    assert "--range" not in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "out")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    assert np.array(spec.normaliser.scale)[[0, COMMAND]] == pytest.approx([9.0, 100.0])
    assert len(calibration) == 2 * ROWS * 7 // 8
    rows = np.tile(np.random.default_rng(9).normal(size=(40, SIZE)).astype(np.float32), (2, 1))
    rows[:40, COMMAND], rows[40:, COMMAND] = -100.0, 100.0
    wanted = np.subtract(*np.split(forward_float(spec, weights, rows), 2))
    assert np.abs(wanted).mean() > 0.1
    with runtime_processes(tuple(RUNTIMES)) as processes:
        for name, artifact_format in RUNTIMES.items():
            data = build_graph(spec, weights, calibration, Precision.INT8, artifact_format)
            made = np.subtract(*np.split(processes[name].execute(spec, data, rows).outputs, 2))
            assert np.abs(made - wanted).mean() < 0.1 * np.abs(wanted).mean(), name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("6 0 1", 1),
        ("-1 0 1", 1),
        ("5 1 1", 1),
        ("5 2 -2", 1),
        ("5 nan 1", 1),
        ("5 0 inf", 1),
        ("x 0 1", 2),
        ("5 0", 2),
    ],
)
def test_a_range_of_no_element_or_without_order_is_refused_in_a_line(
    tmp_path: Path, capsys: Capture, words: str, code: int
) -> None:
    try:
        found = imported(tmp_path, "--range", *words.split())
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == code and not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert "--range" in error and "Traceback" not in error


def test_the_command_that_says_the_same_has_the_ranges() -> None:
    options = ImportOptions(Path("p.onnx"), range=((5, -100.0, 100.0), (3, 0.0, 1.0)))
    assert options.to_command() == "quarl import p.onnx --range 5 -100.0 100.0 --range 3 0.0 1.0"


def with_tanh() -> tuple[PolicySpec, dict[str, np.ndarray], np.ndarray]:
    """A policy whose first layer saturates, and observations."""
    spec, generator = make_spec(), np.random.default_rng(3)
    spec = replace(spec, network=NetworkSpec((24, 16), Activation.TANH))
    weights = {
        name: generator.normal(scale=1.0 if name.endswith("kernel") else 0.1, size=shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    mean, scale = np.array(spec.normaliser.mean), np.array(spec.normaliser.scale)
    return spec, weights, (mean + scale * generator.normal(size=(600, len(mean)))).astype(np.float32)


def test_only_real_excursions_count_as_outside_the_range() -> None:
    """The fixed map of a tanh ends at 127/128, a step below the 1 that calibration saw."""
    spec, weights, rows = with_tanh()
    calibration, golden = rows[:500], rows[500:]
    report = inspect(spec, weights, quantize_network(spec, weights, calibration), calibration, golden)
    assert report.ranges[1].high > 0.999 and report.ranges[1].top == 127 / 128
    assert [item.clipped for item in report.ranges[1:3]] == [0.0, 0.0]
    mean = np.array(spec.normaliser.mean, np.float32)
    timid = mean + np.float32(0.02) * (calibration - mean)
    report = inspect(spec, weights, quantize_network(spec, weights, timid), timid, golden)
    assert report.ranges[0].clipped > 0.2 and report.ranges[1].clipped > 0.2
    assert any(warning.startswith("input:") for warning in report.warnings)
