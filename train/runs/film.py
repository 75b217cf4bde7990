"""Filming a policy: the first episode that ``train.evaluate`` judges, as a .mp4 or .gif in real time.

A navigation flight is painted by ``airlearning_envs.record``; of a task of pictures the film shows what the policy
sees; any other environment is asked for its own picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy import pilot
from quarl.train.suites.episodes import Actions, Decide, Observations
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import Suite, resolve
from quarl.train.suites.task import Task

LONGEST = 27_000
"""Frames of a film at most: half an hour at 15 a second, the longest that an Atari game lasts."""
ENLARGED = 5  # an 84-pixel picture becomes one of 420 pixels
FASTEST = 60.0  # frames a second that players show

Frame = NDArray[np.uint8]


def film(task: Task, decide: Decide, seed: int, preset: str, name: str, path: Path) -> float:
    """Film the episode number 0 of a seed as a .mp4 or .gif; its return (navigation: NaN, its films know none).

    ``preset`` is the arena of the navigation task, ``name`` the policy's, for the caption.

    Raises:
        TaskError: the environment cannot draw itself here; says what is missing.
    """
    if resolve(task.name).suite is Suite.NAVIGATION:
        from quarl.airlearning_envs.config import PRESETS
        from quarl.airlearning_envs.flights import select_observation
        from quarl.airlearning_envs.record import fly_scenes, save_film
        from quarl.airlearning_envs.record import frames as painted

        _, observe = select_observation(task.observation, PRESETS[preset])
        scenes = fly_scenes(PRESETS[preset], decide, 0, seed, observe)
        save_film(path, painted(PRESETS[preset], scenes, f"{preset}, policy {name}, episode 0"))
        return float("nan")
    if task.is_image:
        frames, total = record_observation_frames(task, decide, seed, preset)
    else:
        frames, total = record_rendered_frames(task, decide, seed)
    save(path, frames, 1.0 / task.control_period_s)
    return total


def record_observation_frames(task: Task, decide: Decide, seed: int, preset: str) -> tuple[list[Frame], float]:
    """Return the newest picture of every observation of one evaluation episode, enlarged; and the episode's return."""
    frames: list[Frame] = []

    def decide_and_record(observation: Observations) -> Actions:
        if len(frames) < LONGEST:
            newest = observation[0, :, :, -1]
            frames.append(np.kron(newest, np.ones((ENLARGED, ENLARGED), np.uint8))[:, :, None].repeat(3, axis=2))
        return decide(observation)

    result = task.evaluate(decide_and_record, 1, seed, preset)
    return frames, result.mean_return


def record_rendered_frames(task: Task, decide: Decide, seed: int) -> tuple[list[Frame], float]:
    """Return the environment's own pictures of one episode, and the episode's return."""
    if task.draw is None:
        raise TaskError(f"the task {task.name} cannot be rendered. Leave --video out.", code="no_pictures")
    frames: list[Frame] = []
    episodes, draw = task.draw(seed)
    observation = episodes.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))
    pilot.begin(decide, np.ones(1, np.bool_))
    total, ended = 0.0, False
    while not ended and len(frames) < LONGEST:
        frames.append(render_frame(task, draw))
        step = episodes.step(decide(observation))
        observation, ended = step.observation, bool(step.terminated[0] or step.truncated[0])
        total += float(step.reward[0])
    return [*frames, render_frame(task, draw)], total


def render_frame(task: Task, draw: Callable[[], Any]) -> Frame:
    """Return one picture (height, width, 3).

    Raises:
        TaskError: the environment cannot draw; the usual reason for MuJoCo is a machine without OpenGL.
    """
    try:
        picture = np.asarray(draw())
    except Exception as error:  # OpenGL, GLFW, EGL, pygame: each raises what it likes
        raise TaskError(
            f"the task {task.name} cannot be rendered here ({type(error).__name__}: {error}). MuJoCo without a "
            "display needs a software renderer: apt-get install libosmesa6, then MUJOCO_GL=osmesa quarl evaluate …",
            code="cannot_render",
        ) from error
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise TaskError(
            f"the task {task.name} must render RGB images (height, width, 3), got {picture.shape}. Leave --video out."
        )
    return picture.astype(np.uint8)


def save(path: Path, frames: list[Frame], rate: float) -> None:
    """Write the film of frames (height, width, 3), under a temporary name first so that no half film is left behind.

    A ``rate``, frames a second, that is faster than players show is thinned out.
    """
    import imageio.v3 as imageio

    every = max(1, round(rate / FASTEST)) if rate > FASTEST else 1
    sampled_frames = frames[::every]
    # H.264 wants even sides: cut off what is odd.
    pictures = np.stack([frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in sampled_frames])
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.part{path.suffix.lower()}")
    try:
        if draft.suffix == ".gif":
            imageio.imwrite(draft, pictures, duration=1000.0 * every / rate, loop=0)
        else:
            imageio.imwrite(draft, pictures, fps=rate / every, codec="libx264", macro_block_size=2)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
