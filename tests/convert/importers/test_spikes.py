"""A spike or a sentinel in a recording decides no range: the import stays what the file computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.acceptance import agreement
from quarl.convert.calibration import inspect
from quarl.convert.executor import runtime_processes
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import Continuous, Dense, ForeignError, ForeignPolicy, Input, run
from quarl.convert.importers.fold import fold
from quarl.convert.importers.importing import Imported, import_policy
from quarl.convert.importers.options import ImportOptions
from quarl.convert.importers.proof import prove
from quarl.convert.importers.recordings import cut_outliers
from quarl.convert.pipeline import build_graph
from quarl.policy.bundle import Bundle
from quarl.policy.golden import MOST_FOREIGN, foreign_tolerance
from quarl.policy.reference import forward_float, forward_integer
from quarl.policy.simulate import quantize_network, stored_weights
from quarl.policy.spec import Activation, NetworkSpec, Precision, RuntimeName, weight_shapes
from tests.convert.conftest import Capture, make_observations, make_spec
from tests.convert.importers.test_import import spec_of

SIZE, ROWS = 6, 800
ORDINARY = np.random.default_rng(9).normal(size=(300, SIZE)).astype(np.float32)


def observations() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(ROWS, SIZE)).astype(np.float32)


def write_spec(folder: Path, layers: str) -> None:
    steps = [step for layer in layers for step in ({"dense": layer}, {"activation": "tanh"})]
    told = {"source": "a test", "layout": "torch", "actions": "continuous", "period_s": 0.02}
    (folder / "p.json").write_text(json.dumps({**told, "observation": [["obs", SIZE, "1"]], "steps": steps}))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP with tanh, as a plain file, without a normaliser."""
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("policy")
    tensors = {}
    for name, shape in (("a", (SIZE, 16)), ("b", (16, 16)), ("c", (16, 3))):
        tensors[f"{name}.weight"] = (generator.normal(size=shape[::-1]) / np.sqrt(shape[0])).astype(np.float32)
        tensors[f"{name}.bias"] = generator.normal(scale=0.1, size=shape[1]).astype(np.float32)
    np.savez(folder / "p.npz", **tensors)
    write_spec(folder, "abc")
    return folder / "p.npz"


def imported(weights: Path, rows: np.ndarray, folder: Path) -> tuple[Imported, Bundle]:
    np.savez(folder / "o.npz", observations=rows)
    done = import_policy(
        ImportOptions(
            weights, spec=weights.with_suffix(".json"), observations=folder / "o.npz", output_path=folder / "out"
        )
    )
    return done, Bundle.load(folder / "out")


def agreements(done: Imported, bundle: Bundle) -> list[float]:
    """Of fp32, fp16 and int8 with the original on ordinary observations."""
    spec, own = bundle.spec, bundle.weights()
    wanted = run(done.policy, ORDINARY)
    integers = quantize_network(spec, own, bundle.calibration())
    made = (
        forward_float(spec, own, ORDINARY),
        forward_float(spec, stored_weights(spec, own, Precision.FP16), ORDINARY),
        forward_integer(spec, integers, ORDINARY),
    )
    return [agreement(spec, outputs, wanted) for outputs in made]


def test_clean_observations_keep_their_normaliser_and_rows(weights: Path, tmp_path: Path) -> None:
    rows = observations()
    done, bundle = imported(weights, rows, tmp_path)
    low, high = rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64)
    assert bundle.spec.normaliser.mean == pytest.approx((low + high) / 2, rel=1e-6)
    assert bundle.spec.normaliser.scale == pytest.approx((high - low) / 2, rel=1e-6)
    golden = np.arange(ROWS) % 8 == 0
    assert np.array_equal(bundle.calibration(), rows[~golden])
    assert not any("element" in warning and "row" in warning for warning in done.warnings)


@pytest.mark.parametrize(("value", "places"), [(1e8, [777]), (9999.0, range(3, 800, 100)), (-65535.0, [8, 16, 99])])
def test_a_spike_or_a_sentinel_loses_no_precision(
    weights: Path, tmp_path: Path, value: float, places: Sequence[int]
) -> None:
    rows = observations()
    rows[places, 3] = value
    done, bundle = imported(weights, rows, tmp_path)
    fp32, fp16, int8 = agreements(done, bundle)
    assert fp32 > 1 - 1e-9 and fp16 > 0.9999 and int8 > 0.99
    assert done.proof.near < 1e-5 * done.proof.span
    assert abs(np.array(bundle.spec.normaliser.scale)).max() < 10.0
    assert np.abs(bundle.calibration()).max() < 10.0
    (warning,) = (each for each in done.warnings if "element 3" in each)
    assert f"row {places[0]}" in warning and f"{value:g}" in warning


def test_a_normaliser_that_costs_fp32_its_digits_is_left_out(weights: Path, tmp_path: Path) -> None:
    """A value of one row in three is no outlier; (1e8 − 5e7) / 5e7 has no digits left for the others."""
    rows = observations()
    rows[::3, 2] = 1e8
    done, bundle = imported(weights, rows, tmp_path)
    assert bundle.spec.normaliser.mean == (0.0,) and bundle.spec.normaliser.scale == (1.0,)
    assert agreements(done, bundle)[0] > 1 - 1e-9
    assert any("element, 2," in warning and "1e+08" in warning for warning in done.warnings)


def test_rare_flags_impacts_and_images_have_no_outliers() -> None:
    rows = np.zeros((1000, 3), np.float32)
    rows[::100, 0], rows[7, 1], rows[5, 2] = 1.0, 500.0, 9999.0
    cut, outlying, warnings = cut_outliers(policy_of(3), rows)
    assert np.array_equal(cut[:, :2], rows[:, :2]) and not cut[:, 2].any()
    assert np.array_equal(outlying, rows[5:6]) and len(warnings) == 1
    image = ForeignPolicy("a test", (Input("image", (1, 3, 1)),), (), Continuous(), period_s=0.02)
    assert cut_outliers(image, rows)[0] is rows


def policy_of(size: int) -> ForeignPolicy:
    step = Dense(np.ones((size, 2), np.float32), np.array([0.0, 1.0], np.float32))
    return ForeignPolicy("a test", (Input("obs", (size,)),), (step,), Continuous(), period_s=0.02)


def test_rounding_excuses_only_a_share_of_the_span() -> None:
    """With a normaliser at 5e7, float32 rounds to 4: four deviations of that are more than the outputs span."""
    policy = policy_of(SIZE)
    folded = fold(policy, np.concatenate([ORDINARY, np.full((1, SIZE), 1e8, np.float32)]))
    spec = spec_of(folded)
    wanted = run(policy, ORDINARY)
    allowed = foreign_tolerance(spec, folded.weights, ORDINARY, wanted)
    assert allowed == pytest.approx(MOST_FOREIGN * np.ptp(wanted, axis=0))
    with pytest.raises(ForeignError) as refused:
        prove(policy, spec, folded.weights, ORDINARY)
    row = int(str(refused.value).split("observation ")[1].split(",")[0])
    assert f"element {np.abs(ORDINARY[row]).argmax()}" in str(refused.value)


COMMAND = 5
RUNTIMES = (RuntimeName.LITERT, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE)


def with_command(folder: Path, *options: str, noise: float = 0.0, fields: str = "") -> int:
    """Import a policy that follows a command of −100 … 100, which was 0, up to ``noise``, when it was recorded."""
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(16, SIZE)) / np.sqrt(SIZE)
    kernel[:, COMMAND] *= 0.02
    tensors = {"a.weight": kernel, "a.bias": np.zeros(16), "b.weight": generator.normal(size=(2, 16)) / 4}
    np.savez(folder / "p.npz", **{"b.bias": np.zeros(2)}, **tensors)
    write_spec(folder, "ab")
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
    assert with_command(tmp_path, noise=noise, fields=fields) == 0
    assert f"--range {COMMAND} " in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "out")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    network = quantize_network(spec, weights, calibration)
    (warning,) = inspect(spec, weights, network, calibration, bundle.golden().observations).warnings
    assert f"--range {COMMAND} " in warning


def test_a_range_makes_int8_follow_in_every_format(tmp_path: Path, capsys: Capture) -> None:
    assert with_command(tmp_path, "--range", str(COMMAND), "-100", "100", "--range", "0", "-9", "9") == 0
    assert "--range" not in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "out")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    assert np.array(spec.normaliser.scale)[[0, COMMAND]] == pytest.approx([9.0, 100.0])
    assert len(calibration) == 2 * ROWS * 7 // 8
    rows = np.tile(np.random.default_rng(9).normal(size=(40, SIZE)).astype(np.float32), (2, 1))
    rows[:40, COMMAND], rows[40:, COMMAND] = -100.0, 100.0
    wanted = np.subtract(*np.split(forward_float(spec, weights, rows), 2))
    assert np.abs(wanted).mean() > 0.1
    with runtime_processes(RUNTIMES) as processes:
        for name in RUNTIMES:
            data = build_graph(spec, weights, calibration, Precision.INT8, name.artifact_format)
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
        found = with_command(tmp_path, "--range", *words.split())
    except SystemExit as ended:
        found = int(ended.code or 0)
    assert found == code and not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert "--range" in error and "Traceback" not in error


def test_the_command_that_says_the_same_has_the_ranges() -> None:
    options = ImportOptions(Path("p.onnx"), range=((5, -100.0, 100.0), (3, 0.0, 1.0)))
    assert options.to_command() == "quarl import p.onnx --range 5 -100.0 100.0 --range 3 0.0 1.0"


def test_only_real_excursions_count_as_outside_the_range() -> None:
    """The fixed map of a tanh ends at 127/128, a step below the 1 that calibration saw."""
    spec, generator = make_spec(network=NetworkSpec((24, 16), Activation.TANH)), np.random.default_rng(3)
    weights = {
        name: generator.normal(scale=1.0 if name.endswith("kernel") else 0.1, size=shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    calibration, golden = np.split(make_observations(spec, 600, 3), [500])
    report = inspect(spec, weights, quantize_network(spec, weights, calibration), calibration, golden)
    assert report.ranges[1].high > 0.999 and report.ranges[1].top == 127 / 128
    assert [item.clipped for item in report.ranges[1:3]] == [0.0, 0.0]
    mean = np.array(spec.normaliser.mean, np.float32)
    timid = mean + np.float32(0.02) * (calibration - mean)
    report = inspect(spec, weights, quantize_network(spec, weights, timid), timid, golden)
    assert report.ranges[0].clipped > 0.2 and report.ranges[1].clipped > 0.2
    assert any(warning.startswith("input:") for warning in report.warnings)
