"""The learner against a replay and a parameter server made by hand: what it learns from, hands over and watches."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from quarl.policy.reference import check_weights, forward_float, normalise
from quarl.train.actorq import learner as module
from quarl.train.actorq.learner import CALIBRATION_ROWS, LearnerLoop
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import Columns, Reply
from quarl.train.actorq.wire import Pushed
from quarl.train.runs.checkpoint import Checkpoint, CheckpointError
from quarl.train.runs.run import DivergenceError
from tests.train.actorq.small_plans import make_plan, make_rows

RECENT = make_rows(10, first=100)  # as many as learning_starts: the statistics of the observations


def statistics(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale; the first element, CartPole's position, is to be seen up to its bounds ±4.8."""
    mean, scale = observations.mean(axis=0), observations.std(axis=0)
    scale[0] = max((mean[0] + 4.8) / 5, scale[0])
    return mean, scale


class World:
    """Gives so many rounds of minibatches, then says that the run is over; remembers what it is told."""

    def __init__(self, plan: Plan, rounds: int = 1, change: Callable[[Columns], Columns] = dict) -> None:
        self.plan, self.rounds, self.change = plan, rounds, change
        self.asked: list[int] = []
        self.pushed: list[Pushed] = []
        self.told: list[tuple[np.ndarray, np.ndarray]] = []
        self.given: list[Columns] = []

    def loop(self, checkpoint: Checkpoint | None = None) -> LearnerLoop:
        return LearnerLoop(self.plan, self.sample, self.recent, self.pushed.append, self.prioritise, checkpoint)

    def sample(self, updates: int) -> tuple[Columns | None, Reply]:
        self.asked.append(updates)
        if len(self.asked) > self.rounds:
            return None, Reply(1000, updates, True)
        rows = make_rows(8, first=8 * len(self.asked))
        columns = {name: column.reshape(2, 4, *column.shape[1:]) for name, column in rows.items()}
        columns = {name: column for name, column in columns.items() if name not in ("greedy", "updates")}
        columns = self.change({**columns, "rows": np.arange(8).reshape(2, 4)})
        self.given.append({name: column.copy() for name, column in columns.items()})
        return columns, Reply(100 * len(self.asked), updates, False)

    def recent(self, count: int) -> Columns:
        return {name: RECENT[name][-count:] for name in ("observation", "greedy", "updates")}

    def prioritise(self, rows: np.ndarray, errors: np.ndarray) -> None:
        self.told.append((rows, errors))


def assert_same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_version_is_published_before_and_after_every_round() -> None:
    world = World(make_plan(), rounds=3)
    facts = world.loop().run()
    assert world.asked == [0, 2, 4, 6]  # updates of a round: 2
    assert [pushed.updates for pushed in world.pushed] == [0, 2, 4, 6]
    assert (facts["updates"], facts["pushed"]) == (6, 6)
    assert world.told == []  # drawn uniformly: nobody waits for errors
    kernels = [pushed.weights["dense_0/kernel"] for pushed in world.pushed]
    assert all((one != other).any() for one, other in pairwise(kernels))
    apart = World(make_plan(publish_every=5), rounds=7)
    apart.loop().run()
    assert [pushed.updates for pushed in apart.pushed] == [0, 6, 12]


def test_the_first_statistics_travel_with_the_policy() -> None:
    world, first = World(make_plan()), statistics(RECENT["observation"])
    world.loop().run()
    for pushed in world.pushed:
        spec = pushed.spec
        check_weights(spec, pushed.weights)
        for found, wanted in zip((spec.normaliser.mean, spec.normaliser.scale), first, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_array_equal(pushed.calibration, world.given[0]["observation"].reshape(8, 4))  # raw
        assert len(pushed.calibration) <= CALIBRATION_ROWS


@pytest.mark.parametrize(("steps", "rounds"), [(2000, 3), (20, 1)], ids=["a quarter of the steps", "learning_starts"])
def test_the_statistics_of_observations_without_bounds_go_on_for_a_while(steps: int, rounds: int) -> None:
    world = World(make_plan(steps), rounds=3)
    facts = world.loop().run()
    seen = [RECENT["observation"], *(given["observation"].reshape(8, 4) for given in world.given[1:rounds])]
    mean, scale = statistics(np.concatenate(seen))
    spec = world.pushed[-1].spec
    np.testing.assert_allclose(spec.normaliser.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(spec.normaliser.scale, scale, rtol=1e-4)
    assert 0.0 <= facts["metrics"]["observations_clipped"] <= 1.0


def test_int8_ranges_come_from_the_newest_observations() -> None:
    world = World(make_plan(), rounds=3)
    world.loop().run()
    rounds = [given["observation"].reshape(8, 4) for given in world.given]
    np.testing.assert_array_equal(world.pushed[-1].calibration, np.concatenate(rounds[2::-1]))


def learned_from(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Columns, dict[str, Any]]:
    """What the algorithm is given in the only round, and the loop's facts; nothing is learned."""
    loop, seen = world.loop(), []

    def learn(columns: Columns, share: float) -> tuple[np.ndarray, None]:
        seen.append(columns)
        assert share == 100 / 1000
        return np.zeros((2, 3), np.float32), None

    monkeypatch.setattr(loop._algorithm, "learn", learn)
    facts = loop.run()
    return seen[0], facts


def test_minibatches_are_normalised_and_rewards_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(make_plan(algorithm={"reward_scale": 0.25}))
    seen, facts = learned_from(world, monkeypatch)
    mean, scale = statistics(RECENT["observation"])
    for name in ("observation", "next_observation"):
        expected = np.clip((world.given[0][name] - mean) / scale, -5, 5)
        np.testing.assert_allclose(seen[name], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen["return"], 0.25 * world.given[0]["return"])
    for name in ("action", "discount"):
        np.testing.assert_array_equal(seen[name], world.given[0][name])
    assert "weight" not in seen and facts["cut_returns"] is None


def with_following(columns: Columns, weight: np.ndarray | None = None) -> Columns:
    """Two later steps for each of the 2 · 4 rows: some of the actor's choice, some of chance or not there."""
    generator = np.random.default_rng(7)
    following = {
        "following": generator.normal(size=(2, 4, 2, 4)).astype(np.float32),
        "following_greedy": generator.integers(-1, 2, size=(2, 4, 2)).astype(np.int32),
        "following_return": generator.normal(size=(2, 4, 2)).astype(np.float32),
    }
    return {**columns, **following, **({} if weight is None else {"weight": weight})}


@pytest.mark.parametrize("weight", [None, np.linspace(0.1, 1.0, 8, dtype=np.float32).reshape(2, 4)])
def test_returns_end_where_the_learner_differs(weight: np.ndarray | None, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = {"n_step": 3, "discount": 0.9, "reward_scale": 0.5}
    world = World(make_plan(algorithm=scaled), change=lambda columns: with_following(columns, weight))
    seen, facts = learned_from(world, monkeypatch)
    # The same with the reference pass of policy/, row by row.
    spec, weights, given = world.pushed[0].spec, world.pushed[0].weights, world.given[0]
    ends = []
    for row in np.ndindex(2, 4):
        total, factor, following = (given[name][row] for name in ("return", "discount", "next_observation"))
        end = 3
        for place in (1, 0):
            state, theirs = given["following"][row][place], given["following_greedy"][row][place]
            if theirs >= 0 and theirs != forward_float(spec, weights, state[None])[0].argmax():
                total, factor, following, end = given["following_return"][row][place], 0.9 ** (place + 1), state, place
        ends.append(end)
        np.testing.assert_allclose(seen["return"][row], 0.5 * total, rtol=1e-6)
        np.testing.assert_allclose(seen["discount"][row], factor, rtol=1e-6)
        np.testing.assert_allclose(
            seen["next_observation"][row], normalise(spec.normaliser, following[None])[0], rtol=1e-5, atol=1e-6
        )
    assert set(ends) == {0, 1, 3}, "nothing is compared"
    assert facts["cut_returns"] == pytest.approx(np.mean(np.array(ends) < 3))
    if weight is None:
        assert "weight" not in seen  # every row counts in full
    else:
        np.testing.assert_array_equal(seen["weight"], weight)


def test_with_priorities_every_drawn_rows_error_goes_back() -> None:
    def weighted(columns: Columns) -> Columns:
        return {**columns, "weight": np.ones((2, 4), np.float32)}

    world = World(make_plan(priority_exponent=0.6), rounds=2, change=weighted)
    world.loop().run()
    assert len(world.told) == 2
    for rows, errors in world.told:
        np.testing.assert_array_equal(rows, np.arange(8).reshape(2, 4))
        assert errors.shape == (2, 4)
        assert (errors != 0).all()


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    def poisoned(columns: Columns) -> Columns:
        columns["return"][1, 2] = np.nan
        return columns

    with pytest.raises(DivergenceError, match="loss became nan at step 100, in update 2"):
        World(make_plan(), change=poisoned).loop().run()


def test_a_learner_goes_on_where_the_other_was() -> None:
    first = World(make_plan(), rounds=2)
    loop = first.loop()
    loop.run()
    checkpoint = loop.state()
    second = World(make_plan(), rounds=1)
    second.loop(checkpoint).run()
    # It hands over at once, before it has drawn anything, so that actors need not wait for the replay.
    assert [pushed.updates for pushed in second.pushed] == [4, 6]
    assert second.asked == [4, 6]
    last, again = first.pushed[-1], second.pushed[0]
    assert again.spec == last.spec
    assert_same(again.weights, last.weights)
    np.testing.assert_array_equal(again.calibration, last.calibration)
    # And it learns the third round as the other would have.
    straight = World(make_plan(), rounds=3)
    straight.loop().run()
    third = World(make_plan(), rounds=3)
    third.asked = [0, 0]  # its first minibatches are the third ones
    third.loop(checkpoint).run()
    assert_same(third.pushed[-1].weights, straight.pushed[-1].weights)


def test_arrays_of_another_network_are_refused() -> None:
    loop = World(make_plan()).loop()
    loop.run()
    kept = loop.state()
    World(make_plan()).loop(kept)
    for name, other in (("target/head/kernel", np.zeros(2)), ("target/more", np.zeros(3))):
        with pytest.raises(CheckpointError, match=name):
            World(make_plan()).loop(Checkpoint({**kept.arrays, name: other}, kept.facts))


def test_the_distance_to_the_actors_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.0)
    world = World(make_plan())
    loop = world.loop()
    facts = loop.run()
    spec, weights = world.pushed[-1].spec, world.pushed[-1].weights
    chosen = forward_float(spec, weights, RECENT["observation"]).argmax(axis=1)
    # Rows of a policy of 0 updates, that chose 0 throughout; the learner has made 2.
    assert facts["mismatch"] == {"disagreement": pytest.approx(chosen.mean()), "staleness_updates": 2.0}
    monkeypatch.setitem(RECENT, "updates", np.full(10, -1))  # rows without a policy
    assert World(make_plan()).loop().run()["mismatch"] == {}


def test_the_same_seed_begins_with_the_same_policy_and_another_does_not() -> None:
    worlds = [World(make_plan(seed=seed)) for seed in (1, 1, 2)]
    for world in worlds:
        world.loop().run()
    first, same, other = (world.pushed[0].weights for world in worlds)
    assert_same(first, same)
    assert any((first[name] != other[name]).any() for name in first)
