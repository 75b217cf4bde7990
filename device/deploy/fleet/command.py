"""``python -m device.deploy fleet``: deploy to the devices of a fleet.toml, see what they serve, measure on them."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet import journal, measuring, tables
from quarl.device.deploy.fleet.board import shown_board
from quarl.device.deploy.fleet.crew import Crew, error_facts
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.journal import Event, Memory
from quarl.device.deploy.fleet.payloads import Payloads, typed_over
from quarl.device.deploy.fleet.plan import USUAL_BATCH, BatchSize
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.fleet.rollout import Rollout, Settings
from quarl.device.deploy.fleet.selecting import chosen, count, positive, seconds, selection
from quarl.device.deploy.fleet.states import COUNTED, State
from quarl.device.deploy.fleet.status import not_seen, status_of
from quarl.device.deploy.golden import Progress
from quarl.device.deploy.signing.record import Signing
from quarl.device.deploy.verbs import Verbs
from quarl.policy.locate import working_bundle
from quarl.policy.spec import Precision, RuntimeName

DESCRIPTION = "Deploy to the devices of a fleet.toml, see what each serves, measure on all of them."
LEFT = "no device is between two releases; the journal beside fleet.toml has what was done, and the command goes on."


class FleetIncompleteError(HostError):
    """A rollout or a measurement did not come to its end on every device."""


def run_deploy(options: argparse.Namespace) -> tuple[Any, str]:
    """Bring a policy to a group: canaries first, then batches; each phase is checked and watched.

    A phase in which too many fail is taken back, and the devices after it are not touched. The same command goes on
    where it ended.
    """
    fleet, selected = chosen(options)
    members = typed_over(selected, options.runtime, options.agent, options.bits)
    bundle = working_bundle(options.policy)
    payloads = Payloads(bundle)
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
    with shown_board(not options.json) as board, journal.opened(fleet, _watcher(board.event, options.json)) as writing:
        memory = Memory(journal.events(journal.journal_file(fleet)), bundle.spec.name)
        rollout = Rollout(members, payloads, settings, writing, memory, Crew(options.parallel, board))
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
        look = f"python -m device.deploy releases --target {back[0]}"
        return f"Look at {back[0]} first: {look}; then the same command again."
    if State.REPLACED in result.counts:
        return "Agree on who rolls out; then type the same command again, or the other one."
    if (COUNTED | {State.ROLLED_BACK}) & result.counts.keys():
        return "Find out why it failed, convert again, then type the same command: it goes on with what is not done."
    return "Mend what is named above, then type the same command again: it goes on with what is not done."


def _plain(result: Result) -> dict[str, Any]:
    return {**vars(result), "counts": result.counts, "complete": result.complete}


def _watcher(event: Any, as_json: bool) -> Any:
    return (lambda line: print(json.dumps(line), flush=True)) if as_json else event


def run_status(options: argparse.Namespace) -> tuple[Any, str]:
    """Say of each device what it serves, whether that is what was rolled out, and how the device is."""
    fleet, members = chosen(options)
    known = journal.events(journal.journal_file(fleet))
    memories = {name: Memory(known, name) for name in {str(each["policy"]) for each in known if "policy" in each}}
    found = {}
    with shown_board(not options.json) as board:
        board.phase("status", len(members))
        told = {"memories": memories, "only": options.policy}
        crew = Crew(options.parallel, board)
        for member, entries in crew.each(members, partial(status_of, **told), partial(not_seen, **told)):
            found[member.target] = entries
            if options.json:
                for entry in entries:
                    print(json.dumps(vars(entry)), flush=True)
    entries = [entry for member in members for entry in found[member.target]]
    well = sum(entry.is_well for entry in entries)
    counts = {"devices": len(members), "entries": len(entries), "well": well}
    return counts, f"{tables.status_table(entries)}\n{well} of {len(entries)} are as they should be."


def run_run(options: argparse.Namespace) -> tuple[Any, str]:
    """Measure latency, memory or success on every device, by the agent of the release that serves there.

    What was measured before is kept in the journal, and joined into one table.
    """
    fleet, members = chosen(options)
    question = measuring.Question(
        options.kind,
        options.policy,
        Precision.parse(options.bits) if options.bits else None,
        RuntimeName(options.runtime) if options.runtime else None,
        _fields(options),
    )
    failed: list[str] = []
    with shown_board(not options.json) as board, journal.opened(fleet, _watcher(board.event, options.json)) as writing:
        board.phase(options.kind, len(members))

        def work(member: Member, tell: Progress) -> Event:
            return written(member, measuring.ask(member, question, tell))

        def not_measured(member: Member, error: Exception) -> Event:
            return written(member, {"state": "not measured", **error_facts(error)})

        def written(member: Member, event: Event) -> Event:
            writing.write(policy=options.policy, device=member.target, kind=options.kind, **event)
            return event

        for member, event in Crew(options.parallel, board).each(members, work, not_measured):
            if event["state"] != "measured":
                failed.append(f"  {member.target}: {event['error']}")
        of = {row.device: row for row in measuring.joined(journal.events(journal.journal_file(fleet)), options.policy)}
    rows = [of[member.target] for member in members if member.target in of]
    table = tables.measured_table(rows)
    if failed:
        raise FleetIncompleteError(
            "{} of {} devices did not answer:\n{}\n{}".format(len(failed), len(members), "\n".join(failed), table),
            "Mend what is named above, then type the same command again.",
        )
    return {"rows": [vars(row) for row in rows]}, table


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    if options.kind == "latency":
        return {"runs": options.runs, "warmup": options.warmup, "path": "runtime"}
    if options.kind == "memory":
        return {"runs": min(options.runs, 100)}
    return {"episodes": options.episodes, "preset": options.preset, "seed": options.seed}


def add_verbs(verb: Verbs) -> None:
    """Add fleet and its verbs to the command line.

    Args:
        verb: of ``python -m device.deploy``.
    """
    fleet = verb.within("fleet", DESCRIPTION, selection())
    deploying = fleet("deploy", run_deploy)
    deploying.set_defaults(left=LEFT)
    add = deploying.add_argument
    add("--policy", required=True, help="name (III) or folder of a bundle")
    add("--bits", help="in the place of fleet.toml's, which is 8 by default")
    add("--runtime", help="in the place of fleet.toml's, which is litert by default")
    add("--agent", choices=["python", "native"], help="in the place of fleet.toml's")
    add("--canary", type=count, default=1, metavar="N", help="devices that go first, default %(default)s")
    add("--batch", default=USUAL_BATCH.text, metavar="N|N%", help="devices at a time after them, default 25%%")
    add("--max-fail", type=count, default=0, metavar="N", help="devices it may fail on, default %(default)s")
    add("--soak", type=seconds, default=10.0, metavar="S", help="seconds each phase is watched, default %(default)g")
    add("--deadline-ms", type=seconds, metavar="MS", help="of one decision in a hundred; default: the policy's period")
    add("--wait", type=float, default=0.0, metavar="S", help="wait for another deployment on a device to end")
    add("--take-over", action="store_true", help="go on although devices are in another host's or user's rollout")
    add("--sign-key", type=Path, metavar="KEY", help="sign with it; default QUARL_SIGN_KEY, or this host's own key")
    looking = fleet("status", run_status)
    looking.set_defaults(left="nothing was changed.")
    looking.add_argument("--policy", help="only this one")
    asking = fleet("run", run_run)
    asking.set_defaults(left="what was measured is in the journal beside fleet.toml.")
    add = asking.add_argument
    add("kind", choices=measuring.KINDS, help="latency, memory or success")
    add("--policy", required=True, help="name (III)")
    add("--bits", help="which of the release's precisions; default: its first")
    add("--runtime", choices=[name.value for name in RuntimeName], help="default: the release's first")
    add("--runs", type=positive, default=2000, metavar="N", help="timed decisions, default %(default)s")
    add("--warmup", type=count, default=200, metavar="N", help="decisions before them, default %(default)s")
    add("--episodes", type=positive, default=100, metavar="N", help="flights, default %(default)s")
    add("--preset", default="hard", help="of the flights: easy, medium, shipped or hard (default)")
    add("--seed", type=count, default=7, metavar="N", help="of the flights, default %(default)s")
