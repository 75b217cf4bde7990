"""Which reader a file belongs to, and what the command adds to what the file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
    sensed,
    state_size,
    through,
)
from quarl.convert.importers.leapp.description import is_leapp
from quarl.convert.importers.sb3.reader import is_sb3, read_sb3
from quarl.convert.importers.torch_file import TORCH_ENDINGS, refuse_torchscript
from quarl.policy.history import remembers
from quarl.policy.spec import Remembered

WEIGHTS = (*TORCH_ENDINGS, ".safetensors", ".npz")
KINDS = f".zip (Stable-Baselines3), .onnx, .keras, a LEAPP folder, and with --spec {', '.join(WEIGHTS)}"
CLIP, SCALE, AS_IS, DISCRETE = "clip", "scale", "as-is", "discrete"
ACTIONS = (CLIP, SCALE, AS_IS, DISCRETE)


def read(
    path: Path,
    vecnormalize: Path | None = None,
    output: str | None = None,
    spec: Path | None = None,
    states: Mapping[str, str] | None = None,
) -> ForeignPolicy:
    """The policy in a foreign file.

    Args:
        path: of the file.
        vecnormalize: Stable-Baselines3's vecnormalize.pkl.
        output: of an ONNX graph, a LEAPP folder or a Keras model with several.
        spec: what the tensors of a plain file of weights are.
        states: of an ONNX graph: inputs that are states, with the outputs that replace them.

    Raises:
        ForeignError: the file is missing, none that is known, or holds what a bundle cannot express.
    """
    kind = path.suffix.lower()
    if kind != ".onnx":
        _unused(kind or "folder", {"--states": states})
    if is_leapp(path):
        from quarl.convert.importers.leapp.reader import read_leapp

        _unused("LEAPP folder", {"--vecnormalize": vecnormalize, "--spec": spec})
        return read_leapp(path, output)
    if not path.exists():
        raise ForeignError(f"there is no file {path}.", f"Give a file: {KINDS}.")
    if kind == ".onnx":
        from quarl.convert.importers.leapp.exploy import is_exploy, read_exploy
        from quarl.convert.importers.onnx.file import load
        from quarl.convert.importers.onnx.reader import read_onnx

        _unused(kind, {"--vecnormalize": vecnormalize, "--spec": spec})
        file = load(path)
        return read_exploy(path, file, output) if is_exploy(file) else read_onnx(path, output, states)
    if kind == ".zip" or is_sb3(path):
        _unused(kind, {"--output": output, "--spec": spec})
        return read_sb3(path, vecnormalize)
    if kind == ".keras":
        from quarl.convert.importers.keras.reader import read_keras

        _unused(kind, {"--vecnormalize": vecnormalize, "--spec": spec})
        return read_keras(path, output)
    if kind in WEIGHTS:
        from quarl.convert.importers.weights import read_weights

        _unused(kind, {"--output": output, "--vecnormalize": vecnormalize})
        if kind in TORCH_ENDINGS:
            refuse_torchscript(path)
        if spec is None:
            raise ForeignError(
                f"{path} is a file of weights, which does not say how they are used.",
                "Write the policy's steps to a JSON file (docs/import.md has examples), and add --spec FILE.json"
                + ". Of observations: give the policy's file, and this one as --observations." * (kind == ".npz"),
            )
        return read_weights(path, spec)
    older = kind in (".h5", ".hdf5")
    step = "If Keras wrote it, load it with Keras 3, and save it again: model.save('policy.keras')." if older else ""
    if kind == ".json":
        step = (
            f"If it says how weights are used, give their file, and it as --spec: quarl import FILE.npz --spec {path}"
        )
    raise ForeignError(f"{path} is no file that is known here; known are {KINDS}.", step)


def _unused(kind: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            raise ForeignError(f"{option} means nothing to a {kind} file.", "Leave it out.")


def with_actions(policy: ForeignPolicy, actions: str | None, bounds: tuple[tuple[float, float], ...]) -> ForeignPolicy:
    """The policy with what --actions and --bounds say of its outputs.

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
            raise ForeignError("--bounds is about --actions clip or scale, which is not given.", "Add it.")
        return policy
    if isinstance(policy.actions, Discrete) != (actions == DISCRETE) and policy.actions is not None:
        kind = "discrete" if isinstance(policy.actions, Discrete) else "continuous"
        raise ForeignError(f"--actions {actions}: the file says that its actions are {kind}.", "Leave it out.")
    if (actions in (CLIP, SCALE)) != bool(bounds):
        need = "needs" if actions in (CLIP, SCALE) else "has no"
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
    if added and any(part.memory and part.memory.of is Remembered.ACTION for part in policy.inputs):
        raise ForeignError(
            f"{policy.source}: it remembers its actions as the file makes them, and --actions {actions} changes them.",
            "Leave --actions out.",
        )
    return followed(replace(policy, actions=policy.actions or Continuous()), added)


def followed(policy: ForeignPolicy, added: tuple[Step, ...]) -> ForeignPolicy:
    """The policy with more steps behind its outputs, and behind what its own program computes."""
    original = policy.original
    if not added:
        return policy
    if original is None:
        return replace(policy, steps=(*policy.steps, *added))

    def both(rows: Floats) -> Floats:
        made = np.asarray(original(rows), np.float64)
        outputs, following = np.split(made, [made.shape[1] - state_size(policy.steps)], axis=1)
        return np.concatenate([through(added, outputs), following], axis=1).astype(np.float32)

    return replace(policy, steps=(*policy.steps, *added), original=both)


def centred(policy: ForeignPolicy, outputs: int) -> ForeignPolicy:
    """A discrete policy whose outputs have the mean over the actions subtracted: no action changes, and int8 is finer.

    Action values of one state are close to each other and far from those of another: most levels would be spent on
    what all actions have in common.
    """
    centring = np.eye(outputs) - 1.0 / outputs
    kind = "The mean over the actions is subtracted from the outputs, which changes no action and helps int8."
    step = Dense(centring.astype(np.float32), np.zeros(outputs, np.float32))
    return replace(followed(policy, (step,)), assumed=(*policy.assumed, kind))


def with_inputs(policy: ForeignPolicy, fields: tuple[Input, ...]) -> ForeignPolicy:
    """The policy with names, shapes and units of --fields or of a task.

    Raises:
        ForeignError: they have another size.
    """
    own_inputs = sensed(policy.inputs)
    if remembers(own_inputs):
        raise ForeignError(
            f"{policy.source}: its observation holds earlier periods, which --fields and a task cannot say.",
            "Leave --fields out, and record --observations where the policy runs.",
        )
    own, given = (sum(int(np.prod(part.shape)) for part in parts) for parts in (own_inputs, fields))
    if own != given:
        raise ForeignError(
            f"the fields have {given} elements ({', '.join(f'{f.name} {f.shape}' for f in fields)}), and the policy "
            f"takes {own}.",
            "Give the fields in the order in which the policy sees them.",
        )
    ends = [set(np.cumsum([int(np.prod(part.shape)) for part in parts]).tolist()) for parts in (own_inputs, fields)]
    order = [part.name for part in fields if part.name in {own.name for own in own_inputs}]
    if not ends[0] <= ends[1] or order != [part.name for part in own_inputs if part.name in order]:
        raise ForeignError(
            f"the fields {', '.join(f'{f.name} {f.shape}' for f in fields)} are not the file's inputs in its order, "
            f"{', '.join(f'{f.name} {f.shape}' for f in own_inputs)}; a field may be a part of an input.",
            "Leave --fields out, or give the file's names in the file's order.",
        )
    if any(len(part.shape) == 3 for part in fields) and len(policy.inputs[0].shape) != 3:
        raise ForeignError("a field with three sides is an image, and the policy sees none.", "Give it one side.")
    if len(policy.inputs[0].shape) == 3 and fields[0].shape != policy.inputs[0].shape:
        raise ForeignError(f"the policy sees an image of {policy.inputs[0].shape}; the field is {fields[0].shape}.")
    states = policy.inputs[len(own_inputs) :]
    return replace(policy, inputs=(*fields, *states))
