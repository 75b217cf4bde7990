"""``python -m bench.study [NAME]``: one experiment, or without a name every one that measures quantization."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from quarl.bench import command_line
from quarl.policy.hints import as_typed

STUDIES = {
    "sweep": ("quarl.bench.study.sweep", "how few bits does a policy take?"),
    "qat": ("quarl.bench.study.learning.qat", "is learning with quantizers worth it?"),
    "native": ("quarl.bench.study.learning.native", "what do packed bits reach, and how many rows have to be active?"),
    "weights": ("quarl.bench.study.weights", "what do a policy's weights look like?"),
    "width": ("quarl.bench.study.width", "do wider weights quantize worse?"),
    "cells": ("quarl.bench.study.cells", "what do the benchmark's policies reach in each precision?"),
    "ptq": ("quarl.bench.study.ptq_table", "what does quantizing after training cost, beside the paper's figures?"),
    "speed": ("quarl.bench.study.speed", "how fast is training, beside Stable-Baselines3?"),
    "mixed": ("quarl.bench.study.mixed", "does training in 16 bits run faster, and as well?"),
    "actorq-breakdown": ("quarl.bench.study.actorq.breakdown", "where does an actor's time go?"),
    "actorq-trainings": ("quarl.bench.study.actorq.trainings", "do quantized actors make distributed training faster?"),
    "actorq-scaling": ("quarl.bench.study.actorq.scaling", "how many actors can a learner feed?"),
}
EVERYTHING = "quarl.bench.study.everything"
ONE_THREAD = ("sweep", "cells")
"""With another number of threads numpy's sums end in other last bits, quantizers' scales follow them, and a walking
robot's episode is another one; small products are not faster with several."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that the first word names; options alone mean all of them."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name and name not in STUDIES:
        listed = "\n".join(f"  python -m bench.study {each:<16} {asks}" for each, (_, asks) in STUDIES.items())
        print(as_typed(f"error: {name!r} is no study; choose one of\n{listed}"), file=sys.stderr)
        return command_line.EXIT_USAGE
    module = STUDIES[name][0] if name else EVERYTHING
    if name in ONE_THREAD:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is loaded
    elif module.startswith("quarl.bench.study.actorq"):
        from quarl.train.actorq import VARIABLES  # numpy reads them when it is loaded

        os.environ.update(VARIABLES)
    loaded = importlib.import_module(module)
    if hasattr(loaded, "main"):
        status: int = loaded.main(words)
        return status
    from quarl.bench.study import command

    return command.main(module, words) if hasattr(loaded, "EXPERIMENT") else command.join(name, module, words)


if __name__ == "__main__":
    raise SystemExit(main())
