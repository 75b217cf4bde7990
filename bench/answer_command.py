"""A command whose answer is one document: asked, printed as tables or JSON, with --keep stored in results/NAME.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.report.tables import Table

Document = Mapping[str, Any]


@Parameter(name="*")
@dataclass(kw_only=True)
class Answering(command_line.Printing):
    """What becomes of the answer.

    Attributes:
        keep: store it in results/
    """

    keep: bool = False


@dataclass(frozen=True)
class AnswerCommand:
    """What a command asks and how its answer reads.

    Attributes:
        name: of the file that --keep stores it in, without its end.
        ask: (arguments) → what the document says, the machine and the commit apart.
        tables: () → tables of the document by name, loaded when they are made.
        amounts: (document) → how much of each thing it rests on; a stored one gives way to none that rests on less.
        unit: of the amounts.
        left_out: (arguments) → what to leave out so that all is asked, as what --keep stores has to be; "": it is.
        holds: (document) → whether the exit status is 0.
    """

    name: str
    ask: Callable[[Any], dict[str, Any]]
    tables: Callable[[], Mapping[str, Callable[[Document], Table]]]
    amounts: Callable[[Document], Mapping[tuple[str, ...], int]]
    unit: str
    left_out: Callable[[Any], str] = field(default=lambda arguments: "")
    holds: Callable[[Document], bool] = field(default=lambda document: True)

    @heartbeat()
    def run(self, arguments: Any) -> int:
        """Ask, print, keep; returns the exit status."""
        from quarl.bench.report import store
        from quarl.bench.report import tables as rendering
        from quarl.bench.report.machine import this_machine
        from quarl.policy.locate import code_version

        if arguments.keep and (words := self.left_out(arguments)):
            raise command_line.BenchError("--keep stores the whole answer or none.", f"Leave {words} out.")
        document = {"machine": this_machine(), "code": code_version(), **self.ask(arguments)}
        holds = self.holds(document)
        if arguments.json:
            print(json.dumps({"ok": holds, **document}, ensure_ascii=False))
        else:
            for table in self.tables().values():
                rendering.print_table(table(document), command_line.console())
        if arguments.keep:
            store.keep_answer(store.answer_file(self.name), document, self.amounts, self.unit)
        return 0 if holds else 1
