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

from quarl.airlearning_envs.config import PRESETS
from quarl.convert.pipeline import convert_all
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.places import PROJECT_ROOT, ZOO
from quarl.policy.spec import ArtifactFormat, Precision
from tests.examples.flying import begun, flown_through, flown_without, served
from tests.examples.vehicle import Vehicle

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


def test_the_observation_matches_the_task_to_message_resolution(companion: tuple[Any, str]) -> None:
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


def obstacles(made: Any, *near: int, **fields: Any) -> np.ndarray:
    """The rays that a message of 72 sectors gives: 5 m in some sectors, 2001 (no obstacle up to 20 m) in the others."""
    from pymavlink.dialects.v20 import common

    distances = fields.pop("distances", [500 if number in near else 2001 for number in range(72)])
    usual = {"increment": 5, "min_distance": 20, "max_distance": 2000, "frame": BODY_FRD, **fields}
    made.newest["OBSTACLE_DISTANCE"] = common.MAVLink_obstacle_distance_message(0, 0, distances=distances, **usual)
    found: np.ndarray = made.ranges()
    return found


BODY_FRD, GLOBAL, LOCAL_NED, BODY_NED = 12, 0, 1, 8
AHEAD = slice(11, 13)


def heading(made: Any, degrees: float) -> None:
    from pymavlink.dialects.v20 import common

    made.newest["ATTITUDE"] = common.MAVLink_attitude_message(0, 0, 0, np.radians(degrees), 0, 0, 0)


@pytest.mark.parametrize("frame", [GLOBAL, LOCAL_NED])
@pytest.mark.parametrize(("yaw", "wall"), [(90.0, 90), (-90.0, 270), (0.0, 0), (180.0, 180), (-180.0, 180)])
@pytest.mark.parametrize("offset", [0, -180, 90, 720])
def test_a_wall_ahead_is_seen_where_north_is_the_first_sector(
    companion: tuple[Any, str], frame: int, yaw: float, wall: int, offset: int
) -> None:
    made, _ = companion
    heading(made, yaw)
    near = [(wall + turned - offset) // 5 % 72 for turned in (-5, 0, 5)]
    found = obstacles(made, *near, frame=frame, angle_offset=float(offset))
    assert (found[AHEAD] == 5.0).all() and found[0] == found[-1] == 20.0
    heading(made, yaw + 180.0)
    assert (obstacles(made, *near, frame=frame, angle_offset=float(offset)) == 20.0).all()


@pytest.mark.parametrize("offset", [0.0, 360.0, -45.0, -180.0, 2.5])
def test_a_whole_turn_of_sectors_covers_every_ray_wherever_it_begins(companion: tuple[Any, str], offset: float) -> None:
    made, _ = companion
    assert (obstacles(made, *range(72), angle_offset=offset) == 5.0).all()
    assert (obstacles(made, *range(72), angle_offset=offset, increment_f=5.0, increment=0) == 5.0).all()
    left = obstacles(made, *(int((-40 - offset) // 5) % 72 + more for more in range(-1, 2)), angle_offset=offset)
    assert left[1] == 5.0 and (left[AHEAD] == 20.0).all()


def test_what_a_message_says_of_nothing_is_not_read_as_something(companion: tuple[Any, str]) -> None:
    made, _ = companion
    assert np.isnan(obstacles(made, *range(72), frame=GLOBAL)).all()  # and no heading is known
    heading(made, 0.0)
    for unknown in ({"frame": BODY_NED}, {"frame": 20}, {"increment": 0}, {"angle_offset": np.nan}):
        assert np.isnan(obstacles(made, *range(72), **unknown)).all(), unknown
    assert np.isnan(obstacles(made, distances=[65535] * 72)).all()
    assert (obstacles(made, distances=[0] * 72) == 0.0).all()  # it touches the sensor
    assert (obstacles(made, distances=[10] * 72) == 0.1).all()  # nearer than min_distance
    # No obstacle up to where the sensor sees is not more than that.
    assert (obstacles(made, distances=[801] * 72, max_distance=800) == 8.0).all()
    assert (obstacles(made, distances=[4001] * 72, max_distance=4000) == 20.0).all()
    # increment_f goes before increment; behind the 90° that are measured nothing is.
    narrow = obstacles(made, *range(72), increment=5, increment_f=0.5)
    assert np.isnan(narrow[:11]).all() and (narrow[13:20] == 5.0).all()


def test_a_target_that_is_no_place_is_no_goal(companion: tuple[Any, str]) -> None:
    from pymavlink.dialects.v20 import common

    made, _ = companion

    def target(frame: int, mask: int) -> bool:
        message = common.MAVLink_set_position_target_local_ned_message(0, 1, 191, frame, mask, *(0.0,) * 11)
        return bool(made.is_goal(message))

    assert target(LOCAL_NED, 0b111111111000) and target(LOCAL_NED, 0)
    assert not any(target(frame, 0b111111111000) for frame in (BODY_NED, 7, 9, BODY_FRD))
    assert not target(LOCAL_NED, 0b110111000111)  # a velocity
