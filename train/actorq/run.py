"""One run from its start to its bundle: the supervisor in the process that the user started.

It starts learner and actors, replaces those that die, judges the policy greedily, writes checkpoints and logs through
``train/runs/run.py``, and in the end tells where the time went. What dies is said and goes into the bundle's
provenance:

- an actor: replaced; its unsent transitions are lost (at most ``insert_every`` and an n-step window).
- the learner: replaced, and goes on from the last checkpoint; the replay is a process of its own and keeps its rows.
- a replay process: Ray starts it again, empty.
- this process: the same command goes on from the checkpoint on the disk; the replay is lost and filled again first.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from quarl.policy.spec import ContinuousHead
from quarl.train.actorq import cluster
from quarl.train.actorq.algorithms import METRICS
from quarl.train.actorq.history import LARGEST, Deaths, GaveUpError, Sums, add_sums, breakdown, sum_over_actors, sums_of
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.processes import GoneError, call_process
from quarl.train.actorq.wire import Pushed
from quarl.train.deciding import greedy
from quarl.train.networks.policy import Policy
from quarl.train.runs.best import BestPolicy
from quarl.train.runs.checkpoint import Checkpoint, flatten_groups
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Decide

LOOK_EVERY_S = 0.25
REPORT_EVERY_S = 1.0
NAN = float("nan")
LEARNER, SERVER = "the learner", "the parameter server"


class Supervisor:
    """See the module's docstring."""

    def __init__(self, run: Run, plan: Plan, processes: cluster.Cluster) -> None:
        """Args: the run (entered), its plan, and the processes that hold its data."""
        self._run, self._plan, self._processes = run, plan, processes
        self._best = BestPolicy(run.task.presets[0])
        self._past: Sums = {}  # of processes that are no more
        self._earlier: dict[str, dict[str, Any]] = {}  # actors before the resumption
        self._deaths = Deaths()
        self._kept = run.checkpoint
        """The last checkpoint, which a new learner goes on from."""
        if run.checkpoint is not None:
            run.checkpoint.restore("best", self._best)
            facts = run.checkpoint.facts
            self._past, self._earlier = facts.get("past", {}), facts.get("actors", {})
            self._deaths = Deaths(facts.get("deaths", []))
            run.progress.say(
                f"Resumed at step {run.start_step:,}. The replay's {facts['replay_rows']:,} transitions "
                "are not in a checkpoint and lost: actors fill it again first."
            )
        self._step, self._reported, self._reported_at = run.start_step, run.start_step, 0.0
        self._tallied = (0, 0.0)  # episodes and returns that are reported
        self._facts: dict[str, dict[str, Any]] = {LEARNER: {}, SERVER: {}}  # that processes told last
        self._actors: dict[str, dict[str, Any]] = {}
        self._finished: dict[str, dict[str, Any]] = {}
        self._newest: Pushed | None = None
        """The learner's policy in full precision, as it handed it over last."""
        self._chosen: Decide | None = None
        self._judging = -1  # the report for which the policy was fetched
        self._warned = False

    def train(self) -> Trained:
        """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned."""
        first_life = 1000 * len(self._run.resumed_at)  # other episodes and noise than before a resumption
        self._lives = dict.fromkeys(range(self._plan.actorq.n_actors), first_life)
        self._running: dict[Any, tuple[int | None, Any]] = {}  # the answer of its run: which actor, its process
        for who in (None, *self._lives):
            self._deaths.begins(LEARNER if who is None else f"actor {who}")
            self._start(who)
        stopping_since: float | None = None
        while self._running:
            for reference in cluster.ready([*self._running], LOOK_EVERY_S):
                self._handle_exit(reference, replace=stopping_since is None)
            self._look()
            now = time.monotonic()
            if now - self._reported_at >= REPORT_EVERY_S and self._step > self._reported and stopping_since is None:
                self._report()
            self._run.look(self._step)
            learned_first = self._kept is None and self._facts[LEARNER].get("updates", 0) > 0
            if (learned_first or self._run.wants_checkpoint) and self._run.stop_reason is None:
                self._save()
            if self._run.stop_reason is not None and stopping_since is None:
                stopping_since = now
                self._processes.stop()
            if stopping_since is not None and now - stopping_since > cluster.STOP_WAIT_S:
                break  # whoever did not hear it is killed with the rest
        if stopping_since is None and self._step > self._reported:
            self._report()
        self._save()
        return self._build_result()

    def _start(self, who: int | None) -> None:
        """Start an actor; None: the learner."""
        if who is None:
            process = self._learner = self._processes.learner(self._kept)
        else:
            process = self._processes.actor(who, self._lives[who])
        self._running[process.run.remote()] = who, process

    def _handle_exit(self, reference: Any, replace: bool) -> None:
        """Handle an actor or learner that returned or died."""
        who, process = self._running.pop(reference)
        try:
            facts = cluster.outcome(reference)
        except Exception as error:
            # What an actor raised before anybody acted would be raised again; a learner's own errors always would.
            if not isinstance(error, GoneError) and (who is None or not self._actors):
                raise
            if replace:
                self._processes.end(process)
                self._record_death(who, str(error) or type(error).__name__)
                self._start(who)
            return
        if who is None:
            self._facts[LEARNER] = facts
        else:
            self._finished[f"{facts['actor']}.{facts['life']}"] = facts

    def _record_death(self, who: int | None, why: str) -> None:
        """Remember and say it; what the next one goes on from is made ready."""
        if who is not None:
            self._deaths.note(f"actor {who}", self._step, why=why)
            self._lives[who] += 1
            self._run.progress.say(f"step {self._step:,}: actor {who} died and was replaced ({why})")
            return
        after = 0 if self._kept is None else int(self._kept.facts["updates"])
        before = max(self._facts[LEARNER].get("updates", 0), after)  # the checkpoint may be newer than the figures
        rows = self._rows
        self._deaths.note(LEARNER, self._step, why=why, updates=before, resumed_at=after, replay_rows=rows)
        self._run.progress.say(
            f"step {self._step:,}: the learner died after {before:,} updates; it goes on from those of the last "
            f"checkpoint, {after:,}. The replay keeps its {rows:,} transitions."
        )
        self._past = add_sums(self._past, sums_of(self._facts[LEARNER], {}, []))
        self._facts[LEARNER] |= {"cpu_s": 0.0, "seconds": {}}  # which were added to the past
        if after == 0:  # the next one knows nothing of this one's policies: its observations' statistics are others
            self._best.forget()
            self._newest, self._chosen = None, None
            cluster.ready([self._processes.server.forget.remote()], cluster.STOP_WAIT_S)

    @property
    def _shards(self) -> list[dict[str, Any]]:
        return [facts for name, facts in self._facts.items() if name not in (LEARNER, SERVER)]

    @property
    def _rows(self) -> int:
        """Rows that the replay holds."""
        return sum(shard["size"] for shard in self._shards)

    def _look(self) -> None:
        """Gather the figures of all processes; one that is being restarted is left out this time."""
        processes = {f"replay {index}": shard for index, shard in enumerate(self._processes.shards)}
        processes[SERVER] = self._processes.server
        if any(who is None for who, _ in self._running.values()):
            processes[LEARNER] = self._learner
        queries = {process.facts.remote(): name for name, process in processes.items()}
        for reference in cluster.ready([*queries], LOOK_EVERY_S):
            name = queries[reference]
            with suppress(GoneError):
                facts, before = cluster.outcome(reference), self._facts.get(name)
                if before and facts.get("born") != before.get("born"):
                    facts |= self._began_anew(name, before, processes[name])
                self._facts[name] = facts
        for shard in self._shards:
            self._actors |= shard["actors"]
        self._actors |= self._finished
        self._step = max(sum(shard["step"] for shard in self._shards), self._step)

    def _began_anew(self, name: str, before: dict[str, Any], process: Any) -> dict[str, Any]:
        """Return a replay or parameter process that Ray started again, empty; what it knows from the one before."""
        if name == SERVER:
            self._deaths.note(name, self._step)
            self._past = add_sums(self._past, sums_of({}, before, []))
            self._run.progress.say(f"step {self._step:,}: {name} died and was restarted.")
            return {}
        self._deaths.note(name, self._step, replay_rows=before["size"])
        self._past = add_sums(self._past, sums_of({}, {}, [before]))
        self._run.progress.say(
            f"step {self._step:,}: {name} died and was restarted; its {before['size']:,} transitions are lost."
        )
        process.go_on.remote(before["step"])
        return {"step": before["step"]}

    def _report(self) -> None:
        """Log a row of the curve; evaluate the policy when that is due."""
        new_steps, self._reported = self._step - self._reported, self._step
        self._run.report(self._step, self._row(), new_steps, self._decide)
        self._reported_at = time.monotonic()
        if not self._warned and (warning := self._facts[LEARNER].get("warning")):
            self._warned = True
            self._run.progress.say(f"step {self._step:,}: {warning}", always=True)
        was_evaluated = any(value == value for name, value in self._run.last_row.items() if name.startswith("greedy_"))
        if was_evaluated and self._newest is not None:
            self._best.offer(self._run.last_row, self._policy, self._step)

    def _row(self) -> dict[str, float]:
        summary, before = self._actors.values(), self._tallied
        self._tallied = sum(actor["episodes"] for actor in summary), sum(actor["returns"] for actor in summary)
        episodes, returns = self._tallied[0] - before[0], self._tallied[1] - before[1]
        learner, server = self._facts[LEARNER], self._facts[SERVER]
        seen = learner.get("mismatch", {})
        return {
            "episodes": float(episodes),
            "return": returns / episodes if episodes else NAN,
            **{name: learner.get("metrics", {}).get(name, NAN) for name in METRICS[self._plan.request.method]},
            "observations_clipped": learner.get("metrics", {}).get("observations_clipped", NAN),
            "updates": float(learner.get("updates", 0)),
            "actor_mismatch": float(seen.get("disagreement", seen.get("distance", NAN))),
            "actor_staleness": float(seen.get("staleness_updates", NAN)),
            "versions": float(server.get("versions_put", 0)),
            "megabytes_broadcast": server.get("bytes_served", 0) / 1e6,
        }

    def _decide(self, observation: Any) -> Any:
        """Return the learner's policy in full precision, as it handed it over last when this judgement began."""
        if self._judging != self._reported:
            self._judging = self._reported
            self._fetch()
        if self._chosen is None:  # nothing learned yet
            head = self._run.task.head
            rows = len(observation)
            return np.zeros((rows, head.size), np.float32) if isinstance(head, ContinuousHead) else np.zeros(rows, int)
        return self._chosen(observation)

    def _fetch(self) -> None:
        """Fetch the newest policy that the learner handed over."""
        if (pushed := call_process(self._processes.server.newest)) is not None:
            self._newest, self._chosen = pushed, greedy(pushed.spec, pushed.weights)

    def _save(self) -> None:
        """Save a checkpoint of the learner as it is, in memory for its own death and on the disk for this process's."""
        reference = self._learner.state.remote()
        if not cluster.ready([reference], cluster.STOP_WAIT_S):
            return
        try:
            checkpoint: Checkpoint = cluster.outcome(reference)
        except GoneError:
            return  # it is being replaced; the last checkpoint stays
        self._kept = checkpoint
        best = flatten_groups({"best": self._best.state()})
        summary = {"past": self._sums, "actors": {**self._earlier, **self._actors}, "deaths": self._deaths.notes}
        self._run.save(
            self._step, {**checkpoint.arrays, **best}, {**checkpoint.facts, **summary, "replay_rows": self._rows}
        )

    @property
    def _sums(self) -> Sums:
        """Sums over all processes, those that have ended included."""
        return add_sums(self._past, sums_of(self._facts[LEARNER], self._facts[SERVER], self._shards))

    def _build_result(self) -> Trained:
        self._fetch()
        if self._newest is None:
            raise GaveUpError(
                f"the run ended ({self._run.outcome}) before it had a policy; no bundle was written. Raise --steps "
                "or --minutes beyond learning_starts, or type the same command again to continue."
            )
        return Trained(self._best.policy(self._policy), self._step, self.notes())

    def _policy(self) -> Policy:
        """Return the policy that the learner handed over last."""
        assert self._newest is not None
        return Policy(self._newest.weights, self._newest.spec.normaliser)

    def notes(self) -> dict[str, Any]:
        """Facts for the provenance: how the run went, beside the algorithm's settings."""
        learner, server, sums = self._facts[LEARNER], self._facts[SERVER], self._sums
        facts = [*self._earlier.values(), *self._actors.values()]
        summary = {
            "settings": asdict(self._plan.actorq),
            "breakdown": breakdown(facts),
            "actors": [{name: actor[name] for name in ("actor", "life", "steps", "episodes")} for actor in facts],
            "learner_seconds": {name: round(value, 3) for name, value in sums["learner_seconds"].items()},
            "cpu_s": {
                "actors": round(sum(actor["cpu_s"] for actor in facts), 2),
                **{name: round(value, 2) for name, value in sums["cpu_s"].items()},
            },
            "parameters": {
                **{name: value for name, value in server.items() if name not in ("cpu_s", "born")},
                **sums["parameters"],
            },
            "mismatch": learner.get("mismatch", {}),
            "cut_returns": learner.get("cut_returns"),
            "staleness": {
                "refused": sums["replay"]["refused"],
                "largest_updates": sums["replay"][LARGEST],
                "late_renewals": sum_over_actors(facts, "late_renewals"),
            },
            "deaths": self._deaths.notes,
        }
        return {"updates": learner.get("updates", 0), **self._best.notes(), "actorq": summary}


def train(run: Run, plan: Plan, is_local: bool) -> Trained:
    """Train as planned; Ray is there (:func:`train.actorq.cluster.ray_session`), here only if ``is_local``.

    Raises:
        DivergenceError: the learner's numbers are no longer finite.
        GaveUpError: a process died again and again, or the run ended before there was a policy.
        GoneError: a process is gone that cannot be restarted.
    """
    with cluster.Cluster(plan, is_local, run.start_step) as processes:
        return Supervisor(run, plan, processes).train()
