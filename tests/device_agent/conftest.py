"""A small policy of the navigation task that flies, its real artifacts, and an agent in a process of its own."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.airlearning_envs.flights import blind_policy
from quarl.airlearning_envs.rules import ACTION_COMMANDS, ACTION_NAMES
from quarl.airlearning_envs.task import CONTROL_PERIOD_S, OBSERVATION_FIELDS, PRESETS, NavigationTask
from quarl.device.agent.building import AGENT_SOURCES, agent
from quarl.device.agent.constants import header
from quarl.device.engine import building
from quarl.policy.bundle import Bundle, Expected, add_artifact, write_bundle
from quarl.policy.reading import ArtifactEntry, FileRecord, Parity
from quarl.policy.reference import forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    weight_shapes,
)

HIDDEN = 16
BEARING, YAW_RATE = 24, 28
RUNTIMES = tuple(RuntimeName)
EMULATORS = {
    "x86_64": (),
    "aarch64": ("qemu-aarch64", "-cpu", "cortex-a53"),
    "armv7l": ("qemu-arm", "-cpu", "cortex-a7"),
    "armv6l": ("qemu-arm", "-cpu", "arm1176"),
}


class AgentProcess:
    """An agent to talk to."""

    def __init__(self, bundle: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quarl.device.agent", "--bundle", str(bundle), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.progress: list[dict[str, Any]] = []

    def send(self, line: bytes) -> dict[str, Any]:
        """Send one line and return its reply; progress lines are collected."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line.rstrip(b"\n") + b"\n")
        self.process.stdin.flush()
        while True:
            answer = self.process.stdout.readline()
            assert answer, f"the agent ended: {self.process.communicate()[1].decode()}"
            reply: dict[str, Any] = json.loads(answer)
            if "progress" not in reply:
                return reply
            self.progress.append(reply["progress"])

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request that has to succeed."""
        reply = self.request(op, **fields)
        assert reply["ok"], reply
        return reply

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request, whatever its reply."""
        return self.send(json.dumps({"op": op, **fields}).encode())

    def end(self) -> int:
        """Close its input and wait for its exit code."""
        self.process.communicate(timeout=30)
        return self.process.returncode


def run_conversation(bundle: Path, lines: Sequence[bytes], *arguments: str) -> tuple[list[dict[str, Any]], bytes]:
    """Send all lines, close the input, and return all replies and the log of an agent that ended with exit code 0."""
    done = subprocess.run(
        [sys.executable, "-m", "quarl.device.agent", "--bundle", str(bundle), *arguments],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def recorded_observations(count: int, first_episode: int) -> np.ndarray:
    """Observations (count, 32) of the hard task, flown blindly."""
    core = NavigationTask(PRESETS["hard"], 32)
    observation = core.reset(np.arange(first_episode, first_episode + 32), seed=1)
    seen: list[np.ndarray] = []
    while sum(len(rows) for rows in seen) < count:
        seen.append(observation)
        observation = core.step(blind_policy(observation)).observation
    return np.concatenate(seen)[:count].astype(np.float32)


def flying_policy(name: str = "pilot") -> tuple[PolicySpec, dict[str, np.ndarray]]:
    """A policy that turns to the goal and flies there: −(a_k − e)² = 2 a_k e − a_k² (− e²) is linear in the error e."""
    rng = np.random.default_rng(3)
    spec = PolicySpec(
        name=name,
        observation=OBSERVATION_FIELDS,
        normaliser=Normaliser((0.0,) * 32, (20.0,) * 24 + (1.0,) + (20.0,) + (1.0,) * 6, clip=25.0),
        network=NetworkSpec((HIDDEN,)),
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/Navigation-v0", {"preset": "hard"}),
    )
    first = np.zeros((32, HIDDEN), np.float32)
    for unit, sign in ((0, 1.0), (1, -1.0)):  # e = bearing − 0.26 s · yaw rate, as relu(e) − relu(−e)
        first[BEARING, unit], first[YAW_RATE, unit] = sign, -0.26 * sign
    first[:, 2:] = rng.normal(0.0, 0.1, (32, HIDDEN - 2))
    turn = ACTION_COMMANDS[:, 2] * CONTROL_PERIOD_S
    head = np.zeros((HIDDEN, 25), np.float32)
    head[0], head[1] = 2.0 * turn, -2.0 * turn
    head[2:] = rng.normal(0.0, 0.0003, (HIDDEN - 2, 25))
    bias = -np.square(turn)
    bias[1:15] = -1.0
    bias[[18, 19, 24]] = -1.0
    weights = {
        "dense_0/kernel": first,
        "dense_0/bias": np.zeros(HIDDEN, np.float32),
        "head/kernel": head,
        "head/bias": bias.astype(np.float32),
    }
    return spec, weights


def continuous_policy() -> tuple[PolicySpec, dict[str, np.ndarray]]:
    """A policy with three continuous outputs."""
    rng = np.random.default_rng(5)
    spec = PolicySpec(
        name="gliding",
        observation=OBSERVATION_FIELDS,
        normaliser=Normaliser((0.0,) * 32, (20.0,) * 32),
        network=NetworkSpec((HIDDEN,)),
        head=ContinuousHead((-2.5, -2.5, -3.0), (5.0, 2.5, 3.0), Squash.TANH),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/NavigationContinuous-v0", {"preset": "hard"}),
    )
    shapes = weight_shapes(spec)
    return spec, {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def add_artifacts(bundle: Bundle, tolerance_steps: float = 3.0) -> Bundle:
    """Real fp32 and int8 artifacts in every format, with the tolerances of conversion."""
    from quarl.convert import onnx_graph, tflite_graph
    from quarl.convert.native.floats import float_artifact
    from quarl.convert.native.writer import native_artifact
    from quarl.convert.opaque import impossible
    from quarl.convert.reference import integer_reference

    spec, weights, golden = bundle.spec, bundle.weights(), bundle.golden()
    integers = quantize_network(spec, weights, bundle.calibration())
    step = integer_reference(spec, integers, golden.observations).step
    assert step is not None
    makers = {
        (Precision.FP32, ArtifactFormat.TFLITE): lambda: tflite_graph.float_graph(spec, weights),
        (Precision.FP32, ArtifactFormat.ONNX): lambda: onnx_graph.float_graph(spec, weights),
        (Precision.FP32, ArtifactFormat.NATIVE): lambda: float_artifact(spec, weights),
        (Precision.INT8, ArtifactFormat.TFLITE): lambda: tflite_graph.integer_graph(spec, integers),
        (Precision.INT8, ArtifactFormat.ONNX): lambda: onnx_graph.integer_graph(spec, integers),
        (Precision.INT8, ArtifactFormat.NATIVE): lambda: native_artifact(spec, integers),
    }
    for (precision, artifact_format), make in makers.items():
        if impossible(spec, artifact_format):
            continue
        data = make()
        expected = forward_integer(spec, integers, golden.observations) if precision.is_integer else golden.outputs
        entry = ArtifactEntry(
            file=f"{precision.value}.{artifact_format.value}",
            precision=precision,
            format=artifact_format,
            scheme="test",
            execution="test",
            record=FileRecord.of(data),
            golden_file=f"{precision.value}.golden.npz",
            output_step=tuple(step) if precision.is_integer else None,
            runtimes={
                name: Parity("0", 0.0, None, 1.0) for name in RUNTIMES if name.artifact_format is artifact_format
            },
        )
        tolerance = tolerance_steps * step if precision.is_integer else np.full(spec.result_size, 1e-4)
        bundle = add_artifact(bundle, entry, data, Expected(expected, np.broadcast_to(tolerance, expected.shape)))
    return bundle


def make_bundle(path: Path, spec: PolicySpec, weights: dict[str, np.ndarray]) -> Bundle:
    """A bundle of this policy with real artifacts."""
    return add_artifacts(
        write_bundle(path, spec, weights, recorded_observations(512, 1000), recorded_observations(48, 5000))
    )


@pytest.fixture(scope="session")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The flying policy's bundle; tests must not change it."""
    return make_bundle(tmp_path_factory.mktemp("pilot") / "pilot", *flying_policy())


@pytest.fixture(scope="session")
def gliding(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The continuous policy's bundle; tests must not change it."""
    return make_bundle(tmp_path_factory.mktemp("gliding") / "gliding", *continuous_policy())


@pytest.fixture
def converse() -> Callable[..., tuple[list[dict[str, Any]], bytes]]:
    """All lines at once, then the end of input; replies and log."""
    return run_conversation


@pytest.fixture(scope="module")
def start_agent() -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents and ends them after the module's tests."""
    with ExitStack() as stack:

        def start(bundle: Path, *arguments: str) -> AgentProcess:
            agent = AgentProcess(bundle, *arguments)
            stack.callback(agent.process.communicate, timeout=30)
            return agent

        yield start


@pytest.fixture
def copied(pilot: Bundle, tmp_path: Path) -> Path:
    """A copy of the flying policy's bundle that a test may damage."""
    return Path(shutil.copytree(pilot.path, tmp_path / "copied"))


@pytest.fixture(scope="session")
def make() -> Callable[..., Bundle]:
    """Makes a bundle with real artifacts from (path, spec, weights)."""
    return make_bundle


@pytest.fixture(scope="session")
def make_artifacts() -> Callable[[Bundle], Bundle]:
    """Adds real artifacts to a bundle of any policy."""
    return add_artifacts


@pytest.fixture(scope="session")
def fresh_observations() -> np.ndarray:
    """Real observations that are neither calibration nor golden ones, float32 (32, 32)."""
    return recorded_observations(32, 9000)


@pytest.fixture(scope="session", params=EMULATORS)
def program(request: pytest.FixtureRequest) -> tuple[object, ...]:
    """The command that runs the agent of a processor here."""
    machine = request.param
    emulator = () if machine == platform.machine() else EMULATORS[machine]
    if machine != platform.machine() and not (emulator and shutil.which(emulator[0])):
        pytest.skip("needs QEMU: apt-get install qemu-user")
    return (*emulator, agent(machine))


@pytest.fixture(scope="session")
def sanitized_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as gcc's sanitizers watch it, compiled."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = tmp_path_factory.mktemp("sanitized") / "agent"
    made.with_name("constants.h").write_text(header())
    options = (
        "-std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra -Werror"
    )
    quiet = "-Wno-unknown-pragmas -ffp-contract=off -fno-strict-aliasing -fno-math-errno -I."
    sources = ["engine.c", "plain.c", "x86.c", "neon.c", *AGENT_SOURCES]
    subprocess.run(
        ["gcc", *options.split(), *quiet.split(), f"-I{made.parent}", "-o", str(made), *sources, "-lm"],
        cwd=building.HERE,
        check=True,
    )
    return made
