"""The config of a Keras model as a tree of layers, and the one way from its inputs to an output.

The config is JSON of a stranger: nothing in it is handed to Keras. Layers are known by class *and* module; of the
others there is only the name, for the message that refuses them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.keras.tensors import damaged
from quarl.convert.importers.pickles.nodes import printable
from quarl.policy.json_values import shortened

LAYERS = {
    "InputLayer": {"batch_shape"},
    "Dense": {"units", "activation", "use_bias"},
    "Activation": {"activation"},
    "ReLU": {"max_value", "negative_slope", "threshold"},
    "LeakyReLU": {"negative_slope"},
    "ELU": {"alpha"},
    "Softmax": {"axis"},
    "Normalization": {"axis", "mean", "variance", "invert"},
    "Rescaling": {"scale", "offset"},
    "Flatten": {"data_format"},
    "Reshape": {"target_shape"},
    "Conv2D": {"filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "groups", "activation"}
    | {"use_bias"},
    "BatchNormalization": {"axis", "epsilon", "center", "scale"},
    "LayerNormalization": {"axis", "epsilon", "center", "scale"},
    "Dropout": {"rate"},
    "GaussianNoise": {"stddev"},
    "Concatenate": {"axis"},
}
"""Classes that are read, and those of their settings that change what they compute."""
OPERATIONS = {
    "Multiply": "keras.src.ops.numpy",
    "Add": "keras.src.ops.numpy",
    "Subtract": "keras.src.ops.numpy",
    "Tanh": "keras.src.ops.numpy",
    "Sigmoid": "keras.src.ops.nn",
}
"""Functions of keras.ops that are read, and where Keras has them."""
MODELS = ("Sequential", "Functional", "Model")
NEUTRAL = {"name", "trainable", "dtype", "seed", "noise_shape", "momentum", "renorm_momentum", "batch_input_shape"}
_NEUTRAL_ENDINGS = ("_initializer", "_regularizer", "_constraint")
_MODULES = ("keras", "keras.layers", "keras.models")
_NEXT_STEP = f"Read are {', '.join(LAYERS)} and the functions {', '.join(OPERATIONS)}, in Sequential and Functional."
DEEPEST = 8
LARGEST = 1e300


@dataclass(frozen=True)
class Item:
    """A layer, a function of keras.ops, or a model inside a model.

    Attributes:
        name: its own.
        kind: of class, "Dense"; with its module where it is none that is read.
        known: whether it is read.
        settings: its config.
        place: of its weights, "layers/dense_1".
        calls: for each time that it is called, its arguments: :class:`Tensor`, or numbers; of a class that is read.
        inner: of a model inside the model.
    """

    name: str
    kind: str
    known: bool
    settings: dict[str, Any]
    place: str
    calls: tuple[tuple[Any, ...], ...] = ()
    inner: Model | None = None

    @property
    def is_operation(self) -> bool:
        """Whether it is a function of keras.ops."""
        return self.known and self.kind.startswith("keras.ops.")


@dataclass(frozen=True)
class Tensor:
    """The so-many-th output of a layer."""

    layer: str
    output: int = 0


@dataclass(frozen=True)
class Model:
    """A model's layers.

    Attributes:
        kind: Sequential or Functional.
        items: in the file's order.
        inputs: names of its input layers.
        outputs: what they are called, and where they come from.
    """

    kind: str
    items: tuple[Item, ...]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, Tensor], ...]

    def item(self, name: str) -> Item:
        """The layer of a name."""
        if name not in self._by_name:
            raise damaged(f"the config names a layer {printable(name)} that it does not have")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Item]:
        return {item.name: item for item in self.items}


@dataclass(frozen=True)
class Route:
    """The way to an output.

    Attributes:
        branches: an input layer and the layers behind it, for each input; more than one where they are concatenated.
        joined: the Concatenate; None with one branch.
        trunk: the layers behind, in order.
    """

    branches: tuple[tuple[Item, ...], ...]
    joined: Item | None
    trunk: tuple[Item, ...]

    def has(self, item: Item) -> bool:
        """Whether a layer is on the way, or one of a model's inside the model."""
        return id(item) in self._ids or (item.inner is not None and any(self.has(inner) for inner in item.inner.items))

    @cached_property
    def _ids(self) -> set[int]:
        return {id(item) for part in (*self.branches, self.trunk, (self.joined,)) for item in part}


def parse(data: Any, place: str = "", depth: int = 0) -> Model:
    """The model in a config.

    Args:
        data: JSON value.
        place: of its weights; empty for the outermost.
        depth: models around it.

    Raises:
        ForeignError: it is no Sequential or Functional model, or not as Keras writes it.
    """
    kind, known = _class(data)
    if not known or kind not in MODELS:
        raise ForeignError(
            f"the model is a {kind}; read are Sequential and Functional models.",
            "Build the policy's network as a Functional model, set its weights, and save that.",
        )
    if depth > DEEPEST:
        raise damaged(f"there are models inside models, more than {DEEPEST} levels deep")
    config = _typed(data, "config", dict)
    counts: Counter[str] = Counter()
    items = tuple(_item(layer, place, counts, kind, depth) for layer in _typed(config, "layers", list))
    if len({item.name for item in items}) < len(items):
        raise damaged("two layers have one name")
    if kind == "Sequential":
        return _sequential(items)
    inputs = tuple(tensor.layer for _, tensor in _ends(config.get("input_layers")))
    return Model("Functional", items, inputs, tuple(_ends(config.get("output_layers"))))


def _sequential(items: tuple[Item, ...]) -> Model:
    """Each layer is called with the one before it."""
    if len(items) < 2 or items[0].kind != "InputLayer":
        raise ForeignError(
            "the Sequential model does not begin with its input.", "Call it once, or build(), and save it again."
        )
    called = [items[0]]
    for item in items[1:]:
        called.append(replace(item, calls=((Tensor(called[-1].name),),)))
    return Model("Sequential", tuple(called), (items[0].name,), ((items[-1].name, Tensor(items[-1].name)),))


def _item(data: Any, outside: str, counts: Counter[str], model: str, depth: int) -> Item:
    kind, known = _class(data)
    settings = _typed(data, "config", dict)
    name = settings.get("name", data.get("name"))
    if not isinstance(name, str) or not name.isprintable() or len(name) > 500:
        raise damaged(f"a layer has the name {shortened(name)}")
    place = ""
    if not kind.startswith("keras.ops.") and not (model == "Sequential" and kind == "InputLayer"):
        own = _snake_case(kind.rpartition(".")[2])
        place = f"{outside}/layers/{own}{f'_{counts[own]}' if counts[own] else ''}".lstrip("/")
        counts[own] += 1
    inner = parse(data, place, depth + 1) if known and kind in MODELS else None
    nodes = data.get("inbound_nodes", [])
    if not isinstance(nodes, list):
        raise damaged(f"the layer {name} has the inbound_nodes {shortened(nodes)}")
    calls = tuple(_call(node, name) for node in nodes) if known else ()
    return Item(name, kind, known, settings, place, calls, inner)


def _class(data: Any) -> tuple[str, bool]:
    """Class, and whether it is Keras's own of that name; else with the module that it says."""
    kind, module = _typed(data, "class_name", str), data.get("module")
    registered = data.get("registered_name")
    if not kind.isprintable() or len(kind) > 200:
        raise damaged(f"a class has the name {shortened(kind)}")
    if kind in OPERATIONS and registered in (None, kind) and OPERATIONS[kind] == module:
        return f"keras.ops.{kind}", True
    own = module in _MODULES or (kind in ("Functional", "Sequential") and str(module).startswith("keras.src.models."))
    if own and registered in (None, kind):
        return kind, kind in LAYERS or kind in MODELS
    return f"{printable(str(registered or module))[:80]}.{kind}", False


def _call(node: Any, name: str) -> tuple[Any, ...]:
    arguments, others = _typed(node, "args", list), node.get("kwargs") or {}
    if not isinstance(others, dict) or any(value for value in others.values()):
        raise ForeignError(f"the layer {name} is called with {shortened(others)}; allowed are tensors alone.")
    flat = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
    return tuple(_argument(each, name) for each in flat)


def _argument(value: Any, name: str) -> Any:
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        return _tensor(_typed(_typed(value, "config", dict), "keras_history", list))
    if isinstance(value, dict) and value.get("class_name") in ("__numpy__", "__tensor__"):
        value = _typed(value, "config", dict).get("value")
    if not numbers(value):
        raise ForeignError(f"{name} is called with {shortened(value)}; allowed are tensors and numbers.")
    return value


def _tensor(history: Any) -> Tensor:
    if not isinstance(history, list) or [type(each) for each in history] != [str, int, int] or history[1] != 0:
        raise ForeignError(
            f"a tensor comes from {shortened(history)}, a layer's second call or nothing.",
            "Give each call a layer of its own: a layer that is called twice is not supported.",
        )
    return Tensor(history[0], history[2])


def _ends(value: Any, key: str | None = None, depth: int = 0) -> list[tuple[str, Tensor]]:
    """Inputs or outputs, however Keras nests them, by key or by the layer's name."""
    if depth > DEEPEST:
        raise damaged("the model's inputs or outputs are nested too deeply")
    if isinstance(value, dict):
        return [end for name, each in value.items() for end in _ends(each, str(name), depth + 1)]
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return [end for each in value for end in _ends(each, key, depth + 1)]
    tensor = _tensor(value)
    return [(key or tensor.layer, tensor)]


def route(model: Model, output: Tensor, behind: Item | None = None) -> Route:
    """The layers from the inputs to an output.

    Args:
        model: the model that has the layers.
        output: where the way ends.
        behind: the Concatenate that joins it with others, which must be the only one.

    Raises:
        ForeignError: a layer that is not read, is called twice, or joins several tensors, by its name.
    """
    trunk: list[Item] = []
    name, number, seen = output.layer, output.output, set[str]()
    while (item := model.item(name)).kind != "InputLayer":
        if name in seen:
            raise damaged(f"the layer {name} is behind itself")
        seen.add(name)
        tensors = _called(item)
        if len(tensors) > 1:
            if item.kind != "Concatenate":
                raise ForeignError(f"{item.name} ({item.kind}) joins several tensors; only Concatenate of inputs may.")
            if behind is not None:
                raise ForeignError(f"{behind.name} (Concatenate) joins what {item.name} has joined.", "Use one alone.")
            ways = [route(model, tensor, item) for tensor in tensors]
            return Route(tuple((*way.branches[0], *way.trunk) for way in ways), item, tuple(reversed(trunk)))
        trunk += reversed(_within(item, number))
        name, number = tensors[0].layer, tensors[0].output
    return Route(((item,),), None, tuple(reversed(trunk)))


def _within(item: Item, number: int) -> list[Item]:
    """The layer itself, or the layers of a model inside the model."""
    if item.inner is None:
        return [item]
    if len(item.inner.inputs) != 1 or not 0 <= number < len(item.inner.outputs):
        raise ForeignError(f"the model {item.name} inside the model has several inputs, or no output {number}.")
    inner = route(item.inner, item.inner.outputs[number][1])
    if inner.joined is not None:
        raise ForeignError(f"{inner.joined.name} (Concatenate) is no concatenation of the model's inputs.")
    return list(inner.trunk)


def _called(item: Item) -> list[Tensor]:
    if not item.known:
        raise ForeignError(f"the layer {item.name} is a {item.kind}.", _NEXT_STEP)
    if len(item.calls) != 1:
        raise ForeignError(f"the layer {item.name} ({item.kind}) is called {len(item.calls)} times; supported is once.")
    tensors = [each for each in item.calls[0] if isinstance(each, Tensor)]
    if not tensors or (len(tensors) < len(item.calls[0]) and not item.is_operation):
        raise damaged(f"the layer {item.name} ({item.kind}) is called with {shortened(item.calls[0])}")
    return tensors


def own_settings(item: Item) -> dict[str, Any]:
    """The settings that change what a layer computes.

    Raises:
        ForeignError: it has one that is not known here, by its name.
    """
    read = LAYERS.get(item.kind, set())
    for name, value in item.settings.items():
        neutral = name in NEUTRAL or name.endswith(_NEUTRAL_ENDINGS)
        if name not in read and not neutral and value not in (None, False):
            raise ForeignError(f"the layer {item.name} ({item.kind}) has {printable(name)} = {shortened(value)}.")
    return {name: item.settings[name] for name in read if name in item.settings}


def numbers(value: Any) -> bool:
    """Whether a JSON value is a number below LARGEST, or lists of such, a few levels deep."""
    left = [(value, 0)]
    while left:
        each, depth = left.pop()
        if isinstance(each, list) and depth < DEEPEST:
            left += [(inner, depth + 1) for inner in each]
        elif isinstance(each, bool) or not isinstance(each, int | float) or not abs(each) < LARGEST:
            return False
    return True


def _typed(data: Any, name: str, kind: type) -> Any:
    value = data.get(name) if isinstance(data, dict) else None
    if type(value) is not kind:
        raise damaged(f"the config has {shortened(value)} for {name}, in {shortened(data)}")
    return value


def _snake_case(name: str) -> str:
    """Spell a class as Keras names the places of weights: LeakyReLU is leaky_re_lu."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
