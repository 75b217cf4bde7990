"""Which layer needs its bits, and do mixed widths beat the same width everywhere at the same size?

    python -m bench.study layers cartpole-dqn
    python -m bench.study layers I --budget-bits 3,4 --episodes 400
    python -m bench.study layers --keep --only-missing     all committed perceptrons that are not kept yet
    python -m bench.study layers --stored --update-docs    fills docs/layers.md, draws the pictures; measures nothing

First one layer's kernel at a time gets few bits, all else has 8: what that costs in return, and what three cheap
measures say that look at calibration observations alone. Then every assignment of 2 … 8 bits to the layers that is as
large as a uniform one is estimated by one of these, the output error; the best is flown on fresh episodes beside the
uniform one. A second one is chosen by flying the six best estimated and the uniform one, on episodes other than those
that judge it.

Sizes are bits of the kernels as a packed format would take them. Nothing is packed here: in the int8 container every
weight takes a byte, so no file gets smaller. Symmetric scheme, simulated in float.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench import command_line

if TYPE_CHECKING:
    from bench.study.layers.store import Layers

SEEDS, FRESH_SEEDS = (0, 2, 4), (11, 13, 17)  # those of layer_episodes: --help loads no numpy
BITS, BUDGETS = (5, 4, 3, 2), (3, 4)
FEWEST, MOST = 3, 7


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, print."""
    from bench.study.apart.command import add_study_arguments, check_study_arguments, read_bits
    from bench.study.sweep.command import read_seeds

    parser = command_line.parser(__doc__, "-m bench.study layers")
    parser.add_argument("bundles", nargs="*", metavar="BUNDLE", help="default: all committed perceptrons")
    parser.add_argument("--bits", type=read_bits, metavar="4,3,2", help="of one layer; default: 5,4,3,2")
    parser.add_argument("--budget-bits", type=read_budgets, metavar="3,4", help="of uniform widths; default: 3,4")
    parser.add_argument("--seeds", type=read_seeds, metavar="0,2,4", help="default: 0,2,4")
    parser.add_argument("--fresh-seeds", type=read_seeds, metavar="11,13,17", help="of judging; default: 11,13,17")
    parser.add_argument(
        "--episodes", type=command_line.positive, help="of each seed (default: 100; navigation 400, robots 14)"
    )
    add_study_arguments(parser)
    arguments = parser.parse_args(argv)
    check_study_arguments(parser, arguments, "layer_widths")
    if both := sorted(set(arguments.seeds or SEEDS) & set(arguments.fresh_seeds or FRESH_SEEDS)):
        parser.error(f"seed {both[0]} is to choose and to judge; give --fresh-seeds that are not among --seeds")
    return command_line.guarded(_run, arguments)


def read_budgets(text: str) -> tuple[int, ...]:
    """``3,4`` as widths that set budgets."""
    words = command_line.words(text)
    if "2" in words:
        raise argparse.ArgumentTypeError("2 bits are the fewest of every layer: there is nothing to choose; type 3,4")
    if bad := [word for word in words if not word.isdecimal() or not FEWEST <= int(word) <= MOST]:
        raise argparse.ArgumentTypeError(f"{bad[0]!r} is no budget; allowed are {FEWEST} … {MOST}")
    return tuple(sorted({int(word) for word in words}))


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.study.apart.command import folders
    from bench.study.layers import figure as layer_figure
    from bench.study.layers import store as layer_store
    from bench.study.layers import tables as layer_tables
    from bench.study.layers.episodes import BUNDLES, as_asked, current, in_order, open_all
    from train.__main__ import quiet_libraries

    names = arguments.bundles or list(BUNDLES)
    found = {}
    if arguments.stored or arguments.only_missing:
        kept = current(layer_store.read(), "layer_widths", names)
        if not arguments.stored:
            kept = as_asked(kept, lambda answer: differing(answer, arguments))
        found = {each.bundle: each for each in kept}
    if not arguments.stored:
        from bench.study.layers.flying import measure

        quiet_libraries()
        for asked in open_all(names, found, arguments.episodes, "layer_widths" if arguments.keep else None):
            found[asked.name] = measure(
                asked,
                arguments.bits or BITS,
                arguments.budget_bits or BUDGETS,
                arguments.seeds or SEEDS,
                arguments.fresh_seeds or FRESH_SEEDS,
            )
            if arguments.keep:
                command_line.say(f"kept: {layer_store.write(found[asked.name])}")
    answers = in_order(found.values())
    if not answers:
        raise command_line.BenchError("no answer is stored.", layer_store.AGAIN)
    made = layer_tables.tables(answers)
    if arguments.update_docs:
        command_line.update_docs(made)
    for folder in folders(arguments):
        command_line.say("\n".join(str(file) for file in layer_figure.save_figures(answers, folder)))
    if arguments.json:
        print(json.dumps({"ok": True, "answers": [dataclasses.asdict(each) for each in answers]}, ensure_ascii=False))
        return command_line.EXIT_OK
    for table in made:
        if arguments.markdown:
            print(rendering.to_markdown(table))
        else:
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def differing(answer: Layers, arguments: argparse.Namespace) -> dict[str, bool]:
    """Of each option whether a kept answer was measured otherwise than was typed; a default asks for nothing."""
    bits = {8, *(each.bits for each in answer.sensitivities)}  # all layers have 8 bits in any case
    return {
        "--bits": not set(arguments.bits or ()) <= bits,
        "--budget-bits": not set(arguments.budget_bits or ()) <= {each.bits for each in answer.budgets},
        "--seeds": arguments.seeds is not None and set(arguments.seeds) != set(answer.seeds),
        "--fresh-seeds": arguments.fresh_seeds is not None and set(arguments.fresh_seeds) != set(answer.fresh_seeds),
        "--episodes": arguments.episodes not in (None, answer.episodes),
    }


if __name__ == "__main__":
    raise SystemExit(main())
