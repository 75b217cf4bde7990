"""The drone's dynamics: SimpleFlight's equations, worked by hand and against fine steps, and what AirSim measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.airlearning_envs import rng
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import build_layouts, mean_wind, next_wind
from quarl.airlearning_envs.rules import ACTION_COMMANDS, ACTION_NAMES, power_w
from quarl.airlearning_envs.simulators.embedded.dynamics import Attitude, Flight, Integrator
from quarl.airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator
from quarl.airlearning_envs.simulators.simulator import Call, Simulator
from tests.airlearning_envs.simulator_contract import SimulatorContract

CONFIG = NavigationConfig()
STEP_S = CONFIG.control_period_s / CONFIG.substeps


def fly_under(
    commands: np.ndarray, step_s: float = STEP_S, yaw: float = 0.0, **settings: float
) -> dict[str, np.ndarray]:
    """States after each step under world goals of speeds and yaw rate (steps, 3), at the altitude's goal."""
    config = CONFIG.with_settings(settings)
    flight = Flight.hovering(config, 1)
    flight.yaw[:] = yaw
    integrator = Integrator(flight, step_s)
    names = ("velocity", "position", "yaw", "yaw_rate", "acceleration", "tilt")
    states: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for vx, vy, rate in commands.astype(np.float32):
        integrator.step(np.array([[vx], [vy], [-config.altitude_m], [rate]], np.float32))
        for name in names:
            states[name].append(getattr(flight, name)[..., 0].copy())
    return {name: np.array(values) for name, values in states.items()}


def hold(command: tuple[float, float, float], seconds: float, step_s: float = STEP_S) -> np.ndarray:
    return np.repeat([command], round(seconds / step_s), axis=0)


def crossing(values: np.ndarray, level: float) -> float:
    """Time at which a rising series first reaches a level, interpolated."""
    return float(np.interp(level, np.concatenate([[0.0], values]), STEP_S * np.arange(len(values) + 1)))


def test_two_steps_worked_by_hand() -> None:
    # From rest at 4 m, forward 5 m/s, steps of 50 ms; limit 32.7 deg = 0.570723; g = 9.80665, T_max = 16.72.
    # 1: v_half = 0; e = 5; wanted 0.570723 * 1 = 0.570723; share (1 - exp(-0.3125)) / 0.05 = 5.367688; the rate asked
    #    for is 3.063 and limited to 2.5 rad/s: f = 0.125. Mean: 1 / (1 - exp(-0.3125)) - 1 / 0.3125 = 0.525999 of the
    #    way: cos 1 - 0.525999 (1 - cos f) = 0.995896, sin 0.525999 sin f = 0.0655788.
    #    Thrust: I = 1 - 2 g / T_max = -0.173044; s = 0; s_end = (8.36 (1 - I) - 0.995896 g) / 16.72 = 0.0024071;
    #    s_mean = s_end (1 - (1 - exp(-0.836)) / 0.836) = 0.0024071 (1 - 0.677698) = 0.00077580;
    #    I = -0.173044 + 0.1 s_mean = -0.172967; T = 8.36 (1 - 2 s_mean - I) = 9.793030;
    #    a_x = 0.0655788 T = 0.642215, a_z = g - 0.995896 T = 0.053811; x = 0; v = 0.05 a.
    # 2: v_half = 0.075 a = 0.0481662, 0.0040358; x = 0.05 v_half = 0.0024083.
    #    e = cos f (5 - 0.0481662) + sin f (-4 - 0.0040358) = 4.413996; wanted 0.2 * 4.413996 * 0.570723 = 0.503833;
    #    rate 5.367688 * 0.378833 = 2.033460; f = 0.2266730.
    flown = fly_under(hold((5.0, 0.0, 0.0), 0.1, 0.05), step_s=0.05)
    assert flown["tilt"][:, 0] == pytest.approx([0.125, 0.2266730], abs=2e-6)
    assert flown["acceleration"][0] == pytest.approx([0.642215, 0.0, 0.053811], abs=3e-6)
    assert flown["velocity"][0] == pytest.approx([0.0321108, 0.0, 0.0026905], abs=1e-6)
    assert flown["position"][:, 0] == pytest.approx([0.0, 0.0024083], abs=1e-6)


def test_it_sinks_while_it_speeds_up_and_comes_back() -> None:
    flown = fly_under(hold((5.0, 0.0, 0.0), 12.0))
    sunk = flown["position"][:, 2] + 4.0
    assert sunk.max() == pytest.approx(0.29, abs=0.05), "0.29 m in AirSim"
    assert sunk[-1] < 0.1 and np.degrees(flown["tilt"][:, 0].max()) == pytest.approx(18.7, abs=1.0)


def test_the_tilt_is_limited() -> None:
    brake = np.concatenate([hold((5.0, 0.0, 0.0), 6.0), hold((-20.0, 0.0, 0.0), 1.0)])
    tilt = fly_under(brake)["tilt"][:, 0]
    assert -np.radians(32.7) <= tilt.min() < -np.radians(25.0)
    assert np.abs(np.diff(tilt)).max() <= 2.5 * STEP_S + 1e-6


def test_coarse_steps_follow_the_continuous_equations() -> None:
    generator = np.random.default_rng(1)
    goals = np.column_stack([generator.uniform(-3, 5, (120, 2)), generator.uniform(-2, 2, 120)])
    fine = fly_under(np.repeat(goals, 250, axis=0), step_s=0.001)["velocity"][249::250, :2]
    errors = []
    for steps in (2, 3, 5, 10):
        coarse = fly_under(np.repeat(goals, steps, axis=0), step_s=0.25 / steps)["velocity"][steps - 1 :: steps, :2]
        errors.append(np.sqrt(((coarse - fine) ** 2).mean()))
    # Commands that change wholly four times a second are the hardest; recordings are followed three times closer.
    assert errors[0] < 0.1 and errors == sorted(errors, reverse=True) and errors[-1] < 0.02


def test_yaw_rate_follows_with_its_lag_and_its_limit() -> None:
    right = fly_under(hold((0.0, 0.0, np.radians(90.0)), 2.0))
    rate = np.degrees(right["yaw_rate"])
    assert crossing(rate, 0.632 * 90.0) == pytest.approx(0.27, abs=0.02)  # 0.26 s, and the limit
    assert rate[-1] == pytest.approx(90.0, abs=0.2)
    left = np.degrees(fly_under(hold((0.0, 0.0, np.radians(-216.0)), 1.0))["yaw_rate"])
    assert np.abs(np.diff(left)).max() == pytest.approx(np.degrees(6.0 * STEP_S), rel=1e-3)


def test_the_tilt_stays_where_it_points_while_the_drone_yaws_under_it() -> None:
    """A drone that flies ahead and turns at 90 degrees/s goes on where it went: the goal is one of the world."""
    flown = fly_under(hold((4.0, 0.0, np.radians(90.0)), 4.0))
    assert flown["yaw"][-1] == pytest.approx(np.radians(90.0) * (4.0 - 0.26), abs=0.1)
    assert flown["velocity"][-1, 0] > 3.4 and abs(flown["velocity"][-1, 1]) < 0.35


def test_turning_the_world_turns_the_flight() -> None:
    goals = np.concatenate([hold((3.0, 1.0, 0.5), 1.0), hold((-1.0, 2.0, -0.8), 1.0)])
    angle = 2.1
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = goals @ np.array([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    plain, other = fly_under(goals)["position"], fly_under(turned, yaw=angle)["position"]
    wanted = plain[:, 0] * cosine - plain[:, 1] * sine, plain[:, 0] * sine + plain[:, 1] * cosine, plain[:, 2]
    assert other == pytest.approx(np.column_stack(wanted), abs=1e-4)


def test_attitude_turns_vectors_as_rotation_matrices_do() -> None:
    forward, right, yaw = 0.3, -0.2, 1.1
    attitude = Attitude(np.array([[forward], [right]], np.float32), np.array([yaw]))
    pitch, roll = -forward, right
    by_yaw = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    by_pitch = np.array([[np.cos(pitch), 0, np.sin(pitch)], [0, 1, 0], [-np.sin(pitch), 0, np.cos(pitch)]])
    by_roll = np.array([[1, 0, 0], [0, np.cos(roll), -np.sin(roll)], [0, np.sin(roll), np.cos(roll)]])
    to_world = by_yaw @ by_pitch @ by_roll
    vector = np.array([1.0, -2.0, 0.5])
    column, out, scalar = vector.astype(np.float32)[:, None], np.zeros((3, 1), np.float32), np.zeros(1, np.float32)
    attitude.end_turn(np.ones((6, 1), np.float32))  # a turn of nothing: its middle is where it is
    body = np.append(attitude.forward_right(column, np.zeros((2, 1), np.float32)), attitude.down(column, scalar))
    assert body == pytest.approx(to_world.T @ vector, abs=1e-6)
    attitude.up_to_world(np.array([2.0], np.float32), out)
    assert out[:, 0] == pytest.approx(-2.0 * to_world[:, 2], abs=1e-6)
    assert attitude.upright(scalar) == pytest.approx(to_world[2, 2], abs=1e-6)
    # A small turn about the body's axes: R' = R exp(q), with q's pitch and yaw of the opposite and the same sense.
    attitude.turn(np.array([[-0.002], [0.001], [0.003]], np.float32), np.ones((3, 1), np.float32))
    small = np.array([[0, -0.003, 0.002], [0.003, 0, -0.001], [-0.002, 0.001, 0]])
    attitude.end_turn(np.ones((6, 1), np.float32))  # all the way: what follows is of its end
    attitude.up_to_world(np.array([-1.0], np.float32), out)
    assert out[:, 0] == pytest.approx((to_world @ (np.eye(3) + small))[:, 2], abs=1e-5)


class TestEmbedded(SimulatorContract):
    """The embedded simulator does what any simulator has to do."""

    def make(self, config: NavigationConfig, num_envs: int) -> Simulator:
        return EmbeddedSimulator(config, num_envs)


def called(command: tuple[float, float, float], periods: int, yaw: float = 0.0) -> EmbeddedSimulator:
    """One drone that is called with a body-frame command at the start of each period, in an arena without obstacles."""
    config = CONFIG.with_settings({"static_obstacles": [0, 0], "moving_obstacles": [0, 0], "arena_m": 100.0})
    simulator = EmbeddedSimulator(config, 1)
    layout = replace(build_layouts(config, 0, np.array([0])), start=np.zeros((2, 1), np.float32), yaw=np.array([yaw]))
    simulator.begin(np.array([0]), layout)
    for _ in range(periods):
        simulator.fly([Call(np.array(command, np.float32)[:, None])])
    return simulator


def test_a_command_is_turned_by_the_yaw_at_the_call() -> None:
    """One call of a diagonal flight with a turn: the drone turns, the direction of flight does not."""
    simulator = called((3.0, 0.0, 1.5), 1)
    for _ in range(7):
        simulator.fly([])
    velocity, yaw = simulator.motion.velocity[:, 0], simulator.motion.yaw[0]
    assert yaw > 2.0 and abs(np.arctan2(velocity[1], velocity[0])) < 0.15
    again = called((3.0, 0.0, 1.5), 8).motion.velocity[:, 0]
    assert abs(np.arctan2(again[1], again[0])) > 0.8, "called again each period, it turns with the drone"


def test_the_action_table() -> None:
    assert len(ACTION_NAMES) == len(set(ACTION_NAMES)) == len(ACTION_COMMANDS) == 25
    speeds = np.hypot(ACTION_COMMANDS[:, 0], ACTION_COMMANDS[:, 1])
    assert speeds[:15] == pytest.approx([5, 4, 3, 2, 1, 5, 4, 3, 2, 1, 2.5, 2, 1.5, 1, 0.5], abs=1e-6)
    assert (ACTION_COMMANDS[10:15, 0] < 0).all() and (ACTION_COMMANDS[:10, 0] > 0).all()
    rates = [108, 54, 27, 13.5, 6.75, -216, -108, -54, -27, -13.5]
    assert np.degrees(ACTION_COMMANDS[15:, 2]) == pytest.approx(rates, abs=1e-4)
    assert not ACTION_COMMANDS[15:, :2].any() and not ACTION_COMMANDS[:15, 2].any()


def test_wind_pushes_against_the_velocity_loop() -> None:
    flight = Flight.hovering(CONFIG, 1)
    flight.wind[0] = 10.0
    integrator = Integrator(flight, STEP_S)
    for _ in range(400):
        integrator.step(np.array([[0.0], [0.0], [-4.0], [0.0]], np.float32))
    # At rest g tan f = -0.0066 (10 - v)^2 and f = 0.5707 * 0.2 (-v cos f - 4 sin f): v = 0.737 m/s downwind.
    assert flight.velocity[:2, 0] == pytest.approx([0.737, 0.0], abs=0.005)


def test_what_differs_from_drone_to_drone_is_drawn_for_each_episode() -> None:
    config = CONFIG.with_settings({"gain_spread": 0.2, "altitude_spread_m": 1.0})
    simulator = EmbeddedSimulator(config, 500)
    simulator.begin(np.arange(500), build_layouts(config, 3, np.arange(500)))
    nominal = np.array([0.2, 6.25, 0.0066, 0.26, 0.02])[:, None]
    factor = simulator.flight.constants / nominal
    assert factor.min() >= 0.8 - 1e-6 and factor.max() <= 1.2 + 1e-6 and (factor.std(axis=1) > 0.1).all()
    altitude = -simulator.flight.altitude
    assert altitude.min() >= 3.0 and altitude.max() <= 5.0 and altitude.std() > 0.5
    correlation = np.corrcoef(np.vstack([factor, altitude]))
    assert np.abs(correlation - np.eye(6)).max() < 0.2, "each is drawn on its own"


def test_gusts_have_their_size_and_memory_around_the_mean() -> None:
    config = CONFIG.with_settings({"wind_m_s": 4.0, "gust_m_s": 2.0, "gust_time_constant_s": 2.0})
    keys = rng.episode_keys(1, np.arange(4000))
    mean = wind = mean_wind(config, keys)
    assert np.hypot(*mean).max() <= 4.0 and np.hypot(*mean).mean() == pytest.approx(2.0, abs=0.1)
    gusts = []
    for step in range(60):
        wind = next_wind(config, keys, np.full(4000, step), wind)
        gusts.append((wind - mean).ravel())
    # After 15 s, seven time constants: standard deviation 2, correlation over one period exp(-0.25 / 2) = 0.8825.
    assert gusts[-1].std() == pytest.approx(2.0, rel=0.03) and abs(gusts[-1].mean()) < 0.1
    assert np.corrcoef(gusts[-1], gusts[-2])[0, 1] == pytest.approx(0.8825, abs=0.01)


def test_power_in_hover_and_in_flight() -> None:
    assert power_w(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32)) == pytest.approx([433.9])
    # |v| = 5, |a| = 2: 433.9 - 7.63 + 7.868 + 9.68 = 443.818 W
    velocity, acceleration = np.array([[3.0], [4.0]], np.float32), np.array([[0.0], [-2.0]], np.float32)
    assert power_w(velocity, acceleration) == pytest.approx([443.818], abs=1e-3)
