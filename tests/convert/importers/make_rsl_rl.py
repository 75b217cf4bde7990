"""Write policies that rsl_rl's runner trains and exports, for test_import.py: ``make_rsl_rl.py files/onnx``.

It needs rsl-rl-lib 5.5.1 with what that imports, and onnx and onnxscript. The environment is none of Isaac Lab's but
twelve numbers that drift and obey the actions a little; runner, actor, normaliser and exporter are rsl_rl's own. In a
name, ``script`` is the exporter that PyTorch had before 2.9, ``dynamo`` the one that it has now; ``metadata`` has the
properties that mjlab attaches; of ``deviations`` the network answers with means and deviations.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
from make_onnx import without_traces
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

OBSERVATIONS, ACTIONS, COPIES = 12, 4, 16
METADATA = {
    "run_path": "made-for-tests",
    "joint_names": "left_hip,left_knee,right_hip,right_knee",
    "joint_stiffness": "20.000,20.000,20.000,20.000",
    "joint_damping": "0.500,0.500,0.500,0.500",
    "default_joint_pos": "0.100,-0.600,0.100,-0.600",
    "command_names": "twist",
    "observation_names": "projected_gravity,joint_pos,joint_vel,command",
    "action_scale": "0.250,0.500,0.250,0.500",
}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0}
DEVIATIONS = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 1.0}
export = torch.onnx.export


class Drift(VecEnv):
    """Observations that drift, each with a mean and a reach of its own; the actions earn by stopping them."""

    def __init__(self) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = COPIES, ACTIONS, 50
        self.device = "cpu"
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(COPIES, dtype=torch.long)
        self.mean, self.reach = torch.randn(OBSERVATIONS), torch.rand(OBSERVATIONS) * 2.0 + 0.2
        self.obeyed = torch.randn(ACTIONS, OBSERVATIONS) * 0.2
        self.state = torch.randn(COPIES, OBSERVATIONS)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.mean + self.reach * self.state}, batch_size=[COPIES])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self.state = 0.95 * self.state + 0.3 * torch.randn_like(self.state) + actions @ self.obeyed
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        self.episode_length_buf[late] = 0
        self.state[late] = torch.randn(int(late.sum()), OBSERVATIONS)
        return self.get_observations(), -self.state.square().mean(1), late, {"time_outs": late}


def trained(model: str = "MLPModel", distribution: Mapping[str, Any] = GAUSSIAN, **settings: Any) -> OnPolicyRunner:
    """A runner after a few iterations of PPO."""
    torch.manual_seed(2)
    shape = {"class_name": model, "hidden_dims": [32, 16], "activation": "elu", "obs_normalization": True, **settings}
    configuration = {
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2},
        "actor": {**shape, "distribution_cfg": dict(distribution)},
        "critic": dict(shape),
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "num_steps_per_env": 24,
        "save_interval": 1000,
        "check_for_nan": True,
    }
    runner = OnPolicyRunner(Drift(), configuration, None, "cpu")
    runner.learn(20)
    return runner


def write(folder: Path, runner: OnPolicyRunner, name: str, how: str, metadata: Mapping[str, str] | None = None) -> None:
    """Have the runner export, with one of PyTorch's two exporters, and attach the properties."""
    path = folder / f"{name}_{how}.onnx"
    with mock.patch("torch.onnx.export", functools.partial(export, dynamo=how == "dynamo")):
        runner.export_policy_to_onnx(str(folder), path.name)
    without_traces(path)
    if metadata is not None:
        model = onnx.load(path, load_external_data=False)
        onnx.helper.set_model_props(model, dict(metadata))
        onnx.save(model, path)


def main() -> None:
    folder = Path(sys.argv[1])
    runner = trained()
    for name, how, metadata in (("", "dynamo", None), ("", "script", None), ("_metadata", "script", METADATA)):
        write(folder, runner, f"rsl_rl{name}", how, metadata)
    write(folder, trained(distribution=DEVIATIONS), "rsl_rl_deviations", "script")
    for kind, layers, how in (("lstm", 1, "script"), ("gru", 1, "dynamo"), ("lstm", 2, "dynamo"), ("gru", 2, "script")):
        recurrent = trained("RNNModel", rnn_type=kind, rnn_hidden_dim=8, rnn_num_layers=layers)
        write(folder, recurrent, f"rsl_rl_{kind}{'_two' * (layers == 2)}", how)


if __name__ == "__main__":
    main()
