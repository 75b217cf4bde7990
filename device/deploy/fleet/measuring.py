"""Latency, memory and success on every device of a fleet, by the releases' own agents; joined into one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import connect
from quarl.device.deploy.device import open_device
from quarl.device.deploy.errors import ReleaseError
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.journal import Event
from quarl.device.deploy.golden import Progress, Step
from quarl.device.deploy.releases import serving_record
from quarl.policy.spec import Precision, RuntimeName

KINDS = ("latency", "memory", "success")
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Question:
    """What each device is asked.

    Attributes:
        kind: latency, memory or success.
        policy: whose release that serves.
        precision, runtime: of it; None: its first.
        fields: of the agent's request: runs and warmup, or episodes, preset and seed.
    """

    kind: str
    policy: str
    precision: Precision | None
    runtime: RuntimeName | None
    fields: Mapping[str, Any]


def ask(member: Member, question: Question, tell: Progress) -> dict[str, Any]:
    """Return the answer of one device, as an event for the journal.

    Raises:
        HostError: it did not answer.
        KeyError, TypeError, ValueError: it answered with something else.
    """
    tell(Step("connect", 0, 0))
    policy = question.policy
    with connect(member.target, identity=member.identity) as connection:
        with open_device(connection) as session:
            entry = session.read().describe()["policies"].get(policy, {"releases": [], "current": None})
        record = serving_record(entry)
        if record is None:
            raise ReleaseError(
                f"{member.target} does not serve a release of {policy}.",
                f"quarl fleet deploy --policy {policy}",
            )
        precision = question.precision.value if question.precision else record["precisions"][0]
        runtime = question.runtime.value if question.runtime else record["runtimes"][0]
        release = record["release"]
        with AgentSession(connection, policy, release=release, request_timeout=_TIMEOUT_S) as agent:
            device = agent.request("hello")["device"]
            tell(Step("load", 0, 0))
            loaded = agent.request("load", precision=precision, runtime=runtime)["loaded"]
            operation = "episodes" if question.kind == "success" else question.kind

            def progress(done: int, total: int) -> None:
                tell(Step(question.kind, done, total))

            progress(0, 0)
            reply = agent.request(operation, progress=progress, **question.fields)
    return {
        "state": "measured",
        "release": release,
        "digest": record["digest"],
        **{key: loaded[key] for key in ("precision", "runtime", "runtime_version", "sha256")},
        "on": {key: device.get(key) for key in ("model", "machine", "emulated", "virtualised", "transport")},
        "answer": {key: value for key, value in reply.items() if key not in _LEFT_OUT},
    }


_LEFT_OUT = ("ok", "op", "id", "loaded", "samples_ns", "success_bits")


@dataclass(frozen=True)
class Row:
    """A device's figures, those of one release; None: not measured.

    Attributes:
        p50_us, p99_us: percentiles of one decision, microseconds; None also where the runs were too few.
        memory_mb: resident memory of the agent while it decides.
        success: rate, and its 95 % interval (Wilson).
        notes: what makes the figures other than a device's own: throttling, an emulator, loopback.
    """

    device: str
    release: str
    served: str
    p50_us: float | None = None
    p99_us: float | None = None
    memory_mb: float | None = None
    success: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()


def join_answers(found: list[dict[str, Any]], policy: str) -> list[Row]:
    """Return the last answer of each device to each question, those of its newest measured release alone."""
    last: dict[tuple[str, str], Event] = {}
    for event in found:
        if event.get("state") == "measured" and event.get("policy") == policy:
            last[event["device"], event["kind"]] = event
    rows = []
    for device in dict.fromkeys(device for device, _ in last):
        answers = [last[device, kind] for kind in KINDS if (device, kind) in last]
        newest = max(answers, key=lambda event: str(event["time"]))
        same = [answer for answer in answers if _what(answer) == _what(newest)]
        rows.append(_row(device, newest, {answer["kind"]: answer["answer"] for answer in same}, same))
    return rows


def _what(event: Event) -> tuple[Any, ...]:
    return event["release"], event["precision"], event["runtime"]


def _row(device: str, newest: Event, answers: Mapping[str, Any], events: list[Event]) -> Row:
    times = answers.get("latency", {}).get("percentiles", {})
    memory = answers.get("memory", {}).get("memory", {})
    success = answers.get("success", {}).get("success")
    notes: dict[str, None] = {}
    for event in events:
        notes |= dict.fromkeys(event["answer"].get("invalid_reasons", []))
        notes |= {"emulated": None} if event["on"].get("emulated") else {}
        notes |= {"loopback": None} if event["on"].get("transport") == "loopback" else {}
    return Row(
        device,
        newest["release"],
        f"{newest['precision']} in {newest['runtime']}",
        times["p50"] / 1e3 if "p50" in times else None,
        times["p99"] / 1e3 if "p99" in times else None,
        memory["now"] / 1e6 if memory.get("now") else None,
        (success["rate"], *success["interval"]) if success else None,
        tuple(notes),
    )
