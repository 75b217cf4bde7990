"""Small policies and bundles, and the three runtimes started once for the whole room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.executor import RuntimeProcess, runtime_processes
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    RuntimeName,
    weight_shapes,
)

FIELDS = (ObservationField("ranges", (5,), "m"), ObservationField("velocity", (3,), "m/s"))
MEAN = (8.0, 8.0, 7.0, 8.0, 9.0, 0.5, 0.0, -0.5)
SCALE = (4.0, 4.0, 3.5, 4.0, 5.0, 1.5, 1.0, 0.8)


Runtimes = dict[RuntimeName, RuntimeProcess]
Small = tuple[PolicySpec, dict[str, np.ndarray], np.ndarray, np.ndarray]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make_spec(**changes: Any) -> PolicySpec:
    spec = PolicySpec(
        name="small",
        observation=FIELDS,
        normaliser=Normaliser(MEAN, SCALE, 3.0),
        network=NetworkSpec((24, 16)),
        head=DiscreteHead(tuple(f"action {i}" for i in range(6))),
        control_period_s=0.25,
        environment=EnvironmentSpec("Test-v0"),
    )
    return replace(spec, **changes)


def make_weights(spec: PolicySpec, seed: int = 5) -> dict[str, np.ndarray]:
    """Random weights whose output channels differ in size, as trained ones do."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        spread = np.sqrt(2.0 / shape[0]) * np.exp(random.normal(0.0, 0.6, shape[-1])) if len(shape) == 2 else 0.1
        weights[name] = (random.normal(0.0, 1.0, shape) * spread).astype(np.float32)
    return weights


def make_observations(spec: PolicySpec, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.2, (count, spec.observation_size))
    return (z * spec.normaliser.scale + spec.normaliser.mean).astype(np.float32)


def make_bundle(path: Path, spec: PolicySpec) -> Bundle:
    random = np.random.default_rng(11)
    weights = {}
    for part, shape in weight_shapes(spec).items():
        deviation = 1.6 / np.sqrt(np.prod(shape[:-1])) if len(shape) > 1 else 0.2
        weights[part] = (random.normal(0.0, deviation, shape) + part.endswith("gamma")).astype(np.float32)
    observations = random.normal(0.5, 2.0, (360, spec.observation_size)).astype(np.float32)
    return write_bundle(path, spec, weights, observations[:300], observations[300:])


@pytest.fixture(scope="session")
def runtimes() -> Iterator[Runtimes]:
    with runtime_processes() as started:
        yield started


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    spec = make_spec()
    calibration, golden = make_observations(spec, 400, 1), make_observations(spec, 64, 2)
    return write_bundle(tmp_path / "small", spec, make_weights(spec), calibration, golden)


@pytest.fixture(scope="session")
def small() -> Small:
    """(spec, weights, calibration, fresh observations) of a small discrete policy."""
    spec = make_spec()
    return spec, make_weights(spec), make_observations(spec, 400, 1), make_observations(spec, 100, 3)
