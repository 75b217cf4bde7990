"""Devices of both kinds for the tests: the embedded SSH server, and OpenSSH's sshd (integration)."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from quarl.airlearning_envs.rules import ACTION_NAMES
from quarl.airlearning_envs.task import CONTROL_PERIOD_S, OBSERVATION_FIELDS
from quarl.convert.pipeline import convert_all, convert_each, missing
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.probe import probe
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import (
    ArtifactFormat,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    Precision,
    weight_shapes,
)
from tests.device_agent.conftest import recorded_observations
from tests.device_deploy.devices import Site, TestDevice, as_test_device, needs_sshd, openssh_server

_numbers = itertools.count(1)


BESIDE_OPENSSH = {"test_host_connection", "test_host_deploy", "test_host_bare_device"}
"""Files whose tests run against OpenSSH's server too. The others are about what happens behind the connection."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    servers: list[object] = ["embedded"]
    if metafunc.module.__name__.rpartition(".")[2] in BESIDE_OPENSSH:
        servers.append(pytest.param("openssh", marks=needs_sshd))
    scopes: dict[str, Literal["session", "module"]] = {"device": "session", "bare_device": "module"}
    for name, scope in scopes.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, servers, indirect=True, scope=scope)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDevice]:
    """A device shared by the tests; every test deploys policies of its own names."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with running_local_device(root) as local:
            yield as_test_device(local)
    else:
        with openssh_server(root / "sshd") as server:
            yield server


@pytest.fixture
def connection(device: TestDevice) -> Iterator[Connection]:
    with device.connect() as connection:
        yield connection


@pytest.fixture
def site(device: TestDevice, connection: Connection) -> Site:
    """A policy that no other test uses, on the device."""
    return new_site(device, connection)


def new_site(device: TestDevice, connection: Connection) -> Site:
    return Site(device, connection, f"P{next(_numbers)}", WheelSet(probe(connection).python, ()))


@pytest.fixture
def old(site: Site) -> DeployResult:
    return site.install("old")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small random network of the navigation task, really converted to int8 and fp32; tests must not change it."""
    rng = np.random.default_rng(0)
    spec = PolicySpec(
        name="tiny",
        observation=OBSERVATION_FIELDS,
        normaliser=Normaliser((0.0,) * 32, (20.0,) * 32),
        network=NetworkSpec((64, 64)),
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/Navigation-v0", {"preset": "hard"}),
    )
    weights = {
        key: rng.normal(0.0, (2.0 / shape[0]) ** 0.5, shape).astype(np.float32)
        for key, shape in weight_shapes(spec).items()
    }
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    made = write_bundle(path, spec, weights, recorded_observations(256, 1000), recorded_observations(32, 5000))
    convert_all([made], [Precision.INT8, Precision.FP32], list(ArtifactFormat))
    return Bundle.load(path)


@pytest.fixture(scope="session")
def policy_i(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Policy I in int8 for the native engine; tests must not change it."""
    folder = tmp_path_factory.mktemp("bundle") / "I"
    shutil.copytree(ZOO / "I", folder)
    convert_each(missing([(Bundle.load(folder), Precision.INT8, ArtifactFormat.NATIVE)]))
    return Bundle.load(folder)


PROGRAMS = (
    "sh cat chmod cut df dirname find flock grep head id ln ls mkdir mv readlink rm sed sha256sum sleep sort "
    "ssh-keygen sync tail tar tr uname wc"
)
"""What a device without Python has: a shell, ssh-keygen, and a few of coreutils, which busybox has too."""


@pytest.fixture(scope="module")
def bare_device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDevice]:
    """A device whose PATH has the programs named above alone, beside its home folder in bin."""
    root = tmp_path_factory.mktemp("bare")
    if request.param == "openssh":
        with openssh_server(root / "sshd", path=str(root / "sshd" / "bin")) as server:
            (root / "sshd" / "python3").unlink()
            link_programs(root / "sshd" / "bin")
            yield server
        return
    with running_local_device(root, command_prefix=(only_programs(root),)) as local:
        shutil.rmtree(local.folder.bin)
        link_programs(local.folder.bin)
        yield as_test_device(local)


def only_programs(folder: Path) -> str:
    """The path of what starts the embedded device's server so that PATH is its ``bin`` alone."""
    start = "import sys; from quarl.device.deploy import local_server as s; e = s.device_environment; "
    start += "s.device_environment = lambda f: {**e(f), 'PATH': str(f.bin)}; sys.exit(s.main(sys.argv[1:]))"
    script = folder / "server.sh"  # gets: interpreter, -m, the server's module, --root, its folder
    script.write_text(f'#!/bin/sh\npython=$1\nshift 3\nexec "$python" -c "{start}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def link_programs(folder: Path) -> None:
    folder.mkdir()
    for program in PROGRAMS.split():
        found = shutil.which(program)
        if found is None and program == "ssh-keygen":
            pytest.skip("OpenSSH's client is not installed: apt-get install openssh-client")
        assert found is not None, program
        (folder / program).symlink_to(found)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home folder on the host, without an agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path
