"""The public interface: a policy, and a device that it is deployed to and measured on.

import quarl

policy = quarl.import_policy("ppo.zip", vecnormalize="vecnormalize.pkl", task="Pendulum-v1", name="swing")
policy.convert(bits=8)
with quarl.Device("pi@raspberrypi") as device:
    device.deploy(policy, bits=8)
    print(device.latency(policy), device.memory(policy))
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.policy.bundle import Bundle
from quarl.policy.locate import working_bundle
from quarl.policy.spec import DiscreteHead, Precision
from quarl.results import Answer, Artifact, Conversion, Evaluation, Evaluations, Latency, Memory, Success

if TYPE_CHECKING:
    from quarl.bench.device_session.questions import Served
    from quarl.bench.report.document import Report
    from quarl.device.deploy.connection import Connection

PathLike = str | os.PathLike[str]
PATHS = {"observations", "vecnormalize", "spec", "golden", "output_path"}
"""Options that are paths, which may be given as text."""
Bits = int | str | Sequence[int | str]
"""8, 16, 32, 7 … 2, "mixed", "w8", "w4", "dynamic", or several of them."""


def load(name_or_path: PathLike) -> Policy:
    """Return a policy by name (``"I"``, ``"cartpole-dqn"``) or by the path of its bundle.

    A name means artifacts/NAME, copied there from the bundles that come with the code where it is not there yet.

    Raises:
        BundleError: it does not exist or is damaged; the message lists the known names.
    """
    return Policy(working_bundle(os.fspath(name_or_path), quiet=True))


def import_policy(
    file: PathLike,
    *,
    name: str | None = None,
    task: str | None = None,
    observations: PathLike | None = None,
    vecnormalize: PathLike | None = None,
    **options: Any,
) -> Policy:
    """Return a policy that another program trained, as a bundle; it is written only if it matches the original.

    Args:
        file: a Stable-Baselines3 zip, an ONNX graph, a Keras model, … (docs/import.md).
        name: of the bundle in artifacts/; default: the file's.
        task: id of a Gymnasium environment, on which observations are recorded and returns compared.
        observations: an .npz with the array ``observations`` in the place of a task.
        vecnormalize: the statistics beside a Stable-Baselines3 zip.
        options: the others of ``quarl import``, with ``_`` for ``-``: actions, bounds, fields, range,
            period, delay, fallback, output, states, spec, golden, episodes, max_episode_steps,
            output_path, replace.

    Raises:
        PolicyError: it cannot be expressed, something is not said, or it does not act as the original.
        TypeError: there is no such option.
    """
    from quarl.convert.importers.importing import import_policy as imported
    from quarl.convert.importers.options import ImportOptions, read_bounds, read_fields

    readers: dict[str, Callable[[Any], Any]] = dict.fromkeys(PATHS, Path)
    readers |= {"fields": read_fields, "bounds": read_bounds, "fallback": tuple}
    readers |= {"states": lambda pairs: tuple(dict(pairs).items())}
    arguments = {"name": name, "task": task, "observations": observations, "vecnormalize": vecnormalize, **options}
    parsed = {option: readers.get(option, _as_it_is)(value) for option, value in arguments.items() if value is not None}
    done = imported(ImportOptions(Path(file), **parsed))
    if done.path is None:
        raise TypeError("dry_run must be False in import_policy, got True. Type: quarl import FILE --dry-run")
    return Policy(Bundle.load(done.path))


class Policy:
    """One policy with everything made of it: a bundle, which is a folder.

    Attributes:
        bundle: as it was loaded, verified.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._decide: dict[Precision, Any] = {}
        self._is_new = True

    @property
    def name(self) -> str:
        """The policy's name, which is its folder's on a device, too."""
        return self.bundle.spec.name

    @property
    def path(self) -> Path:
        """The bundle's folder."""
        return self.bundle.path

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Files of the artifacts that were made of it."""
        return tuple(sorted(entry.file for entry in self.bundle.manifest.artifacts.values()))

    def convert(
        self, bits: Bits = 8, *, accept: bool = False, max_loss: float = 1.0, prefer: str = "size"
    ) -> Conversion:
        """Make TFLite, ONNX and native artifacts, each executed and compared before it is written.

        Args:
            bits: 32, 16, 8, 7 … 2, "mixed", "w8", "w4", "dynamic", or several; "auto" takes for
                each format the smallest that keeps the return.
            accept: write also what acts as the policy in too few cases.
            max_loss: percent of the return that "auto" may lose.
            prefer: "speed" has "auto" take the fastest, by instructions counted in QEMU.

        Raises:
            PolicyError: an artifact was refused; those before it are written.
        """
        from quarl.convert.pipeline import Converted, convert_each, possible
        from quarl.policy.ladder import AUTO
        from quarl.policy.spec import ArtifactFormat

        done: list[Converted] = []
        ladder = None
        if bits == AUTO:
            from quarl.convert.__main__ import climb_for
            from quarl.convert.ladder import Question
            from quarl.policy.ladder import Prefer

            ladder = climb_for(self.bundle, Question(max_loss, Prefer(prefer)))
            jobs = [(self.bundle, ladder.choose([item]), item) for item in ArtifactFormat if ladder.has_choice(item)]
        else:
            jobs = [(self.bundle, precision, item) for precision in _precisions(bits) for item in ArtifactFormat]
        try:
            convert_each(possible(jobs), done.append, accept=accept or ladder is not None)
        finally:
            self.bundle = Bundle.load(self.path)
        return Conversion(
            self.name,
            tuple(
                Artifact(
                    file=item.entry.file,
                    precision=item.entry.precision.value,
                    runtimes=tuple(name.value for name in item.entry.runtimes),
                    bytes=item.entry.record.size,
                    ratio_to_fp32=item.entry.record.size / item.fp32_bytes,
                    agreement=item.entry.fp32_agreement,
                    not_tried=tuple(name.value for name in item.entry.not_tried),
                    warnings=tuple(item.entry.warnings),
                )
                for item in done
            ),
            ladder,
        )

    def begin(self) -> None:
        """Begin an episode: forget what a recurrent policy remembers."""
        self._is_new = True

    def act(self, observation: Any, bits: int | str = 32) -> int | np.ndarray:
        """Return the greedy action, computed by numpy as the contract defines it; no runtime is used.

        Args:
            observation: raw, as the environment gives it, of one period.
            bits: 32 for the float32 weights, or the precision of an artifact.

        Returns:
            A discrete policy's action, as its environment counts; of several choices int64 (components,); a continuous
            one's values, float32 (outputs,).

        Raises:
            SpecError: the observation has another size.
        """
        from quarl.policy import pilot
        from quarl.train.deciding import reference

        (precision,) = _precisions(bits)
        if precision not in self._decide:
            self._decide[precision] = reference(self.bundle, precision)
            self._is_new = True
        decide = self._decide[precision]
        if self._is_new:
            pilot.begin(decide, np.ones(1, bool))
            self._is_new = False
        action = decide(np.asarray(observation).reshape(1, -1))[0]
        head = self.bundle.spec.head
        if isinstance(head, DiscreteHead):
            return head.to_action(int(action))
        return np.asarray(head.to_action(action))

    def evaluate(
        self,
        episodes: int = 100,
        *,
        bits: int | str | None = None,
        runtime: str | None = None,
        task: str | None = None,
        preset: str | None = None,
        seed: int = 7,
    ) -> Evaluation:
        """Fly fresh greedy episodes on this host.

        Args:
            episodes, seed: how many, and which: the same seed gives the same episodes to every artifact and policy.
            bits: which artifact decides, in ``runtime``; None: the float policy, in numpy.
            runtime: litert (default), tflite-runtime, onnxruntime, native.
            task: default: the one that it was trained or imported on.
            preset: of the task; default: its first.

        Raises:
            PolicyError, TaskError: it cannot be evaluated on this task or with this artifact.
        """
        from quarl.train import evaluate

        precision = None if bits is None else _precisions(bits)[0].value
        options = evaluate.Options(
            input_path=str(self.path.resolve()), episodes=episodes, seed=seed, task=task,
            precision=precision, runtime=runtime, preset=(preset,) if preset else (),
        )  # fmt: skip
        evaluate.check_usage(options)
        report = evaluate.judge_bundle(options)
        result = SimpleNamespace(**report["results"][0])
        return _evaluation(result, self.name, report["task"], report["precision"], report["executed_by"], seed)

    def __repr__(self) -> str:
        spec = self.bundle.spec
        artifacts = ", ".join(self.artifacts) or "none"
        return (
            f"Policy {self.name!r}: {spec.observation_size} floats in, {spec.head}; artifacts: {artifacts}; {self.path}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


class Device:
    """A device that is reached over SSH; ``"local"`` is a server on this machine that is started when it is needed.

    Args:
        target: ``user@host``, ``user@host:port`` or ``"local"``.
        identity: private key to offer first.
    """

    def __init__(self, target: str = "local", *, identity: PathLike | None = None) -> None:
        self.target, self.identity = target, None if identity is None else Path(identity)
        self._open = ExitStack()
        self._connection: Connection | None = None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next question opens another."""
        self._connection = None
        self._open.close()

    def __repr__(self) -> str:
        return f"Device({self.target!r})"

    def deploy(self, policy: Policy | str, bits: Bits = 8, *, runtime: str = "litert", agent: str = "python") -> Answer:
        """Send a release, have it checked on the device, and switch to it; the old one serves until then.

        Args:
            policy: with these artifacts, or its name.
            bits: which artifacts: 32, 16, 8, 7 … 2, "mixed", "w8", "w4", "dynamic", or several; or "auto".
            runtime: litert, tflite-runtime, onnxruntime, native, or "all".
            agent: "native" is one program that needs no Python on the device, with the native engine.

        Raises:
            HostError, PolicyError: the current release keeps serving; the message says why and what to do.
        """
        from quarl.device.deploy.verbs import Deploy, deploy

        if isinstance(policy, str):
            policy = load(policy)
        name, typed = str(policy.path.resolve()), bits
        if bits != "auto":
            typed = ",".join(precision.value for precision in _precisions(bits))
        return self._run_verb(deploy, Deploy, policy=name, bits=typed, runtime=runtime, agent=agent)

    def latency(self, policy: Policy | str, *, runs: int = 2000, warmup: int = 200, path: str = "runtime") -> Latency:
        """Return how long one decision takes, each artifact of the release that serves in turn with the others.

        Args:
            policy: which is deployed.
            runs, warmup: timed runs of each, and untimed ones before each turn.
            path: "runtime": set input, invoke, read the action; "decide": from request line to reply line.

        Raises:
            HostError: nothing of it is deployed, or the device cannot be reached.
        """
        from quarl.bench.device_session.questions import ask_latency
        from quarl.bench.report.document import new_run

        with ExitStack() as stack:
            served = [stack.enter_context(session) for session in self._serving(policy)]
            return Latency(self.target, _documents(ask_latency(served, new_run(), runs, warmup, path)))

    def memory(self, policy: Policy | str, *, runs: int = 200) -> Memory:
        """Return how much memory each artifact of the release that serves takes, each in a fresh process.

        Args:
            policy: which is deployed.
            runs: decisions served.

        Raises:
            HostError: as :meth:`latency`.
        """
        from quarl.bench.device_session.questions import ask_memory

        return Memory(self.target, self._each(policy, lambda served, run: ask_memory(served, run, runs)))

    def success(
        self, policy: Policy | str, *, episodes: int = 1000, preset: str | None = None, seed: int = 7
    ) -> Success | Evaluations:
        """Return how often each artifact of the release that serves succeeds, and what it is rewarded.

        A navigation policy is simulated and flown on the device. Episodes of other tasks are simulated on this host,
        and the device decides each step.

        Args:
            policy: which is deployed; its bundle is on this host, too.
            episodes, seed: how many, and which: the same seed, the same episodes.
            preset: of the task; default: hard, or the task's first.

        Raises:
            HostError: as :meth:`latency`.
            PolicyError, TaskError: the policy's task is not known or not installed here.
        """
        from quarl.bench.device_session.host_flights import Flights
        from quarl.bench.device_session.questions import ask_success
        from quarl.train.evaluate import read_training_task
        from quarl.train.suites.names import Suite, resolve

        own = load(policy) if isinstance(policy, str) else policy
        if resolve(read_training_task(own.bundle.spec)).suite is not Suite.NAVIGATION:
            return self._in_the_loop(own.bundle, episodes, preset, seed)
        flights = Flights(preset or "hard", episodes, seed)
        return Success(self.target, self._each(policy, lambda served, run: ask_success(served, run, flights)))

    def _in_the_loop(self, bundle: Bundle, episodes: int, preset: str | None, seed: int) -> Evaluations:
        from quarl.bench.device_session.questions import results_of
        from quarl.policy.pilot import deciding
        from quarl.train.evaluate import check_task, read_training_task, task_options
        from quarl.train.suites.make import make_task
        from quarl.train.suites.names import resolve

        spec, name = bundle.spec, resolve(read_training_task(bundle.spec)).canonical
        task = make_task(name, options=task_options(spec, name))
        check_task(spec, task)
        evaluations = []
        for session in self._serving(spec.name):
            with session as served:
                decide = deciding(spec, results_of(served, []))
                results = task.evaluate(decide, episodes, seed, preset or task.presets[0])
                executed_by = f"{served.loaded['runtime']} on {self.target}"
                evaluations.append(_evaluation(results, spec.name, name, served.loaded["precision"], executed_by, seed))
        return Evaluations(tuple(evaluations))

    def releases(self, policy: str | None = None) -> Answer:
        """Return what is deployed."""
        from quarl.device.deploy.verbs import Look, releases

        return self._run_verb(releases, Look, policy=policy)

    def status(self) -> Answer:
        """Return what the device is, and what serves on it."""
        from quarl.device.deploy.verbs import Look, status

        return self._run_verb(status, Look)

    def rollback(self, policy: Policy | str, *, to: str | None = None, mark_bad: bool = False) -> Answer:
        """Switch back to the last good release, or to a named one; it is checked again before it serves."""
        from quarl.device.deploy.verbs import Rollback, rollback

        return self._run_verb(rollback, Rollback, policy=_name(policy), to=to, mark_bad=mark_bad)

    def remove(self, policy: Policy | str, *, release: str | None = None, whole: bool = False) -> Answer:
        """Remove a policy's releases: all but the one that serves, or one, or the whole policy."""
        from quarl.device.deploy.verbs import Remove, remove

        return self._run_verb(remove, Remove, policy=_name(policy), release=release, all=whole)

    def serve(self, policy: Policy | str, *, rate: float | None = None, **options: Any) -> Answer:
        """Serve a deployed policy in the robot's loop from now on.

        Args:
            policy: which is deployed.
            rate: decisions a second.
            options: the others of ``quarl serve``, with ``_`` for ``-``: enable, fallback, …
        """
        from quarl.device.deploy.serving import Serve, serve

        return self._run_verb(serve, Serve, policy=_name(policy), rate=rate, **options)

    def unserve(self, policy: Policy | str) -> Answer:
        """Stop a policy's loop and forget it; the release stays."""
        from quarl.device.deploy.serving import Unserve, unserve

        return self._run_verb(unserve, Unserve, policy=_name(policy))

    def serving(self, policy: Policy | str) -> Answer:
        """Return whether a policy's loop runs, and how punctual it has been."""
        from quarl.device.deploy.serving import Serving, serving

        return self._run_verb(serving, Serving, policy=_name(policy))

    def _run_verb(self, verb: Callable[[Any], Any], kind: type, **given: Any) -> Answer:
        from quarl.cli import plain

        values, text = verb(kind(target=self.target, identity=self.identity, json=True, **given))
        return Answer(json.loads(json.dumps(values, default=plain)), text)

    def _get_connection(self) -> Connection:
        from quarl.device.deploy.connection import connect

        if self._connection is None:
            self._connection = self._open.enter_context(connect(self.target, identity=self.identity))
        return self._connection

    def _serving(self, policy: Policy | str) -> Iterable[Any]:
        """For each artifact of the release that serves, a context in which a fresh process has loaded it."""
        from quarl.device.deploy.errors import ReleaseError
        from quarl.device.deploy.releases import list_releases
        from quarl.policy.spec import RuntimeName, executions

        name, connection = _name(policy), self._get_connection()
        known = list_releases(connection).policies.get(name)
        release = (
            next((candidate for candidate in known.releases if candidate.name == known.current), None)
            if known
            else None
        )
        if release is None:
            raise ReleaseError(
                f"{self.target} has no release of policy {name}.", "Deploy it first: device.deploy(policy)"
            )
        precisions = [candidate for candidate in Precision if candidate.value in release.precisions]
        runtimes = [candidate for candidate in RuntimeName if candidate.value in release.runtimes]
        return [self._serve_artifact(name, *pair) for pair in executions(precisions, runtimes)]

    def _serve_artifact(self, name: str, precision: Precision, runtime: Any) -> Any:
        from quarl.bench.device_session.access import Device as Session

        return Session(self.target, self._get_connection()).serving(name, precision, runtime)

    def _each(self, policy: Policy | str, question: Callable[[Served, str], Report]) -> tuple[dict[str, Any], ...]:
        from quarl.bench.report.document import new_run

        run, reports = new_run(), []
        for session in self._serving(policy):
            with session as served:
                reports.append(question(served, run))
        return _documents(reports)


def _evaluation(results: Any, policy: str, task: str, precision: str, executed_by: str, seed: int) -> Evaluation:
    return Evaluation(
        policy=policy,
        task=task,
        preset=results.preset,
        precision=precision,
        executed_by=executed_by,
        episodes=results.episodes,
        seed=seed,
        mean_return=results.mean_return,
        return_interval=results.return_interval and tuple(results.return_interval),
        success=results.success,
        success_interval=results.interval and tuple(results.interval),
    )


def _name(policy: Policy | str) -> str:
    return policy if isinstance(policy, str) else policy.name


def _documents(reports: Iterable[Report]) -> tuple[dict[str, Any], ...]:
    return tuple(report.to_dict() for report in reports)


def _precisions(bits: Bits) -> list[Precision]:
    words = [bits] if isinstance(bits, int) else bits.split(",") if isinstance(bits, str) else bits
    return list(dict.fromkeys(Precision.parse(str(word).strip()) for word in words))


def _as_it_is(value: Any) -> Any:
    return value
