"""Write small policies as plain weights, and what they answer, for test_import.py: ``make_weights.py FOLDER [NAME …]``.

It needs torch. The tensors have CleanRL's names of modules and buffers, and Brax's; they are drawn at random, and numpy
answers for them. The committed ones of CleanRL were trained there for a minute each, by the cleanrl_agents.py of commit
f0613410. Each policy is a folder: ``policy`` with the ending that its program gives it, ``spec.json``, and
``golden.npz``: ``observations`` (32, n), raw, and ``outputs`` (32, m): action values, or what the environment gets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

ROWS, FAR = 32, 12
RANDOM = np.random.default_rng(3)
Steps = list[dict[str, Any]]
ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def observed(inputs: int, deviation: Sequence[float] | float) -> np.ndarray:
    """32 observations, of which 12 lie 5 to 40 standard deviations out."""
    rows = np.random.default_rng(7).normal(0.0, 1.0, (ROWS, inputs)) * deviation
    rows[-FAR:] *= np.geomspace(5.0, 40.0, FAR)[:, None]
    return rows.astype(np.float32)


def dense(*names: str, activation: str) -> Steps:
    """Layers with an activation behind each but the last."""
    return [step for name in names for step in ({"dense": name}, {"activation": activation})][:-1]


def layers(names: Sequence[str], sizes: Sequence[int], weight: str) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for name, (taken, given) in zip(names, pairwise(sizes), strict=True):
        kernel = RANDOM.uniform(-1.0, 1.0, (taken, given)) * np.sqrt(3.0 / taken)
        tensors |= {name + weight: kernel.T if weight == ".weight" else kernel}
        tensors |= {f"{name}{weight[0]}bias": RANDOM.normal(0.0, 0.1, given)}
    return tensors


def answers(tensors: dict[str, np.ndarray], steps: Steps, x: np.ndarray) -> np.ndarray:
    for step in steps:
        ((kind, value),) = step.items()
        if kind == "dense":
            kernel = tensors[f"{value}.weight"].T if f"{value}.weight" in tensors else tensors[f"{value}/kernel"]
            x = x @ kernel + tensors[f"{value}.bias" if f"{value}.bias" in tensors else f"{value}/bias"]
        elif kind == "normalise":
            wide = np.sqrt(tensors[value["variance"]] + value["epsilon"]) if "variance" in value else None
            x = (x - tensors[value["mean"]]) / (tensors[value["deviation"]] if wide is None else wide)
        elif kind == "affine":
            x = x * tensors[value["scale"]] + tensors[value["offset"]]
        else:
            x = x[:, :value] if kind == "take" else np.clip(x, *value) if kind == "clip" else ACTIVATIONS[value](x)
    return x


ACTOR, NETWORK = ([f"{name}.{at}" for at in (0, 2, 4)] for name in ("actor_mean", "network"))
HIDDEN = [f"policy/params/hidden_{at}" for at in range(3)]
SQUASHED = ["fc1", "fc2", "fc_mean"]
OBS_RMS = {"mean": "obs_rms.mean", "variance": "obs_rms.var", "epsilon": 1e-8}
SCALED: Steps = [{"activation": "tanh"}, {"affine": {"scale": "action_scale", "offset": "action_bias"}}]
BRAX = {"normalizer/mean": RANDOM.normal(0.0, 1.0, 11), "normalizer/std": RANDOM.uniform(0.3, 2.0, 11)}
Policy = tuple[str, str, str, str, float, float | Sequence[float], dict[str, np.ndarray], Steps]
# file, source, layout, actions, period, deviations of the observations, tensors, steps
POLICIES: dict[str, Policy] = {
    "cleanrl_ppo": (
        *("policy.pt", "CleanRL ppo_continuous_action", "torch", "continuous", 0.05, (0.7, 0.7, 2.0)),
        {
            "obs_rms.mean": np.zeros(3),
            "obs_rms.var": np.array([0.5, 0.5, 4.0]),
            **layers(ACTOR, (3, 16, 16, 1), ".weight"),
        },
        [{"normalise": OBS_RMS}, {"clip": [-10, 10]}, *dense(*ACTOR, activation="tanh"), {"clip": [-2, 2]}],
    ),
    "cleanrl_dqn": (
        *("policy.cleanrl_model", "CleanRL dqn", "torch", "discrete", 0.02, (0.5, 0.5, 0.1, 0.5)),
        *(layers(NETWORK, (4, 24, 16, 2), ".weight"), dense(*NETWORK, activation="relu")),
    ),
    "cleanrl_sac": (
        *("policy.safetensors", "CleanRL sac_continuous_action", "torch", "continuous", 0.05, (0.7, 0.7, 2.0)),
        {**layers(SQUASHED, (3, 24, 24, 1), ".weight"), "action_scale": np.full((1,), 2.0), "action_bias": np.zeros(1)},
        [*dense(*SQUASHED, activation="relu"), *SCALED],
    ),
    "brax_ppo": (
        *("policy.npz", "Brax PPO", "jax", "continuous", 0.02, 1.0),
        {**BRAX, **layers(HIDDEN, (11, 32, 24, 8), "/kernel")},
        [
            {"normalise": {"mean": "normalizer/mean", "deviation": "normalizer/std"}},
            *(*dense(*HIDDEN, activation="silu"), {"take": 4}, {"activation": "tanh"}),
        ],
    ),
}


def make(name: str, folder: Path) -> None:
    file, source, layout, actions, period, deviation, drawn, steps = POLICIES[name]
    tensors = {key: np.ascontiguousarray(value, np.float32) for key, value in drawn.items()}
    folder.mkdir(parents=True, exist_ok=True)
    if file.endswith(".npz"):
        np.savez(folder / file, **tensors)
    elif file.endswith(".safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save({key: torch.as_tensor(value) for key, value in tensors.items()}, folder / file)
    rows = observed(11 if np.isscalar(deviation) else len(np.atleast_1d(deviation)), deviation)
    outputs = answers(tensors, steps, rows).astype(np.float32)
    np.savez_compressed(folder / "golden.npz", observations=rows, outputs=outputs)
    spec = {"source": source, "layout": layout, "actions": actions, "period_s": period}
    spec["observation"] = [["observation", rows.shape[1], "1"]]
    lines = ",\n           ".join(json.dumps(step) for step in steps)
    (folder / "spec.json").write_text(f'{json.dumps(spec)[:-1]},\n "steps": [{lines}]}}\n')


if __name__ == "__main__":
    for wanted in sys.argv[2:] or POLICIES:
        make(wanted, Path(sys.argv[1]) / wanted)
