"""Which of the two engines computes an update: the compiled one of TensorFlow, or gradients by hand in numpy.

TensorFlow and XLA take CPU seconds before the first step, and are faster for wide networks, convolutions and several
cores. numpy takes none, and is at home in networks such as 64 × 64. Both compute the same up to float rounding
(``tests/train/accelerator/test_by_hand.py``).
"""

from __future__ import annotations

from policy.spec import NetworkSpec
from train.runs.presets import SettingsError

TENSORFLOW, NUMPY = ENGINES = ("tensorflow", "numpy")


def check_engine(engine: str) -> None:
    """For the settings' own check.

    Raises:
        ValueError: there is no such engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown; take one of {', '.join(ENGINES)}.")


def uses_numpy(engine: str, *networks: NetworkSpec) -> bool:
    """Whether the update is the one of ``train/accelerator``.

    Raises:
        SettingsError: numpy's does not know the networks' layers.
    """
    if engine == NUMPY and any(network.convolutions or network.layer_norm for network in networks):
        raise SettingsError("the engine numpy takes plain perceptrons only. Type --set 'engine=\"tensorflow\"'.")
    return engine == NUMPY
