"""What no chain says of Keras's models is refused by its name; a stranger's file runs nothing and reaches nothing."""

from __future__ import annotations

import base64
import io
import json
import marshal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from quarl.convert.importers import sources
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.keras.reader import read_keras
from tests.convert.importers.keras_files import (
    CONFIG,
    FILES,
    METADATA,
    WEIGHTS,
    Change,
    become,
    built,
    changed,
    layer,
    members,
    recorded,
    saved,
    setting,
)

FUNCTION = {"module": "builtins", "class_name": "function", "config": "os.system", "registered_name": "function"}
REFUSALS: dict[str, tuple[str, Change, str]] = {
    "LSTM": ("normalised_tanh", become("Dense", class_name="LSTM"), "the layer dense is a LSTM"),
    "GRU": ("normalised_tanh", become("Dense", class_name="GRU"), "the layer dense is a GRU"),
    "custom": (
        "normalised_tanh",
        become("Dense", module=None, registered_name="mine>Dense"),
        "the layer dense is a mine>Dense.Dense",
    ),
    "another module": ("normalised_tanh", become("Dense", module="os"), "the layer dense is a os.Dense"),
    "subclassed model": (
        "normalised_tanh",
        lambda config: config.update(class_name="Actor", module=None, registered_name="Actor"),
        "the model is a Actor.Actor",
    ),
    "max_value": ("image_discrete", setting("ReLU", max_value=6.0), "re_lu .ReLU. has max_value = 6.0"),
    "threshold": ("image_discrete", setting("ReLU", threshold=0.5), "re_lu .ReLU. has threshold = 0.5"),
    "alpha": ("elu_leaky", setting("ELU", alpha=0.5), "elu .ELU. has alpha = 0.5; allowed is 1"),
    "gelu": ("normalised_tanh", setting("Dense", activation="gelu"), "dense .Dense. has activation = gelu"),
    "function": ("normalised_tanh", setting("Dense", activation=FUNCTION), "dense .Dense. has activation = function"),
    "softmax inside": ("normalised_tanh", setting("Dense", activation="softmax"), "behind the softmax of dense"),
    "padding": ("image_discrete", setting("Conv2D", padding="same"), "has padding = same; allowed is valid"),
    "strides": ("image_discrete", setting("Conv2D", strides=[1, 2]), "has strides = .1, 2.; allowed is two equal"),
    "kernel": ("image_discrete", setting("Conv2D", kernel_size=[4, 3]), "has kernel_size = .4, 3."),
    "dilation": ("image_discrete", setting("Conv2D", dilation_rate=[2, 2]), "has dilation_rate"),
    "groups": ("image_discrete", setting("Conv2D", groups=2), "has groups = 2; allowed is 1"),
    "channels first": ("image_discrete", setting("Conv2D", data_format="channels_first"), "allowed is channels_last"),
    "lora": ("normalised_tanh", setting("Dense", lora_rank=4), "dense .Dense. has lora_rank = 4"),
    "int8": ("normalised_tanh", setting("Dense", quantization_config={"a": 1}), "has quantization_config"),
    "dtype": ("normalised_tanh", setting("Dense", dtype="int8"), "dense .Dense. has dtype = int8"),
    "open input": ("normalised_tanh", setting("InputLayer", batch_shape=[None, None]), "has batch_shape"),
    "units": ("normalised_tanh", setting("Dense", units=17), "has weights .4, 16. where .4, 17. belong"),
    "NaN scale": ("ddpg_actor", setting("Rescaling", scale=float("nan")), "rescaling .Rescaling. has scale = nan"),
    "huge scale": ("ddpg_actor", setting("Rescaling", scale=10**400), "rescaling .Rescaling. has scale"),
    "no input": ("normalised_tanh", lambda config: config["config"]["layers"].pop(0), "does not begin with its input"),
    "two of a name": ("normalised_tanh", setting("Dropout", name="dense"), "two layers have one name"),
    "shared": (
        "ddpg_actor",
        lambda config: layer(config, "Dense")["inbound_nodes"].extend(layer(config, "Dense")["inbound_nodes"] * 1),
        "the layer dense .Dense. is called 2 times",
    ),
    "no flatten": (
        "image_discrete",
        become("Flatten", class_name="Activation", config={"name": "same"}),
        "the layer dense .Dense. acts on .2, 2, 8.",
    ),
    "conv on vector": ("image_discrete", setting("InputLayer", batch_shape=[None, 300]), "sees .300,., which is no"),
    "behind itself": (
        "ddpg_actor",
        lambda config: history(layer(config, "Dense")).__setitem__(0, "rescaling"),
        "is behind itself",
    ),
    "unknown layer": (
        "ddpg_actor",
        lambda config: history(layer(config, "Dense")).__setitem__(0, "nowhere"),
        "names a layer nowhere that it does not have",
    ),
}


def history(of: dict[str, Any]) -> list[Any]:
    found: list[Any] = of["inbound_nodes"][0]["args"][0]["config"]["keras_history"]
    return found


@pytest.mark.parametrize("case", REFUSALS)
def test_what_no_chain_says_is_refused_by_its_name(case: str, tmp_path: Path) -> None:
    name, change, words = REFUSALS[case]
    with pytest.raises(ForeignError, match=words):
        read_keras(changed(tmp_path, change, name))


def test_models_that_keras_makes_and_no_chain_says(tmp_path: Path) -> None:
    import keras
    from keras import layers, ops

    seen = keras.Input((4,))
    hidden = layers.Dense(4, name="hidden")(seen)
    for output, words in (
        (layers.Add(name="residual")([hidden, seen]), "the layer residual is a Add"),
        (hidden + seen, r"keras.ops.Add. joins several tensors"),
        (layers.Concatenate(name="join")([hidden, seen]), r"join \(Concatenate\) joins .* behind layers"),
        (ops.exp(hidden), "is a Exp.Exp"),
        (hidden[:, :2], "is a GetItem.GetItem"),
        (layers.Dense(4, name="second")(layers.Softmax()(hidden)), r"second \(Dense\) stands behind the softmax"),
    ):
        with pytest.raises(ForeignError, match=words):
            read_keras(built(tmp_path, keras.Model(seen, output)))


def test_marshalled_code_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    code = compile(f"open({str(mark)!r}, 'w')", "evil", "exec")
    lambda_config = {"code": base64.b64encode(marshal.dumps(code)).decode(), "defaults": None, "closure": None}
    function = {"class_name": "__lambda__", "config": lambda_config}
    for change in (
        become("Dropout", class_name="Lambda", config={"name": "evil", "function": function}),
        setting("Dense", activation=function),
        setting("Dense", kernel_initializer={"module": "os", "class_name": "system", "config": f"touch {mark}"}),
        become("Dropout", module="builtins", class_name="eval", config={"name": "evil"}),
    ):
        try:
            policy = read_keras(changed(tmp_path, change))
            assert policy.original is not None
            policy.original(recorded("normalised_tanh")[0])
        except ForeignError as error:
            assert "allowed is" in str(error) or "is a " in str(error)
        assert not mark.exists()


def test_layers_that_are_off_the_way_are_never_handed_to_keras(tmp_path: Path) -> None:
    change = become("Dense", module="builtins", class_name="eval", config={"name": "other", "source": "1 / 0"})

    def other(config: dict[str, Any]) -> None:
        extra = json.loads(json.dumps(layer(config, "Dense")))
        config["config"]["layers"].append(extra)
        wrapped = {"config": {"layers": [extra]}}
        change(wrapped)

    assert read_keras(changed(tmp_path, other, "ddpg_actor")).original is None


def test_a_layer_off_the_way_that_would_fill_the_memory_is_not_built(tmp_path: Path) -> None:
    def huge(config: dict[str, Any]) -> None:
        other = next(each for each in config["config"]["layers"] if each["name"] == "dense_2")
        other["config"].update(units=10**7)
        config["config"]["layers"].append(json.loads(json.dumps(other)))
        config["config"]["layers"][-1]["config"].update(name="other")
        config["config"]["layers"][-1]["name"] = "other"

    assert read_keras(changed(tmp_path, huge, "swish_two_outputs"), "loc").original is None


def weights(name: str, change: Callable[[h5py.File], None]) -> dict[str, bytes]:
    parts = members(name)
    held = io.BytesIO(parts[WEIGHTS])
    with h5py.File(held, "r+") as file:
        change(file)
    return {**parts, WEIGHTS: held.getvalue()}


def _linked(link: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = link

    return change


def _typed(kind: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        shape = file["layers/dense/vars/0"].shape
        del file["layers/dense/vars/0"]
        file.create_dataset("layers/dense/vars/0", shape, kind)

    return change


def _external(file: h5py.File) -> None:
    shape = file["layers/dense/vars/0"].shape
    del file["layers/dense/vars/0"]
    file["layers/dense/vars"].create_dataset("0", shape, "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File) -> None:
    shape = file["layers/dense/vars/0"].shape
    del file["layers/dense/vars/0"]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "data", shape)
    file["layers/dense/vars"].create_virtual_dataset("0", layout)


def _bomb(file: h5py.File) -> None:
    file.create_dataset("layers/bomb", (2**20, 2**12), "f4", chunks=(2**10, 2**10), compression="gzip")


def _wrong(file: h5py.File) -> None:
    del file["layers/dense/vars/0"]
    file["layers/dense/vars/0"] = np.ones((3, 16), np.float32)


def _nan(file: h5py.File) -> None:
    file["layers/dense/vars/0"][0, 0] = np.nan


def _renamed(file: h5py.File) -> None:
    file["layers/dense/vars"].attrs["name"] = "another"


def _cycle(file: h5py.File) -> None:
    file["layers/dense/vars/again"] = file["layers"]


HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "external link": (_linked(h5py.ExternalLink("other.h5", "/data")), "has a link, layers/dense/vars/0"),
    "soft link": (_linked(h5py.SoftLink("/layers/dense_1/vars/0")), "has a link, layers/dense/vars/0"),
    "external storage": (_external, "whose data lie in other files"),
    "virtual": (_virtual, "whose data lie in other files"),
    "bomb": (_bomb, "more than 1073741824 bytes"),
    "strings": (_typed(h5py.string_dtype()), "layers/dense/vars/0 of object"),
    "integers": (_typed("i4"), "the layer dense has weights of int32"),
    "complex": (_typed("c8"), "layers/dense/vars/0 of complex64"),
    "shape": (_wrong, r"dense .Dense. has weights \(3, 16\) where \(4, 16\) belong"),
    "NaN": (_nan, "the layer dense holds NaN or infinity"),
    "another layer": (_renamed, "has the weights of another where those of dense belong"),
    "cycle": (_cycle, "in two places"),
    "missing": (lambda file: file.__delitem__("layers/dense/vars/1"), "has no tensor layers/dense/vars/1"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_weights_that_are_not_as_keras_writes_them(case: str, tmp_path: Path) -> None:
    change, words = HOSTILE[case]
    with pytest.raises(ForeignError, match=words):
        read_keras(saved(tmp_path / "hostile.keras", weights("normalised_tanh", change)))


def test_damaged_files(tmp_path: Path) -> None:
    parts = members("normalised_tanh")
    nested = b'{"config": ' + b"[" * 10**6 + b"]" * 10**6 + b"}"
    deep = b'{"config": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"
    old = json.dumps({"keras_version": "2.15.0"}).encode()
    for change, words in (
        ({WEIGHTS: parts[WEIGHTS][:3000]}, "weights cannot be read"),
        ({WEIGHTS: b"no HDF5"}, "weights cannot be read"),
        ({CONFIG: nested}, "allowed are 200000"),
        ({CONFIG: deep}, "cannot be used: it is not valid JSON"),
        ({CONFIG: b"[]"}, "cannot be used: it is not a JSON object"),
        ({CONFIG: b"{}"}, "the config has None for class_name"),
        ({METADATA: old}, "was written by Keras '2.15.0'; read is Keras 3"),
        ({"../escape": b"x"}, "has a member with the name '../escape'"),
        ({CONFIG: b" " * (17 * 2**20)}, "has a member config.json of more than"),
    ):
        with pytest.raises(ForeignError, match=words):
            read_keras(saved(tmp_path / "damaged.keras", {**parts, **change}))
    with pytest.raises(ForeignError, match=r"has no member model\.weights\.h5"):
        read_keras(saved(tmp_path / "damaged.keras", {CONFIG: parts[CONFIG], METADATA: parts[METADATA]}))
    (tmp_path / "damaged.keras").write_bytes(b"no zip")
    with pytest.raises(ForeignError, match="is no zip file"):
        read_keras(tmp_path / "damaged.keras")


def test_the_older_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "policy.h5"
    path.write_bytes(b"")
    with pytest.raises(ForeignError, match=r"save it again: model\.save"):
        sources.read(path)
    with pytest.raises(ForeignError, match=r"--spec means nothing to a \.keras file"):
        sources.read(FILES / "ddpg_actor.keras", spec=path)


def test_a_config_with_any_wrong_value_is_refused_or_read(tmp_path: Path) -> None:
    """A config of which any one value is another raises nothing but ForeignError."""
    config = json.loads(members("two_inputs")[CONFIG])
    places = list(_places(config))
    random = np.random.default_rng(4)
    values: tuple[Any, ...] = (None, [], {}, "text", -1, [[["x"]]])
    for number in random.choice(len(places), 120, replace=False):
        for value in values:
            mutated = json.loads(json.dumps(config))
            *way, last = places[number]
            inside = mutated
            for key in way:
                inside = inside[key]
            inside[last] = value
            try:
                read_keras(changed(tmp_path, lambda old, new=mutated: (old.clear(), old.update(new)), "two_inputs"))
            except ForeignError as error:
                assert str(error)


def _places(value: Any, way: tuple[Any, ...] = ()) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*way, key)
        yield from _places(value[key], (*way, key))
