"""The simulation of ActorQ against cases worked by hand, and what is made of its answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("simpy")
pytest.importorskip("ray")

from bench.command_line import BenchError
from bench.report.store import StoreError
from bench.report.tables import to_markdown
from bench.study.actorq import points as actorq_points
from bench.study.actorq import scaling as actorq_scaling
from bench.study.actorq import scaling_table as actorq_scaling_table
from bench.study.actorq.layout import Layout, Rates, Services
from bench.study.actorq.processors import SharedCores
from bench.study.actorq.scaling_figure import save_figure
from bench.study.actorq.simulation import curve, simulate
from bench.study.actorq.training import rates_of

STEPS = Services(step_s=0.6e-3, inference_s=0.3e-3, python_s=0.1e-3)  # 1 ms a step
LAYOUT = Layout(
    1, insert_every=10, actor_update_period=20, updates=4, minibatch=100, n_step=1, samples_per_insert=0.0
)  # fmt: skip


def test_one_actor_that_nothing_holds_makes_one_step_in_its_step_time() -> None:
    rates = simulate(STEPS, LAYOUT, 4.0)
    assert rates.steps_per_s == pytest.approx(1000, rel=0.01)
    assert rates.updates_per_s == 0
    assert set(rates.utilisation().values()) == {0.0}
    eight = simulate(STEPS, dataclasses.replace(LAYOUT, n_actors=8), 4.0)
    assert eight.steps_per_s == pytest.approx(8000, rel=0.01)  # a machine each


def test_insertions_and_looks_take_an_actors_own_time() -> None:
    # 20 steps of 1 ms, two insertions of 2 ms, one look of 1 ms and 5 ms of waiting: 30 ms.
    services = dataclasses.replace(STEPS, insert_client_s=2e-3, look_client_s=1e-3, latency_s=5e-3)
    assert simulate(services, LAYOUT, 12.0).steps_per_s == pytest.approx(20 / 0.030, rel=0.01)


def test_a_replay_that_is_saturated_sets_the_pace() -> None:
    # 10 steps a call of 4 ms: 2,500 steps/s, which 2.5 actors make.
    services = dataclasses.replace(STEPS, insert_server_s=4e-3)
    found = curve(services, LAYOUT, (2, 5, 10), 40.0, 1e9)
    assert [rate.steps_per_s for rate in found] == pytest.approx([2000, 2500, 2500], rel=0.02)
    assert [rate.replay for rate in found] == pytest.approx([0.8, 1.0, 1.0], abs=0.01)
    halves = simulate(services, dataclasses.replace(LAYOUT, n_actors=10, replay_shards=2), 4.0)
    assert halves.steps_per_s == pytest.approx(5000, rel=0.02)


def test_a_learner_that_is_behind_holds_the_actors_by_samples_per_insert() -> None:
    # 4 updates of 100 rows in 50 ms of two cores are 25 ms: 160 updates/s, 16,000 rows/s, with 8 an insertion 2,000/s.
    services = dataclasses.replace(STEPS, learn_s=0.05, learn_width=2.0)
    layout = dataclasses.replace(LAYOUT, samples_per_insert=8.0)
    bound = simulate(services, dataclasses.replace(layout, n_actors=10), 4.0)
    assert bound.updates_per_s == pytest.approx(160, rel=0.01)
    assert bound.steps_per_s == pytest.approx(2000, rel=0.02)
    assert bound.learner == pytest.approx(1.0, abs=0.01)
    # One actor makes 1,000 steps/s: 8,000 rows/s, 80 updates/s, half of the learner's time.
    alone = simulate(services, layout, 10.0)
    assert alone.steps_per_s == pytest.approx(1000, rel=0.01)
    assert alone.updates_per_s == pytest.approx(80, rel=0.03)
    assert alone.learner == pytest.approx(0.5, abs=0.02)
    # Twice as fast it would be bound by the actors at 4,000 steps/s; without a ratio nobody waits.
    faster = simulate(services, dataclasses.replace(layout, n_actors=10, learner_speed=2.0), 4.0)
    assert faster.updates_per_s == pytest.approx(320, rel=0.01)
    free = simulate(services, dataclasses.replace(layout, n_actors=10, samples_per_insert=0.0), 2.0)
    assert free.steps_per_s == pytest.approx(10_000, rel=0.01)
    assert free.updates_per_s == pytest.approx(160, rel=0.01)


def test_a_link_that_is_saturated_makes_the_actors_wait() -> None:
    # Versions follow each other every 1 ms, so that every look finds a new one. 20 ms of steps and a copy of 10 ms: one
    # actor asks every 30 ms, three fill the link; six take turns of 60 ms each, 20 steps a turn.
    services = dataclasses.replace(STEPS, learn_s=1e-3, version_bytes=1e6)
    layout = dataclasses.replace(LAYOUT, samples_per_insert=0.0, link_bytes_per_s=100e6)
    alone = simulate(services, layout, 3.0)
    assert alone.steps_per_s == pytest.approx(20 / 0.030, rel=0.02)
    assert alone.link == pytest.approx(1 / 3, abs=0.02)
    six = simulate(services, dataclasses.replace(layout, n_actors=6), 3.0)
    assert six.link == pytest.approx(1.0, abs=0.01)
    assert six.steps_per_s == pytest.approx(6 * 20 / 0.060, rel=0.03)
    assert six.versions_per_s == pytest.approx(100, rel=0.02)
    quarter = simulate(dataclasses.replace(services, version_bytes=0.25e6), layout, 3.0)  # as int8 is of fp32
    assert quarter.steps_per_s == pytest.approx(20 / 0.0225, rel=0.02)


def test_actors_of_one_machine_share_a_copy() -> None:
    # A version every 0.2 s and a copy of 2 ms to each machine: 8 machines take 16 ms of 200, one takes 2.
    services = dataclasses.replace(STEPS, learn_s=0.2, version_bytes=1e6)
    layout = dataclasses.replace(LAYOUT, n_actors=8, samples_per_insert=0.0, link_bytes_per_s=500e6)
    apart = simulate(services, layout, 12.0)
    together = simulate(services, dataclasses.replace(layout, actors_per_machine=8), 12.0)
    assert apart.versions_per_s == pytest.approx(8 / 0.2, rel=0.05)
    assert together.versions_per_s == pytest.approx(1 / 0.2, rel=0.05)
    assert apart.link == pytest.approx(0.08, abs=0.005)
    assert together.link == pytest.approx(0.01, abs=0.002)


def test_two_cores_are_shared_by_four_processes() -> None:
    # Four actors of 1 ms a step on two cores: 2,000 steps/s together; two have a core each.
    cores = dataclasses.replace(LAYOUT, cores=2)
    assert simulate(STEPS, dataclasses.replace(cores, n_actors=4), 4.0).steps_per_s == pytest.approx(2000, rel=0.01)
    assert simulate(STEPS, dataclasses.replace(cores, n_actors=2), 4.0).steps_per_s == pytest.approx(2000, rel=0.01)
    assert simulate(STEPS, cores, 4.0).steps_per_s == pytest.approx(1000, rel=0.01)
    # Three actors and a learner of one core: half a core each, 500 steps/s each, and the round takes twice its 0.1 s.
    services = dataclasses.replace(STEPS, learn_s=0.1)
    found = simulate(services, dataclasses.replace(cores, n_actors=3, samples_per_insert=0.0), 40.0)
    assert found.steps_per_s == pytest.approx(1500, rel=0.01)
    assert found.updates_per_s == pytest.approx(4 / 0.2, rel=0.02)


def test_cores_go_to_whoever_can_use_them() -> None:
    import simpy

    env = simpy.Environment()
    cores = SharedCores(env, 2)
    ends: dict[str, float] = {}

    def job(name: str, seconds: float, width: float) -> Any:
        yield from cores.work(seconds, width)
        ends[name] = env.now

    # A learner of width 2 (3 s of work) beside one actor (2 s): one core each. At 2 s the actor is done, 1 s of work is
    # left and has both cores: 2.5 s.
    env.process(job("learner", 3.0, 2.0))
    env.process(job("actor", 2.0, 1.0))
    env.run()
    assert ends == pytest.approx({"actor": 2.0, "learner": 2.5})
    # Alone, width 1 leaves the second core idle.
    env.process(job("alone", 1.0, 1.0))
    env.run()
    assert ends["alone"] == pytest.approx(3.5)


def test_rates_of_a_learning_curve_by_hand() -> None:
    rows = [
        {"step": 0, "updates": 0, "wall_s": 1.0},
        {"step": 900, "updates": 16, "wall_s": 9.0},  # the compiled round
        {"step": 1000, "updates": 32, "wall_s": 10.0},
        {"step": 1300, "updates": 64, "wall_s": 12.0},
        {"step": 1600, "updates": 72, "wall_s": 14.0},
        {"step": 1700, "updates": 80, "wall_s": 99.0},  # after it was judged
    ]
    assert rates_of(rows, 16, "") == pytest.approx({"steps_per_s": 600 / 4, "updates_per_s": 40 / 4, "seconds": 4.0})
    with pytest.raises(BenchError, match="too soon"):
        rates_of(rows[:4], 16, "again")


def test_what_saturates_first() -> None:
    def rate(count: int, learner: float, replay: float, link: float) -> Rates:
        return Rates(count, 1.0, 1.0, learner, replay, 0.1, link, 1.0)

    rates = [rate(1, 1.0, 0.2, 0.1), rate(2, 1.0, 0.4, 0.96), rate(4, 1.0, 0.99, 1.0)]
    assert actorq_scaling_table.first_saturated(rates) == ("learner", "1")
    assert actorq_scaling_table.first_saturated(rates, ("learner",)) == ("broadcast", "2")
    assert actorq_scaling_table.first_saturated(rates[:1], ("learner",)) == ("none", "–")


def document() -> dict[str, Any]:
    services = dataclasses.replace(STEPS, learn_s=0.05, version_bytes=1e3)
    found = {
        "kind": actorq_scaling.KIND, "format_version": actorq_scaling.FORMAT_VERSION, "machine": "a machine",
        "cores": 2, "load": 0.5, "time": "2026-01-02T03:04:05Z", "code": "abc", "command": "python -m …",
        "setup": {
            "task": "dm_control,cartpole_balance", "model": "8,8", "method": "d4pg", "updates": 4, "batch_size": 100,
            "insert_every": 10, "actor_update_period": 20, "learning_starts": 100,
        },
        "n_step": 1, "engine_free": {"insert_s": 1e-4, "sample_s": 2e-4},
        "services": {"32": dataclasses.asdict(services), "8": dataclasses.asdict(services)},
        "points": [{
            "n_actors": 1, "bits": 8, "samples_per_insert": 8.0, "steps_per_s": 500.0, "updates_per_s": 40.0,
            "seconds": 9.0, "breakdown": {},
        }],
    }  # fmt: skip
    return json.loads(json.dumps(found))


def test_a_document_is_simulated_kept_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import Namespace

    monkeypatch.setattr(actorq_scaling, "ACTORS", (1, 4))
    monkeypatch.setattr(actorq_scaling, "ROUNDS", 4.0)
    monkeypatch.setattr(actorq_points, "POINT_ROUNDS", 40.0)
    monkeypatch.setattr(actorq_scaling, "MOST_STEPS", 20_000.0)
    asked = Namespace(replay_shards=1, actors_per_machine=1, link_mbit_s=1000.0)
    whole = actorq_scaling.with_curves(document(), asked)
    simulated = whole["points"][0]["simulated"]
    assert simulated["steps_per_s"] == pytest.approx(1000, rel=0.02)  # a core for the actor, one for the learner
    with pytest.raises(StoreError, match="nothing is kept"):
        actorq_scaling.stored(tmp_path)
    path = actorq_scaling.keep(whole, tmp_path)
    assert path.name == "scaling-cartpole_balance-8-8.json"
    kept = actorq_scaling.stored(tmp_path)
    assert [len(each["curves"]) for each in kept] == [6]
    services, points, limits, curves = actorq_scaling_table.tables(kept)
    assert "500" in points.rows[0]
    assert points.rows[0][6].startswith("2.0")  # simulated through real
    assert limits.rows[0][:3] == ("8,8", "16 samples per insertion", "fp32")
    assert limits.rows[0][3:5] == ("learner", "1")  # 400 rows in 50 ms, 16 an insertion: 500 steps/s at most
    assert curves.rows[-1][4] == "–"  # two actors were not simulated
    assert all(to_markdown(table) for table in (services, points, limits, curves))
    drawn = save_figure(kept, tmp_path)
    assert [file.suffix for file in drawn] == [".png", ".svg"]
    path.write_text('{"kind": "other", "format_version": 1}')
    with pytest.raises(StoreError, match="not"):
        actorq_scaling.stored(tmp_path)
