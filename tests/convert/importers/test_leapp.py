"""LEAPP folders: what LEAPP's own InferenceManager answered, the bundle answers, its history kept by the project."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quarl.convert import pipeline
from quarl.convert.executor import RuntimeProcess
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError, Recurrent
from quarl.convert.importers.leapp.reader import read_leapp
from quarl.convert.importers.onnx import gates
from quarl.policy.bundle import Bundle
from quarl.policy.history import History
from quarl.policy.reference import forward_float
from quarl.policy.spec import (
    ArtifactFormat,
    Cell,
    ContinuousHead,
    FloatOperator,
    Memory,
    Precision,
    Recurrence,
    Remembered,
    RuntimeName,
)

FILES = Path(__file__).parent / "files" / "leapp"
READ: tuple[str, ...] = ("locomotion", "last_action", "frames", "frames_with_actions", "terms", "clips", "gravity")
READ += ("norms", "turned_frames", "assembled", "relative", "turned_targets")
READ += ("recurrent", "recurrent_layers", "recurrent_joined")
REFUSED = {
    "recurrent_reset_first": r"The states 'memory_in' are none of a GRU or an LSTM; read are these, as PyTorch",
    "relative_recalled": "no one sees it",
    "averaged": "the state 'filtered_in' is computed from itself",
    "two_nodes": r"has 2 nodes \(\['before', 'policy'\]\)",
    "torchscript": "the node 'policy' has the backend 'jit'",
}
Runtimes = dict[RuntimeName, RuntimeProcess]


def imported(name: str, path: Path) -> Bundle:
    golden = str(FILES / name / "golden.npz")
    words = [str(FILES / name), "--observations", golden, "--golden", golden, "--name", "imported"]
    assert main([*words, "--output-path", str(path)]) == 0
    return Bundle.load(path)


@pytest.mark.parametrize("name", READ)
def test_a_folder_acts_as_inference_manager_answered(name: str, tmp_path: Path, runtimes: Runtimes) -> None:
    bundle = imported(name, tmp_path / "imported")
    spec, weights, history = bundle.spec, bundle.weights(), History(bundle.spec.observation)
    with np.load(FILES / name / "golden.npz") as golden:
        recorded = {key: golden[key] for key in golden.files}
    sensors = [field.name for field in spec.observation if field.name in recorded]
    for period, wanted in enumerate(recorded["outputs"]):
        values = np.concatenate([recorded[sensor][period].reshape(-1) for sensor in sensors])
        result = forward_float(spec, weights, np.array(history.observe(values)))[0]
        action, following = np.split(result, [spec.output_size])
        np.testing.assert_allclose(action, wanted, atol=2e-6 * max(1.0, np.ptp(recorded["outputs"])))
        history.acted(action, following)
    assert spec.control_period_s == 0.02 and spec.is_imported
    for precision in (Precision.FP32, Precision.INT8):
        for _, _, artifact_format in pipeline.possible((bundle, precision, each) for each in ArtifactFormat):
            pipeline.convert(bundle, precision, artifact_format, runtimes, accept=True)


def test_fields_have_names_units_and_memory() -> None:
    policy = read_leapp(FILES / "frames")
    joints = tuple(f"{leg}_{part}" for leg in ("left", "right") for part in ("hip", "knee", "ankle"))
    turning, position = policy.inputs
    assert (turning.name, turning.shape, turning.unit) == ("base_ang_vel", (5, 3), "rad/s")
    assert (position.shape, position.unit, position.element_names) == ((5, 6), "rad", joints)
    # (position − default) of zero is the default: that is where the stack begins
    wanted = np.array([0.1, -0.3, 0.6, 0.1, -0.3, 0.6], np.float32)
    assert position.memory is not None and position.memory.of is Remembered.OBSERVATION
    np.testing.assert_allclose(position.memory.initial, wanted, rtol=1e-6)
    assert turning.memory == Memory(Remembered.OBSERVATION, (0.0, 0.0, 0.0))
    (*_, action) = read_leapp(FILES / "last_action").inputs
    assert (action.name, action.shape, action.unit) == ("previous_action", (1, 6), "rad")
    assert action.memory is not None and action.memory.of is Remembered.ACTION
    np.testing.assert_allclose(action.memory.initial, wanted, rtol=1e-6)


def test_recurrent_layers_begin_as_the_folder_says() -> None:
    policy = read_leapp(FILES / "recurrent_layers")
    lstm, gru = (step for step in policy.steps if isinstance(step, Recurrent))
    assert (lstm.recurrence, gru.recurrence) == (Recurrence(Cell.LSTM, 5), Recurrence(Cell.GRU, 7))
    stored = load_file(FILES / "recurrent_layers" / "recurrent_layers_initial_values.safetensors")
    *others, first, second = policy.inputs
    assert first.memory is not None and second.memory is not None
    begun = np.concatenate([stored[f"policy/{name}_in"].reshape(-1) for name in ("hidden", "cell")])
    np.testing.assert_array_equal(np.array(first.memory.initial, np.float32), begun)
    assert second.memory == Memory(Remembered.STATE, (float(np.float32(-0.4)),) * 7)
    kinds = {field.memory.of for field in others if field.memory is not None}
    assert kinds == {Remembered.OBSERVATION, Remembered.ACTION}


def another_beginning(folder: Path, factor: float) -> Path:
    shutil.copytree(FILES / "recurrent_layers", folder / "recurrent_layers")
    path = folder / "recurrent_layers" / "recurrent_layers_initial_values.safetensors"
    save_file({name: np.ascontiguousarray(value * factor) for name, value in load_file(path).items()}, path)
    return folder / "recurrent_layers"


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (2.0, 1)])
def test_pairs_say_how_recurrent_layers_begin(
    factor: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = str(FILES / "recurrent_layers" / "golden.npz")
    words = [str(another_beginning(tmp_path, factor)), "--observations", golden, "--golden", golden, "--dry-run"]
    assert main([*words, "--name", "imported"]) == code
    assert ("does not act as the original (on the given pairs)" in capsys.readouterr().err) is bool(code)


def test_a_state_that_is_fed_back_to_another_layer_is_refused(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "recurrent_layers",
        lambda text: text.replace(
            "policy/hidden_out: [policy/hidden_in]", "policy/cell_out: [policy/hidden_in]"
        ).replace("policy/cell_out: [policy/cell_in]", "policy/hidden_out: [policy/cell_in]"),
    )
    with pytest.raises(ForeignError, match="none of a GRU or an LSTM"):
        read_leapp(path)


@pytest.mark.parametrize(("kind", "order"), [("_gru", [1, 0, 2, 3]), ("_lstm", [0, 1, 3, 2])])
def test_gates_in_another_order_are_refused(kind: str, order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    recognised = getattr(gates, kind)

    def misread(*given: object) -> object:
        found = recognised(*given)
        return None if found is None else [found[at] for at in order]

    monkeypatch.setattr(gates, kind, misread)
    with pytest.raises(ForeignError, match="does not compute what the file computes"):
        read_leapp(FILES / "recurrent_layers")


def test_no_more_periods_than_the_policy_looks_at() -> None:
    shapes = {field.name: field.shape for field in read_leapp(FILES / "terms").inputs}
    assert shapes == {"base_ang_vel": (3, 3), "joint_pos": (2, 6)}


def test_a_rotation_becomes_float_operators(tmp_path: Path) -> None:
    steps = imported("gravity", tmp_path / "imported").spec.features
    assert {FloatOperator.MULTIPLY, FloatOperator.SUM, FloatOperator.JOIN} <= {step.operator for step in steps}
    assert not imported("clips", tmp_path / "clips").spec.features


def test_a_target_relative_to_a_joint_becomes_float_operators(tmp_path: Path) -> None:
    spec = imported("relative", tmp_path / "relative").spec
    assert isinstance(spec.head, ContinuousHead) and not spec.is_bounded
    assert len(spec.head.names) == 6
    assert {FloatOperator.ADD, FloatOperator.MINIMUM} <= {step.operator for step in spec.targets} and not spec.features
    # the deviation beside the mean is left out
    assert imported("turned_targets", tmp_path / "turned").spec.output_size == 6


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_bundle_holds_is_refused_by_name(name: str) -> None:
    with pytest.raises(ForeignError, match=REFUSED[name]):
        read_leapp(FILES / name)


def test_a_recording_may_be_whole_observations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).normal(0.0, 1.0, (40, 45)).astype(np.float32)
    words = [str(FILES / "frames"), "--name", "imported", "--dry-run"]
    np.savez(tmp_path / "whole.npz", observations=rows)
    assert main([*words, "--observations", str(tmp_path / "whole.npz")]) == 0
    np.savez(tmp_path / "period.npz", observations=rows[:, :9])
    assert main([*words, "--observations", str(tmp_path / "period.npz")]) == 0
    np.savez(tmp_path / "odd.npz", observations=rows[:, :10])
    capsys.readouterr()
    assert main([*words, "--observations", str(tmp_path / "odd.npz")]) == 1
    assert "10 numbers a row" in capsys.readouterr().err
    assert main([*words, "--observations", str(tmp_path / "whole.npz"), "--fields", "a:45"]) == 1
    assert "holds earlier periods" in capsys.readouterr().err
    golden = str(FILES / "last_action" / "golden.npz")
    words = [str(FILES / "last_action"), "--observations", golden, "--actions", "clip", "--bounds=-1:1", "--dry-run"]
    assert main(words) == 1
    assert "remembers its actions as the file makes them" in capsys.readouterr().err


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
    "empty": (lambda text: "", "needed is a mapping"),
    "no YAML": (lambda text: "models: [", "no YAML"),
    "a tag": (lambda text: "models: !!python/object/apply:os.system ['touch executed']", "no YAML"),
    "aliases": (lambda text: "a: &a [1]\nmodels: *a", "alias"),
    "deep": (lambda text: "[" * 5000, "no YAML"),
    "long": (lambda text: text + "#" * 2**20, "at most"),
    "no text": (replaced("policy: [joint_targets]", "policy: [[x]]"), "not outputs it has"),
    "huge frequency": (replaced("frequency: 50.0", "frequency: 1" + "0" * 400), "periods a second"),
    "huge name": (replaced("name: joint_vel", "name: 0x" + "f" * 5000), "needed are names"),
    "huge shape": (replaced("shape: [1, 6]", "shape: [1, 0x" + "f" * 5000 + "]"), "needed are whole numbers"),
    "huge backend": (replaced("backend: onnx", "backend: 0x" + "f" * 5000), "has the backend"),
    "a truth that is none": (replaced("frequency: 50.0", "frequency: !!bool foo"), "no YAML"),
    "a time that is none": (replaced("frequency: 50.0", "frequency: !!timestamp foo"), "no YAML"),
    "an empty number": (replaced("frequency: 50.0", "frequency: !!int ''"), "no YAML"),
    "no hash": (replaced("sha256sum: ", "sha512sum: "), "its sha256 is not in it"),
    "another model": (replaced("sha256sum: ", "sha256sum: 0"), "its sha256 is another"),
    "outside": (replaced("model_path: policy.onnx", "model_path: ../policy.onnx"), "a file inside the folder"),
    "absolute": (replaced("model_path: policy.onnx", "model_path: /etc/passwd"), "a file inside the folder"),
    "no output": (replaced("policy: [joint_targets]", "policy: [speed]"), "not outputs it has"),
    "shape": (replaced("shape: [1, 6]", "shape: [1, -6]"), "needed are whole numbers"),
    "size": (replaced("shape: [1, 6]", "shape: [1, 7]"), "not what the YAML describes"),
    "frequency": (replaced("frequency: 50.0", "frequency: .nan"), "periods a second"),
    "twice": (replaced("name: joint_vel", "name: joint_pos"), "each once"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_description_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = MALFORMED[name]
    with pytest.raises(ForeignError, match=words):
        read_leapp(changed(tmp_path, "locomotion", change))
    assert not (tmp_path / "executed").exists()


def test_a_hash_may_be_in_capitals(tmp_path: Path) -> None:
    old = hashlib.sha256((FILES / "locomotion" / "policy.onnx").read_bytes()).hexdigest()
    assert read_leapp(changed(tmp_path, "locomotion", replaced(old, old.upper()))).inputs


def test_a_recording_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((40, 30), np.float32)
    for arrays, words in (
        ({"observations": rows[:, :24], "outputs": rows[:, :5]}, "'outputs' has 5 numbers a row; the policy has 6"),
        ({"observations": rows[:0, :24], "outputs": rows[:0, :6]}, "has no rows"),
        ({"observations": rows[:, :23], "outputs": rows[:, :6]}, "23 numbers a row"),
        ({"observations": rows[:, :24], "outputs": rows[:39, :6]}, "40 observations and 39 outputs"),
    ):
        np.savez(tmp_path / "pairs.npz", **arrays)
        golden = str(FILES / "last_action" / "golden.npz")
        words_typed = [str(FILES / "last_action"), "--observations", golden, "--golden", str(tmp_path / "pairs.npz")]
        assert main([*words_typed, "--dry-run"]) == 1
        assert words in capsys.readouterr().err


def test_a_state_that_nothing_gives_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = changed(tmp_path, "frames", lambda text: text)
    path = folder / "frames_initial_values.safetensors"
    for values, words in (
        ({"policy/frames_in": np.full((1, 5, 9), np.nan, np.float32)}, "not finite"),
        ({"policy/frames_in": np.zeros((1, 5, 8), np.float32)}, "has 40 elements, the state 45"),
    ):
        path.unlink()
        save_file(values, path)
        with pytest.raises(ForeignError, match=words):
            read_leapp(folder)
    path.unlink()
    save_file({"policy/other": np.zeros(3, np.float32)}, path)
    assert any("begins with zeros" in message for message in read_leapp(folder).assumed)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = changed(tmp_path, "locomotion", lambda text: text)
    (folder / "policy.onnx").unlink()
    (folder / "policy.onnx").symlink_to(FILES / "locomotion" / "policy.onnx")
    with pytest.raises(ForeignError, match="is a link"):
        read_leapp(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            replaced("policy/last_action_out: [policy/last_action_in]", "policy/speed: [policy/x]"),
            "feedback_flow joins",
        ),
        (replaced("[policy/last_action_in]", "[policy/joint_vel]"), ""),
        (replaced("policy/last_action_out: [policy/last", "policy/joint_targets: [policy/last"), ""),
    ],
)
def test_another_wiring_is_another_policy_or_refused(change: Callable[[str], str], words: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, "last_action", change)
    if words:
        with pytest.raises(ForeignError, match=words):
            read_leapp(folder)
        return
    # each is closed over its own episodes: it is read as wired, or not at all
    assert read_leapp(FILES / "last_action").inputs != read_leapp(folder).inputs


def test_initial_values_that_no_observation_gives_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = changed(tmp_path, "frames", lambda text: text)
    path = folder / "frames_initial_values.safetensors"
    values = load_file(path)
    values["policy/frames_in"] = np.arange(45, dtype=np.float32).reshape(1, 5, 9)
    path.unlink()
    save_file(values, path)
    with pytest.raises(ForeignError, match="different values of 'base_ang_vel' in different periods"):
        read_leapp(folder)
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ForeignError, match="cannot be read"):
        read_leapp(folder)


def test_older_actions_are_remembered_where_frames_hold_the_last_one() -> None:
    fields = {field.name: field for field in read_leapp(FILES / "frames_with_actions").inputs}
    assert {name: field.shape for name, field in fields.items()} == {
        "projected_gravity": (4, 3),
        "joint_pos": (4, 6),
        "previous_action": (4, 6),
    }


def test_a_computed_state_begins_as_zeros_make_it(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = changed(tmp_path, "turned_frames", lambda text: text)
    path = folder / "turned_frames_initial_values.safetensors"
    path.unlink()
    save_file({"policy/frames_in": np.ones((1, 3, 3), np.float32)}, path)
    with pytest.raises(ForeignError, match=r"begins with \[1.0, 1.0"):
        read_leapp(folder)


def test_the_model_is_the_one_that_was_described(tmp_path: Path) -> None:
    folder = changed(tmp_path, "locomotion", lambda text: text)
    data = (FILES / "clips" / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(data)
    with pytest.raises(ForeignError, match="its sha256 is another"):
        read_leapp(folder)
    text = folder / "locomotion.yaml"
    old = hashlib.sha256((FILES / "locomotion" / "policy.onnx").read_bytes()).hexdigest()
    text.write_text(text.read_text().replace(old, hashlib.sha256(data).hexdigest()))
    assert read_leapp(folder).inputs[0].name == "base_lin_vel"
