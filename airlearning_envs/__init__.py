"""The navigation task: a numpy-only simulator core, and the Gymnasium face on it.

Importing this package imports nothing else, so that a device needs numpy only. Gymnasium knows the environments after
:func:`register` or ``import quarl.airlearning_envs.gym_env``, or by the full name:

    gymnasium.make("quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0")
"""

from __future__ import annotations


def register() -> None:
    """Make ``AirLearning/Navigation-v0`` and its sisters known to Gymnasium (imports gymnasium)."""
    from quarl.airlearning_envs.gym_env import register as register_all

    register_all()
