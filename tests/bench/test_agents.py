"""bench/agents.py: the three agents on the local device, and how its table reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import agents
from bench.tables.agents import AGENTS, rows_of


def test_parts_are_of_the_first_agents() -> None:
    document = {
        "agents": [
            {
                "agent": name,
                "starts": 2,
                "ready_ns": 1,
                "first_ns": first,
                "resident": 1,
                "line_ns": 10,
                "instructions": 5,
            }
            for name, first in zip(agents.FORMS, (800, 400, 10), strict=True)
        ]
    }
    assert [row["first_ns_part"] for row in rows_of(document)] == [1.0, 0.5, 0.0125]
    assert [row["label"] for row in rows_of(document)][2] == "`policy-agent`, no Python"


@pytest.mark.slow
def test_three_agents_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    monkeypatch.setattr("bench.qemu_counter.counting.lines_counted", lambda *_: (300, 200, 10))
    assert agents.main(["--policy", "I", "--starts", "1", "--runs", "20", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["agent"] for each in document["agents"]] == list(agents.FORMS)
    usual, alone, program = (each["resident"] for each in document["agents"])
    assert usual > 2 * alone > 20 * program
    assert "no Python" in str(AGENTS.table(document))
