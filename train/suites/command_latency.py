"""``--command-latency``: how late commands take effect in training, as a setting of the navigation task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.latency import CommandLatency, DrawnFor, LatencyKind
from quarl.train.suites.errors import TaskError

ALLOWED = (
    "type seconds (0.2), the lowest and highest (0.05,0.4), or the file of a device's report (quarl bench latency "
    "--policy I --path decide --json > report.json)"
)


def read_command_latency(text: str) -> CommandLatency:
    """Return the latency of an option's value.

    A number is this many seconds for every command. Two numbers are the least and the most: each episode has one of its
    own, as each device has. A file is what ``bench/latency.py --json`` printed: each command has one of the measured
    decisions' times, as on that device.

    Raises:
        TaskError: says what was received and what is allowed.
    """
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        return _of_report(Path(text))
    try:
        if len(numbers) == 1:
            return CommandLatency(LatencyKind.FIXED, numbers)
        return CommandLatency(LatencyKind.UNIFORM, numbers, DrawnFor.EPISODE)
    except SettingsError as error:
        raise TaskError(f"--command-latency {text}: {error} {ALLOWED[0].upper()}{ALLOWED[1:]}.") from error


def _of_report(path: Path) -> CommandLatency:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        latencies = [samples for report in document["reports"] if (samples := _samples_ns(report))]
    except OSError as error:
        raise TaskError(f"--command-latency {path}: {error.strerror}; {ALLOWED}.") from error
    except (ValueError, LookupError, TypeError) as error:
        raise TaskError(f"--command-latency {path} is not a latency report; {ALLOWED}.") from error
    if len(latencies) != 1:
        raise TaskError(
            f"--command-latency {path} must hold the latencies of one artifact, got {len(latencies)}. Measure one: "
            "quarl bench latency --policy I --precision int8 --path decide --no-baseline --json > report.json"
        )
    try:
        return CommandLatency(LatencyKind.EMPIRICAL, tuple(value / 1e9 for value in latencies[0]))
    except (SettingsError, TypeError) as error:
        raise TaskError(f"--command-latency {path}: {error}") from error


def _samples_ns(report: dict[str, Any]) -> list[float]:
    """Return the measured times of a device's artifact; none of Keras on the host, which is measured beside it."""
    if report.get("policy") is None or report.get("artifact") is None or not report.get("latency"):
        return []
    return list(report["latency"]["samples_ns"])
