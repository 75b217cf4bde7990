"""policy.pack: all that the static agent reads, made of a verified bundle, as device/engine/agent/pack.h lays it out.

What is text in its replies and the same each time is written here, with what the agent in Python uses; so the program
in C parses no manifest and knows no field's name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quarl.device import engine as native
from quarl.device.agent.operations import help_reply
from quarl.device.agent.server import describe_policy
from quarl.device.agent.serving import describe_loaded
from quarl.policy.bundle import Bundle
from quarl.policy.errors import PolicyError
from quarl.policy.spec import ArtifactFormat, ContinuousHead, Precision, RuntimeName

MAGIC, VERSION, LINE = b"QPAGENT\0", 3, 64
TIMED_LINES = 64
"""Golden observations that ``latency`` with the path ``decide`` is timed on."""
WITHOUT = ("episodes",)
"""Operations that the static agent does not have."""


class PackError(PolicyError):
    """A policy that the static agent cannot serve."""


def pack_artifact(bundle: Bundle, precision: Precision) -> bytes:
    """Return the pack of one artifact.

    Args:
        bundle: as loaded on the host; has the precision's native artifact.
        precision: of the artifact.

    Raises:
        BundleError: the bundle has no such artifact.
        PackError: the native engine was never held to the reference with it, or it is recurrent.
    """
    entry = bundle.artifact(precision, ArtifactFormat.NATIVE)
    if RuntimeName.NATIVE not in entry.runtimes:
        raise PackError(
            f"{entry.file} was not verified in the native engine.", f"Type: quarl convert --policy {bundle.spec.name}"
        )
    if bundle.spec.state_size:
        raise PackError(
            f"policy {bundle.spec.name!r} is recurrent, but the agent without Python keeps no state.",
            "Leave AGENT=native (--agent native) out: the Python agent keeps the state, in the native engine too.",
        )
    spec, golden, expected = bundle.spec, bundle.golden(), bundle.read_expected(entry)
    rows = len(golden.observations)
    requests = [
        json.dumps({"op": "act", "observation": row.tolist(), "outputs": False}).encode() + b"\n"
        for row in golden.observations[:TIMED_LINES]
    ]
    choices = () if isinstance(spec.head, ContinuousHead) else spec.head.numbers
    numbers = (rows, spec.observation_size, spec.output_size, len(choices), len(requests))
    fields = "".join(f"{item.size} {item.name}\n" for item in spec.observation)
    wanted = f"{spec.observation_size} numbers: " + ", ".join(f"{item.name} ({item.size})" for item in spec.observation)
    bounds = (spec.head.low, spec.head.high) if isinstance(spec.head, ContinuousHead) and spec.is_bounded else ()
    decisions = golden.actions.astype("<i4" if spec.is_discrete else "<f4")
    sections = (
        bundle.artifact_data(entry),
        bytes.fromhex(entry.record.sha256),
        struct.pack("<5I", *numbers),
        entry.precision.value.encode(),
        spec.name.encode(),
        _json(describe_loaded(spec, entry, RuntimeName.NATIVE, f"{native.VERSION}, without Python", 1)),
        _json(describe_policy(Path("policy.pack"), spec, [entry])),
        _json(_help())[1:-1],
        wanted.encode(),
        fields.encode(),
        golden.observations.astype("<f4").tobytes(),
        expected.outputs.astype("<f4").tobytes(),
        expected.tolerance.astype("<f4").tobytes(),
        decisions.tobytes(),
        np.array(entry.output_step or [0.0] * spec.output_size, "<f4").tobytes(),
        b"".join(requests),
        struct.pack("<Q", round(1e9 * spec.control_period_s)),
        np.array(spec.fallback, "<f4").tobytes(),
        np.array(bounds, "<f8").tobytes(),
        np.array([(len(item), item.start) for item in choices], "<i4").tobytes(),
    )
    head = struct.calcsize(f"<8sII{2 * len(sections)}I")
    table, body, offset = [], b"", -head % LINE + head
    for data in sections:
        table += [offset, len(data)]
        filled = data + bytes(-len(data) % LINE)
        body, offset = body + filled, offset + len(filled)
    return struct.pack(f"<8sII{len(table)}I", MAGIC, VERSION, offset, *table).ljust(-head % LINE + head, b"\0") + body


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _help() -> dict[str, Any]:
    reply = help_reply()
    return {**reply, "ops": {name: op for name, op in reply["ops"].items() if name not in WITHOUT}}
