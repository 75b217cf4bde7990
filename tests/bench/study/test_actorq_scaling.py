"""Operational bounds of ActorQ against cases worked by hand, and what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from quarl.bench.study import records
from quarl.bench.study.actorq import scaling
from quarl.bench.study.actorq.bounds import Layout, Services, bound
from quarl.bench.study.experiment import Results, in_order

STEPS = Services(step_s=0.6e-3, inference_s=0.3e-3, python_s=0.1e-3)  # 1 ms a step
LAYOUT = Layout(1, rows=400, cores=100, insert_every=10, actor_update_period=20, samples_per_insert=0.0)


def test_actors_that_nothing_holds_step_in_their_step_time() -> None:
    found = bound(STEPS, LAYOUT)
    assert (found.steps_per_s, found.rounds_per_s, found.pace) == (pytest.approx(1000), 0.0, "actors")
    assert bound(STEPS, dataclasses.replace(LAYOUT, n_actors=8)).steps_per_s == pytest.approx(8000)


def test_insertions_and_looks_take_an_actors_own_time() -> None:
    # 20 steps of 1 ms, two insertions of 2 ms, one look of 1 ms and 5 ms of waiting: 30 ms.
    services = dataclasses.replace(STEPS, insert_client_s=2e-3, look_client_s=1e-3, latency_s=5e-3)
    assert bound(services, LAYOUT).steps_per_s == pytest.approx(20 / 0.030)


def test_a_replay_that_is_saturated_sets_the_pace() -> None:
    # 10 steps a call of 4 ms: 2,500 steps/s, which 2.5 actors make.
    services = dataclasses.replace(STEPS, insert_server_s=4e-3)
    found = [bound(services, dataclasses.replace(LAYOUT, n_actors=count)) for count in (2, 5, 10)]
    assert [each.steps_per_s for each in found] == pytest.approx([2000, 2500, 2500])
    assert [each.busy["replay"] for each in found] == pytest.approx([0.8, 1.0, 1.0])
    assert [each.pace for each in found] == ["actors", "replay", "replay"]


def test_a_learner_that_is_behind_holds_the_actors_by_samples_per_insert() -> None:
    # A round of 400 rows in 50 ms of two cores is 25 ms: 40 rounds/s, 16,000 rows/s, with 8 an insertion 2,000 steps/s.
    services = dataclasses.replace(STEPS, learn_s=0.05, learn_width=2.0)
    layout = dataclasses.replace(LAYOUT, samples_per_insert=8.0, n_actors=10)
    held = bound(services, layout)
    assert (held.steps_per_s, held.rounds_per_s, held.pace) == (pytest.approx(2000), pytest.approx(40), "learner")
    # One actor makes 1,000 steps/s: 8,000 rows/s, 20 rounds/s, half of the learner's time.
    alone = bound(services, dataclasses.replace(layout, n_actors=1))
    assert alone.steps_per_s == pytest.approx(1000) and alone.busy["learner"] == pytest.approx(0.5)
    # Twice as fast it takes 4,000 steps/s; without a ratio nobody waits, and it learns all it can.
    assert bound(dataclasses.replace(services, learn_s=0.025), layout).steps_per_s == pytest.approx(4000)
    free = bound(services, dataclasses.replace(layout, samples_per_insert=0.0))
    assert (free.steps_per_s, free.rounds_per_s) == (pytest.approx(10_000), pytest.approx(40))
    assert "learner" not in free.busy
    # Two actors of 1,000 steps/s keep it busy; where an insertion of ten steps takes 10 ms, four of 500 steps/s.
    assert layout.fed_by(services) == pytest.approx(2.0)
    assert layout.fed_by(dataclasses.replace(services, insert_client_s=10e-3)) == pytest.approx(4.0)


def test_a_version_that_takes_long_to_build_holds_nobody() -> None:
    # A version every 1 ms, of which the parameter process builds one in 100 ms: ten a second, and half of its time goes
    # to 500 looks of 1 ms from ten actors.
    services = dataclasses.replace(STEPS, learn_s=1e-3, build_s=0.1, look_server_s=1e-3)
    found = bound(services, dataclasses.replace(LAYOUT, n_actors=10))
    # a look of 1 ms every 20 ms: 21 ms for 20 steps
    assert (found.steps_per_s, found.pace) == (pytest.approx(10 * 20 / 0.021), "actors")
    assert found.busy["parameter process"] == pytest.approx(1.0)


def test_processes_share_cores() -> None:
    # Four actors of 1 ms a step on two cores: 2,000 steps/s together, as two; one alone leaves a core.
    shared = dataclasses.replace(LAYOUT, cores=2)
    found = [bound(STEPS, dataclasses.replace(shared, n_actors=count)) for count in (1, 2, 4)]
    assert [each.steps_per_s for each in found] == pytest.approx([1000, 2000, 2000])
    assert found[2].pace == "cores"
    # With a round of 0.1 s for each 100 steps, a step takes 2 ms of the cores.
    coupled = dataclasses.replace(shared, n_actors=4, samples_per_insert=4.0)
    assert bound(dataclasses.replace(STEPS, learn_s=0.1, learn_width=2.0), coupled).steps_per_s == pytest.approx(1000)


@pytest.fixture
def results(recorded: Callable[..., records.Record]) -> Results:
    """Service times of 8,8 in both widths, and a run at half of what they allow."""
    services = {
        **dataclasses.asdict(dataclasses.replace(STEPS, learn_s=0.05, version_bytes=1e3)), "insert_free_s": 1e-4,
        "sample_free_s": 2e-4, "updates": 4, "rows": 400, "insert_every": 10, "actor_update_period": 20, "cores": 2,
        "load": 0.5,
    }  # fmt: skip
    run: dict[str, Any] = {"updates_per_s": 40.0, "seconds": 9.0, "cores": 2}
    shared: dict[str, Any] = {"subject": "8,8 --set updates=4"}
    found = [
        recorded({}, [1000.0], **shared, **{**services, "step_s": 0.7e-3}),
        recorded({"bits": 8}, [1000.0], **shared, **{**services, "step_s": 0.5e-3}),
        recorded({"bits": 8, "actors": 1, "samples_per_insert": 8.0}, [500.0], **shared, **run),
    ]
    return Results(scaling.EXPERIMENT, in_order(scaling.EXPERIMENT, found))


def test_what_is_made_of_service_times_and_runs(results: Results) -> None:
    services, points = results.tables()
    assert services.headers == ("", "8,8 fp32", "8,8 int8")
    assert services.rows[0] == ("environment step", "600 µs", "600 µs")  # the mean of both
    # 400 rows in 50 ms, 16 an insertion: 500 steps/s, which half an actor of 1 ms a step makes
    assert services.rows[-1] == ("actors that keep the learner busy", "0.5", "0.5")
    assert "a round 4 updates of 100 (8,8)" in services.notes[0]
    # a core for the actor, one for the learner: 1,000 steps/s of 2 ms of work
    assert points.rows == (("8,8", "int8", "8", "1", "500", "1,000", "2.00×", "actors", "40.0", "80.0"),)
    assert "The bound is off by 100 % in steps/s (geometric mean), at most by 100 %." in points.notes


def test_service_times_come_before_the_runs_that_are_asked() -> None:
    grid = scaling.grid(scaling.Options(no_runs=False, samples_per_insert=4.0), "8,8")
    assert grid[:2] == [{}, {"bits": 8}] and len(grid) == 2 + 6
    assert grid[3] == {"bits": 8, "samples_per_insert": 4.0, "actors": 1}
    assert scaling.grid(scaling.Options(no_runs=True, samples_per_insert=None), "8,8") == grid[:2]


def test_services_without_runs_make_no_table_of_runs(results: Results) -> None:
    few = Results(scaling.EXPERIMENT, [each for each in results.found if "actors" not in each["condition"]])
    assert [table.name for table in few.tables()] == ["actorq-scaling-services"]
