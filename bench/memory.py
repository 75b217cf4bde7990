"""How much memory a policy takes on a device: artifact, resident before and after loading, peak while serving.

python bench/memory.py --policy III
python bench/memory.py --policy III --precision fp32,fp16,int8 --runtime litert,tflite-runtime,onnxruntime
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl.bench import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, print."""
    parser = command_line.parser(__doc__, "bench/memory.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8", several_runtimes=True)
    parser.add_argument("--runs", type=command_line.positive, default=200, help="decisions served (default: 200)")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from quarl.bench.device_session import session
    from quarl.bench.device_session.questions import ask_memory
    from quarl.bench.tables.answers import MEMORY

    with session.opened(arguments) as asking:
        asking.ask_each(lambda served: [ask_memory(served, asking.run, arguments.runs)])
    return session.answer(arguments, asking.reports, MEMORY.table(asking.reports))


if __name__ == "__main__":
    raise SystemExit(main())
