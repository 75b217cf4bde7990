"""Loops of both agents that end with the test."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from quarl.device.agent import building
from quarl.device.deploy.static_agent import packing
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision
from tests.device_agent.loop.loops import Kind, LoopProcess, in_python

StartLoop = Callable[..., LoopProcess]


@pytest.fixture(params=Kind, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The agent that a test is run against: both in turn."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="session")
def pack_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The int8 pack of a bundle's folder, made once."""
    folder, made = tmp_path_factory.mktemp("packs"), dict[Path, Path]()

    def pack(bundle: Path) -> Path:
        if bundle not in made:
            made[bundle] = folder / f"{len(made)}.pack"
            made[bundle].write_bytes(packing.pack_artifact(Bundle.load(bundle), Precision.INT8))
        return made[bundle]

    return pack


@pytest.fixture
def start_any(tmp_path: Path) -> Iterator[StartLoop]:
    """Starts loops by the beginning of a command; they are ended after the test."""
    with ExitStack() as stack:
        count = 0

        def start(command: list[object], *arguments: str, environment: dict[str, str] | None = None) -> LoopProcess:
            nonlocal count
            count += 1
            made = LoopProcess(command, tmp_path / f"loop{count}.sock", *arguments, environment=environment)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield start


@pytest.fixture
def start_loop(kind: Kind, start_any: StartLoop, pack_of: Callable[[Path], Path]) -> StartLoop:
    """Starts loops of one kind over a bundle's folder."""

    def start(bundle: Path, *arguments: str, environment: dict[str, str] | None = None) -> LoopProcess:
        static = [building.agent(platform.machine()), pack_of(bundle), "loop"] if kind is Kind.STATIC else None
        return start_any(static or in_python(bundle), *arguments, environment=environment)

    return start


@pytest.fixture
def actions_of(kind: Kind) -> Callable[[Bundle], np.ndarray]:
    """What is decided on the golden observations in the precision that decides exactly."""

    def actions(bundle: Bundle) -> np.ndarray:
        if kind is Kind.PYTHON:
            return bundle.golden().actions
        outputs = bundle.read_expected(bundle.artifact(Precision.INT8, ArtifactFormat.NATIVE)).outputs
        return outputs.argmax(axis=1) if bundle.spec.is_discrete else outputs

    return actions
