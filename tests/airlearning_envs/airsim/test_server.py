"""The stand-in over its RPC, in all dialects and with AirSim's own clients: what AirSim does, call by call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")
import json
import subprocess
from pathlib import Path

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import FAR_AWAY_M, Layouts, Slots
from quarl.airlearning_envs.simulators.airsim.dialects import (
    CollisionInfo,
    Dialect,
    ImageRequest,
    ImageResponse,
    MultirotorState,
    Pose,
    Vector3r,
    YawMode,
    decode,
    detect,
    encode,
)
from quarl.airlearning_envs.simulators.airsim.rpc import Rpc, RpcError
from quarl.airlearning_envs.simulators.airsim.stand_in import Server, StandIn
from quarl.airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator
from quarl.airlearning_envs.simulators.simulator import Call

ALOFT = Pose(Vector3r(0.0, 0.0, -4.0))


class Pilot:
    """A client of ours with structs in and out."""

    def __init__(self, rpc: Rpc, dialect: Dialect) -> None:
        self.rpc, self.dialect = rpc, dialect

    def __call__(self, method: str, *args: Any) -> Any:
        return self.rpc.call(method, *[encode(each, self.dialect) for each in args])

    def move(self, x: float, y: float, z: float, seconds: float, rate: float = 0.0) -> int:
        """Sent and not waited for."""
        mode = encode(YawMode(True, math.degrees(rate)), self.dialect)
        return self.rpc.send("moveByVelocityZBodyFrame", x, y, z, seconds, 0, mode, "")

    def state(self) -> MultirotorState:
        return decode(MultirotorState, self("getMultirotorState", ""), self.dialect)

    def collision(self) -> CollisionInfo:
        return decode(CollisionInfo, self("simGetCollisionInfo", ""), self.dialect)

    def picture(self, name: str = "0") -> ImageResponse:
        """A depth picture, asked for as the dialect wants it."""
        request = [ImageRequest(name, 1, True, False)]
        rest = [""] if self.dialect is Dialect.COSYS else ["", False]
        (answer,) = self("simGetImages", request, *rest)
        return decode(ImageResponse, answer, self.dialect)

    def aloft(self) -> None:
        """Paused, under control, at rest 4 m above the start."""
        self("simPause", True)
        self("reset")
        self("enableApiControl", True, "")
        self("simSetVehiclePose", ALOFT, True, "")


@contextmanager
def served(world: StandIn) -> Iterator[Pilot]:
    """A pilot of a world that is served."""
    with Server(world) as server, Rpc(port=server.port, timeout_s=30.0) as rpc:
        yield Pilot(rpc, world.dialect)


@pytest.fixture(params=list(Dialect), ids=lambda dialect: dialect.value)
def pilot(request: pytest.FixtureRequest) -> Iterator[Pilot]:
    with served(StandIn(request.param)) as each:
        yield each


@pytest.fixture
def airsim() -> Iterator[Pilot]:
    with served(StandIn()) as each:
        yield each


def test_the_dialect_is_seen(pilot: Pilot) -> None:
    assert detect(pilot) is pilot.dialect
    assert pilot("getServerVersion") == pilot("getMinRequiredClientVersion") == (4 if pilot.dialect.version == 4 else 1)


def test_structs_are_maps_or_arrays(pilot: Pilot) -> None:
    raw = pilot("getMultirotorState", "")
    if pilot.dialect is Dialect.AIRSIM:
        assert set(raw) == {
            "collision", "kinematics_estimated", "gps_location", "timestamp", "landed_state", "rc_data",
        }  # fmt: skip
        assert raw["kinematics_estimated"]["orientation"] == {"w_val": 1.0, "x_val": 0.0, "y_val": 0.0, "z_val": 0.0}
    elif pilot.dialect is Dialect.COLOSSEUM:
        assert len(raw) == 9 and raw[6:] == [True, "", True]
        assert raw[1][1] == [1.0, 0.0, 0.0, 0.0]
    else:
        assert {"ready", "ready_message", "can_arm"} < set(raw)
    with pytest.raises(RpcError, match="std::bad_cast"):
        pilot.rpc.call("simSetVehiclePose", {} if pilot.dialect.arrays else [], True, "")


def test_a_flight_is_the_embedded_simulators_to_the_last_bit(pilot: Pilot) -> None:
    config, rng = NavigationConfig(), np.random.default_rng(1)
    count = Slots.of(config).total
    nothing = Layouts(
        start=np.zeros((2, 1), np.float32),
        goal=np.full((2, 1), 10.0, np.float32),
        yaw=np.zeros(1),
        centre=np.full((2, 1, count), FAR_AWAY_M, np.float32),
        size=np.ones((1, count), np.float32),
        velocity=np.zeros((2, 1, config.moving_obstacles[1]), np.float32),
        limit=np.full((1, config.moving_obstacles[1]), 2.0 * FAR_AWAY_M, np.float32),
        variation=np.zeros((6, 1), np.float32),
    )
    simulator = EmbeddedSimulator(config, 1)
    simulator.begin(np.array([0]), nothing)
    pilot.aloft()
    begun = pilot.state().timestamp
    for number in range(1, 21):
        command = rng.uniform(-4.0, 4.0, 3).astype(np.float32)
        simulator.fly([Call(command[:, None])])
        pilot.move(float(command[0]), float(command[1]), -4.0, 0.5, float(command[2]))
        pilot("simContinueForTime", 0.25)
        state = pilot.state()
        moving = state.kinematics_estimated
        assert state.timestamp - begun == number * 250_000_000
        for vector, exact in (
            (moving.position, simulator.flight.position[:, 0]),
            (moving.linear_velocity, simulator.flight.velocity[:, 0]),
        ):
            assert np.array_equal(vector.array().astype(np.float32), exact)
        turn = moving.orientation.angles()[0] - simulator.motion.yaw[0]
        assert math.remainder(turn, 2.0 * math.pi) == pytest.approx(0.0, abs=1e-6)
        assert moving.angular_velocity.z_val == simulator.motion.yaw_rate[0]


def test_a_new_move_cancels_the_old_one_and_a_whole_one_answers_true(pilot: Pilot) -> None:
    pilot.aloft()
    first = pilot.move(1.0, 0.0, -4.0, 0.5)
    assert not pilot.rpc.has_answer(first), "a move that is sent while paused waits"
    pilot("simContinueForTime", 0.25)
    assert not pilot.rpc.has_answer(first)
    second = pilot.move(1.0, 0.0, -4.0, 0.5)
    assert pilot.rpc.wait(first) is False
    pilot("simContinueForTime", 0.25)
    assert not pilot.rpc.has_answer(second)
    pilot("simContinueForTime", 0.25)
    assert pilot.rpc.wait(second) is True
    assert pilot("simIsPaused") is True


def test_a_goal_runs_out_60_ms_after_its_move(airsim: Pilot) -> None:
    speeds = []
    for seconds in (0.25, 0.44):
        airsim.aloft()
        airsim.move(5.0, 0.0, -4.0, seconds)
        airsim("simContinueForTime", 0.25)
        airsim("simContinueForTime", 0.25)
        speeds.append(airsim.state().kinematics_estimated.linear_velocity.x_val)
        airsim("simContinueForTime", 5.0)
        assert abs(airsim.state().kinematics_estimated.linear_velocity.x_val) < 0.2
    assert speeds[0] < 0.8 * speeds[1]


@pytest.mark.parametrize(
    ("world", "wall_s", "passed_ns"), [({}, 0.3, 300_000_000), ({"stall": 0.26, "speed": 2.0}, 1.0, 1_480_000_000)]
)
def test_a_slice_passes_its_time_and_ends_paused(world: dict[str, Any], wall_s: float, passed_ns: int) -> None:
    with served(StandIn(**world)) as pilot:
        assert pilot("simIsPaused") is False
        pilot("simPause", True)
        before = pilot.state().timestamp
        pilot("simContinueForTime", wall_s)
        assert pilot.state().timestamp - before == passed_ns and pilot("simIsPaused") is True


def test_in_real_time_a_slice_takes_its_wall_seconds() -> None:
    with Server(StandIn(), realtime=True) as server, Rpc(port=server.port, timeout_s=30.0) as rpc:
        begun = time.monotonic()
        rpc.call("simContinueForTime", 0.2)
        assert time.monotonic() - begun >= 0.2


def test_collisions_are_sticky_until_read(pilot: Pilot) -> None:
    first = pilot.collision()
    assert (first.has_collided, first.object_name) == (True, "Ground")
    again = pilot.collision()
    assert (again.has_collided, again.object_name) == (False, "Ground")
    pilot.aloft()
    pilot.collision()
    pole = Pose(Vector3r(5.0, 0.0, -4.0))
    assert pilot("simSpawnObject", "wall", "Cylinder", pole, Vector3r(2.0, 2.0, 8.0), False, False) == "wall"
    for _ in range(16):
        pilot.move(4.0, 0.0, -4.0, 0.5)
        pilot("simContinueForTime", 0.25)
    assert pilot.state().collision.has_collided is False
    met = pilot.collision()
    assert (met.has_collided, met.object_name) == (True, "wall")
    assert 3.3 < met.position.x_val < 4.0, "5 m less the cylinder's radius and the drone's"
    assert pilot.state().kinematics_estimated.position.x_val < 4.0
    pilot.move(0.0, 0.0, -4.0, 0.5)
    pilot.collision()
    assert pilot.collision().has_collided is False
    pilot("reset")
    assert pilot.collision().object_name == "Ground"


def test_reset_keeps_pause_and_objects(pilot: Pilot) -> None:
    pilot.aloft()
    pilot("simSpawnObject", "box", "Cube", ALOFT, Vector3r(1.0, 1.0, 1.0), False, False)
    move = pilot.move(1.0, 0.0, -4.0, 5.0)
    pilot("simContinueForTime", 0.5)
    pilot("reset")
    assert pilot.rpc.wait(move) is False
    assert pilot("simIsPaused") is True and pilot("isApiControlEnabled", "") is False
    assert pilot("simListSceneObjects", "box") == ["box"]
    assert pilot.state().kinematics_estimated.position.z_val == pytest.approx(-0.30)


def test_without_api_control_nothing_moves(pilot: Pilot) -> None:
    assert pilot("armDisarm", True, "") is False
    assert pilot.rpc.wait(pilot.move(5.0, 0.0, -4.0, 1.0)) is True
    pilot.aloft()
    assert pilot("armDisarm", True, "") is True
    move = pilot.move(5.0, 0.0, -4.0, 9.0)
    pilot("simContinueForTime", 1.0)
    pilot("enableApiControl", False, "")
    assert pilot.rpc.wait(move) is False
    before = pilot.state().kinematics_estimated
    pilot("simContinueForTime", 2.0)
    assert pilot.state().kinematics_estimated.position == before.position and before.position.x_val > 0.5


def test_a_pose_that_was_set_while_paused(pilot: Pilot) -> None:
    pilot.aloft()

    def seen() -> float:
        return decode(Pose, pilot("simGetVehiclePose", ""), pilot.dialect).position.z_val

    assert pilot.state().kinematics_estimated.position.z_val == -4.0
    assert seen() == pytest.approx(-0.30), "not drawn yet"
    pilot.move(0.0, 0.0, -4.0, 1.0)
    pilot("simContinueForTime", 0.02)
    assert seen() == pytest.approx(-4.0, abs=0.01)


def test_objects(pilot: Pilot) -> None:
    place: list[Any] = [True] if pilot.dialect is Dialect.COSYS else []

    def spawn(name: str, asset: str) -> Any:
        return pilot("simSpawnObject", name, asset, ALOFT, Vector3r(1, 1, 1), False, False)

    assert {"Cube", "Cylinder"} <= set(pilot("simListAssets"))
    assert [spawn("wall", "Cube"), spawn("wall", "Cube"), spawn("wall", "Cylinder")] == ["wall", "wall1", "wall2"]
    assert pilot("simListSceneObjects", "wal") == [] and len(pilot("simListSceneObjects", "wall.*")) == 3
    assert pilot("simListSceneObjects", ".*")[:2] == ["Ground", "SimpleFlight"]
    with pytest.raises(RpcError, match=r"rpclib: function 'simSpawnObject' \(called with 6 arg\(s\)\) threw .*Palace"):
        spawn("wall", "Palace")
    assert pilot("simSetObjectPose", "wall1", Pose(Vector3r(7.0, 0.0, 0.0)), True) is True
    assert decode(Pose, pilot("simGetObjectPose", "wall1", *place), pilot.dialect).position.x_val == 7.0
    assert pilot("simSetObjectPose", "gone", ALOFT, True) is False
    assert math.isnan(decode(Pose, pilot("simGetObjectPose", "gone", *place), pilot.dialect).position.x_val)
    assert [pilot("simDestroyObject", "wall1"), pilot("simDestroyObject", "wall1")] == [True, False]


def test_pictures(pilot: Pilot) -> None:
    pilot.aloft()
    pilot("simSpawnObject", "box", "Cube", Pose(Vector3r(8.5, 0.0, -4.0)), Vector3r(2.0, 2.0, 20.0), False, False)
    pilot("simSpawnObject", "pole", "Cylinder", Pose(Vector3r(8.5, 5.0, -4.0)), Vector3r(2.0, 2.0, 4.0), False, False)
    pilot.move(0.0, 0.0, -4.0, 1.0)
    pilot("simContinueForTime", 0.02)
    answer = pilot.picture()
    picture = answer.picture()
    assert picture.shape == (144, 256) and answer.camera_position.x_val == pytest.approx(0.46, abs=0.01)
    # The box's face is 7.04 m from the camera, which half precision has as 7.0391.
    assert picture[72, 128] == np.float32(np.float16(7.04))
    assert picture[0, 0] == 65504.0, "the sky"
    assert picture[-1, 0] == pytest.approx(4.0 / (71.5 / 128.0), rel=0.01), "the ground"
    # The pole's nearest point is at the height of the eye, 7 m and a bit ahead; above its top (2 m) is the sky.
    column = 128 + round(5.0 / 8.04 * 128)
    assert 7.0 < picture[72, column] < 7.4 and picture[30, column] == 65504.0
    for name in ("front_center", ""):
        assert np.array_equal(pilot.picture(name).picture(), picture)
    with pytest.raises(RpcError, match=r"map::at"):
        pilot.picture("nowhere")


def test_error_texts(pilot: Pilot) -> None:
    def text(ask: Callable[[], Any]) -> str:
        with pytest.raises(RpcError) as caught:
            ask()
        return caught.value.text

    assert text(lambda: pilot("fly", 1)) == "rpclib: server could not find function 'fly' with argument count 1."
    wrong = text(lambda: pilot("enableApiControl", True))
    assert wrong.startswith("rpclib: client error C0002: ") and wrong.endswith("Expected: 1, got: 2")
    assert text(lambda: pilot("simPause", "yes")) == (
        "rpclib: function 'simPause' (called with 1 arg(s)) threw an exception. The exception contained this "
        "information: std::bad_cast"
    )
    assert pilot("simContinueForTime", 1) is None, "an integer passes for a float"


def test_time_passes_by_itself_while_it_is_not_paused() -> None:
    with served(StandIn(speed=50.0)) as pilot:
        pilot("enableApiControl", True, "")
        pilot("simSetVehiclePose", ALOFT, True, "")
        assert pilot.rpc.wait(pilot.move(1.0, 0.0, -4.0, 2.0)) is True
        assert pilot.state().kinematics_estimated.position.x_val > 0.5


PYTHON = Path(__file__).parents[3] / ".venv-airsim" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="AirSim's Python clients are not installed: make airsim")
@pytest.mark.parametrize(("package", "dialect"), [("airsim", Dialect.AIRSIM), ("cosysairsim", Dialect.COSYS)])
def test_a_flight_with_the_real_client(package: str, dialect: Dialect) -> None:
    script = Path(__file__).with_name("real_client.py")
    with Server(StandIn(dialect, speed=20.0)) as server:
        command = [str(PYTHON), "-I", str(script), package, str(server.port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"Server Ver:{dialect.version}" in run.stdout and "upgrade" not in run.stdout
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["first"] == "Ground"
    assert (found["armed without control"], found["control"], found["armed"]) == (False, True, True)
    assert found["paused"] and found["assets"]
    assert found["objects"] == ["wall", "wall1"] and found["scene"] == ["Ground", "SimpleFlight", "wall", "wall1"]
    assert found["moved"] and found["object at"] == 40.0 and found["nowhere"]
    assert found["destroyed"] == [True, False]
    assert found["passed"] == pytest.approx(0.25, abs=1e-6)
    assert found["answers"] == [False, True]
    ahead, aside = found["velocity"][1], found["velocity"][0]
    assert 0.5 < ahead < 3.0 and abs(aside) < 0.01, "yaw is 90 degrees"
    assert found["yaw"] == pytest.approx(math.pi / 2, abs=0.01)
    assert found["image"] == [144, 256, 144 * 256]
    # Straight ahead is the wall's face at y = 8, seen a little obliquely by a tilted camera.
    assert found["ahead"] == pytest.approx(8.0, rel=0.1) and found["top"] == 65504.0
    assert "map::at" in found["camera"] and "Nonsense" in found["asset"]
    assert found["clear"] is False and found["collision"] == [True, "wall", False]
    assert found["after reset"] == [False, True, "Ground"]
