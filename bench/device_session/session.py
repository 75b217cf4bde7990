"""A measuring command's way: bundles made ready, a device, each artifact served and asked, each answer kept at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl import cli
from quarl.bench import command_line
from quarl.bench import tables as rendering
from quarl.bench.device_session import access
from quarl.bench.report import store
from quarl.bench.report.document import new_run
from quarl.policy.spec import Precision, RuntimeName, executions

if TYPE_CHECKING:
    from quarl.bench.device_session.access import Device
    from quarl.bench.device_session.questions import Served
    from quarl.bench.report.document import Report
    from quarl.bench.tables import Table
    from quarl.policy.bundle import Bundle


@dataclass
class Session:
    """A connected device, what it is asked about, and the answers so far.

    Attributes:
        device: the device that serves.
        bundles: with all artifacts that are asked about, by runtime, in the order asked for.
        precisions: of each bundle.
        where: the answers are kept.
        reports: the answers.
        run: id of what is measured side by side.
    """

    device: Device
    bundles: Sequence[tuple[RuntimeName, Bundle]]
    precisions: Sequence[Precision]
    where: Path
    reports: list[Report] = field(default_factory=list)
    run: str = field(default_factory=new_run)

    def keep(self, reports: Iterable[Report]) -> None:
        """Store answers, each as it comes: what was measured stays, whatever happens to the next."""
        for report in reports:
            store.add([report], self.where)
            self.reports.append(report)

    def deploy_bundles(self) -> Iterator[tuple[RuntimeName, Bundle]]:
        """Yield each bundle, when it is on the device."""
        for runtime, bundle in self.bundles:
            self.device.deploy(bundle, self.list_precisions(runtime), runtime)
            yield runtime, bundle

    def list_precisions(self, runtime: RuntimeName) -> list[Precision]:
        """Return the session's precisions that a runtime executes."""
        return [precision for precision in self.precisions if runtime.artifact_format.expresses(precision)]

    def ask_each(self, question: Callable[[Served], Iterable[Report]]) -> None:
        """Ask about every artifact, each served by a fresh process."""
        for runtime, bundle in self.deploy_bundles():
            for precision in self.list_precisions(runtime):
                with self.device.serving(bundle.spec.name, precision, runtime) as served:
                    self.keep(question(served))


@contextmanager
def open_session(
    arguments: command_line.DeviceOptions, precisions: Sequence[Precision] | None = None
) -> Iterator[Session]:
    """See that answers can be kept and that the device is there, make what is missing of the artifacts, and connect.

    Args:
        arguments: policy, precision, runtime, target, results; threads where there are some.
        precisions: instead of ``arguments.precision``.
    """
    from quarl.device.deploy.connection import require_reachable

    without_python = arguments.agent == "native"
    where = arguments.results or store.DEFAULT_STORE
    store.prepare(where)
    requested = precisions or arguments.precision
    require_reachable(arguments.target)
    runtimes = arguments.runtime
    if without_python and RuntimeName.NATIVE not in runtimes:
        raise command_line.BenchError(
            f"--agent native requires --runtime native, got {','.join(one.value for one in runtimes)}.",
            "Type --runtime native.",
        )
    wanted = executions(requested, runtimes)
    bundles = [
        (runtime, access.bundle_with(policy, [precision for precision, by in wanted if by is runtime], runtime))
        for runtime in dict.fromkeys(by for _, by in wanted)
        for policy in arguments.policy
    ]
    with access.connect(arguments.target, getattr(arguments, "threads", None), without_python) as device:
        yield Session(device, bundles, requested, where)


def answer(arguments: command_line.Printing, reports: Sequence[Report], *tables: Table, **more: Any) -> int:
    """Print the tables; with --json the reports and what else is named. Returns the exit status."""
    if arguments.json:
        answer = {"ok": True, "reports": [report.to_dict() for report in reports], **more}
        print(json.dumps(answer, ensure_ascii=False))
    for table in () if arguments.json else tables:
        rendering.print_table(table, command_line.console())
    return cli.EXIT_OK
