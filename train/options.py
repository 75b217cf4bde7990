"""The options that every training has, with quantized actors or without."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from quarl import cli
from quarl.train.methods import METHODS
from quarl.train.runs.presets import SettingsError


def read_method(text: str) -> str:
    """Return the name of a method.

    Raises:
        ValueError: it is none.
    """
    if (name := text.lower()) not in METHODS:
        raise ValueError(f"{text!r} is not a method; choose one of {', '.join(METHODS)}")
    return name


@dataclass(kw_only=True)
class RunOptions:
    """Train a policy.

    Attributes:
        task: navigation, a word such as breakout, dm_control,walker_stand, a Gymnasium id, module:Env-v0 or vector,ID
        policy: network of the case study (default I on navigation)
        model: network instead of --policy: 400,300 or nature (images)
        layer_norm: normalise every hidden fully connected layer
        method: algorithm (default: the first with tuned settings)
        preset: navigation: arena to train on (default: the settings file's mixture)
        command_latency: navigation: commands take effect so late: 0.2, 0.05,0.4 or a file of bench/latency.py
        curriculum: navigation: near goals first; the next zone opens when 30 % of the last 1000 episodes succeeded
        history_length: observations that the policy sees at a time (default 1)
        max_episode_steps: truncate longer episodes (default: as registered, or 10,000)
        steps: environment steps in all (default: the settings file's)
        mixed_precision: compute the networks in bfloat16 or float16 while training, with float32 master weights
        seed: everything random follows from it
        output_path: folder of the bundle (default artifacts/I, artifacts/cartpole-dqn)
        resume: go on from the checkpoint of the same run, even if it has ended
        fresh: start over, even if the last run was interrupted
        minutes: stop after this many minutes, finished or not (with --resume: this many more)
        stop_at_success: stop when the greedy success reaches it
        stop_at_return: stop when the mean greedy return reaches it
        stop_preset: arena on which both are evaluated (default: trained on)
        evaluate_every: steps between two greedy evaluations
        evaluate_episodes: episodes of each
        final_episodes: episodes of the last evaluation, kept in the bundle
        set: override one setting
        quiet: show no progress
    """

    task: str | None = None
    policy: Literal["I", "II", "III"] | None = None
    model: Annotated[str | None, Parameter(metavar="LAYERS")] = None
    layer_norm: bool = False
    method: Annotated[str | None, cli.reads(read_method, "|".join(METHODS))] = None
    preset: str | None = None
    command_latency: Annotated[str | None, Parameter(metavar="SECONDS")] = None
    curriculum: bool = False
    history_length: int | None = None
    max_episode_steps: PositiveInt | None = None
    steps: PositiveInt | None = None
    mixed_precision: Annotated[str | None, Parameter(metavar="TYPE")] = None
    seed: NonNegativeInt = 0
    output_path: Path | None = None
    resume: bool = False
    fresh: bool = False
    minutes: NonNegativeFloat | None = None
    stop_at_success: Annotated[float | None, Parameter(metavar="SHARE")] = None
    stop_at_return: Annotated[float | None, Parameter(metavar="RETURN")] = None
    stop_preset: str = ""
    evaluate_every: PositiveInt | None = None
    evaluate_episodes: PositiveInt | None = None
    final_episodes: PositiveInt | None = None
    set: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    quiet: bool = False


def require_task(task: str | None, examples: str) -> str:
    """Return the task that was typed, since nothing is trained by default.

    Raises:
        SettingsError: none was; says what can be typed.
    """
    if task is None:
        raise SettingsError(f"--task is required. For example:\n\n{examples}")
    return task
