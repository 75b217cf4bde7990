"""docs/fleet.md: its fleet.toml is read, each of its commands is one, its table of states has every state."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from quarl.cli import app
from quarl.device.deploy.fleet.inventory import Fleet
from quarl.device.deploy.fleet.states import State
from quarl.policy.places import PROJECT_ROOT

PAGE = (PROJECT_ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    quarl ([^#\n]*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one(command: str) -> None:
    app().parse_args(shlex.split(command), exit_on_error=False)


def test_the_fleet_file_of_the_page(tmp_path: Path) -> None:
    (text,) = re.findall(r"(?<=## fleet\.toml\n\n)((?:    .*\n|\n)+)", PAGE)
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    fleet = Fleet.load(file)
    assert fleet.groups == ("arena", "lab") and len(fleet.members) == 12 + 1 + 4
    one = next(each for each in fleet.members if each.target == "pi@arena-07")
    assert (one.runtime, one.agent) == ("native", None) and one.labels == {"hall": "3", "camera": "left"}


@pytest.mark.parametrize("state", [each for each in State if each not in (State.BEGUN, State.SWITCHING)])
def test_every_state_in_which_a_rollout_may_leave_a_device_stands_in_the_page(state: State) -> None:
    assert re.search(rf"^\|[^|\n]*\b{state}\b", PAGE, re.MULTILINE)
