"""The task in the stand-in: the contract of a simulator in all dialects, and what happens when something goes wrong."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")

from quarl.airlearning_envs.config import NavigationConfig, preset
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import CutShortError, FlightResults, blind_policy, fly
from quarl.airlearning_envs.layout import Layouts, build_layouts
from quarl.airlearning_envs.rules import EndCause, ray_angles
from quarl.airlearning_envs.simulators.airsim import links
from quarl.airlearning_envs.simulators.airsim.dialects import Dialect, Pose, Vector3r, encode
from quarl.airlearning_envs.simulators.airsim.rpc import AirSimError, ConnectionLostError, NotRpcError, Rpc
from quarl.airlearning_envs.simulators.airsim.simulator import AirSimOptions, AirSimSimulator
from quarl.airlearning_envs.simulators.airsim.stand_in import VEHICLE, Server, StandIn
from quarl.airlearning_envs.simulators.embedded.sensing import RangeSensor
from quarl.airlearning_envs.simulators.simulator import Simulator, SpoiledFlightError
from quarl.airlearning_envs.task import NavigationTask
from tests.airlearning_envs.simulator_contract import CONFIG, SimulatorContract, arena, command
from tests.refusals import refused

HARD = preset("hard")


def arena_of_hard() -> Layouts:
    return build_layouts(HARD, 7, np.array([0]))


class Served(AirSimSimulator):
    """A simulator that takes its server along; ``world`` is what it serves."""

    def __init__(self, config: NavigationConfig, world: StandIn, client: str = links.OWN, **options: Any) -> None:
        self.world, self.server = world, Server(world)
        self.server.__enter__()
        self.address = f"127.0.0.1:{self.server.port}"
        try:
            super().__init__(config, AirSimOptions(self.address, client, **options))
        except BaseException:
            self.server.__exit__(None, None, None)
            raise

    def close(self) -> None:
        super().close()
        self.server.__exit__(None, None, None)


WAYS = [
    (Dialect.AIRSIM, links.THEIRS),
    (Dialect.COSYS, links.THEIRS),
    (Dialect.COLOSSEUM, links.OWN),
    (Dialect.AIRSIM, links.OWN),
]


def _require(client: str) -> None:
    """Skip where AirSim's own client is meant and there is none."""
    if client == links.THEIRS and not links.CLIENTS_PYTHON.exists():
        pytest.skip("AirSim's Python clients are not installed: make airsim")


@pytest.fixture(params=[links.OWN, links.THEIRS])
def client(request: pytest.FixtureRequest) -> str:
    _require(request.param)
    return str(request.param)


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].value}-{way[1]}", scope="class")
def way(request: pytest.FixtureRequest) -> tuple[Dialect, str]:
    dialect, client = request.param
    _require(client)
    return dialect, client


class TestStandIn(SimulatorContract):
    @pytest.fixture(autouse=True)
    def _of(self, way: tuple[Dialect, str]) -> None:
        self.dialect, self.client = way

    def make(self, config: NavigationConfig, num_envs: int) -> Simulator:
        return Served(config, StandIn(self.dialect), self.client)

    def test_who_speaks_is_said(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            assert isinstance(simulator, AirSimSimulator)
            wanted = links.PACKAGES.get(self.dialect, "")
            assert (wanted + "'s own client" if self.client == links.THEIRS else "the project's") in simulator.through

    def test_it_is_left_as_it_was(self) -> None:
        simulator = Served(CONFIG, world := StandIn(self.dialect), self.client)
        with closing(simulator):
            simulator.begin(np.array([0]), arena(cylinder=(6.0, 0.0)))
            assert len(world.call("simListSceneObjects", [".*"])) == 2 + 4 + 1
            assert simulator._camera.width_deg == 120.0
        assert world.call("simListSceneObjects", [".*"]) == ["Ground", VEHICLE]
        assert not world.paused and world.call("isApiControlEnabled", [""]) is False
        assert world._width("0") == 90.0


def flown(world: StandIn, episodes: int, **options: Any) -> FlightResults:
    with closing(Served(HARD, world, **options)) as simulator:
        return fly(HARD, blind_policy, episodes, 7, simulator=simulator)


@pytest.fixture(scope="module")
def exact() -> FlightResults:
    """Four flights in which nothing goes wrong."""
    return flown(StandIn(), 4)


def test_the_same_layouts_end_as_in_the_embedded_simulator(exact: FlightResults) -> None:
    embedded, served = fly(HARD, blind_policy, exact.episodes, 7), exact
    same = embedded.cause == served.cause
    assert same.sum() >= 3, "a mover that is touched at a slice's end may be passed by a hair elsewhere"
    assert served.flight_time_s[same] == pytest.approx(embedded.flight_time_s[same], abs=0.26)
    assert served.distance_m[same] == pytest.approx(embedded.distance_m[same], abs=0.7)
    assert served.spoiled == ()


@pytest.mark.parametrize("wide", [True, False], ids=["widened", "90 degrees"])
def test_ranges_are_those_of_a_ray_caster_while_it_flies(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    if not wide:
        for name in ("simGetCameraInfo", "simSetCameraFov"):
            del world._methods[name]
    angles = ray_angles(HARD)
    sensor = RangeSensor(HARD, angles, HARD.max_range_m)
    errors = []

    def watch(core: NavigationTask) -> None:
        motion, obstacles = core.simulator.motion, core.simulator.obstacles
        exact, _ = sensor.scan(motion.position, motion.cosine, motion.sine, obstacles.centre, obstacles.size)
        errors.append(np.abs(core.simulator.ranges(angles, HARD.max_range_m)[0] - exact[0]))

    with closing(Served(HARD, world)) as simulator:
        fly(HARD, blind_policy, 1, 7, simulator=simulator, watch=watch)
    found = np.array(errors)[:, slice(None) if wide else slice(2, -2)]
    assert np.median(found) < 0.01 and np.percentile(found, 90) < 0.1


class Rough(StandIn):
    """Slices that are a little longer or shorter than asked, and a drone that is not held where it is put."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(1)

    def _continue(self, seconds: float) -> None:
        super()._continue(seconds * self._rng.uniform(0.9, 1.08))

    def _put(self, pose: Pose, ignore_collision: bool, vehicle: str) -> None:
        super()._put(pose, ignore_collision, vehicle)
        self._drone.flight.trim[:] = 0.1


def test_a_server_that_is_less_exact_is_flown_in_all_the_same(exact: FlightResults) -> None:
    rough = flown(Rough(), exact.episodes)
    assert rough.spoiled == () and (rough.cause == exact.cause).all()
    assert rough.flight_time_s == pytest.approx(exact.flight_time_s, rel=0.1, abs=0.4)


def test_a_camera_that_only_says_that_it_was_widened_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    see = world._scene.depth_picture
    monkeypatch.setattr(world._scene, "depth_picture", lambda eye, turned, reach: see(eye, turned))
    with closing(Served(HARD, world)) as simulator:
        assert simulator._camera.width_deg == 90.0 and world._width("0") == 90.0
        simulator.begin(np.array([0]), arena_of_hard())
        assert len(simulator.notes) == 1 and "outermost rays" in simulator.notes[0]


def test_an_arena_that_is_not_what_is_seen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    with closing(Served(HARD, world)) as simulator:
        simulator.begin(np.array([0]), arena_of_hard())
        assert simulator.notes == []
    spawn = world._scene.spawn
    larger = lambda name, asset, pose, scale: spawn(name, asset, pose, Vector3r(*(3.0 * scale.array())))  # noqa: E731
    monkeypatch.setattr(world._scene, "spawn", larger)
    with closing(Served(HARD, world)) as simulator, pytest.raises(SpoiledFlightError, match="start is not free"):
        simulator.begin(np.array([0]), arena_of_hard())
    monkeypatch.setattr(
        world._scene, "spawn", lambda name, asset, pose, scale: spawn(name, asset, pose, Vector3r(0.1, 0.1, 0.1))
    )
    with closing(Served(HARD, world)) as simulator:
        simulator.begin(np.array([0]), arena_of_hard())
        assert "is not the arena that was built" in simulator.notes[0]


def test_a_clock_that_loses_time_is_made_good(exact: FlightResults) -> None:
    stalled = flown(StandIn(stall=0.26, speed=2.0), 2)
    assert stalled.flight_time_s == pytest.approx(exact.flight_time_s[:2], rel=0.1, abs=0.3)
    assert stalled.distance_m == pytest.approx(exact.distance_m[:2], rel=0.1, abs=0.5)
    assert (stalled.cause == exact.cause[:2]).all()


def test_a_clock_that_stands_is_said() -> None:
    world = StandIn()
    simulator = Served(HARD, world)
    with closing(simulator):
        world._stall = 1.0
        with pytest.raises(AirSimError, match="stood still"):
            fly(HARD, blind_policy, 1, 7, simulator=simulator)


def test_a_clock_that_runs_while_it_is_paused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    monkeypatch.setattr(world, "_settings", lambda: '{"ClockType": "ScalableClock"}')
    world._methods = world._table()
    with pytest.raises(AirSimError, match="SteppableClock"):
        Served(HARD, world)
    world = StandIn()
    monkeypatch.setattr(world, "_pause", lambda paused: None)  # its settings do not say it
    world._methods = world._table()
    with pytest.raises(AirSimError, match="SteppableClock"):
        Served(HARD, world)


class Rude(StandIn):
    """Does something of its own in some of its continued slices."""

    def __init__(self, what: Callable[[StandIn], Any], when: range) -> None:
        super().__init__()
        self._what, self._when, self._slices = what, when, 0

    def _continue(self, seconds: float) -> None:
        self._slices += 1
        if self._slices in self._when:
            self._what(self)
        super()._continue(seconds)


def other_move(world: StandIn) -> None:
    """What another client would do."""
    world.call("moveByVelocityZBodyFrame", [0.0, 0.0, -4.0, 5.0, 0, {"is_rate": True, "yaw_or_rate": 0.0}, ""])


RUDE: dict[str, tuple[Callable[[StandIn], Any], str]] = {
    "another client commands": (other_move, "another client"),
    "another client takes control": (lambda world: world.call("enableApiControl", [False, ""]), "another client"),
    "another client moves the drone": (
        lambda world: world.call(
            "simSetVehiclePose", [encode(Pose(Vector3r(1.0, 2.0, -4.0)), Dialect.AIRSIM), True, ""]
        ),
        "moved it",
    ),
    "the command is dropped": (lambda world: world._drone.move(0.0, 0.0, 0.0, -4.0, 9.0), "dropped the command"),
}


@pytest.mark.parametrize("what", RUDE)
def test_a_flight_that_was_not_flown_as_commanded_does_not_count(what: str, exact: FlightResults) -> None:
    does, reason = RUDE[what]
    # Of the first seconds of the first episode, in which it gains speed; some slices are lost by hovering before it.
    spoiled = flown(Rude(does, range(24, 32) if "dropped" in what else range(24, 25)), 2)
    assert spoiled.episodes == 2 and len(spoiled.spoiled) == 1
    assert re.search(reason, spoiled.spoiled[0])
    assert (spoiled.cause == exact.cause[:2]).all() and (spoiled.cause != EndCause.NONE).all()


def test_a_command_without_api_control_is_noticed() -> None:
    simulator = Served(CONFIG, world := StandIn())
    with closing(simulator):
        simulator.begin(np.array([0]), arena())
        world.call("enableApiControl", [False, ""])
        simulator._move = None
        with pytest.raises(SpoiledFlightError, match="API control was lost"):
            simulator.fly([command(2.0)])


def test_a_server_that_ends_in_mid_flight_leaves_the_finished_episodes(client: str) -> None:
    simulator = Served(HARD, StandIn(), client, reconnect_s=0.2)

    def progress(done: int, total: int) -> None:
        if done == 1:
            simulator.server.__exit__(None, None, None)

    with closing(simulator), pytest.raises(CutShortError) as caught:
        fly(HARD, blind_policy, 3, 7, simulator=simulator, progress=progress)
    assert isinstance(caught.value.reason, ConnectionLostError)
    assert caught.value.finished.episodes == 1 and (caught.value.finished.cause != EndCause.NONE).all()


def test_a_connection_that_comes_back_costs_one_flight(client: str, exact: FlightResults) -> None:
    simulator = Served(HARD, world := StandIn(), client)
    cut = False

    def watch(core: NavigationTask) -> None:
        nonlocal cut
        if core.episode_id[0] == 1 and core.steps[0] == 3 and not cut:
            cut = True
            for connection in list(simulator.server._open):
                connection.shutdown(socket.SHUT_RDWR)

    with closing(simulator):
        found = fly(HARD, blind_policy, 2, 7, simulator=simulator, watch=watch)
    assert found.spoiled == ("the connection was lost, and made again.",)
    assert (found.cause == exact.cause[:2]).all()
    assert world._width("0") == 90.0 and world.call("simListSceneObjects", ["arena.*"]) == []


def test_an_interrupted_call_leaves_the_server_in_order(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Served(HARD, world := StandIn(), client)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(simulator):
        simulator.begin(np.array([0]), arena_of_hard())
        if client == links.THEIRS:
            monkeypatch.setattr(simulator._link, "_line", interrupted)
        else:
            monkeypatch.setattr(simulator._link._rpc, "wait", interrupted)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            simulator.fly([command(1.0)])
        monkeypatch.undo()
    assert world.call("simListSceneObjects", ["arena.*"]) == [] and not world.paused


def test_a_server_that_is_not_airsim_is_refused() -> None:
    empty = StandIn()
    empty._methods = {"ping": empty._methods["ping"]}
    with Server(empty) as server, pytest.raises(NotRpcError, match="not as AirSim does"):
        AirSimSimulator(HARD, AirSimOptions(f"127.0.0.1:{server.port}"))
    no_drone = StandIn()
    del no_drone._methods["getMultirotorState"]
    with pytest.raises(NotRpcError, match="drone in it"):
        Served(HARD, no_drone)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dialect": Dialect.COSYS}, "speaks airsim, not cosys"),
        ({"assets": {"box": "Nonsense"}}, "no asset Nonsense for a box"),
        ({"assets": {"ball": "Cube"}}, "allowed are box, cylinder"),
        ({"client": "mine"}, "allowed are auto, own, theirs"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Served(HARD, StandIn(), **{"client": links.OWN, **options})


def test_an_object_that_cannot_be_moved_is_spawned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    monkeypatch.setattr(world._scene, "place", lambda name, pose: True)  # as Unreal's static meshes
    with closing(Served(HARD, world)) as simulator:
        simulator.begin(np.array([0]), arena_of_hard())
        names = set(world.call("simListSceneObjects", ["arena_mover.*"]))
        before = {name: world._scene.pose(name).position for name in names}
        simulator.fly([command(0.0)])
        after = [world._scene.pose(name).position for name in world.call("simListSceneObjects", ["arena_mover.*"])]
        assert len(after) == len(before) > 0 and not set(after) & set(before.values())


def test_boxes_stand_for_cylinders_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StandIn()
    world._methods["simListAssets"] = ((), lambda: ["Sphere", "1M_Cube"])
    with closing(Served(HARD, world)) as simulator:
        assert simulator.through.endswith("boxes in place of cylinders")
        simulator.begin(np.array([0]), arena_of_hard())
    world._methods["simListAssets"] = ((), lambda: ["Sphere", "Cubic"])
    with pytest.raises(SettingsError, match=r"no asset Cube or 1M_Cube or .* lists Cubic"):
        Served(HARD, world)


def test_what_a_killed_run_left_is_taken_away() -> None:
    world = StandIn()
    pose, scale = encode(Pose(), Dialect.AIRSIM), encode(Vector3r(1.0, 1.0, 1.0), Dialect.AIRSIM)
    world.call("simSpawnObject", ["arena_wall0", "Cube", pose, scale, False, False])
    with closing(Served(HARD, world)):
        assert world.call("simListSceneObjects", ["arena.*"]) == []


def test_gymnasium_makes_it() -> None:
    import gymnasium

    import quarl.airlearning_envs.gym_env  # noqa: F401

    with Server(StandIn()) as server:
        env = gymnasium.make(
            "quarl.airlearning_envs.gym_env:AirLearning/NavigationDepth-v0",
            preset="shipped",
            simulator="airsim",
            address=f"127.0.0.1:{server.port}",
            simulator_options={"client": "own"},
        )
        observation, _ = env.reset(seed=3)
        assert observation["depth"].shape == (84, 84) and env.observation_space.contains(observation)
        for _ in range(3):
            observation, *_ = env.step(0)
        assert env.observation_space.contains(observation)
        env.close()
        with refused(SettingsError, "unknown_simulator_option", name="port"):
            gymnasium.make(
                "quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0",
                simulator="airsim",
                simulator_options={"port": 1},
            )
        with Rpc(port=server.port) as rpc:
            assert rpc.call("simListSceneObjects", "arena.*") == []
