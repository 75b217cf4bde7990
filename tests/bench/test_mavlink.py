"""Policies through MAVLink: examples/mavlink.py as the companion of the embedded simulator, over UDP on loopback."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airlearning_envs.config import PRESETS
from bench.flight_controller.flying import begun, flown_through, flown_without, served
from bench.flight_controller.vehicle import Vehicle
from bench.tables.mavlink import MAVLINK, rows_of
from convert.pipeline import convert_all
from policy.bundle import Bundle
from policy.bundle_writer import copy_bundle
from policy.locate import PROJECT_ROOT, ZOO
from policy.spec import ArtifactFormat, Precision

pytest.importorskip("pymavlink", reason="pymavlink is not installed; type make robots")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a loop over the committed policy I."""
    folder = tmp_path_factory.mktemp("bundle") / "I"
    copy_bundle(Bundle.load(ZOO / "I"), folder, "zoo")
    convert_all([Bundle.load(folder)], [Precision.INT8], [ArtifactFormat.TFLITE])
    with served(Bundle.load(folder), Precision.INT8) as found:
        yield found


def test_episodes_end_through_mavlink_as_they_do_without(path: Path) -> None:
    without = list(flown_without(path, "shipped", 3, 7))
    through = list(flown_through(path, "shipped", 3, 7))
    assert [flight.cause for flight in without] == [flight.cause for flight in through] == ["goal"] * 3
    for a, b in zip(without, through, strict=True):
        assert abs(a.steps - b.steps) <= 2  # a centimetre in a range may change a decision
        assert b.distance_m == pytest.approx(a.distance_m, rel=0.2)
    flown = {
        "policy": "I",
        "preset": "shipped",
        "without": [vars(f) for f in without],
        "through": [vars(f) for f in through],
    }
    (row,) = rows_of({"flown": [flown]})
    assert (row["through"].value, row["without"].value, row["difference"].value) == (1.0, 1.0, 0.0)
    assert MAVLINK.table({"flown": [flown], "episodes": 3, "precision": "int8", "machine": "M", "code": "c"}).rows


@pytest.fixture
def companion() -> Iterator[tuple[Any, str]]:
    """The example's vehicle side in this process, and the link to it."""
    spec = importlib.util.spec_from_file_location("mavlink_example", PROJECT_ROOT / "examples" / "mavlink.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = module.Vehicle(f"udpin:127.0.0.1:{port}")
    yield made, f"udpout:127.0.0.1:{port}"
    made.link.close()


def heard(companion: Any) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if companion.read():
            return True
        time.sleep(0.005)
    return False


def test_the_observation_is_that_of_the_task_to_the_resolution_of_the_messages(companion: tuple[Any, str]) -> None:
    made, link = companion
    for episode in range(5):
        task, observation = begun("hard", episode, 3)
        observation = task.step(np.array([2])).observation[0]
        made.goal, made.last_command = None, np.zeros(3)
        vehicle = Vehicle(task, link)
        vehicle.set_goal()
        vehicle.report(observation)
        assert heard(made)
        made.last_command = observation[29:]
        found = made.observation(60.0)
        assert np.abs(found[:24] - observation[:24]).max() <= 0.0051
        assert np.abs(found[24:] - observation[24:]).max() <= 1e-5
        vehicle.close()


def test_what_is_missing_old_or_not_measured_is_not_observed(companion: tuple[Any, str]) -> None:
    made, link = companion
    assert made.observation(60.0) is None  # nothing has come
    task, observation = begun("shipped", 0, 7)
    vehicle = Vehicle(task, link)
    vehicle.report(observation)
    assert heard(made)
    assert made.observation(60.0) is None  # no goal yet
    vehicle.set_goal()
    vehicle.report(observation)
    assert heard(made)
    assert np.isfinite(made.observation(60.0)).all()
    assert made.observation(1e-9) is None  # they are older than that
    made.newest["OBSTACLE_DISTANCE"].distances[3] = 65535
    assert np.flatnonzero(np.isnan(made.observation(60.0))).tolist() == [3]
    made.newest["OBSTACLE_DISTANCE"].angle_offset += 45.0  # the sensor looks to the right: half of the rays see nothing
    assert np.isnan(made.observation(60.0)[:11]).all()
    assert PRESETS["hard"].ray_count == 24
    vehicle.close()
