"""The learner: draws minibatches, learns in full precision, and hands its policy to the parameter server.

It also corrects for, or measures, what the actors' quantization and delay do to what it learns from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.actorq.algorithms import Algorithm, cut_at_disagreement, mismatch
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import Columns, Reply
from quarl.train.actorq.wire import Pushed
from quarl.train.algorithms.common.normalisation import normaliser_of_replay
from quarl.train.networks.policy import Policy
from quarl.train.runs.checkpoint import Checkpoint, gather_state
from quarl.train.runs.results import policy_spec
from quarl.train.runs.run import DivergenceError

PARTS = ("data", "prepare", "learn", "push", "watch")
"""Where the learner's time goes: waiting for minibatches; normalising them and cutting their returns; the updates;
handing over parameters; looking at how far the actors are from it."""
CALIBRATION_ROWS = 256  # of the newest minibatches: the ranges of the int8 activations
CALIBRATION = "calibration"
WATCH_EVERY_S = 1.0
WATCHED_ROWS = 256

Sample = Callable[[int], tuple[Columns | None, Reply]]
"""Updates made → minibatches (updates, minibatch, …), or None when the run is over; and how far it is."""
Recent = Callable[[int], Columns]
"""The newest rows: observation, greedy, updates."""
Push = Callable[[Pushed], None]
Prioritise = Callable[[NDArray[np.int64], NDArray[np.float32]], None]


class LearnerLoop:
    """See the module's docstring. :meth:`facts` and :meth:`state` may be called from another thread."""

    def __init__(
        self,
        plan: Plan,
        sample: Sample,
        recent: Recent,
        push: Push,
        prioritise: Prioritise,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Args: the plan; how it reaches replay and parameters; where to go on."""
        self._plan, self._settings = plan, plan.settings
        self._sample, self._recent, self._push, self._prioritise = sample, recent, push, prioritise
        self._task = task = plan.make_task()
        self._algorithm = Algorithm(plan, task)
        self._normaliser = normaliser_of_replay(task, self._settings, plan.request.steps)
        self._generator = np.random.default_rng(plan.request.seed)
        self._calibration = np.zeros((0, task.observation_size), np.float32)
        learner = self._algorithm.learner
        if checkpoint is not None:
            checkpointed = {"normaliser": self._normaliser}
            groups, learner.updates, self._generator = checkpoint.put_back(learner.groups, checkpointed)
            learner.put(groups)
            self._calibration = checkpoint.group(CALIBRATION)["rows"]
        self._every = plan.actorq.publish_every or self._settings.updates
        self._steps, self._pushed, self._watched = 0, -1, 0.0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._metrics: dict[str, float] = {}
        self._mismatch: dict[str, float] = {}
        self._cut_rows, self._rows = 0, 0
        self._lock = threading.Lock()

    def run(self) -> dict[str, Any]:
        """Learn until the replay says that the run is over; the figures of :meth:`facts`.

        Raises:
            DivergenceError: a loss, a gradient or a weight is no longer finite.
        """
        if len(self._calibration):
            self._hand_over()  # actors need not wait until the replay is filled again
        while True:
            columns, reply = self._measure_time("data", lambda: self._sample(self.updates))
            self._steps = reply.step
            if columns is None:
                self._watch()
                return self.facts()
            self._gather(columns["observation"])
            self._round(columns)
            if time.perf_counter() - self._watched >= WATCH_EVERY_S:
                self._watch()

    def _round(self, columns: Columns) -> None:
        """One round of updates, and a new version where one is due."""
        newest = columns["observation"].reshape(-1, columns["observation"].shape[-1])
        self._calibration = np.concatenate([newest[:CALIBRATION_ROWS], self._calibration])[:CALIBRATION_ROWS]
        if self._pushed < 0:
            self._hand_over()
        rows = columns.pop("rows")
        batches = self._measure_time("prepare", lambda: self._prepare_batches(columns))
        with self._lock:
            metrics, errors = self._measure_time("learn", lambda: self._algorithm.learn(batches, self.share))
        self._check(metrics)
        self._metrics = dict(zip(self._algorithm.metrics, metrics.mean(axis=0).tolist(), strict=True))
        self._metrics["observations_clipped"] = self._normaliser.take_clipped()
        if errors is not None:
            self._prioritise(rows, errors)
        if self.updates - self._pushed >= self._every:
            self._hand_over()

    @property
    def updates(self) -> int:
        """Number of updates made."""
        return self._algorithm.learner.updates

    @property
    def share(self) -> float:
        """Share of all steps that are made."""
        return min(self._steps / self._plan.request.steps, 1.0)

    def _measure_time(self, part: str, work: Callable[[], Any]) -> Any:
        since = time.perf_counter()
        result = work()
        self._seconds[part] += time.perf_counter() - since
        return result

    def _gather(self, drawn: NDArray[np.float32]) -> None:
        """Update the observations' statistics with the first ``learning_starts`` steps; then one drawn row for every
        step."""
        normaliser, rows = self._normaliser, drawn.reshape(-1, drawn.shape[-1])
        if not normaliser.count and not normaliser.is_settled:
            seen = self._recent(self._settings.learning_starts)
            rows = seen["observation"] if seen else rows
        elif not normaliser.is_settled:
            rows = rows[: max(self._steps - max(normaliser.count, normaliser.watched), 0)]
        if len(rows):
            with self._lock:
                normaliser.update(rows)

    def _prepare_batches(self, columns: Columns) -> Columns:
        """Minibatches as the algorithm's round takes them, rescaled.

        Returns end where this policy would have chosen otherwise; see :func:`cut_at_disagreement`.
        """
        if "following" in columns:
            chosen = self._greedy(columns["following"])
            cut, is_cut = cut_at_disagreement(columns, chosen, self._settings.discount)
            self._cut_rows, self._rows = self._cut_rows + int(is_cut.sum()), self._rows + is_cut.size
            columns = {**columns, **cut}
        batches = {
            "observation": self._normalise_observations(columns["observation"]),
            "action": columns["action"],
            "return": columns["return"] * np.float32(self._settings.reward_scale),
            "discount": columns["discount"],
            "next_observation": self._normalise_observations(columns["next_observation"]),
        }
        return {**batches, "weight": columns["weight"].astype(np.float32)} if "weight" in columns else batches

    def _normalise_observations(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = observations.reshape(-1, observations.shape[-1])
        return self._normaliser(rows).reshape(observations.shape)

    def _greedy(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """Return this policy's choice for raw observations (…, size)."""
        chosen = self._algorithm.greedy(self._normaliser(observations.reshape(-1, observations.shape[-1])))
        return chosen.reshape(*observations.shape[:-1], *chosen.shape[1:])

    def _check(self, metrics: NDArray[np.float32]) -> None:
        finite = np.isfinite(metrics)
        if not finite.all():
            update, index = np.argwhere(~finite)[0]
            raise DivergenceError(
                f"{self._algorithm.metrics[index]} became {metrics[update, index]} at step {self._steps:,}, in update "
                f"{self.updates - len(metrics) + int(update) + 1:,}. Lower the learning rate "
                "(--set learning_rate=…) and train again."
            )

    def _hand_over(self) -> None:
        """Give the policy as it is now to the parameter server."""
        since = time.perf_counter()
        self._pushed = self.updates
        weights = {name: np.ascontiguousarray(array) for name, array in self._algorithm.policy.items()}
        # The very contract that the bundle will have, but for the provenance.
        policy = Policy(weights, self._normaliser.frozen())
        self._push(
            Pushed(self._pushed, policy_spec(self._plan.request, self._task, policy), weights, self._calibration)
        )
        self._seconds["push"] += time.perf_counter() - since

    def _watch(self) -> None:
        """Compare what actors chose lately with what this policy would choose in the same states."""
        since = self._watched = time.perf_counter()
        rows = self._recent(WATCHED_ROWS)  # empty where a replay has just begun again
        acted = rows["updates"] >= 0 if rows else np.zeros(0, np.bool_)
        if acted.any():
            chosen = self._greedy(rows["observation"][acted])
            self._mismatch = mismatch(chosen, rows["greedy"][acted])
            self._mismatch["staleness_updates"] = float(self.updates - rows["updates"][acted].mean())
        self._seconds["watch"] += time.perf_counter() - since

    def facts(self) -> dict[str, Any]:
        """Figures so far: updates, metrics, mismatch, share of the returns that were cut, and seconds."""
        return {
            "updates": self.updates,
            "pushed": self._pushed,
            "metrics": self._metrics,
            "warning": self._algorithm.warning,
            "mismatch": self._mismatch,
            "cut_returns": self._cut_rows / self._rows if self._rows else None,
            "seconds": dict(self._seconds),
            "cpu_s": time.process_time(),
        }

    def state(self) -> Checkpoint:
        """Return the learner's part of a checkpoint, between two rounds."""
        with self._lock:
            groups = {**self._algorithm.learner.groups, CALIBRATION: {"rows": self._calibration}}
            arrays, facts = gather_state(groups, {"normaliser": self._normaliser}, self.updates, self._generator)
            return Checkpoint({name: np.array(array) for name, array in arrays.items()}, facts)
