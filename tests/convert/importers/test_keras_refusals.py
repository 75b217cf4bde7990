"""Keras's files that are hostile, damaged or hold no policy are refused; a stranger's file runs nothing."""

from __future__ import annotations

import base64
import json
import marshal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from quarl.convert.importers import keras_file, registry
from quarl.convert.importers.chain import ForeignError
from tests.convert.importers.keras_files import (
    CONFIG,
    FILES,
    WEIGHTS,
    built,
    converted,
    members,
    saved,
    with_config,
    with_weights,
)

PLACE = "layers/dense/vars/0"


def _linked(link: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[PLACE]
        file[PLACE] = link

    return change


def _external(file: h5py.File) -> None:
    del file[PLACE]
    file.create_dataset(PLACE, (4, 16), "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File) -> None:
    del file[PLACE]
    layout = h5py.VirtualLayout((4, 16), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "data", (4, 16))
    file.create_virtual_dataset(PLACE, layout)


HOSTILE: dict[str, Callable[[h5py.File], object]] = {
    "external link": _linked(h5py.ExternalLink("other.h5", "/data")),
    "soft link": _linked(h5py.SoftLink("/layers/dense_1/vars/0")),
    "external storage": _external,
    "virtual": _virtual,
    "bomb": lambda file: file.create_dataset("bomb", (2**20, 2**12), "f4", chunks=(2**10, 2**10), compression="gzip"),
    "large chunk": lambda file: file.create_dataset("bomb", (1,), "f4", chunks=(2**28,), maxshape=(None,)),
    "cycle": lambda file: file.__setitem__("layers/again", file["layers"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_hdf5_file_that_points_out_of_itself_or_is_a_bomb(case: str, tmp_path: Path) -> None:
    inside = with_weights(tmp_path / "inside.keras", HOSTILE[case])
    alone = tmp_path / "alone.h5"
    with h5py.File(alone, "w") as file:
        file[PLACE] = np.zeros((4, 16), np.float32)
        file.attrs["model_config"] = "{}"
        HOSTILE[case](file)
    for path in (inside, alone):
        with pytest.raises(ForeignError) as caught:
            keras_file.check(path.read_bytes(), path.name)
        assert caught.value.code == "foreign" and caught.value.next_step


def test_other_zips_and_bare_weights_are_refused_before_keras_loads(tmp_path: Path) -> None:
    escaping = saved(tmp_path / "escaping.keras", {**members("keras/normalised_tanh.keras"), "../escape": b"x"})
    foreign = saved(tmp_path / "foreign.keras", {"data": b"of Stable-Baselines3"})
    (tmp_path / "none.keras").write_bytes(b"no zip")
    older = [FILES / "keras2" / name for name in ("weights.h5", "hard_sigmoid.h5", "hard_sigmoid.keras")]
    for path in (escaping, foreign, tmp_path / "none.keras", *older):
        with pytest.raises(ForeignError) as caught:
            keras_file.check(path.read_bytes(), path.name)
        assert caught.value.next_step and path.name in caught.value.message
    with pytest.raises(ForeignError) as caught:  # by the process, which answers before it starts TensorFlow
        registry.read(older[0])
    assert "weights.h5" in caught.value.message and "load_weights" in str(caught.value.next_step)


DAMAGED: list[tuple[dict[str, bytes], type[Exception]]] = [
    ({WEIGHTS: members("keras/normalised_tanh.keras")[WEIGHTS][:3000]}, OSError),
    ({WEIGHTS: b"no HDF5"}, OSError),
    ({CONFIG: b"[" * 10**5}, RecursionError),
    ({CONFIG: b"{}"}, ValueError),
]


@pytest.mark.parametrize(("parts", "cause"), DAMAGED)
def test_a_damaged_member_is_refused(parts: dict[str, bytes], cause: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(ForeignError) as caught:
        converted(saved(tmp_path / "a.keras", {**members("keras/normalised_tanh.keras"), **parts}), tmp_path)
    assert isinstance(caught.value.__cause__, cause)


def _become(**values: Any) -> Callable[[Any], object]:
    """The Dropout layer of normalised_tanh becomes another."""
    return lambda config: next(e for e in config["config"]["layers"] if e["class_name"] == "Dropout").update(values)


def _of_dense(**values: Any) -> Callable[[Any], object]:
    found = lambda config: next(e for e in config["config"]["layers"] if e["class_name"] == "Dense")  # noqa: E731
    return lambda config: found(config)["config"].update(values)


def _code(mark: Path) -> dict[str, Any]:
    code = base64.b64encode(marshal.dumps(compile(f"open({str(mark)!r}, 'w')", "evil", "exec"))).decode()
    return {"class_name": "__lambda__", "config": {"code": code, "defaults": None, "closure": None}}


def test_code_classes_and_modules_of_a_file_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    system = {"module": "os", "class_name": "system", "config": f"touch {mark}", "registered_name": "system"}
    for change in (
        _become(class_name="Lambda", config={"name": "evil", "function": _code(mark)}),
        _of_dense(activation=_code(mark)),
        _of_dense(activation=system),
        _of_dense(kernel_initializer=system),
        _become(module="builtins", class_name="eval", config={"name": "evil"}, registered_name=None),
        _become(module=None, class_name="Mine", registered_name="mine>Mine"),
        lambda config: config.update(class_name="Actor", module=None, registered_name="Actor"),
    ):
        with pytest.raises(ForeignError) as caught:
            converted(with_config(tmp_path / "changed.keras", change), tmp_path)
        assert isinstance(caught.value.__cause__, ValueError | TypeError)  # Keras's refusal to deserialize
        assert not mark.exists()


def test_the_code_of_a_lambda_layer_in_hdf5_is_never_run(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1), keras.layers.Dense(2)])
    with pytest.raises(ForeignError) as caught:
        converted(built(tmp_path / "policy.h5", model), tmp_path)
    assert isinstance(caught.value.__cause__, ValueError) and "Lambda" in str(caught.value.__cause__)


@pytest.mark.slow  # TensorFlow's start in a process, whose memory ends
def test_a_model_beyond_the_limits_of_the_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignError) as caught:
        registry.read(with_config(tmp_path / "policy.keras", _of_dense(units=10**9)))
    assert caught.value.code == "foreign" and caught.value.next_step


def test_what_a_file_may_not_do_while_it_is_loaded(tmp_path: Path) -> None:
    for event, arguments in (
        ("socket.connect", (None, ("127.0.0.1", 1))),
        ("subprocess.Popen", ("touch", [], None, None)),
        ("open", (str(tmp_path / "other"), "w", 0o101)),
        ("os.remove", (str(tmp_path / "policy" / "file"), -1)),
    ):
        with pytest.raises(PermissionError):
            keras_file._audit(tmp_path / "policy", event, arguments)
    for name, flags in ((tmp_path / "policy" / "outputs.npy", 0o101), (tmp_path / "other", 0)):
        keras_file._audit(tmp_path / "policy", "open", (str(name), None, flags))


@pytest.mark.parametrize("kind", ["Bidirectional", "Embedding", "stateful", "threshold", "sparsemax", "causal"])
def test_a_layer_without_onnx_is_refused(kind: str, tmp_path: Path) -> None:
    import keras
    from keras import layers

    body = {
        "Bidirectional": layers.Bidirectional(layers.LSTM(3)),
        "Embedding": layers.Embedding(10, 3),
        "stateful": layers.LSTM(3, stateful=True),
        "threshold": layers.ReLU(threshold=0.5),
        "sparsemax": layers.Activation(keras.activations.sparsemax),
        "causal": layers.Conv1D(2, 2, padding="causal"),
    }[kind]
    model = keras.Sequential([keras.Input(batch_shape=(1, 2, 3)), body, layers.Flatten(), layers.Dense(2)])
    with pytest.raises(ForeignError) as caught:
        converted(built(tmp_path / "built.keras", model), tmp_path)
    assert body.name in caught.value.message and caught.value.__cause__ is None


@pytest.mark.parametrize(("shape", "kind"), [((None, 4), "float32"), ((4,), "int32")])
def test_inputs_of_free_sizes_or_other_types_are_refused(shape: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input(shape, dtype=kind, name="obs"), keras.layers.Dense(2)])
    with pytest.raises(ForeignError) as caught:
        converted(built(tmp_path / "built.keras", model), tmp_path)
    assert "obs" in caught.value.message and "keras.Input" in str(caught.value.next_step)


def test_a_config_with_any_wrong_value_is_refused_or_right(tmp_path: Path) -> None:
    """What Keras loads of a config of which any one value is another is compared with its ONNX."""
    name = "keras/two_inputs.keras"
    config = json.loads(members(name)[CONFIG])
    places, random, loaded = list(_places(config)), np.random.default_rng(4), 0
    values: tuple[Any, ...] = (None, [], {}, "text", -1)
    for number in random.choice(len(places), 25, replace=False):
        *way, last = places[number]

        def change(inside: Any, way: Any = way, last: Any = last) -> None:
            for key in way:
                inside = inside[key]
            inside[last] = values[random.integers(len(values))]

        try:
            converted(with_config(tmp_path / "changed.keras", change, name), tmp_path)
        except ForeignError as error:
            assert "report" not in str(error.next_step)  # that ONNX and Keras differ
        else:
            loaded += 1
    assert loaded


def _places(value: Any, way: tuple[Any, ...] = ()) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*way, key)
        yield from _places(value[key], (*way, key))
