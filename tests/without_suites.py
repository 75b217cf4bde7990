"""Python in which no suite and no Ray can be imported, whatever is installed: what ``make setup`` alone gives."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = ("Box2D", "ale_py", "pybullet", "pybullet_envs_gymnasium", "mujoco", "dm_control", "cv2", "pygame", "ray")
BLOCK = f"""
import importlib.machinery, sys

class Nothing(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Nothing)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own; ``sys`` is imported."""
    return subprocess.run([sys.executable, "-c", BLOCK + script], capture_output=True, text=True)
