"""What every simulator of the navigation task has to do: inherit from :class:`SimulatorContract`, say how it is made.

class TestMine(SimulatorContract):
    def make(self, config, num_envs):
        return MySimulator(config, num_envs)
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import blind_policy, fly
from quarl.airlearning_envs.layout import FAR_AWAY_M, Layouts, Slots
from quarl.airlearning_envs.rules import EndCause
from quarl.airlearning_envs.simulators.simulator import Call, Simulator, Track
from quarl.airlearning_envs.task import NavigationTask

CONFIG = NavigationConfig(arena_m=40.0, static_obstacles=(2, 2), moving_obstacles=(1, 1))
Point = tuple[float, float]
NOWHERE = (FAR_AWAY_M, FAR_AWAY_M)


def arena(
    start: Point = (0.0, 0.0),
    yaw: float = 0.0,
    cylinder: Point = NOWHERE,
    box: Point = NOWHERE,
    mover: Point = NOWHERE,
    velocity: Point = (0.0, 0.0),
) -> Layouts:
    """One episode's arena: a cylinder of radius 1 m, a box of half side 1 m, a mover of radius 0.5 m, where given."""
    slots = Slots.of(CONFIG)
    assert (slots.movers, slots.circles, slots.total) == (1, 2, 3)
    size = np.array([[0.5, 1.0, 1.0]], np.float32)
    return Layouts(
        start=np.array(start, np.float32)[:, None],
        goal=np.array([[15.0], [15.0]], np.float32),
        yaw=np.array([yaw]),
        centre=np.array([mover, cylinder, box], np.float32).T[:, None],
        size=size,
        velocity=np.array(velocity, np.float32)[:, None, None],
        limit=np.array([[CONFIG.half_m - 0.5]], np.float32),
        variation=np.zeros((6, 1), np.float32),
    )


def command(forward: float = 0.0, right: float = 0.0, yaw_rate: float = 0.0, at_s: float | None = None) -> Call:
    when = None if at_s is None else np.array([at_s], np.float32)
    return Call(np.array([[forward], [right], [yaw_rate]], np.float32), when)


class SimulatorContract:
    """The tests; times and places are within what a simulator's clock allows."""

    place_m = 0.05
    """How far a flight may be from where exact time would have it."""

    def make(self, config: NavigationConfig, num_envs: int) -> Simulator:
        """The simulator under test."""
        raise NotImplementedError

    def flown(self, layout: Layouts, calls: list[list[Call]]) -> tuple[Simulator, list[Track], list[np.ndarray]]:
        """One drone through periods; the simulator (closed), the tracks, and the positions after each."""
        with closing(self.make(CONFIG, 1)) as simulator:
            simulator.begin(np.array([0]), layout)
            tracks, places = [], []
            for period in calls:
                track = simulator.fly(period)
                tracks.append(track._replace(position=track.position.copy()))
                places.append(simulator.motion.position[:, 0].copy())
        return simulator, tracks, places

    def test_an_episode_begins_at_rest_where_its_arena_says(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            for start, yaw in (((3.0, -4.0), 1.0), ((-2.0, 5.0), -2.5)):
                simulator.begin(np.array([0]), arena(start, yaw))
                motion = simulator.motion
                assert motion.position[:, 0] == pytest.approx(start, abs=self.place_m)
                assert np.abs(motion.velocity).max() < 0.05 and abs(motion.yaw_rate[0]) < 0.02
                assert np.angle(np.exp(1j * (motion.yaw[0] - yaw))) == pytest.approx(0.0, abs=0.02)
                simulator.fly([command(4.0, 0.0, 1.0)])

    def test_commands_are_in_the_body_frame_and_yaw_is_positive_to_the_right(self) -> None:
        for yaw in (0.0, np.pi / 2):
            _, _, places = self.flown(arena(yaw=yaw), [[command(4.0)]] * 12)
            along = np.array([np.cos(yaw), np.sin(yaw)])
            assert along @ places[-1] > 4.0 and abs(along[::-1] @ (places[-1] * [-1, 1])) < 0.3
        _, _, places = self.flown(arena(), [[command(0.0, 3.0)]] * 12)
        assert places[-1][1] > 3.0 and abs(places[-1][0]) < 0.3
        simulator, _, _ = self.flown(arena(), [[command(yaw_rate=1.0)]] * 8)
        assert 1.4 < simulator.motion.yaw[0] < 1.9 and simulator.motion.yaw_rate[0] == pytest.approx(1.0, abs=0.1)

    def test_a_command_holds_until_the_next_one_and_a_late_one_comes_late(self) -> None:
        _, _, prompt = self.flown(arena(), [[command(4.0)]] * 6)
        _, _, once = self.flown(arena(), [[command(4.0)], [], [], [], [], []])
        assert once[-1] == pytest.approx(prompt[-1], abs=self.place_m)
        _, _, late = self.flown(arena(), [[command(4.0, at_s=0.125)], *[[command(4.0)]] * 5])
        speed = (prompt[-1] - prompt[-2])[0] / CONFIG.control_period_s
        assert 0.05 * speed < (prompt[-1] - late[-1])[0] < 0.2 * speed
        _, _, never = self.flown(arena(), [[command(4.0, at_s=9.0)]] * 6)
        assert never[-1] == pytest.approx([0.0, 0.0], abs=self.place_m)

    def test_a_track_goes_from_where_the_drone_was_to_where_it_is(self) -> None:
        _, tracks, places = self.flown(arena(), [[command(4.0)]] * 5)
        for track, before, after in zip(tracks[1:], places, places[1:], strict=False):
            assert track.position[0, :, 0] == pytest.approx(before, abs=1e-3)
            assert track.position[-1, :, 0] == pytest.approx(after, abs=1e-3)
            assert len(track.times_s) == len(track.position) - 1 and (np.diff(track.times_s) > 0).all()
            assert track.times_s[-1] == pytest.approx(CONFIG.control_period_s, abs=self.place_m)
            assert track.contact[0] == EndCause.NONE

    @pytest.mark.parametrize(
        ("where", "cause"),
        [
            ({"cylinder": (5.0, 0.0)}, EndCause.COLLISION),
            ({"box": (5.0, 0.0)}, EndCause.COLLISION),
            ({"mover": (9.5, 0.0), "velocity": (-2.0, 0.0)}, EndCause.COLLISION_MOVER),
            ({"cylinder": (5.0, 1.5), "box": (5.0, -1.5)}, EndCause.NONE),
        ],
        ids=["cylinder", "box", "mover", "beside"],
    )
    def test_what_is_touched_is_found(self, where: dict[str, Point], cause: EndCause) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            simulator.begin(np.array([0]), arena(**where))  # type: ignore[arg-type]
            for _ in range(16):
                track = simulator.fly([command(4.0)])
                if track.contact[0]:
                    break
            assert track.contact[0] == cause
            if cause == EndCause.COLLISION:  # 5 m less the obstacle and the drone, which may have stopped before it
                simulator.halt(np.array([0]), track.when)
                assert 3.45 < simulator.motion.position[0, 0] < 4.0 + self.place_m

    def test_ranges_are_distances_to_walls_obstacles_and_movers(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            simulator.begin(np.array([0]), arena(cylinder=(6.0, 0.0), mover=(0.0, 9.0)))
            angles = np.radians([-45.0, 0.0, 45.0])
            ahead = simulator.ranges(angles, 30.0)
            assert ahead.shape == (1, 3) and ahead.dtype == np.float32
            assert ahead[0] == pytest.approx([20.0 * np.sqrt(2.0), 5.0, 20.0 * np.sqrt(2.0)], abs=0.1)
            assert simulator.ranges(angles, 4.0)[0] == pytest.approx([4.0, 4.0, 4.0])
            simulator.begin(np.array([0]), arena(yaw=np.pi / 2, cylinder=(6.0, 0.0), mover=(0.0, 9.0)))
            assert simulator.ranges(angles, 30.0, np.array([0]))[0, 1] == pytest.approx(8.5, abs=0.1)

    def test_depth_is_the_distance_along_the_optical_axis(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            simulator.begin(np.array([0]), arena(box=(8.0, 0.0)))
            if not simulator.capabilities.depth:
                with pytest.raises(SettingsError):
                    simulator.depth(20, 32, 30.0)
                return
            picture = simulator.depth(20, 32, 30.0)
            assert picture.shape == (1, 20, 32) and picture.dtype == np.float32
            assert picture[0, 9, 15] == pytest.approx(7.0, abs=0.5)
            assert picture[0, 9, 0] == pytest.approx(20.0, abs=0.5)
            assert picture[0, -1, 16] < 5.0, "the floor is 4 m below"

    def test_movers_move_with_the_drones_time(self) -> None:
        simulator, _, _ = self.flown(arena(mover=(0.0, 10.0), velocity=(1.0, 0.0)), [[command()]] * 8)
        assert simulator.obstacles.centre[:, 0, 0] == pytest.approx([2.0, 10.0], abs=self.place_m)

    def test_held_drones_stay_as_they_are(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            simulator.begin(np.array([0]), arena())
            for _ in range(4):
                simulator.fly([command(4.0, 0.0, 0.5)])
            before = [array.copy() for array in simulator.motion]
            simulator.fly([command(-2.0)], held=np.array([True]))
            for array, kept in zip(simulator.motion, before, strict=True):
                assert array == pytest.approx(kept, abs=self.place_m)

    def test_what_it_cannot_do_is_refused(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            can = simulator.capabilities
            if can.batch is not None:
                with pytest.raises(SettingsError, match="at most"):
                    NavigationTask(CONFIG, can.batch + 1, simulator)
            if not can.wind:
                with pytest.raises(SettingsError, match="wind"):
                    simulator.blow(np.ones((2, 1), np.float32))

    def test_what_is_deterministic_is_the_same_to_the_last_bit(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            if not simulator.capabilities.deterministic:
                return
        calls = [[command(3.0, -1.0, 0.7)], [command(-1.0, at_s=0.1)], [command(5.0, 0.0, -2.0)]] * 3
        (_, _, one), (_, _, two) = self.flown(arena(), calls), self.flown(arena(), calls)
        assert np.array_equal(one, two)

    def test_the_task_flies_in_it(self) -> None:
        with closing(self.make(CONFIG, 1)) as simulator:
            flown = fly(CONFIG, blind_policy, 3, seed=1, batch=1, simulator=simulator)
        assert flown.episodes == 3 and (flown.cause != EndCause.NONE).all() and (flown.flight_time_s > 0).all()
