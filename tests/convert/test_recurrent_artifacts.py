"""Recurrent policies in every precision, format and runtime: one step held to the reference, and whole episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ai_edge_litert.interpreter import Interpreter

from quarl.convert import pipeline
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.pilot import Pilot, deciding
from quarl.policy.reference import choose_actions, forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.convert.conftest import Runtimes
from tests.recurrent_policies import NETWORKS, episodes, recurrent_spec, weights_of

PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4)


def bundle_of(folder: Path, name: str, discrete: bool) -> Bundle:
    spec = recurrent_spec(name, discrete)
    weights = weights_of(spec)
    rows = episodes(spec, weights, 400)
    return write_bundle(folder / name, spec, weights, rows[:300], rows[300:])


@pytest.mark.parametrize(("name", "discrete"), [*((name, True) for name in NETWORKS), ("gru", False), ("lstm", False)])
def test_every_artifact_passes_the_gate(tmp_path: Path, runtimes: Runtimes, name: str, discrete: bool) -> None:
    bundle = bundle_of(tmp_path, name, discrete)
    for precision in PRECISIONS:
        quantized = pipeline.quantize(bundle, precision)
        for artifact_format in ArtifactFormat:
            converted = pipeline._convert(bundle, quantized, artifact_format, runtimes, accept=True)
            assert converted.entry.file.startswith(precision.value)
    opened = Bundle.load(bundle.path)
    entry = opened.artifact(Precision.INT8, ArtifactFormat.NATIVE)
    assert len(entry.output_step or ()) == bundle.spec.result_size
    assert "gates of recurrent layers in float" in entry.execution


def test_state_and_next_state_are_explicit(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, "three", True)
    state = bundle.spec.state_size
    for precision in (Precision.FP32, Precision.INT8):
        graph = onnx.load_from_string(pipeline.build(bundle, precision, ArtifactFormat.ONNX).data).graph
        shapes = {each.name: [side.dim_value for side in each.type.tensor_type.shape.dim] for each in graph.input}
        assert shapes == {"observation": [1, 7], "state": [1, state]}
        assert [each.name for each in graph.output] == ["logits", "action", "next_state"]
        lite = Interpreter(model_content=pipeline.build(bundle, precision, ArtifactFormat.TFLITE).data)
        inputs = {each["name"]: each["shape"].tolist() for each in lite.get_input_details()}
        assert inputs == {"observation": [1, 7], "state": [1, state]}
        assert [each["name"] for each in lite.get_output_details()] == ["logits", "action", "next_state"]


@pytest.mark.parametrize("runtime", RuntimeName)
def test_an_episode_in_a_runtime_is_that_of_the_reference(
    tmp_path: Path, runtimes: Runtimes, runtime: RuntimeName
) -> None:
    """What each runtime makes of a state goes into its next step: 40 steps of int8 end where numpy's reference does."""
    bundle = bundle_of(tmp_path, "gru", False)
    spec, process = bundle.spec, runtimes[runtime]
    network = quantize_network(spec, bundle.weights(), bundle.calibration())
    candidate = pipeline.build(bundle, Precision.INT8, runtime.artifact_format)
    process.execute(spec, candidate.data, np.empty((0, spec.observation_size), np.float32))
    values = np.random.default_rng(9).standard_normal((40, 5, 7)).astype(np.float32)
    flown = {}
    for name, results in {
        "runtime": lambda rows: process.execute_again(rows, 60.0).outputs,
        "reference": lambda rows: forward_integer(spec, network, rows),
        "floats": lambda rows: forward_float(spec, bundle.weights(), rows),
    }.items():
        pilot = deciding(spec, results)
        assert isinstance(pilot, Pilot)
        pilot.begin(np.ones(5, bool))
        flown[name] = np.stack([pilot(each) for each in values])
    assert np.abs(flown["runtime"] - flown["reference"]).mean() < 0.01
    assert np.abs(flown["runtime"] - flown["floats"]).mean() < 0.1


def test_the_native_artifact_refuses_broken_gates(tmp_path: Path) -> None:
    from quarl.convert.native.writer import native_artifact
    from quarl.device.engine.engine import Engine, NativeError, library

    spec = recurrent_spec("gru")
    weights = weights_of(spec)
    rows = episodes(spec, weights, 200)
    data = bytearray(native_artifact(spec, quantize_network(spec, weights, rows)))
    engine = Engine(library(), bytes(data), spec.observation_size, spec.result_size)
    decided = [(engine.decide(row), engine.outputs.tolist()) for row in rows]
    wanted = forward_integer(spec, quantize_network(spec, weights, rows), rows)
    np.testing.assert_allclose([outputs[3:] for _, outputs in decided], wanted[:, 3:], atol=1e-5)
    assert np.mean([choice for choice, _ in decided] == choose_actions(spec, wanted)) > 0.97
    cell = 128 + 128 * 2 + 104  # of the third record, state_0
    assert int.from_bytes(data[cell : cell + 4], "little") == 1
    for place, value in ((cell, 0), (cell, 3), (cell - 128, 1), (92, 0), (92, 17)):
        broken = bytearray(data)
        broken[place : place + 4] = value.to_bytes(4, "little")
        with pytest.raises(NativeError):
            Engine(library(), bytes(broken), spec.observation_size, spec.result_size)


def test_a_policy_in_c_says_where_its_states_are(tmp_path: Path) -> None:
    from quarl.convert.export_c.writing import export

    bundle = bundle_of(tmp_path, "gru", True)
    made = export(bundle, tmp_path / "c", Precision.INT8, accept=True)  # its golden test runs here
    header = (made.folder / "policy.h").read_text()
    assert "POLICY_OBSERVATION = 23, POLICY_OUTPUTS = 19" in header and "#define POLICY_STATES 16" in header
    assert "Outputs: 3 floats" in header and "7 … 22  state_0" in header
