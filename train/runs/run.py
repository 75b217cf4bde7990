"""One training run: its folder, clock, logs, checkpoints and the reasons to stop. What all algorithms share.

An algorithm calls ``run.report`` after every iteration, ``run.save`` when ``run.wants_checkpoint`` says so, and leaves
its loop when ``run.stop_reason`` gives one.

Ctrl-C or SIGTERM while a loop is under way only raises a flag: the iteration ends whole, with its judgement, and a
checkpoint and a bundle of what was learned are written, the bundle into the run's own folder. A judgement that takes
longer than ``JUDGE_WITHIN_S`` is left out. An iteration of more than ``STOP_WITHIN_S`` ends the run at once, as Ctrl-C
does before the first one has ended, in the last judgement, or a second time. A run that did not end never replaces the
bundle of its name, and the same command typed again goes on with it. On the disk it is one that has the folder
``UNFINISHED``, so a run that was killed is one, too.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.cli import EXIT_INTERRUPTED
from quarl.policy.errors import QuarlError
from quarl.train.intervals import brackets
from quarl.train.runs.checkpoint import Checkpoint, save_checkpoint
from quarl.train.runs.logs import CurveLog
from quarl.train.runs.progress import TrainingProgress
from quarl.train.runs.request import UNFINISHED, RunRequest
from quarl.train.runs.resumption import put_aside, resume_or_begin
from quarl.train.suites.episodes import Decide
from quarl.train.suites.history import as_single_observations
from quarl.train.suites.task import Evaluation, Task, episode_seed

CHECKPOINT_EVERY_S = 60.0
STOP_WITHIN_S, JUDGE_WITHIN_S, WRITE_WITHIN_S = 10.0, 3.0, 60.0
"""What an iteration or a judgement may take to end once the run was interrupted, and then its bundle: a simulator may
be slow, or hang."""
INTERRUPTED = "interrupted"


class DivergenceError(QuarlError, ArithmeticError):
    """A loss, a gradient or a weight is no longer finite."""


class Run:
    """See the module's docstring. Use as a context manager."""

    def __init__(self, request: RunRequest, task: Task, began: float | None = None) -> None:
        """Args: the request, its task, and ``time.monotonic()`` of the start of the process if that was earlier."""
        self.request, self.task = request, task
        self._began = time.monotonic() if began is None else began
        resumption = resume_or_begin(request)
        self.checkpoint, self.replanned = resumption.checkpoint, resumption.replanned
        facts = {} if resumption.checkpoint is None else resumption.checkpoint.facts
        self.start_step = int(facts.get("step", 0))
        self._saved_step = self.start_step if facts else None
        self.resumed_at: list[int] = [*facts.get("resumed_at", []), self.start_step] if facts else []
        """Steps at which the run was resumed; times and steps of the provenance count it from its beginning."""
        self._cpu_before, self._wall_before = facts.get("cpu_s", 0.0), facts.get("wall_s", 0.0)
        self.start_cpu_s = time.process_time()
        """CPU time that this process had taken when its run began: what loading the libraries costs, s."""
        self.judging_cpu_s = facts.get("judging_cpu_s", 0.0)
        """CPU time of the greedy evaluations so far, s; part of :attr:`cpu_s`, over all resumptions."""
        self._interrupted = False
        self._waits = False  # whether Ctrl-C lets the iteration end: only while a loop has something to lose
        self._judges = False  # whether the end of its time leaves a judgement, not the run
        self._ended_at_once = False
        self._last_saved = time.monotonic()
        self._stop: str | None = None
        self.last_row: dict[str, float] = {}
        request.training_folder.parent.mkdir(parents=True, exist_ok=True)  # now is the time to hear that it cannot be
        title = f"{request.policy} {request.method}"
        self.progress = TrainingProgress(title, request.steps, self.start_step, request.quiet)
        for sentence in filter(None, (resumption.sentence, *task.notes)):
            self.progress.say(sentence, always=True)

    @cached_property
    def _log(self) -> CurveLog:
        """The curve's log, opened with its first row: until then nothing is written, and the last run's stays."""
        folder = self.request.training_folder
        if self.checkpoint is None:
            put_aside(folder)
        (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
        return CurveLog(folder, None if self.checkpoint is None else self.start_step)

    def __enter__(self) -> Run:
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        self._handlers = {number: signal.signal(number, self._interrupt) for number in signals}
        self.progress.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.progress.__exit__()
        if "_log" in self.__dict__:
            self._log.close()
        with suppress(OSError):  # where nothing was written there shall be no empty folder either
            self.request.training_folder.parent.rmdir()
        # What a library made of an interruption, in whose middle it was, is one all the same.
        if isinstance(error, KeyboardInterrupt) or (error is not None and self._ended_at_once):
            raise KeyboardInterrupt(self._interruption_message()) from None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note an interruption. Nothing is printed here: what is being printed may be what was interrupted."""
        if self._ended_at_once:
            os._exit(EXIT_INTERRUPTED)
        if number == signal.SIGALRM and self._judges:
            self._judges = False
            raise KeyboardInterrupt
        if self._interrupted or not self._waits:
            self._ended_at_once = True
        self._interrupted = True
        if self._ended_at_once:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, JUDGE_WITHIN_S if self._judges else STOP_WITHIN_S)

    def _interruption_message(self) -> str:
        if self._saved_step is None:
            return f"there was no checkpoint yet; {self.unchanged_notice}."
        return (
            f"the checkpoint of step {self._saved_step:,} is kept and {self.unchanged_notice}. "
            "The same command again goes on from there."
        )

    @property
    def was_interrupted(self) -> bool:
        """Whether the loop was left because of Ctrl-C or SIGTERM."""
        return self._stop == INTERRUPTED

    @property
    def unchanged_notice(self) -> str:
        """A sentence of an interrupted run on the bundle whose place it did not take."""
        path = self.request.output_path
        return f"{path} is as it was" if path.exists() else f"there is no {path}"

    @property
    def bundle_path(self) -> Path:
        """Where the bundle goes: that of a run that was interrupted takes no other's place."""
        request = self.request
        return request.training_folder / UNFINISHED if self.was_interrupted else request.output_path

    def bundle_written(self) -> None:
        """End the run: remove its unfinished files, unless it was interrupted."""
        if not self.was_interrupted:
            shutil.rmtree(self.request.training_folder / UNFINISHED, ignore_errors=True)

    @property
    def wall_s(self) -> float:
        """Wall time so far, s, over all resumptions."""
        return self._wall_before + time.monotonic() - self._began

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads so far, s, over all resumptions."""
        return self._cpu_before + time.process_time()

    @property
    def curve(self) -> Path:
        """The learning curve's CSV file."""
        return self._log.path

    @property
    def outcome(self) -> str:
        """Why the run ended: "all steps made", "interrupted", …"""
        return self._stop or "all steps made"

    def report(self, step: int, row: Mapping[str, float], iteration_steps: int, decide: Decide) -> None:
        """Log an iteration that ended at ``step`` and made ``iteration_steps``; judge the policy greedily when due."""
        self._waits = True
        greedy, reached = self._judge_when_due(step, iteration_steps, decide)
        times = {"wall_s": self.wall_s, "cpu_s": self.cpu_s}
        self.last_row = {**row, **greedy}
        self._log.add(step, {**row, **greedy, **times})
        minutes = self.request.minutes
        self.progress.update(step, self.last_row, None if minutes is None else 60.0 * minutes - self._budget_used_s)
        self._stop = self._find_stop(step, reached)

    def announce(self, step: int, news: Sequence[str]) -> None:
        """Say what became new by ``step``, a line each."""
        for sentence in news:
            self.progress.say(f"step {step:,}: {sentence}")

    def _judge_when_due(self, step: int, iteration_steps: int, decide: Decide) -> tuple[dict[str, float], str | None]:
        """Return a row of greedy returns and successes, NaN where none was due; and which of the goals was reached."""
        began = time.process_time()
        request = self.request
        every = request.evaluate_every
        due = every > 0 and (step // every > (step - iteration_steps) // every or step >= request.steps)
        decide = as_single_observations(self.task, decide)
        row: dict[str, float] = {}
        reached: str | None = None
        for preset in self.task.presets:
            suffix = f"_{preset}" if preset else ""
            names = (f"greedy_return{suffix}", f"greedy_success{suffix}")
            row |= dict.fromkeys(names, math.nan)
            if not due:
                continue
            # Fresh episodes every time, and never those of training or of the final evaluation.
            seed = episode_seed(request.seed, f"judging at {step}")
            try:
                self._judges = True
                result = self.task.evaluate(decide, request.evaluate_episodes, seed, preset)
            except BaseException:  # what a library made of an interruption, too
                if self._judges or self._ended_at_once:
                    raise
                due = False  # its time is over: other presets are left out, too
                continue
            finally:
                self._judges = False
            row[names[0]] = result.mean_return
            row[names[1]] = math.nan if result.success is None else result.success
            if preset == (request.stop_preset or self.task.presets[0]):
                reached = self._goal_reached(result)
            self.progress.say(
                f"step {step:,}: greedy {describe(result)}  ({self.wall_s:.0f} s, {self.cpu_s:.0f} CPU-s)"
            )
        self.judging_cpu_s += time.process_time() - began
        return row, reached

    def _goal_reached(self, result: Evaluation) -> str | None:
        success, mean_return = self.request.stop_at_success, self.request.stop_at_return
        if success is not None and result.success is not None and result.success >= success:
            return f"greedy success reached {success:g}"
        if mean_return is not None and result.mean_return >= mean_return:
            return f"greedy return reached {mean_return:g}"
        return None

    def _find_stop(self, step: int, reached: str | None) -> str | None:
        if self._interrupted:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            if self._stop is None:
                self.progress.say(
                    "Stopping: a checkpoint and a bundle of what was learned so far are written; "
                    "Ctrl-C once more to stop at once.",
                    always=True,
                )
            return INTERRUPTED
        if reached:
            return reached
        if self.request.minutes is not None and self._budget_used_s >= 60.0 * self.request.minutes:
            since = f" since it was resumed at step {self.resumed_at[-1]:,}" if self.request.resume else ""
            return f"{self.request.minutes:g} minutes{since} were over"
        return None

    @property
    def _budget_used_s(self) -> float:
        """Seconds that ``--minutes`` counts: with ``--resume`` those of this process, else of all of the run."""
        return time.monotonic() - self._began if self.request.resume else self.wall_s

    @property
    def stop_reason(self) -> str | None:
        """Why to leave the loop now, or None."""
        return self._stop

    def look(self, step: int) -> None:
        """Check between two reports for an interruption and for the end of the time, which count at once."""
        self._stop = self._stop or self._find_stop(step, None)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is due: every minute, and before stopping."""
        return self._stop is not None or time.monotonic() - self._last_saved >= CHECKPOINT_EVERY_S

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Write the checkpoint; the curve so far is flushed first, so that it is never behind."""
        self._log.flush()
        times = {"cpu_s": self.cpu_s, "wall_s": self.wall_s, "judging_cpu_s": self.judging_cpu_s}
        parts = {"replanned": self.replanned, "resumed_at": self.resumed_at}
        common = {"identity": self.request.identity(), "step": step, **parts, **times}
        save_checkpoint(self.request.training_folder, Checkpoint(dict(arrays), {**common, **facts}))
        self._last_saved, self._saved_step = time.monotonic(), step
        if self.was_interrupted:
            signal.setitimer(signal.ITIMER_REAL, WRITE_WITHIN_S)
        self._waits = self._stop is None and step < self.request.steps
        if self._interrupted and not self._waits and not self.was_interrupted:  # too late for the last report to see
            self._ended_at_once = True
            raise KeyboardInterrupt

    def check_finite(self, step: int, metrics: NDArray[np.float32], names: tuple[str, ...]) -> None:
        """Stop training when a metric (updates, names) is not finite.

        Raises:
            DivergenceError: names the step, the update, the metric and the checkpoint that is still good.
        """
        finite = np.isfinite(metrics)
        if finite.all():
            return
        update, column = np.argwhere(~finite)[0]
        path = self.request.training_folder / "checkpoint.safetensors"
        good = f"The last good checkpoint is {path}" if path.exists() else "No checkpoint had been written yet"
        raise DivergenceError(
            f"{names[column]} became {metrics[update, column]} at step {step:,}, in update {update + 1} of the "
            f"{len(metrics)} of this round. {good}. Lower the learning rate (--set learning_rate=…) and train again."
        )


def describe(result: Evaluation) -> str:
    """Return one line: success or return with its interval."""
    name = f"{result.preset}: " if result.preset else ""
    if result.success is None or result.interval is None:
        interval = brackets(result.return_interval, ".2f")
        return f"{name}return {result.mean_return:.2f} {interval} over {result.episode_summary}"
    share, low, high = (100 * fraction for fraction in (result.success, *result.interval))
    return f"{name}success {share:.1f} % [{low:.1f}, {high:.1f}] of {result.episodes} episodes"
