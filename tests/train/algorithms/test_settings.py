"""Settings that make no sense are refused, whoever makes them; schedules over a run, by hand."""

from typing import Any

import pytest

from quarl.train.algorithms.a2c import A2CSettings
from quarl.train.algorithms.common.exploration import exploration_rate, noise_scale
from quarl.train.algorithms.common.settings import linear
from quarl.train.algorithms.d4pg import D4PGSettings
from quarl.train.algorithms.ddpg import DDPGSettings
from quarl.train.algorithms.distill import DistillSettings, teacher_share
from quarl.train.algorithms.dqn import DQNSettings
from quarl.train.algorithms.ppo import PPOSettings
from quarl.train.algorithms.recurrent_ppo import RecurrentPPOSettings
from quarl.train.algorithms.sac import SACSettings

NAN, INFINITE = float("nan"), float("inf")
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (A2CSettings, {"optimiser": "sgd"}, "rmsprop, adam"),
    (A2CSettings, {"engine": "torch"}, "of tensorflow, numpy"),
    (DDPGSettings, {"engine": "torch"}, "of tensorflow, numpy"),
    (D4PGSettings, {"atoms": 1}, "1 atoms"),
    (D4PGSettings, {"value_min": 200.0}, "value_min"),
    (D4PGSettings, {"target_period": 0}, "at least 1"),
    (DDPGSettings, {"replay_capacity": 50}, "at least 72"),
    (DDPGSettings, {"noise_reversion": 0.0}, "noise_reversion"),
    (DDPGSettings, {"policy_period": 0}, "policy_period"),
    (DDPGSettings, {"learning_starts": 1}, "at least 8"),
    (DDPGSettings, {"noise_repeat": 0}, "noise_repeat"),
    *((DDPGSettings, {"weight_decay": wrong}, r"Type --set weight_decay=0\.1") for wrong in (-0.1, 1000.0, NAN)),
    *((DQNSettings, {"weight_clip": wrong}, "positive number such") for wrong in (-1.0, NAN, INFINITE)),
    (DQNSettings, {"replay_capacity": 1000}, "at least 1216"),
    *((PPOSettings, {"reward_clip": wrong}, "reward_clip=10") for wrong in (0.0, -1.0, NAN, INFINITE)),
    (PPOSettings, {"quantization_bits": 1}, "2 … 8"),
    (PPOSettings, {"quant_delay": -0.1}, "quant_delay"),
    (PPOSettings, {"compute": "half"}, "float32, bfloat16, float16"),
    (PPOSettings, {"compute": "bfloat16", "engine": "numpy"}, "engine numpy"),
    (RecurrentPPOSettings, {"unroll": 24}, "must divide rollout_steps"),
    (RecurrentPPOSettings, {"quantization_bits": 8, "quant_delay": 0.5}, "without quantizers"),
    (SACSettings, {"temperature": 0.0}, "temperature"),
    (SACSettings, {"target_entropy": -INFINITE}, "target_entropy"),
    (SACSettings, {"temperature_learning_rate": 0.0}, "temperature_learning_rate"),
    (SACSettings, {"learning_starts": 1}, "at least 8"),
]


@pytest.mark.parametrize(("kind", "change", "words"), REFUSED, ids=[f"{a.__name__} {b}" for a, b, _ in REFUSED])
def test_settings_that_make_no_sense_are_refused(kind: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**change)


def test_schedules_are_linear_and_stop_at_their_ends() -> None:
    assert [linear(1.0, 0.2, share) for share in (-1.0, 0.0, 0.5, 1.0, 2.0)] == pytest.approx([1, 1, 0.6, 0.2, 0.2])
    assert [noise_scale(0.4, 0.1, share) for share in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    rates = [exploration_rate(1.0, 0.1, 0.5, share) for share in (0, 0.25, 0.5, 1.0)]
    assert [*rates, exploration_rate(1.0, 0.1, 0.0, 0.0)] == pytest.approx([1, 0.55, 0.1, 0.1, 0.1])
    teacher = DistillSettings(teacher_share_first=1.0, teacher_share_last=0.2)  # it hands over in the first half
    assert [teacher_share(teacher, share) for share in (0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    delays = [PPOSettings(quant_delay=delay).delay_steps(1000) for delay in (0.0, 0.25, 1.0, 300.0)]
    assert delays == [0, 250, 1000, 300], "a share or a number of steps"
