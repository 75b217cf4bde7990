"""Writes the files under files/onnx as PyTorch's exporters write them; run by hand, the tests read what it wrote.

    python tests/convert/importers/make_onnx.py tests/convert/importers/files/onnx

It needs torch, onnx and onnxscript; the files with "sb3" in their name also stable_baselines3 and gymnasium. Those
with "rsl_rl" are make_rsl_rl.py's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

OPSETS = {"script": 17, "dynamo": 20}


class Normaliser(nn.Module):
    """(x − mean) / (deviation + 0.01), as in front of an actor of rsl_rl."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(1, size))
        self.register_buffer("deviation", torch.rand(1, size) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / (self.deviation + 1e-2)


class Split(nn.Module):
    """A swish network whose head holds means and deviations; the action is the mean's tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.normaliser = Normaliser(6)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loc, _ = torch.chunk(self.body(self.normaliser(x).clamp(-5.0, 5.0)), 2, dim=-1)
        return torch.tanh(loc)


class SwishPlain(nn.Module):
    """MuJoCo Playground's default: a swish network behind a normaliser, whose head holds means and deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(1, 9))
        self.register_buffer("std", torch.rand(1, 9) + 0.5)
        self.body = nn.Sequential(*(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 16), nn.SiLU()), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loc, _ = torch.chunk(self.body((x - self.mean) / self.std), 2, dim=-1)
        return torch.tanh(loc)


class Images(nn.Module):
    """Stable-Baselines3's convolutions on a small image of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 4, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(8 * 5 * 5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.float() / 255.0))


class Policy(nn.Module):
    """A whole Stable-Baselines3 actor-critic: actions, values and the logarithm of the probability."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: torch.Tensor) -> Any:
        return self.policy(observation, deterministic=True)


def export(folder: Path, name: str, module: nn.Module, example: torch.Tensor, inputs: str, *outputs: str) -> None:
    for how, opset in OPSETS.items():
        path = folder / f"{name}_{how}.onnx"
        options: dict[str, Any] = {"dynamo": how == "dynamo", "opset_version": opset, "input_names": [inputs]}
        if how == "script":
            options["dynamic_axes"] = {inputs: {0: "batch"}}
        try:
            torch.onnx.export(module.eval(), (example,), str(path), output_names=list(outputs), **options)
        except Exception as error:  # an exporter that cannot is no mistake of ours
            print(f"{path.name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            path.unlink(missing_ok=True)
            continue
        without_traces(path)


def without_traces(path: Path) -> None:
    """The exporter writes the places of its own files into each node; they are nobody's business."""
    model = onnx.load(path, load_external_data=False)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.metadata_props[:]
    onnx.save(model, path)


def stable_baselines3(folder: Path) -> None:
    import gymnasium
    from stable_baselines3 import DQN, PPO

    discrete = gymnasium.make("CartPole-v1")
    small = {"net_arch": [16, 16]}
    outputs = ("actions", "values", "log_prob")
    for name, environment in (("sb3_box", gymnasium.make("Pendulum-v1")), ("sb3_discrete", discrete)):
        size = gymnasium.spaces.utils.flatdim(environment.observation_space)
        policy = PPO("MlpPolicy", environment, policy_kwargs=small, device="cpu").policy
        export(folder, name, Policy(policy), torch.randn(1, size), "observation", *outputs)
    q_net = DQN("MlpPolicy", discrete, policy_kwargs=small, device="cpu", buffer_size=10).policy.q_net
    export(folder, "sb3_dqn", q_net, torch.randn(1, 4), "observation", "q_values")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    export(folder, "swish_split", Split(), torch.randn(1, 6), "obs", "actions")
    export(folder, "images", Images(), torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8), "pixels", "q_values")
    stable_baselines3(folder)
    torch.manual_seed(1)
    export(folder, "swish_plain", SwishPlain(), torch.randn(1, 9), "obs", "continuous_actions")


if __name__ == "__main__":
    main()
