"""``--target @arena``: a verb for one device, done on every device of a group."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from typing import TYPE_CHECKING, Any

from quarl.cli import Run, plain
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.options import DeviceOptions

if TYPE_CHECKING:
    from quarl.device.deploy.fleet.inventory import Member

GROUP_SIGN = "@"


class SomeFailedError(HostError):
    """A verb failed on some devices of a group, or is none for groups."""


def on_groups(run: Run) -> Run:
    """Return the verb, also for a target that is a group: devices at once, a failure on one does not keep the
    others."""

    @functools.wraps(run)
    def spread(options: DeviceOptions) -> tuple[Any, str]:
        return _each(options, run) if options.target.startswith(GROUP_SIGN) else run(options)

    spread.__defaults__ = run.__defaults__  # type: ignore[attr-defined]
    return spread


def _each(options: Any, run: Run) -> tuple[Any, str]:
    from quarl.device.deploy.fleet.board import open_board
    from quarl.device.deploy.fleet.selecting import load_fleet
    from quarl.device.deploy.fleet.worker_pool import PARALLEL, WorkerPool

    name = run.__name__.replace("_", "-")
    if name == "deploy":
        group, policy = options.target.removeprefix(GROUP_SIGN), shlex.quote(options.policy)
        raise SomeFailedError(
            f"{options.target} is a group, which is deployed to in batches.",
            f"quarl fleet deploy --group {group} --policy {policy}",
        )
    if getattr(options, "fingerprint", None) is not None:
        raise SomeFailedError(
            f"--fingerprint is for one device, and {options.target} is a group: each device has its own host key.",
            "Leave --fingerprint out: the command prints each device's fingerprint and how to accept it.",
        )
    members = load_fleet(None).select_members(options.target.removeprefix(GROUP_SIGN))

    def work(member: Member, tell: Any) -> tuple[Any, str] | Exception:
        identity = options.identity or member.identity
        result: tuple[Any, str] = run(  # no bars: the board is there
            dataclasses.replace(options, target=member.target, identity=identity, json=True)
        )
        return result

    outcomes: dict[str, tuple[Any, str] | Exception] = {}
    with open_board(not options.json) as board:
        board.phase(name, len(members))
        for member, outcome in WorkerPool(PARALLEL, board).each(members, work, lambda member, error: error):
            outcomes[member.target] = outcome
            if options.json:
                print(json.dumps({"device": member.target, **_as_json(outcome)}, default=plain), flush=True)
    lines, failed = [], 0
    for member in members:
        outcome = outcomes[member.target]
        failed += isinstance(outcome, Exception)
        lines.append(f"{member.target}: {_sentence(outcome) if isinstance(outcome, Exception) else outcome[1]}")
    text = "\n".join(lines)
    if failed:
        details = "" if options.json else f"\n{text}"
        raise SomeFailedError(
            f"{name} failed on {failed} of {len(members)} devices.{details}",
            "Fix the faults listed above, then run the same command again.",
        )
    return {"devices": len(members)}, text


def _sentence(error: Exception) -> str:
    from quarl.device.deploy.fleet.worker_pool import error_facts

    return str(error) if isinstance(error, HostError) else error_facts(error)["error"]


def _as_json(outcome: tuple[Any, str] | Exception) -> dict[str, Any]:
    if isinstance(outcome, HostError):
        return {"ok": False, "error": outcome.to_json()}
    if isinstance(outcome, Exception):
        from quarl.device.deploy.fleet.worker_pool import error_facts

        facts = error_facts(outcome)
        return {"ok": False, "error": {"code": facts["code"], "message": facts["error"], "next": facts["next"]}}
    data = outcome[0] if isinstance(outcome[0], dict) else plain(outcome[0])
    return {"ok": True, **data}
