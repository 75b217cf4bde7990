"""The same policy is the same artifact on every processor and after every change: the bytes stand in bytes.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.core import _multiarray_umath as umath

from quarl.policy import exact
from quarl.policy.places import PROJECT_ROOT
from tests.convert.bytes_of import NAMES, NORMALISED, PINNED, TRAINED

# What this processor has of what numpy decides on as it starts.
FEATURES = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name, False)]
OLDEST = {
    # OpenBLAS takes these kernels also on a processor that is newer than itself.
    "OPENBLAS_CORETYPE": "Prescott",
    "OPENBLAS_NUM_THREADS": "2",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in FEATURES if name.startswith(("AVX", "FMA", "F16C"))),
}
SMALL = [name for name in NAMES if name != "zoo/III"]
FEW = [NORMALISED, TRAINED, "zoo/I", "zoo/III"]


@pytest.mark.parametrize(
    ("processor", "names"),
    [
        pytest.param({}, SMALL, id="this one"),
        pytest.param(OLDEST, FEW, id="the oldest", marks=pytest.mark.slow),
    ],
)
def test_every_artifact_has_its_bytes(processor: dict[str, str], names: list[str]) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "NPY_"))}
    printed = subprocess.run(
        [sys.executable, "-m", "tests.convert.bytes_of", *names],
        cwd=PROJECT_ROOT,
        env={**inherited, "OPENBLAS_NUM_THREADS": "1", **processor},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found, pinned = json.loads(printed), json.loads(PINNED.read_text(encoding="utf-8"))
    assert set(pinned) == set(NAMES)
    differing = {name: [what for what in pinned[name] if found[name].get(what) != pinned[name][what]] for name in names}
    assert not any(differing.values()), differing
    assert {name: set(found[name]) for name in names} == {name: set(pinned[name]) for name in names}


def test_a_product_does_not_depend_on_the_order_of_its_summands() -> None:
    random = np.random.default_rng(3)
    x = (random.normal(0.0, 1.0, (300, 5000)) * np.exp(random.normal(0.0, 1.0, (300, 5000)))).astype(np.float32)
    kernel = random.normal(0.0, 1.0, (5000, 7)).astype(np.float32)
    order = random.permutation(5000)
    shuffled = np.ascontiguousarray(x[:, order]), np.ascontiguousarray(kernel[order])
    assert np.array_equal(exact.product(x, kernel), exact.product(*shuffled))
    assert not np.array_equal(x @ kernel, shuffled[0] @ shuffled[1])
    # K summands, each with an activation of 26 bits and a weight of 2 (27 - ceil(log2 K)) = 28
    wide, weights = x.astype(np.longdouble), kernel.astype(np.longdouble)
    largest = np.abs(wide).max(axis=1)[:, None] * np.abs(weights).max(axis=0)
    bound = 5000 * largest * (2.0**-26 + 2.0**-28)
    assert (np.abs(exact.product(x, kernel) - wide @ weights) <= bound).all()


def test_no_partial_sum_leaves_what_a_double_holds_exactly() -> None:
    """All factors as large as they can be, so that sums reach the bound; Python's integers are exact."""
    below_one = np.float32(1.0 - 2.0**-24)
    for summands in (1, 2, 3, 64, 4096, 4097):
        x, kernel = np.full((1, summands), below_one), np.full((summands, 1), below_one)
        bits = 53 - 26 - (summands - 1).bit_length()
        levels, unit = exact.whole(x, exact.FINE_ROW_BITS)
        assert int(levels[0, 0]) == 2**26 - 4 and unit[0] == 2.0**-26
        assert summands * int(levels[0, 0]) * 2**bits <= 2**53
        coarse = 53 - (summands - 1).bit_length()
        rows, channels = coarse - coarse // 2, coarse // 2
        assert summands * int(exact.whole(x, rows)[0][0, 0]) * 2**channels <= 2**53
        assert exact.product(x, kernel, parts=exact.COARSE)[0, 0] == pytest.approx(summands, rel=2.0**-19)
        assert exact.product(x, kernel)[0, 0] == pytest.approx(summands * float(below_one) ** 2, rel=2.0 ** (-2 * bits))


@pytest.mark.parametrize("shape", [(0, 3), (2, 3)])
def test_nothing_and_zeros_have_a_product(shape: tuple[int, int]) -> None:
    assert np.array_equal(exact.product(np.zeros(shape, np.float32), np.zeros((3, 2))), np.zeros((shape[0], 2)))


def test_a_layer_is_normalised_as_in_double_precision() -> None:
    random = np.random.default_rng(5)
    x, gamma, beta = (random.normal(3.0, 2.0, shape).astype(np.float32) for shape in ((50, 333), 333, 333))
    wide = x.astype(np.float64)
    true = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * gamma + beta
    assert np.abs(exact.layer_norm(x, gamma, beta) - true).max() < 4e-6


def test_tanh_is_that_of_double_precision_rounded_once() -> None:
    random = np.random.default_rng(9)
    x = np.concatenate([random.normal(0.0, 3.0, 10_000), random.normal(0.0, 1e-6, 100), [0.0, 9.0, -30.0, np.inf]])
    wide = np.tanh(x.astype(np.float32).astype(np.float64))
    assert np.array_equal(exact.tanh(x.astype(np.float32)), wide.astype(np.float32))
