"""LEAPP folders: what LEAPP's own InferenceManager answered, the bundle answers, its history kept by the project."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quarl.convert import pipeline
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import Continuous, ForeignError, run
from quarl.convert.importers.leapp.reader import read_leapp
from quarl.convert.importers.onnx import gates
from quarl.policy.bundle import Bundle
from quarl.policy.history import History
from quarl.policy.reference import forward_float
from quarl.policy.spec import ArtifactFormat, Memory, Precision, Remembered
from tests.convert.conftest import Capture, Patch, Runtimes

FILES = Path(__file__).parent / "files" / "leapp"
CHAINS = {"locomotion", "clips", "recurrent", "recurrent_joined"}
OPAQUE = {"last_action", "frames", "frames_with_actions", "terms", "gravity", "norms", "turned_frames", "assembled"}
OPAQUE |= {"relative", "turned_targets", "recurrent_layers", "recurrent_reset_first", "relative_recalled", "averaged"}
REFUSED = {"two_nodes": r"\(\['before', 'policy'\]\)", "torchscript": "the node 'policy'"}


def imported(name: str, path: Path) -> Bundle:
    golden = str(FILES / name / "golden.npz")
    words = [str(FILES / name), "--observations", golden, "--golden", golden, "--name", "imported"]
    assert main([*words, "--output-path", str(path)]) == 0
    return Bundle.load(path)


@pytest.mark.parametrize("name", sorted(CHAINS | OPAQUE))
def test_a_folder_acts_as_inference_manager_answered(name: str, tmp_path: Path, runtimes: Runtimes) -> None:
    bundle = imported(name, tmp_path / "imported")
    assert (bundle.spec.network.opaque is not None) is (name in OPAQUE)
    spec, weights, history = bundle.spec, bundle.weights(), History(bundle.spec.observation)
    with np.load(FILES / name / "golden.npz") as golden:
        recorded = {key: golden[key] for key in golden.files}
    sensors = [field.name for field in spec.observation if field.name in recorded]
    for period, wanted in enumerate(recorded["outputs"]):
        values = np.concatenate([recorded[sensor][period].reshape(-1) for sensor in sensors])
        result = forward_float(spec, weights, np.array(history.observe(values)))[0]
        action, following = np.split(result, [spec.output_size])
        np.testing.assert_allclose(action, wanted, atol=2e-6 * max(1.0, np.ptp(recorded["outputs"])))
        history.record_action(action, following)
    assert spec.control_period_s == 0.02 and spec.is_imported
    for precision in (Precision.FP32, Precision.INT8):
        for _, _, artifact_format in pipeline.possible((bundle, precision, each) for each in ArtifactFormat):
            pipeline.convert(bundle, precision, artifact_format, runtimes, accept=True)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (2.0, 1)])
def test_pairs_say_how_recurrent_layers_begin(factor: float, code: int, tmp_path: Path, capsys: Capture) -> None:
    golden = str(FILES / "recurrent_layers" / "golden.npz")
    folder = changed(tmp_path, "recurrent_layers", lambda text: text)
    path = folder / "recurrent_layers_initial_values.safetensors"
    save_file({name: np.ascontiguousarray(value * factor) for name, value in load_file(path).items()}, path)
    words = [str(folder), "--observations", golden, "--golden", golden, "--dry-run"]
    assert main([*words, "--name", "imported"]) == code
    assert ("(on the given pairs)" in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_bundle_holds_is_refused_by_name(name: str) -> None:
    with pytest.raises(ForeignError, match=REFUSED[name]):
        read_leapp(FILES / name)


def changed(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    folder = tmp_path / name
    shutil.copytree(FILES / name, folder)
    text = folder / f"{name}.yaml"
    text.write_text(change(text.read_text()))
    return folder


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


MALFORMED: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "a mapping"),
    "YAML": (lambda text: "models: [", "YAML"),
    "a tag": (lambda text: "models: !!python/object/apply:os.system ['touch executed']", "YAML"),
    "aliases": (lambda text: "a: &a [1]\nmodels: *a", "alias"),
    "deep": (lambda text: "[" * 5000, "YAML"),
    "long": (lambda text: text + "#" * 2**20, "at most"),
    "no text": (replaced("policy: [joint_targets]", "policy: [[x]]"), "be its outputs"),
    "huge frequency": (replaced("frequency: 50.0", "frequency: 1" + "0" * 400), "periods"),
    "huge name": (replaced("name: joint_vel", "name: 0x" + "f" * 5000), "be unique strings"),
    "huge shape": (replaced("shape: [1, 6]", "shape: [1, 0x" + "f" * 5000 + "]"), "be positive integers"),
    "huge backend": (replaced("backend: onnx", "backend: 0x" + "f" * 5000), "the backend"),
    "a truth that is none": (replaced("frequency: 50.0", "frequency: !!bool foo"), "YAML"),
    "a time that is none": (replaced("frequency: 50.0", "frequency: !!timestamp foo"), "YAML"),
    "an empty number": (replaced("frequency: 50.0", "frequency: !!int ''"), "YAML"),
    "no hash": (replaced("sha256sum: ", "sha512sum: "), "its sha256 is"),
    "another model": (replaced("sha256sum: ", "sha256sum: 0"), "its sha256"),
    "outside": (replaced("model_path: policy.onnx", "model_path: ../policy.onnx"), "a file inside the folder"),
    "absolute": (replaced("model_path: policy.onnx", "model_path: /etc/passwd"), "a file inside the folder"),
    "no output": (replaced("policy: [joint_targets]", "policy: [speed]"), "be its outputs"),
    "shape": (replaced("shape: [1, 6]", "shape: [1, -6]"), "be positive integers"),
    "size": (replaced("shape: [1, 6]", "shape: [1, 7]"), "in the YAML"),
    "frequency": (replaced("frequency: 50.0", "frequency: .nan"), "periods"),
    "twice": (replaced("name: joint_vel", "name: joint_pos"), "be unique strings"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_description_is_refused(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = MALFORMED[name]
    with pytest.raises(ForeignError, match=words):
        read_leapp(changed(tmp_path, "locomotion", change))
    assert not (tmp_path / "executed").exists()


def test_a_hash_may_be_in_capitals(tmp_path: Path) -> None:
    old = hashlib.sha256((FILES / "locomotion" / "policy.onnx").read_bytes()).hexdigest()
    assert read_leapp(changed(tmp_path, "locomotion", replaced(old, old.upper()))).inputs


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = changed(tmp_path, "locomotion", lambda text: text)
    (folder / "policy.onnx").unlink()
    (folder / "policy.onnx").symlink_to(FILES / "locomotion" / "policy.onnx")
    with pytest.raises(ForeignError, match="a link"):
        read_leapp(folder)


def test_the_model_is_the_one_that_was_described(tmp_path: Path) -> None:
    folder = changed(tmp_path, "locomotion", lambda text: text)
    data = (FILES / "clips" / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(data)
    text = folder / "locomotion.yaml"
    old = hashlib.sha256((FILES / "locomotion" / "policy.onnx").read_bytes()).hexdigest()
    text.write_text(text.read_text().replace(old, hashlib.sha256(data).hexdigest()))
    assert read_leapp(folder).inputs[0].name == "base_lin_vel"


def test_fields_have_names_units_and_states_begin_as_the_folder_says() -> None:
    policy = read_leapp(FILES / "frames")
    joints = tuple(f"{leg}_{part}" for leg in ("left", "right") for part in ("hip", "knee", "ankle"))
    turning, position, frames = policy.inputs
    assert (turning.name, turning.shape, turning.unit) == ("base_ang_vel", (3,), "rad/s")
    assert (position.shape, position.unit, position.element_names) == ((6,), "rad", joints)
    assert policy.actions == Continuous(joints, "rad") and policy.period_s == 0.02
    stored = load_file(FILES / "frames" / "frames_initial_values.safetensors")["policy/frames_in"]
    assert frames.memory is not None and frames.memory.of is Remembered.STATE
    np.testing.assert_array_equal(np.array(frames.memory.initial, np.float32), stored.reshape(-1))
    (*_, memory) = read_leapp(FILES / "recurrent").inputs
    begun = load_file(FILES / "recurrent" / "recurrent_initial_values.safetensors")["policy/memory_in"]
    assert memory.memory == Memory(Remembered.STATE, tuple(float(value) for value in begun.reshape(-1)))


def test_gates_in_another_order_are_no_chain(monkeypatch: Patch) -> None:
    recognised = gates._gru

    def misread(*given: Any) -> Any:
        found = recognised(*given)
        return None if found is None else [found[at] for at in (1, 0, 2, 3)]

    monkeypatch.setattr(gates, "_gru", misread)
    assert read_leapp(FILES / "recurrent").is_opaque


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("policy/last_action_out: [policy/last_action_in]", "policy/speed: [policy/x]"), "feedback_flow"),
        (("joint_vel]", "joint_vel, speed]"), "pipeline.inputs"),
        (("base_lin_vel, base_ang_vel,", "base_ang_vel,"), "pipeline.inputs"),
        (("[policy/last_action_in]", "[policy/joint_vel]"), "pipeline.inputs"),
    ],
)
def test_a_wiring_that_is_not_the_models_is_refused(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match=words):
        read_leapp(changed(tmp_path, "last_action", replaced(*change)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policy/frames_in": np.full((1, 5, 9), np.nan, np.float32)}, "the initial value"),
        ({"policy/frames_in": np.zeros((1, 5, 8), np.float32)}, "the initial value"),
        (None, "cannot be read"),
    ],
)
def test_initial_values_that_are_none(values: dict[str, np.ndarray] | None, words: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, "frames", lambda text: text)
    path = folder / "frames_initial_values.safetensors"
    path.unlink()
    if values is None:
        path.write_bytes(b"\xff" * 40)
    else:
        save_file(values, path)
    with pytest.raises(ForeignError, match=words):
        read_leapp(folder)


def test_mutated_descriptions_are_read_or_refused(tmp_path: Path) -> None:
    folder, generator = changed(tmp_path, "last_action", lambda text: text), np.random.default_rng(5)
    whole = np.frombuffer((folder / "last_action.yaml").read_bytes(), np.uint8)
    read = 0
    for _ in range(24):
        mutated = whole.copy()
        places = generator.integers(0, len(whole), generator.integers(1, 4))
        mutated[places] = generator.integers(32, 127, len(places))
        (folder / "last_action.yaml").write_bytes(mutated.tobytes())
        try:
            policy = read_leapp(folder)
        except ForeignError:
            continue
        read += 1
        size = sum(int(np.prod(part.shape)) for part in policy.inputs)
        assert run(policy, np.zeros((1, size))).shape == (1, 12)
    assert 2 < read < 22
