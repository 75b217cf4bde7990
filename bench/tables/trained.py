"""The committed policies of an algorithm: what their training took, out of their policy.json."""

from __future__ import annotations

import json
from pathlib import Path

from quarl.bench.report.pivot import Pivot
from quarl.bench.report.selection import policy_order
from quarl.bench.report.store import StoreError
from quarl.bench.report.tables import Table
from quarl.policy.places import ZOO

METHODS = {
    "ppo": "PPO",
    "recurrent_ppo": "recurrent PPO",
    "a2c": "A2C",
    "dqn": "DQN",
    "ddpg": "DDPG",
    "d4pg": "D4PG",
    "td3": "TD3",
    "sac": "SAC",
}
WORDS = """\
Trained by {}
From each bundle's policy.json. CPU seconds: of the training's process, judging included, on the machine that trained \
it. What each reaches in fp32, fp16 and int8: docs/benchmark.md, of I and II docs/case-study.md, of those that \
remember docs/algorithms/memory.md.
"""
TRAINED = {
    method: Pivot(
        name=f"trained-{method}",
        words=WORDS.format(title),
        lead={
            "policy": "{{ name }}",
            "task": "{{ environment.id }}",
            "hidden layers": "{{ network.hidden | join(' × ') }}"
            "{% for each in network.get('recurrences', []) %} × {{ each.cell }} {{ each.units }}{% endfor %}",
            "ended": "{{ provenance.ended | default('–') }}",
        },
        columns=[
            {"environment steps": "{{ provenance.get('steps') | figure }}"},
            {"CPU seconds": "{{ provenance.get('cpu_s') | figure }}", "seed": "{{ provenance.get('seed') | figure }}"},
        ],
        rows=list,
        gathered=False,
    )
    for method, title in METHODS.items()
}


def trained_table(method: str, zoo: Path = ZOO) -> Table:
    """Every committed bundle that this algorithm trained.

    Raises:
        StoreError: there is none.
    """
    specs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(zoo.glob("**/policy.json"))]
    mine = [spec for spec in specs if spec["provenance"].get("algorithm") == method]
    if not mine:
        raise StoreError(f"{zoo} holds no policy that {METHODS[method]} trained.")
    return TRAINED[method].table(sorted(mine, key=lambda each: policy_order(each["name"])))
