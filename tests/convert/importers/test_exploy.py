"""exploy's wiring by names: inputs, memory and joint targets of a graph written by hand as its exporter names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from quarl.convert.importers import registry
from quarl.convert.importers.chain import Continuous, ForeignError, run
from quarl.policy.history import History
from quarl.policy.spec import Memory, Remembered
from tests.convert.importers.onnx_graphs import Graph, numbers
from tests.refusals import refused

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
    made.n("Gemm", hidden, made.c(0.1 * numbers(8, 2)), made.c(numbers(2)), outputs=["actions"])
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


def test_the_memory_is_fed_back(tmp_path: Path) -> None:
    import onnxruntime

    path = written(tmp_path / "default.onnx", graph())
    policy, session = registry.read(path), onnxruntime.InferenceSession(path)
    history, state = History(policy.inputs), np.zeros((1, 2), np.float32)
    for values in np.random.default_rng(3).normal(0.0, 1.0, (20, 9)).astype(np.float32):
        feeds = {
            "obj.robot.joints.pos": values[None, :2],
            "obj.robot.base.w_Q_b": values[None, 2:6],
            "cmd.se2_velocity.vel": values[None, 6:],
            "memory.actions.in": state,
        }
        wanted, state = session.run([OUTPUTS[1], OUTPUTS[2]], feeds)
        got = run(policy, np.array(history.observe(values))[None])
        np.testing.assert_allclose(got[:, :2], wanted, rtol=1e-4, atol=1e-5)
        history.record_action(got[0, :2], got[0, 2:])


def test_a_graph_that_decides_sometimes_is_refused(tmp_path: Path) -> None:
    made = graph()
    made.n("Identity", made.c(np.array(1.0)), outputs=["one"])
    branch = helper.make_graph(
        [helper.make_node("Identity", ["one"], ["same"])],
        "branch",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, [])],
    )
    made.n("If", made.c(np.array(True)), outputs=["chosen"], then_branch=branch, else_branch=branch)
    with refused(ForeignError, "partial_graph"):
        registry.read(written(tmp_path / "policy.onnx", made))


def test_actions_drive_where_nothing_else_does(tmp_path: Path) -> None:
    policy = registry.read(written(tmp_path / "default.onnx", graph()), output="actions")
    assert isinstance(policy.actions, Continuous) and policy.actions.unit == "1"
    with refused(ForeignError, "foreign", shows=["'speed'"]):
        registry.read(written(tmp_path / "default.onnx", graph()), output="speed")
