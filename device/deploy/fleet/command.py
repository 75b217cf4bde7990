"""``quarl fleet``: deploy to the devices of a fleet.toml, see what they serve, measure on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from quarl import cli
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet import journal, measuring, tables
from quarl.device.deploy.fleet.board import open_board
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.journal import Event, Memory
from quarl.device.deploy.fleet.payloads import Payloads, override_settings
from quarl.device.deploy.fleet.plan import USUAL_BATCH, BatchSize
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.fleet.rollout import Rollout as Rolling
from quarl.device.deploy.fleet.rollout import Settings
from quarl.device.deploy.fleet.selecting import Chosen, select_devices
from quarl.device.deploy.fleet.states import COUNTED, State
from quarl.device.deploy.fleet.status import not_seen, status_of
from quarl.device.deploy.fleet.worker_pool import WorkerPool, error_facts
from quarl.device.deploy.golden import Progress
from quarl.device.deploy.signing.record import Signing
from quarl.policy.locate import working_bundle
from quarl.policy.spec import Precision, RuntimeName

LEFT = "no device is between two releases; the journal beside fleet.toml has what was done, and the command goes on."


@Parameter(name="*")
@dataclass(kw_only=True)
class Rollout(Chosen):
    """A rollout.

    Attributes:
        policy: name (III) or folder of a bundle
        bits: instead of fleet.toml's (default there: 8)
        runtime: instead of fleet.toml's (default there: litert)
        accept: deploy also what agrees with the policy in less than three quarters of its decisions
        agent: instead of fleet.toml's
        canary: devices that go first
        batch: N or N%, devices at a time after them
        max_fail: devices it may fail on
        soak: seconds each phase is watched
        deadline_ms: of one decision in a hundred; default: the policy's period
        wait: seconds to wait for another deployment on a device to end
        take_over: continue although devices are in another host's or user's rollout
        sign_key: sign with it; default QUARL_SIGN_KEY, or this host's own key
    """

    policy: str
    bits: str | None = None
    runtime: str | None = None
    accept: bool = False
    agent: Literal["python", "native"] | None = None
    canary: NonNegativeInt = 1
    batch: str = USUAL_BATCH.text
    max_fail: NonNegativeInt = 0
    soak: NonNegativeFloat = 10.0
    deadline_ms: NonNegativeFloat | None = None
    wait: NonNegativeFloat = 0.0
    take_over: bool = False
    sign_key: Path | None = None


@Parameter(name="*")
@dataclass(kw_only=True)
class Look(Chosen):
    """What to list.

    Attributes:
        policy: only this one
    """

    policy: str | None = None


@Parameter(name="*")
@dataclass(kw_only=True)
class Measured(Chosen):
    """What to measure.

    Attributes:
        policy: name (III)
        bits: which of the release's precisions; default: its first
        runtime: default: the release's first
        runs: timed decisions
        warmup: decisions before them
        episodes: flights
        preset: of the flights: easy, medium, shipped or hard
        seed: of the flights
    """

    policy: str
    bits: str | None = None
    runtime: RuntimeName | None = None
    runs: PositiveInt = 2000
    warmup: NonNegativeInt = 200
    episodes: PositiveInt = 100
    preset: str = "hard"
    seed: NonNegativeInt = 7


class FleetIncompleteError(HostError):
    """A rollout or a measurement did not come to its end on every device."""


@cli.verb(left=LEFT)
def deploy(options: Rollout) -> tuple[Any, str]:
    """Deploy a policy to a group: canaries first, then batches; each phase is checked and watched.

    A phase in which too many devices fail is rolled back, and later devices stay unchanged. The same command resumes an
    interrupted rollout.

        quarl fleet deploy --policy III --group arena
        quarl fleet deploy --policy III --canary 2 --batch 25% --max-fail 1
    """
    fleet, selected = select_devices(options)
    members = override_settings(selected, options.runtime, options.agent, options.bits)
    bundle = working_bundle(options.policy)
    payloads = Payloads(bundle, options.accept)
    payloads.require_artifacts(members)
    settings = Settings(
        canaries=options.canary,
        batch=BatchSize.parse(options.batch),
        max_fail=options.max_fail,
        soak_s=options.soak,
        deadline_ms=1e3 * bundle.spec.control_period_s if options.deadline_ms is None else options.deadline_ms,
        wait_s=options.wait,
        signing=Signing(options.sign_key),
        take_over=options.take_over,
    )
    with (
        open_board(not options.json) as board,
        journal.open_journal(fleet, _watcher(board.event, options.json)) as writing,
    ):
        memory = Memory(journal.events(journal.journal_file(fleet)), bundle.spec.name)
        rollout = Rolling(members, payloads, settings, writing, memory, WorkerPool(options.parallel, board))
        try:
            result = rollout.run()
        except KeyboardInterrupt:
            if not options.json:
                board.say(tables.result_text(rollout.result))
            raise
    if not result.complete:
        raise FleetIncompleteError(f"{_why(result)}\n{tables.result_text(result)}", _next(result))
    return _plain(result), tables.result_text(result)


def _why(result: Result) -> str:
    return f"The rollout stopped: {result.stopped}." if result.stopped else "Some devices do not serve it yet."


def _next(result: Result) -> str:
    back = [target for target, state in result.states.items() if state is State.ROLLBACK_FAILED]
    if back:
        look = f"quarl releases --target {back[0]}"
        return f"Look at {back[0]} first: {look}; then the same command again."
    if State.REPLACED in result.counts:
        return "Agree on who rolls out; then type the same command again, or the other one."
    if (COUNTED | {State.ROLLED_BACK}) & result.counts.keys():
        return "Find out why it failed, convert again, then type the same command: it goes on with what is not done."
    return "Fix the faults listed above, then run the same command again."


def _plain(result: Result) -> dict[str, Any]:
    return {**vars(result), "counts": result.counts, "complete": result.complete}


def _watcher(event: Any, as_json: bool) -> Any:
    return (lambda line: print(json.dumps(line), flush=True)) if as_json else event


@cli.verb(left="nothing was changed.")
def status(options: Look) -> tuple[Any, str]:
    """Print each device's serving release, whether it is the one of the rollout, and the device's state.

    quarl fleet status
    quarl fleet status --group arena --policy III
    """
    fleet, members = select_devices(options)
    known = journal.events(journal.journal_file(fleet))
    memories = {name: Memory(known, name) for name in {str(event["policy"]) for event in known if "policy" in event}}
    entries_by_target = {}
    with open_board(not options.json) as board:
        board.phase("status", len(members))
        status_arguments: dict[str, Any] = {"memories": memories, "only": options.policy}
        pool = WorkerPool(options.parallel, board)
        for member, entries in pool.each(
            members, partial(status_of, **status_arguments), partial(not_seen, **status_arguments)
        ):
            entries_by_target[member.target] = entries
            if options.json:
                for entry in entries:
                    print(json.dumps(vars(entry)), flush=True)
    entries = [entry for member in members for entry in entries_by_target[member.target]]
    well = sum(entry.is_well for entry in entries)
    counts = {"devices": len(members), "entries": len(entries), "well": well}
    return counts, f"{tables.status_table(entries)}\n{well} of {len(entries)} are as they should be."


@cli.verb(left="what was measured is in the journal beside fleet.toml.")
def run(kind: Literal["latency", "memory", "success"], /, *, options: Measured) -> tuple[Any, str]:
    """Measure latency, memory or success on every device, with the agent of the release that serves there.

    Earlier measurements are kept in the journal, and joined into one table.

        quarl fleet run latency --policy III --group arena
        quarl fleet run success --policy III --episodes 100
    """
    fleet, members = select_devices(options)
    question = measuring.Question(
        kind,
        options.policy,
        Precision.parse(options.bits) if options.bits else None,
        options.runtime,
        _fields(kind, options),
    )
    failed: list[str] = []
    with (
        open_board(not options.json) as board,
        journal.open_journal(fleet, _watcher(board.event, options.json)) as writing,
    ):
        board.phase(kind, len(members))

        def work(member: Member, tell: Progress) -> Event:
            return write_event(member, measuring.ask(member, question, tell))

        def not_measured(member: Member, error: Exception) -> Event:
            return write_event(member, {"state": "not measured", **error_facts(error)})

        def write_event(member: Member, event: Event) -> Event:
            writing.write(policy=options.policy, device=member.target, kind=kind, **event)
            return event

        for member, event in WorkerPool(options.parallel, board).each(members, work, not_measured):
            if event["state"] != "measured":
                failed.append(f"  {member.target}: {event['error']}")
        of = {
            row.device: row
            for row in measuring.join_answers(journal.events(journal.journal_file(fleet)), options.policy)
        }
    rows = [of[member.target] for member in members if member.target in of]
    table = tables.format_measured_table(rows)
    if failed:
        raise FleetIncompleteError(
            "{} of {} devices did not answer:\n{}\n{}".format(len(failed), len(members), "\n".join(failed), table),
            "Fix the faults listed above, then run the same command again.",
        )
    return {"rows": [vars(row) for row in rows]}, table


def _fields(kind: str, options: Measured) -> dict[str, Any]:
    if kind == "latency":
        return {"runs": options.runs, "warmup": options.warmup, "path": "runtime"}
    if kind == "memory":
        return {"runs": min(options.runs, 100)}
    return {"episodes": options.episodes, "preset": options.preset, "seed": options.seed}
