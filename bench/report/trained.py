"""The committed policies of an algorithm: what their training took, out of their policy.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.report.page.bundles import figure_words
from bench.report.selection import policy_order
from bench.report.store import StoreError
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN
from policy.locate import ZOO

METHODS = {"ppo": "PPO", "a2c": "A2C", "dqn": "DQN", "ddpg": "DDPG", "d4pg": "D4PG"}
NOTES = (
    "From each bundle's policy.json. CPU seconds: of the training's process, judging included, on the machine that "
    "trained it. What each reaches in fp32, fp16 and int8: docs/benchmark.md, and of I and II docs/case-study.md.",
)


def name_of(method: str) -> str:
    """``trained-ppo``."""
    return f"trained-{method}"


def trained_table(method: str, zoo: Path = ZOO) -> Table:
    """Every committed bundle that this algorithm trained.

    Raises:
        StoreError: there is none.
    """
    specs: list[dict[str, Any]] = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(zoo.glob("**/policy.json"))
    ]
    mine = [spec for spec in specs if spec["provenance"].get("algorithm") == method]
    if not mine:
        raise StoreError(f"{zoo} holds no policy that {METHODS[method]} trained.")
    rows = [
        {
            "policy": spec["name"],
            "task": spec["environment"]["id"],
            "hidden layers": " × ".join(map(str, spec["network"]["hidden"])),
            "ended": str(spec["provenance"].get("ended", NOT_KNOWN)),
            "environment steps": figure_words(spec["provenance"].get("steps")),
            "CPU seconds": figure_words(spec["provenance"].get("cpu_s")),
            "seed": figure_words(spec["provenance"].get("seed")),
        }
        for spec in sorted(mine, key=lambda each: policy_order(each["name"]))
    ]
    return Table.of(name_of(method), f"Trained by {METHODS[method]}", rows, NOTES, left=4)
