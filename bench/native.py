"""The native engine beside the other runtimes on this machine, each of its sets of kernels by itself, in one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.peers.policies import amounts, load_committed
from quarl.policy.console import heartbeat
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.tables import Table
    from quarl.policy.bundle import Bundle

NATIVE = "native"
POLICIES = ("I", "II", "III", "pong-dqn")
WORDS = """\
The native engine beside the other runtimes
Time of one decision at batch 1 on one thread, from Python's call to the action: median over {{ turns }} turns of \
about {{ turn_s }} s. The contestants take turns on one core, each in its own process; a turn's value is the median \
of the means of its {{ parts }} parts. As fast as LiteRT: LiteRT's time divided by this one in the same turn; median, \
with the smallest and the largest in brackets.
Exact: after every layer the native engine has the integers of quarl.policy.reference, with each set of kernels \
(tests).
Measured on {{ results.machine }}; {{ results.versions }}; code {{ results.code }}.
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Answering):
    """What to time.

    Attributes:
        policy: committed ones
        precision: of the artifacts
    """

    policy: command_line.Policies = POLICIES
    precision: Annotated[command_line.Precisions, Parameter(metavar="int8,int4")] = (Precision.INT8, Precision.INT4)


def _ask(options: Options) -> dict[str, Any]:
    from quarl.device.agent.runtimes import find_installed_runtimes

    return {
        "versions": ", ".join(f"{name.value} {version}" for name, version in find_installed_runtimes().items()),
        "rows": [row for name in options.policy for row in _measure(load_committed(name), options.precision)],
    }


def _measure(bundle: Bundle, precisions: Sequence[Precision]) -> Iterator[dict[str, Any]]:
    from quarl.bench.peers.turns import of_runtime, prepare_folder, time_in_turns
    from quarl.convert.pipeline import build_graph
    from quarl.device.engine.engine import kernels_here, library

    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    for precision in precisions:
        graphs = {item: build_graph(spec, weights, calibration, precision, item) for item in ArtifactFormat}
        with prepare_folder(spec, bundle.golden().observations) as folder:
            contestants = [
                of_runtime(folder, runtime, kernels, graphs[runtime.artifact_format])
                for runtime in RuntimeName
                for kernels in (kernels_here(library()) if runtime is RuntimeName.NATIVE else ("",))
                if kernels != "plain"
            ]
            with command_line.progress_bar(f"timing {spec.name} {precision.value}") as progress:
                timings = time_in_turns(contestants, progress)
        for contestant, timed in zip(contestants, timings, strict=True):
            yield {
                "policy": spec.name,
                "precision": precision.value,
                "runtime": contestant.name,
                "bytes": timed.bytes,
                "turns_ns": [round(item, 1) for item in timed.turns_ns],
            }


def native_table(document: Mapping[str, Any]) -> Table:
    """Return a line for each policy, precision and contestant."""
    from quarl.bench.peers.turns import add_speed_ups, timing_facts
    from quarl.bench.report.text import kilobytes, nanoseconds
    from quarl.bench.tables import tabulate

    lines = [
        {
            "policy": row["policy"],
            "precision": row["precision"],
            "runtime": row["runtime"],
            "one decision": nanoseconds(row["median_ns"]),
            "as fast as LiteRT": row["as_fast"],
            "KB artifact": kilobytes(row["bytes"]),
        }
        for row in add_speed_ups(document["rows"], "policy", "precision")
    ]
    return tabulate(NATIVE, WORDS, lines, left=3, **timing_facts(document))


@heartbeat()
@cli.verb()
def native(options: Options) -> int:
    """Compare the native engine with the other runtimes on this machine, with each set of kernels, in one run.

        quarl bench native
        quarl bench native --policy I,pong-dqn --precision int8
        quarl bench native --keep

    Every contestant has a process of its own; they take turns on one core, batch 1, one thread, from Python's call to
    the action, with another golden observation at every decision. With fewer than 8 bits the other runtimes run the
    same network in an int8 container. --keep stores the answer in results/native.json, from which `quarl bench table
    native` prints its table. Otherwise nothing is written.
    """
    options.require_whole("--policy", is_whole=options.policy == POLICIES)
    return options.publish(
        NATIVE, _ask(options), lambda document: [native_table(document)], amounts=amounts, unit="turns"
    )


main = cli.of("bench native")

if __name__ == "__main__":
    raise SystemExit(main())
