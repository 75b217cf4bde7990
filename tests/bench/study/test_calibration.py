"""The study of calibration: ranges follow the number of observations, and all of them are the artifact's."""

from __future__ import annotations

import argparse

from bench.study import calibration, sweep
from bench.study.experiment import EpisodePlan, Results, in_order
from bench.study.running import StudyCell, measured

NAME = "cartpole-dqn"
ALL = 10**6


def test_one_observation_is_too_few_and_all_are_those_of_the_artifact() -> None:
    grid = calibration.EXPERIMENT.grid(argparse.Namespace(rows=[1, ALL]), NAME)
    assert grid == [{}, {"rows": 1}, {"rows": ALL}]
    plan = EpisodePlan((0,), 20)
    found = [each for one in grid for each in measured("bench.study.calibration", StudyCell(NAME, one, plan))]
    results = Results(calibration.EXPERIMENT, in_order(calibration.EXPERIMENT, found))
    fp32, few, every = (results.row(NAME, one) for one in grid)
    assert few["error"].value > 50.0, "a range that one observation gave cuts nearly everything"
    (swept,) = measured("bench.study.sweep", StudyCell(NAME, {"scheme": "symmetric", "bits": 8}, plan))
    assert every["return"].value == sum(swept["returns"]) / 20, "the order of observations changes no range"
    assert sweep.EXPERIMENT.reference(swept["condition"]) == {} and fp32["return"].value > 400.0
    (table,) = results.tables()
    assert table.headers == ("policy", "preset", "1", "1,000,000")
    assert table.rows[0][:2] == ("cartpole-dqn, n=20", "–")
    assert set(results.figures()) == {"calibration"}
