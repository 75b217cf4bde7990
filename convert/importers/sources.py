"""What the command adds to what a file says: the meaning of its outputs, names and units of its observation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quarl.convert.importers.chain import (
    Affine,
    Clip,
    Continuous,
    Dense,
    Discrete,
    Floats,
    ForeignError,
    ForeignPolicy,
    Input,
    Step,
    exclude_states,
    state_size,
    through,
)

CLIP, SCALE, AS_IS, DISCRETE = "clip", "scale", "as-is", "discrete"


def with_actions(policy: ForeignPolicy, actions: str | None, bounds: tuple[tuple[float, float], ...]) -> ForeignPolicy:
    """Return the policy with what --actions and --bounds say of its outputs.

    Args:
        policy: as read.
        actions: clip (to the bounds), scale (−1 … 1 to the bounds, clipped), as-is or discrete; None: as it says.
        bounds: (low, high) for all outputs, or one for each.

    Raises:
        ForeignError: the file does not say and nor does the user, or both do, differently.
    """
    if actions is None:
        if policy.actions is None:
            raise ForeignError(
                f"{policy.source}: the file does not say what its outputs mean.",
                "Add --actions discrete, as-is, clip --bounds LOW:HIGH or scale --bounds LOW:HIGH.",
            )
        if bounds:
            raise ForeignError("--bounds requires --actions clip or scale.", "Add one of the two.")
        return policy
    if isinstance(policy.actions, Discrete) != (actions == DISCRETE) and policy.actions is not None:
        kind = "discrete" if isinstance(policy.actions, Discrete) else "continuous"
        raise ForeignError(f"--actions must match the file, whose actions are {kind}, got {actions}.", "Leave it out.")
    if (actions in (CLIP, SCALE)) != bool(bounds):
        need = "requires" if actions in (CLIP, SCALE) else "takes no"
        raise ForeignError(f"--actions {actions} {need} --bounds.", "For example: --actions clip --bounds=-1:1")
    if actions == DISCRETE:
        return replace(policy, actions=policy.actions or Discrete())
    added: tuple[Step, ...] = ()
    low, high = (np.array(ends, np.float64) for ends in zip(*bounds, strict=True)) if bounds else (None, None)
    if low is not None and high is not None and actions == CLIP:
        added = (Clip(low, high),)
    elif low is not None and high is not None:
        one = np.ones(1)
        added = Clip(-one, one), Affine((high - low) / 2, (high + low) / 2)
    return append_steps(replace(policy, actions=policy.actions or Continuous()), added)


def append_steps(policy: ForeignPolicy, added: tuple[Step, ...]) -> ForeignPolicy:
    """Return the policy with more steps behind its outputs, and behind what its own program computes."""
    original = policy.original
    if not added:
        return policy
    if original is None:
        return replace(policy, steps=(*policy.steps, *added))

    def both(rows: Floats) -> Floats:
        results = np.asarray(original(rows), np.float64)
        outputs, following = np.split(results, [results.shape[1] - state_size(policy.steps)], axis=1)
        return np.concatenate([through(added, outputs), following], axis=1).astype(np.float32)

    return replace(policy, steps=(*policy.steps, *added), original=both)


def centre_outputs(policy: ForeignPolicy, outputs: int) -> ForeignPolicy:
    """Return a discrete policy whose outputs have the mean over the actions subtracted: no action changes, and int8 is
    finer.

    Action values of one state are close to each other and far from those of another: most levels would be spent on
    what all actions have in common.
    """
    assert isinstance(policy.actions, Discrete)
    centring = centre_rows(policy.actions, np.eye(outputs))
    kind = "The mean over the actions is subtracted from the outputs, which changes no action and helps int8."
    step = Dense(centring.astype(np.float32), np.zeros(outputs, np.float32))
    return replace(append_steps(policy, (step,)), assumed=(*policy.assumed, kind))


def centre_rows(actions: Discrete, outputs: np.ndarray) -> np.ndarray:
    """Return outputs (n, m) without the mean over the actions, those of each of several choices without their own."""
    result = np.array(outputs)
    for part in actions.head(outputs.shape[1]).parts:
        result[:, part] -= result[:, part].mean(axis=1, keepdims=True)
    return result


def with_inputs(policy: ForeignPolicy, fields: tuple[Input, ...]) -> ForeignPolicy:
    """Return the policy with names, shapes and units of --fields or of a task.

    Raises:
        ForeignError: they have another size.
    """
    own_inputs = exclude_states(policy.inputs)
    own, field_size = (sum(int(np.prod(part.shape)) for part in parts) for parts in (own_inputs, fields))
    if own != field_size:
        raise ForeignError(
            f"--fields must have {own} elements like the policy, got {field_size} "
            f"({', '.join(f'{f.name} {f.shape}' for f in fields)}).",
            "Type the fields in the order in which the policy takes them.",
        )
    ends = [set(np.cumsum([int(np.prod(part.shape)) for part in parts]).tolist()) for parts in (own_inputs, fields)]
    order = [part.name for part in fields if part.name in {own.name for own in own_inputs}]
    if not ends[0] <= ends[1] or order != [part.name for part in own_inputs if part.name in order]:
        raise ForeignError(
            "--fields must be the file's inputs, or parts of them, in its order "
            f"({', '.join(f'{f.name} {f.shape}' for f in own_inputs)}), "
            f"got {', '.join(f'{f.name} {f.shape}' for f in fields)}.",
            "Leave --fields out, or type the file's names in the file's order.",
        )
    if any(len(part.shape) == 3 for part in fields) and len(policy.inputs[0].shape) != 3:
        raise ForeignError("a field must not be an image (three sides) for this policy.", "Type one size: NAME:SIZE")
    if len(policy.inputs[0].shape) == 3 and fields[0].shape != policy.inputs[0].shape:
        raise ForeignError(f"the field must be the image {policy.inputs[0].shape}, got {fields[0].shape}.")
    states = policy.inputs[len(own_inputs) :]
    return replace(policy, inputs=(*fields, *states))
