"""Policies that remember go out as LEAPP folders with states, and come back as what they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

from quarl.convert.importers.__main__ import main as import_main
from quarl.convert.importers.chain import run
from quarl.convert.importers.leapp.description import describe
from quarl.convert.importers.leapp.reader import read_leapp
from quarl.convert.package.__main__ import main as package_main
from quarl.policy.bundle import Bundle
from quarl.policy.history import History
from quarl.policy.places import ZOO
from quarl.policy.reference import forward_float

FILES = Path(__file__).parents[1] / "importers" / "files" / "leapp"


def packed(name: str, place: Path, precision: str) -> Path:
    golden, bundle = str(FILES / name / "golden.npz"), place / "bundle"
    words = [str(FILES / name), "--observations", golden, "--golden", golden, "--name", name]
    assert import_main([*words, "--output-path", str(bundle)]) == 0
    words = ["--policy", str(bundle), "--output-path", str(place / name), "--format", "leapp", "--precision", precision]
    assert package_main(words) == 0
    return place / name


@pytest.mark.parametrize("name", ["last_action", "frames", "terms", "gravity"])
def test_a_folder_that_went_out_is_read_again(name: str, tmp_path: Path) -> None:
    folder = packed(name, tmp_path, "fp32")
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
