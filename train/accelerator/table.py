"""Which updates run with gradients by hand instead of TensorFlow's: chosen here, and nowhere else.

A run whose settings say ``engine = "numpy"`` is given the update of its method from :data:`UPDATES`. TensorFlow and XLA
take CPU seconds before the first step, and are faster for wide networks, convolutions and several cores. numpy takes
none, and is at home in networks such as 64 × 64. Both compute the same up to float rounding
(``tests/train/accelerator/test_by_hand.py``). No algorithm imports this room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quarl.policy.spec import Head, MultiDiscreteHead, NetworkSpec
from quarl.train.accelerator.off_policy import ddpg_update, dqn_update
from quarl.train.accelerator.on_policy import a2c_update, ppo_update
from quarl.train.algorithms.common.settings import NUMPY
from quarl.train.quantization.aware import fake_quantization
from quarl.train.runs.presets import SettingsError

UPDATES: dict[str, Callable[..., Callable[..., tuple[Any, ...]]]] = {
    "ppo": ppo_update,
    "a2c": a2c_update,
    "dqn": dqn_update,
    "ddpg": ddpg_update,
    "td3": ddpg_update,
}
"""Method → (its settings, grid of the quantizers or None) → what its ``make_update`` gives, by hand."""


def build_accelerated_update(
    method: str, settings: Any, network: NetworkSpec, head: Head | None = None
) -> Callable[..., tuple[Any, ...]] | None:
    """Return the update by hand that a run shall use; None where TensorFlow computes it.

    Args:
        method, settings, network: of the run.
        head: of the task; its components are told to those methods that take several choices at once.

    Raises:
        SettingsError: numpy's gradients do not know the networks' layers.
    """
    if getattr(settings, "engine", None) != NUMPY:
        return None
    networks = (network, getattr(settings, "critic", network))
    if any(spec.convolutions or spec.layer_norm for spec in networks):
        raise SettingsError(
            "the engine numpy trains plain multilayer perceptrons only. Type --set 'engine=\"tensorflow\"'."
        )
    arguments = {"parts": head.parts} if isinstance(head, MultiDiscreteHead) else {}
    return UPDATES[method](settings, fake_quantization(settings.quantization_bits, network), **arguments)
