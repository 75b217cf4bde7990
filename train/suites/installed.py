"""Which suites are installed, and what to type when one is not. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from train.suites.errors import TaskError
from train.suites.names import Suite, TaskName

NEEDS = {
    Suite.BOX2D: ("box2d", {"Box2D": "box2d"}),
    Suite.ATARI: ("atari", {"ale_py": "ale-py"}),
    Suite.PYBULLET: ("pybullet", {"pybullet": "pybullet", "pybullet_envs_gymnasium": "pybullet-envs-gymnasium"}),
    Suite.MUJOCO: ("mujoco", {"mujoco": "mujoco"}),
    Suite.DM_CONTROL: ("dm-control", {"dm_control": "dm-control", "mujoco": "mujoco"}),
}
"""Suite to its extra in pyproject.toml and, by the module it imports, the packages it needs."""


def missing_packages(suite: Suite) -> list[str]:
    """Packages of a suite that are not installed."""
    _, modules = NEEDS.get(suite, ("", {}))
    return [package for module, package in modules.items() if not found(module)]


def found(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require_installed(name: TaskName) -> None:
    """Refuse a task whose suite is not installed.

    Raises:
        TaskError: names what is missing and the command that installs it.
    """
    if missing := missing_packages(name.suite):
        extra, _ = NEEDS[name.suite]
        raise TaskError(
            f"--task {name.word or name.canonical} needs {' and '.join(missing)}, not installed here. "
            f"Type: make suites   (all suites), or only this one: "
            f'.venv/bin/pip install -c requirements-suites.txt -e ".[{extra}]"'
        )
