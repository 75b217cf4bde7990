"""``quarl package --format leapp``: the folder says what the policy is, and LEAPP runs it."""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from safetensors.numpy import load_file

from quarl.bench.study.speed import PEERS_PYTHON
from quarl.convert.importers.__main__ import main as import_main
from quarl.convert.importers.chain import run
from quarl.convert.importers.leapp.description import describe
from quarl.convert.importers.leapp.reader import read_leapp
from quarl.convert.package.__main__ import main
from quarl.convert.package.__main__ import main as package_main
from quarl.convert.package.actions import action_bounds
from quarl.convert.package.card import CARD_FILE
from quarl.convert.package.leapp_folder import description, with_fields
from quarl.convert.package.yaml_text import document
from quarl.convert.pipeline import build
from quarl.policy.bundle import Bundle, Expected, copy_bundle, write_bundle
from quarl.policy.history import History
from quarl.policy.places import ZOO
from quarl.policy.reference import choose_actions, forward_float
from quarl.policy.spec import ArtifactFormat, ContinuousHead, DiscreteHead, ObservationField, Precision, Squash

RUNNER = Path(__file__).with_name("run_leapp.py")
ROWS = 200
NAMES = {"I": ZOO / "I", "pendulum-ddpg": ZOO / "benchmark" / "pendulum-ddpg"}


@pytest.fixture(scope="module", params=sorted(NAMES))
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    """A bundle of the zoo with its int8 artifact, and its LEAPP folder."""
    place = tmp_path_factory.mktemp("leapp")
    name = request.param
    copy_bundle(Bundle.load(NAMES[name]), place / "bundles" / name, origin="zoo")
    arguments = ["--policy", str(place / "bundles" / name), "--output-path", str(place / name), "--format", "leapp"]
    assert main(arguments) == 0
    return Bundle.load(place / "bundles" / name), place / name


def assert_as_expected(bundle: Bundle, expected: Expected, found: dict[str, np.ndarray]) -> None:
    """Outputs within the artifact's tolerance, and the action that they choose."""
    outputs = found["logits" if bundle.spec.is_discrete else "action"]
    rows = len(outputs)
    assert (np.abs(outputs.astype(np.float64) - expected.outputs[:rows]) <= expected.tolerance[:rows]).all()
    np.testing.assert_array_equal(found["action"], choose_actions(bundle.spec, outputs).reshape(found["action"].shape))


def run_fields(data: bytes, spec_sizes: list[int], observations: np.ndarray) -> dict[str, np.ndarray]:
    """What onnxruntime makes of a model whose inputs are the fields, in their order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # As the agent does: x86 without VNNI saturates by default (device.agent.graph_executors).
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names, ends = [each.name for each in session.get_inputs()], np.cumsum(spec_sizes)[:-1]
    outputs = [each.name for each in session.get_outputs()]
    rows = [session.run(None, dict(zip(names, np.split(row[None], ends, axis=1), strict=True))) for row in observations]
    return {name: np.stack([row[k][0] for row in rows]) for k, name in enumerate(outputs)}


def test_leapp_itself_computes_what_the_artifact_has_to(packed: tuple[Bundle, Path], tmp_path: Path) -> None:
    command = [str(PEERS_PYTHON), "-c", "import leapp"]
    if not PEERS_PYTHON.exists() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("LEAPP is missing: make peers")
    bundle, folder = packed
    np.save(tmp_path / "observations.npy", bundle.golden().observations[:ROWS])
    files = [folder / f"{bundle.spec.name}.yaml", tmp_path / "observations.npy", tmp_path / "outputs.npz"]
    done = subprocess.run(
        [str(PEERS_PYTHON), str(RUNNER), *map(str, files)],
        cwd=tmp_path, env={}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(files[-1]) as found:
        expected = bundle.read_expected(bundle.artifact(Precision.INT8, ArtifactFormat.ONNX))
        assert_as_expected(bundle, expected, dict(found))


def test_the_description_says_what_the_policy_is(packed: tuple[Bundle, Path]) -> None:
    bundle, folder = packed
    spec, name = bundle.spec, bundle.spec.name
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.onnx", f"{name}.yaml"]
    description = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    assert list(description) == ["models", "pipeline", "system information"]
    assert description["system information"]["leapp config version"] == "1.3"
    node = description["models"][name]
    assert [(each["name"], each["shape"], each["dtype"], each["type"], each["unit"]) for each in node["inputs"]] == [
        (field.name, [1, field.size], "float32", "tensor", field.unit) for field in spec.observation
    ]
    data = (folder / f"{name}.onnx").read_bytes()
    parameters = node["parameters"]
    assert (parameters["model_path"], parameters["backend"]) == (f"{name}.onnx", "onnx")
    assert parameters["sha256sum"] == hashlib.sha256(data).hexdigest()
    assert parameters["md5sum"] == hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert parameters["artifact_sha256"] == bundle.manifest.artifacts["int8.onnx"].record.sha256
    model = onnx.load_from_string(data)
    assert parameters["opset_version"] == model.opset_import[0].version
    assert [each.name for each in model.graph.input] == [each["name"] for each in node["inputs"]]
    assert [each.name for each in model.graph.output] == [each["name"] for each in node["outputs"]]
    pipeline = description["pipeline"]
    assert pipeline["configs"]["frequency"] == pytest.approx(1.0 / spec.control_period_s)
    assert pipeline["data_flow"] == pipeline["feedback_flow"] == {}
    assert pipeline["inputs"] == {name: [each["name"] for each in node["inputs"]]}
    assert pipeline["outputs"] == {name: [each["name"] for each in node["outputs"]]}
    if isinstance(spec.head, ContinuousHead):
        (action,) = node["outputs"]
        assert (action["shape"], action["dtype"]) == ([1, spec.output_size], "float32")
        assert (action["low"], action["high"], action["unit"]) == ([-2.0], [2.0], spec.head.unit)
    else:
        assert isinstance(spec.head, DiscreteHead)
        logits, action = node["outputs"]
        assert (logits["shape"], action["shape"], action["dtype"]) == ([1, spec.output_size], [1], "int64")
        assert logits["element_names"] == [list(spec.head.action_names)]


def test_the_fields_as_inputs_give_what_the_artifact_gives(packed: tuple[Bundle, Path]) -> None:
    bundle, folder = packed
    data = (folder / f"{bundle.spec.name}.onnx").read_bytes()
    sizes = [field.size for field in bundle.spec.observation]
    found = run_fields(data, sizes, bundle.golden().observations)
    assert_as_expected(bundle, bundle.read_expected(bundle.artifact(Precision.INT8, ArtifactFormat.ONNX)), found)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("all",), ["all"]),
        (("observation",), ["observation"]),
        (("observation", "action"), ["observation_in", "action_in"]),
        (("a/b", "a_b"), ["a_b", "a_b_in"]),
        (("head/raw", "größe [°]"), ["head_raw", "größe [°]"]),
    ],
)
def test_names_that_a_graph_has_or_leapp_splits_are_others(
    bundle: Bundle, tmp_path: Path, names: tuple[str, ...], wanted: list[str]
) -> None:
    sizes = [8] if len(names) == 1 else [3, 5]
    fields = tuple(
        ObservationField(name, (2, 4) if size == 8 else (size,), "m", tuple(f"{name} {k}" for k in range(size)))
        for name, size in zip(names, sizes, strict=True)
    )
    spec = replace(bundle.spec, observation=fields, fallback=(2.0,), delay_s=1e-5)
    made = write_bundle(tmp_path / "fields", spec, bundle.weights(), bundle.calibration(), bundle.golden().observations)
    candidate = build(made, Precision.FP32, ArtifactFormat.ONNX)
    model = with_fields(spec, candidate.data)
    found = run_fields(model, sizes, made.golden().observations)
    reference = candidate.reference
    assert_as_expected(made, Expected(reference.outputs, reference.tolerance), found)
    arguments = ["--policy", str(made.path), "--output-path", str(tmp_path / "out"), "--format", "leapp"]
    assert main([*arguments, "--precision", "fp32"]) == 0
    description = yaml.safe_load((tmp_path / "out" / "small.yaml").read_text(encoding="utf-8"))
    inputs = description["models"]["small"]["inputs"]
    assert [each["name"] for each in inputs] == wanted
    assert [each.get("field", each["name"]) for each in inputs] == list(names)
    assert [each["element_names"] for each in inputs] == [[list(field.element_names)] for field in fields]
    assert [each.get("field_shape") for each in inputs] == ([[2, 4]] if len(names) == 1 else [None, None])
    assert description["pipeline"]["configs"] == {"frequency": 4.0, "delay_s": 1e-5, "fallback": [2.0]}


def test_raw_actions_have_no_bounds(bundle: Bundle) -> None:
    head = ContinuousHead((-1.0,) * 6, (1.0,) * 6, Squash.NONE, names=tuple("abcdef"), unit="rad")
    spec = replace(bundle.spec, head=head)
    made = write_bundle(bundle.path, spec, bundle.weights(), bundle.calibration(), bundle.golden().observations)
    assert main(["--policy", str(made.path), "--output-path", str(made.path / "out"), "--format", "leapp"]) == 0
    assert main(["--policy", str(made.path), "--output-path", str(made.path / "hub"), "--precision", "int8"]) == 0
    card = (made.path / "hub" / CARD_FILE).read_text(encoding="utf-8")
    assert "6 float32 numbers, without bounds:" in card and "| 5 | f | – | – | rad |" in card
    made = Bundle.load(made.path)
    entry = made.artifact(Precision.INT8, ArtifactFormat.ONNX)
    model = with_fields(spec, made.artifact_data(entry))
    (action,) = description(spec, entry, model)["models"]["small"]["outputs"]
    assert action == {
        "name": "action", "dtype": "float32", "shape": [1, 6], "type": "tensor", "element_names": [list("abcdef")],
        "unit": "rad",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("squash", "limit", "bounds"),
    [
        (Squash.TANH, 3.0, [(-1.0, 3.0)]),
        (Squash.CLIP, math.inf, [(-1.0, 3.0)]),
        (Squash.NONE, 2.0, [(-3.0, 5.0)]),
        (Squash.NONE, math.inf, []),
    ],
)
def test_bounds_of_actions_by_hand(squash: Squash, limit: float, bounds: list[tuple[float, float]]) -> None:
    assert action_bounds(ContinuousHead((-1.0,), (3.0,), squash, limit)) == bounds


def test_the_emitter_by_hand() -> None:
    values = {
        "a": {"on": 1, "b c": [], "I": {}, "d": [{"e": "x: y", "f": [[1.0, None]]}, {"g": True}]},
        "z": 1e-05,
        "é": 'say "°"',
    }
    text = document(values)
    assert text == (
        "a:\n"
        '  "on": 1\n'
        "  b c: []\n"
        '  "I": {}\n'
        "  d:\n"
        '  - e: "x: y"\n'
        "    f: [[1.0, null]]\n"
        "  - g: true\n"
        "\n"
        "z: 1.0e-05\n"
        "\n"
        '"é": "say \\"°\\""\n'
    )
    assert yaml.safe_load(text) == values
    with pytest.raises(ValueError, match="inf"):
        document({"a": float("inf")})


def test_a_leapp_folder_holds_one_precision(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", str(bundle.path), "--output-path", str(tmp_path / "out"), "--format", "leapp"]
    assert main([*arguments, "--precision", "fp16,int8"]) == 1
    assert "--precision fp16" in capsys.readouterr().err and not (tmp_path / "out").exists()


FILES = Path(__file__).parents[1] / "importers" / "files" / "leapp"


def went_out(name: str, place: Path, precision: str) -> Path:
    golden, bundle = str(FILES / name / "golden.npz"), place / "bundle"
    words = [str(FILES / name), "--observations", golden, "--golden", golden, "--name", name]
    assert import_main([*words, "--output-path", str(bundle)]) == 0
    words = ["--policy", str(bundle), "--output-path", str(place / name), "--format", "leapp", "--precision", precision]
    assert package_main(words) == 0
    return place / name


@pytest.mark.parametrize("name", ["last_action", "frames", "terms", "gravity", "recurrent"])
def test_a_folder_that_went_out_is_read_again(name: str, tmp_path: Path) -> None:
    folder = went_out(name, tmp_path, "fp32")
    bundle, policy = Bundle.load(tmp_path / "bundle"), read_leapp(folder)
    fields = {field.name: field for field in bundle.spec.observation}
    history, again = History(bundle.spec.observation), History(policy.inputs)
    for field in (each for each in policy.inputs if each.memory is None):
        own = fields[field.name]
        assert (field.unit, field.element_names) in [(own.unit, own.element_names), ("1", own.element_names)]
    assert history.brought == again.brought
    outputs = bundle.spec.output_size
    for values in np.random.default_rng(1).normal(0.0, 1.0, (12, history.values_size)).astype(np.float32):
        own = forward_float(bundle.spec, bundle.weights(), np.array(history.observe(values)))[0]
        other = run(policy, np.array(again.observe(values))[None])[0]
        np.testing.assert_allclose(other[:outputs], own[:outputs], atol=1e-5)
        history.record_action(own[:outputs], own[outputs:])
        again.record_action(other[:outputs], other[outputs:])


def test_int8_keeps_its_states(tmp_path: Path) -> None:
    """A trained policy whose observation holds the last four periods."""
    shutil.copytree(ZOO / "memory" / "II-looks-4", tmp_path / "bundle")
    words = ["--policy", str(tmp_path / "bundle"), "--output-path", str(tmp_path / "looks"), "--precision", "int8"]
    assert package_main([*words, "--format", "leapp"]) == 0
    described, bundle = describe(tmp_path / "looks"), Bundle.load(tmp_path / "bundle")
    (path,) = (tmp_path / "looks").glob("*.safetensors")
    artifact = onnxruntime.InferenceSession((tmp_path / "bundle" / "int8.onnx").read_bytes())
    session, history = onnxruntime.InferenceSession(described.model), History(bundle.spec.observation)
    state = {name.partition("/")[2]: value for name, value in load_file(path).items()}
    assert state.keys() == described.feedback.keys() and state
    for values in np.random.default_rng(1).uniform(0.1, 2.0, (12, history.values_size)).astype(np.float32):
        fed, start = dict(state), 0
        for field, size in history.brought:
            fed[field] = values[None, start : start + size]
            start += size
        made = dict(zip((each.name for each in session.get_outputs()), session.run(None, fed), strict=True))
        state = {name: made[output] for name, output in described.feedback.items()}
        (wanted,) = artifact.run(["logits"], {"observation": np.array(history.observe(values), np.float32)[None]})
        np.testing.assert_array_equal(made["logits"], wanted)
