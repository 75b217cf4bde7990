"""A measurement is written only when it is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from quarl.bench.report.document import SCHEMA_FILE, InvalidDocumentError, Report

Make = Callable[..., Report]


def test_each_kind_survives_the_way_through_json(
    latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    for report in (latency_report(), memory_report(), success_report(), success_report("blind", None, artifact=None)):
        assert Report.from_json(report.to_json()) == report


def test_outcomes_are_the_episodes_in_order(success_report: Make) -> None:
    report = success_report(episodes=13)
    assert report.success is not None
    bits = report.success.bits()
    assert len(bits) == 13
    assert sum(bits) == report.success.successes


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place = document
        for name in parents:
            place = place[name]
        place[last] = value

    return apply


def remove(path: str) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place = document
        for name in parents:
            place = place[name]
        del place[last]

    return apply


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (remove("device.emulated"), "report.device: 'emulated' is a required property"),
        (remove("latency"), "report: 'latency' is a required property"),
        (change("colour", "red"), "'colour' was unexpected"),
        (change("schema_version", 2), "report.schema_version: 1 was expected"),
        (change("artifact.sha256", "abc"), "artifact.sha256: 'abc' does not match"),
        (change("artifact.bytes", 0), "artifact.bytes: 0 is less than the minimum of 1"),
        (change("artifact.bytes", True), "artifact.bytes: True is not of type 'integer'"),
        (change("precision", "int9"), "'int9'"),
        (change("transport", "pigeon"), "transport: 'pigeon' is not one of"),
        (change("time", "yesterday"), "time: 'yesterday' does not match"),
        (change("kind", "memory"), "must agree with"),
        (change("valid", False), "be true exactly"),
        (change("invalid_reasons", ["throttled"]), "be true exactly"),
        (change("latency.mean_ns", float("nan")), "hold finite numbers"),
        (change("latency.mean_ns", "1500"), "latency.mean_ns: '1500' is not of type 'number'"),
        (change("latency.percentiles_ns", {"p50": 1500, "p99.9": 1600}), "p99.9"),
        (change("latency.percentiles_ns", {"p50": 1500, "p90": 1400}), "percentiles and maximum"),
        (change("latency.percentiles_ns", {"median": 1500}), "have names such"),
        (change("latency.samples_ns", [3, 2]), "must be sorted"),
    ],
)
def test_what_is_no_latency_is_refused(
    latency_report: Make, harm: Callable[[dict[str, Any]], None], words: str
) -> None:
    document = latency_report(runs=1000).to_dict()
    harm(document)
    with pytest.raises(InvalidDocumentError) as refused:
        Report.from_dict(document)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (change("success.high", 0.1), "the rate"),
        (change("success.successes", 3), "must be successes"),
        (change("success.outcomes", "AAAA"), "agree with successes"),
        (change("success.outcomes", "A"), "not base64"),
        (change("success.causes", {"goal": 1}), "add up"),
        (change("success.preset", "harder"), "success.preset: 'harder'"),
        (change("success.task", "hard"), "success.task: 'hard'"),
    ],
)
def test_what_is_no_success_is_refused(
    success_report: Make, harm: Callable[[dict[str, Any]], None], words: str
) -> None:
    document = success_report().to_dict()
    harm(document)
    with pytest.raises(InvalidDocumentError) as refused:
        Report.from_dict(document)
    assert words in str(refused.value)


def test_a_percentile_is_there_from_the_run_on_that_supports_it(latency_report: Make) -> None:
    enough, short = latency_report(runs=662).latency, latency_report(runs=661).latency
    assert enough is not None and short is not None
    assert "p99" in enough.percentiles_ns
    assert "p99" not in short.percentiles_ns
    assert "662" in short.withheld["p99"]


def schema() -> dict[str, Any]:
    return dict(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def test_the_schema_is_json_schema() -> None:
    assert schema()["$schema"].startswith("https://json-schema.org/")
    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_field_of_the_dataclasses_is_in_the_schema_and_required(
    latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    for report in (latency_report(), memory_report(), success_report()):
        document = report.to_dict()
        assert set(document) == set(schema()["required"])
        part = schema()["properties"][report.kind.value]
        later = {"task", "simulator"} if report.success else set()
        assert set(part["properties"]) - set(part["required"]) == later
        assert set(document[report.kind.value]) == set(part["properties"]) - (later - {"task"})


def test_success_rows_without_task_digest_round_trip(success_report: Make) -> None:
    document = success_report().to_dict()
    del document["success"]["task"]
    old = Report.from_dict(document)
    assert old.success is not None and old.success.task is None
    assert old.to_dict() == document
    document["success"]["task"] = None
    assert Report.from_dict(document) == old
