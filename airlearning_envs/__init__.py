"""The navigation task: a numpy-only simulator core, and the Gymnasium face on it.

Importing this package imports nothing else, so that a device needs numpy only. Gymnasium finds the environments
through the package's entry point; without an installation, call :func:`register`.
"""

from __future__ import annotations


def register() -> None:
    """Make ``AirLearning/Navigation-v0`` and its sisters known to Gymnasium (imports gymnasium)."""
    from airlearning_envs import gym_env

    gym_env.register()
