"""How long one decision takes on a device: p50, p90, p99, cold start, with named denominators in the same run.

    python bench/latency.py --policy III
    python bench/latency.py --policy I,II,III --precision fp32,fp16,int8 --target pi@raspberrypi

A missing artifact is made first and deployed first. The fp32 artifact on the device and, where the device is this
machine, Keras' model(x) and a tf.function of it take turns with what is asked for.
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
    parser = command_line.parser(__doc__, "bench/latency.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8")
    parser.add_argument("--runs", type=command_line.positive, default=2000, help="timed runs (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=command_line.not_negative, default=200, help="untimed runs before each turn (default: 200)"
    )
    command_line.add_path(parser)
    parser.add_argument("--threads", type=command_line.positive, default=None, help="of the runtime (default: 1)")
    parser.add_argument("--no-baseline", action="store_true", help="leave out Keras and tf.function on the host")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import session
    from bench.measuring.measurements import latency_table, measure_latency, with_fp32

    with session.opened(arguments, with_fp32(arguments.precision)) as asking:
        for runtime, bundle in asking.deployed():
            with command_line.progress_bar(f"timing {bundle.spec.name}") as progress:
                made = measure_latency(
                    asking.device,
                    bundle,
                    asking.precisions,
                    runtime,
                    arguments.runs,
                    arguments.warmup,
                    arguments.path,
                    not arguments.no_baseline,
                    progress,
                )
            asking.keep(made)
    return session.answer(arguments, asking.reports, latency_table(asking.reports))


if __name__ == "__main__":
    raise SystemExit(main())
