"""Atari games as tasks, on the vector environment of the Arcade Learning Environment (C++, Towers et al. 2024).

The preprocessing is that of Mnih et al. 2015 (Methods): every decision is repeated for 4 frames, a picture is the
maximum of the last two frames in grey, 84 × 84, and an observation is the last 4 pictures; an episode begins with
less than 30 frames without action, and with FIRE where the game waits for it. An episode is a whole game, cut after
108,000 frames (30 minutes). In training rewards are clipped to [-1, 1] and a lost life ends the return but not the
episode: the same game goes on with the next life, which the policy itself must start where the game waits for FIRE.
Judging counts the game's own score, and ends a game that nobody plays: one that has FIRE among its actions is cut once
for ``idle_steps`` decisions (1,800: two minutes) no FIRE was pressed, no point scored or lost and no life lost. A
policy that never starts its next life would otherwise wait for a whole game's 27,000 decisions, for the same score.
Actions are not repeated at random (``sticky_actions`` 0), as in the papers of DQN, A2C and PPO.

The results that the committed bundles store were measured without that cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import DiscreteHead, EnvironmentSpec, ObservationField
from quarl.train.suites.episodes import Actions, Decide, Observations, StepResult, evaluate_episodes
from quarl.train.suites.errors import TaskError
from quarl.train.suites.task import Evaluation, Task

SIDE, STACKED, FRAMES_A_STEP, FRAMES_A_SECOND = 84, 4, 4, 60
LONGEST_FRAMES = 108_000
JUDGING_ENVIRONMENTS = 16
DEFAULTS: Mapping[str, Any] = {
    "sticky_actions": 0.0,  # probability that the console repeats the last action instead (Machado et al. 2018: 0.25)
    "most_noops": 30,  # frames without action at the start of an episode, at most
    "fire_reset": True,  # press FIRE at the start where the game has it among its actions
    "episodic_life": True,  # training only: a lost life ends the return (not the episode)
    "clip_rewards": True,  # training only: rewards are clipped to [-1, 1]
    "idle_steps": 1_800,  # judging only: decisions without FIRE, reward or lost life that cut a game of FIRE; 0: never
}


class AtariEpisodes:
    """A batch of one game whose episode ``k`` is seeded with (seed, k), in whichever place it is played."""

    def __init__(self, game: str, environments: int, seed: int, options: Mapping[str, Any], training: bool) -> None:
        """Args: the ROM's name, number of consoles, seed, the options above, and whether episodes are for training."""
        from ale_py.vector_env import AtariVectorEnv

        quiet_console()
        self.environments, self._seed, self._trains = environments, seed, training
        self._marks_lives = training and bool(options["episodic_life"])
        self._lives = np.zeros(environments, np.int32)
        names = action_names(game)
        self._fires = np.array(["FIRE" in name for name in names])
        self._longest_idle = 0 if training or "FIRE" not in names else int(options["idle_steps"])
        self._idle = np.zeros(environments, np.int64)
        self.frames_before: dict[int, int] = {}  # by evaluation episode: without action, before its first observation
        self._vector = AtariVectorEnv(
            game,
            environments,
            num_threads=1,
            max_num_frames_per_episode=LONGEST_FRAMES,
            repeat_action_probability=float(options["sticky_actions"]),
            img_height=SIDE,
            img_width=SIDE,
            stack_num=STACKED,
            frameskip=FRAMES_A_STEP,
            noop_max=int(options["most_noops"]),
            use_fire_reset=bool(options["fire_reset"]),
            episodic_life=False,  # it would begin a new game at every lost life
            life_loss_info=False,  # it would call a lost life terminated, like the end of the game
            reward_clipping=training and bool(options["clip_rewards"]),
        )

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """Begin the masked episodes; see ``train.suites.episodes.Episodes``.

        The vector environment would begin an ended episode by itself at its next step; an explicit reset before that
        step takes precedence, and only it can seed the episode.
        """
        seeds = np.array([self._episode_seed(int(number)) for number in episode_ids[mask]], np.int32)
        observation, info = self._vector.reset(seed=seeds, options={"reset_mask": mask.copy()})
        self._lives = info["lives"].copy()
        self._idle[mask] = 0
        if not self._trains:
            frames = info["frame_number"][mask].tolist()
            self.frames_before |= dict(zip(episode_ids[mask].tolist(), frames, strict=True))
        return channels_last(observation)

    def step(self, actions: Actions) -> StepResult:
        """Return one step of four frames; see ``train.suites.episodes.Episodes``."""
        observation, reward, terminated, truncated, info = self._vector.step(np.asarray(actions, np.int64))
        lost = info["lives"] < self._lives  # a bonus life is no loss
        self._lives = info["lives"].copy()
        self._idle = np.where(self._fires[actions] | (reward != 0) | lost, 0, self._idle + 1)
        if self._longest_idle:
            truncated = truncated | (self._idle >= self._longest_idle)
        return StepResult(
            channels_last(observation),
            reward.astype(np.float32),
            terminated,
            truncated & ~terminated,
            None,
            lost if self._marks_lives else None,
        )

    def close(self) -> None:
        """Give back the consoles."""
        self._vector.close()

    def _episode_seed(self, number: int) -> int:
        return int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0] >> 1)  # the console's is an int32


def channels_last(stack: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(consoles, 4, 84, 84) as (consoles, 84, 84, 4), the newest picture last."""
    return np.ascontiguousarray(stack.transpose(0, 2, 3, 1))


def quiet_console() -> None:
    """Suppress the banner that the emulator prints for every console."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@lru_cache(maxsize=1)
def games() -> frozenset[str]:
    """Names of all games whose ROM is installed, e.g. ``pong``; empty without the package ale-py."""
    try:
        from ale_py import roms
    except ImportError:
        return frozenset()
    return frozenset(roms.get_all_rom_ids())


def action_names(game: str) -> tuple[str, ...]:
    """Return the game's minimal action set in the emulator's order, e.g. ("NOOP", "FIRE", "RIGHT", …)."""
    import ale_py
    from ale_py import roms

    quiet_console()
    console = ale_py.ALEInterface()
    console.loadROM(str(roms.get_rom_path(game)))
    return tuple(action.name for action in console.getMinimalActionSet())


def atari_task(game: str, options: Mapping[str, Any]) -> Task:
    """Return the task of a game of :func:`games`, e.g. ``pong``; ``options`` override :data:`DEFAULTS`.

    Raises:
        TaskError: the game or an option is not known.
    """
    if game not in games():
        raise TaskError(f"--task {game} is not an installed Atari game. Type --task pong, for example.")
    if unknown := sorted(options.keys() - DEFAULTS.keys()):
        raise TaskError(f"the task {game} has no options {unknown}; its options are {', '.join(DEFAULTS)}.")
    chosen = {**DEFAULTS, **options}

    def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        with closing(
            AtariEpisodes(game, min(JUDGING_ENVIRONMENTS, episodes), seed, chosen, training=False)
        ) as consoles:
            results = evaluate_episodes(consoles, decide, episodes)
        # Where actions are not repeated at random, nothing else tells two games of a greedy policy apart.
        starts = () if chosen["sticky_actions"] else tuple(consoles.frames_before[number] for number in range(episodes))
        return Evaluation.of(results, preset, starts)

    return Task(
        name=game,
        environment=EnvironmentSpec(f"ALE/{game}", chosen),
        observation=(ObservationField("frames", (SIDE, SIDE, STACKED), "grey level"),),
        head=DiscreteHead(action_names(game)),
        control_period_s=FRAMES_A_STEP / FRAMES_A_SECOND,
        presets=("",),
        make=lambda environments, seed: AtariEpisodes(game, environments, seed, chosen, training=True),
        evaluate=evaluate,
        frames=STACKED,
    )
