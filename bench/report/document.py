"""One measurement is one JSON document: the dataclasses of document.schema.json, checked as one is read or written.

The schema says which keys there are; :func:`check` adds what a schema cannot say: that percentiles rise and that the
number of runs supports them, that an interval holds its rate, that the outcomes add up.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from quarl.device.agent.measure import compute_required_runs
from quarl.policy.errors import QuarlError
from quarl.policy.locate import code_version

SCHEMA_FILE = Path(__file__).with_name("document.schema.json")
SCHEMA_VERSION = 1
MAX_SAMPLES = 200
BLIND, RANDOM = BASELINES = "blind", "random"
"""Name under which the fly-to-the-goal baseline is stored."""


class InvalidDocumentError(QuarlError, ValueError):
    """A document is not one that may be stored; the message names the first place that is wrong."""


class Kind(Enum):
    """The kind of a measurement."""

    LATENCY = "latency"
    MEMORY = "memory"
    SUCCESS = "success"
    COUNTS = "counts"


class Transport(Enum):
    """How requests reached the device."""

    LOOPBACK = "loopback"
    SSH = "ssh"
    LOCAL_PROCESS = "local process"


class Where(Enum):
    """Where the simulator and the policy ran."""

    DEVICE = "device"
    LOOP = "loop"
    HOST = "host"


def new_run() -> str:
    """Return an id that measurements made side by side share."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Artifact:
    """The file that was executed."""

    file: str
    sha256: str
    bytes: int
    execution: str


@dataclass(frozen=True)
class Latency:
    """Times of one decision, in nanoseconds; see document.schema.json for each key."""

    path: str
    warmup: int
    runs: int
    cold_first_ns: float | None
    load_ns: float | None
    percentiles_ns: Mapping[str, float]
    withheld: Mapping[str, str]
    p50_interval_ns: tuple[float, float] | None
    mean_ns: float
    std_ns: float | None
    min_ns: float
    max_ns: float
    block_p50_ns: tuple[float, ...]
    samples_ns: tuple[float, ...]
    timer_overhead_ns: float | None = None
    major_page_faults: int | None = None
    preempted: int | None = None


@dataclass(frozen=True)
class Memory:
    """Resident memory of the agent's process, in bytes; see document.schema.json."""

    baseline: int | None
    before_load: int | None
    after_load: int | None
    running: int | None
    running_peak: int | None
    lifetime_peak: int | None
    clean: bool

    @property
    def resident(self) -> int | None:
        """The number for a table: the peak while serving, or what is resident after it where no peak is known."""
        return max(filter(None, (self.running, self.running_peak)), default=None)

    @property
    def artifact_share(self) -> int | None:
        """What loading the artifact added to the process."""
        if self.before_load is None or self.after_load is None:
            return None
        return max(0, self.after_load - self.before_load)


@dataclass(frozen=True)
class Success:
    """How often it reached the goal; see document.schema.json."""

    where: Where
    preset: str
    settings: Mapping[str, Any]
    task: str | None = dataclasses.field(default=None, kw_only=True)
    simulator: str | None = dataclasses.field(default=None, kw_only=True)
    episodes: int
    seed: int
    successes: int
    rate: float
    low: float
    high: float
    outcomes: str
    causes: Mapping[str, int]
    flight_time_s: float | None
    distance_m: float | None
    energy_j: float | None
    decide_p50_ns: float | None

    def bits(self) -> list[bool]:
        """Return whether each episode, by number, succeeded."""
        packed = base64.b64decode(self.outcomes, validate=True)
        return [bool(packed[k >> 3] >> (7 - (k & 7)) & 1) for k in range(self.episodes)]


@dataclass(frozen=True)
class Counts:
    """What an emulated core executed for one decision, and what a model makes of it; see document.schema.json."""

    warmup: int
    runs: int
    paths: Mapping[str, Mapping[str, int]]
    weights: Mapping[str, Any]
    model: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Report:
    """One measurement; see document.schema.json."""

    kind: Kind
    run: str
    policy: str
    precision: str | None = None
    runtime: str
    runtime_version: str = ""
    threads: int | None = None
    artifact: Artifact | None = None
    target: str
    transport: Transport = Transport.LOCAL_PROCESS
    device: Mapping[str, Any]
    conditions: Mapping[str, Any] | None = None
    valid: bool = True
    invalid_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    latency: Latency | None = None
    memory: Memory | None = None
    success: Success | None = None
    counts: Counts | None = None
    id: str = dataclasses.field(default_factory=new_run)
    time: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    code_version: str = dataclasses.field(default_factory=code_version)

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the artifact; None where none was executed."""
        return self.artifact.sha256 if self.artifact else None

    def to_dict(self) -> dict[str, Any]:
        """Return the document, checked.

        Raises:
            InvalidDocumentError: it is not one that may be stored.
        """
        values = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}
        data: dict[str, Any] = json.loads(json.dumps(values, default=lambda member: member.value))
        if self.counts is None:  # documents of the other kinds are as they were before there was this one
            del data["counts"]
        if self.success is not None and self.success.task is None:  # as they were before tasks had a digest
            del data["success"]["task"]
        if self.success is not None and self.success.simulator is None:  # as they were before there was another one
            del data["success"]["simulator"]
        check(data)
        return data

    def to_json(self) -> str:
        """Return the document on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Read a document, checked.

        Raises:
            InvalidDocumentError: names the first thing that is wrong.
        """
        check(data)
        values = _freeze({key: value for key, value in data.items() if key != "schema_version"})
        values |= {"kind": Kind(data["kind"]), "transport": Transport(data["transport"])}
        if data["success"] is not None:
            values["success"] = {**data["success"], "where": Where(data["success"]["where"])}
        for name, part in _PARTS.items():
            if values.get(name) is not None:
                values[name] = part(**_freeze(values[name]))
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what :meth:`to_json` wrote."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidDocumentError(f"the report is not valid JSON: {error}.") from None
        return cls.from_dict(data)


_PARTS = {"artifact": Artifact, "latency": Latency, "memory": Memory, "success": Success, "counts": Counts}


def _freeze(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def check(data: Any) -> None:
    """Check a document against the schema and for what a schema cannot say.

    Raises:
        InvalidDocumentError: names the first thing that is wrong.
    """
    from jsonschema.exceptions import best_match

    if (error := best_match(_validator().iter_errors(data))) is not None:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        raise InvalidDocumentError(f"report{where}: {error.message}.")
    try:
        json.dumps(data, allow_nan=False)
    except ValueError as error:
        raise InvalidDocumentError(f"the report must hold finite numbers only: {error}.") from None
    for kind in Kind:
        if (data.get(kind.value) is not None) != (data["kind"] == kind.value):
            raise InvalidDocumentError(
                f"report.kind must agree with the parts of the report, got {data['kind']!r} and report.{kind.value}.",
                code="kind_mismatch",
            )
    if data["valid"] == bool(data["invalid_reasons"]):
        raise InvalidDocumentError("report.valid must be true exactly if report.invalid_reasons is empty.")
    if data["latency"] is not None:
        _check_latency(data["latency"])
    if data["success"] is not None:
        _check_success(data["success"])


def _check_latency(latency: Mapping[str, Any]) -> None:
    percentiles = sorted(latency["percentiles_ns"].items(), key=lambda item: _fraction(item[0]))
    for name, _ in percentiles:
        need = compute_required_runs(_fraction(name))
        if latency["runs"] < need:
            raise InvalidDocumentError(
                f"report.latency.runs must be at least {need} for {name}, got {latency['runs']}."
            )
    values = [latency["min_ns"], *(value for _, value in percentiles), latency["max_ns"]]
    if values != sorted(values):
        raise InvalidDocumentError(
            f"report.latency: minimum, percentiles and maximum must be in ascending order, got {values}."
        )
    if len(latency["samples_ns"]) > MAX_SAMPLES or latency["samples_ns"] != sorted(latency["samples_ns"]):
        raise InvalidDocumentError(f"report.latency.samples_ns must be sorted and have at most {MAX_SAMPLES} entries.")


def _check_success(success: Mapping[str, Any]) -> None:
    if not success["low"] <= success["rate"] <= success["high"]:
        raise InvalidDocumentError("report.success: the rate must lie within its interval.")
    if abs(success["rate"] * success["episodes"] - success["successes"]) > 1e-6 * success["episodes"]:
        raise InvalidDocumentError("report.success: rate must be successes / episodes.")
    try:
        packed = base64.b64decode(success["outcomes"], validate=True)
    except ValueError as error:
        raise InvalidDocumentError(f"report.success.outcomes is not base64: {error}.") from None
    padding = len(packed) * 8 - success["episodes"]
    if not 0 <= padding < 8 or sum(byte.bit_count() for byte in packed) != success["successes"]:
        raise InvalidDocumentError("report.success.outcomes must hold one bit per episode and agree with successes.")
    if sum(success["causes"].values()) != success["episodes"]:
        raise InvalidDocumentError("report.success.causes must add up to the number of episodes.")


def _fraction(name: str) -> float:
    try:
        value = float(name.removeprefix("p")) / 100
    except ValueError:
        value = -1.0
    if not name.startswith("p") or not 0 < value < 1:
        raise InvalidDocumentError(f"report.latency.percentiles_ns must have names such as p50 or p99.9, got {name!r}")
    return value
