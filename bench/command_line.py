"""What the commands of this folder share: options, errors, progress, where words go."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, validators

from quarl import cli
from quarl.policy.console import say
from quarl.policy.errors import QuarlError
from quarl.policy.spec import Precision, RuntimeName, parse_enum

if TYPE_CHECKING:
    from rich.console import Console

    from quarl.bench.tables import Table

FILE_WIDTH = 240  # characters of a line when no terminal says how wide it is

Progress = Callable[[int, int], None]


class BenchError(QuarlError, RuntimeError):
    """A question that could not be answered; ``next_step`` is what to type next."""

    separator = "\n  next: "


class UsageError(BenchError):
    """A bundle, width or task that there is not: the arguments are wrong."""

    exit_code = 2


def words(text: str) -> tuple[str, ...]:
    """Read ``I,II``."""
    if not (parts := tuple(text.replace(",", " ").split())):
        raise ValueError("the list is empty; type III, or I,II,III")
    return parts


def read_precisions(text: str) -> tuple[Precision, ...]:
    """Read ``fp32,int8`` as precisions."""
    return tuple(dict.fromkeys(Precision.parse(word) for word in words(text)))


def read_runtime(text: str) -> tuple[RuntimeName, ...]:
    """Read ``litert`` as the only runtime."""
    return (parse_enum(RuntimeName, text, "runtime"),)


def read_runtimes(text: str) -> tuple[RuntimeName, ...]:
    """Read ``litert,onnxruntime`` as runtimes."""
    return tuple(parse_enum(RuntimeName, word, "runtime") for word in words(text))


read_positive = cli.number_reader(int, lambda value: value >= 1, "must be a positive integer")
read_not_negative = cli.number_reader(int, lambda value: value >= 0, "must be 0 or a positive integer")
Positive = Annotated[int, cli.reads(read_positive)]
NotNegative = Annotated[int, cli.reads(read_not_negative)]
Policies = Annotated[tuple[str, ...], cli.reads(words, "I,II")]
Precisions = Annotated[tuple[Precision, ...], cli.reads(read_precisions, "fp32,int8")]
Runtimes = Annotated[tuple[RuntimeName, ...], cli.reads(read_runtimes, "litert,native")]


def read_seeds(text: str) -> tuple[int, ...]:
    """Read ``0,2,4`` as different seeds."""
    seeds = tuple(read_not_negative(word) for word in words(text))
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{text!r} repeats a seed, whose episodes would count twice; type each seed once")
    return seeds


def read_bits(fewest: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Return a reader of ``4,3,2`` or ``2-8`` as different widths, a range being every whole number in it."""

    def read(text: str) -> tuple[int, ...]:
        widths: list[int] = []
        for word in words(text):
            first, dash, last = word.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise ValueError(f"{word!r} is not a bit width; type {fewest}-{most}, or 2,4,8")
            ends = int(first), int(last) if dash else int(first)
            if not fewest <= ends[0] <= ends[1] <= most:
                raise ValueError(f"bit widths must be {fewest} … {most}, got {word!r}")
            widths += range(ends[0], ends[1] + 1)
        return tuple(dict.fromkeys(widths))

    return read


def read_numbers(text: str) -> tuple[float, ...]:
    """``0,0.5,1`` as different numbers, none of them negative, sorted."""
    try:
        numbers = sorted({float(word) for word in words(text)})
    except ValueError:
        numbers = [-1.0]
    if not all(0.0 <= value < math.inf for value in numbers):
        raise ValueError(f"must be a list of numbers of at least 0, got {text!r}; type 0,0.5,1")
    return tuple(numbers)


MEASUREMENTS = Parameter(group=Group("Which measurements", validator=validators.MutuallyExclusive()))


@Parameter(name="*")
@dataclass(kw_only=True)
class Printing:
    """What to print.

    Attributes:
        json: print nothing but JSON on standard output
    """

    json: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Answering(Printing):
    """Whether to store the answer.

    Attributes:
        keep: store it in results/
    """

    keep: bool = False

    def require_whole(self, option: str, *, is_whole: bool) -> None:
        """Refuse to keep an answer about a part.

        Raises:
            BenchError: --keep, and an option leaves something out.
        """
        if self.keep and not is_whole:
            raise BenchError(
                f"--keep stores complete results only, and {option} restricts them.", f"Leave {option} out."
            )

    def publish(
        self,
        name: str,
        found: Mapping[str, Any],
        tables: Callable[[Mapping[str, Any]], Sequence[Table]],
        amounts: Callable[[Mapping[str, Any]], Mapping[tuple[str, ...], int]],
        unit: str,
    ) -> int:
        """Print an answer as tables or JSON, and keep it where that is asked for; returns the exit status.

        Args:
            name: of the file in results/, without its suffix.
            found: the answer, the machine and the commit apart.
            tables: (document) → its tables.
            amounts: (document) → how much of each thing it rests on; a kept answer is replaced by none that has less.
            unit: of the amounts.
        """
        from quarl.bench import tables as rendering
        from quarl.bench.report import store
        from quarl.bench.report.machine import this_machine
        from quarl.policy.locate import code_version

        document = {"machine": this_machine(), "code": code_version(), **found}
        if self.json:
            print(json.dumps({"ok": True, **document}, ensure_ascii=False))
        else:
            for table in tables(document):
                rendering.print_table(table, console())
        if self.keep:
            store.keep_answer(store.answer_file(name), document, amounts, unit)
        return cli.EXIT_OK


@Parameter(name="*")
@dataclass(kw_only=True)
class Storing(Printing):
    """What to print and store.

    Attributes:
        results: file that measurements are kept in (default: results/results.jsonl of the checkout)
    """

    results: Path | None = None


@Parameter(name="*")
@dataclass(kw_only=True)
class Targeting:
    """Which device.

    Attributes:
        target: user@host[:port]; local is an SSH server on this machine that the command starts itself
    """

    target: str = "local"


@Parameter(name="*")
@dataclass(kw_only=True)
class Timing:
    """What to time.

    Attributes:
        path: runtime: set input, invoke, read the action; decide: from request line to reply line
    """

    path: Literal["runtime", "decide"] = "runtime"


@Parameter(name="*")
@dataclass(kw_only=True)
class DeviceOptions(Targeting, Storing):
    """What to measure on which device.

    Attributes:
        policy: one, or several with commas
        precision: fp32, fp16, int8, int7 … int2, mixed, w8, w4, dynamic; several with commas
        runtime: litert, tflite-runtime, onnxruntime or native
        agent: native: the native engine is served by the agent that needs no Python (with --runtime native)
    """

    policy: Policies
    precision: Precisions = (Precision.FP32, Precision.INT8)
    runtime: Annotated[tuple[RuntimeName, ...], cli.reads(read_runtime, "litert")] = (RuntimeName.LITERT,)
    agent: Literal["python", "native"] = "python"


@Parameter(name="*")
@dataclass(kw_only=True)
class Reading(Printing):
    """Which measurements to read.

    Attributes:
        local: measured on this machine, not the committed measurements
        results: of this file of JSON lines
    """

    local: Annotated[bool, MEASUREMENTS] = False
    results: Annotated[Path | None, MEASUREMENTS] = None

    def source(self, table: str) -> Path:
        """Return where a table's measurements are read from: --results, --local, or the store's own rule."""
        from quarl.bench.report import store

        return self.results or store.results_for(table, store.RESULTS, self.local)


def update_docs(tables: Sequence[Table]) -> None:
    """Fill these tables into README and docs, wherever they stand there, and say which page changed."""
    from quarl.bench import tables as rendering

    changed = rendering.update_pages(tables)
    say("\n".join(f"{path}: updated" for path in changed) or "README and docs are up to date.")


def console(stderr: bool = False) -> Console:
    """Return a console that never cuts a table when its output goes to a file."""
    from rich.console import Console

    terminal = Console(stderr=stderr)
    return terminal if terminal.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """Show a progress bar on stderr, moved by calls of the yielded (done, total); where there is no terminal, one
    line."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    screen = console(stderr=True)
    if not screen.is_terminal:
        say(f"{description} …")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
