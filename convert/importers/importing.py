"""From a foreign file to a bundle: read, ask what is not said, fold, prove, write; then fly both."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.convert import opaque
from quarl.convert.acceptance import agreement
from quarl.convert.calibration import still_elements
from quarl.convert.importers import recordings, registry, sources
from quarl.convert.importers.chain import (
    Affine,
    Continuous,
    Discrete,
    Floats,
    ForeignError,
    ForeignPolicy,
    Input,
    Opaque,
    count_outputs,
    run,
    state_size,
)
from quarl.convert.importers.fold import Folded, fold
from quarl.convert.importers.options import ImportOptions
from quarl.convert.importers.proof import Proof, prove
from quarl.convert.importers.zip_members import read_untrusted
from quarl.policy.bundle import write_bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.json_values import POLICY_NAMES_ALLOWED, abbreviate, is_policy_name
from quarl.policy.ladder import FLOOR, Ladder
from quarl.policy.opaque import execute
from quarl.policy.places import ARTIFACTS
from quarl.policy.reading import MANIFEST_FILE
from quarl.policy.reference import Weights, forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    PROGRAM,
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    MultiDiscreteHead,
    PolicySpec,
    Precision,
)

if TYPE_CHECKING:
    from quarl.train.suites.task import Task

COARSE_SHARE, FEW_ROWS = 0.25, 256
PERIOD_S = 0.02
"""Between two decisions, where neither the file nor the user says: what legged robots and arms have as a rule."""
FAR_OFF_SCALE = 4.0
"""Deviations from 0, or this many deviations, for which an observation without a normaliser is worth a warning."""


@dataclass(frozen=True)
class Imported:
    """The results of an import.

    Attributes:
        policy: as read, with what the user said of it.
        spec: of the bundle.
        proof: how far it is from the original.
        path: of the bundle; None with --dry-run.
        warnings: what may be wrong, a sentence each.
        returns: original and bundle on the same episodes, by name: JSON values; empty without a task.
        ladder: what each precision keeps of the return; None without a task.
    """

    policy: ForeignPolicy
    spec: PolicySpec
    proof: Proof
    path: Path | None
    warnings: tuple[str, ...]
    returns: dict[str, Any]
    ladder: Ladder | None = None


def import_policy(arguments: ImportOptions) -> Imported:
    """Import the policy that the options name.

    Raises:
        ForeignError: it cannot be expressed, something is not said, or it does not act as the original.
    """
    if arguments.episodes < 0 or (arguments.period is not None and not 0 < arguments.period < math.inf):
        raise ForeignError("--episodes must be 0 or more, and --period more than 0 seconds.")
    name = (
        arguments.name
        if arguments.name is not None
        else re.sub(r"[^A-Za-z0-9._-]+", "-", arguments.file.stem).strip("._-")[:64]
    )
    if not is_policy_name(name):
        raise ForeignError(f"--name must be {POLICY_NAMES_ALLOWED}, got {abbreviate(name)}.")
    path = arguments.output_path or ARTIFACTS / name
    if path.exists() and not arguments.dry_run:
        if not arguments.replace:
            raise ForeignError(f"{path} exists already.", "Add --replace to overwrite it, or type another --name.")
        if not (path / MANIFEST_FILE).is_file():
            raise ForeignError(f"{path} is not a bundle, so --replace keeps it.", "Type another --name, or remove it.")
    if arguments.task is not None and arguments.observations is not None:
        raise ForeignError("observations must come from --task or --observations, got both.", "Leave one of them out.")
    policy = registry.read(
        arguments.file,
        vecnormalize=arguments.vecnormalize,
        output=arguments.output,
        spec=arguments.spec,
        states=dict(arguments.states) or None,
    )
    task = None
    if arguments.task is not None:
        from quarl.train.suites.make import make_task
        from quarl.train.suites.names import MAX_EPISODE_STEPS
        from quarl.train.suites.task import unpair_if_unseeded

        limit = {} if arguments.max_episode_steps is None else {MAX_EPISODE_STEPS: arguments.max_episode_steps}
        task = make_task(arguments.task, options=limit)
        if arguments.episodes:
            task = unpair_if_unseeded(task, recordings.SEED)
    policy = complete(arguments, policy, task)
    if arguments.observations is not None:
        rows = recordings.load_recording(arguments.observations, policy, arguments.range)
    elif task is not None:
        rows = recordings.record_task_episodes(policy, task, arguments.range)
    else:
        rows = recordings.draw_observations(policy, arguments.range)
    if task is not None:
        check_outputs(policy, task)
    outputs = count_outputs(policy)
    pairs = recordings.read_pairs(arguments.golden, policy, outputs) if arguments.golden is not None else None
    if isinstance(policy.actions, Discrete) and not policy.is_opaque:
        policy = sources.centre_outputs(policy, outputs)
        assert isinstance(policy.actions, Discrete)
        if pairs is not None:
            logits, following = np.split(pairs.outputs, [outputs], axis=1)
            logits = sources.centre_rows(policy.actions, logits)
            pairs = replace(pairs, outputs=np.concatenate([logits, following], axis=1))
    observed = np.concatenate([rows.golden, rows.calibration])
    compared = observed[: len(rows.golden) + 512]
    known_pairs = None if pairs is None else (pairs.observations, pairs.outputs)
    warnings = rows.warnings
    # A normaliser in front is for int8, which observations that are made up do not calibrate.
    folded = fold(policy, observed, may_normalise=bool(len(rows.calibration)))
    spec = build_spec(arguments, name, policy, folded, task)
    try:
        proof = prove(policy, spec, folded.weights, compared, known_pairs, rows.outlying)
    except ForeignError:
        if policy.is_opaque:
            raise
        # A normaliser in front is for int8; where it costs fp32 its digits, the policy stays as it is.
        normaliser, folded = folded.normaliser, fold(policy, observed, may_normalise=False)
        if folded.normaliser == normaliser:
            raise
        spec = build_spec(arguments, name, policy, folded, task)
        proof = prove(policy, spec, folded.weights, compared, known_pairs, rows.outlying)
        reach = np.abs(observed).max(axis=0)
        warnings += (
            f"the largest element, {reach.argmax()}, reaches {reach.max():g}: behind a normaliser, float32 would lose "
            "the digits of smaller values, so none is put in front, and int8 may act otherwise.",
        )
    int8 = None
    if len(rows.calibration):
        try:
            int8 = int8_outputs(spec, folded.weights, rows.calibration)
        except QuantizationError as error:
            warnings += (f"there is no int8 of it: {error.message}",)
    returns: dict[str, Any] = {}
    flies = task is not None and arguments.episodes > 0 and int8 is not None
    if task is not None and flies:
        from quarl.convert.importers.returns import compare_returns

        returns = compare_returns(policy, spec, folded.weights, task, arguments.episodes)
    warnings += () if task is None else task.notes
    if int8 is not None:
        warnings += (
            *still_elements(spec, rows.calibration),
            *list_import_warnings(policy, rows.calibration, known_pairs is not None),
        )
        warnings += poor_in_int8(spec, folded.weights, int8, rows.golden)
    if arguments.dry_run:
        return Imported(policy, spec, proof, None, warnings, returns)
    golden = None if policy.is_opaque else run(policy, rows.golden)
    bundle = write_bundle(path, spec, folded.weights, rows.calibration, rows.golden, golden_outputs=golden)
    ladder = None
    if flies:
        from quarl.convert.ladder import Question, climb

        ladder = climb(bundle, Question(episodes=arguments.episodes, task=task))
        warnings += falls(ladder)
    return Imported(policy, spec, proof, bundle.path, warnings, returns, ladder)


def complete(arguments: ImportOptions, policy: ForeignPolicy, task: Task | None) -> ForeignPolicy:
    """Return the policy with what task and user say of it; as one ONNX graph where the contract cannot express it.

    Raises:
        ForeignError: what was said does not fit, or the policy cannot be expressed and is no ONNX graph.
    """
    result = with_assumptions(arguments, policy, task)
    if len(arguments.bounds) not in (0, 1, count_outputs(result)):
        raise ForeignError(
            f"--bounds must have 1 pair or {count_outputs(result)}, one per output, got {len(arguments.bounds)}."
        )
    if task is not None and arguments.fields:
        seen, field_size = (
            sum(int(np.prod(part.shape)) for part in parts) for parts in (task.observation, arguments.fields)
        )
        if seen != field_size:
            raise ForeignError(
                f"--fields must have the {seen} elements of {task.name}, got {field_size}.", "Leave --fields out."
            )
    result = with_task(result, task, arguments.fields, arguments.actions, arguments.bounds)
    if policy.as_opaque is not None:
        try:
            fold(result, np.zeros((2, sum(int(np.prod(part.shape)) for part in result.inputs))), may_normalise=False)
        except ForeignError as error:
            return complete(arguments, policy.as_opaque(error.message), task)
    return result


def with_assumptions(arguments: ImportOptions, policy: ForeignPolicy, task: Task | None) -> ForeignPolicy:
    """Return the policy with what neither the file says nor the user taken for granted, and said."""
    assumed = []
    if task is None and not (arguments.period or policy.period_s):
        assumed.append(f"A decision is due every {1000 * PERIOD_S:g} ms; another time: --period SECONDS.")
        policy = replace(policy, period_s=PERIOD_S)
    if arguments.actions is None and policy.actions is None and not (task and task.is_discrete):
        if arguments.bounds:
            raise ForeignError("--bounds requires --actions clip or scale.", "Add one of the two.")
        assumed.append("The outputs are the actions, as they are; otherwise: --actions discrete, clip or scale.")
        policy = replace(policy, actions=Continuous())
    return replace(policy, assumed=(*policy.assumed, *assumed))


def with_task(
    policy: ForeignPolicy,
    task: Task | None,
    fields: tuple[Input, ...],
    actions: str | None,
    bounds: tuple[tuple[float, float], ...],
) -> ForeignPolicy:
    """Return the policy with what task and user know of its observation and its actions."""
    if task is not None and not fields:
        fields = tuple(Input(part.name, part.shape, part.unit, part.element_names) for part in task.observation)
    if task is not None and policy.actions is None and actions is None and task.is_discrete:
        counts = task.head.counts if isinstance(task.head, MultiDiscreteHead) else ()
        policy = replace(policy, actions=Discrete(counts=counts))
    policy = sources.with_actions(policy, actions, bounds)
    return sources.with_inputs(policy, fields) if fields else policy


def check_outputs(policy: ForeignPolicy, task: Task) -> None:
    """Refuse a policy whose actions are not the task's."""
    outputs = count_outputs(policy)
    own, its = f"{outputs} numbers", task.head.describe()
    parts: list[tuple[slice, ...]] = [(), () if isinstance(task.head, ContinuousHead) else task.head.parts]
    if isinstance(policy.actions, Discrete):
        head = policy.actions.head(outputs)
        own, parts[0] = head.describe(), head.parts
    if outputs != task.outputs or parts[0] != parts[1]:
        raise ForeignError(f"the policy must return {its} for the task {task.name}, got {own}.")
    if task.is_discrete and any(task.head.example):
        raise ForeignError(
            f"the file numbers its actions from 0, and the task {task.name} takes {its}.",
            "Leave --task out, or register the task with a wrapper whose actions start at 0.",
        )


def build_spec(
    arguments: ImportOptions, name: str, policy: ForeignPolicy, folded: Folded, task: Task | None
) -> PolicySpec:
    """Return the bundle's contract."""
    period = arguments.period or policy.period_s or (task.control_period_s if task else 0.0)
    head = folded.head
    if isinstance(head, DiscreteHead) and task is not None and isinstance(task.head, DiscreteHead):
        head = task.head
    if isinstance(head, ContinuousHead) and task is not None and isinstance(task.head, ContinuousHead):
        head = _with_names(head, task.head)
    origin: dict[str, Any] = {"how": f"imported from {policy.source}", **(policy.provenance or {})}
    if arguments.file.is_file():
        origin["file_sha256"] = hashlib.sha256(read_untrusted(arguments.file)).hexdigest()
    if task is not None:
        origin["task"] = task.name
    return PolicySpec(
        name=name,
        observation=folded.observation,
        normaliser=folded.normaliser,
        network=folded.network,
        head=head,
        control_period_s=period,
        environment=task.environment if task else EnvironmentSpec("foreign"),
        provenance=origin,
        delay_s=arguments.delay,
        fallback=arguments.fallback,
    )


def _with_names(head: ContinuousHead, known: ContinuousHead) -> ContinuousHead:
    return replace(head, names=head.names or known.names, unit=known.unit if head.unit == "1" else head.unit)


def int8_outputs(spec: PolicySpec, weights: Weights, calibration: Floats) -> Callable[[Floats], Floats]:
    """Return what computes the int8 policy's results (n, result_size) of raw observations (n, observation_size)."""
    if spec.network.opaque:
        program = np.frombuffer(opaque.build(spec, weights[PROGRAM], calibration, Precision.INT8), np.uint8)
        return lambda rows: execute(spec, program, rows)
    network = quantize_network(spec, weights, calibration)
    return lambda rows: forward_integer(spec, network, rows)


def falls(ladder: Ladder) -> tuple[str, ...]:
    """Return a sentence where int8 does not keep the return."""
    int8 = ladder.rung(Precision.INT8)
    if int8 is None or int8.loss is None or ladder.keeps(int8) is not False:
        return ()
    keeping = ladder.choose([ArtifactFormat.TFLITE, ArtifactFormat.ONNX])
    return (f"int8 loses {int8.loss} of the return; {keeping.value} keeps it.",)


def poor_in_int8(spec: PolicySpec, weights: Weights, int8: Callable[[Floats], Floats], rows: Floats) -> tuple[str, ...]:
    """Return a sentence where int8 acts otherwise too often, or leaves outputs of a continuous policy few levels."""
    own, integers = forward_float(spec, weights, rows), int8(rows)
    if spec.is_discrete:
        same = agreement(spec, integers, own)
        sentence = f"int8 acts as the policy in only {same:.1%} of these observations. Take 16 bits."
        return () if same >= FLOOR else (sentence,)
    wanted = own[:, : spec.output_size].astype(np.float64)
    error = np.sqrt(((integers[:, : spec.output_size] - wanted) ** 2).mean(axis=0))
    coarse = np.flatnonzero(error > COARSE_SHARE * wanted.std(axis=0))
    if not len(coarse):
        return ()
    outputs = ", ".join(map(str, coarse[:8]))
    return (
        f"in int8, output {outputs} is off by more than {COARSE_SHARE:.0%} of its standard deviation on these "
        "observations: it hardly moves, or the outputs differ much in reach. Take 16 bits.",
    )


def list_import_warnings(policy: ForeignPolicy, rows: np.ndarray, compared: bool) -> tuple[str, ...]:
    """Warnings about an import that passed, a sentence each."""
    warnings, sensed = [], rows[:, : rows.shape[1] - state_size(policy.steps)]
    opening = next(iter(policy.steps), None)
    if not isinstance(opening, Affine | Opaque):
        reach = np.maximum(np.abs(sensed.mean(axis=0)), sensed.std(axis=0)).max()
        warnings.append(
            f"nothing normalises the observation, whose elements reach {reach:.3g}: was it normalised outside of the "
            "policy, it is not here."
            if reach > FAR_OFF_SCALE
            else "nothing normalises the observation: was it normalised outside of the policy, it is not here."
        )
    if policy.original is None and not compared:
        warnings.append(
            "the original program did not take part: record observations and outputs where it runs, and give them as "
            "--golden."
        )
    if len(rows) < FEW_ROWS:
        warnings.append(
            f"only {len(rows)} observations calibrate: int8 cuts what lies beyond them. Record {FEW_ROWS} or more."
        )
    return tuple(warnings)
