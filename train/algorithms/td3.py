"""TD3: twin delayed deep deterministic policy gradients (Fujimoto et al. 2018): DDPG with its three options on.

The training is ``ddpg.py``'s, equations and update alike; this file holds the values that make it TD3, those of the
paper's section 6.1. Deviations are those of ``ddpg.py`` but the last. The paper makes one update after every step, and
so do the defaults here: ``updates`` is ``environments`` × ``rollout_steps``.
"""

from __future__ import annotations

from dataclasses import dataclass

from quarl.train.algorithms.ddpg import DDPGSettings, train

__all__ = ["TD3Settings", "train"]


@dataclass(frozen=True)
class TD3Settings(DDPGSettings):
    """Settings of one TD3 run: those of DDPG with the defaults of TD3."""

    twin: bool = True
    target_noise: float = 0.2
    policy_period: int = 2
    noise_first: float = 0.1
    noise_last: float = 0.1
    updates: int = 64
    learning_starts: int = 10_000
