"""``python -m bench.study [NAME]``: one experiment, or without a name every one that measures quantization."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from bench import command_line
from policy.hints import as_typed

STUDIES = {
    "sweep": ("bench.study.sweep.command", "how few bits does a policy take?"),
    "sweep-plot": ("bench.study.sweep.plot", "the pictures of what sweeps kept"),
    "apart": ("bench.study.apart", "which has to keep its bits: weights, hidden activations, observation?"),
    "layers": ("bench.study.layers", "which layer has to keep its bits?"),
    "budgets": ("bench.study.budgets", "are mixed widths worth it, at the same size?"),
    "qat": ("bench.study.qat", "is learning with quantizers worth it?"),
    "wide": ("bench.study.wide", "do narrower weights quantize better?"),
    "weights": ("bench.study.weights.command", "what do a policy's weights look like?"),
    "width": ("bench.study.width.command", "do wider weights quantize worse?"),
    "cells": ("bench.study.cells.command", "what do the benchmark's policies reach in each precision?"),
    "speed": ("bench.study.speed.command", "how fast is training, beside Stable-Baselines3?"),
    "env-speed": ("bench.study.speed.env_speed", "how fast are the environments?"),
    "mixed": ("bench.study.mixed.command", "does training in 16 bits run faster, and as well?"),
    "actorq": ("bench.study.actorq.command", "do quantized actors make distributed training faster?"),
    "actorq-scaling": ("bench.study.actorq.scaling", "how many actors can a learner feed?"),
}
EVERYTHING = "bench.study.everything"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that the first word names; options alone mean all of them."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        if words[0] not in STUDIES:
            listed = "\n".join(f"  python -m bench.study {name:<15} {asks}" for name, (_, asks) in STUDIES.items())
            print(as_typed(f"error: {words[0]!r} is no study; choose one of\n{listed}"), file=sys.stderr)
            return command_line.EXIT_USAGE
        module, words = STUDIES[words[0]][0], words[1:]
        if module.startswith("bench.study.actorq"):
            from train.actorq.variables import VARIABLES  # numpy reads them when it is loaded

            os.environ.update(VARIABLES)
    else:
        module = EVERYTHING
    loaded = importlib.import_module(module)
    if hasattr(loaded, "EXPERIMENT"):
        from bench.study import command

        return command.main(module, words)
    status: int = loaded.main(words)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
