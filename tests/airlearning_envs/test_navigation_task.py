"""The batched task: what ends an episode, what it pays, and that episodes do not depend on the batch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from quarl.airlearning_envs import rules
from quarl.airlearning_envs.config import PRESETS, NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.layout import Slots, build_layouts
from quarl.airlearning_envs.rules import COMMAND_HIGH, EndCause, Ends, observation_bounds
from quarl.airlearning_envs.simulators.embedded.sensing import Contact
from quarl.airlearning_envs.simulators.simulator import Obstacles, Track
from quarl.airlearning_envs.task import OBSERVATION_FIELDS, NavigationTask

EMPTY = PRESETS["hard"].with_settings({"static_obstacles": [0, 0], "moving_obstacles": [0, 0]})
NOISY = PRESETS["hard"].with_settings(
    {
        "wind_m_s": 3.0,
        "gust_m_s": 1.0,
        "range_noise_m": 0.2,
        "range_dropout": 0.1,
        "motion_noise": 0.1,
        "gain_spread": 0.2,
        "latency": {"kind": "normal", "values_s": [0.2, 0.1]},
    }
)


Point = tuple[float, float]


def placed(config: NavigationConfig, start: Point, goal: Point, yaw: float = 0.0) -> NavigationTask:
    """A single drone at a place of our choice."""
    core = NavigationTask(config, 1)
    core.reset(seed=0)
    layout = build_layouts(config, 0, np.array([0]))
    at = {"start": np.array([start], np.float32).T, "goal": np.array([goal], np.float32).T, "yaw": np.array([yaw])}
    core.simulator.begin(np.array([0]), replace(layout, **at))
    core.goal[:, 0] = goal
    core.observe()
    return core


def put(core: NavigationTask, column: int, centre: tuple[float, float], size: float) -> None:
    obstacles = core.simulator.obstacles
    obstacles.centre[:, 0, column], obstacles.size[0, column] = centre, size
    core.observe()


def fly_until_end(core: NavigationTask, action: int, limit: int = 400) -> int:
    """Number of decisions until the episode ended."""
    for count in range(1, limit):
        step = core.step(np.full(core.num_envs, action))
        if (step.terminated | step.truncated).all():
            return count
    raise AssertionError("the episode did not end")


def test_the_observation_is_what_its_fields_say() -> None:
    sizes = {"ranges": 24, "goal_bearing": 1, "goal_distance": 1, "velocity": 2, "yaw_rate": 1, "last_command": 3}
    assert [(f.name, f.size) for f in OBSERVATION_FIELDS] == list(sizes.items())
    core = placed(EMPTY, (0.0, 0.0), (3.0, 4.0), 0.0)
    first = core.observe()[0]
    assert first.dtype == np.float32 and first.shape == (32,)
    assert first[24] == pytest.approx(np.arctan2(4.0, 3.0)) and first[25] == pytest.approx(5.0)
    assert first[0] == 20.0  # the corner is 21.2 m away
    assert first[12] == pytest.approx(15.0 / np.cos(np.radians(45.0 / 23.0)), abs=1e-3)
    assert not first[26:].any()
    after = core.step(np.array([5])).observation[0]
    assert after[29:] == pytest.approx([5 * np.sqrt(0.5), 5 * np.sqrt(0.5), 0.0], abs=1e-5)
    assert after[26] == pytest.approx(after[27], rel=0.05) and after[26] > 0.3
    turned = core.step(np.array([15])).observation[0]
    assert turned[28] > 0.5 and turned[31] == pytest.approx(np.radians(108.0))
    # A quarter turn to the right brings what was on the right to the front.
    core = placed(EMPTY, (0.0, 0.0), (0.0, 8.0), np.pi / 2)
    assert core.observe()[0, 24] == pytest.approx(0.0, abs=1e-6)


def test_reaching_the_goal() -> None:
    core = placed(EMPTY, (0.0, 0.0), (10.0, 0.0))
    decisions = fly_until_end(core, 0)
    assert core.cause[0] == EndCause.GOAL and core.info()["success"][0]
    # 7 m from rest at up to 4.2 m/s by then: x(t) = 7 m after 2.6 s, found within a piece of 62.5 ms.
    assert core.flight_time[0] == pytest.approx(2.6, abs=0.05)
    assert decisions == int(np.ceil(core.flight_time[0] / 0.25))
    assert core.goal_distance[0] < 3.0 and core.goal_distance[0] > 3.0 - 0.25
    assert core.distance[0] == pytest.approx(10.0 - core.goal_distance[0], abs=1e-3)
    assert core.energy[0] == pytest.approx(433.9 * core.flight_time[0], rel=0.15)


def test_hitting_a_cylinder_a_box_and_passing_beside() -> None:
    one = PRESETS["hard"].with_settings({"static_obstacles": [2, 2], "moving_obstacles": [0, 0]})
    for column, kind in ((0, "cylinder"), (1, "box")):
        core = placed(one, (0.0, 0.0), (14.0, 0.0), 0.0)
        put(core, 1 - column, (-10.0, -10.0), 1.0)
        put(core, column, (5.0, 1.2), 1.0)  # its side is at y = 0.2, nearer than the drone's radius of 0.3
        fly_until_end(core, 0)
        assert core.cause[0] == EndCause.COLLISION, kind
        # Contact of the cylinder: (5 - x)^2 + 1.2^2 = 1.3^2, so x = 4.5; of the box's corner (4, 0.2): x = 3.776.
        wanted = 4.5 if kind == "cylinder" else 3.776
        assert wanted <= core.simulator.motion.position[0, 0] < wanted + 0.25
        put_beside = placed(one, (0.0, 0.0), (14.0, 0.0), 0.0)
        put(put_beside, 1 - column, (-10.0, -10.0), 1.0)
        put(put_beside, column, (5.0, 1.35), 1.0)
        fly_until_end(put_beside, 0)
        assert put_beside.cause[0] == EndCause.GOAL, kind


def test_leaving_the_arena_and_running_out_of_time() -> None:
    core = placed(EMPTY, (10.0, 0.0), (-10.0, 0.0), 0.0)
    fly_until_end(core, 0)
    assert core.cause[0] == EndCause.LEFT_ARENA
    assert 14.7 < core.simulator.motion.position[0, 0] < 14.7 + 0.25
    core = placed(EMPTY, (10.0, 0.0), (-10.0, 0.0), 0.0)
    assert fly_until_end(core, 15) == 200  # turning on the spot
    step = core.step(np.array([15]))
    assert core.cause[0] == EndCause.TIME and step.truncated[0] and not step.terminated[0]
    assert core.flight_time[0] == pytest.approx(50.0, rel=1e-5)


def test_the_original_rewards_step_limit_terminates() -> None:
    """It takes 100 away there: a learner that looked beyond it would pay the crash and expect the rest as well."""
    config = EMPTY.with_settings({"reward_style": "air-learning", "max_steps": 3})
    alone, many = NavigationTask(config, 1), NavigationTask(config, 4)
    alone.reset(np.array([2]), seed=1)
    many.reset(np.arange(4), seed=1)
    for step in range(1, 5):  # the fourth finds the episodes ended, and says so again
        one, others = alone.step(np.array([15])), many.step(np.full(4, 15))  # turning on the spot
        for seen, row in ((one, 0), (others, 2)):
            assert bool(seen.terminated[row]) == (step >= 3) and not seen.truncated[row]
            assert (seen.reward[row] == -100.0) == (step == 3)
            assert (seen.info["cause"][row] == EndCause.TIME) == (step >= 3)
    shaped = NavigationTask(EMPTY.with_settings({"max_steps": 1}), 1)
    shaped.reset(seed=1)
    last = shaped.step(np.array([15]))
    assert last.truncated[0] and not last.terminated[0]


def test_the_goal_reached_with_the_last_decision_counts() -> None:
    core = placed(EMPTY.with_settings({"max_steps": 11}), (0.0, 0.0), (10.0, 0.0))
    assert fly_until_end(core, 0) == 11, "test_reaching_the_goal: 2.6 s"
    assert core.cause[0] == EndCause.GOAL


def test_time_and_energy_stop_where_the_flight_ends() -> None:
    # 4 m/s on the spot beside the wall: x = 14.6 leaves at 14.7, within a period's first pieces.
    core = placed(EMPTY, (14.6, 0.0), (-10.0, 0.0), 0.0)
    core.simulator.motion.velocity[0, 0] = 4.0
    core.step(np.array([0]))
    assert core.cause[0] == EndCause.LEFT_ARENA and core.flight_time[0] == pytest.approx(0.0625)
    assert core.distance[0] == pytest.approx(0.25, abs=0.01)  # 4 m/s for 62.5 ms
    assert 433.9 * 0.0625 * 0.9 < core.energy[0] < 433.9 * 0.0625 * 1.1


def first_event(config: NavigationConfig, track_x: list[float], goal_x: float, mover: Point | None) -> tuple[int, int]:
    """(cause, piece) of a drone that flies along x through these places, with a mover at (place, velocity) if any."""
    position = np.zeros((6, 2, 1), np.float32)
    position[:, 0, 0] = track_x
    obstacles = Obstacles(Slots.of(config), 1)
    if mover is not None:
        obstacles.size[:], obstacles.limit[:] = 0.5, config.half_m - 0.5
        obstacles.centre[0], obstacles.velocity[0] = mover
    gap = np.abs(obstacles.centre[0] - position[0, 0]) - obstacles.size
    times_s = np.arange(1, 6).astype(np.float32) * np.float32(0.05)
    lengths = np.abs(np.diff(position[:, 0], axis=0))
    contact = Contact(config, obstacles, times_s).first(position, lengths, gap)
    cause, when = Ends(config).first(
        Track(position, lengths, times_s, *contact), np.array([[goal_x], [0.0]], np.float32)
    )
    return int(cause[0]), int(when[0])


def test_within_a_piece_contact_counts_first_and_the_goal_last() -> None:
    mover = NavigationConfig(static_obstacles=(0, 0), moving_obstacles=(1, 1))
    track = [14.5, 14.55, 14.6, 14.65, 14.75, 14.8]  # leaves (14.7) and comes within 3 m of x = 17.7 in piece 3
    assert first_event(EMPTY, track, 17.7, None) == (EndCause.LEFT_ARENA, 3)
    assert first_event(EMPTY, track, 17.6, None) == (EndCause.GOAL, 2)  # 14.65 is within 3 m
    # A mover of radius 0.5 comes up from behind at 5 m/s and is within 0.8 m from piece 3 on: 14.05, behind 14.75.
    assert first_event(mover, track, 17.7, (13.05, 5.0)) == (EndCause.COLLISION_MOVER, 3)


def test_a_mover_that_bounces_within_a_period_is_met_where_it_really_is() -> None:
    mover = NavigationConfig(static_obstacles=(0, 0), moving_obstacles=(1, 1))
    # From 14.4 at 2 m/s it turns at 14.5: 14.5 after 50 ms, then 14.4, 14.3, 14.2, 14.1; contact at a distance of 0.8.
    assert first_event(mover, [13.38] * 6, -10.0, (14.4, 2.0)) == (EndCause.COLLISION_MOVER, 4)
    assert first_event(mover, [13.28] * 6, -10.0, (14.4, 2.0)) == (EndCause.NONE, 4)


def test_a_mover_hits_a_hovering_drone_and_bounces_off_walls() -> None:
    one = PRESETS["hard"].with_settings({"static_obstacles": [0, 0], "moving_obstacles": [1, 1]})
    core = placed(one, (0.0, 0.0), (10.0, 0.0), 0.0)
    movers = core.simulator.obstacles
    movers.velocity[:, 0, 0] = (2.0, 0.0)
    movers.limit[0, 0] = 15.0 - 0.5
    put(core, 0, (13.5, 0.0), 0.5)
    fly_until_end(core, 19)
    assert core.cause[0] == EndCause.COLLISION_MOVER
    # 13.5 to the turning point 14.5 and back until 0.8 m apart: 1 + 13.7 = 14.7 m at 2 m/s = 7.35 s.
    assert core.flight_time[0] == pytest.approx(7.35, abs=0.06)
    assert movers.velocity[0, 0, 0] == -2.0
    assert movers.centre[0, 0, 0] == pytest.approx(0.8, abs=0.11)


def test_rewards_worked_by_hand() -> None:
    config = NavigationConfig()
    cause = np.array([EndCause.NONE, EndCause.GOAL, EndCause.COLLISION, EndCause.LEFT_ARENA, EndCause.TIME], np.int8)
    progress = np.array([1.0, 0.5, -0.5, 0.0, 0.2], np.float32)
    # 0.1 * progress - 0.01, then + 5 at the goal, - 3 on collision and leaving, nothing more for running out of time.
    assert rules.compute_reward(config, cause, progress) == pytest.approx([0.09, 5.04, -3.06, -3.01, 0.01], abs=1e-6)
    distance, speed = np.array([5.0, 2.9, 5.0, 9.0, 9.0], np.float32), np.array([2.0, 1, 1, 1, 1], np.float32)
    # -1 + 1 + (4 - 2) 0.01875 = 0.0375 within 6 m.
    got = rules.air_learning_reward(cause, progress, distance, speed)
    assert got == pytest.approx([0.0375, 1000.0, -100.0, -100.0, -100.0], abs=1e-6)
    far = rules.air_learning_reward(cause[:1], progress[:1], np.array([7.0], np.float32), speed[:1])
    assert far == pytest.approx([0.0], abs=1e-6)


def test_the_return_of_a_flight_is_the_sum_of_its_parts() -> None:
    for style, wanted in (("shaped", lambda n, d: 0.1 * d - 0.01 * n + 5.0), ("air-learning", None)):
        core = placed(EMPTY.with_settings({"reward_style": style}), (0.0, 0.0), (10.0, 0.0))
        total, decisions = 0.0, 0
        while not core.cause[0]:
            total += float(core.step(np.array([0])).reward[0])
            decisions += 1
        if wanted:
            assert total == pytest.approx(wanted(decisions, 10.0 - core.goal_distance[0]), abs=1e-3)
        else:
            assert 990.0 < total < 1010.0


def rollout(core: NavigationTask, row: int, steps: int) -> list[bytes]:
    """Everything one row returns under actions that depend on its episode only."""
    generator = np.random.default_rng(99)
    seen = []
    for action in generator.integers(0, 25, steps):
        step = core.step(np.full(core.num_envs, action))
        parts = [step.observation[row], step.reward[row], step.terminated[row], step.truncated[row]]
        parts += [values[row] for values in step.info.values()]
        seen.append(b"".join(np.asarray(part).tobytes() for part in parts))
    return seen


@pytest.mark.parametrize("config", [PRESETS["hard"], PRESETS["shipped"], NOISY], ids=["hard", "shipped", "noisy"])
def test_an_episode_is_the_same_in_any_batch_at_any_position(config: NavigationConfig) -> None:
    episode, wanted = 41, None
    for size, row in ((1, 0), (7, 3), (64, 63), (33, 0)):
        core = NavigationTask(config, size)
        ids = np.arange(1000, 1000 + size)
        ids[row] = episode
        core.reset(ids, seed=6)
        seen = rollout(core, row, 25)
        wanted = wanted or seen
        assert seen == wanted, f"batch {size}, row {row}"
    assert len(set(wanted or [])) > 5


def test_an_episode_begun_in_the_middle_of_others_is_the_same() -> None:
    fresh = NavigationTask(NOISY, 1)
    fresh.reset(np.array([77]), seed=6)
    used = NavigationTask(NOISY, 4)
    used.reset(np.arange(4), seed=6)
    for _ in range(9):
        used.step(np.array([0, 5, 16, 20]))
    mask = np.array([False, True, False, False])
    first = used.reset_where(mask, np.array([77]))
    assert np.array_equal(first[0], used.observe()[1])
    assert rollout(fresh, 0, 20) == rollout(used, 1, 20)


def test_ended_episodes_stay_as_they_are_until_reset() -> None:
    core = NavigationTask(PRESETS["hard"], 32)
    core.reset(seed=3)
    for _ in range(60):
        step = core.step(np.zeros(32, np.int64))
    ended = step.terminated | step.truncated
    assert ended.all(), "flying straight ahead ends every episode within 15 s"
    before = {name: values.copy() for name, values in core.info().items()}
    again = core.step(np.full(32, 5))
    assert not again.reward.any() and np.array_equal(again.terminated, step.terminated)
    assert np.array_equal(again.observation, step.observation)
    for name, values in again.info.items():
        assert np.array_equal(values, before[name]), name


def test_some_ended_do_not_disturb_the_others() -> None:
    both = NavigationTask(PRESETS["hard"], 8)
    both.reset(seed=3)
    alone = NavigationTask(PRESETS["hard"], 1)
    alone.reset(np.array([5]), seed=3)
    for action in [0] * 12 + [15, 16, 0, 0, 2]:
        a, b = both.step(np.full(8, action)), alone.step(np.array([action]))
        assert np.array_equal(a.observation[5], b.observation[0]) and a.reward[5] == b.reward[0]
    assert (both.cause != EndCause.NONE).any()


def test_step_or_reset_is_step_and_then_reset() -> None:
    a, b = NavigationTask(NOISY, 6), NavigationTask(NOISY, 6)
    a.reset(seed=4)
    b.reset(seed=4)
    next_id = 6
    for _ in range(40):
        mask = a.cause != EndCause.NONE
        ids = np.arange(next_id, next_id + mask.sum())
        next_id += len(ids)
        one = a.step_or_reset(np.zeros(6, np.int64), mask, ids)
        two = b.step(np.zeros(6, np.int64))
        two.observation[mask] = b.reset_where(mask, ids)
        assert np.array_equal(one.observation, two.observation)
        assert np.array_equal(one.reward, two.reward)
        assert not one.reward[mask].any() and not one.terminated[mask].any()
    assert next_id > 12


def test_observations_stay_within_their_bounds() -> None:
    for config in (PRESETS["hard"], NOISY):
        low, high = observation_bounds(config)
        core = NavigationTask(config, 32)
        observation, next_id = core.reset(seed=1), 32
        generator = np.random.default_rng(0)
        for _ in range(150):
            assert (observation >= low).all() and (observation <= high).all() and np.isfinite(observation).all()
            step = core.step(generator.integers(0, 25, 32))
            observation, ended = step.observation, step.terminated | step.truncated
            observation[ended] = core.reset_where(ended, np.arange(next_id, next_id + ended.sum()))
            next_id += int(ended.sum())


def test_noise_and_dropout_have_their_size() -> None:
    quiet, loud = NavigationTask(EMPTY, 400), NavigationTask(EMPTY.with_settings({"range_noise_m": 0.3}), 400)
    blind = NavigationTask(EMPTY.with_settings({"range_dropout": 0.25}), 400)
    true = quiet.reset(seed=0)[:, :24]
    error = (loud.reset(seed=0)[:, :24] - true)[(true > 2.0) & (true < 18.0)]
    assert error.std() == pytest.approx(0.3, rel=0.05) and abs(error.mean()) < 0.02
    lost = (blind.reset(seed=0)[:, :24] == 20.0)[true < 20.0]
    assert lost.mean() == pytest.approx(0.25, abs=0.02)


def test_continuous_commands_fly_and_are_clipped() -> None:
    core = NavigationTask(EMPTY, 2)
    core.reset(seed=0)
    step = core.step(np.array([[2.0, 0.0, 0.0], [99.0, 99.0, 99.0]], np.float32))
    assert step.observation[0, 29:] == pytest.approx([2.0, 0.0, 0.0])
    assert step.observation[1, 29:] == pytest.approx(COMMAND_HIGH)


@pytest.mark.parametrize(
    "actions",
    [np.array([25, 0]), np.array([-1, 0]), np.array([0]), np.zeros((2, 2), np.float32), np.full((2, 3), np.nan)],
)
def test_wrong_actions_are_refused(actions: np.ndarray) -> None:
    core = NavigationTask(EMPTY, 2)
    core.reset(seed=0)
    with pytest.raises(SettingsError, match="action"):
        core.step(actions)


def test_wrong_order_and_wrong_ids_are_refused() -> None:
    core = NavigationTask(EMPTY, 2)
    with pytest.raises(SettingsError, match="call reset first"):
        core.step(np.zeros(2, np.int64))
    with pytest.raises(SettingsError, match="call reset first"):
        core.reset_where(np.ones(2, bool), np.arange(2))
    with pytest.raises(SettingsError, match="negative"):
        core.reset(np.array([-1, 0]))
    with pytest.raises(SettingsError, match="shape"):
        core.reset(np.arange(3))


def test_the_core_imports_numpy_and_the_contract_only() -> None:
    code = (
        "import sys; import quarl.airlearning_envs.task, quarl.airlearning_envs.flights; "
        "known = set(sys.stdlib_module_names) | {'numpy', 'cython_runtime', 'quarl', 'policy', 'airlearning_envs'}; "
        "names = (m.removeprefix('quarl.').split('.')[0] for m in sys.modules if not m.startswith('_')); "
        "print(*sorted(set(names) - known))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) - {"sitecustomize", "usercustomize"}


DIGEST = """
import hashlib
import numpy as np
from quarl.airlearning_envs.task import PRESETS, NavigationTask
settings = {"wind_m_s": 3, "gust_m_s": 1, "range_noise_m": 0.1, "motion_noise": 0.05, "gain_spread": 0.1,
            "latency": {"kind": "normal", "values_s": [0.1, 0.05]}}
core, digest = NavigationTask(PRESETS["hard"].with_settings(settings), 33), hashlib.sha256()
digest.update(core.reset(seed=1).tobytes())
for k in range(60):
    step = core.step(np.arange(33) * 7 % 25 if k % 3 else np.zeros(33, np.int64))
    digest.update(step.observation.tobytes() + step.reward.tobytes())
print(digest.hexdigest())
"""


def test_an_episode_is_the_same_on_processors_with_other_vector_units() -> None:
    """Nothing may depend on fused operations or on a vector library's last bit, or a Pi would fly other episodes."""
    digests = set()
    for disabled in ("", "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL", "AVX2 FMA3 AVX512F"):
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
        command = [sys.executable, "-W", "ignore", "-c", DIGEST]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
