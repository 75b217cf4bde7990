"""The engine on every processor it is built for: a program without a C library, natively or emulated, finds no row that
differs from policy.integer after any layer, with any set of kernels, with all rows of weights or those that count."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from quarl.device.engine.building import compile_engine, library
from quarl.device.engine.engine import kernels_here
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.reference import IntegerNetwork
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import PolicySpec, Precision
from tests.convert.native.networks import (
    FLOAT_PRECISIONS,
    FLOATS,
    NETWORKS,
    FloatCase,
    case,
    float_case,
    made,
    random_floats,
)
from tests.convert.native.random_networks import PLANS, WORST, Plan, built

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # ∞ is cut to a level
EMULATORS = {
    "x86_64": (),
    "aarch64": ("qemu-aarch64", "-cpu", "cortex-a53"),
    "armv7l": ("qemu-arm", "-cpu", "cortex-a7"),
    "armv6l": ("qemu-arm", "-cpu", "arm1176"),
}
KERNELS = {"x86_64": ("plain",), "aarch64": ("neon", "plain"), "armv7l": ("neon", "plain"), "armv6l": ("plain",)}
DOT_EMULATOR, DOT_KERNELS = ("qemu-aarch64", "-cpu", "cortex-a76"), ("dot", "neon", "plain")
MODES = ("dense", "sparse")
OPTIONS = ("-static", "-s", "-I.")
Network = tuple[PolicySpec, IntegerNetwork, np.ndarray]
Compare = Callable[[Network | FloatCase], None]


@pytest.fixture(scope="module", params=EMULATORS)
def compare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """compare(network): no row differs on this processor."""
    machine = request.param
    here = machine == platform.machine()
    command = [] if here else list(EMULATORS[machine])
    if not here and not command:
        pytest.skip("nothing here runs x86_64's instructions")
    kernels = kernels_here(library()) if here else KERNELS[machine]
    return comparison(command, kernels, tmp_path_factory.mktemp(machine) / "check", machine)


@pytest.fixture(scope="module")
def compare_dot(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """compare of a processor with dot products."""
    return comparison(DOT_EMULATOR, DOT_KERNELS, tmp_path_factory.mktemp("dot") / "check", "aarch64")


def comparison(command: Sequence[str], kernels: Sequence[str], program: Path, machine: str) -> Compare:
    """Compile the program, and return what compares with it."""
    if command and shutil.which(command[0]) is None:
        pytest.skip("needs QEMU: apt-get install qemu-user")
    program.write_bytes(compile_engine(machine, OPTIONS, [Path(__file__).with_name("check.c")]))
    program.chmod(0o755)

    def run(network: Network | FloatCase) -> None:
        given = network.packed() if isinstance(network, FloatCase) else case(*network)
        done = subprocess.run([*command, str(program)], input=given, capture_output=True, timeout=120)
        printed = done.stdout.decode()
        found = [line.split() for line in printed.splitlines()]
        levels = 0 if isinstance(network, FloatCase) else 1 + len(network[1].layers)  # the input, the layers
        stages = levels + 2  # outputs, choices
        assert found == [[name, mode, *["0"] * stages] for name in kernels for mode in MODES], (
            printed + done.stderr.decode()
        )
        assert done.returncode == 0

    return run


def quantized(name: str, bits: int, rows: int) -> Network:
    bundle = Bundle.load(ZOO / name)
    observations = bundle.golden().observations
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration()[:64], bits)
    return bundle.spec, network, observations[:: max(len(observations) // rows, 1)][:rows]


BUNDLES = {"I": 8, "II": 8, "III": 2, "benchmark/pendulum-ddpg": 8, "benchmark/pong-dqn": 2}
"""Bundle -> rows."""
BITS = (8, 4, 2)
LONG = set(product(("III", "benchmark/pong-dqn"), (4, 2)))


def parameters(values: Iterable[tuple[object, ...]], long: Callable[..., bool]) -> list[Any]:
    """A test for each, the long ones for make test-all."""
    return [pytest.param(*each, marks=[pytest.mark.slow] * long(*each)) for each in values]


@pytest.mark.parametrize(("bundle", "bits"), parameters(product(BUNDLES, BITS), lambda *each: each in LONG))
def test_a_committed_bundle(compare: Compare, bundle: str, bits: int) -> None:
    compare(quantized(bundle, bits, BUNDLES[bundle]))


@pytest.mark.parametrize("name", ["I", "II"])
def test_dot_products_of_a_committed_bundle(compare_dot: Compare, name: str) -> None:
    compare_dot(quantized(name, 8, 2))


@pytest.mark.parametrize("name", ["limited", "picture and vector", "picture and vector, 2 bits"])
def test_dot_products_of_other_layers(compare_dot: Compare, name: str) -> None:
    spec, network, rows = made(name)
    compare_dot((spec, network, rows[:4]))


@pytest.mark.parametrize("extreme", ["lowest, zero 127", "highest, zero -128"])
def test_the_largest_sums_of_dot_products(compare_dot: Compare, extreme: str) -> None:
    compare_dot(built(WORST[f"widest, 8 bits, {extreme}"]))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_layer(compare: Compare, name: str) -> None:
    spec, network, rows = made(name)
    compare((spec, network, rows[:: 1 + 3 * bool(spec.network.convolutions)]))


@pytest.mark.parametrize(("index", "name"), list(enumerate(FLOATS)))
def test_floats(compare: Compare, index: int, name: str) -> None:
    for precision in FLOAT_PRECISIONS[index % 2 :: 2]:
        compare(random_floats(FLOATS[name], precision))


@pytest.mark.parametrize("precision", FLOAT_PRECISIONS)
@pytest.mark.parametrize("name", ["I", "benchmark/pendulum-ddpg"])
def test_floats_of_a_committed_bundle(compare: Compare, name: str, precision: Precision) -> None:
    bundle = Bundle.load(ZOO / name)
    compare(float_case(bundle.spec, bundle.weights(), bundle.golden().observations[:8], precision))


@pytest.mark.parametrize("name", parameters(((name,) for name in WORST), lambda name: "est, zero" in name))
def test_the_largest_sums_multipliers_and_biases(compare: Compare, name: str) -> None:
    compare(built(WORST[name]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plan=PLANS)
def test_any_network(compare: Compare, plan: Plan) -> None:
    compare(built(plan))
