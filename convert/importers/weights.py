"""Plain files of weights (PyTorch's, safetensors, npz), put in order by a small spec that the user writes.

CleanRL, Brax and most scripts save tensors by name and nothing of how they are used. The spec says it, a step a line:

    {"source": "CleanRL ppo_continuous_action", "layout": "torch", "actions": "continuous", "period_s": 0.02,
     "observation": [["state", 17, "1"]],
     "steps": [{"normalise": {"mean": "obs_rms.mean", "variance": "obs_rms.var", "epsilon": 1e-8}}, {"clip": [-10, 10]},
               {"dense": "actor_mean.0"}, {"activation": "tanh"}, {"dense": "actor_mean.2"}, {"take": 6}]}

A ``dense`` is the name of a module (its kernel and bias beside it) or {"kernel": NAME, "bias": NAME}; a name stands
wherever numbers may. Layout "torch" has kernels (out, in) and images (C, H, W), "jax" has (in, out) and (H, W, C).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Convolution,
    Dense,
    Discrete,
    ForeignError,
    ForeignPolicy,
    Input,
    LayerNorm,
    Step,
    rows_channels_last,
)
from quarl.convert.importers.registry import Importer
from quarl.convert.importers.torch_file import TORCH_ENDINGS, read_torch, refuse_torchscript
from quarl.convert.importers.zip_members import open_zip, read_untrusted
from quarl.policy.errors import PolicyError
from quarl.policy.json_values import JsonValueError, abbreviate, parse_object
from quarl.policy.spec import Activation, parse_enum

LARGEST_SPEC = 2**20
LAYOUTS = {"torch": ("weight", "bias"), "jax": ("kernel", "bias")}
Tensors = dict[str, np.ndarray]


def read_weights(path: Path, spec: Path | None = None) -> ForeignPolicy:
    """Return the policy of a file of weights and of the spec beside it.

    Raises:
        ForeignError: either cannot be read, a step or a tensor is unknown, or they do not fit together.
    """
    is_torch = path.suffix.lower() in TORCH_ENDINGS
    if is_torch:
        refuse_torchscript(path)
    if spec is None:
        raise ForeignError(
            f"{path} holds only weights, not how to compute with them.",
            (f"With PyTorch, type: quarl export-torch {path} --python PYTHON. Or write" if is_torch else "Write")
            + " the policy's steps to a JSON file (docs/import.md has an example), and add --spec FILE.json. If "
            "it holds observations, type the policy's file, and this one as --observations.",
            code="weights_only_file",
        )
    return _read(path, spec)


def _read(path: Path, spec_path: Path) -> ForeignPolicy:
    spec = _spec(spec_path)
    reading = _Reading(str(path), spec, tensors_of(path))
    inputs = tuple(_input(item) for item in _list(spec, "observation"))
    for item in _list(spec, "steps"):
        reading.steps += reading.step(item)
    left = sorted(reading.tensors.keys() - reading.used)
    kinds = {"discrete": Discrete(), "continuous": Continuous(), None: None}
    actions = spec.get("actions")
    if actions not in kinds:
        raise ForeignError(f"{spec_path}: actions must be discrete or continuous, got {abbreviate(actions)}.")
    period = spec.get("period_s")
    if period is not None and not isinstance(period, int | float):
        raise ForeignError(f"{spec_path}: period_s must be a number, got {abbreviate(period)}.")
    ignored = (f"{len(left)} tensors that no step uses: {', '.join(left[:6])}{', …' if len(left) > 6 else ''}",)
    return ForeignPolicy(
        source=str(spec.get("source", "a file of weights")),
        inputs=inputs,
        steps=tuple(reading.steps),
        actions=kinds[actions],
        period_s=period,
        ignored=ignored if left else (),
        assumed=("The steps are those of the spec; nothing in the file of weights says so.",),
    )


def tensors_of(path: Path) -> Tensors:
    """Return the tensors of a file, by name.

    Raises:
        ForeignError: it is missing, too large, or none of these files.
    """
    data, kind = read_untrusted(path), path.suffix.lower()
    if kind in TORCH_ENDINGS:
        return read_torch(data, str(path))
    if kind == ".npz":
        members = open_zip(data, str(path))
        return {name: members.array(name) for name in members.arrays}
    from safetensors.numpy import load

    try:
        return dict(load(data))
    except Exception as error:  # SafetensorError, KeyError of a type that numpy has not, ValueError …
        raise ForeignError(f"{path} cannot be read: {type(error).__name__} {abbreviate(str(error))}.") from None


def _spec(path: Path) -> dict[str, Any]:
    try:
        spec = parse_object(read_untrusted(path, LARGEST_SPEC))
    except JsonValueError as error:
        raise ForeignError(f"{path}: {error}.", "Correct the spec; docs/import.md has an example.") from None
    known = {"source", "layout", "actions", "period_s", "observation", "steps"}
    if unknown := sorted(spec.keys() - known):
        raise ForeignError(f"the keys of {path} must be among {', '.join(sorted(known))}, got {unknown}.")
    if spec.get("layout") not in LAYOUTS:
        raise ForeignError(f"{path}: layout must be one of {', '.join(LAYOUTS)}, got {abbreviate(spec.get('layout'))}.")
    return spec


def _list(spec: dict[str, Any], name: str) -> list[Any]:
    value = spec.get(name)
    if not isinstance(value, list) or not value:
        raise ForeignError(f"the spec's {name} must be a non-empty list, got {abbreviate(value)}.")
    return value


def _input(item: Any) -> Input:
    try:
        name, size, unit = item if len(item) == 3 else (*item, "1")
        shape = tuple(size) if isinstance(size, list) else (size,)
        if not all(type(side) is int and side > 0 for side in shape) or not all(type(t) is str for t in (name, unit)):
            raise ValueError
        return Input(name, shape, unit)
    except (TypeError, ValueError):
        raise ForeignError(
            f'an entry of the spec\'s observation must be ["NAME", SIZE, "UNIT"], got {abbreviate(item)}.'
        ) from None


class _Reading:
    """Makes steps of the spec's lines; follows the image, whose flattening has another order in torch."""

    def __init__(self, what: str, spec: dict[str, Any], tensors: Tensors) -> None:
        self.what, self.tensors, self.used = what, tensors, set[str]()
        self.layout = spec["layout"]
        self.steps: list[Step] = []
        first = _input(_list(spec, "observation")[0]).shape
        self.image = first if len(first) == 3 else None
        self.kinds: dict[str, Callable[[Any], list[Step]]] = {
            "affine": self._affine,
            "normalise": self._normalise,
            "clip": self._clip,
            "dense": self._dense,
            "convolution": self._convolution,
            "activation": self._activation,
            "layer_norm": self._layer_norm,
            "take": self._take,
        }

    def step(self, item: Any) -> list[Step]:
        """Return the steps that one line of the spec means."""
        if not isinstance(item, dict) or len(item) != 1 or next(iter(item)) not in self.kinds:
            raise ForeignError(
                f"a step of the spec must be one of {', '.join(self.kinds)} and its value, got {abbreviate(item)}."
            )
        ((kind, value),) = item.items()
        try:
            return self.kinds[kind](value)
        except PolicyError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ForeignError(
                f"the spec's step {abbreviate(item)} cannot be used: {abbreviate(str(error))}."
            ) from None

    def _tensor(self, name: Any, sides: int | None = None) -> np.ndarray:
        """Return a tensor by name, or numbers that stand in the spec; float64, finite."""
        if isinstance(name, str):
            if name not in self.tensors:
                known = ", ".join(sorted(self.tensors)[:12])
                raise ForeignError(f"{self.what} has no tensor {abbreviate(name)}; it has {known}.")
            self.used.add(name)
        values = np.asarray(self.tensors[name] if isinstance(name, str) else name, np.float64)
        if not np.isfinite(values).all():
            raise ForeignError(f"{self.what}: {abbreviate(name)} must be finite, got NaN or infinity.")
        if sides is not None and values.ndim != sides:
            raise ForeignError(
                f"{self.what}: {abbreviate(name)} must have {sides} dimensions, got the shape {values.shape}."
            )
        return values

    def _pair(self, value: Any, sides: int) -> tuple[np.ndarray, np.ndarray]:
        kernel, bias = LAYOUTS[self.layout]
        names = {"kernel": f"{value}.{kernel}", "bias": f"{value}.{bias}"} if isinstance(value, str) else value
        if isinstance(value, str) and f"{value}/{kernel}" in self.tensors:
            names = {"kernel": f"{value}/{kernel}", "bias": f"{value}/{bias}"}
        w = self._tensor(names["kernel"], sides)
        outputs = w.shape[0] if self.layout == "torch" else w.shape[-1]
        b = self._tensor(names["bias"], 1) if names.get("bias") is not None else np.zeros(outputs)
        if b.shape != (outputs,):
            raise ForeignError(f"{self.what}: the bias of {abbreviate(value)} must be ({outputs},), got {b.shape}.")
        return w, b

    def _dense(self, value: Any) -> list[Step]:
        kernel, bias = self._pair(value, 2)
        if self.layout == "torch":
            kernel = kernel.T
            if self.image is not None and len(kernel) == np.prod(self.image):
                kernel = rows_channels_last(kernel, self.image)
        self.image = None
        return [Dense(np.ascontiguousarray(kernel, np.float32), bias.astype(np.float32))]

    def _convolution(self, value: Any) -> list[Step]:
        kernel, bias = self._pair(value["of"], 4)
        stride = value.get("stride", 1)
        if self.layout == "torch":
            kernel = kernel.transpose(2, 3, 1, 0)
        side, other, in_channels, out_channels = kernel.shape
        if self.image is None or side != other or in_channels != self.image[2] or type(stride) is not int or stride < 1:
            raise ForeignError(f"{self.what}: convolution {kernel.shape}, stride {stride}, does not fit {self.image}.")
        height, width, _ = self.image
        self.image = ((height - side) // stride + 1, (width - side) // stride + 1, out_channels)
        return [Convolution(np.ascontiguousarray(kernel, np.float32), bias.astype(np.float32), stride)]

    def _normalise(self, value: Any) -> list[Step]:
        mean, epsilon = self._tensor(value["mean"]), float(value.get("epsilon", 0.0))
        if ("variance" in value) == ("deviation" in value):
            raise ForeignError("the spec's normalise must have either variance or deviation.")
        if "variance" in value:
            deviation = np.sqrt(self._tensor(value["variance"]) + epsilon)
        else:
            deviation = self._tensor(value["deviation"]) + epsilon
        if not (deviation > 0).all():
            raise ForeignError("the spec's normalise divides by 0.", "Add the epsilon of the training code.")
        return [Affine(np.atleast_1d(1.0 / deviation).ravel(), np.atleast_1d(-mean / deviation).ravel())]

    def _affine(self, value: Any) -> list[Step]:
        scale, offset = self._tensor(value.get("scale", 1.0)), self._tensor(value.get("offset", 0.0))
        return [Affine(np.atleast_1d(scale).ravel(), np.atleast_1d(offset).ravel())]

    def _clip(self, value: Any) -> list[Step]:
        low, high = (np.atleast_1d(self._tensor(end)) for end in value)
        return [Clip(low, high)]

    def _activation(self, value: Any) -> list[Step]:
        name, slope = (value, 0.01) if isinstance(value, str) else (value["name"], float(value["negative_slope"]))
        return [Activate(parse_enum(Activation, name, "the spec's activation"), slope)]

    def _layer_norm(self, value: Any) -> list[Step]:
        gamma, beta = (self._tensor(value[name], 1).astype(np.float32) for name in ("gamma", "beta"))
        return [LayerNorm(gamma, beta, float(value["epsilon"]))]

    def _take(self, value: Any) -> list[Step]:
        """Return the first ``count`` outputs of the dense step before it: of a head that also gives deviations."""
        last = self.steps.pop() if self.steps else None
        if not isinstance(last, Dense) or type(value) is not int or not 0 < value <= len(last.bias):
            raise ForeignError(f"the spec's take must follow a dense step of more outputs, got {abbreviate(value)}.")
        return [Dense(np.ascontiguousarray(last.kernel[:, :value]), last.bias[:value])]


def _refuse_json(path: Path, **options: object) -> ForeignPolicy:
    raise ForeignError(
        f"{path} is not a policy; it may be the spec of a weights file.",
        f"Type: quarl import FILE.npz --spec {path}",
    )


IMPORTER = Importer("weights, with --spec", (*TORCH_ENDINGS, ".safetensors", ".npz"), read_weights, ("spec",))
JSON = Importer("a weights file's spec", (".json",), _refuse_json)
