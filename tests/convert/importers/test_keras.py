"""Files of Keras for the tests: those that make_keras.py wrote, as they are and changed, and what becomes of them."""

from __future__ import annotations

import base64
import importlib
import io
import json
import marshal
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest

from quarl.convert.importers import chain, keras_file, keras_to_onnx, registry
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from tests.convert.importers.test_torch_file import packed

FILES = Path(__file__).resolve().parent / "files"
NAMES = [*(f"keras/{path.name}" for path in sorted(FILES.glob("keras/*.keras"))), "keras2/dqn.keras", "keras2/actor.h5"]
OUTPUTS = {"keras/swish_two_outputs.keras": "loc"}
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


def recorded(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load((FILES / name).with_suffix(".npz")) as arrays:
        return arrays["observations"], arrays["outputs"]


def members(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FILES / name) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def saved(path: Path, parts: dict[str, bytes]) -> Path:
    path.write_bytes(packed(parts, zipfile.ZIP_DEFLATED))
    return path


def with_config(path: Path, change: Callable[[Any], object], name: str = "keras/normalised_tanh.keras") -> Path:
    parts = members(name)
    config = json.loads(parts[CONFIG])
    change(config)
    return saved(path, {**parts, CONFIG: json.dumps(config).encode()})


def with_weights(path: Path, change: Callable[[h5py.File], object], name: str = "keras/normalised_tanh.keras") -> Path:
    parts = members(name)
    held = io.BytesIO(parts[WEIGHTS])
    with h5py.File(held, "r+") as file:
        change(file)
    return saved(path, {**parts, WEIGHTS: held.getvalue()})


def built(path: Path, model: Any) -> Path:
    model.save(path)
    return path


def converted(path: Path, folder: Path, output: str | None = None) -> onnx.ModelProto:
    """The ONNX of a copy in the folder, as in the reader's process but in this one."""
    copy = folder / f"copy{path.suffix}"
    shutil.copyfile(path, copy)
    keras_to_onnx.write_onnx(copy, output)
    return onnx.load(folder / "policy.onnx")


@pytest.mark.parametrize("name", NAMES)
def test_the_onnx_and_its_policy_compute_what_keras_computed(name: str, tmp_path: Path) -> None:
    converted(FILES / name, tmp_path, OUTPUTS.get(name))
    policy = read_onnx(tmp_path / "policy.onnx", OUTPUTS.get(name))
    rows, wanted = recorded(name)
    made = chain.run(policy, rows)
    if isinstance(policy.actions, chain.Discrete):
        made, wanted = (each - each.mean(axis=1, keepdims=True) for each in (made, wanted))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6 * np.ptp(wanted))


@pytest.mark.slow  # TensorFlow's start in a process of its own: sandboxed, it loads, writes and answers
def test_a_file_that_no_chain_expresses_is_imported_alone(tmp_path: Path) -> None:
    """Through the process of its own, with golden pairs and without observations."""
    file, pairs = FILES / "keras2/dqn.keras", FILES / "keras2/dqn.npz"
    assert main([str(file), "--golden", str(pairs), "--output-path", str(tmp_path / "dqn"), "--name", "dqn"]) == 0
    bundle, (rows, wanted) = Bundle.load(tmp_path / "dqn"), recorded("keras2/dqn.keras")
    np.testing.assert_allclose(forward_float(bundle.spec, bundle.weights(), rows), wanted, rtol=1e-5, atol=1e-5)
    assert bundle.spec.network.opaque and bundle.spec.provenance["program"] == "Keras"


@pytest.fixture
def keras() -> Any:
    """TensorFlow takes seconds to load."""
    return importlib.import_module("keras")


def refusal(path: Path, folder: Path, output: str | None = None) -> ForeignError:
    with pytest.raises(ForeignError) as caught:
        converted(path, folder, output)
    return caught.value


Build = Callable[[Any, Any, Any], Any]
"""Of (keras, keras.layers, keras.ops)."""


def _model(shape: tuple[int, ...], body: Callable[[Any], list[Any]], *, kind: str = "float32") -> Build:
    """Layers and Dense(2) behind them."""
    return lambda k, L, o: k.Sequential([k.Input(shape, dtype=kind), *body(L), L.Dense(2)])


def _functional(shape: tuple[int, ...], body: Callable[[Any, Any, Any], Any]) -> Build:
    def make(k: Any, L: Any, o: Any) -> Any:
        x = k.Input(shape)
        return k.Model(x, body(x, L, o))

    return make


NAMES_OF_ACTIVATIONS = "relu tanh sigmoid elu selu silu gelu leaky_relu softplus softsign hard_sigmoid exponential"
NAMES_OF_ACTIVATIONS += " linear softmax mish relu6 hard_silu log_softmax"
MODELS: dict[str, Build] = {
    "activations": _functional((4,), lambda x, L, o: {n: L.Dense(5, n)(x) for n in NAMES_OF_ACTIVATIONS.split()}),
    "activation layers": _model(
        (4,),
        lambda L: [
            *(L.ReLU(6.0, 0.1), L.Dense(4, activation=L.LeakyReLU()), L.ELU(0.5)),
            *(L.PReLU(alpha_initializer="uniform"), L.Softmax()),
        ],
    ),
    "one side": _model(
        (20, 3),
        lambda L: [
            *(L.Conv1D(4, 3, dilation_rate=2, activation="relu"), L.MaxPooling1D(2)),
            *(L.Conv1D(4, 3, strides=2, padding="same"), L.AveragePooling1D(2, padding="same")),
            L.GlobalAveragePooling1D(),
        ],
    ),
    "two sides": _model(
        (12, 11, 3),
        lambda L: [
            *(L.Conv2D(4, (3, 2), strides=(2, 1), padding="same"), L.MaxPooling2D(2, padding="same")),
            *(L.Conv2D(6, 2, groups=2), L.GlobalMaxPooling2D()),
        ],
    ),
    "grey levels": _model((8, 8, 1), lambda L: [L.Rescaling(1 / 255), L.Conv2D(3, 3), L.Flatten()], kind="uint8"),
    "shapes": _model(
        (4, 3),
        lambda L: [
            *(L.Permute((2, 1)), L.Reshape((2, -1)), L.LayerNormalization()),
            *(L.Flatten(), L.GaussianNoise(0.1)),
        ],
    ),
    "normalised": _model(
        (2,),
        lambda L: [
            L.Normalization(mean=[1.0, -2.0], variance=[4.0, 0.0]),
            L.Normalization(mean=[0.5, 1.0], variance=[9.0, 16.0], invert=True),
            L.Rescaling([0.5, 2.0], 0.1),
            L.BatchNormalization(moving_mean_initializer="random_normal"),
        ],
    ),
    "GRU behind LSTM": _model(
        (6, 3),
        lambda L: [
            L.LSTM(5, return_sequences=True, bias_initializer="uniform"),
            L.GRU(4, return_sequences=True, bias_initializer="uniform"),
            L.GRU(4, reset_after=False),
        ],
    ),
    "other types": _model((3,), lambda L: [L.Dense(8, dtype="float64"), L.Dense(4, dtype="mixed_bfloat16")]),
    "dueling": _functional(
        (4,), lambda x, L, o: L.Dense(1)(x) + (a := L.Dense(3)(x)) - o.mean(a, axis=1, keepdims=True)
    ),
    "merged": _functional(
        (4,), lambda x, L, o: L.Average()([L.Add()([x, x]), L.Multiply()([x, x]), L.Subtract()([x, L.Dense(4)(x)])])
    ),
    "operations": _functional(
        (4,),
        lambda x, L, o: o.concatenate(
            [o.clip(o.tanh(x[:, :2]) * 2 - 0.5, -1, 1) / 3, o.exp(-o.square(x[:, 1:])), o.abs(x[:, 1:2]) ** 2], axis=-1
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_in_onnx_is_what_keras_computes_near_and_far(name: str, tmp_path: Path, keras: Any) -> None:
    keras.utils.set_random_seed(1)
    converted(built(tmp_path / "built.keras", MODELS[name](keras, keras.layers, keras.ops)), tmp_path)  # compares them


def test_a_wrong_equation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keras_to_onnx.EMITS, "tanh", lambda graph, op, x: graph.add("Sin", x))
    error = refusal(FILES / "keras/normalised_tanh.keras", tmp_path)
    assert error.__cause__ is None and "report" in str(error.next_step)


def test_states_that_are_inputs_and_outputs(tmp_path: Path, keras: Any) -> None:
    seen, h, c = (keras.Input(shape, name=name) for shape, name in (((1, 3), "obs"), ((5,), "h_in"), ((5,), "c_in")))
    made, *states = keras.layers.LSTM(5, return_state=True)(seen, initial_state=[h, c])
    outputs = {"actions": keras.layers.Dense(2)(made), "h_out": states[0], "c_out": states[1]}
    part = converted(built(tmp_path / "built.keras", keras.Model([seen, h, c], outputs)), tmp_path)
    assert {value.name for value in part.graph.input} == {"obs", "h_in", "c_in"}
    assert [value.name for value in part.graph.output] == ["actions", "c_out", "h_out"]


def test_an_output_that_needs_no_refused_layer_is_read(tmp_path: Path, keras: Any) -> None:
    seen = keras.Input((6, 3))
    made = {"a": keras.layers.LSTM(2)(seen), "b": keras.layers.Bidirectional(keras.layers.LSTM(2), name="both")(seen)}
    path = built(tmp_path / "built.keras", keras.Model(seen, made))
    assert [value.name for value in converted(path, tmp_path, "a").graph.output] == ["a"]
    for output, named in ((None, "both"), ("b", "both"), ("c", "--output")):
        error = refusal(path, tmp_path, output)
        assert named in error.message and error.__cause__ is None


def test_a_sequential_model_of_keras_2_1_keeps_its_input_shape(tmp_path: Path, keras: Any) -> None:
    """Its config is a list of layers, of which the first has the shape with the batch."""
    path = built(tmp_path / "built.h5", keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "relu")]))
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layers = [layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense"]
        layers[0]["config"]["batch_input_shape"] = [None, 4]
        file.attrs["model_config"] = json.dumps({**config, "config": layers})
    keras_file.modernise(path)
    model, _ = keras_to_onnx.load(path)
    assert [tuple(x.shape) for x in model.inputs] == [(None, 4)]


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
    error = refusal(saved(tmp_path / "a.keras", {**members("keras/normalised_tanh.keras"), **parts}), tmp_path)
    assert isinstance(error.__cause__, cause)


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
        error = refusal(with_config(tmp_path / "changed.keras", change), tmp_path)
        assert isinstance(error.__cause__, ValueError | TypeError)  # Keras's refusal to deserialize
        assert not mark.exists()


def test_the_code_of_a_lambda_layer_in_hdf5_is_never_run(tmp_path: Path, keras: Any) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1), keras.layers.Dense(2)])
    error = refusal(built(tmp_path / "policy.h5", model), tmp_path)
    assert isinstance(error.__cause__, ValueError) and "Lambda" in str(error.__cause__)


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
def test_a_layer_without_onnx_is_refused(kind: str, tmp_path: Path, keras: Any) -> None:
    body = {
        "Bidirectional": keras.layers.Bidirectional(keras.layers.LSTM(3)),
        "Embedding": keras.layers.Embedding(10, 3),
        "stateful": keras.layers.LSTM(3, stateful=True),
        "threshold": keras.layers.ReLU(threshold=0.5),
        "sparsemax": keras.layers.Activation(keras.activations.sparsemax),
        "causal": keras.layers.Conv1D(2, 2, padding="causal"),
    }[kind]
    model = keras.Sequential([keras.Input(batch_shape=(1, 2, 3)), body, keras.layers.Flatten(), keras.layers.Dense(2)])
    error = refusal(built(tmp_path / "built.keras", model), tmp_path)
    assert body.name in error.message and error.__cause__ is None


@pytest.mark.parametrize(("shape", "kind"), [((None, 4), "float32"), ((4,), "int32")])
def test_inputs_of_free_sizes_or_other_types_are_refused(
    shape: tuple[int, ...], kind: str, tmp_path: Path, keras: Any
) -> None:
    model = keras.Sequential([keras.Input(shape, dtype=kind, name="obs"), keras.layers.Dense(2)])
    error = refusal(built(tmp_path / "built.keras", model), tmp_path)
    assert "obs" in error.message and "keras.Input" in str(error.next_step)


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
