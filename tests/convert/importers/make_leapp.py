"""Write LEAPP folders, and what LEAPP's InferenceManager answers, for test_leapp.py: ``make_leapp.py FOLDER [NAME]``.

Runs in the environment of ``make peers``, not in the project's. Each policy is a folder as ``compile_graph`` writes it
(its log and the exporter's traces of its own files left out), with ``golden.npz``: an array for each input by its name,
(40, …), period after period from the folder's initial values on, and ``outputs``, (40, m).
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import leapp
import numpy as np
import onnx
import torch
from leapp import GraphConfigs, InputKindEnum, OutputKindEnum, TensorSemantics, annotate
from torch import nn

PERIODS = 40
JOINTS = [f"{leg}_{part}" for leg in ("left", "right") for part in ("hip", "knee", "ankle")]
DEFAULT = torch.tensor([0.1, -0.3, 0.6, 0.1, -0.3, 0.6])
Semantics = dict[str, tuple[int, InputKindEnum | None]]
SENSORS: Semantics = {
    "base_lin_vel": (3, InputKindEnum.BODY_LINEAR_VELOCITY),
    "base_ang_vel": (3, InputKindEnum.BODY_ANGULAR_VELOCITY),
    "projected_gravity": (3, InputKindEnum.VECTOR3D),
    "velocity_commands": (3, InputKindEnum.COMMAND_BODY_VELOCITY),
    "joint_pos": (6, InputKindEnum.JOINT_POSITION),
    "joint_vel": (6, InputKindEnum.JOINT_VELOCITY),
}


def inputs(sensors: Semantics) -> list[torch.Tensor]:
    """The node's inputs, annotated."""
    described = []
    for name, (size, kind) in sensors.items():
        names = JOINTS if name.startswith("joint") else None
        described.append(TensorSemantics(name, torch.randn(1, size), kind=kind, element_names=names))
    given = annotate.input_tensors("policy", described)
    return list(given) if isinstance(given, tuple) else [given]


def sensed(*names: str, **others: tuple[int, InputKindEnum | None]) -> list[torch.Tensor]:
    """Others, then sensors by their names."""
    return inputs({**others, **{name: SENSORS[name] for name in names}})


def remembered(**states: torch.Tensor) -> torch.Tensor:
    return annotate.state_tensors("policy", states)


def recalled(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The joints' positions, and a state that begins at zero."""
    (position,) = sensed("joint_pos")
    return position, remembered(**{name: torch.zeros(1, size)})


def targets(values: torch.Tensor, **following: torch.Tensor) -> None:
    """The node's output, annotated, behind the next states."""
    if following:
        annotate.update_state("policy", following)
    names = JOINTS if values.shape[-1] == len(JOINTS) else None
    tensor = TensorSemantics("joint_targets", values, kind=OutputKindEnum.JOINT_POSITION, element_names=names)
    annotate.output_tensors("policy", [tensor], export_with="onnx")


def network(size: int, outputs: int = 6) -> nn.Module:
    """An actor of rsl_rl: ELU layers behind a normaliser."""
    mean, deviation = torch.randn(size) * 0.2, torch.rand(size) + 0.5
    body = nn.Sequential(nn.Linear(size, 16), nn.ELU(), nn.Linear(16, 12), nn.ELU(), nn.Linear(12, outputs))
    return lambda x: body((x - mean) / deviation)


def scaled(given: list[torch.Tensor]) -> torch.Tensor:
    """The terms of Isaac Lab's velocity task."""
    linear, angular, gravity, command, position, velocity = given
    return torch.cat([linear * 2.0, angular * 0.25, gravity, command, position - DEFAULT, velocity * 0.05], -1)


def locomotion() -> None:
    targets(network(24)(scaled(inputs(SENSORS))) * 0.25 + DEFAULT)


def last_action() -> None:
    """Six named inputs, and the network's last output fed back."""
    given = inputs(SENSORS)
    before = remembered(last_action=torch.zeros(1, 6))
    action = network(30)(torch.cat([scaled(given), before], -1))
    targets(action * 0.25 + DEFAULT, last_action=action)


def frames() -> None:
    """Five stacked frames, of which the newest is last."""
    given = sensed("base_ang_vel", "joint_pos")
    before = remembered(frames=torch.zeros(1, 5, 9))
    frame = torch.cat([given[0] * 0.25, given[1] - DEFAULT], -1)
    stacked = torch.cat([before[:, 1:], frame.unsqueeze(1)], 1)
    targets(network(45)(stacked.reshape(1, 45)) * 0.25 + DEFAULT, frames=stacked)


def frames_with_actions() -> None:
    """Four stacked frames, each with the action before it: the older ones remember older actions."""
    given = sensed("projected_gravity", "joint_pos")
    before, action = remembered(frames=torch.zeros(1, 4, 15), last_action=torch.zeros(1, 6))
    frame = torch.cat([given[0], given[1] - DEFAULT, action * 0.5], -1)
    stacked = torch.cat([before[:, 1:], frame.unsqueeze(1)], 1)
    action = network(60)(stacked.reshape(1, 60)).clamp(-2.0, 2.0)
    targets(action * 0.25 + DEFAULT, frames=stacked, last_action=action)


def terms() -> None:
    """A history for each term, of different lengths, one of them the newest first; they begin away from zero."""
    given = sensed("base_ang_vel", "joint_pos")
    old = remembered(turning=torch.full((1, 3, 3), 0.5), joints=(DEFAULT - 0.2).repeat(1, 2, 1))
    turning = torch.cat([old[0][:, 1:], given[0].unsqueeze(1)], 1)
    joints = torch.cat([given[1].unsqueeze(1), old[1][:, :-1]], 1)
    targets(network(21)(torch.cat([turning.reshape(1, 9), joints.reshape(1, 12)], -1)), turning=turning, joints=joints)


def clips() -> None:
    given = scaled(inputs(SENSORS)).clamp(-3.0, 3.0)
    targets(network(24)(given).clamp(-0.4, 0.4) * 0.5 + DEFAULT)


def gravity() -> None:
    """Gravity turned into the body's frame by its orientation, a quaternion (w, x, y, z)."""
    quaternion, angular, position = sensed("base_ang_vel", "joint_pos", orientation=(4, InputKindEnum.BODY_ROTATION))
    down = torch.tensor([[0.0, 0.0, -1.0]])
    w, vector = quaternion[:, :1], quaternion[:, 1:]
    turned = down * (2.0 * w**2 - 1.0) - torch.cross(vector, down, dim=-1) * w * 2.0
    turned = turned + vector * (vector * down).sum(-1, keepdim=True) * 2.0
    targets(network(12)(torch.cat([turned, angular * 0.25, position - DEFAULT], -1)) * 0.25 + DEFAULT)


def assembled() -> None:
    """Joints in another order, a constant beside them, an input both clipped and raw, a rotation by bmm, a mean."""
    quaternion, velocity, position = sensed("base_lin_vel", "joint_pos", orientation=(4, InputKindEnum.BODY_ROTATION))
    w, vector = quaternion[:, :1], quaternion[:, 1:]
    along = torch.bmm(vector.view(1, 1, 3), velocity.view(1, 3, 1)).squeeze(-1)
    turned = velocity * (2.0 * w**2 - 1.0) - torch.cross(vector, velocity, dim=-1) * w * 2.0 + vector * along * 2.0
    ordered = position[:, [3, 0, 4, 1, 5, 2]]
    mean = position.view(1, 2, 3).mean(-1)
    parts = [turned, velocity.clamp(-0.5, 0.5), ordered - DEFAULT, mean, torch.ones(1, 2) * 0.3]
    targets(network(16)(torch.cat(parts, -1)) * 0.25 + DEFAULT)


def norms() -> None:
    """A heading as sine and cosine, a distance, a normalised direction."""
    heading, offset = inputs({"heading": (1, None), "offset": (3, None)})
    distance = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
    parts = [torch.sin(heading), torch.cos(heading), distance, offset / (distance + 0.1), torch.exp(-distance)]
    targets(torch.tanh(network(7, 2)(torch.cat(parts, -1))) * math.pi)


def turned_frames() -> None:
    """Three stacked frames of gravity in the body's frame: float operators on remembered values."""
    (quaternion,) = inputs({"orientation": (4, InputKindEnum.BODY_ROTATION)})
    before = remembered(frames=torch.zeros(1, 3, 3))
    w, x, y, z = (quaternion[:, i : i + 1] for i in range(4))
    frame = torch.cat([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z], -1)
    stacked = torch.cat([before[:, 1:], frame.unsqueeze(1)], 1)
    targets(network(9)(stacked.reshape(1, 9)), frames=stacked)


def relative() -> None:
    """Targets relative to the measured joints, within limits."""
    angular, position = sensed("base_ang_vel", "joint_pos")
    action = network(9)(torch.cat([angular * 0.25, position - DEFAULT], -1)).clamp(-1.0, 1.0)
    targets((position + action * 0.5).clamp(DEFAULT - 0.8, DEFAULT + 0.8))


def turned_targets() -> None:
    """A mean beside a deviation, which is left out; a velocity turned out of the body's frame, and a unit vector."""
    quaternion, velocity = inputs({"orientation": (4, InputKindEnum.BODY_ROTATION), "velocity": (3, None)})
    mean = network(7, 12)(torch.cat([quaternion, velocity], -1))[:, :6]
    w, vector, body = quaternion[:, :1], quaternion[:, 1:], torch.tanh(mean[:, :3])
    along = (vector * body).sum(-1, keepdim=True)
    turned = body * (2.0 * w**2 - 1.0) + torch.cross(vector, body, dim=-1) * w * 2.0 + vector * along * 2.0
    way = mean[:, 3:]
    targets(torch.cat([turned, way / torch.sqrt((way * way).sum(-1, keepdim=True) + 0.1)], -1))


def relative_recalled() -> None:
    """Targets relative to the measured joints, the network's output fed back: refused, for no one sees it."""
    position, before = recalled("last_action", 6)
    action = network(12)(torch.cat([position - DEFAULT, before], -1))
    targets(position + action * 0.25, last_action=action)


def recurrent() -> None:
    position, before = recalled("memory", 8)
    cell = nn.GRUCell(6, 8)
    after = cell(position, before)
    targets(nn.Linear(8, 6)(after), memory=after)


def recurrent_layers() -> None:
    """An LSTM behind a layer and a GRU behind that, which begin away from zero; the last action, and two frames."""
    given = scaled(inputs(SENSORS)).clamp(-3.0, 3.0)
    before = {"hidden": torch.randn(1, 5) * 0.3, "cell": torch.randn(1, 5), "memory": torch.full((1, 7), -0.4)}
    hidden, cell, memory, frames, action = annotate.state_tensors(
        "policy", {**before, "frames": torch.zeros(1, 2, 24), "last_action": torch.zeros(1, 6)}
    )
    stacked = torch.cat([frames[:, 1:], given.unsqueeze(1)], 1)
    x = nn.functional.elu(nn.Linear(54, 9)(torch.cat([stacked.reshape(1, 48), action], -1)))
    hidden, cell = nn.LSTMCell(9, 5)(x, (hidden, cell))
    memory = nn.GRUCell(5, 7)(hidden, memory)
    action = network(7)(memory)
    targets(action * 0.25 + DEFAULT, hidden=hidden, cell=cell, memory=memory, frames=stacked, last_action=action)


def recurrent_reset_first() -> None:
    """A GRU whose reset stands before the product: refused."""
    position, before = recalled("memory", 8)
    reset, update = (torch.sigmoid(nn.Linear(14, 8)(torch.cat([position, before], -1))) for _ in range(2))
    new = torch.tanh(nn.Linear(14, 8)(torch.cat([position, reset * before], -1)))
    after = (1.0 - update) * new + update * before
    targets(nn.Linear(8, 6)(after), memory=after)


def recurrent_joined() -> None:
    """The same with the reset behind the product, each gate a layer of both, the update turned round."""
    position, before = recalled("memory", 8)
    reset, update = (torch.sigmoid(nn.Linear(14, 8)(torch.cat([before, position], -1))) for _ in range(2))
    new = torch.tanh(nn.Linear(6, 8)(position) + nn.Linear(8, 8)(before) * reset)
    after = update * new + (1.0 - update) * before
    targets(nn.Linear(8, 6)(after), memory=after)


def averaged() -> None:
    """A filtered observation: refused."""
    position, before = recalled("filtered", 6)
    after = before * 0.9 + position * 0.1
    targets(network(6)(after), filtered=after)


def two_nodes() -> None:
    given = annotate.input_tensors("before", {"joint_pos": torch.randn(1, 6)})
    given = annotate.output_tensors("before", {"centred": given - DEFAULT}, export_with="onnx")
    given = annotate.input_tensors("policy", {"centred": given})
    annotate.output_tensors("policy", {"joint_targets": network(6)(given)}, export_with="onnx")


def torchscript() -> None:
    given = annotate.input_tensors("policy", {"joint_pos": torch.randn(1, 6)})
    annotate.output_tensors("policy", {"joint_targets": network(6)(given)}, export_with="jit")


POLICIES: tuple[Callable[[], None], ...] = (
    *(locomotion, last_action, frames, frames_with_actions, terms, clips, gravity, assembled, norms, turned_frames),
    *(relative, turned_targets, relative_recalled, recurrent, recurrent_layers, recurrent_joined),
    *(recurrent_reset_first, averaged, two_nodes, torchscript),
)


def without_traces(path: Path, description: Path) -> None:
    """The exporter writes the places of its own files into each node; they are nobody's business."""
    model, before = onnx.load(path), path.read_bytes()
    graph = model.graph
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.metadata_props[:]
    onnx.save(model, path)
    text = description.read_text()
    for kind in (hashlib.md5, hashlib.sha256):
        text = text.replace(kind(before).hexdigest(), kind(path.read_bytes()).hexdigest())
    description.write_text(text)


def record(folder: Path) -> None:
    """What InferenceManager answers, its states fed back."""
    manager = leapp.InferenceManager(str(folder / f"{folder.name}.yaml"))
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(PERIODS):
        given = {name: torch.randn_like(value) for name, value in manager.get_mock_input().items()}
        (answer,) = manager.run_policy(given).values()
        for name, value in {**given, "outputs": answer}.items():
            rows.setdefault(name.rpartition("/")[2], []).append(value.numpy()[0].copy())
    np.savez(folder / "golden.npz", **{name: np.stack(values) for name, values in rows.items()})


def main() -> None:
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    for make in (make for make in POLICIES if make.__name__ in (sys.argv[2:] or [each.__name__ for each in POLICIES])):
        torch.manual_seed(1)
        folder = place / make.__name__
        leapp.start(name=folder.name, save_path=str(place))
        make()
        leapp.stop()
        leapp.compile_graph(visualize=False, graph_configs=GraphConfigs(frequency=50.0))
        (folder / "log.txt").unlink(missing_ok=True)
        for path in folder.glob("*.onnx"):
            without_traces(path, folder / f"{folder.name}.yaml")
        if make.__name__ not in ("two_nodes", "torchscript"):
            record(folder)


if __name__ == "__main__":
    main()
