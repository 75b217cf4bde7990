"""The drone's dynamics against the constants they are to reproduce."""

from __future__ import annotations

import numpy as np
import pytest

from airlearning_envs.config import NavigationConfig
from airlearning_envs.episode import rng
from airlearning_envs.episode.wind import mean_wind, next_wind
from airlearning_envs.rules.actions import ACTION_COMMANDS, ACTION_NAMES
from airlearning_envs.simulators.embedded.dynamics import Flight, Integrator, power_w

CONFIG = NavigationConfig()


def fly_under(commands: np.ndarray, substep_s: float = 0.05, **settings: float) -> dict[str, np.ndarray]:
    """States after each substep under commands (substeps, 3)."""
    flight = Flight.hovering(CONFIG.with_settings(settings), 1)
    integrator = Integrator(flight, substep_s)
    states: dict[str, list[np.ndarray]] = {
        "velocity": [],
        "position": [],
        "yaw": [],
        "yaw_rate": [],
        "acceleration": [],
    }
    for command in commands.astype(np.float32):
        integrator.substep(command[:, None])
        for name, values in states.items():
            values.append(getattr(flight, name)[..., 0].copy())
    return {name: np.array(values) for name, values in states.items()}


def hold(action: int, seconds: float) -> np.ndarray:
    return np.repeat(ACTION_COMMANDS[action][None], round(seconds / 0.05), axis=0)


def crossing(values: np.ndarray, level: float) -> float:
    """Time at which a rising series first reaches a level, interpolated."""
    return float(np.interp(level, np.concatenate([[0.0], values]), 0.05 * np.arange(len(values) + 1)))


def test_two_substeps_worked_by_hand() -> None:
    # From rest, forward 5 m/s, dt 0.05: 1 - exp(-0.05 / 0.16) = 0.268384.
    # 1: a = 0.268384 * 1.12 * 5 = 1.502953;  v = 0.025 a = 0.0375738;  x = 0
    # 2: v_half = 0.0375738 + 0.025 (a - 0.0066 * 0.0375738^2) = 0.0751474;  x = 0.05 v_half = 0.0037574
    #    a = 1.502953 + 0.268384 (1.12 (5 - 0.0751474) - 1.502953) = 2.579946;  v = v_half + 0.025 a = 0.1396458
    flown = fly_under(hold(0, 0.1))
    assert flown["acceleration"][:, 0] == pytest.approx([1.502953, 2.579946], abs=5e-6)
    assert flown["velocity"][:, 0] == pytest.approx([0.0375738, 0.1396458], abs=5e-7)
    assert flown["position"][:, 0] == pytest.approx([0.0, 0.0037574], abs=5e-7)


def test_step_response_has_simple_flights_rise_times_and_no_overshoot() -> None:
    speed = fly_under(hold(0, 8.0))["velocity"][:, 0]
    final = speed[-1]
    assert crossing(speed, 0.632 * final) == pytest.approx(0.90, abs=0.02)
    assert crossing(speed, 0.90 * final) == pytest.approx(1.8, abs=0.1)
    assert (np.diff(speed) > -1e-4).all(), "the speed overshoots"


def test_the_final_speed_balances_the_drag() -> None:
    # 1.12 (5 - v) = 0.0066 v^2  =>  v = (-1.12 + sqrt(1.12^2 + 4 * 0.0066 * 5.6)) / 0.0132 = 4.8608 m/s
    assert fly_under(hold(0, 12.0))["velocity"][-1] == pytest.approx([4.8608, 0.0], abs=2e-3)
    assert fly_under(hold(0, 12.0), drag_per_m=0.0)["velocity"][-1, 0] == pytest.approx(5.0, abs=2e-3)


def test_the_acceleration_is_limited() -> None:
    # From +4.86 m/s a command of -20 m/s asks for 1.12 * 24.9 = 28 m/s^2; it gets 6.3.
    brake = np.concatenate([hold(0, 6.0), np.repeat([[-20.0, 0.0, 0.0]], 20, axis=0)])
    flown = np.abs(fly_under(brake)["acceleration"][:, 0])
    assert flown.max() == pytest.approx(6.3, abs=0.02)
    assert flown.max() <= 6.3


def test_coarse_steps_follow_the_continuous_equations() -> None:
    generator = np.random.default_rng(1)
    periods = ACTION_COMMANDS[generator.integers(0, 15, 120)]  # no turns: the heading would mix the axes
    coarse = fly_under(np.repeat(periods, 5, axis=0))["velocity"]
    fine = fly_under(np.repeat(periods, 250, axis=0), substep_s=0.001)["velocity"][49::50]
    rmse = np.sqrt(((coarse - fine) ** 2).mean())
    assert rmse < 0.02, "far below the 0.05 to 0.16 m/s between the surrogate and SimpleFlight itself"


def test_yaw_rate_follows_with_its_lag_and_turns_by_rate_times_time() -> None:
    right = fly_under(hold(15, 2.0))  # 108 degrees/s
    rate = np.degrees(right["yaw_rate"])
    assert crossing(rate, 0.632 * 108.0) == pytest.approx(0.26, abs=0.01)
    assert rate[-1] == pytest.approx(108.0, abs=0.1)
    # Held for one period and then released, the turn is rate times period: 108 * 0.25 = 27 degrees.
    pulse = fly_under(np.concatenate([hold(15, 0.25), hold(4, 3.0)]))
    assert np.degrees(pulse["yaw"][-1]) == pytest.approx(27.0, abs=0.05)
    left = fly_under(np.concatenate([hold(20, 0.25), hold(4, 3.0)]))
    assert np.degrees(left["yaw"][-1]) == pytest.approx(-54.0, abs=0.1)


def test_backup_flies_backwards_and_diagonal_flies_forward_and_right() -> None:
    for action in range(10, 15):
        assert fly_under(hold(action, 1.0))["position"][-1, 0] < -0.1, ACTION_NAMES[action]
    assert fly_under(hold(10, 12.0))["velocity"][-1, 0] == pytest.approx(-2.46, abs=0.02)  # half of 5 m/s, less drag
    forward, right = fly_under(hold(5, 2.0))["position"][-1]
    assert forward > 1.0 and right == pytest.approx(forward, rel=1e-5)


def test_commands_are_in_the_body_frame() -> None:
    quarter = np.repeat([[0.0, 0.0, np.pi / 2.0]], 20, axis=0)  # 90 degrees/s for 1 s
    settle = np.zeros((60, 3))
    flown = fly_under(np.concatenate([quarter, settle, hold(0, 8.0)]))
    assert flown["velocity"][-1] == pytest.approx([0.0, 4.86], abs=0.02)  # ahead is now +y, which was to the right


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
    integrator = Integrator(flight, 0.05)
    for _ in range(400):
        integrator.substep(np.zeros((3, 1), np.float32))
    # 1.12 v = 0.0066 (10 - v)^2  =>  v = 0.5295 m/s downwind
    assert flight.velocity[:, 0] == pytest.approx([0.5295, 0.0], abs=2e-3)


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
