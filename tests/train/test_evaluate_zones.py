"""``quarl evaluate --zones``: each zone of goal distance judged by itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.curriculum import zone_bounds
from quarl.airlearning_envs.flights import wilson_interval
from quarl.convert.pipeline import convert_all
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import ArtifactFormat, Precision
from quarl.train import evaluate

ZONED = ["--input-path", str(ZOO / "I"), "--zones"]


def report_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert evaluate.main([*options, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_four_zones_of_each_preset_with_the_baseline_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = report_of(capsys, *ZONED, "--episodes", "60")["results"]
    keys = [(row["preset"], row["policy"], row["zone"], tuple(row["goal_distance_m"])) for row in rows]
    assert keys == [
        (preset, policy, zone, bounds)
        for preset in ("hard", "shipped")
        for zone, bounds in enumerate(zone_bounds(PRESETS[preset]), start=1)
        for policy in ("I", "blind")
    ]
    for row in rows:
        assert row["episodes"] == len(row["successes"]) == 60
        assert tuple(row["interval"]) == wilson_interval(sum(row["successes"]), 60)
    hard = [row["success"] for row in rows if row["preset"] == "hard" and row["policy"] == "blind"]
    assert hard[0] > hard[3] + 0.2, "a farther goal has more obstacles before it"
    # The preset's goal distance is uniform, so that its zones are as likely as each other.
    whole = report_of(capsys, "--input-path", str(ZOO / "I"), "--preset", "hard", "--episodes", "240")["results"][1]
    assert whole["interval"][0] - 0.05 < sum(hard) / 4 < whole["interval"][1] + 0.05


def test_late_commands_are_late_in_each_zone(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*ZONED, "--preset", "shipped", "--episodes", "30"]
    one, late = report_of(capsys, *options), report_of(capsys, *options, "--command-latency", "1.5")
    assert list(late["settings"]) == ["latency"], "the zones' distances stand in the rows"
    assert sum(row["success"] for row in late["results"]) < sum(row["success"] for row in one["results"]) - 1.0


def test_an_artifact_is_compared_zone_by_zone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shutil import copytree

    bundle = Bundle.load(copytree(ZOO / "I", tmp_path / "I"))
    convert_all([bundle], [Precision.FP32], [ArtifactFormat.TFLITE])
    options = ["--input-path", str(bundle.path), "--zones", "--preset", "hard", "--episodes", "8"]
    options += ["--precision", "fp32", "--compare"]
    report = report_of(capsys, *options)
    assert [(each["preset"], each["zone"]) for each in report["minus_float"]] == [
        ("hard", zone) for zone in range(1, 5)
    ]
    assert report["minus_float"][1]["goal_distance_m"] == [10.75, 15.5]
    assert [row["policy"] for row in report["results"][:3]] == ["I", "I, float", "blind"]
    capsys.readouterr()
    assert evaluate.main(options) == 0
    table = capsys.readouterr().out
    assert "2: 10.75 – 15.5 m" in table and "8 episodes a zone" in " ".join(table.split())
    assert "fp32 minus float, the same episodes on hard, zone 4: return " in table


@pytest.mark.parametrize(("options", "words"), [
    (["--input-path", str(ZOO / "benchmark" / "cartpole-dqn")], ["--zones", "CartPole-v1", "Leave it"]),
    (["--input-path", str(ZOO / "I"), "--video", "x.mp4"], ["--video", "--zones", "Leave one of them out"]),
    (["--input-path", str(ZOO / "I"), "--preset", "extreme"], ["--preset", "extreme", "shipped"]),
])  # fmt: skip
def test_zones_that_there_are_not(options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([*options, "--zones"]) == 2
    keys = capsys.readouterr().err
    assert "error" in keys and all(word in keys for word in words), keys
