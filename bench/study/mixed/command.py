"""Mixed precision: the paper's Pong policies A, B and C trained by DQN in float32 and in 16 bits, in one run.

    python -m bench.study mixed
    python -m bench.study mixed --policies A --updates 40 --steps 512 --seeds 0
    python -m bench.study mixed --type float16 --policies A --json

Measured for each policy: one update (a minibatch of 32), acting, and a short training on Pong, emulator and all; and
for several seeds how well Catch is learned, a task small enough for whole learning curves. On one thread of one core
unless --threads says more. --keep stores the answer in results/mixed-precision.json, from where
bench/table.py makes its tables.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line

if TYPE_CHECKING:
    from bench.report.tables import Table

BATCH = 32  # the paper's DQN
ACTING_CALLS = 60
FEWEST_ROUNDS = 8  # of losses, to speak of a correlation
NAMES = ("A", "B", "C")
FLOAT32 = "float32"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep."""
    parser = command_line.parser(__doc__, "-m bench.study mixed")
    parser.add_argument("--policies", type=command_line.words, default=list(NAMES), help="default: A,B,C")
    parser.add_argument("--type", choices=["bfloat16", "float16"], default="bfloat16", help="default: %(default)s")
    parser.add_argument("--updates", type=command_line.positive, help="of each policy and type (default: 80, 12, 4)")
    parser.add_argument(
        "--steps", type=command_line.not_negative, help="on Pong once learning began (default: 1024, 128, 48; 0: none)"
    )
    parser.add_argument("--batch", type=command_line.positive, default=BATCH, help="minibatch (default: %(default)s)")
    parser.add_argument("--seeds", type=command_line.not_negative, default=5, help="of Catch (default: 5; 0: none)")
    parser.add_argument("--threads", type=command_line.positive, default=1, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--keep", action="store_true", help="store the answer; only what was measured is replaced")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.policies if name not in NAMES]:
        parser.error(f"there is no policy {unknown[0]!r}; there are {', '.join(NAMES)}")
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from policy.files import write_atomically

    document = measure(arguments)
    if arguments.keep:
        path = kept_file()
        if path.exists():
            document = merged(json.loads(path.read_text(encoding="utf-8")), document)
        write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    if arguments.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        for table in tables(document):
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All that is asked for, as JSON values."""
    cores = prepare(arguments.threads)
    from bench.report.machine import describe_machine
    from bench.study.mixed import measuring as measuring
    from train.quantization.mixed_precision import Compute, slower_here

    if arguments.seeds == 1 or arguments.seeds > measuring.MOST_SEEDS:
        raise command_line.BenchError(f"--seeds {arguments.seeds}: take 0, or 2 to {measuring.MOST_SEEDS}.")
    types = [FLOAT32, arguments.type]
    if slow := slower_here(Compute(arguments.type)):
        command_line.say(slow)
    document: dict[str, Any] = {
        "machine": describe_machine().sentence(),
        "has_unit": slow is None,
        "tensorflow": metadata.version("tensorflow-cpu"),
        "gpu": False,  # tensorflow-cpu drives none
        "threads": arguments.threads,
        "cores": cores,
        "batch": arguments.batch,
        "type": arguments.type,
        "policies": {},
    }
    for name in arguments.policies:
        policy = measuring.POLICIES[name]
        command_line.say(f"policy {name}: {measuring.parameters(policy.network):,} weights")
        updates = measuring.time_updates(policy, types, arguments.updates or policy.updates, arguments.batch)
        row: dict[str, Any] = {
            "filters": policy.filters,
            "hidden": policy.hidden,
            "weights": measuring.parameters(policy.network),
            "paper_minutes": policy.paper_minutes,
            "update": {kind: asdict(timing) for kind, timing in updates.items()},
        }
        for batch in (1, 8):
            acting = measuring.time_acting(policy, types, ACTING_CALLS if name == "A" else ACTING_CALLS // 4, batch)
            row[f"act_{batch}"] = {kind: asdict(timing) for kind, timing in acting.items()}
        steps = policy.steps if arguments.steps is None else arguments.steps
        if steps:
            command_line.say(f"policy {name}: updates measured; training on Pong")
            row["pong"] = {kind: measuring.train_on_pong(policy, kind, steps, arguments.batch) for kind in types}
        document["policies"][name] = row
    if arguments.seeds:
        command_line.say("learning Catch")
        document["catch"] = catch(arguments.seeds, types)
    return document


def prepare(threads: int) -> int:
    """Before TensorFlow loads: oneDNN on, its threads, and this process on as many cores; returns their number."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # as the command does for pictures
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from train.quiet import silenced

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    with silenced():
        import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def catch(seeds: int, types: list[str]) -> dict[str, Any]:
    """Learning curves of both types with the same seeds, and the difference of what was reached."""
    from bench.study.mixed import measuring as measuring

    curves: dict[str, list[Any]] = {kind: [] for kind in types}
    for seed in range(seeds):
        for kind in types:
            curves[kind].append(measuring.learn_catch(kind, seed))
    last = {kind: [curve["returns"][-1][1] for curve in found] for kind, found in curves.items()}
    area = {kind: [mean([r for _, r in curve["returns"]]) for curve in found] for kind, found in curves.items()}
    return {
        "steps": measuring.CATCH_STEPS,
        "episodes": measuring.CATCH_EPISODES,
        "curves": curves,
        "last_difference": measuring.paired(last[types[0]], last[types[1]]),
        "mean_difference": measuring.paired(area[types[0]], area[types[1]]),
    }


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def kept_file() -> Path:
    """Where --keep stores the answer."""
    from bench.report import store

    return store.RESULTS / "mixed-precision.json"


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new answer, with the old one's policies and curves where it has none and both ask the same question."""
    asked = ("machine", "tensorflow", "threads", "batch", "type")
    if any(old.get(key) != new[key] for key in asked):
        return dict(new)
    policies = {**old["policies"], **new["policies"]}
    return {**old, **new, "policies": {name: policies[name] for name in NAMES if name in policies}}


def kept_tables() -> list[Table]:
    """The tables of the stored answer.

    Raises:
        StoreError: nothing is stored.
    """
    from bench.report import store

    path = kept_file()
    if not path.exists():
        raise store.StoreError(
            f"{path} does not exist: nothing was measured yet.\n  next: python -m bench.study mixed --keep"
        )
    return tables(json.loads(path.read_text(encoding="utf-8")))


def tables(document: Mapping[str, Any]) -> list[Table]:
    """The answer as it is stored: times of the policies, and the learning of Catch where it was measured."""
    found = [policies_table(document)]
    return [*found, catch_table(document)] if "catch" in document else found


def policies_table(document: Mapping[str, Any]) -> Table:
    """A row for each policy; times are processor times."""
    from bench.report.tables import Table
    from bench.report.text import NOT_KNOWN, three_digits, times

    kind, rows, wall = document["type"], [], []
    for name, policy in document["policies"].items():
        update, act, pong = policy["update"], policy["act_1"], policy.get("pong")
        before, after = policy["paper_minutes"]
        wall.append(update[FLOAT32]["wall_ms"] / update[kind]["wall_ms"])
        row = [name, f"3 conv({policy['filters']}) + FC {policy['hidden']}"]
        row += [three_digits(update[each]["cpu_ms"]) for each in (FLOAT32, kind)]
        row += [times(update[FLOAT32]["cpu_ms"] / update[kind]["cpu_ms"])]
        row += [times(act[FLOAT32]["cpu_ms"] / act[kind]["cpu_ms"])]
        if pong is None:
            row += [NOT_KNOWN] * 3
        else:
            row += [three_digits(pong[each]["steps_per_cpu_s"]) for each in (FLOAT32, kind)]
            row += [times(pong[kind]["steps_per_cpu_s"] / pong[FLOAT32]["steps_per_cpu_s"])]
        rows.append((*row, times(before / after)))
    threads = "1 thread" if document["threads"] == 1 else f"{document['threads']} threads"
    counts = [f"{name} {policy['update'][FLOAT32]['count']}" for name, policy in document["policies"].items()]
    unit = f"{'a' if document['has_unit'] else 'no'} {kind} unit"
    return Table(
        name="mixed-precision",
        title=f"DQN on Pong in float32 and in {kind}",
        headers=(
            "policy", "network", "update fp32, ms", f"{kind}, ms", "speed-up", "acting, speed-up",
            "Pong fp32, steps/s", f"{kind}, steps/s", "speed-up", "the paper's",
        ),
        rows=tuple(rows),
        notes=(
            f"Minibatch {document['batch']}, {threads}, TensorFlow {document['tensorflow']} with oneDNN, on "
            f"{document['machine']}, whose processor has {unit}; no GPU (tensorflow-cpu drives none). Processor times, "
            f"medians, types timed in turns ({', '.join(counts)} times); by wall time the updates' speed-ups are "
            f"{', '.join(times(each) for each in wall)}.",
            "Pong: emulator, acting, replay and one update in four steps, after the first round of updates. The "
            "paper's: 127 → 156, 179 → 172, 391 → 242 minutes of training in float16, on hardware it does not name; it "
            "states no kernels: here 8/4, 4/2, 3/1 (kernel/stride) as in Mnih et al. 2015.",
            *loss_notes(document),
        ),
        left=2,
    )  # fmt: skip


def loss_notes(document: Mapping[str, Any]) -> list[str]:
    """How alike the losses of the trainings on Pong are, from equal weights and random numbers at the start."""
    kind, parts = document["type"], []
    for name, policy in document["policies"].items():
        losses = [policy["pong"][each].get("losses", []) for each in (FLOAT32, kind)] if "pong" in policy else [[]]
        if not losses[0]:
            continue
        a, b = (mean(each) for each in losses)
        part = f"{name} {a:.2e} and {b:.2e}"
        if len(losses[0]) >= FEWEST_ROUNDS:
            part += f" (correlation over {len(losses[0])} rounds {correlation(*losses):.3f})"
        parts.append(part)
    return [f"Mean loss while Pong is learned, float32 and {kind}: {'; '.join(parts)}."] if parts else []


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's r."""
    of_a, of_b = ([value - mean(each) for value in each] for each in (a, b))
    both = sum(x * y for x, y in zip(of_a, of_b, strict=True))
    return both / math.sqrt(sum(x * x for x in of_a) * sum(y * y for y in of_b))


def catch_table(document: Mapping[str, Any]) -> Table:
    """Returns along the way, mean over the seeds with the lowest and the highest."""
    from bench.report.tables import Table

    found, kind = document["catch"], document["type"]
    curves = found["curves"]
    rows = []
    for index, (step, _) in enumerate(curves[FLOAT32][0]["returns"]):
        cells = []
        for each in (FLOAT32, kind):
            values = [curve["returns"][index][1] for curve in curves[each]]
            cells.append(f"{mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]".replace("-", "−"))
        rows.append((f"{step:,}", *cells))
    last, area = (
        f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")
        for difference, low, high in (found["last_difference"], found["mean_difference"])
    )
    seeds = len(curves[FLOAT32])
    return Table(
        name="mixed-precision-catch",
        title=f"Learning Catch by DQN: greedy return, mean of {seeds} seeds [lowest, highest]",
        headers=("step", "float32", kind),
        rows=tuple(rows),
        notes=(
            f"{kind} − float32, seed by seed, with its 95 % interval: {last} at the last step, {area} over the whole "
            f"curve. {found['episodes']} greedy episodes a point; returns lie between −1 and 1.",
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
