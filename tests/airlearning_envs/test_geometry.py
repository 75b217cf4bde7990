"""Rays against walls, cylinders and boxes; every number here is worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import FAR_AWAY_M
from quarl.airlearning_envs.rules import ray_angles
from quarl.airlearning_envs.simulators.embedded import sensing
from quarl.airlearning_envs.simulators.embedded.sensing import RangeSensor

ROOT_2 = np.sqrt(2.0)


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("forward", "right", "radius", "wanted"),
    [
        (5, 0, 1, (4.0, np.inf)),
        (4, 3, 3, (4.0, 7 / ROOT_2 - np.sqrt(24.5 - 16))),  # (x - 4)^2 + 9 = 9 touches at x = 4
        (5, 3, 5, (1.0, 8 / ROOT_2 - np.sqrt(32 - 9))),  # (x - 5)^2 = 16: the nearer of 1 and 9
        (3, 3, 1, (np.inf, np.sqrt(18.0) - 1.0)),
        (5, 2, 1, (np.inf, np.inf)),
        (-5, 0, 1, (np.inf, np.inf)),  # behind
    ],
)
def test_circle_on_a_ray_ahead_and_one_at_45_degrees(
    forward: float, right: float, radius: float, wanted: tuple[float, float]
) -> None:
    hits = sensing.circle_ranges(f32(forward), f32(right), f32(radius), f32(1, 1 / ROOT_2), f32(0, 1 / ROOT_2))
    np.testing.assert_allclose(hits[0], wanted, atol=1e-5)


def test_box_faces_corner_and_misses() -> None:
    straight, diagonal = [1.0, 0.0], [1 / ROOT_2, 1 / ROOT_2]
    inverse = sensing.inverse_directions(np.array([straight, diagonal], np.float32).T[:, None, :])  # (2, 1, 2)
    cases = {
        (5.0, 0.0, 1.0): (4.0, np.inf),  # the near face at x = 4; the diagonal passes at (4, 4)
        (5.0, 5.0, 1.0): (np.inf, 4.0 * ROOT_2),  # the near corner at (4, 4)
        (5.0, 4.0, 2.0): (np.inf, 3.0 * ROOT_2),  # enters through the face x = 3 at (3, 3)
        (-5.0, 0.0, 1.0): (np.inf, np.inf),  # behind
    }
    for (x, y, half), wanted in cases.items():
        hits = sensing.box_ranges(f32(x, y)[:, None], f32(half), inverse)
        np.testing.assert_allclose(hits[0], wanted, atol=1e-5)


def test_walls_straight_and_diagonal() -> None:
    # At (3, -4) in [-10, 10]^2: 7 along +x, 13 along -x, 14 along +y; at 45 degrees x = 10 comes first, after 7 sqrt 2.
    position = f32(3, -4)[:, None]
    directions = np.array([[1, 0], [-1, 0], [0, 1], [1 / ROOT_2, 1 / ROOT_2]], np.float32).T[:, None, :]
    ranges = sensing.wall_ranges(position, sensing.inverse_directions(directions), 10.0)
    np.testing.assert_allclose(ranges[0], [7.0, 13.0, 14.0, 7.0 * ROOT_2], atol=1e-5)


def test_nearest_per_row_takes_the_minimum_of_each_row() -> None:
    ranges = np.full((4, 2), 10.0, np.float32)
    hits = np.array([[7, np.inf], [3, 12], [5, 9]], np.float32)
    sensing.nearest_per_row(ranges, np.array([0, 2, 2]), hits)
    assert ranges.tolist() == [[7, 10], [10, 10], [3, 9], [10, 10]]
    sensing.nearest_per_row(ranges, np.array([], dtype=np.int64), np.zeros((0, 2), np.float32))


def brute_force(position: np.ndarray, yaw: float, angle: float, scene: list[tuple[str, float, float, float]]) -> float:
    """Walk along the ray in steps of 2 mm until something is met."""
    reach = np.arange(0.0, 20.0, 0.002)
    points = position[:, None] + reach * np.array([[np.cos(yaw + angle)], [np.sin(yaw + angle)]])
    inside = (np.abs(points) > 15.0).any(axis=0)
    for kind, x, y, size in scene:
        gap = np.abs(points - np.array([[x], [y]]))
        inside |= (gap.max(axis=0) < size) if kind == "box" else (np.hypot(*gap) < size)
    return float(reach[inside.argmax()]) if inside.any() else 20.0


def test_the_sensor_sees_what_walking_along_the_rays_finds() -> None:
    config = NavigationConfig(static_obstacles=(6, 6), moving_obstacles=(2, 2))
    sensor, angles = RangeSensor(config, ray_angles(config), config.max_range_m), ray_angles(config)
    generator = np.random.default_rng(4)
    seen_something = 0
    for _ in range(40):
        centre = generator.uniform(-13, 13, (2, 8)).astype(np.float32)
        size = generator.uniform(0.5, 2.0, 8).astype(np.float32)
        centre[:, 7] = FAR_AWAY_M  # an unused slot
        position = generator.uniform(-14, 14, 2).astype(np.float32)
        if (np.hypot(*(centre - position[:, None])) < 1.5 * size).any():
            continue
        yaw = float(generator.uniform(-np.pi, np.pi))
        kinds = ["circle"] * 5 + ["box"] * 3  # 2 movers and 3 cylinders, then 3 boxes
        scene = [(k, float(x), float(y), float(s)) for k, x, y, s in zip(kinds, *centre, size, strict=True)]
        ranges, gap = sensor.scan(position[:, None], f32(np.cos(yaw)), f32(np.sin(yaw)), centre[:, None], size[None])
        wanted = [brute_force(position.astype(float), yaw, a, scene) for a in angles]
        np.testing.assert_allclose(ranges[0], wanted, atol=0.03)
        walls_only, _ = sensor.scan(
            position[:, None],
            f32(np.cos(yaw)),
            f32(np.sin(yaw)),
            np.full((2, 1, 8), FAR_AWAY_M, np.float32),
            size[None],
        )
        seen_something += int((ranges < walls_only).any())
        distance = np.hypot(*(centre - position[:, None]))[:5]
        np.testing.assert_allclose(gap[0, :5], distance - size[:5], rtol=1e-5)
    assert seen_something > 10


def test_what_is_beside_and_a_little_behind_can_still_be_seen() -> None:
    # Centre (-0.1, 2), radius 1.6, rightmost ray at 45 degrees: b = 1.9 / sqrt 2 = 1.3435 ahead along the ray,
    # t = b - sqrt(b^2 - (4.01 - 2.56)) = 1.3435 - sqrt(1.805 - 1.45) = 0.7477.
    config = NavigationConfig(static_obstacles=(1, 1), moving_obstacles=(0, 0))
    sensor = RangeSensor(config, ray_angles(config), config.max_range_m)
    ranges, _ = sensor.scan(f32(0, 0)[:, None], f32(1), f32(0), f32(-0.1, 2)[:, None, None], f32(1.6)[None])
    assert ranges[0, -1] == pytest.approx(0.7477, abs=1e-4)
    assert ranges[0, 0] == pytest.approx(15.0 * ROOT_2, abs=1e-4) or ranges[0, 0] == 20.0


def test_rays_run_from_left_to_right() -> None:
    angles = ray_angles(NavigationConfig())
    assert len(angles) == 24
    assert np.degrees(angles[[0, -1]]) == pytest.approx([-45.0, 45.0])
    # A cylinder ahead on the right (yaw 0 looks along x, y is to the right) shortens a ray of the second half only.
    config = NavigationConfig(static_obstacles=(1, 1), moving_obstacles=(0, 0))
    ranges, _ = RangeSensor(config, angles, config.max_range_m).scan(
        f32(0, 0)[:, None], f32(1), f32(0), f32(5, 2)[:, None, None], f32(1)[None]
    )
    touched = np.flatnonzero(ranges[0] < 6.0)
    assert len(touched) and touched.min() >= 12
