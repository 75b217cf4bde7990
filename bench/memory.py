"""How much memory a policy takes on a device: artifact, resident before and after loading, peak while serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.command_line import Positive, Runtimes
from quarl.policy.console import heartbeat
from quarl.policy.spec import RuntimeName

if TYPE_CHECKING:
    from quarl.bench.report.document import Report
    from quarl.bench.tables import Table


WORDS = """\
Memory
{{ machines }}
MB resident of the agent's process (10⁶ bytes), a fresh process for each row.
{{ own_notes }}
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.DeviceOptions):
    """What to measure.

    Attributes:
        runtime: one, or several with commas
        runs: decisions served
    """

    runtime: Runtimes = (RuntimeName.LITERT,)
    runs: Positive = 200


@heartbeat()
@cli.verb()
def memory(options: Options) -> int:
    """Measure a policy's memory on a device: artifact, resident before and after loading, peak while serving.

    quarl bench memory --policy III
    quarl bench memory --policy III --precision fp32,fp16,int8 --runtime litert,tflite-runtime,onnxruntime
    """
    from quarl.bench.device_session import session
    from quarl.bench.device_session.questions import ask_memory

    with session.open_session(options) as asking:
        asking.ask_each(lambda served: [ask_memory(served, asking.run, options.runs)])
    return session.answer(options, asking.reports, memory_table(asking.reports))


def memory_table(reports: Sequence[Report]) -> Table:
    """Return a line for each artifact in each runtime."""
    from quarl.bench.report.notes import circumstances, machine_notes, report_notes
    from quarl.bench.report.text import join_distinct, kilobytes, megabytes
    from quarl.bench.tables import tabulate

    lines = [
        {
            "policy": report.policy,
            "precision": report.precision or "",
            "runtime": f"{report.runtime} {report.runtime_version}",
            "KB artifact": kilobytes(report.artifact.bytes),
            "MB agent alone": megabytes(report.memory.baseline),
            "MB runtime imported": megabytes(report.memory.before_load),
            "MB loaded": megabytes(report.memory.after_load),
            "MB peak serving": megabytes(report.memory.running_peak),
            "MB added by loading": megabytes(report.memory.artifact_share),
            "measured": join_distinct(circumstances(report)),
        }
        for report in reports
        if report.artifact and report.memory
    ]
    machines, notes = ("\n".join(of(reports)) for of in (machine_notes, report_notes))
    titled = ("runtime", "measured")
    return tabulate("memory", WORDS, lines, left=3, titled=titled, machines=machines, own_notes=notes)


main = cli.of("bench memory")

if __name__ == "__main__":
    raise SystemExit(main())
