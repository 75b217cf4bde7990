"""Ctrl-C at ten moments of demo, train, convert, deploy and test: one clear message, nothing lost, and the same command
typed again works."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.first_hour.conftest import Workshop

pytestmark = pytest.mark.slow
TRAIN = (
    ".venv/bin/python -m train --task cartpole --method dqn --output-path artifacts/mine "
    "--steps 30000 --evaluate-every 2000 --evaluate-episodes 20 --final-episodes 400"
)
BEFORE = f"{TRAIN} --seed 1 --steps 4000"
CONVERT = "make convert BITS=8 POLICY=II"
DEPLOY = "make deploy BITS=8 POLICY=II"
DEMO = "make demo DEMO_STEPS=60000 DEMO_RUNS='200 --no-baseline' DEMO_EPISODES=20"


@dataclass(frozen=True)
class Moment:
    """When Ctrl-C is pressed.

    Attributes:
        name: of the moment.
        command: that is typed.
        at: pattern of the line at which it is pressed.
        says: pattern of what must be said.
        before: command that is typed first, so that there is something to lose.
        wait_s: seconds after that line.
    """

    name: str
    command: str
    at: str
    says: str
    before: str = ""
    wait_s: float = 0.0


MOMENTS = (
    Moment("demo-sets-up", f"rm -f .venv/.installed; {DEMO}", "Setting up .venv", "Interrupted"),
    Moment("demo-begins-to-train", DEMO, "I ppo: step 0 of 60,000  compiling", "nterrupted"),
    Moment("demo-trains", DEMO, "greedy hard", "nterrupted"),
    Moment("demo-converts", DEMO, "Policy II.*converting", "nterrupted"),
    Moment("demo-measures", DEMO, "flying II int8", "nterrupted"),
    Moment("train", TRAIN, "step .*greedy", "nterrupted", before=BEFORE),
    Moment("train-judges-at-the-end", TRAIN, r"step 30,\d+: greedy", "nterrupted", before=BEFORE),
    Moment("convert", CONVERT, "Policy II", "nterrupted"),
    Moment("deploy", DEPLOY, r"Policy II", "nterrupted", before="make convert BITS=8 POLICY=II", wait_s=2),
    Moment("test", 'make test TESTS="tests/policy/test_ranges.py"', "Fetching|created|gw0", "nterrupt"),
)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
def test_ctrl_c_loses_nothing_and_the_command_typed_again_works(workshop: Workshop, moment: Moment) -> None:
    for made in ("artifacts", "results/results.jsonl"):
        workshop.typed(f"rm -rf {made}")
    if moment.before:
        assert workshop.typed(moment.before).status == 0
    held = workshop.holdings()
    ended = workshop.typed(moment.command, interrupted_at=moment.at, wait_s=moment.wait_s)
    print(ended.text)
    ended.is_one_clear_message()
    assert moment.says in ended.text
    assert workshop.lost_since(held) == []
    again = workshop.typed(moment.command)
    assert again.status == 0, again.text
