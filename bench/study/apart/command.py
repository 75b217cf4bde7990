"""Weights, hidden activations, observation: which of the three has to keep its bits? Each apart, the others at 8.

    python -m bench.study apart cartpole-dqn
    python -m bench.study apart II --bits 2,3,4 --episodes 400
    python -m bench.study apart --keep --only-missing     all committed perceptrons that are not kept yet
    python -m bench.study apart --stored --update-docs    fills docs/layers.md, draws the picture; measures nothing

The symmetric scheme, which devices run, simulated in float: kernels with one scale a channel, activations and the
normalised observation with one range each, seen on the calibration observations. All widths fly the same episodes.
--keep stores each answer in results/study/ as it is measured; an answer about other weights than the committed ones is
stale, and measured anew by --only-missing; so is one that was kept with other --bits, --seeds or --episodes than those
that are typed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line

if TYPE_CHECKING:
    from bench.report.tables import Table
    from bench.study.apart.store import Apart

SEEDS = (0, 2, 4)  # layer_episodes.SEEDS: --help loads no numpy
BITS = (7, 6, 5, 4, 3, 2)
FEWEST, MOST = 2, 8
WORDS = {"weights": "weights", "hidden": "hidden activations", "input": "observation"}
SHOWN = (4, 3, 2)  # widths whose errors stand in the table


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, print."""
    from bench.study.sweep.command import read_seeds

    parser = command_line.parser(__doc__, "-m bench.study apart")
    parser.add_argument("bundles", nargs="*", metavar="BUNDLE", help="default: all committed perceptrons")
    parser.add_argument("--bits", type=read_bits, metavar="4,3,2", help="default: 7,6,5,4,3,2; and 8")
    parser.add_argument("--seeds", type=read_seeds, metavar="0,2,4", help="default: 0,2,4")
    parser.add_argument(
        "--episodes", type=command_line.positive, help="of each seed (default: 100; navigation 400, robots 14)"
    )
    add_study_arguments(parser)
    arguments = parser.parse_args(argv)
    check_study_arguments(parser, arguments, "precision_apart")
    return command_line.guarded(_run, arguments)


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """--keep, --only-missing, --stored, --update-docs, --output-path, --markdown, --json."""
    parser.add_argument("--keep", action="store_true", help="store each answer in results/study/")
    parser.add_argument("--only-missing", action="store_true", help="measure only what is not kept, or kept and stale")
    parser.add_argument("--stored", action="store_true", help="measure nothing; use what is kept")
    parser.add_argument("--update-docs", action="store_true", help="fill docs/layers.md, draw its pictures")
    parser.add_argument("--output-path", type=Path, metavar="FOLDER", help="draw the pictures into this folder")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")


def check_study_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace, command: str) -> None:
    """The page has the rows of all bundles: a table of some is not to take their place."""
    if arguments.update_docs and arguments.bundles:
        parser.error(
            f"--update-docs fills the page with all bundles, not with {', '.join(arguments.bundles)} alone; "
            f"measure with --keep, then type python -m bench.{command} --stored --update-docs"
        )


def read_bits(text: str) -> tuple[int, ...]:
    """``4,3,2`` as widths."""
    words = command_line.words(text)
    if bad := [word for word in words if not word.isdecimal() or not FEWEST <= int(word) <= MOST]:
        raise argparse.ArgumentTypeError(f"{bad[0]!r} is no width; allowed are {FEWEST} … {MOST}")
    return tuple(dict.fromkeys(map(int, words)))


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.study.apart import figure as precision_apart_figure
    from bench.study.apart import store as precision_apart_store
    from bench.study.layers.episodes import BUNDLES, as_asked, current, in_order, open_all
    from train.__main__ import quiet_libraries

    names = arguments.bundles or list(BUNDLES)
    found = {}
    if arguments.stored or arguments.only_missing:
        kept = current(precision_apart_store.read(), "precision_apart", names)
        if not arguments.stored:
            kept = as_asked(kept, lambda answer: differing(answer, arguments))
        found = {each.bundle: each for each in kept}
    if not arguments.stored:
        from bench.study.apart.flying import measure

        quiet_libraries()
        for asked in open_all(names, found, arguments.episodes, "precision_apart" if arguments.keep else None):
            found[asked.name] = measure(asked, arguments.bits or BITS, arguments.seeds or SEEDS)
            if arguments.keep:
                command_line.say(f"kept: {precision_apart_store.write(found[asked.name])}")
    answers = in_order(found.values())
    if not answers:
        raise command_line.BenchError("no answer is stored.", precision_apart_store.AGAIN)
    made = tables(answers)
    if arguments.update_docs:
        command_line.update_docs(made)
    for folder in folders(arguments):
        command_line.say("\n".join(str(file) for file in precision_apart_figure.save_figure(answers, folder)))
    if arguments.json:
        print(json.dumps({"ok": True, "answers": [dataclasses.asdict(each) for each in answers]}, ensure_ascii=False))
        return command_line.EXIT_OK
    for table in made:
        if arguments.markdown:
            print(rendering.to_markdown(table))
        else:
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def differing(answer: Apart, arguments: argparse.Namespace) -> dict[str, bool]:
    """Of each option whether a kept answer was measured otherwise than was typed; a default asks for nothing."""
    return {
        "--bits": not set(arguments.bits or ()) <= set(answer.widths),
        "--seeds": arguments.seeds is not None and set(arguments.seeds) != set(answer.seeds),
        "--episodes": arguments.episodes not in (None, answer.episodes),
    }


def folders(arguments: argparse.Namespace) -> list[Path]:
    """Where pictures go."""
    from bench.study.sweep.plot import STUDY_FIGURES

    return [STUDY_FIGURES] * arguments.update_docs + [arguments.output_path] * (arguments.output_path is not None)


def tables(answers: Sequence[Apart]) -> list[Table]:
    """What each part takes, and which one costs most."""
    return [parts_table(answers), costs_table(answers)]


def parts_table(answers: Sequence[Apart]) -> Table:
    """A row for each bundle and part."""
    from bench.report.tables import Table
    from bench.report.text import NOT_KNOWN
    from bench.study.apart.store import LIMITS, PARTS, fewest_bits

    rows: list[tuple[str, ...]] = []
    for each in answers:
        for part in PARTS:
            fewest = [fewest_bits(each.of_part(part), limit) for limit in LIMITS]
            points = [each.point(part, bits) for bits in SHOWN]
            rows.append(
                (
                    f"{each.bundle}, n={each.all_episodes:,}" if part == PARTS[0] else "",
                    WORDS[part],
                    *(NOT_KNOWN if bits is None else str(bits) for bits in fewest),
                    *(NOT_KNOWN if point is None else percent(point.relative_error) for point in points),
                )
            )
        rows.append(())
    return Table(
        "precision-apart",
        "One part with few bits, the other two with 8: what it costs",
        (
            "policy, episodes",
            "part",
            *(f"bits within {limit:g} %" for limit in LIMITS),
            *(f"error at {bits} bits, %" for bits in SHOWN),
        ),
        tuple(rows),
        (
            "Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval; "
            "0: less than 0.005 % in all three numbers. Bits within 5 %: the fewest at which, and at every larger "
            "measured width, the whole interval is at or below 5 %; – where these episodes do not show that even 8 "
            "bits are.",
            f"Measured: {measured(answers)}.",
            "n-bit weights have 2ⁿ − 1 levels, one scale a channel; activations and observation 2ⁿ levels over one "
            "range that the calibration observations span. Simulated in float; no size or speed follows from it.",
        ),
        left=2,
    )


def measured(answers: Sequence[Apart]) -> str:
    """``8, 4, 3, 2 bits (cartpole-dqn, II)``, for each set of widths."""
    by_widths: dict[str, list[str]] = {}
    for each in answers:
        by_widths.setdefault(", ".join(map(str, each.widths)), []).append(each.bundle)
    if len(by_widths) == 1:
        return f"{next(iter(by_widths))} bits"
    return "; ".join(f"{widths} bits ({', '.join(names)})" for widths, names in by_widths.items())


def costs_table(answers: Sequence[Apart]) -> Table:
    """A row for each bundle: what is lost first, and what costs most at each width."""
    from bench.report.tables import Table
    from bench.study.apart.store import LIMITS, costliest, first_loss

    rows = []
    for each in answers:
        first = first_loss(each)
        where = "nothing down to 2" if first is None else f"{joined(first[1])}, at {first[0]} bits"
        rows.append((each.bundle, where, *(said(costliest(each, bits)) for bits in SHOWN)))
    return Table(
        "precision-costs",
        "Which part decides",
        ("policy", f"first to cost over {LIMITS[0]:g} %", *(f"costs most at {bits} bits" for bits in SHOWN)),
        tuple(rows),
        tuple(findings(answers)),
        left=2,
    )


def findings(answers: Sequence[Apart]) -> list[str]:
    """The counts, in sentences."""
    from bench.study.apart.store import LIMITS, PARTS, costliest, first_loss

    firsts = [found[1] for each in answers if (found := first_loss(each)) is not None]
    alone = {part: sum(parts == (part,) for parts in firsts) for part in PARTS}
    several = sum(len(parts) > 1 for parts in firsts)
    counts = ", ".join(f"the {WORDS[part]} alone in {count}" for part, count in alone.items())
    lines = [
        f"First to cost over {LIMITS[0]:g} %, going down from 8 bits (the whole interval above): {counts}, several at "
        f"once in {several}; none down to 2 bits in {len(answers) - len(firsts)} of {len(answers)} policies."
    ]
    for bits in SHOWN:
        most = [costliest(each, bits) for each in answers if any(c.bits == bits for c in each.contrasts)]
        counts = ", ".join(f"the {WORDS[part]} in {most.count(part)}" for part in PARTS)
        lines.append(f"Costs most at {bits} bits: {counts}, not decided in {most.count(None)}.")
    lines.append(
        "Costs most: loses over 1 % of |fp32| more than either other part, by the whole paired 95 % intervals; – where "
        "that is not shown, because nothing is lost, or everything, or the episodes are too few. Each policy is one "
        "training."
    )
    return lines


def said(part: str | None) -> str:
    """A part, or that there is none."""
    from bench.report.text import NOT_KNOWN

    return NOT_KNOWN if part is None else WORDS[part]


def joined(parts: Sequence[str]) -> str:
    """``weights and observation``, ``all three``."""
    if len(parts) == len(WORDS):
        return "all three"
    names = [WORDS[part] for part in parts]
    return " and ".join(names)


def percent(estimate: object) -> str:
    """``0.92 [0.67, 1.17]``, or ``0`` where nothing changed."""
    from bench.report.intervals import Estimate
    from bench.study.sweep.command import bracketed

    assert isinstance(estimate, Estimate)
    ends = (estimate.value, estimate.low, estimate.high)
    return "0" if all(end is not None and abs(end) < NEGLIGIBLE for end in ends) else bracketed(estimate)


NEGLIGIBLE = 0.005  # percent: prints as 0.00


if __name__ == "__main__":
    raise SystemExit(main())
