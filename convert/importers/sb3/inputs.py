"""What a Stable-Baselines3 policy sees: its named inputs, VecNormalize, and the scaling of images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quarl.convert.importers.chain import Affine, Clip, ForeignError, Input, Step
from quarl.convert.importers.pickles.arrays import mapping, number, refusal, sequence
from quarl.convert.importers.pickles.nodes import Call, Node, describe_node, printable
from quarl.convert.importers.pickles.spaces import Box, Discrete, MultiBinary, Parts, Space, read_statistics
from quarl.convert.importers.pickles.tree import read_pickle
from quarl.convert.importers.sb3.settings import Settings

BYTES = 255.0  # preprocess_obs divides images by it
_VEC_NORMALIZE = ("stable_baselines3.common.vec_env.vec_normalize",)


@dataclass(frozen=True)
class Seen:
    """The beginning of a chain.

    Attributes:
        inputs: in the order in which the program concatenates them.
        steps: from the raw observation to what the first layer gets.
        image: (height, width, channels) where the one input is an image, else None.
        assumed, ignored: as in ForeignPolicy.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    image: tuple[int, int, int] | None
    assumed: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class VecNormalize:
    """Running means and variances by part ("" where the observation is one box), and what is done with them."""

    statistics: dict[str, tuple[np.ndarray, np.ndarray]]
    epsilon: float
    clip: float


def read_vec_normalize(data: bytes, what: str) -> VecNormalize | None:
    """VecNormalize's own file; None if it leaves observations alone (``norm_obs=False``).

    Raises:
        ForeignError: it holds something else, is damaged, or has statistics that are not finite.
    """
    node = read_pickle(data, what)
    if not isinstance(node, Call) or not node.calls(_VEC_NORMALIZE, "VecNormalize"):
        raise ForeignError(
            f"{what} must hold Stable-Baselines3's VecNormalize, got {describe_node(node)}.",
            "Type --vecnormalize with the file that vec_env.save(FILE) wrote, or leave it out.",
            code="not_vecnormalize",
        )
    state = mapping(node.state, what)
    if not isinstance(state.get("norm_obs"), bool):
        raise refusal(what, "does not say whether it normalises observations")
    if not state["norm_obs"]:
        return None
    epsilon, clip = (float(number(state.get(name), f"{what}'s {name}")) for name in ("epsilon", "clip_obs"))
    if epsilon < 0 or clip <= 0:
        raise refusal(what, "must have an epsilon of at least 0 and a positive clip_obs")
    running: Node = state.get("obs_rms")
    if isinstance(running, Call) and not running.calls(("collections",), "OrderedDict"):
        statistics = {"": read_statistics(running, what)}
    else:
        parts = mapping(running, f"{what}'s obs_rms")
        keys = state.get("norm_obs_keys")
        wanted = list(parts) if keys is None else sequence(keys, f"{what}'s norm_obs_keys")
        names = [key for key in wanted if isinstance(key, str) and key in parts]
        if len(names) != len(wanted):
            raise refusal(what, "normalises parts for which it has no means")
        statistics = {key: read_statistics(parts[key], f"{what}'s {printable(key)}") for key in names}
    return VecNormalize(statistics, epsilon, clip)


def read_inputs(settings: Settings, normalise: VecNormalize | None, given: bool) -> Seen:
    """Return the inputs and the first steps of the chain.

    Args:
        settings: with the observation space.
        normalise: None where there is none, or it leaves observations alone.
        given: whether the user named a file of VecNormalize.

    Raises:
        ForeignError: an image within a Dict, an image that is normalised by element, or means of another shape.
    """
    assumed = () if given else (NOT_GIVEN,)
    ignored = ("VecNormalize: it leaves observations alone (norm_obs=False)",) if given and normalise is None else ()
    space = settings.observation
    if isinstance(space, Parts) != (settings.extractor == "CombinedExtractor"):
        raise refusal("the observation space", f"must fit {settings.policy}, got {type(space).__name__}")
    if isinstance(space, Parts):
        inputs = tuple(_part(name, part, settings) for name, part in space.spaces.items())
        return Seen(inputs, _build_normaliser(inputs, normalise), None, assumed, ignored)
    image = _image(space, settings)
    if image is None:
        inputs = (_part("observation", space, settings),)
        return Seen(inputs, _build_normaliser(inputs, normalise), None, assumed, ignored)
    if normalise is not None:
        raise ForeignError(
            "VecNormalize must not normalise an image element by element.",
            "Train with VecNormalize(…, norm_obs=False), which leaves images to the policy's division by 255.",
            code="normalised_image",
        )
    steps: tuple[Step, ...] = ()
    if settings.normalizes_images and isinstance(space, Box) and space.is_bytes_image():
        steps = (Affine(np.array([1.0 / BYTES]), np.zeros(1)),)
    order = "The image is given as (height, width, channels); the file's observation space has the channels first."
    return Seen((Input("observation", image),), steps, image, (*assumed, order), ignored)


NOT_GIVEN = (
    "The policy was trained without VecNormalize: no vecnormalize.pkl was given, and the zip cannot say whether one "
    "was used."
)


def _image(space: Space, settings: Settings) -> tuple[int, int, int] | None:
    """(height, width, channels) of an observation (channels, height, width) that is an image."""
    if not isinstance(space, Box) or len(space.shape) != 3:
        if settings.extractor == "NatureCNN":
            raise refusal("the observation space", "must be an image for a CnnPolicy")
        return None
    if settings.extractor != "NatureCNN" and not space.is_bytes_image():
        return None  # three dimensions of numbers, which are flattened as they are
    channels, height, width = space.shape
    return height, width, channels


def _part(name: str, space: Space, settings: Settings) -> Input:
    if isinstance(space, Box):
        if name != "observation" or isinstance(settings.observation, Parts):
            three = len(space.shape) == 3
            if space.is_bytes_image() or (three and settings.normalized_image):
                raise ForeignError(
                    f"The part {printable(name)!r} must not be an image among other parts of the observation.",
                    "Train with the image as the whole observation (CnnPolicy).",
                )
        return _flat(name, space.shape)
    if isinstance(space, Discrete):
        if space.start != 0:
            raise refusal(f"{printable(name)!r}", f"must be a Discrete observation from 0, got {space.start}")
        return Input(name, (space.n,), "1", tuple(f"is {i}" for i in range(space.n)))
    if isinstance(space, MultiBinary):
        return _flat(name, space.shape)
    if isinstance(space, Parts):
        raise refusal(f"{printable(name)!r}", "must not be a Dict within a Dict")
    names = tuple(f"{k} is {i}" for k, choices in enumerate(space.choices) for i in range(choices))
    return Input(name, (len(names),), "1", names)


def _flat(name: str, shape: tuple[int, ...]) -> Input:
    """Return a vector; a matrix as the program flattens it, row by row."""
    size = math.prod(shape)
    if size == 0:
        raise refusal(f"the input {printable(name)!r}", "has no elements")
    return Input(name, (size,))


def _build_normaliser(inputs: tuple[Input, ...], normalise: VecNormalize | None) -> tuple[Step, ...]:
    """clip((x − mean) / √(var + ε), ±clip) of the normalised parts; the others pass as they are."""
    if normalise is None:
        return ()
    names = {"" if len(inputs) == 1 and "" in normalise.statistics else part.name for part in inputs}
    if not set(normalise.statistics) <= names:
        raise refusal("vecnormalize.pkl", "must normalise the policy's observations, got others")
    scales, offsets, bounds = [], [], []
    for part in inputs:
        key = "" if "" in normalise.statistics else part.name
        size = part.shape[0]
        if key not in normalise.statistics:
            scales.append(np.ones(size))
            offsets.append(np.zeros(size))
            bounds.append(np.full(size, np.inf))
            continue
        mean, variance = (values.reshape(-1) for values in normalise.statistics[key])
        if len(mean) != size:
            raise refusal("vecnormalize.pkl", f"must have {size} means for {printable(part.name)!r}, got {len(mean)}")
        if (variance + normalise.epsilon == 0).any():
            raise refusal("vecnormalize.pkl", "must not have both a variance and an epsilon of 0")
        scales.append(1.0 / np.sqrt(variance + normalise.epsilon))
        offsets.append(-mean * scales[-1])
        bounds.append(np.full(size, normalise.clip))
    bound = np.concatenate(bounds)
    return Affine(np.concatenate(scales), np.concatenate(offsets)), Clip(-bound, bound)
