"""What all commands of this folder share: arguments, errors and exit codes, where words and JSON go."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quarl.policy import interruption
from quarl.policy.errors import PolicyError, QuarlError
from quarl.policy.heartbeat import heartbeat, say
from quarl.policy.hints import Parser, as_typed, make_room
from quarl.policy.spec import Precision, RuntimeName, parse_enum  # policy.spec loads numpy

if TYPE_CHECKING:
    from rich.console import Console

    from quarl.bench.report.tables import Table

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
EPILOG = "exit status: 0 done, 1 failed (the message says what to do next), 2 wrong arguments, 130 interrupted"
FILE_WIDTH = 240  # characters of a line when no terminal says how wide it is

Progress = Callable[[int, int], None]
T = TypeVar("T", int, float)


class BenchError(QuarlError, RuntimeError):
    """A question that could not be answered; ``next_step`` is what to type next."""

    separator = "\n  next: "


class UsageError(BenchError):
    """A bundle, width or task that there is not: the arguments are wrong, exit status 2."""


def parser(doc: str | None, command: str) -> argparse.ArgumentParser:
    """A parser that prints the module's docstring; ``command`` is what is typed after ``python``."""
    return Parser(prog=f"python {command}", description=doc, epilog=EPILOG)


def add_device_arguments(arguments: argparse.ArgumentParser, precisions: str, several_runtimes: bool = False) -> None:
    """--policy, --precision, --runtime, --target, --json, --results."""
    arguments.add_argument("--policy", required=True, type=words, metavar="III", help="one, or several with commas")
    arguments.add_argument(
        "--precision",
        type=read_precisions,
        default=read_precisions(precisions),
        metavar=precisions,
        help="fp32, fp16, int8, int7 … int2, mixed; several with commas (default: %(metavar)s)",
    )
    names = [name.value for name in RuntimeName]
    one_or_several: dict[str, Any] = {"choices": names, "default": "litert", "help": "default: %(default)s"}
    if several_runtimes:
        one_or_several = {"type": read_runtimes, "default": [RuntimeName.LITERT], "metavar": "litert"}
        one_or_several["help"] = f"one, or several with commas, of {', '.join(names)} (default: litert)"
    arguments.add_argument("--runtime", **one_or_several)
    arguments.add_argument(
        "--agent",
        choices=["python", "native"],
        default="python",
        help="native: the native engine is served by the agent that needs no Python (with --runtime native)",
    )
    add_target(arguments)
    add_output_arguments(arguments)


def add_target(arguments: argparse.ArgumentParser) -> None:
    """Add the option --target."""
    arguments.add_argument(
        "--target",
        default="local",
        metavar="user@host[:port]",
        help="device; local (default) is an SSH server on this machine that the command starts itself",
    )


def add_path(arguments: argparse.ArgumentParser) -> None:
    """Add the option --path."""
    arguments.add_argument(
        "--path",
        choices=["runtime", "decide"],
        default="runtime",
        help="runtime (default): set input, invoke, read the action; decide: from request line to reply line",
    )


def add_output_arguments(arguments: argparse.ArgumentParser) -> None:
    """Add the options --json and --results."""
    arguments.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    arguments.add_argument(
        "--results",
        type=Path,
        default=None,
        metavar="FILE",
        help="where measurements are kept (default: results/results.jsonl of the checkout)",
    )


def add_source_arguments(arguments: argparse.ArgumentParser) -> None:
    """--own, --results, --json of a command that reads measurements."""
    source = arguments.add_mutually_exclusive_group()
    source.add_argument("--own", action="store_true", help="of what this machine measured, not of what is committed")
    source.add_argument("--results", type=Path, default=None, metavar="FILE", help="of this file of JSON lines")
    arguments.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")


def source(arguments: argparse.Namespace, table: str) -> Path:
    """Where a table's measurements are read from: --results, --own, or the store's own rule."""
    from quarl.bench.report import store

    return arguments.results or store.results_for(table, store.RESULTS, arguments.own)


def words(text: str) -> list[str]:
    """Read ``I,II`` as a list."""
    found = [word for word in text.replace(",", " ").split() if word]
    if not found:
        raise argparse.ArgumentTypeError("it is empty; type III, or I,II,III")
    return found


def read_precisions(text: str) -> list[Precision]:
    """Read ``fp32,int8`` as precisions."""
    try:
        return list(dict.fromkeys(Precision.parse(word) for word in words(text)))
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_runtimes(text: str) -> list[RuntimeName]:
    """Read ``litert,onnxruntime`` as runtimes."""
    try:
        return [parse_enum(RuntimeName, word, "runtime") for word in words(text)]
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def checked(kind: Callable[[str], T], allowed: Callable[[T], bool], why: str) -> Callable[[str], T]:
    """A reader of numbers of a kind that are allowed; of others it says why not. Whole ones: 1,000 is a thousand."""

    def read(text: str) -> T:
        try:
            if allowed(value := kind(text.replace("_", "").replace(",", "") if kind is int else text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} {why}")

    return read


positive = checked(int, lambda value: value >= 1, "is no whole number of at least 1")
not_negative = checked(int, lambda value: value >= 0, "is no whole number of at least 0")


def seeds(text: str) -> tuple[int, ...]:
    """Read ``0,2,4`` as different seeds."""
    found = tuple(not_negative(word) for word in words(text))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice: its episodes would be counted twice")
    return found


def bits(fewest: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """A reader of ``4,3,2`` or ``2-8`` as different widths, a range being every whole number in it."""

    def read(text: str) -> tuple[int, ...]:
        found: list[int] = []
        for word in words(text):
            first, dash, last = word.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise argparse.ArgumentTypeError(f"{word!r} is no width; type {fewest}-{most}, or 2,4,8")
            ends = int(first), int(last) if dash else int(first)
            if not fewest <= ends[0] <= ends[1] <= most:
                raise argparse.ArgumentTypeError(f"{word!r} is no width; allowed are {fewest} … {most}")
            found += range(ends[0], ends[1] + 1)
        return tuple(dict.fromkeys(found))

    return read


def numbers(text: str) -> tuple[float, ...]:
    """``0,0.5,1`` as different numbers, none of them negative, sorted."""
    try:
        found = sorted({float(word) for word in words(text)})
    except ValueError:
        found = [-1.0]
    if not all(0.0 <= value < math.inf for value in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 0 on; type 0,0.5,1")
    return tuple(found)


def guarded(body: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; a known error becomes a message and exit status 1, with --json also ``{"ok": false, …}``.

    A :class:`UsageError`'s exit status is 2. SIGTERM interrupts as Ctrl-C does.
    """
    from quarl.airlearning_envs.errors import SettingsError
    from quarl.bench.report.document import InvalidDocumentError
    from quarl.bench.report.store import StoreError
    from quarl.bench.report.tables import PageError
    from quarl.device.deploy.errors import HostError

    known = (BenchError, PolicyError, HostError, SettingsError, PageError, StoreError)
    try:
        with interruption.interruptible(signal.SIGTERM), heartbeat():
            return body(arguments)
    except KeyboardInterrupt:
        print("Interrupted; what had been stored before is kept.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED
    except OSError as error:  # a results file that cannot be written, a full disk
        what = make_room(error)
        return _failed(arguments, f"{error.filename or 'the system'}: {error.strerror or error}. {what}", what)
    except (*known, InvalidDocumentError) as error:
        status = _failed(arguments, str(error), str(getattr(error, "next_step", "")))
        return EXIT_USAGE if isinstance(error, UsageError) else status


def _failed(arguments: argparse.Namespace, message: str, next_step: str) -> int:
    print(as_typed(f"error: {message}"), file=sys.stderr)
    if getattr(arguments, "json", False):
        print(json.dumps({"ok": False, "error": {"message": message, "next": next_step}}))
    return EXIT_FAILED


def update_docs(tables: Sequence[Table]) -> None:
    """Fill these tables into README and docs, wherever they stand there, and say which page changed."""
    from quarl.bench.report import tables as rendering

    changed = rendering.update_pages(tables)
    say("\n".join(f"{path}: updated" for path in changed) or "README and docs are up to date.")


def console(stderr: bool = False) -> Console:
    """A console that never cuts a table when its output goes to a file."""
    from rich.console import Console

    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A progress bar on stderr, moved by calls of the yielded (done, total); where there is no terminal, one line."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    screen = console(stderr=True)
    if not screen.is_terminal:
        say(f"{description} …")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
