"""A policy as a service in the robot's loop: started, tried, kept running on the device; and what it has counted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from quarl import cli
from quarl.device.agent.loop.options import LoopOptions, read_action
from quarl.device.deploy import loops
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import ReleaseError, ServiceError
from quarl.device.deploy.fleet.spreading import on_groups
from quarl.device.deploy.options import HALF_DONE, NOTHING, DeviceOptions, Waiting
from quarl.device.deploy.releases import serving_record
from quarl.device.deploy.switching import begin
from quarl.device.deploy.target import check_policy_name
from quarl.device.deploy.text import printable
from quarl.policy.reading import SPEC_FILE
from quarl.policy.spec import PolicySpec, Precision, RuntimeName

TRIAL_S, MOST_MISSED, MEMORY_MB = 5.0, 10_000.0, 256
LEAST_WATCHDOG_S, WATCHDOG_PERIODS = 3.0, 10
USUAL_WATCHDOG_S = 15.0
"""Where the policy's own rate is not known to the host."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Serving(DeviceOptions):
    """A loop to report on.

    Attributes:
        policy: name (III)
    """

    policy: str


@Parameter(name="*")
@dataclass(kw_only=True)
class Unserve(Waiting):
    """A loop to stop.

    Attributes:
        policy: name (III)
    """

    policy: str


@Parameter(name="*")
@dataclass(kw_only=True)
class Serve(Unserve, LoopOptions):
    """A loop to start.

    Attributes:
        enable: start it at each boot, too
        bits: which of the release's precisions; default: 8, or its first
        runtime: default: the release's first
        trial: seconds on trial
        most_missed: deadlines missed on trial, of a million
        memory_max: MB, beyond which it is restarted
    """

    fallback: Annotated[tuple[float, ...], cli.reads(read_action, "ACTION", allow_leading_hyphen=True)] = ()
    enable: bool = False
    bits: str | None = None
    runtime: RuntimeName | None = None
    trial: NonNegativeFloat = TRIAL_S
    most_missed: NonNegativeFloat = MOST_MISSED
    memory_max: PositiveInt = MEMORY_MB


@contextlib.contextmanager
def _lock_policy(connection: Connection, policy: str, wait_s: float) -> Iterator[tuple[Device, Mapping[str, Any]]]:
    with open_device(connection) as session:
        yield session, begin(session, check_policy_name(policy), None, wait_s)


def artifact_of(state: Mapping[str, Any], precision: str | None, runtime: str | None, name: str) -> list[str]:
    """Which artifact of the release that serves is to decide: the requested one, or int8, or its first.

    Raises:
        ReleaseError: no release serves, or it has no such artifact; says what it has.
    """
    current = serving_record(state)
    if current is None:
        raise ReleaseError(f"{name} has no release of this policy.", "Deploy one first: quarl deploy.")
    precisions, runtimes = current["precisions"], current["runtimes"]
    usual = Precision.INT8.value if Precision.INT8.value in precisions else precisions[0]
    chosen, executed = precision or usual, runtime or runtimes[0]
    if chosen not in precisions or executed not in runtimes:
        raise ReleaseError(
            f"Release {state['current']} on {name} has {', '.join(precisions)} for {', '.join(runtimes)}, but "
            f"{chosen} in {executed} was requested.",
            "Deploy the requested artifact first: quarl deploy --bits … --runtime …",
        )
    return [f"--precision={chosen}", f"--runtime={executed}"]


@on_groups
@cli.verb(left=HALF_DONE)
def serve(options: Serve) -> tuple[Any, str]:
    """Serve a deployed policy in the robot's loop from now on, and with --enable after each boot.

    The loop must be punctual and healthy for some seconds first; otherwise the previous release keeps serving. Every
    later deployment must pass the same trial, and is rolled back if it fails.

        quarl serve --policy III --target pi@raspberrypi --enable
        quarl serve --policy III --fallback 0,0 --enable
    """
    precision = Precision.parse(options.bits).value if options.bits else None
    runtime = options.runtime and options.runtime.value
    watchdog_s = max(LEAST_WATCHDOG_S, WATCHDOG_PERIODS / options.rate) if options.rate else USUAL_WATCHDOG_S
    with connect(options.target, identity=options.identity) as connection:
        with _lock_policy(connection, options.policy, options.wait) as (session, state):
            artifact = artifact_of(state, precision, runtime, connection.name)
            # A release without Python has none.
            spec = session.run(f"cat policies/{options.policy}/current/bundle/{SPEC_FILE} 2> /dev/null", check=False)
            if spec:
                PolicySpec.from_json(spec).fallback_or(options.fallback)
            settings = loops.Settings(
                (*artifact, *options.to_arguments()),
                options.enable,
                options.core,
                watchdog_s,
                options.memory_max << 20,
                options.trial,
                options.most_missed,
            )
            done = loops.serve(session, settings, lambda done, total: None)
        name = connection.name
    for warning in done["warnings"]:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    boot = "and after each boot" if options.enable else "until the device is switched off"
    text = (
        f"{options.policy}: release {done['release']} serves in the loop on {name}, kept by {done['manager']}, {boot}."
    )
    return done, f"{text}\n{_loop_text(options.policy, done['loop'])}"


@on_groups
@cli.verb(left=HALF_DONE)
def unserve(options: Unserve) -> tuple[Any, str]:
    """Stop a policy's loop and forget it; the release stays.

    quarl unserve --policy III
    quarl unserve --policy III --target pi@raspberrypi
    """
    with connect(options.target, identity=options.identity) as connection:
        with _lock_policy(connection, options.policy, options.wait) as (session, _):
            done = {"was_served": loops.unserve(session)}
        name = connection.name
    was = "is served no longer" if done["was_served"] else "was not served"
    return done, f"{options.policy} {was} on {name}."


@on_groups
@cli.verb(left=NOTHING)
def serving(options: Serving) -> tuple[Any, str]:
    """Print whether a policy's loop runs, and how punctual it has been since its counts were last reset.

    quarl serving --policy III
    quarl serving --policy III --target pi@raspberrypi --json
    """
    policy = check_policy_name(options.policy)
    with connect(options.target, identity=options.identity) as connection:
        with open_device(connection) as session:
            done = loops.serving(session, policy)
        name = connection.name
    if done["settings"] is None:
        raise ServiceError(
            f"{options.policy} is not served on {name}.",
            f"quarl serve --target {options.target} --policy {options.policy}",
        )
    boot = "at each boot" if done["settings"]["enable"] else "not at boot"
    why = f" ({done['why']})" if done["why"] else ""
    text = (
        f"{options.policy} on {name}: {done['state']}{why}, process {done['pid']}, restarted {done['restarts']} times; "
    )
    text += f"kept by {done['manager']}, started {boot}."
    return done, f"{text}\n{_loop_text(options.policy, done['loop'])}" if done["loop"] else text


def _loop_text(policy: str, loop: Mapping[str, Any]) -> str:
    counts, timing = loop["counts"], loop["timing"]
    missed = counts["missed_per_million"]
    lines = [
        f"{1e9 / timing['period_ns']:g} decisions a second by {timing['pace']}, for {counts['seconds']:.1f} s; "
        f"missed {0.0 if missed is None else missed:.0f} in a million; fallbacks {counts['fallback']}, of them "
        # A release of before does not count it: it holds without end.
        f"{counts.get('hold_expired', 0)} after an action was held too long; "
        f"socket ~/quarl/run/{policy}.sock",
    ]
    for title, key in (("woke late", "woke_late_ns"), ("decided in", "decided_ns"), ("age of observation", "age_ns")):
        if (times := counts[key])["count"]:
            known = "".join(f"{share} {value / 1000:.0f} µs, " for share, value in times["percentiles"].items())
            lines.append(f"{title}: {known}most {times['max'] / 1000:.0f} µs")
    refused = [grant for grant in loop["granted"] if not grant["granted"]]
    lines += [f"not granted: {grant['name']}: {grant['reason']}" for grant in refused]
    return "\n".join([*lines, f"What grants it:\n{loop['what_grants_it']}".rstrip()] if refused else lines)
