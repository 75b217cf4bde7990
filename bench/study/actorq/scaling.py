"""How far does ActorQ scale? Service times measured here, 1 … 1,024 actors simulated, checked against real runs.

    python -m bench.study actorq-scaling --keep                         512,512 on cartpole balance, with real runs
    python -m bench.study actorq-scaling --model 2048,2048,2048 --updates 4 --no-points --keep
    python -m bench.study actorq-scaling --stored --add-points 1 --keep    further real runs, stored service times
    python -m bench.study actorq-scaling --stored --update-docs         fills docs/actorq-scaling.md, draws its picture
    python -m bench.study actorq-scaling --stored --simulate --link-mbit-s 10000 --actors-per-machine 16

Measured are the parts of an actor, of the learner, of replay and parameter process, by real calls to train/actorq; from
these a discrete-event simulation (simpy) computes steps/s and updates/s, and how busy learner, replay, parameter
process and network are, with fp32 and int8 broadcast. Real runs of python -m train.actorq at 1, 2 and 4 actors are set
beside what is simulated for processes that share this machine's cores. --keep stores the answer in results/actorq/; a
picture and a page are made of what is stored. With --stored --simulate the curves are computed anew, with other
assumptions, from the stored service times; they are printed, and with --keep stored.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import command_line
from bench.report.store import RESULTS, StoreError
from bench.study.actorq.layout import LINK_BYTES_PER_S, Services
from bench.study.actorq.points import POINT_RATIOS, POINT_SECONDS, real_runs, shared
from bench.study.actorq.simulation import curve
from bench.study.older import rounded
from policy.files import write_atomically

FOLDER = RESULTS / "actorq"
KIND, FORMAT_VERSION = "actorq-scaling", 1
AGAIN = "python -m bench.study actorq-scaling --keep"
WIDTHS = (32, 8)
ACTORS = tuple(sorted({*(2**power for power in range(11)), *(3 * 2**power for power in range(6))}))
"""1, 2, 3, 4, 6, 8, 12, … 96, 128, 256, 512, 1,024."""
COUPLINGS = ((16.0, 1.0), (16.0, 100.0), (0.0, 1.0))
"""Samples per insertion and the learner's speed against the measured one: as measured; updates a hundred times as fast,
as on an accelerator; and actors that nobody holds back."""
ROUNDS, MOST_STEPS = 16.0, 150_000.0  # simulated for one point of a curve


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, simulate, keep, print."""
    parser = command_line.parser(__doc__, "-m bench.study actorq-scaling")
    parser.add_argument("--task", default="dm_control,cartpole_balance", help="default: %(default)s")
    parser.add_argument("--model", default="512,512", help="default: %(default)s")
    parser.add_argument("--method", choices=("d4pg", "dqn"), default="d4pg", help="default: %(default)s")
    parser.add_argument("--updates", type=command_line.positive, default=16, help="of a learner's round (%(default)s)")
    parser.add_argument("--batch-size", type=command_line.positive, default=256, help="default: %(default)s")
    parser.add_argument("--no-points", action="store_true", help="do without the real runs")
    parser.add_argument(
        "--point-seconds", type=float, default=POINT_SECONDS, metavar="S", help="of each real run (%(default)g)"
    )
    group = parser.add_argument_group("assumptions of the simulation with a machine for each process")
    group.add_argument(
        "--link-mbit-s", type=float, default=LINK_BYTES_PER_S * 8 / 1e6, metavar="N", help="network (%(default)g)"
    )
    group.add_argument("--actors-per-machine", type=command_line.positive, default=1, help="default: %(default)s")
    group.add_argument("--replay-shards", type=command_line.positive, default=1, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="store the answer in results/actorq/")
    parser.add_argument("--stored", action="store_true", help="measure nothing; print what is kept")
    parser.add_argument(
        "--add-points", type=read_ratios, metavar="16,1", help="with --stored: real runs with these samples per insert"
    )
    parser.add_argument("--simulate", action="store_true", help="with --stored: compute curves and points anew")
    parser.add_argument("--update-docs", action="store_true", help="fill docs/actorq-scaling.md, draw the picture")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    arguments = parser.parse_args(argv)
    if arguments.simulate and not arguments.stored:
        parser.error("--simulate computes from stored service times; add --stored")
    if arguments.add_points and not arguments.stored:
        parser.error("--add-points compares with stored service times; add --stored")
    if arguments.update_docs and not (arguments.stored or arguments.keep):
        parser.error("--update-docs writes what is stored; add --stored, or --keep")
    if arguments.link_mbit_s <= 0 or arguments.point_seconds <= 0:
        parser.error("--link-mbit-s and --point-seconds take numbers above 0")
    return command_line.guarded(_run, arguments)


def read_ratios(text: str) -> tuple[float, ...]:
    """``16,1`` as numbers above 0."""
    try:
        found = tuple(float(word) for word in command_line.words(text))
    except ValueError:
        found = (0.0,)
    if not all(0.0 < ratio < float("inf") for ratio in found):
        raise argparse.ArgumentTypeError(f"{text!r} are no samples per insertion; type 16, or 16,1")
    return found


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.report.figures import FIGURES
    from bench.study.actorq import scaling_table as actorq_scaling_table
    from bench.study.actorq.scaling_figure import save_figure

    documents = stored() if arguments.stored else [measured(arguments)]
    ratios = arguments.add_points if arguments.stored else () if arguments.no_points else POINT_RATIOS
    if arguments.add_points:
        documents = [each for each in documents if is_asked(each, arguments)]
        if not documents:
            raise command_line.BenchError(f"nothing of {arguments.task}, {arguments.model} is kept.", AGAIN)
    if arguments.simulate or not arguments.stored:
        documents = [with_curves(each, arguments) for each in documents]
    if arguments.keep:
        for each in documents:
            keep(each)  # before the runs, which a busy machine may make fail
    if ratios:
        documents = [with_points(each, ratios, arguments.point_seconds) for each in documents]
        if arguments.keep:
            for each in documents:
                keep(each)
    whole = stored() if arguments.update_docs else documents
    tables = actorq_scaling_table.tables(whole)
    if arguments.update_docs:
        command_line.update_docs(tables)
        for path in save_figure(whole, FIGURES):
            command_line.say(f"{path.name} drawn")
    if arguments.json:
        print(json.dumps({"ok": True, "answers": documents}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in tables))
    else:
        for table in tables:
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


# --- measuring ----------------------------------------------------------------------------------------------------


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Service times as a document without curves and real runs."""
    from bench.report.document import code_version
    from bench.report.machine import describe_machine
    from bench.study.actorq.services import Setup, measure
    from train.__main__ import quiet_libraries

    quiet_libraries()
    setup = Setup(arguments.task, arguments.model, arguments.method, arguments.updates, arguments.batch_size)
    found = measure(setup, WIDTHS, command_line.say)
    machine = describe_machine()
    return {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "machine": machine.sentence(),
        "cores": machine.cores,
        "load": round(os.getloadavg()[2], 1),
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "code": code_version(),
        "command": command_words(arguments),
        "setup": dataclasses.asdict(setup),
        "n_step": found.n_step,
        "engine_free": found.engine_free,
        "services": {str(bits): dataclasses.asdict(each) for bits, each in found.services.items()},
        "points": [],
    }


def with_points(document: dict[str, Any], ratios: Sequence[float], seconds: float) -> dict[str, Any]:
    """The document with further real runs, each in place of the last of its kind.

    Raises:
        BenchError: this is another machine.
    """
    from bench.report.machine import describe_machine
    from bench.study.actorq.services import Setup

    if (here := describe_machine().sentence()) != document["machine"]:
        raise command_line.BenchError(f"service times are of {document['machine']}; this is {here}.", AGAIN)
    services = {int(bits): Services(**values) for bits, values in document["services"].items()}
    setup = Setup(**document["setup"])
    points = real_runs(setup, services, document["n_step"], document["cores"], ratios, seconds)
    others = [point for point in document["points"] if point["samples_per_insert"] not in ratios]
    return with_simulated_points({**document, "points": [*others, *points]})


def with_simulated_points(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what is simulated for its real runs, on the machine's own cores."""
    from bench.study.actorq.services import Setup

    layout = Setup(**document["setup"]).layout(document["n_step"], cores=document["cores"])
    points = []
    for point in document["points"]:
        services = Services(**document["services"][str(point["bits"])])
        own = dataclasses.replace(layout, n_actors=point["n_actors"], samples_per_insert=point["samples_per_insert"])
        points.append({**point, "simulated": dataclasses.asdict(shared(services, own))})
    return {**document, "points": points}


def is_asked(document: Mapping[str, Any], arguments: argparse.Namespace) -> bool:
    """Whether a document is of the task and model that were typed."""
    setup = document["setup"]
    return (setup["task"], setup["model"]) == (arguments.task, arguments.model)


def command_words(arguments: argparse.Namespace) -> str:
    """What was typed, as far as it matters to what was measured."""
    typed = f"python -m bench.study actorq-scaling --task {arguments.task} --model {arguments.model}"
    typed += f" --method {arguments.method} --updates {arguments.updates} --batch-size {arguments.batch_size}"
    return typed + (" --no-points" if arguments.no_points else "")


# --- simulating ---------------------------------------------------------------------------------------------------


def with_curves(document: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The document with curves, and with what is simulated for its real runs."""
    from bench.study.actorq.services import Setup

    setup = Setup(**document["setup"])
    layout = setup.layout(
        document["n_step"],
        replay_shards=arguments.replay_shards,
        actors_per_machine=arguments.actors_per_machine,
        link_bytes_per_s=arguments.link_mbit_s * 1e6 / 8,
    )
    services = {int(bits): Services(**values) for bits, values in document["services"].items()}
    curves = []
    for ratio, speed in COUPLINGS:
        for bits, each in services.items():
            own = dataclasses.replace(layout, samples_per_insert=ratio, learner_speed=speed)
            actors = tuple(count for count in ACTORS if count >= layout.replay_shards)
            rates = curve(each, own, actors, ROUNDS, MOST_STEPS)
            curves.append({
                "bits": bits, "samples_per_insert": ratio, "learner_speed": speed,
                "rates": [dataclasses.asdict(rate) for rate in rates],
            })  # fmt: skip
    assumed = {
        "link_bytes_per_s": layout.link_bytes_per_s,
        "actors_per_machine": layout.actors_per_machine,
        "replay_shards": layout.replay_shards,
    }
    return with_simulated_points({**document, "assumed": assumed, "curves": curves})


# --- keeping ------------------------------------------------------------------------------------------------------


def keep(document: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Store a document under its task and model, in place of the last."""
    setup = document["setup"]
    words = (setup["task"].rpartition(",")[2], setup["model"].replace(",", "-"))
    path = folder / f"scaling-{'-'.join(words)}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(rounded(document), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def stored(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All documents that are kept, small models first.

    Raises:
        StoreError: none is kept, or one is of another kind.
    """
    documents = []
    for path in sorted(folder.glob("scaling-*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            said = document["kind"], document["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}.\n  next: {AGAIN}") from error
        if said != (KIND, FORMAT_VERSION):
            raise StoreError(f"{path} is of kind and version {said}, not {(KIND, FORMAT_VERSION)}.\n  next: {AGAIN}")
        documents.append(document)
    if not documents:
        raise StoreError(f"nothing is kept in {folder}.\n  next: {AGAIN}")
    return sorted(documents, key=lambda each: each["services"]["32"]["version_bytes"])


if __name__ == "__main__":
    raise SystemExit(main())
