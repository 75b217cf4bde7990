"""How much memory a policy takes on a device: artifact, resident before and after loading, peak while serving."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.command_line import Positive, Runtimes
from quarl.policy.console import heartbeat
from quarl.policy.spec import RuntimeName


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.DeviceOptions):
    """What is asked.

    Attributes:
        runtime: one, or several with commas
        runs: decisions served
    """

    runtime: Runtimes = (RuntimeName.LITERT,)
    runs: Positive = 200


@heartbeat()
@cli.verb()
def memory(options: Options) -> int:
    """How much memory a policy takes on a device: artifact, resident before and after loading, peak while serving.

    quarl bench memory --policy III
    quarl bench memory --policy III --precision fp32,fp16,int8 --runtime litert,tflite-runtime,onnxruntime
    """
    from quarl.bench.device_session import session
    from quarl.bench.device_session.questions import ask_memory
    from quarl.bench.tables.answers import MEMORY

    with session.opened(options) as asking:
        asking.ask_each(lambda served: [ask_memory(served, asking.run, options.runs)])
    return session.answer(options, asking.reports, MEMORY.table(asking.reports))


main = cli.of("bench memory")

if __name__ == "__main__":
    raise SystemExit(main())
