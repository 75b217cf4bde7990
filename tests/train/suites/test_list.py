"""``quarl tasks``: the paper's cells, their figures and their state."""

import json
from pathlib import Path

import pytest

from quarl.train import list as command
from quarl.train.suites.cells import load_cells


def test_the_papers_figures_are_those_of_its_tables() -> None:
    paper = {(cell.task, cell.method): cell.paper for cell in load_cells()}
    assert paper["breakout", "dqn"] == {"fp32": 214, "fp16": 217, "int8": 78}
    assert paper["qbert", "ppo"] == {"fp32": 15010, "fp16": 15010, "int8": 14425}
    assert paper["bipedalwalker", "ddpg"] == {"fp32": 98, "fp16": 90, "int8": 83}
    assert paper["dm_control,walker_stand", "d4pg"] is None
    # The slides' own means of the relative int8 errors, in %, from the rows as they stand here.
    for method, mean in (("a2c", 2.31), ("dqn", 8.60), ("ppo", 0.54), ("ddpg", 4.93)):
        errors = [
            100 * (figures["fp32"] - figures["int8"]) / figures["fp32"]
            for (_, name), figures in paper.items()
            if name == method and figures is not None
        ]
        assert sum(errors) / len(errors) == pytest.approx(mean, abs=0.1), method


def test_the_list_as_json_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert len(cells) == len(load_cells())
    row = next(cell for cell in cells if (cell["task"], cell["method"]) == ("cartpole", "dqn"))
    assert row["settings"] == "train/settings/classic/CartPole-v1-dqn.json"
    assert row["command"] == "quarl train --task cartpole --method dqn"
    assert (row["installed"], row["target"], row["paper"]["fp32"]) == (True, 500, 500)


def test_the_table_can_be_narrowed_and_gives_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--task", "ALE/Pong-v5"]) == 0
    shown = capsys.readouterr().out
    assert "quarl train --task pong --method ppo" in shown
    assert "breakout" not in shown.split("Words:")[0]
    assert command.main(["--task", "navigation"]) == 2
    assert "--task navigation" in capsys.readouterr().err


@pytest.mark.parametrize(("mean", "summary"), [(500.0, "trained"), (499.0, "below target"), (None, "trained")])
def test_a_bundles_last_judgement_decides_its_state(mean: float | None, summary: str, tmp_path: Path) -> None:
    cell = next(cell for cell in load_cells() if cell.bundle_name == "cartpole-dqn")
    assert command.state_of(cell, tmp_path)["state"] == "not trained"
    folder = tmp_path / "cartpole-dqn"
    folder.mkdir()
    judged = [] if mean is None else [{"preset": "", "mean_return": mean, "episodes": 100}]
    origin = {"judged": judged, "steps": 5, "cpu_s": 1.5}
    (folder / "policy.json").write_text(json.dumps({"provenance": origin}))
    state = command.state_of(cell, tmp_path)
    assert [state[name] for name in ("state", "judged_return", "steps", "cpu_s")] == [summary, mean, 5, 1.5]
