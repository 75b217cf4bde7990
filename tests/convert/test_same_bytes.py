"""The same policy is the same artifact on every processor: BLAS kernels, threads, registers of another width."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.core import _multiarray_umath as umath

from policy import exact

ROOT = Path(__file__).parents[2]
ZOO = sorted(str(path.parent.relative_to(ROOT)) for path in (ROOT / "zoo").rglob("policy.json"))
LARGE = [name for name in ZOO if name.endswith(("/III", "/pong-dqn", "/pong-ppo"))]  # several seconds each
SMALL = ["normalised", "trained", *(name for name in ZOO if name not in LARGE)]


# What this processor has of what numpy decides on as it starts.
FEATURES = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name, False)]


def processor(kernels: str, threads: int, *lacks: str) -> dict[str, str]:
    """Environment in which OpenBLAS computes as on that processor, and numpy as on one without these features."""
    disabled = " ".join(name for name in FEATURES if name.startswith(lacks))
    return {
        "OPENBLAS_NUM_THREADS": str(threads),
        **({"OPENBLAS_CORETYPE": kernels} if kernels else {}),
        **({"NPY_DISABLE_CPU_FEATURES": disabled} if lacks and disabled else {}),
    }


# Each by the feature that it cannot be played without.
PLAYED = [
    ("AVX512_SKX", processor("SkylakeX", 2)),
    ("AVX2", processor("Haswell", 1, "AVX512")),
    ("AVX2", processor("Zen", 2, "AVX512")),
    ("AVX", processor("Sandybridge", 1, "AVX512", "AVX2", "FMA3", "F16C")),
]
PROCESSORS = [processor("", 1), *(environment for feature, environment in PLAYED if feature in FEATURES)]


def made_on(environment: dict[str, str], bundles: list[str]) -> dict[tuple[str, str], str]:
    """What tests/convert/bytes_of.py prints there, by bundle and file."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "NPY_"))}
    printed = subprocess.run(
        [sys.executable, Path(__file__).with_name("bytes_of.py"), *bundles],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {(bundle, what): digest for bundle, what, digest in map(json.loads, printed.splitlines())}


@pytest.mark.parametrize(
    "bundles", [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="large", marks=pytest.mark.slow)]
)
def test_every_bundle_is_the_same_artifacts_on_every_processor(bundles: list[str]) -> None:
    first, *others = (made_on(environment, bundles) for environment in PROCESSORS)
    assert {bundle for bundle, _ in first} == set(bundles)
    for environment, other in zip(PROCESSORS[1:], others, strict=True):
        assert [key for key in first if first[key] != other[key]] == [], environment


def test_a_product_does_not_depend_on_the_order_of_its_summands() -> None:
    random = np.random.default_rng(3)
    x = (random.normal(0.0, 1.0, (300, 5000)) * np.exp(random.normal(0.0, 1.0, (300, 5000)))).astype(np.float32)
    kernel = random.normal(0.0, 1.0, (5000, 7)).astype(np.float32)
    order = random.permutation(5000)
    shuffled = np.ascontiguousarray(x[:, order]), np.ascontiguousarray(kernel[order])
    assert np.array_equal(exact.product(x, kernel), exact.product(*shuffled))
    assert not np.array_equal(x @ kernel, shuffled[0] @ shuffled[1])
    # nearer to the true sums than float32 is
    true = x.astype(np.longdouble) @ kernel.astype(np.longdouble)
    assert np.abs(exact.product(x, kernel) - true).max() < np.abs(x @ kernel - true).max()


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
