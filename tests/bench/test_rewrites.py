"""bench/rewrites.py: both int8s are compared on other observations, and what was rewritten since is remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import command_line, rewrites
from bench.report import store
from bench.tables.registry import TABLES, Kept
from convert.rewrite import rewrite
from policy import locate
from policy.bundle import Bundle
from policy.bundle_writer import write_bundle
from policy.spec import ContinuousHead, Normaliser, ObservationField, PolicySpec, Squash, weight_shapes
from tests.policy.small_bundle import SPEC

RANDOM = np.random.default_rng(5)
STEERING = replace(
    SPEC,
    name="steering",
    observation=(ObservationField("state", (3,), "1"),),
    normaliser=Normaliser((0.0,) * 3, (1.0,) * 3, 5.0),
    head=ContinuousHead((-1.0, -1.0), (1.0, 1.0), Squash.TANH),
)
VALUES = replace(SPEC, name="values", normaliser=Normaliser((0.1,) * 3, (1.0,) * 3))


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def written(spec: PolicySpec, common: float) -> None:
        shapes = weight_shapes(spec)
        weights = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        weights["dense_0/kernel"][0] *= 20.0  # the narrow element decides
        if common:
            weights["head/kernel"] = 0.02 * weights["head/kernel"] + np.float32(common)
        rows = (RANDOM.normal(size=(260, 3)) * (0.05, 0.5, 1.5)).astype(np.float32)
        write_bundle(tmp_path / "zoo" / spec.name, spec, weights, rows[:200], rows[200:])

    written(VALUES, 4.0)
    written(STEERING, 0.0)
    monkeypatch.setattr(locate, "ZOO", tmp_path / "zoo")
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    return tmp_path / "zoo"


def test_both_are_compared_and_kept(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rewrites.main(["--json", "--keep"]) == command_line.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    steering, values = document["bundles"]
    assert (
        (steering["rewrites"], values["rewrites"])
        == (["normalised"], ["centred"])
        == (steering["fits"], values["fits"])
    )
    assert steering["in_common"] is None and values["in_common"] > 0.9
    assert values["held_out"]["rows"] == 200 and values["golden"]["rows"] >= 60
    assert values["held_out"]["fp32_apart"] == 0.0 and steering["held_out"]["fp32_apart"] < 1e-5
    for each in (steering, values):
        found = each["held_out"]
        gain, low, high = found["gain"]
        assert gain == pytest.approx(found["after"]["acts_as_fp32"] - found["before"]["acts_as_fp32"])
        assert 0 < low < gain < high
    table, _ = TABLES["rewrites"].make(Kept())
    assert [row[:3] for row in table.rows] == [("steering", "normalised", "yes"), ("values", "centred", "yes")]


def test_a_row_stays_when_its_bundle_is_rewritten(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rewrites.main(["--json", "--keep"]) == command_line.EXIT_OK
    before = json.loads(capsys.readouterr().out)["bundles"]
    rewrite(Bundle.load(zoo / "values"))
    for _ in range(2):
        assert rewrites.main(["--json", "--keep"]) == command_line.EXIT_OK
        steering, values = json.loads(capsys.readouterr().out)["bundles"]
        assert steering == before[0] and values == {**before[1], "since": True}
    table, _ = TABLES["rewrites"].make(Kept())
    assert any("Rewritten in zoo/ since then: values" in note for note in table.notes)
    assert rewrites.main(["--policy", "values", "--keep"]) == command_line.EXIT_FAILED
    assert rewrites.main(["--policy", "absent"]) == command_line.EXIT_USAGE
