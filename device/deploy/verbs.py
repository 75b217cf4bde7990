"""A command line of verbs: one function a verb, which returns what was done as data and as a text for people."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from quarl.device.deploy.errors import HostError
from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import Parser, as_typed

Run = Callable[[argparse.Namespace], tuple[Any, str]]


class Verbs:
    """The verbs of a parser. Called with a name and a function, whose docstring is the help, it adds one."""

    def __init__(
        self, top: argparse.ArgumentParser, *common: Parser, wrapped: Callable[[Run], Run] = lambda run: run
    ) -> None:
        """Begin with none.

        Args:
            top: the program's parser, or a verb's that has verbs of its own.
            common: parsers whose options every verb has, before ``--json``, which each of them has anyway.
            wrapped: makes of a verb's function the one that is run.
        """
        self._wrapped = wrapped
        last = Parser(add_help=False)
        last.add_argument("--json", action="store_true", help="print JSON, an object a line")
        self._parents = [*common, last]
        self._verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def __call__(self, name: str, run: Run) -> argparse.ArgumentParser:
        """Add a verb; returns its parser."""
        added = self._verbs.add_parser(name, parents=self._parents, help=run.__doc__, description=run.__doc__)
        added.set_defaults(run=self._wrapped(run))
        return added

    def within(self, name: str, description: str, *common: Parser) -> Verbs:
        """Add a verb that has verbs of its own, each with these options."""
        return Verbs(self._verbs.add_parser(name, help=description, description=description), *common)


def run_verb(parser: argparse.ArgumentParser, argv: Sequence[str] | None, left: str) -> int:
    """Run the verb that was typed, and print its text, if it has one, or with ``--json`` its data.

    Returns:
        0, or 1 when it failed (the message says what to do), or 130 after Ctrl-C, when it is said what is left: the
        verb's own default ``left``, or else the program's. Wrong usage ends the process with 2.
    """
    options = parser.parse_args(argv)
    try:
        with interruption.interruptible():
            result, text = options.run(options)
    except (HostError, PolicyError) as error:
        if options.json:
            print(json.dumps({"ok": False, "error": error.to_json()}))
        else:
            print(as_typed(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(as_typed(f"interrupted; {getattr(options, 'left', left)}"), file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    data = result if isinstance(result, dict) else plain(result)
    if output := json.dumps({"ok": True, **data}, default=plain) if options.json else as_typed(text):
        print(output)
    return 0


def plain(value: Any) -> Any:
    """One layer of what :mod:`json` cannot write by itself: a dataclass, an enum or a path."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
