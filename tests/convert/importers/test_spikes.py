"""A spike or a sentinel in a recording decides no range: the import stays what the file computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.acceptance import agreement
from quarl.convert.importers.chain import Continuous, Dense, ForeignError, ForeignPolicy, Input, run
from quarl.convert.importers.fold import fold
from quarl.convert.importers.importing import Imported, import_policy
from quarl.convert.importers.options import ImportOptions
from quarl.convert.importers.proof import prove
from quarl.convert.importers.recordings import cut_outliers
from quarl.convert.pipeline import half_weights
from quarl.policy.bundle import Bundle
from quarl.policy.golden import MOST_FOREIGN, foreign_tolerance
from quarl.policy.reference import forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import EnvironmentSpec, PolicySpec

SIZE, ROWS = 6, 800
ORDINARY = np.random.default_rng(9).normal(size=(300, SIZE)).astype(np.float32)


def observations() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(ROWS, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP with tanh, as a plain file, without a normaliser."""
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("policy")
    tensors = {}
    for name, shape in (("a", (SIZE, 16)), ("b", (16, 16)), ("c", (16, 3))):
        tensors[f"{name}.weight"] = (generator.normal(size=shape[::-1]) / np.sqrt(shape[0])).astype(np.float32)
        tensors[f"{name}.bias"] = generator.normal(scale=0.1, size=shape[1]).astype(np.float32)
    np.savez(folder / "p.npz", **tensors)
    (folder / "p.json").write_text(
        '{"source": "a test", "layout": "torch", "actions": "continuous", "period_s": 0.02,'
        f'"observation": [["obs", {SIZE}, "1"]], "steps": [{{"dense": "a"}}, {{"activation": "tanh"}},'
        '{"dense": "b"}, {"activation": "tanh"}, {"dense": "c"}, {"activation": "tanh"}]}'
    )
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
        forward_float(spec, half_weights(own), ORDINARY),
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
    spec = PolicySpec(
        name="coarse",
        observation=folded.observation,
        normaliser=folded.normaliser,
        network=folded.network,
        head=folded.head,
        control_period_s=0.02,
        environment=EnvironmentSpec("foreign"),
    )
    wanted = run(policy, ORDINARY)
    allowed = foreign_tolerance(spec, folded.weights, ORDINARY, wanted)
    assert allowed == pytest.approx(MOST_FOREIGN * np.ptp(wanted, axis=0))
    with pytest.raises(ForeignError) as refused:
        prove(policy, spec, folded.weights, ORDINARY)
    row = int(str(refused.value).split("observation ")[1].split(",")[0])
    assert f"element {np.abs(ORDINARY[row]).argmax()}" in str(refused.value)
