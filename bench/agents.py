"""The three agents beside each other on one device: Python with LiteRT, Python alone, and the program without Python.

    python bench/agents.py --policy I
    python bench/agents.py --policy I --target pi@virtual --keep

Each start is a fresh process, the three in turn. Verifying a release before it starts is the same for all of them and
is not in these times.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line
from bench.answer_command import AnswerCommand
from policy.spec import RuntimeName

if TYPE_CHECKING:
    from device.host.connection import Connection
    from policy.bundle import Bundle
    from policy.spec import Precision

FORMS = {
    "python, litert": (RuntimeName.LITERT,),
    "python, native": (RuntimeName.NATIVE,),
    "without python": (),
}
"""Runtimes of a release; none: of the program without Python."""
TIMEOUT_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Deploy, start, count, print, keep."""
    parser = answer_command.parser(__doc__, "bench/agents.py")
    parser.add_argument("--policy", default="I", help="default: %(default)s")
    parser.add_argument("--precision", type=command_line.read_precisions, default="int8", help="one; default: int8")
    parser.add_argument("--target", default="local", help="default: %(default)s")
    parser.add_argument("--starts", type=command_line.positive, default=5, help="of each agent, default: %(default)s")
    parser.add_argument("--runs", type=command_line.positive, default=1000, help="lines timed a start: %(default)s")
    arguments = parser.parse_args(argv)
    return ANSWERS["agents" if arguments.target == "local" else "device-agents"].run(arguments)


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    from bench.device_session.access import bundle_with
    from bench.qemu_counter.counting import lines_counted
    from device.host.connection import connect, require_reachable

    require_reachable(arguments.target)
    precision = arguments.precision[0]
    for runtime in (RuntimeName.LITERT, RuntimeName.NATIVE):
        bundle = bundle_with(arguments.policy, [precision], runtime)
    with connect(arguments.target) as connection:
        releases = {name: _deployed(connection, bundle, precision, name) for name in FORMS}
        starts: dict[str, list[dict[str, Any]]] = {name: [] for name in FORMS}
        try:
            for turn in range(arguments.starts):
                command_line.say(f"start {turn + 1} of {arguments.starts} …")
                for name, release in releases.items():
                    starts[name].append(_started(connection, bundle.spec.name, release, precision, arguments.runs))
        finally:
            connection.run(f"rm -f {' '.join(map(_archive, releases.values()))}", check=False)
    command_line.say("counting instructions …")
    device = starts["python, litert"][0].pop("device")
    found = [{"agent": name, **_medians(rows), "starts": len(rows)} for name, rows in starts.items()]
    counted = lines_counted(bundle.path, precision)
    for each, number in zip(found, counted, strict=True):
        each["instructions"] = number
    wanted = {"policy": arguments.policy, "precision": precision.value, "target": arguments.target}
    artifact = bundle.artifact(precision, RuntimeName.NATIVE.artifact_format).record.size
    return {**wanted, "runs": arguments.runs, "device": device, "artifact_bytes": artifact, "agents": found}


def _deployed(connection: Connection, bundle: Bundle, precision: Precision, name: str) -> str:
    from device.host.deploy import deploy

    runtimes = FORMS[name]
    if not runtimes:
        return deploy(connection, bundle, [precision], without_python=True).release
    release = deploy(connection, bundle, [precision], runtimes).release
    # As launch.py has it: Python imports the code from an archive.
    folder = f"quarl/policies/{shlex.quote(bundle.spec.name)}/releases/{shlex.quote(release)}/lib"
    connection.run(f"cd ~/{folder} && python3 -I -m zipfile -c {_archive(release)} *", timeout=TIMEOUT_S)
    return release


def _archive(release: str) -> str:
    return shlex.quote(f"/tmp/quarl-agents-{release}.zip")


def _started(connection: Connection, policy: str, release: str, precision: Precision, runs: int) -> dict[str, Any]:
    """One start of a release's agent, typed as a person would, and what it answered."""
    requests = [
        {"op": "hello"},
        {"op": "load", "precision": precision.value},
        {"op": "latency", "warmup": min(runs, 200), "runs": runs, "path": "decide"},
        {"op": "memory", "runs": 100},
        {"op": "bye"},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in requests)
    # Nothing is written into the release, which would be another one then.
    folder = f"quarl/policies/{shlex.quote(policy)}/releases/{shlex.quote(release)}"
    unwritten = 'sh -c "$(sed \'s/env -i/env -i PYTHONDONTWRITEBYTECODE=1/\' run-agent)" "$PWD/run-agent"'
    code = f"QUARL_CODE={_archive(release)}; [ -e $QUARL_CODE ] && export QUARL_CODE || unset QUARL_CODE"
    command = f"cd ~/{folder} && {{ {code}; }} ; printf %s {shlex.quote(lines)} | {unwritten}"
    done = connection.run(command, timeout=TIMEOUT_S)
    replies = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    replies = [each for each in replies if "progress" not in each]
    if len(replies) != len(requests) or not all(each["ok"] for each in replies):
        raise command_line.BenchError(f"release {release} answered {done.stdout[-300:]!r} {done.stderr[-300:]!r}.")
    hello, loaded, timed, memory, _ = replies
    return {
        "device": hello["device"],
        "ready_ns": hello["agent"]["ready_ns"],
        "first_ns": hello["agent"]["ready_ns"] + loaded["cold"]["total_ns"],
        "resident": memory["memory"]["after_load"],
        "line_ns": timed["percentiles"]["p50"],
    }


def _medians(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("ready_ns", "first_ns", "resident", "line_ns")
    return {name: statistics.median_low([each[name] for each in rows]) for name in names}


def _tables() -> dict[str, Any]:
    from bench.tables import agents

    return {"agents": agents.AGENTS.table}


ANSWERS = {
    name: AnswerCommand(
        name=name,
        command="bench/agents.py",
        ask=_ask,
        tables=_tables,
        amounts=lambda document: {(each["agent"],): each["starts"] for each in document["agents"]},
        unit="starts",
    )
    for name in ("agents", "device-agents")
}


if __name__ == "__main__":
    raise SystemExit(main())
