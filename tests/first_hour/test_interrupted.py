"""Ctrl-C at moments of setup, train, convert and deploy: one clear message, nothing lost, and the same command
typed again goes on to the next moment, and in the end to its end."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.first_hour.conftest import Workshop

pytestmark = pytest.mark.slow
TRAIN = (
    ".venv/bin/quarl train --task cartpole --method dqn --output-path artifacts/mine "
    "--steps 30000 --evaluate-every 2000 --evaluate-episodes 20 --final-episodes 400"
)
BEFORE = f"{TRAIN} --seed 1 --steps 4000"
CONVERT = "make convert BITS=8 POLICY=II"
DEPLOY = "make deploy BITS=8 POLICY=II"


@dataclass(frozen=True)
class Interrupted:
    """A command that is interrupted, and typed again.

    Attributes:
        command: that is typed.
        moments: pattern of the line at which Ctrl-C is pressed, each time that the command is typed again.
        before: command that is typed first, so that there is something to lose.
        wait_s: seconds after that line.
    """

    command: str
    moments: tuple[str, ...]
    before: str = ""
    wait_s: float = 0.0


COMMANDS = {
    "setup": Interrupted("make setup", ("Setting up .venv",), before="rm -f .venv/.installed"),
    "train": Interrupted(TRAIN, ("step .*greedy", r"step 30,\d+: greedy"), before=BEFORE),
    "convert": Interrupted(CONVERT, ("Policy II",)),
    "deploy": Interrupted(DEPLOY, ("Policy II",), before=CONVERT, wait_s=2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_loses_nothing_and_the_command_typed_again_works(workshop: Workshop, name: str) -> None:
    typed = COMMANDS[name]
    workshop.typed("rm -rf artifacts results/results.jsonl")
    assert workshop.typed(typed.before or "true").status == 0
    for moment in typed.moments:
        held = workshop.holdings()
        ended = workshop.typed(typed.command, interrupted_at=moment, wait_s=typed.wait_s)
        print(ended.text)
        ended.is_one_clear_message()
        assert "nterrupt" in ended.text
        # (Of a copy that is converted again the manifest is written again.)
        assert not [
            name for name in workshop.lost_since(held) if not re.fullmatch("artifacts/III?/manifest.json", name)
        ]
    again = workshop.typed(typed.command)
    assert again.status == 0, again.text
