"""The tables that join what was measured: case study, latency flown, virtual Pi, where the policies come from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.report.document import Report
    from quarl.bench.report.tables import Table
    from quarl.bench.tables.registry import Declared

OF_PAPER = tuple(f"paper-{theme}" for theme in ("after-training", "in-training", "width", "speed", "drone", "actorq"))
NAMES = (
    "summary",
    "case-study",
    "latency-flown",
    "virtual-pi",
    "zoo",
    "recommend",
    "flight-dynamics",
    "flight-rises",
    "airsim-flights",
    "depth",
    "imports",
    "native",
    "peers",
    "loop-round-trips",
    "loop-punctuality",
    "loop-punctuality-emulated",
    *(f"trained-{method}" for method in ("ppo", "recurrent_ppo", "a2c", "dqn", "ddpg", "d4pg", "td3", "sac")),
    *OF_PAPER,
)
PAPER = "paper"
"""Stands for all tables of docs/paper.md."""
MEASURED = NAMES[:5]  # by devices, into the store; the others' answers are files of their own


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Reading):
    """Which tables, of what, and where they go.

    Attributes:
        name: of tables (default: all); paper: those of docs/paper.md
        target: device (default: the real one measured last)
        preset: of the arena
        markdown: print Markdown
        output_path: draw the case study's pictures into this folder
        update_docs: fill the tables of README.md and docs/
    """

    name: tuple[str, ...] = field(default=(), kw_only=False)
    target: str | None = None
    preset: Literal["easy", "medium", "shipped", "hard"] = "hard"
    markdown: bool = False
    output_path: Path | None = None
    update_docs: bool = False


@heartbeat()
@cli.verb()
def table(options: Options) -> int:
    """The tables that join what was measured: case study, latency flown, virtual Pi, where the policies come from.

        quarl bench table                       on the terminal, of the measurements that are committed
        quarl bench table --own                 of what this machine has measured
        quarl bench table --markdown            as Markdown
        quarl bench table paper                 QuaRL's claims, and what the stored rows say to them
        quarl bench table case-study --output-path /tmp/pictures

    --update-docs fills README.md and docs/, draws the case study's two pictures there, and with --own or --results
    takes the measurements over into results/NAME.jsonl, to be committed with them: never fewer than there are.
    """
    from quarl.bench.report import tables as rendering

    if unknown := [name for name in options.name if name not in (PAPER, *NAMES)]:
        raise command_line.UsageError(f"there is no table {unknown[0]!r}; there are {', '.join((PAPER, *NAMES))}.")
    found, skipped = tables(options)
    if not found:
        raise command_line.BenchError("\n".join(f"{name}: {why}" for name, why in skipped.items()))
    made = [table for table, _ in found.values()]
    if options.update_docs:
        _update_docs(options, found)
    files = _draw(found, options.output_path, options.preset)
    if options.json:
        tables_too = [_as_json(table) for table in made]
        print(json.dumps({"ok": True, "tables": tables_too, "files": list(map(str, files))}, ensure_ascii=False))
    elif options.markdown:
        print("\n".join(rendering.to_markdown(table) for table in made))
    else:
        for table in made:
            rendering.print_table(table, command_line.console())
        if files:
            print(f"Pictures: {', '.join(str(file) for file in files if file.suffix == '.png')}")
    for name, why in skipped.items():
        command_line.say(f"{name}: {why}")
    _say_what_else_there_is(options)
    return cli.EXIT_OK


def tables(options: Options) -> tuple[dict[str, tuple[Table, list[Report]]], dict[str, str]]:
    """The tables there is data for, with the measurements each stands on; and why the others are not there."""
    from quarl.bench.report import store
    from quarl.bench.tables.registry import Kept
    from quarl.policy.places import ZOO

    kept = Kept(options.source, zoo=ZOO, preset=options.preset, target=options.target, say=command_line.say)
    declared = _declared()
    found: dict[str, tuple[Table, list[Report]]] = {}
    skipped: dict[str, str] = {}
    asked = [each for name in options.name for each in (OF_PAPER if name == PAPER else (name,))]
    for name in asked or (MEASURED if options.own or options.results else NAMES):
        try:
            found[name] = declared[name].make(kept)
        except store.StoreError as error:
            skipped[name] = str(error)
    return found, skipped


def _declared() -> dict[str, Declared]:
    """Each table by its name; of some, words or rows come from the command that keeps the answer."""
    from quarl.bench import native, paper
    from quarl.bench.peers import __main__ as peers
    from quarl.bench.recommending import answer
    from quarl.bench.tables.registry import TABLES, Declared, answered

    return {
        **TABLES,
        "recommend": Declared("quarl recommend", lambda kept: (answer.kept_table(), [])),
        "native": answered("native", native.native_table, "bench/native.py"),
        "peers": answered("peers", peers.peers_table, "-m bench.peers"),
        **{name: Declared(paper.COMMAND, partial(paper.theme_table, name)) for name in OF_PAPER},
    }


def _update_docs(options: Options, found: dict[str, tuple[Table, list[Report]]]) -> None:
    """Take the measurements over where they are not the committed ones; then fill the pages from them."""
    from quarl.bench.report import figures as drawing
    from quarl.bench.report import store

    store.replace_lines({store.RESULTS / f"{name}.jsonl": reports for name, (_, reports) in found.items() if reports})
    command_line.update_docs([table for table, _ in found.values()])
    _draw(found, drawing.FIGURES, options.preset)


def _draw(found: dict[str, tuple[Table, list[Report]]], folder: Path | None, preset: str) -> list[Path]:
    """The case study's two pictures; returns their files."""
    from quarl.bench.report.selection import Selection
    from quarl.bench.tables import plots

    if folder is None or "case-study" not in found:
        return []
    return plots.save_figures(Selection(tuple(found["case-study"][1])), folder, preset)


def _say_what_else_there_is(options: Options) -> None:
    """Say that this machine has measurements of its own, where others are shown."""
    from quarl.bench.report import store

    if not options.own and not options.results and store.DEFAULT_STORE.exists():
        command_line.say(
            f"These are the committed measurements. This machine's own are in {store.DEFAULT_STORE}; "
            "type: quarl bench table --own"
        )


def _as_json(table: Table) -> dict[str, object]:
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows if row]
    return {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}


main = cli.of("bench table")

if __name__ == "__main__":
    raise SystemExit(main())
