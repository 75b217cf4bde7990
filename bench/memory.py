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

from bench import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, print."""
    parser = command_line.parser(__doc__, "bench/memory.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8", several_runtimes=True)
    parser.add_argument("--runs", type=command_line.positive, default=200, help="decisions served (default: 200)")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import access
    from bench.measuring import measurements as measuring
    from bench.measuring.questions import ask_memory
    from bench.report import store
    from bench.report import tables as rendering
    from policy.bundle import Bundle

    store.prepare(arguments.results or store.DEFAULT_STORE)
    reports = []
    run = measuring.new_run()
    bundles = {
        (runtime, policy): access.bundle_with(policy, arguments.precision, runtime)
        for policy in arguments.policy
        for runtime in arguments.runtime
    }
    with access.connected(arguments.target) as device:
        for runtime in arguments.runtime:
            for policy in arguments.policy:
                bundle = Bundle.load(bundles[runtime, policy].path)
                device.deploy(bundle, arguments.precision, runtime)
                for precision in arguments.precision:
                    with device.serving(bundle.spec.name, precision, runtime) as served:
                        reports.append(ask_memory(served, run, arguments.runs))
                    store.add(reports[-1:], arguments.results or store.DEFAULT_STORE)
    if arguments.json:
        command_line.print_json(reports)
    else:
        rendering.print_table(measuring.memory_table(reports), command_line.console())
    return command_line.EXIT_OK


if __name__ == "__main__":
    raise SystemExit(main())
