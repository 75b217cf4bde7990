"""The native engine beside other programs, in one run: ExecuTorch, ncnn, MNN, OpenVINO, emlearn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.peers.policies import amounts, load_committed
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.tables import Table
    from quarl.policy.bundle import Bundle

PEERS = "peers"
WORDS = """\
The native engine beside other programs
Time of one decision at batch 1 on one thread: median over {{ turns }} turns of about {{ turn_s }} s. The contestants \
take turns on one core, each in its own process; a turn's value is the median of the means of its {{ parts }} parts. \
From Python's call to the action; "in C": from a loop in C, without Python. As fast as LiteRT's int8: its time divided \
by this one in the same turn; median, with the smallest and the largest in brackets. Agreement: share of the golden \
observations on which the program chooses the float policy's action.
ncnn's int8 has one activation scale per layer, from the same calibration observations. MNN's int8 has weights of 8 \
bits (--weightQuantBits 8). OpenVINO executes the graph of onnxruntime's int8, with quantize and dequantize operators. \
emlearn's C computes in floats, compiled for this processor ({{ flags }}). LiteRT and ExecuTorch execute XNNPACK's \
kernels; ExecuTorch's int8 and dynamic are those of its XNNPACK quantizer, per channel, from 512 \
or more of these observations.
Measured on {{ results.machine }}; {{ results.versions }}; code {{ results.code }}.
"""
POLICIES = ("I", "II", "III")
PYTHON = Path(".venv-peers") / "bin" / "python"


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Answering):
    """What to time.

    Attributes:
        policy: committed ones
    """

    policy: command_line.Policies = POLICIES


def _ask(options: Options) -> dict[str, Any]:
    from quarl.bench.peers.contestants import versions
    from quarl.device.agent.runtimes import find_installed_runtimes
    from quarl.policy.places import PROJECT_ROOT

    python = PROJECT_ROOT / PYTHON
    if not python.exists():
        raise command_line.BenchError("the programs to compare with are not installed.", "make peers")
    rows = [row for name in options.policy for row in measure_contestants(load_committed(name), python)]
    own = [f"{name.value} {version}" for name, version in find_installed_runtimes().items()]
    return {"versions": f"{', '.join(own)}, {versions(python)}", "rows": rows}


def measure_contestants(bundle: Bundle, python: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each contestant.

    Raises:
        UsageError: the other programs are not given such a policy.
        BenchError: one of them fails.
    """
    from quarl.bench.peers.contestants import in_c, others, ours
    from quarl.bench.peers.network import require_expressible, write_network
    from quarl.bench.peers.turns import prepare_folder, time_in_turns

    require_expressible(bundle.spec)
    golden = bundle.golden()
    with prepare_folder(bundle.spec, golden.observations) as folder:
        write_network(folder, bundle)
        contestants = {
            **ours(folder, bundle),
            **others(folder, python),
            **in_c(folder, bundle, python),
        }
        with command_line.progress_bar(f"timing {bundle.spec.name}") as progress:
            timings = time_in_turns(list(contestants.values()), progress)
    for (runtime, precision), timed in zip(contestants, timings, strict=True):
        same = sum(int(a) == int(b) for a, b in zip(timed.actions, golden.actions, strict=True))
        yield {
            "policy": bundle.spec.name,
            "precision": precision,
            "runtime": runtime,
            "bytes": timed.bytes,
            "acts_as_fp32": same / len(golden.actions),
            "turns_ns": [round(turn_ns, 1) for turn_ns in timed.turns_ns],
        }


def peers_table(document: Mapping[str, Any]) -> Table:
    """Return a line for each policy and contestant, the fastest first."""
    from quarl.bench.peers.loop import FLAGS
    from quarl.bench.peers.turns import add_speed_ups, timing_facts
    from quarl.bench.report.text import kilobytes, nanoseconds
    from quarl.bench.tables import group_by, tabulate

    by_policy = group_by(add_speed_ups(document["rows"], "policy"), lambda row: row["policy"])
    lines = [
        {
            "policy": row["policy"],
            "program": row["runtime"],
            "precision": row["precision"],
            "one decision": nanoseconds(row["median_ns"]),
            "as fast as LiteRT's int8": row["as_fast"],
            "agreement with fp32, %": f"{100 * row['acts_as_fp32']:.1f}",
            "KB": kilobytes(row["bytes"]),
        }
        for of in by_policy.values()
        for row in sorted(of, key=lambda row: row["median_ns"])
    ]
    return tabulate(PEERS, WORDS, lines, left=3, flags=" ".join(FLAGS[:3]), **timing_facts(document))


@heartbeat()
@cli.verb()
def peers(options: Options) -> int:
    """Compare the native engine with other programs: ExecuTorch, ncnn, MNN, OpenVINO, emlearn.

    make peers                                   once: the other programs, in an environment of their own
        quarl peers
        quarl peers --policy I
        quarl peers --keep                 stores the answer in results/peers.json, for docs/native.md

    Every contestant has a process of its own; they take turns on one core, batch 1, one thread, with another golden
    observation at every decision, from Python's call to the action; in the rows "in C" the caller is a loop in C.
    Before it is timed, each computes the actions for the golden observations; the table has their agreement with the
    float policy.
    """
    options.require_whole("--policy", is_whole=options.policy == POLICIES)
    return options.publish(
        PEERS, _ask(options), lambda document: [peers_table(document)], amounts=amounts, unit="turns"
    )


main = cli.of("peers")

if __name__ == "__main__":
    raise SystemExit(main())
