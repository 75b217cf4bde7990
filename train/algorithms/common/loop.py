"""What stands around the loop of an algorithm that learns from rewards: its beginning, rows of the log, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import Squash
from quarl.train.algorithms.common.distributions import export_weights
from quarl.train.algorithms.common.learner import Learner
from quarl.train.algorithms.common.normalisation import ImageScaling, RunningNormaliser
from quarl.train.algorithms.common.settings import SharedSettings
from quarl.train.networks.policy import Policy
from quarl.train.networks.weights import Weights
from quarl.train.quantization.aware import QuantizationAware
from quarl.train.runs.best import BestPolicy
from quarl.train.runs.checkpoint import Checkpointed, gather_state
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Decide, EpisodeStream
from quarl.train.suites.task import episode_seed


class Loop:
    """Environments, statistics of the observations, quantizers, random generator and the best policy of one run.

    Attributes:
        step: environment steps made so far.
        generator: of all that is drawn.
        stream: the environments.
        normaliser: of the observations.
        aware: the quantizers.
        learner: what learns, once :meth:`follow` was told.
    """

    learner: Learner

    def __init__(self, run: Run, settings: SharedSettings, normaliser: RunningNormaliser) -> None:
        """Args: the run, the algorithm's settings, and the observations' normaliser; images are scaled instead."""
        request, task = run.request, run.task
        self.run, self.step = run, run.start_step
        self.generator = np.random.default_rng(request.seed)
        self.normaliser = ImageScaling() if task.is_image else normaliser
        self.stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
        delay_steps = settings.delay_steps(request.steps)
        self.aware = QuantizationAware(request.network, settings.quantization_bits, delay_steps)
        self.iteration_steps = settings.environments * settings.rollout_steps
        self._best, self._deployed, self._counted = BestPolicy(task.presets[0]), "", 0
        self._checkpointed: dict[str, Any] = {"normaliser": self.normaliser, "stream": self.stream, "best": self._best}
        self._checkpointed |= self.aware.list_checkpoint_parts()

    def follow(self, learner: Learner, deployed: str, checkpointed: Mapping[str, Checkpointed] | None = None) -> None:
        """Set the learner, which of its groups is deployed, and what else a checkpoint holds, by name.

        All of them, and the generator, go on where the run's checkpoint ends, if there is one.
        """
        self.learner, self._deployed = learner, deployed
        self._checkpointed |= checkpointed or {}
        if self.run.checkpoint is not None:
            groups, learner.updates, self.generator = self.run.checkpoint.put_back(learner.groups, self._checkpointed)
            learner.put(groups)
        self._counted = learner.updates

    @property
    def weights(self) -> Weights:
        """The weights of the network that is deployed."""
        return self.learner.groups[self._deployed]

    @property
    def share(self) -> float:
        """Share of all steps that are made."""
        return self.step / self.run.request.steps

    def should_continue(self) -> bool:
        """Return whether there is another iteration; the quantizers may become active before it."""
        if self.step >= self.run.request.steps or self.run.stop_reason is not None:
            return False
        if self.aware.begin(self.step):
            self.run.progress.say(f"step {self.step:,}: the policy is quantized from here on")
            self._best.forget()  # what was evaluated until now is not what is being trained from here on
        return True

    def means(self, metrics: NDArray[np.float32], names: tuple[str, ...]) -> dict[str, float]:
        """Means of an iteration's metrics (updates, names), by name.

        Raises:
            DivergenceError: one of them is NaN or infinite.
        """
        self.run.check_finite(self.step, metrics, names)
        return dict(zip(names, metrics.mean(axis=0).tolist(), strict=True))

    def report(self, row: dict[str, float], decide: Decide, may_be_best: bool, steps: int = 0) -> None:
        """Log a row that ends now; judge the greedy policy ``decide`` and save, when due.

        The figures of the algorithm stand between those of the episodes and the observations' share; the row spans so
        many ``steps``, 0 for one iteration. If ``may_be_best``, a policy evaluated now is kept unless one was better.
        """
        self.aware.count(self.learner.updates - self._counted)
        self._counted = self.learner.updates
        self.aware.look(self.weights, self.normaliser(self.stream.observation))
        stats = self.stream.take_stats()
        self.run.announce(self.step, stats.news)
        row = {**stats.row(), **row, "observations_clipped": self.normaliser.take_clipped()}
        self.run.report(self.step, row, steps or self.iteration_steps, decide)
        if may_be_best:
            self._best.offer(self.run.last_row, self._policy, self.step)
        if self.run.wants_checkpoint:
            self._save()

    def finish_training(self, squash: Squash = Squash.TANH) -> Trained:
        """Save once more; returns what was trained."""
        self._save()
        notes = {"updates": self.learner.updates, **self.aware.notes(), **self._best.notes()}
        return Trained(self._best.policy(self._policy), self.step, notes, squash)

    def _policy(self) -> Policy:
        return self.aware.policy(export_weights(self.weights), self.normaliser.frozen())

    def _save(self) -> None:
        learned = self.learner
        self.run.save(self.step, *gather_state(learned.groups, self._checkpointed, learned.updates, self.generator))
