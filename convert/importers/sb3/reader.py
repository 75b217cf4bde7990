"""Read a policy that Stable-Baselines3 saved: ``model.save("policy.zip")``, and ``vec_env.save("vecnormalize.pkl")``.

The chain computes what ``model.predict(observation, deterministic=True)`` computes; for discrete actions, what its
argmax is taken of. Read are PPO, A2C, DQN, SAC, TD3 and DDPG with MlpPolicy, CnnPolicy and MultiInputPolicy, and
sb3-contrib's MaskablePPO, TRPO, QRDQN, TQC, CrossQ, ARS and RecurrentPPO, whose LSTM sees no images and begins an
episode with zeros; without PyTorch and without running anything of the file.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Dense,
    Discrete,
    ForeignError,
    ForeignPolicy,
    Step,
    state_inputs,
)
from quarl.convert.importers.pickles.arrays import refusal
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.pickles.spaces import Box, MultiBinary, MultiDiscrete
from quarl.convert.importers.pickles.spaces import Discrete as DiscreteSpace
from quarl.convert.importers.registry import ANY, Importer
from quarl.convert.importers.sb3.inputs import read_inputs, read_vec_normalize
from quarl.convert.importers.sb3.network import Tensors, actor
from quarl.convert.importers.sb3.settings import Settings, read_settings
from quarl.convert.importers.torch_file import read_torch
from quarl.convert.importers.zip_members import Members, open_zip, read_untrusted
from quarl.policy.spec import Activation

MOST_DATA_BYTES = 64 * 2**20
ALL_ALLOWED = "Every action is always allowed: MaskablePPO's action masks are the environment's, not the zip's."
_MEMBERS = ("data", "policy.pth")
_READ = {*_MEMBERS, "_stable_baselines3_version", "system_info.txt"}


def is_sb3(path: Path) -> bool:
    """Return whether a file ends with .zip or has the members of a Stable-Baselines3 zip: some are saved as .keras or
    .pt."""
    try:
        return path.suffix.lower() == ".zip" or set(_MEMBERS) <= set(open_zip(read_untrusted(path), path.name).names)
    except ForeignError:
        return False


def read_sb3(path: Path, vecnormalize: Path | None = None) -> ForeignPolicy:
    """Return the policy in a zip of Stable-Baselines3.

    Args:
        path: what ``model.save`` wrote.
        vecnormalize: what ``VecNormalize.save`` wrote, if the policy was trained behind one.

    Raises:
        ForeignError: the file is damaged, no such zip, or holds a policy that no chain expresses.
    """
    data = read_untrusted(path)
    file_name = printable(path.name)
    members = open_zip(data, file_name)
    for name in _MEMBERS:
        if name not in members.names:
            raise ForeignError(
                f"{file_name} has no member {name}, so it is not a zip of Stable-Baselines3.",
                "Type the file that model.save(FILE) wrote.",
            )
    settings = read_settings(members.read("data", MOST_DATA_BYTES), file_name)
    hashes = {"policy": hashlib.sha256(data).hexdigest()}
    normalise = None
    if vecnormalize is not None:
        statistics = read_untrusted(vecnormalize)
        hashes["vecnormalize"] = hashlib.sha256(statistics).hexdigest()
        normalise = read_vec_normalize(statistics, printable(vecnormalize.name))
    beginning = read_inputs(settings, normalise, vecnormalize is not None)
    if settings.lstm and (beginning.image is not None or settings.extractor == "NatureCNN"):
        raise ForeignError(
            f"{settings.policy} must take a vector, got an image.", "Train on a vector, or without an LSTM."
        )
    tensors = Tensors(read_torch(members.read("policy.pth"), f"{file_name}'s policy.pth"), f"{file_name}'s policy.pth")
    size = sum(math.prod(part.shape) for part in beginning.inputs)
    layers = actor(settings, tensors, size, beginning.image, _outputs(settings))
    actions, ending, assumed = _ending(settings)
    version = _version(members)
    return ForeignPolicy(
        source=f"Stable-Baselines3 {version} {settings.algorithm}",
        inputs=state_inputs(layers, beginning.inputs),
        steps=(*beginning.steps, *layers, *ending),
        actions=actions,
        ignored=(*tensors.describe_unused(settings), *_other_members(members), *beginning.ignored),
        assumed=(*beginning.assumed, *assumed, *(ALL_ALLOWED,) * (settings.algorithm == "MaskablePPO")),
        provenance={
            "program": "Stable-Baselines3",
            "version": version,
            "algorithm": settings.algorithm,
            "policy": settings.policy,
            "num_timesteps": settings.num_timesteps,
            "seed": settings.seed,
            "sha256": hashes,
        },
    )


def _version(members: Members) -> str:
    name = "_stable_baselines3_version"
    if name not in members.names:
        return "of unknown version"
    return printable(members.read(name, 100).decode("ascii", "replace").strip())


def _other_members(members: Members) -> tuple[str, ...]:
    others = [name for name in members.names if name not in _READ]
    optimizers = [name for name in others if name.endswith("optimizer.pth")]
    phrases = []
    if optimizers:
        phrases.append(f"optimizer: {len(optimizers)} file{'s' * (len(optimizers) > 1)}")
    phrases += [f"{printable(name)}: a file beside the policy" for name in others if name not in optimizers]
    return tuple(phrases)


def _outputs(settings: Settings) -> int:
    """Return how many outputs the action space needs."""
    space = settings.action
    if isinstance(space, DiscreteSpace):
        if settings.family in ("sac", "td3"):
            raise refusal("the action space", f"must be a Box for {settings.algorithm}, got Discrete")
        return space.n
    if settings.family == "actor-critic" and isinstance(space, MultiDiscrete):
        return sum(space.choices)
    if settings.family == "actor-critic" and isinstance(space, MultiBinary):
        return math.prod(space.shape) * (2 if settings.algorithm == "MaskablePPO" else 1)
    if not isinstance(space, Box) or settings.family in ("dqn", "qrdqn"):
        several = {"actor-critic": "Box, Discrete, MultiDiscrete or MultiBinary", "ars": "Box or Discrete"}
        allowed = several.get(settings.family, "Discrete")
        raise ForeignError(
            f"The action space must be {allowed} for {settings.algorithm}, got {type(space).__name__}.",
            "Train with such a space, e.g. through a wrapper.",
        )
    if space.kind.kind != "f":
        raise refusal("the action space", f"must be a Box of floating-point numbers, got {space.kind}")
    return math.prod(space.shape)


def _ending(settings: Settings) -> tuple[Discrete | Continuous, tuple[Step, ...], tuple[str, ...]]:
    """Return what the actions are, the steps behind the last layer, and what is taken for granted."""
    space = settings.action
    if isinstance(space, DiscreteSpace):
        return _number_actions(space)
    if isinstance(space, MultiDiscrete):
        return Discrete(counts=space.choices), (), ()
    if isinstance(space, MultiBinary):
        return _binary(math.prod(space.shape), settings)
    assert isinstance(space, Box)
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    if not settings.squashes:
        # predict() cuts the mean to the space, where it has bounds
        bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        return Continuous(), (Clip(low, high),) if bounded else (), ()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise refusal("the action space", "must have bounds, to which squashed actions are scaled")
    steps: list[Step] = []
    if settings.family == "sac" and settings.uses_gsde and settings.clip_mean > 0:
        bound = np.array([settings.clip_mean])
        steps.append(Clip(-bound, bound))  # a Hardtanh behind the mean
    # low + (tanh(mean) + 1) / 2 · (high − low)
    half = 0.5 * (high - low)
    return Continuous(), (*steps, Activate(Activation.TANH), Affine(half, low + half)), ()


def _binary(size: int, settings: Settings) -> tuple[Discrete, tuple[Step, ...], tuple[str, ...]]:
    """Zeros and ones. An output y stands for 1 with the probability sigmoid(y), of which predict() takes the likelier:
    1 where y > 0. So −y / 2 and y / 2 are compared. MaskablePPO has two outputs for each already."""
    actions = Discrete(counts=(2,) * size)
    if settings.algorithm == "MaskablePPO":
        return actions, (), ()
    pairs = np.kron(np.eye(size), np.array([[-0.5, 0.5]])).astype(np.float32)
    return actions, (Dense(pairs, np.zeros(2 * size, np.float32)),), ()


def _number_actions(space: DiscreteSpace) -> tuple[Discrete, tuple[Step, ...], tuple[str, ...]]:
    if space.start == 0:
        return Discrete(), (), ()
    assumed = (
        f"The action space starts at {space.start}; Stable-Baselines3 numbers actions from 0 all the same, and the "
        "names are the numbers that its predict() returns."
    )
    return Discrete(tuple(str(number) for number in range(space.n))), (), (assumed,)


IMPORTER = Importer("Stable-Baselines3", (".zip", ANY), read_sb3, ("vecnormalize",), is_sb3)
