"""Runs a LEAPP folder with LEAPP itself, on observations of a file: for .venv-peers, by test_leapp.py.

.venv-peers/bin/python run_leapp.py NAME.yaml observations.npy outputs.npz
"""

import sys

import numpy as np
import torch
import yaml
from leapp import InferenceManager


def main(description: str, observations: str, outputs: str) -> None:
    """Feed each observation field by field, and keep what comes out, by output."""
    manager = InferenceManager(description)
    with open(description, encoding="utf-8") as stream:  # noqa: PTH123
        ((node, model),) = yaml.safe_load(stream)["models"].items()
    made: dict[str, list[np.ndarray]] = {}
    for row in np.load(observations):
        fed, start = {}, 0
        for each in model["inputs"]:
            size = each["shape"][1]
            fed[f"{node}/{each['name']}"] = torch.from_numpy(row[None, start : start + size].copy())
            start += size
        assert list(fed) == manager.inputs
        for name, value in manager(fed).items():
            made.setdefault(name.removeprefix(f"{node}/"), []).append(value.numpy()[0])
    np.savez(outputs, **{name: np.stack(rows) for name, rows in made.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
