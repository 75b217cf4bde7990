"""ONNX files that no chain of layers expresses: opaque bundles, from the file to a device's artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from quarl.convert import pipeline
from quarl.convert.__main__ import main as convert
from quarl.convert.importers import registry
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import Continuous, Discrete, ForeignError, Opaque, run
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.convert.rebuild import check_artifact
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError, QuantizationError
from quarl.policy.history import History
from quarl.policy.opaque import execute
from quarl.policy.pilot import deciding
from quarl.policy.reference import forward_float
from quarl.policy.spec import ArtifactFormat, Memory, PolicySpec, Precision, Remembered, SpecError, Squash
from quarl.train import deciding as train_deciding
from tests.convert.importers.onnx_graphs import Graph, numbers
from tests.convert.importers.test_onnx_refusals import part
from tests.refusals import refused

ROWS = np.random.default_rng(4).normal(0.2, 1.5, (300, 5)).astype(np.float32)


def saved(folder: Path, graph: Graph, *outputs: str) -> Path:
    path = folder / "policy.onnx"
    path.write_bytes(graph.model(*outputs).SerializeToString())
    return path


def branches(folder: Path) -> Path:
    """Two branches of layers whose results are joined, and a Mish: no chain."""
    g = Graph(18, obs=["batch", 5])
    x = g.n("Mish", g.dense("obs", 5, 128))
    both = g.n("Concat", g.n("Tanh", g.dense(x, 128, 64)), g.n("Softsign", g.dense(x, 128, 64)), axis=1)
    return saved(folder, g, g.dense(both, 128, 3))


def integrator(folder: Path, first: str = "h_in", second: str = "h_out") -> Path:
    """h' = tanh(h / 2 + W x), y = V h' : a recurrent layer that the contract does not have."""
    g = Graph(17, obs=[1, 5], **{first: [1, 1, 4]})
    fed = g.n("Unsqueeze", g.dense("obs", 5, 4), g.c([0]))
    state = g.n("Tanh", g.n("Add", g.n("Mul", first, g.c(0.5)), fed), outputs=[second])
    g.n("Reshape", g.dense(g.n("Reshape", state, g.c([1, 4])), 4, 2), g.c([1, 2]), outputs=["actions"])
    return saved(folder, g, "actions", second)


def imported(path: Path, *options: str, rows: np.ndarray = ROWS) -> Bundle:
    np.savez(path.with_name("rows.npz"), observations=rows)
    words = [str(path), "--observations", str(path.with_name("rows.npz")), "--output-path", str(path.with_name("it"))]
    assert main([*words, *options]) == 0
    return Bundle.load(path.with_name("it"))


def of_onnxruntime(path: Path, output: str | None = None, **feeds: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    made = [session.run(output and [output], {name: feeds[name][at : at + 1] for name in names})[0]
            for at in range(len(next(iter(feeds.values()))))]  # fmt: skip
    return np.concatenate(made)


def test_what_no_chain_expresses_is_executed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = branches(tmp_path)
    bundle = imported(path, "--period", "0.05", "--json")
    assert "Mish" in json.loads(capsys.readouterr().out)["spec"]["network"]["opaque"]["reason"]
    np.testing.assert_allclose(
        forward_float(bundle.spec, bundle.weights(), ROWS), of_onnxruntime(path, obs=ROWS), rtol=1e-5, atol=1e-5
    )
    made = pipeline.convert_all([bundle], [Precision.FP32, Precision.FP16, Precision.INT8], list(ArtifactFormat))
    sizes = {each.entry.precision: each.entry.record.size for each in made}
    assert sizes[Precision.INT8] < sizes[Precision.FP32] > sizes[Precision.FP16]
    int8 = made[-1].entry
    assert int8.fp32_agreement > 0.9 and int8.output_step is not None and len(int8.output_step) == 3
    again = Bundle.load(bundle.path)
    for each in made:
        check_artifact(again, each.entry)
    decide = train_deciding.reference(again, Precision.INT8)
    floats = train_deciding.reference(again, Precision.FP32)
    assert 0 < np.abs(decide(ROWS) - floats(ROWS)).max() < 0.2 * np.ptp(floats(ROWS))
    with pytest.raises(BundleError, match="onnxruntime"):
        again.artifact(Precision.INT8, ArtifactFormat.TFLITE)


@pytest.mark.parametrize("options", [["--bits", "4"], ["--bits", "mixed"], ["--format", "native"], ["--ranges", "mse"]])
def test_what_an_opaque_program_lacks_is_refused(options: list[str], tmp_path: Path) -> None:
    bundle = imported(branches(tmp_path))
    assert convert(["--policy", str(bundle.path), *options]) == 1 and not bundle.manifest.artifacts


def test_actions_are_clipped_and_scaled_behind_the_graph(tmp_path: Path) -> None:
    path = branches(tmp_path)
    plain = of_onnxruntime(path, obs=ROWS)
    bundle = imported(path, "--actions", "scale", "--bounds=-2:4,0:1,-1:1")
    assert bundle.spec.head.squash is Squash.CLIP and bundle.spec.head.low == (-2.0, 0.0, -1.0)  # type: ignore[union-attr]
    wanted = np.clip(plain, -1, 1) * [3.0, 0.5, 1.0] + [1.0, 0.5, 0.0]
    np.testing.assert_allclose(forward_float(bundle.spec, bundle.weights(), ROWS), wanted, atol=1e-5)


@pytest.mark.parametrize("names", [("h_in", "h_out"), ("memory_of_it", "fresh")])
def test_states_are_carried(names: tuple[str, str], tmp_path: Path) -> None:
    path = integrator(tmp_path, *names)
    options = ["--states", "=".join(names)] if names[0] != "h_in" else []
    bundle = imported(path, "--actions", "as-is", *options)
    assert bundle.spec.network.state_sizes == (4,) and bundle.spec.observation[-1].is_state
    state, wanted = np.zeros((1, 1, 4), np.float32), []
    session = onnxruntime.InferenceSession(path)
    for row in ROWS[:40]:
        action, state = session.run(["actions", names[1]], {"obs": row[None], names[0]: state})
        wanted.append(action[0])
    pipeline.convert_all([bundle], [Precision.FP32, Precision.INT8], [ArtifactFormat.ONNX])
    again = Bundle.load(bundle.path)
    for precision, share in ((Precision.FP32, 1e-5), (Precision.INT8, 0.2)):
        history, made = History(again.spec.observation), []
        data = np.frombuffer(again.artifact_data(again.artifact(precision, ArtifactFormat.ONNX)), np.uint8)
        for row in ROWS[:40]:
            result = execute(again.spec, data, np.array([history.observe(row)], np.float32))[0]
            made.append(result[:2])
            history.record_action(result[:2], result[2:])
        assert np.abs(np.array(made) - wanted).max() <= share * np.ptp(wanted)
    decide = deciding(again.spec, lambda rows: forward_float(again.spec, again.weights(), rows))
    assert decide is not None


def test_an_input_that_is_a_state_by_its_name_is_no_observation(tmp_path: Path) -> None:
    path = integrator(tmp_path, "h_in", "something")
    with pytest.raises(ForeignError, match="--states h_in=OUTPUT"):
        read_onnx(path)
    with pytest.raises(ForeignError):
        read_onnx(path, states={"h_in": "nothing"})
    assert read_onnx(path, states={"h_in": "something"}).inputs[-1].shape == (1, 4)


def test_inputs_of_other_types_and_shapes(tmp_path: Path) -> None:
    g = Graph(17, one=[3], window=[4, 2])
    g.inputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, [1, 1]))
    g.inputs.append(helper.make_tensor_value_info("frames", TensorProto.INT32, [1, 2, 3]))
    first, rows = g.n("Reshape", "one", g.c([1, 3])), g.n("Reshape", "window", g.c([1, 8]))
    last = g.n("Reshape", g.n("Cast", "frames", to=TensorProto.FLOAT), g.c([1, 6]))
    flag = g.n("Cast", "flag", to=TensorProto.FLOAT)
    path = saved(tmp_path, g, g.n("Erf", g.dense(g.n("Concat", first, rows, last, flag, axis=1), 18, 4)))
    policy = read_onnx(path)
    assert [(part.name, part.shape) for part in policy.inputs] == [
        ("one", (3,)), ("window", (4, 2)), ("flag", (1,)), ("frames", (2, 3)),
    ]  # fmt: skip
    row = np.array([[1.0, -2.0, 0.5, *range(8), 1.0, 1, 2, 3, 4, 5, 6]])
    wanted = onnxruntime.InferenceSession(path).run(None, {
        "one": row[0, :3].astype(np.float32), "window": row[:, 3:11].reshape(4, 2).astype(np.float32),
        "flag": np.array([[True]]), "frames": row[:, 12:].reshape(1, 2, 3).astype(np.int32),
    })[0]  # fmt: skip
    np.testing.assert_allclose(run(policy, row), wanted, rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_fixed_batch_is_one_observation_in_each_row(rank: int, tmp_path: Path) -> None:
    g = Graph(17, obs=[4, 6] if rank == 2 else [4, 2, 3])
    x = "obs" if rank == 2 else g.n("Reshape", "obs", g.c([4, 6]))
    path = saved(tmp_path, g, g.n("Erf", g.dense(x, 6, 3)))
    policy = read_onnx(path)
    assert policy.inputs[0].shape == ((6,) if rank == 2 else (2, 3))
    rows = ROWS[:8, :1] * np.linspace(1, 2, 6, dtype=np.float32)
    batch = np.tile(rows[:1], (4, 1)).reshape(4, *policy.inputs[0].shape)
    wanted = onnxruntime.InferenceSession(path).run(None, {"obs": batch})[0][:1]
    np.testing.assert_allclose(run(policy, rows)[:1], wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["window", "entities", "across"])
def test_rows_that_are_no_batch_are_all_observed(kind: str, tmp_path: Path) -> None:
    g = Graph(17, obs=[4, 6])
    if kind == "window":
        y = g.dense(g.n("Reshape", "obs", g.c([1, 24])), 24, 3)
    elif kind == "entities":
        y = g.n("Transpose", g.dense("obs", 6, 1), perm=[1, 0])
    else:
        y = g.n("Sub", g.dense("obs", 6, 3), g.n("ReduceMean", g.dense("obs", 6, 3), axes=[0]))
    path = saved(tmp_path, g, g.n("Erf", y))
    policy = read_onnx(path)
    assert policy.inputs[0].shape == (4, 6)
    rows = np.random.default_rng(2).normal(size=(5, 24)).astype(np.float32)
    session = onnxruntime.InferenceSession(path)
    wanted = [session.run(None, {"obs": row.reshape(4, 6)})[0].reshape(-1) for row in rows]
    np.testing.assert_allclose(run(policy, rows), wanted, rtol=1e-6)


def test_an_open_size_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    g = Graph(17, obs=["batch", "n"])
    path = saved(tmp_path, g, g.n("Erf", g.n("Mul", "obs", g.w(1, 6))))
    with pytest.raises(ForeignError, match="axis 1"):
        read_onnx(path)


CHOICES: dict[str, Callable[[Graph, str], str]] = {
    "softmax over the batch": lambda g, x: g.n("ArgMax", g.n("Softmax", g.n("Erf", x), axis=0), axis=1),
    "softmax of parts": lambda g, x: g.n(
        "ArgMax", g.n("Reshape", g.n("Softmax", g.n("Reshape", g.n("Erf", x), g.c([2, 2]))), g.c([1, 4])), axis=1
    ),
    "logarithm": lambda g, x: g.n("ArgMax", g.n("Log", g.n("Softmax", g.n("Erf", x))), axis=1),
    "plain": lambda g, x: g.n("Cast", g.n("ArgMax", g.n("Erf", x), axis=1), to=TensorProto.INT32),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_action_is_the_one_that_the_file_chooses(choice: str, tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    path = saved(tmp_path, g, CHOICES[choice](g, g.dense("obs", 5, 4)))
    policy = read_onnx(path)
    assert isinstance(policy.actions, Discrete)
    chosen = of_onnxruntime(path, obs=ROWS).reshape(-1)
    assert (run(policy, ROWS).argmax(axis=1) == chosen).mean() > 0.99  # two logarithms may be equal in float32


def test_what_is_no_choice_of_the_first_largest_is_refused(tmp_path: Path) -> None:
    for last in (
        lambda g, x: g.n("Cast", g.n("Cast", g.n("ArgMax", x, axis=1), to=TensorProto.BOOL), to=TensorProto.INT64),
        lambda g, x: g.n("ArgMax", x, axis=1, select_last_index=1),
    ):
        g = Graph(17, obs=[1, 5])
        path = saved(tmp_path, g, last(g, g.n("Erf", g.dense("obs", 5, 4))))
        with pytest.raises(ForeignError, match="must be floats"):
            read_onnx(path)


@pytest.mark.parametrize(("operator", "given"), [("RandomUniformLike", {}), ("RandomNormalLike", {"mean": 1.0})])
def test_other_chance_is_refused_by_name(operator: str, given: dict[str, float], tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    x = g.dense("obs", 5, 4)
    path = saved(tmp_path, g, g.n("Add", x, g.n(operator, x, outputs=None, **given)))
    with pytest.raises(ForeignError, match=operator):
        read_onnx(path)


def test_noise_that_widens_its_mean_stays_as_wide(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    wide = g.n("RandomNormalLike", g.dense("obs", 5, 4))
    path = saved(tmp_path, g, g.n("Add", g.dense("obs", 5, 1), wide))
    assert run(read_onnx(path), ROWS[:2]).shape == (2, 4)


def test_names_of_the_file_meet_no_name_of_the_frame(tmp_path: Path) -> None:
    for name in ("outputs", "file", "observation", "state", "action"):
        g = Graph(17, **{name: [1, 5]})
        path = saved(tmp_path, g, g.n("Erf", g.dense(name, 5, 2)))
        assert imported(path, "--replace").spec.observation[0].name == name


def test_an_output_whose_size_depends_on_the_observation_is_refused(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    path = saved(tmp_path, g, g.n("Compress", "obs", g.n("Reshape", g.n("Greater", "obs", g.c(0.0)), g.c([5])), axis=1))
    assert main([str(path), "--output-path", str(tmp_path / "it")]) == 1


def test_noise_is_its_mean_and_a_draw_its_likeliest(tmp_path: Path) -> None:
    g = Graph(17, obs=["batch", 5])
    x = g.n("Relu", g.dense("obs", 5, 8))
    mean = g.dense(x, 8, 3)
    continuous = g.n("Add", mean, g.n("Mul", g.n("RandomNormalLike", mean), g.c(0.3)), outputs=["continuous_actions"])
    log = g.n("Log", g.n("Softmax", g.n("Softplus", g.dense(x, 8, 4))))
    g.n("Multinomial", log, outputs=["discrete_actions"], sample_size=1)
    path = saved(tmp_path, g, continuous, "discrete_actions", mean)
    chain = read_onnx(path, continuous)
    assert not any(isinstance(step, Opaque) for step in chain.steps) and "mean" in chain.assumed[0]
    np.testing.assert_allclose(run(chain, ROWS), of_onnxruntime(path, mean, obs=ROWS), rtol=1e-4, atol=1e-5)
    choice = read_onnx(path, "discrete_actions")
    assert isinstance(choice.actions, Discrete) and isinstance(choice.steps[0], Opaque)
    bundle = imported(path, "--output", "discrete_actions")
    assert bundle.spec.is_discrete and bundle.spec.output_size == 4
    pipeline.convert_all([bundle], [Precision.FP32, Precision.INT8], [ArtifactFormat.ONNX])


def test_masks_allow_every_action_and_several_choices_are_refused(tmp_path: Path) -> None:
    g = Graph(17, obs=["batch", 5], action_masks=["batch", 4])
    logits = [g.n("Mul", g.n("Erf", g.dense("obs", 5, 4)), "action_masks") for _ in range(2)]
    drawn = [g.n("ArgMax", each, axis=1) for each in logits]
    path = saved(tmp_path, g, *drawn, g.n("Concat", *drawn, axis=1, outputs=["actions"]))
    assert isinstance(read_onnx(path, drawn[0]).actions, Discrete)
    with pytest.raises(ForeignError, match="must be floats"):
        read_onnx(path)


def test_half_precision_is_computed_in_float32(tmp_path: Path) -> None:
    g = Graph(18, obs=[1, 5])
    kernel = g.c(numbers(5, 3).astype(np.float16))
    y = g.n("Erf", g.n("MatMul", g.n("Cast", "obs", to=TensorProto.FLOAT16), kernel))
    path = saved(tmp_path, g, g.n("Cast", y, to=TensorProto.FLOAT, outputs=["actions"]))
    bundle = imported(path, "--actions", "as-is")
    apart = forward_float(bundle.spec, bundle.weights(), ROWS) - of_onnxruntime(path, obs=ROWS)
    assert np.abs(apart).max() < 5e-3


@pytest.mark.parametrize(
    "wrong",
    [
        {"opaque": {"size": 0, "reason": "x"}},
        {"opaque": {"size": 9, "reason": "x", "states": [0]}},
        {"opaque": {"size": 9, "reason": "x"}, "hidden": [4]},
    ],
)
def test_specs_that_no_program_has(wrong: dict[str, object], tmp_path: Path) -> None:
    bundle = imported(branches(tmp_path))
    document = bundle.spec.to_dict()
    document["network"] = {**document["network"], **wrong}
    with pytest.raises(SpecError):
        PolicySpec.from_json(json.dumps(document))


BAD = {"a loop": ("Loop", "might never end"), "terabytes": ("ConstantOfShape", "onnxruntime cannot execute")}


@pytest.mark.parametrize("bad", BAD)
def test_graphs_that_may_hurt_are_refused(bad: str, tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    if bad == "a loop":
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["v", "v"], ["w"])], "body",
            [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, []),
             helper.make_tensor_value_info("v", 1, [1, 5])],
            [helper.make_tensor_value_info("go_on", 9, []), helper.make_tensor_value_info("w", 1, [1, 5])],
        )  # fmt: skip
        g.n("Loop", g.c(np.int64(1 << 60)), g.c(np.array(True)), "obs", outputs=["actions"], body=body)
    else:
        size = g.n("Cast", g.n("ReduceSum", g.n("Mul", "obs", g.c(1e12)), g.c([0, 1]), keepdims=0), to=7)
        huge = g.n("ConstantOfShape", g.n("Unsqueeze", size, g.c([0])))
        g.n("Add", "obs", g.n("ReduceSum", huge, keepdims=0), outputs=["actions"])
    path = tmp_path / "policy.onnx"
    model = g.model("actions")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ForeignError, match=BAD[bad][1]):
        read_onnx(path)


def test_nothing_that_integers_are_for(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5])
    bundle = imported(saved(tmp_path, g, g.n("Erf", g.n("Atan", "obs"))), "--actions", "as-is")
    with pytest.raises(QuantizationError):
        pipeline.convert_all([bundle], [Precision.INT8], [ArtifactFormat.ONNX])


JOINTS = ["hip", "knee"]
PROPERTIES = {
    "exploy_version": json.dumps("0.1"),
    "update_rate": json.dumps(50.0),
    "obj.robot.joints": json.dumps({"joint_names": JOINTS}),
    "output.joint_targets.legs": json.dumps({"names": JOINTS, "stiffness": [1.0, 2.0]}),
    "cmd.se2_velocity.vel": "not JSON",
}


def graph() -> Graph:
    """targets = 0.5 · actions + (0.1, −0.2), actions = a network of (positions, w · command, last actions)."""
    made = Graph(
        17,
        **{
            "obj.robot.joints.pos": [1, 2],
            "obj.robot.base.w_Q_b": [1, 4],
            "cmd.se2_velocity.vel": [1, 3],
            "memory.actions.in": [1, 2],
        },
    )
    w = made.n("Slice", "obj.robot.base.w_Q_b", made.c([0]), made.c([1]), made.c([1]))
    turned = made.n("Mul", w, "cmd.se2_velocity.vel")
    observation = made.n("Concat", "obj.robot.joints.pos", turned, "memory.actions.in", axis=1)
    hidden = made.n("Elu", made.dense(observation, 7, 8))
    made.n("Gemm", hidden, made.c(0.1 * numbers(8, 2)), made.w(2), outputs=["actions"])
    made.n("Identity", "actions", outputs=["memory.actions.out"])
    half = made.n("Mul", "actions", made.c(np.float32(0.5)))
    made.n("Add", half, made.c(np.array([0.1, -0.2], np.float32)), outputs=["output.joint_targets.legs.pos"])
    return made


OUTPUTS = ("actions", "output.joint_targets.legs.pos", "memory.actions.out")


def written(path: Path, made: Graph) -> Path:
    path.write_bytes(made.model(*OUTPUTS, **PROPERTIES).SerializeToString())
    return path


def test_names_say_what_is_fed(tmp_path: Path) -> None:
    policy = registry.read(written(tmp_path / "default.onnx", graph()))
    assert policy.source == "exploy 0.1" and policy.period_s == 0.02
    names = {part.name: (part.shape, part.unit, part.element_names) for part in policy.inputs}
    assert names["obj.robot.joints.pos"] == ((2,), "rad", ("hip", "knee"))
    assert policy.is_opaque and policy.actions == Continuous(("hip", "knee"), "rad")
    assert policy.inputs[-1].memory == Memory(Remembered.STATE, (0.0, 0.0))


def test_a_graph_that_decides_sometimes_is_refused(tmp_path: Path) -> None:
    made = graph()
    made.n("Identity", made.c(np.array(1.0)), outputs=["one"])
    branch = part("branch", {}, {"same": []}, same="one")
    made.n("If", made.c(np.array(True)), outputs=["chosen"], then_branch=branch, else_branch=branch)
    with refused(ForeignError, "partial_graph"):
        registry.read(written(tmp_path / "policy.onnx", made))


def test_actions_drive_where_nothing_else_does(tmp_path: Path) -> None:
    policy = registry.read(written(tmp_path / "default.onnx", graph()), output="actions")
    assert isinstance(policy.actions, Continuous) and policy.actions.unit == "1"
    with refused(ForeignError, "foreign", shows=["'speed'"]):
        registry.read(written(tmp_path / "default.onnx", graph()), output="speed")
