"""The progress bar: steps/s, return, success, time left. On a terminal a bar, elsewhere a line every ten seconds."""

from __future__ import annotations

import math
import sys
import time

from quarl.policy.console import say

LINE_EVERY_S = 10.0
MEASURED_S = 5.0  # of training, before its speed and the time left are shown
SMOOTHING = 0.9  # of return and success from one report to the next


class TrainingProgress:
    """Shows how training goes. Use as a context manager; a quiet one shows nothing."""

    def __init__(self, title: str, steps: int, start: int = 0, quiet: bool = False) -> None:
        self._title, self._steps, self._start = title, steps, start
        self._quiet = quiet
        self._first: tuple[float, int] | None = None  # when the first report came, and its step
        self._last_line = time.monotonic()
        self._smooth: dict[str, float] = {}
        self._bar = None if quiet or not sys.stderr.isatty() else self._make_bar()

    def _make_bar(self):  # type: ignore[no-untyped-def]  # rich is imported only where it is shown
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[figures]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        self._task = bar.add_task(self._title, total=self._steps, completed=self._start, figures="compiling", left="")
        return bar

    def __enter__(self) -> TrainingProgress:
        if self._bar:
            self._bar.start()
        else:
            self.say(f"{self._title}: step {self._start:,} of {self._steps:,}  compiling")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, step: int, row: dict[str, float], most_s: float | None = None) -> None:
        """Show that ``step`` of all steps are made, with an iteration's figures; ``most_s``: see :func:`time_left`."""
        if self._quiet:
            return
        now = time.monotonic()
        # From the first report on: what goes before it is compiling, and on a resumed run nothing like the rest.
        self._first = self._first or (now, step)
        measured_s, measured_steps = now - self._first[0], step - self._first[1]
        speed = measured_steps / measured_s if measured_s >= MEASURED_S else 0.0
        for name in ("return", "success"):
            value = row.get(name, math.nan)
            if not math.isnan(value):
                self._smooth[name] = SMOOTHING * self._smooth.get(name, value) + (1 - SMOOTHING) * value
        parts = [f"{speed:,.0f} steps/s"] if speed else []
        if "return" in self._smooth:
            parts.append(f"return {self._smooth['return']:.2f}")
        if "success" in self._smooth:
            parts.append(f"success {100 * self._smooth['success']:.1f} %")
        figures = "  ".join(parts)
        left = time_left((self._steps - step) / speed, most_s) if speed else ""
        if self._bar:
            self._bar.update(self._task, completed=step, figures=figures, left=left)
        elif now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            self.say(f"{self._title}: step {step:,} of {self._steps:,}  {figures}  {left}".rstrip())

    def say(self, text: str, always: bool = False) -> None:
        """Print a line without tearing the bar; a quiet one only what must be said ``always``."""
        if self._quiet and not always:
            return
        if self._bar:
            self._bar.console.print(text, highlight=False, soft_wrap=True)
        else:
            say(text)


def time_left(steps_s: float, most_s: float | None) -> str:
    """``12:34 left``: the seconds that the other steps take, or until the run is stopped if that is sooner."""
    seconds = max(round(steps_s if most_s is None else min(steps_s, most_s)), 0)
    hours, minutes = divmod(seconds // 60, 60)
    return f"{f'{hours}:{minutes:02}' if hours else minutes}:{seconds % 60:02} left"
