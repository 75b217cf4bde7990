"""The tables that join what was measured: case study, latency flown, virtual Pi, where the policies come from.

    python bench/table.py                       on the terminal
    python bench/table.py --markdown            as Markdown
    python bench/table.py --update-readme       between the README's <!-- table:NAME --> markers

--update-readme also writes the measurements that each table stands on to results/NAME.jsonl, to be committed with it,
and the two pictures to docs/figures. With --results results/case-study.jsonl the table is made from those again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.rendering import Table
    from bench.report import Report

NAMES = ("case-study", "latency-flown", "virtual-pi", "agreement", "zoo", "mixed-precision", "training-speed")


def main(argv: Sequence[str] | None = None) -> int:
    """Join, print, write."""
    parser = command_line.parser(__doc__, "table")
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--target", default=None, help="device (default: the real one measured last)")
    parser.add_argument("--preset", choices=["easy", "medium", "shipped", "hard"], default="hard")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--update-readme", action="store_true", help="fill the README's sections")
    parser.add_argument("--readme", type=Path, default=None, metavar="FILE", help="default: README.md of the checkout")
    command_line.add_output_arguments(parser)
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.name if name not in NAMES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; there are {', '.join(NAMES)}")
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from bench import rendering

    found, skipped = tables(arguments)
    if not found:
        raise command_line.BenchError("\n".join(f"{name}: {why}" for name, why in skipped.items()))
    if arguments.json:
        import json

        print(json.dumps({"ok": True, "tables": [_as_json(table) for table, _ in found.values()]}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table, _ in found.values()))
    else:
        for table, _ in found.values():
            rendering.print_table(table, command_line.console())
    for name, why in skipped.items():
        command_line.say(f"{name}: {why}")
    if arguments.update_readme:
        _update_readme(arguments, found)
    return command_line.EXIT_OK


def tables(arguments: argparse.Namespace) -> tuple[dict[str, tuple[Table, list[Report]]], dict[str, str]]:
    """The tables there is data for, with the measurements each stands on; and why the others are not there."""
    from bench import agreement, case_study, mixed_precision, store, training_table, virtual_pi_table
    from bench.selection import Selection
    from policy.locate import ZOO

    found: dict[str, tuple[Table, list[Report]]] = {}
    skipped: dict[str, str] = {}
    for name in arguments.name or NAMES:
        makers: dict[str, Callable[[], tuple[Table, list[Report]]]] = {
            "case-study": lambda name=name: case_study.case_study(stored(name), arguments.preset),  # type: ignore[misc]
            "latency-flown": lambda name=name: case_study.latency_flown(stored(name), arguments.preset),  # type: ignore[misc]
            "virtual-pi": lambda name=name: virtual_pi_table.virtual_pi(everything(name), arguments.preset),  # type: ignore[misc]
            "agreement": lambda: (agreement.kept_table(), []),
            "training-speed": lambda: (training_table.kept_table(), []),
            "mixed-precision": lambda: (mixed_precision.kept_table(), []),
            "zoo": lambda: case_study.zoo_table(ZOO, stored("zoo", empty=True)),
        }

        def everything(name: str) -> list[Report]:
            return store.read_results(arguments.results or store.results_for(name))

        def stored(name: str, empty: bool = False) -> Selection:
            path = arguments.results or store.results_for(name)
            if empty and not path.exists():
                return Selection(())
            return Selection.of_target(store.read_results(path), arguments.target)

        try:
            found[name] = makers[name]()
        except (case_study.NothingStoredError, store.StoreError) as error:
            skipped[name] = str(error)
    return found, skipped


def _update_readme(arguments: argparse.Namespace, found: dict[str, tuple[Table, list[Report]]]) -> None:
    from bench import drawing, plots, rendering, store
    from bench.selection import Selection

    root = store.RESULTS.parent
    readme = arguments.readme or root / "README.md"
    changed = rendering.update_readme_file(readme, {name: table for name, (table, _) in found.items()})
    command_line.say(f"{readme}: {'updated' if changed else 'is up to date'}")
    if arguments.readme is not None:
        return  # another file than the repository's: its results and figures are not touched
    for name, (_, reports) in found.items():
        if reports:
            store.write_lines(reports, store.RESULTS / f"{name}.jsonl")
    if "case-study" in found:
        plots.save_figures(Selection.of_target(found["case-study"][1]), drawing.FIGURES, arguments.preset)


def _as_json(table: Table) -> dict[str, object]:
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows if row]
    return {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}


if __name__ == "__main__":
    raise SystemExit(main())
