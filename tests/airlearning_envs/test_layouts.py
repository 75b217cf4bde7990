"""Layouts: fair starts, free goals, passable arenas, and the same in any batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.layout import FAR_AWAY_M, PASSAGE_M, LayoutPool, Layouts, Slots, build_layouts

EPISODES = 600


@pytest.fixture(scope="module", params=sorted(PRESETS))
def drawn(request: pytest.FixtureRequest) -> tuple[str, Layouts]:
    return request.param, build_layouts(PRESETS[request.param], 11, np.arange(EPISODES))


def used(layouts: Layouts) -> np.ndarray:
    return np.asarray(layouts.centre[0] < FAR_AWAY_M / 2)


def surface_gap(layouts: Layouts, points: np.ndarray, circles: int) -> np.ndarray:
    """(B, N) distance from points (2, B) to the surface of each obstacle, inf where the slot is unused."""
    offset = np.abs(layouts.centre - points[:, :, None]).astype(np.float64)
    round_gap = np.hypot(*offset) - layouts.size
    beyond = np.maximum(offset - layouts.size, 0.0)
    gap = np.where(np.arange(layouts.size.shape[1]) < circles, round_gap, np.hypot(*beyond))
    return np.where(used(layouts), gap, np.inf)


def test_starts_and_goals(drawn: tuple[str, Layouts]) -> None:
    name, layouts = drawn
    config = PRESETS[name]
    room = config.half_m - config.wall_margin_m + 1e-4
    assert (np.abs(layouts.start) <= room).all() and (np.abs(layouts.goal) <= room).all()
    distance = np.hypot(*(layouts.goal - layouts.start))
    low, high = config.goal_distance_m
    assert distance.min() >= low - 1e-3 and distance.max() <= high + 1e-3
    assert distance.max() - distance.min() > 0.9 * (high - low), "all distances occur"


def test_nothing_stands_or_moves_at_the_start_and_the_goal_is_free(drawn: tuple[str, Layouts]) -> None:
    name, layouts = drawn
    config = PRESETS[name]
    slots = Slots.of(config)
    if not slots.total:
        assert layouts.centre.shape == (2, EPISODES, 0)
        return
    at_start = surface_gap(layouts, layouts.start, slots.circles)
    at_goal = surface_gap(layouts, layouts.goal, slots.circles)
    assert at_start[:, slots.movers :].min() >= config.start_clearance_m - 1e-4
    assert at_goal[:, slots.movers :].min() >= config.goal_clearance_m - 1e-4
    assert config.goal_clearance_m > config.body_radius_m, "the goal itself can be reached"
    if slots.movers:
        assert at_start[:, : slots.movers].min() >= config.mover_clearance_m - 1e-4


def test_counts_sizes_and_spacing(drawn: tuple[str, Layouts]) -> None:
    name, layouts = drawn
    config = PRESETS[name]
    slots = Slots.of(config)
    present = used(layouts)
    standing, moving = present[:, slots.movers :].sum(axis=1), present[:, : slots.movers].sum(axis=1)
    assert (standing.min(), standing.max()) == config.static_obstacles
    assert (moving.min(), moving.max()) == config.moving_obstacles
    for row in range(0, EPISODES, 7):
        centres = layouts.centre[:, row, slots.movers :][:, present[row, slots.movers :]]
        apart = np.hypot(*(centres[:, :, None] - centres[:, None, :])) + 1e9 * np.eye(centres.shape[1])
        assert apart.size == 0 or apart.min() >= config.spacing_m - 1e-3
    speeds = np.hypot(*layouts.velocity)[present[:, : slots.movers]]
    if len(speeds):
        assert speeds.min() >= 0.5 - 1e-5 and speeds.max() <= 2.0 + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shipped", "hard"])
def test_there_is_always_a_way_past_what_stands(name: str) -> None:
    config = PRESETS[name]
    slots, episodes = Slots.of(config), 60
    layouts = build_layouts(config, 23, np.arange(episodes))
    cell = 0.1
    axis = np.arange(-config.half_m + cell / 2, config.half_m, cell)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    for row in range(episodes):
        free = np.maximum(np.abs(x), np.abs(y)) < config.half_m - config.body_radius_m
        for k in range(slots.movers, slots.total):
            cx, cy = layouts.centre[:, row, k]
            size = layouts.size[row, k]
            dx, dy = np.abs(x - cx), np.abs(y - cy)
            if k < slots.circles:
                free &= np.hypot(dx, dy) > size + config.body_radius_m
            else:
                free &= np.hypot(np.maximum(dx - size, 0), np.maximum(dy - size, 0)) > config.body_radius_m
        start, goal = (tuple(((p[:, row] + config.half_m) / cell).astype(int)) for p in (layouts.start, layouts.goal))
        reached = np.zeros_like(free)
        reached[start] = True
        while True:  # flood the free cells from the start
            grown = reached.copy()
            grown[1:] |= reached[:-1]
            grown[:-1] |= reached[1:]
            grown[:, 1:] |= reached[:, :-1]
            grown[:, :-1] |= reached[:, 1:]
            grown &= free
            if grown[goal] or (grown == reached).all():
                break
            reached = grown
        assert grown[goal], f"{name} episode {row} has no way from start to goal"
    assert 2 * config.body_radius_m < PASSAGE_M


def test_pool_blocks_and_single_draws_agree() -> None:
    config = PRESETS["hard"]
    pool = LayoutPool(config, 5)
    for ids in ([0, 1, 2], [255, 256, 257], [700], [3, 90_000, 512, 4], list(range(200, 600)), [10**12]):
        taken, alone = pool.take(np.array(ids)), build_layouts(config, 5, np.array(ids))
        for field in dataclasses.fields(Layouts):
            assert np.array_equal(getattr(taken, field.name), getattr(alone, field.name)), (ids, field.name)


def test_seeds_and_episodes_differ() -> None:
    config = PRESETS["hard"]
    a, b = build_layouts(config, 0, np.arange(50)), build_layouts(config, 1, np.arange(50))
    assert len({tuple(p) for p in np.concatenate([a.start, b.start], axis=1).T.tolist()}) == 100


def test_more_than_fits_is_refused() -> None:
    crowded = dataclasses.replace(PRESETS["hard"], static_obstacles=(90, 90))
    with pytest.raises(SettingsError, match="do not fit"):
        build_layouts(crowded, 0, np.arange(1))
