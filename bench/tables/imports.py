"""The table of bench/imports.py: what became of public policy files, a line a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quarl.bench.report.pivot import Pivot

WORDS = """\
Public policy files
{{ facts.files }} files of {{ facts.repositories }} public repositories, of {{ facts.kinds }} kinds; \
{{ facts.share }} % of them come in: {{ facts.contract }} as a contract, {{ facts.opaque }} opaque.
Apart: the largest difference of an output from the original's, as a share of what its outputs span, near and far \
from the observations that its normaliser expects. The original is onnxruntime executing the untouched file, \
PyTorch or Stable-Baselines3; of a zip with VecNormalize the steps as they were read; of Keras the ONNX that was \
compared with it.
int8: the least and the largest agreement with fp32 on drawn observations, not on rollouts; deployed: fp32 to the \
local device, which held it to its golden vectors.
Refused by name: {{ facts.refused }}.
Measured on {{ results.machine }}; code {{ results.code }}.
"""


def by_kind(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each kind: how many came in as what, and the worst of them."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in document["policies"]:
        kinds.setdefault(each["kind"], []).append(each)
    return [{"kind": kind, **_summary(rows)} for kind, rows in kinds.items()]


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    inside = [row for row in rows if row["form"] != "refused"]
    agreements = [row["int8"] for row in inside if row.get("int8") is not None]
    options = dict.fromkeys(word for row in inside for word in row["typed"])
    return {
        "files": len(rows),
        **{form: sum(row["form"] == form for row in rows) for form in ("contract", "opaque", "refused")},
        "near": max((row["near"] for row in inside), default=None),
        "far": max((row["far"] for row in inside), default=None),
        "least": min(agreements, default=None),
        "most": max(agreements, default=None),
        "options": ", ".join(options),
        "deployed": "yes" if any(row.get("deployed") for row in inside) else "",
    }


def facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the notes say of all files together."""
    rows = document["policies"]
    forms = [row["form"] for row in rows]
    refused = [row["id"] for row in rows if row["form"] == "refused"]
    return {
        "facts": {
            "files": len(rows),
            "repositories": len({row["repository"] for row in rows}),
            "kinds": len({row["kind"] for row in rows}),
            "share": round(100 * (1 - forms.count("refused") / len(rows))),
            "contract": forms.count("contract"),
            "opaque": forms.count("opaque"),
            "refused": ", ".join(refused) or "none",
        }
    }


IMPORTS = Pivot(
    name="imports",
    words=WORDS,
    lead={"kind": "{{ kind }}", "to type": "{{ options }}"},
    columns=[
        {
            "files": "{{ files }}",
            "contract": "{{ contract }}",
            "opaque": "{{ opaque }}",
            "refused": "{{ refused }}",
            "apart near": "{{ '%.0e' | format(near) if near is not none }}",
            "far": "{{ '%.0e' | format(far) if far is not none }}",
            "int8, %": "{{ '%.0f … %.0f' | format(100 * least, 100 * most) if least is not none }}",
            "deployed": "{{ deployed }}",
        }
    ],
    rows=by_kind,
    facts=facts,
    gathered=False,
)
