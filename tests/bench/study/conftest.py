"""Experiments on numbers made up by hand: no bundle is opened, nothing flies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from quarl.bench.study.experiment import Experiment, Results, in_order
from quarl.bench.study.records import Record

Recorded = Callable[..., Record]


@pytest.fixture
def recorded() -> Recorded:
    """A record of one cell and seed, as it is kept."""

    def make(
        condition: Mapping[str, Any],
        returns: Sequence[float],
        subject: str = "cartpole-dqn",
        seed: int = 0,
        successes: Sequence[int] | None = None,
        **measures: Any,
    ) -> Record:
        return {
            "subject": subject,
            "condition": dict(condition),
            "preset": "",
            "seed": seed,
            "returns": list(returns),
            "successes": None if successes is None else list(successes),
            "measures": measures,
            "version": 1,
            "identity": "0" * 64,
            "machine": "a machine",
            "code": "v0.1",
            "date": "2026-11-20",
            "cpu_s": 30.0,
        }

    return make


@pytest.fixture
def results(recorded: Recorded) -> Callable[..., Results]:
    """Results in which a cell loses so many percent of fp32's 100, give or take one from episode to episode."""

    def make(experiment: Experiment, lost: Sequence[tuple[Mapping[str, Any], float, Mapping[str, Any]]]) -> Results:
        records = [recorded({}, [99.0, 100.0, 101.0, 100.0])]
        for condition, percent, measures in lost:
            wobble = (1.0, -1.0, 1.0, -1.0) if percent else (0.0,) * 4
            earned = [f - percent + w for f, w in zip(records[0]["returns"], wobble, strict=True)]
            records.append(recorded(condition, earned, **measures))
        return Results(experiment, in_order(experiment, records))

    return make
