"""Observations for an import: recorded by the user, or seen by the policy itself while it flies a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quarl.convert.importers.chain import (
    Affine,
    Discrete,
    Floats,
    ForeignError,
    ForeignPolicy,
    count_outputs,
    run,
    state_size,
    state_sizes,
)
from quarl.convert.importers.zip_members import Members, open_zip, read_untrusted
from quarl.policy.history import History, remembers
from quarl.policy.pilot import deciding
from quarl.policy.spec import (
    ContinuousHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    OpaqueProgram,
    PolicySpec,
    Squash,
)

if TYPE_CHECKING:
    from quarl.train.suites.episodes import Decide
    from quarl.train.suites.task import Task

FEWEST_ROWS, MADE_UP = 16, 512
GOLDEN_SHARE, MOST_GOLDEN, MOST_CALIBRATION = 8, 512, 4096
SEED = 7
LARGEST_VALUE, LARGEST_SPREAD = 1e18, 1e9
"""Of observations, and of a deviation in a file's normaliser: one beyond it overflowed in training."""
LARGEST_RECORDING = 2**29
"""Bytes of all arrays of a recording, in float32: those that are used of images of 84 × 84 × 4 have 520 million."""
OUTLYING_SHARE, OUTLYING_SPANS, STILL_SPAN = 0.05, 10.0, 100.0
"""An outlier lies outside the central 90 % of its element's values by more than ten times their span. Where all of them
are the same, the span counts as 100, so that a rare flag or impact is no outlier and a sentinel such as 9999 is one."""
EPISODE_STARTS = "episode_starts"
"""Optional array (n,) of a recording of a policy that remembers: whether an episode begins with the row."""
SAVE = "Save it with numpy.savez(FILE, observations=…); for --golden, add outputs=…."


ElementRanges = tuple[
    tuple[int, float, float], ...
]  # (element of the observation, low, high) each, in the element's unit


@dataclass(frozen=True)
class Recorded:
    """Raw observations, float32 (n, size) each, none of them in both, and what :func:`cut_outliers` found in them."""

    calibration: Floats
    golden: Floats
    outlying: Floats
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Observations (n, size) and the original's outputs (n, outputs), recorded where it runs.

    Of a recurrent policy, the next states that the chain computes stand behind the outputs: nobody records them.
    """

    observations: Floats
    outputs: Floats


def decider(policy: ForeignPolicy) -> Decide:
    """Return the foreign policy as a function of what each period brings; the chain itself decides, nothing folded."""
    return deciding(flying(policy), lambda observations: run(policy, flat(observations)).astype(np.float32))


def flying(policy: ForeignPolicy) -> PolicySpec:
    """Return what whoever flies a chain has to know of it, before it is folded: its fields, its states and its
    actions."""
    outputs = count_outputs(policy)
    ones = (1.0,) * outputs
    free = ContinuousHead(tuple(-one for one in ones), ones, Squash.NONE)
    sizes = tuple(size for step in policy.steps for size in state_sizes(step))
    return PolicySpec(
        name="foreign",
        observation=tuple(ObservationField(i.name, i.shape, i.unit, memory=i.memory) for i in policy.inputs),
        normaliser=Normaliser((0.0,), (1.0,)),
        network=NetworkSpec((), opaque=OpaqueProgram(1, "as read", sizes)),
        head=policy.actions.head(outputs) if isinstance(policy.actions, Discrete) else free,
        control_period_s=1.0,
        environment=EnvironmentSpec("foreign"),
    )


def record_task_episodes(policy: ForeignPolicy, task: Task, ranges: ElementRanges = ()) -> Recorded:
    """Observations of greedy episodes of the policy on a task."""
    from quarl.train.runs.results import record_observations

    decide = decider(policy)
    calibration, golden = (
        widen_ranges(policy, flat(record_observations(task, decide, SEED, purpose, rows)), ranges)
        for purpose, rows in (("calibration", MOST_CALIBRATION), ("golden", MOST_GOLDEN))
    )
    rows, outlying, warnings = cut_outliers(policy, np.concatenate([calibration, golden]))
    return Recorded(rows[: len(calibration)], rows[len(calibration) :], outlying, warnings)


def load_recording(path: Path, policy: ForeignPolicy, ranges: ElementRanges = ()) -> Recorded:
    """Return the array ``observations`` of an npz file: (n, size), or (n, height, width, channels) of images.

    Of a policy that remembers, a row may also be what one period brings, period after period of one recording, of
    several episodes where an array ``episode_starts`` says where they begin. Without an array ``observations``, there
    may be one for each of the policy's fields, by their names.

    One row in eight, up to 512, becomes a golden vector, the others calibrate.

    Raises:
        ForeignError: it is none, of another size, too short, or not finite.
    """
    rows = _arrays(path, policy, {"observations": None})["observations"]
    if len(rows) < FEWEST_ROWS:
        raise ForeignError(
            f"{path} must have at least {FEWEST_ROWS} observations, got {len(rows)}.",
            "Record more from rollouts.",
        )
    rows, outlying, warnings = cut_outliers(policy, widen_ranges(policy, rows, ranges))
    golden = np.zeros(len(rows), bool)
    golden[:: max(GOLDEN_SHARE, -(-len(rows) // MOST_GOLDEN))] = True
    calibration = rows[~golden]
    step = -(-len(calibration) // MOST_CALIBRATION)
    return Recorded(calibration[::step], rows[golden], outlying, warnings)


def draw_observations(policy: ForeignPolicy, ranges: ElementRanges = ()) -> Recorded:
    """Return observations that nobody recorded, which prove floats and calibrate nothing.

    They are those that the policy's own normaliser expects, and a unit normal where it has none; grey levels of images.
    An element with a range takes values from all of it.
    """
    generator, size = np.random.default_rng(SEED), sum(int(np.prod(part.shape)) for part in policy.inputs)
    rows = generator.standard_normal((MADE_UP, size))
    if len(policy.inputs) == 1 and len(policy.inputs[0].shape) == 3:
        rows = generator.integers(0, 256, rows.shape).astype(np.float64)
    first = policy.steps[0] if policy.steps else None
    source = "a unit normal"
    if isinstance(first, Affine) and (first.scale != 0).all():
        sensed = size - state_size(policy.steps)
        overflowed = np.abs(first.scale) < 1.0 / LARGEST_SPREAD
        scale, offset = np.where(overflowed, 1.0, first.scale), np.where(overflowed, 0.0, first.offset)
        rows[:, :sensed] = (rows[:, :sensed] - offset) / scale
        source = "the file's normaliser"
    none = np.zeros((0, size), np.float32)
    return Recorded(
        none,
        widen_ranges(policy, rows.astype(np.float32), ranges)[-MADE_UP:],
        none,
        (
            f"no observations were given: it was compared on {MADE_UP} drawn from {source}. int8 needs recorded ones, "
            "of the robot's own loop for example: import it again with --observations rollouts.npz --replace.",
        ),
    )


def widen_ranges(policy: ForeignPolicy, rows: Floats, ranges: ElementRanges) -> Floats:
    """Append each row (n, size) once more, in which an element with a range takes values from all of it, in any order.

    Raises:
        ForeignError: an element is none of the observation's, or its range is not finite and ordered.
    """
    elements, generator, moving = rows.shape[1] - state_size(policy.steps), np.random.default_rng(SEED), rows.copy()
    for element, low, high in ranges:
        if not (0 <= element < elements and -LARGEST_VALUE <= low < high <= LARGEST_VALUE):
            raise ForeignError(
                f"--range must be ELEMENT in 0 … {elements - 1} and LOW < HIGH, got {element} {low:g} {high:g}.",
                f"Type, for example: --range {elements - 1} -1 1",
            )
        moving[:, element] = generator.permutation(np.linspace(low, high, len(rows)))
    return np.concatenate([rows, moving]) if ranges else rows


def cut_outliers(policy: ForeignPolicy, rows: Floats) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Cut what lies far beyond an element's other values: a spike or a sentinel must decide no range.

    Returns:
        The rows (n, size) with each outlier moved to the nearest of its element's other values; those that had any, as
        they were (m, size); and a sentence for each element. Grey levels and states have no outliers.
    """
    if any(len(part.shape) == 3 for part in policy.inputs):
        return rows, rows[:0], ()
    low = np.quantile(rows, OUTLYING_SHARE, axis=0, method="higher")
    high = np.quantile(rows, 1.0 - OUTLYING_SHARE, axis=0, method="lower")
    span = np.where(high > low, high - low, STILL_SPAN)
    outlying = (low - rows > OUTLYING_SPANS * span) | (rows - high > OUTLYING_SPANS * span)
    outlying[:, rows.shape[1] - state_size(policy.steps) :] = False
    least, most = np.where(outlying, np.inf, rows).min(axis=0), np.where(outlying, -np.inf, rows).max(axis=0)
    warnings = []
    for element in np.flatnonzero(outlying.any(axis=0)):
        row = int(outlying[:, element].argmax())
        warnings.append(
            f"element {element} has outliers, the first is {rows[row, element]:g} in row {row}; the ranges end at "
            f"{least[element]:.3g} … {most[element]:.3g}, and int8 clips outliers. Wider: --range {element} LOW HIGH."
        )
    return np.clip(rows, least, most, dtype=np.float32), rows[outlying.any(axis=1)], tuple(warnings)


def read_pairs(path: Path, policy: ForeignPolicy, outputs: int) -> Pairs:
    """Return the arrays ``observations`` and ``outputs`` of an npz file.

    Raises:
        ForeignError: they are missing, of other sizes, or not finite.
    """
    arrays = _arrays(path, policy, {"observations": None, "outputs": outputs})
    if len(arrays["observations"]) != len(arrays["outputs"]):
        raise ForeignError(
            f"{path} must have as many outputs as observations, got {len(arrays['outputs'])} "
            f"for {len(arrays['observations'])}."
        )
    following = run(policy, arrays["observations"])[:, outputs:]
    return Pairs(arrays["observations"], np.concatenate([arrays["outputs"], following], axis=1).astype(np.float32))


def _arrays(path: Path, policy: ForeignPolicy, columns: dict[str, int | None]) -> dict[str, Floats]:
    size = sum(int(np.prod(part.shape)) for part in policy.inputs)
    step_input_names = [part.name for part in policy.inputs if part.memory is None]
    arrays: dict[str, Floats] = {}
    starts = None
    members = open_zip(read_untrusted(path), str(path))
    named = all(name in members.arrays for name in step_input_names)
    named = named and ("observations" not in members.arrays or "observations" in step_input_names)
    if named and "outputs" in step_input_names and "outputs" in columns:
        raise ForeignError(f"{path}: 'outputs' must be the original's outputs, but an input has that name.", SAVE)
    for name in (*step_input_names, *list(columns)[1:]) if named else columns:
        arrays[name] = _numbers(members, name, LARGEST_RECORDING - sum(values.nbytes for values in arrays.values()))
    if remembers(policy.inputs) and EPISODE_STARTS in members.arrays:
        starts = _numbers(members, EPISODE_STARTS, LARGEST_RECORDING).reshape(-1) != 0
    if any(not len(values) for values in arrays.values()):
        raise ForeignError(f"{path} has no rows of {', '.join(n for n, v in arrays.items() if not len(v))}.", SAVE)
    arrays = {name: values.reshape(len(values), -1) for name, values in arrays.items()}
    if named:
        parts = [arrays.pop(name) for name in step_input_names]
        if len({len(part) for part in parts}) != 1:
            raise ForeignError(f"{path}: fields must have equal row counts, got {[len(part) for part in parts]}.")
        arrays["observations"] = np.concatenate(parts, axis=1)
    outputs, wanted = arrays.get("outputs"), columns.get("outputs")
    if outputs is not None and outputs.shape[1] != wanted:
        raise ForeignError(f"{path}: 'outputs' must have {wanted} numbers per row, got {outputs.shape[1]}.")
    if remembers(policy.inputs):
        if starts is not None and len(starts) != len(arrays["observations"]):
            raise ForeignError(f"{path}: {EPISODE_STARTS!r} must have one row per period, got {len(starts)}.", SAVE)
        arrays["observations"] = _expand_history(policy, arrays["observations"], outputs, starts)
    rows = {}
    for name, array in arrays.items():
        if name == "observations" and array.shape[1] != size:
            raise ForeignError(
                f"{path}: {name!r} must have {size} numbers per row "
                f"({', '.join(f'{part.name} {part.shape}' for part in policy.inputs)}), got {array.shape[1]}."
            )
        if not np.isfinite(array).all():
            raise ForeignError(f"{path}: {name!r} must be finite, got NaN or infinity.")
        rows[name] = array
    return rows


def _numbers(members: Members, name: str, most_bytes: int) -> Floats:
    path = members.what
    if name not in members.arrays:
        raise ForeignError(f"{path} has no array {name!r}; it has {', '.join(members.arrays)}.", SAVE)
    if (values := members.array(name, most_bytes)).dtype.kind not in "fiub" or not values.ndim:
        raise ForeignError(f"{path}: {name!r} must be an array of numbers, got {values.dtype}{list(values.shape)}.")
    if max(values.max(initial=0), -float(values.min(initial=0))) > LARGEST_VALUE:
        raise ForeignError(f"{path}: {name!r} must have values within ±{LARGEST_VALUE:g}.")
    return np.asarray(values, np.float32)


def _expand_history(policy: ForeignPolicy, rows: Floats, outputs: Floats | None, starts: np.ndarray | None) -> Floats:
    """Rows of what each period brings as whole observations, the policy acting, or as recorded; others as they are."""
    history = History(policy.inputs)
    if rows.shape[1] != history.values_size:
        return rows
    observations, size = [], count_outputs(policy)
    for period, values in enumerate(rows):
        if starts is not None and starts[period]:
            history.reset()
        observations.append(np.array(history.observe(values)))
        known = outputs is not None and len(outputs) == len(rows)
        output = run(policy, observations[-1][None])[0]
        history.record_action(outputs[period] if known and outputs is not None else output[:size], output[size:])
    return np.stack(observations)


def flat(observations: np.ndarray) -> Floats:
    """Flatten (n, …) to float32 (n, size)."""
    return np.asarray(observations, np.float32).reshape(len(observations), -1)
