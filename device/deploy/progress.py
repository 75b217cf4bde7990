"""Progress bars on a terminal; silence everywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from quarl.device.deploy.golden import Progress as Tell
from quarl.device.deploy.golden import Step


class _Amount(ProgressColumn):
    """Megabytes and megabytes a second for a transfer, a plain count otherwise."""

    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        if task.fields.get("unit") != "B":
            return Text(f"{int(task.completed)}/{int(task.total)}")
        speed = task.finished_speed or task.speed or 0.0
        return Text(f"{task.completed / 1e6:.1f}/{task.total / 1e6:.1f} MB  {speed / 1e6:.1f} MB/s")


@contextlib.contextmanager
def progress_bars(enabled: bool = True) -> Iterator[Tell | None]:
    """Yield a callback that draws a bar for each step on standard error; None without a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def tell(step: Step) -> None:
            total = step.total or None
            if step.name not in tasks:
                tasks[step.name] = bars.add_task(step.name, total=total, unit=step.unit)
            bars.update(tasks[step.name], completed=step.done, total=total)

        yield tell
