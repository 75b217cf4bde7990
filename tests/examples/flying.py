"""Episodes through MAVLink beside the same episodes without it: one loop serves both, so that the messages are all that
differs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.task import EndCause, NavigationTask
from quarl.device.agent.loop.client import Client, LoopError
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.spec import Precision
from tests.examples.vehicle import Vehicle

START_S, SETPOINT_S = 60.0, 30.0
PATIENT_HERTZ = 0.05
"""A period's worth of patience with an observation: no fallback comes in between two messages of a busy machine."""


@dataclass(frozen=True)
class Flight:
    """How one episode ended.

    Attributes:
        cause: name of the end, in lower case.
        steps: decisions taken.
        flight_time_s, distance_m: of the drone.
    """

    cause: str
    steps: int
    flight_time_s: float
    distance_m: float


@contextlib.contextmanager
def served(bundle: Bundle, precision: Precision) -> Iterator[Path]:
    """The socket of a loop that answers each observation of this policy as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.sock"
        options = [f"--precision={precision.value}", "--pace=observation", f"--rate={PATIENT_HERTZ}", "--priority=0"]
        command = [
            sys.executable,
            "-m",
            "quarl.device.agent.loop",
            f"--bundle={bundle.path}",
            f"--socket={path}",
            *options,
        ]
        with ended(subprocess.Popen(command, stderr=subprocess.DEVNULL)) as loop:
            deadline = time.monotonic() + START_S
            while not path.exists():
                if loop.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the loop over {bundle.path} did not start.")
                time.sleep(0.05)
            yield path


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def begun(preset: str, episode: int, seed: int) -> tuple[NavigationTask, np.ndarray]:
    """One episode of the task, and its first observation (32,)."""
    task = NavigationTask(PRESETS[preset], 1)
    return task, task.reset(np.array([episode]), seed)[0]


def flight_of(task: NavigationTask) -> Flight:
    """How its episode ended."""
    info = task.info()
    cause = EndCause(int(info["cause"][0])).name.lower()
    return Flight(cause, int(task.steps[0]), float(info["flight_time_s"][0]), float(info["distance_m"][0]))


def flown_without(path: Path, preset: str, episodes: int, seed: int) -> Iterator[Flight]:
    """Episodes whose observations go to the loop as they are."""
    with Client.connect(path) as policy:
        for episode in range(episodes):
            task, observation = begun(preset, episode, seed)
            while task.cause[0] == EndCause.NONE:
                policy.send(observation)
                action = policy.receive(SETPOINT_S)
                if action is None:
                    raise AssertionError("the loop does not answer.")
                observation = task.step(np.array([action.index])).observation[0]
            yield flight_of(task)


def flown_through(path: Path, preset: str, episodes: int, seed: int) -> Iterator[Flight]:
    """The same episodes through examples/mavlink.py, a process of its own, over UDP on the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "examples/mavlink.py", str(path), f"udpin:127.0.0.1:{port}"]
    with ended(subprocess.Popen(command, cwd=PROJECT_ROOT, env={**os.environ, "MAVLINK20": "1"})) as companion:
        wait_for_controller(path, companion)
        for episode in range(episodes):
            task, observation = begun(preset, episode, seed)
            vehicle = Vehicle(task, f"udpout:127.0.0.1:{port}")
            try:
                vehicle.set_goal()
                while task.cause[0] == EndCause.NONE:
                    vehicle.report(observation)
                    command_now = vehicle.setpoint(SETPOINT_S)
                    if command_now is None:
                        raise AssertionError("no setpoint comes from the companion.")
                    observation = task.step(command_now).observation[0]
                yield flight_of(task)
            finally:
                vehicle.close()


def wait_for_controller(path: Path, companion: subprocess.Popen[bytes]) -> None:
    """Wait until the companion has joined the loop: its socket to the autopilot is open then."""
    deadline = time.monotonic() + START_S
    while companion.poll() is None and time.monotonic() < deadline:
        try:
            Client.connect(path).socket.close()
        except LoopError as error:
            if "another controller" in str(error):
                return
        time.sleep(0.1)
    raise AssertionError("the companion did not join the loop.")
