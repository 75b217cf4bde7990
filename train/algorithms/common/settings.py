"""Settings that several algorithms share, each with its sentence; an algorithm's own come on top in its file.

A field that an algorithm writes again as a plain value has another default there and means the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quarl.policy.spec import LARGEST_WEIGHT_BITS, SMALLEST_WEIGHT_BITS
from quarl.train.quantization.aware import FULL_BITS
from quarl.train.quantization.mixed_precision import check_compute
from quarl.train.quantization.weight_control import WeightControl

T = TypeVar("T")
TENSORFLOW, NUMPY = ENGINES = ("tensorflow", "numpy")
"""What computes the updates; see ``train/accelerator/table.py``."""
ENGINE = 'What computes the updates: "tensorflow" (compiled), or "numpy", which is faster for small perceptrons.'


def setting(default: T, sentence: str, before: T | None = None) -> T:
    """Return a field of a settings dataclass.

    Args:
        default: its value.
        sentence: what ``quarl train --task … --defaults`` prints for it.
        before: what a checkpoint without it means, of a setting that was added later.
    """
    value: T = field(default=default, metadata={"sentence": sentence} | ({} if before is None else {"before": before}))
    return value


def about(kind: type, name: str) -> dict[str, Any]:
    """Sentence and past of a field of a settings dataclass: its own, or those of the nearest base that gives them."""
    field_metadata: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if name in (fields := getattr(base, "__dataclass_fields__", {})):
            field_metadata |= fields[name].metadata
    return field_metadata


def linear(first: float, last: float, share: float) -> float:
    """first + (last − first) · share, with the share of all steps already made clipped to [0, 1]."""
    return first + (last - first) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class QuantizedSettings:
    """What every algorithm has whose policy can learn with quantizers."""

    quantization_bits: int = setting(
        32,
        "Bits of the policy's weights and hidden activations once the delay is over, 2 … 8; 32 is none "
        "(--quantization-method quantization-aware --precision).",
        before=32,
    )
    quant_delay: float = setting(
        0.5,
        "Share of all steps (up to 1, else steps) that train in floats while the ranges are watched (--quant-delay).",
        before=0.5,
    )

    def check_quantization(self) -> None:
        """Check the quantization, for the settings' own check.

        Raises:
            ValueError: says what to type.
        """
        bits, is_aware = self.quantization_bits, self.quantization_bits != FULL_BITS
        if is_aware and not SMALLEST_WEIGHT_BITS <= bits <= LARGEST_WEIGHT_BITS:
            raise ValueError(
                f"quantization_bits must be {SMALLEST_WEIGHT_BITS} … {LARGEST_WEIGHT_BITS}, or {FULL_BITS} for no "
                f"quantizers, got {bits}. Type --precision 8."
            )
        if not self.quant_delay >= 0.0:
            raise ValueError(
                f"quant_delay must be a fraction of all steps, 0 … 1, or a number of steps, got {self.quant_delay}."
            )

    def check_run(self, steps: int, is_image: bool) -> None:
        """Refuse what a run of this many steps, on a task of images or of vectors, would silently ignore.

        Raises:
            ValueError: says what to type.
        """
        if self.quantization_bits != FULL_BITS and self.delay_steps(steps) >= steps:
            raise ValueError(
                f"quant_delay must be less than the run's {steps:,} steps, got {self.quant_delay:g}: nothing would "
                "be quantized. Type --quant-delay 0.5, for example."
            )

    def delay_steps(self, steps: int) -> int:
        """``quant_delay`` in steps of a run of this length."""
        return int(self.quant_delay * steps) if self.quant_delay <= 1.0 else int(self.quant_delay)


@dataclass(frozen=True)
class SharedSettings(QuantizedSettings):
    """What every algorithm that learns from rewards has."""

    environments: int = setting(8, "Environments stepped together.")
    rollout_steps: int = setting(8, "Steps of every environment between two rounds of updates.")
    discount: float = setting(0.99, "γ, per step.")
    reward_scale: float = setting(
        1.0, "Rewards are multiplied by this before learning, so that returns are of order one."
    )
    compute: str = setting(
        "float32",
        "Number type of the networks' activations and their gradients: float32, bfloat16 or float16 "
        "(--mixed-precision); weights, losses and the optimiser are float32 all the same.",
        before="float32",
    )
    weight_decay: float = setting(
        0.0,
        "λ: before each step of size α the deployed network's kernels shrink, W ← W − α λ W (AdamW); 0 is none.",
        before=0.0,
    )
    weight_clip: float = setting(
        0.0,
        "κ: after each step the deployed network's kernels are cut to ±κ / √inputs (Elsayed et al. 2024); 0 is none.",
        before=0.0,
    )

    def __post_init__(self) -> None:
        engine = getattr(self, "engine", TENSORFLOW)  # not every algorithm leaves a choice
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
        check_compute(self.compute, engine)
        self.require_at_least_one("environments", "rollout_steps")
        for name, value in vars(self).items():
            if name.endswith("learning_rate") and not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}.")
            if name in ("discount", "gae_lambda") and not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be 0 … 1, got {value}.")
        self.check_quantization()
        if self.quantization_bits != FULL_BITS and self.compute != "float32":
            raise ValueError(
                f"quantization-aware training requires float32, got {self.compute}. Leave --mixed-precision out."
            )
        if not 0.0 <= self.weight_clip < math.inf:
            raise ValueError(f"weight_clip must be a positive number such as 2, or 0 for none, got {self.weight_clip}.")
        rate = getattr(self, "actor_learning_rate", getattr(self, "learning_rate", 0.0))
        if not 0.0 <= self.weight_decay * rate < 1.0:
            raise ValueError(
                f"weight_decay must be 0 (none) or more and below {1.0 / rate:g}, got {self.weight_decay}: each step "
                f"shrinks the weights by weight_decay times the learning rate {rate:g}. Type --set weight_decay=0.1."
            )

    @property
    def weight_control(self) -> WeightControl:
        """The weight control of the deployed network's kernels."""
        return WeightControl(self.weight_decay, self.weight_clip)

    def require_at_least_one(self, *names: str) -> None:
        """Check that these fields are at least 1, for the settings' own check.

        Raises:
            ValueError: one of these fields is below 1.
        """
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class ReplaySettings(SharedSettings):
    """What DQN, DDPG, D4PG and SAC have: minibatches of n-step transitions from a replay."""

    updates: int = setting(32, "Gradient steps in one round (one compiled call).")
    minibatch: int = setting(128, "Transitions of one gradient step.")
    n_step: int = setting(1, "Rewards summed before the bootstrap.")
    replay_capacity: int = setting(300_000, "Transitions kept; the oldest are overwritten.")
    learning_starts: int = setting(
        2_000,
        "Steps before the first update; the observations' statistics are gathered over these and then stand still. "
        "Bounds of an element widen its scale; train/algorithms/common/normalisation.py has those without.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("updates", "minibatch", "n_step")
        smallest = self.environments * (self.rollout_steps + self.n_step)
        if self.replay_capacity < smallest:
            raise ValueError(
                f"replay_capacity must hold a rollout of {self.environments} environments, at least {smallest}, got "
                f"{self.replay_capacity}. Type --set replay_capacity={smallest}."
            )
        if self.learning_starts < self.environments * self.n_step:
            raise ValueError(
                f"learning_starts must be at least {self.environments * self.n_step}, one n-step transition of each "
                f"environment, got {self.learning_starts}."
            )


@dataclass(frozen=True)
class RolloutSettings(SharedSettings):
    """What PPO and A2C have: updates on rollouts of the policy as it is."""

    learning_rate: float = setting(
        7e-4,
        "The optimiser's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step.",
    )
    learning_rate_last: float = setting(0.0, "Share of the learning rate that is left at the last step.")
    gae_lambda: float = setting(
        0.95, "λ of the generalized advantages: 0 is one-step, 1 is the whole return up to the rollout's end."
    )
    entropy_first: float = setting(0.01, "Entropy bonus at the start, in reward per nat.")
    entropy_last: float = setting(0.01, "Entropy bonus at the last step; linear in between.")
    gradient_norm: float = setting(
        0.5,
        "Largest global norm of the policy's and of the value network's gradient, each on its own; of both together "
        "where they share their trunk (images).",
    )
    value_weight: float = setting(1.0, "Weight of the value's loss beside the policy's.")
    log_std: float = setting(
        0.0, "log σ of a continuous task's Gaussian at the start, where 1 is half the range of an action."
    )
    value_hidden: tuple[int, ...] = setting(
        (), "Hidden layers of the value network; empty means those of the policy. Unused where the trunk is shared."
    )
    normalise_rewards: bool = setting(
        False,
        "Rewards are divided by the running deviation of the discounted return, and then multiplied by reward_scale.",
        before=False,
    )
    reward_clip: float = setting(10.0, "With normalise_rewards: ± to which a divided reward is cut.", before=10.0)
    normaliser_steps: int = setting(
        2_000_000, "Steps over which running statistics of the observations are gathered; frozen after that."
    )
    keep_best: bool = setting(
        False,
        "The bundle holds the policy of the best greedy evaluation, made since the statistics of the observations "
        "stand still (images have none), instead of the last one.",
    )
    compute: str = setting(
        "float32",
        "Number type of the hidden layers' activations and their gradients: float32, bfloat16 or float16 "
        "(--mixed-precision); weights, heads, losses and the optimiser are float32 all the same.",
    )
    engine: str = setting(TENSORFLOW, ENGINE)

    def check_run(self, steps: int, is_image: bool) -> None:
        """See :class:`SharedSettings`: ``keep_best`` wants evaluations after the statistics stand still."""
        super().check_run(steps, is_image)
        if self.keep_best and not is_image and self.normaliser_steps >= steps:
            raise ValueError(
                f"keep_best chooses among the evaluations after normaliser_steps = {self.normaliser_steps:,}, but "
                f"this run has {steps:,} steps in all. Type --set normaliser_steps={max(steps // 10, 1)} or --set "
                "keep_best=false."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.reward_clip < math.inf:
            raise ValueError(
                f"reward_clip must be a positive number, got {self.reward_clip}. Type --set reward_clip=10."
            )

    def schedules(self, share: float) -> tuple[float, float]:
        """Learning rate and entropy bonus when this share of all steps is made."""
        rate = self.learning_rate * linear(1.0, self.learning_rate_last, share)
        return rate, linear(self.entropy_first, self.entropy_last, share)
