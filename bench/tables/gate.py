"""The tables of bench/gate.py: every bundle's int8 artifact, and what becomes of wrong ones."""

from __future__ import annotations

from bench.report.pivot import Pivot
from convert.acceptance import FLOOR

GATE, WRONG = "gate", "gate-wrong"
BUNDLES_WORDS = """\
int8 through the gate
Tolerance: how far an output may be from the reference, on the mean over the golden observations, as a share of what \
it spans: a continuous action's bounds, or all outputs before an argmax. Before: one for all outputs of a policy, \
here of the narrowest. Acts as the policy: of a discrete policy, the golden observations with the same action; of a \
continuous one, the explained share of the variance of the output that has least. Below {{ floor }} an artifact is \
written with --accept only.
"""
WRONG_WORDS = """\
Wrong artifacts
Tried on {{ results.machine }}; code {{ results.code }}.
"""
BUNDLES = Pivot(
    name=GATE,
    words=BUNDLES_WORDS,
    lead={"policy": "{{ policy }}", "outputs": "{{ outputs }} {{ 'logits' if discrete else 'actions' }}"},
    columns=[
        {"golden vectors": "{{ vectors }}", "tolerance before": "{{ '%.2f' | format(100 * before) }} %"},
        {"tolerance, each output": "{{ lowest if lowest == highest else lowest ~ ' … ' ~ highest }} %"},
        {"acts as the policy": "{{ '%.1f' | format(100 * agreement) }} %"},
    ],
    rows=lambda document: [
        {**row, **{name: f"{100 * pick(row['now']):.2f}" for name, pick in (("lowest", min), ("highest", max))}}
        for row in document["bundles"]
    ],
    facts=lambda document: {"floor": f"{FLOOR:.0%}"},
    gathered=False,
)
WRONGS = Pivot(
    name=WRONG,
    words=WRONG_WORDS,
    lead={
        "what is wrong": "{{ what }}",
        "before": "{{ before }}",
        "now": "{{ sentence or 'passes' }}",
    },
    columns=[],
    rows=lambda document: [{**row, "sentence": cut(row["said"] or "")} for row in document["wrong"]],
    gathered=False,
)


def cut(sentence: str) -> str:
    """What a sentence begins with, without the folder that it was tried in."""
    first = sentence.partition(" Nothing was written")[0].split()
    return " ".join(word.rpartition("/")[2] if word.startswith("/") else word for word in first)
