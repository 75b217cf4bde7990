"""Any Gymnasium environment with Discrete, MultiDiscrete, MultiBinary or bounded Box actions as a task."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten_space
from numpy.typing import NDArray

from quarl import airlearning_envs
from quarl.policy.errors import SpecError
from quarl.policy.spec import (
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    Head,
    MultiDiscreteHead,
    ObservationField,
    Squash,
)
from quarl.train.quiet import suppress_output
from quarl.train.suites.checked import Checked, message_of
from quarl.train.suites.classic import PHYSICS, ClassicEpisodes
from quarl.train.suites.episodes import Actions, Episodes, SyncVectorEnv, episode_of
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import NAVIGATION_ID, Suite, TaskName, list_task_words, resolve
from quarl.train.suites.task import Task, judging

JUDGING_ENVIRONMENTS = 32
LARGEST_VECTOR = 4096
"""Numbers of an observation that is no image: a run holds thousands of them, and its bundle, too."""
LARGEST_BOUND = 1e6  # beyond it stands for infinity, as float32's largest number does in older environments
LONGEST_EPISODE = 10_000
"""Steps, of an environment that is registered without a limit and was given none."""
NO_LIMIT = (
    "{} is registered without max_episode_steps: its episodes are truncated after "
    f"{LONGEST_EPISODE:,} steps. --max-episode-steps N sets another limit."
)
SECONDS_UNKNOWN = 1.0  # an environment that does not say how long a step lasts: one step is one unit of time
LEG = "hip_{0}_angle rad, hip_{0}_speed 1, knee_{0}_angle rad, knee_{0}_speed 1, leg_{0}_contact 1, "
FIELDS = {
    "CartPole-v1": "cart_position m, cart_velocity m/s, pole_angle rad, pole_angular_velocity rad/s",
    "MountainCar-v0": "position 1, velocity 1/step",
    "MountainCarContinuous-v0": "position 1, velocity 1/step",
    "Acrobot-v1": "cos_angle_1 1, sin_angle_1 1, cos_angle_2 1, sin_angle_2 1, angular_velocity_1 rad/s, "
    "angular_velocity_2 rad/s",
    "Pendulum-v1": "cos_angle 1, sin_angle 1, angular_velocity rad/s",
    "BipedalWalker-v3": "hull_angle rad, hull_angular_velocity 1, horizontal_velocity 1, vertical_velocity 1, "
    + LEG.format(1)
    + LEG.format(2)
    + ", ".join(f"lidar_{ray} 1" for ray in range(10)),
}
"""Id to the name and unit of every observation element, in order (Gymnasium's pages of these environments)."""

Environment = gymnasium.Env[Any, Any]


class GymnasiumEpisodes(SyncVectorEnv):
    """Environments of one Gymnasium id.

    Gymnasium promises that an environment is determined by its reset seed and the actions; that makes each episode
    the pure function that ``train.suites.episodes`` asks for. Two suites keep the promise only for an environment that
    was never used (Box2D: its world remembers the last episode's contacts) or was used at least once (PyBullet: the
    first episode counts the floor among the robot's parts from its second step on), so they are given that.
    """

    def __init__(self, environment_id: str, environments: int, seed: int, options: Mapping[str, Any]) -> None:
        """Args: Gymnasium's id, number of environments, seed, and keyword arguments of ``gymnasium.make``."""
        suite = resolve(environment_id).suite
        self._build: Callable[[], Environment] = lambda: make_environment(environment_id, options)
        self._always_new = suite is Suite.BOX2D
        playing = [self._build() for _ in range(environments)]
        if suite is Suite.PYBULLET:
            with suppress_output():
                for environment in playing:
                    environment.reset(seed=0)
        inputs, outputs = playing[0].observation_space, playing[0].action_space
        shape = inputs.shape or ()
        if shows_images(inputs):
            super().__init__(playing, seed, shape, np.uint8)
        else:
            super().__init__(playing, seed, (int(np.prod(shape)),))
        self._actions = outputs
        self._checked = [Checked(environment_id, environment, shape) for environment in playing]

    def begin(self, place: int, seed: np.random.SeedSequence) -> Any:
        """See :class:`SyncVectorEnv`."""
        checked = self._checked[place]
        if self._always_new:
            self.playing[place].close()
            self.playing[place] = checked.environment = self._build()
        number = int(seed.generate_state(1)[0])
        checked.began(0, episode_of(seed))
        return checked.reset(lambda: checked.environment.reset(seed=number))

    def convert_actions(self, actions: Actions) -> Any:
        """Return the actions as the environment takes them."""
        return environment_actions(self._actions, actions)

    def move(self, place: int, action: Any) -> tuple[Any, float, bool, bool]:
        """See :class:`SyncVectorEnv`."""
        observation, reward, terminated, truncated, _ = self._checked[place].step(
            lambda: self.playing[place].step(action)
        )
        return observation, float(reward[0]), bool(terminated), bool(truncated)

    def picture(self) -> NDArray[np.uint8]:
        """Return the first environment as it is now, (height, width, 3); made with ``render_mode="rgb_array"``."""
        return np.asarray(self.playing[0].render())


def make_environment(environment_id: str, options: Mapping[str, Any]) -> Environment:
    """Return an environment as it is played: with a limit of steps, its observations flattened to a Box."""
    environment = make_from_registry(environment_id, options)
    if not isinstance(environment.observation_space, Box):
        environment = gymnasium.wrappers.FlattenObservation(environment)
    return gymnasium.wrappers.TimeLimit(environment, LONGEST_EPISODE) if is_endless(environment) else environment


def is_endless(environment: Environment) -> bool:
    """Return whether Gymnasium truncates none of its episodes."""
    return environment.spec is None or environment.spec.max_episode_steps is None


def make_from_registry(environment_id: str, options: Mapping[str, Any]) -> Environment:
    """``gymnasium.make`` without its checker, with the suite's ids registered and its banners silenced."""
    suite = resolve(environment_id).suite
    with suppress_output(), loading_mujoco() if suite is Suite.MUJOCO else contextlib.nullcontext():
        if suite is Suite.PYBULLET:
            import pybullet_envs_gymnasium  # noqa: F401  # registers the ids
        if environment_id.startswith(NAVIGATION_ID.partition("/")[0] + "/"):
            airlearning_envs.register()
        environment: Environment = gymnasium.make(environment_id, disable_env_checker=True, **options)
    return environment


@contextlib.contextmanager
def loading_mujoco() -> Iterator[None]:
    """MuJoCo does not write MUJOCO_LOG.TXT into the current folder because a robot's file is of an older version."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def gymnasium_task(name: TaskName, options: Mapping[str, Any]) -> Task:
    """Return the task of a Gymnasium id, e.g. ``CartPole-v1``.

    Raises:
        TaskError: Gymnasium does not know the id, or its spaces are none that training takes.
    """
    environment_id = name.target
    import_own_module(environment_id)
    try:
        probe = make_from_registry(environment_id, options)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise TaskError(unknown_task(environment_id, str(error))) from error
    except Exception as error:  # of an environment's own
        raise TaskError(f"--task {environment_id} cannot be created: {message_of(error)}.") from error
    with contextlib.closing(probe), suppress_output():
        inputs, outputs = probe.observation_space, probe.action_space
        period = control_period(probe, name.suite)
        notes = (NO_LIMIT.format(name.canonical),) if is_endless(probe) else ()
    refuse_spaces(environment_id, inputs, outputs)

    is_classic = environment_id in PHYSICS and not options

    def make(environments: int, seed: int) -> ClassicEpisodes | GymnasiumEpisodes:
        if is_classic:
            return ClassicEpisodes(environment_id, environments, seed)
        return GymnasiumEpisodes(environment_id, environments, seed, options)

    def draw(seed: int) -> tuple[Episodes, Callable[[], Any]]:
        if is_classic:
            return draw_classic(environment_id, seed)
        episodes = GymnasiumEpisodes(environment_id, 1, seed, {**options, "render_mode": "rgb_array"})
        return episodes, episodes.picture

    return Task(
        name=name.canonical,
        environment=EnvironmentSpec(environment_id, dict(options)),
        observation=fields_of(environment_id, inputs),
        head=head_of(outputs),
        control_period_s=period,
        presets=("",),
        make=make,
        evaluate=judging(make, JUDGING_ENVIRONMENTS),
        draw=draw,
        bounds=bounds_of(flatten_space(inputs)),
        notes=notes,
    )


def draw_classic(environment_id: str, seed: int) -> tuple[Episodes, Callable[[], Any]]:
    """Return one environment of ``train.suites.classic``, and Gymnasium's picture of it."""
    episodes = ClassicEpisodes(environment_id, 1, seed)
    screen = make_environment(environment_id, {"render_mode": "rgb_array"})
    screen.reset(seed=0)

    def picture() -> NDArray[np.uint8]:
        screen.unwrapped.state = episodes.state[:, 0]  # type: ignore[attr-defined]
        return np.asarray(screen.render())

    return episodes, picture


def import_own_module(environment_id: str) -> None:
    """Import what is before the colon of ``my_module:MyTask-v0``, which registers the environment.

    Raises:
        TaskError: there is no such module here, or it cannot be imported; says where to go or what is wrong in it.
    """
    module, colon, _ = environment_id.partition(":")
    if not colon:
        return
    if not {"", folder := str(Path.cwd())} & set(sys.path):
        sys.path.append(folder)  # as python -m has it; the command quarl has not
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever stands in somebody's own module
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise TaskError(
                f"--task {environment_id}: there is no module {module} in {Path.cwd()}, and none is installed. Type "
                f"the command in the folder of {module}.py, or put that folder on the path: PYTHONPATH=FOLDER quarl "
                "train …"
            ) from error
        cause = f"{message_of(error)}."
        raise TaskError(f"--task {environment_id}: the module {module} cannot be imported: {cause}") from error


def shows_images(inputs: gymnasium.Space[Any]) -> bool:
    """Return whether observations are images: uint8 with three axes. Floats with three axes are vectors that lie in a
    grid."""
    return inputs.dtype == np.uint8 and len(inputs.shape or ()) == 3


def fields_of(environment_id: str, inputs: gymnasium.Space[Any]) -> tuple[ObservationField, ...]:
    """Return the fields of an observation: those of a Dict or a Tuple by their keys, named ones, or one
    ``observation``.

    An image (height, width, channels) keeps its shape; anything else, three axes of floats too, is flattened as
    ``gymnasium.spaces.utils.flatten`` does.
    """
    if isinstance(inputs, Dict | Tuple):
        parts = inputs.spaces.items() if isinstance(inputs, Dict) else enumerate(inputs.spaces)
        keyed_fields = [(str(key), entry) for key, part in parts for entry in fields_of("", part)]
        joined = [(key if entry.name == "observation" else f"{key}.{entry.name}", entry) for key, entry in keyed_fields]
        return tuple(ObservationField(name, (entry.size,), entry.unit) for name, entry in joined)
    named = [entry.split() for entry in FIELDS.get(environment_id, "").split(", ")]
    if len(named) == (size := flatdim(inputs)) and len(named[0]) == 2:
        return tuple(ObservationField(name, (1,), unit) for name, unit in named)
    return (ObservationField("observation", inputs.shape or () if shows_images(inputs) else (size,), "1"),)


def bounds_of(inputs: gymnasium.Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest and largest value of each observation element (size,), infinite where the space states none."""
    assert isinstance(inputs, Box)
    low, high = (side.astype(np.float64).ravel() for side in (inputs.low, inputs.high))
    return np.where(low < -LARGEST_BOUND, -np.inf, low), np.where(high > LARGEST_BOUND, np.inf, high)


def environment_actions(outputs: gymnasium.Space[Any], actions: Actions) -> NDArray[Any]:
    """Return a batch of actions as an environment with this action space takes them.

    Discrete ones are numpy's integers, counted from the space's start; several at once have the space's shape and type;
    continuous ones are clipped to its bounds.
    """
    if isinstance(outputs, Discrete):
        return np.asarray(actions, np.int64) + outputs.start
    shaped = actions.reshape(len(actions), *(outputs.shape or ()))
    if isinstance(outputs, Box):
        return np.clip(shaped, outputs.low, outputs.high)
    starts = outputs.start if isinstance(outputs, MultiDiscrete) else 0
    return (shaped + starts).astype(outputs.dtype)


def head_of(outputs: gymnasium.Space[Any]) -> Head:
    """Return the head for an action space; of a Box with its bounds."""
    if isinstance(outputs, Discrete):
        start = int(outputs.start)
        return DiscreteHead(tuple(f"action_{start + index}" for index in range(int(outputs.n))), start)
    if isinstance(outputs, MultiBinary):
        return MultiDiscreteHead((2,) * flatdim(outputs))
    if isinstance(outputs, MultiDiscrete):
        starts = tuple(outputs.start.ravel().tolist())
        return MultiDiscreteHead(tuple(outputs.nvec.ravel().tolist()), starts if any(starts) else ())
    assert isinstance(outputs, Box)
    low, high = (tuple(float(value) for value in side.ravel()) for side in (outputs.low, outputs.high))
    return ContinuousHead(low, high, Squash.TANH)


def refuse_spaces(environment_id: str, inputs: gymnasium.Space[Any], outputs: gymnasium.Space[Any]) -> None:
    """Refuse an environment that no algorithm here can train on.

    Raises:
        TaskError: says which spaces it has and which are taken.
    """
    if not inputs.is_np_flattenable or not isinstance(outputs, Discrete | MultiDiscrete | MultiBinary | Box):
        raise TaskError(
            f"--task {environment_id} has the spaces {inputs} and {outputs}. Observations must be flattened to an "
            "array by gymnasium.spaces.utils.flatten; actions must be Discrete, MultiDiscrete, MultiBinary or Box."
        )
    shape, size = inputs.shape or (), flatdim(inputs)
    if shows_images(inputs):
        if shape[0] < shape[2]:
            turned = (*shape[1:], shape[0])
            raise TaskError(
                f"--task {environment_id} has images {shape} with the channels first; training requires (height, "
                "width, channels). Register it wrapped in gymnasium.wrappers.TransformObservation(environment, "
                f"lambda image: numpy.moveaxis(image, 0, -1), Box(0, 255, {turned}, numpy.uint8))."
            )
    elif size > LARGEST_VECTOR:
        raise TaskError(
            f"--task {environment_id}: a vector observation must have at most {LARGEST_VECTOR:,} numbers, got "
            f"{size:,} of {inputs}. An image must be uint8, 0 … 255, with the axes (height, width, channels)."
        )
    if not isinstance(outputs, Box):
        try:
            head_of(outputs)
        except SpecError as error:
            raise TaskError(f"--task {environment_id}: the actions {outputs} are not supported: {error}") from error
        return
    wrapped = "Register it wrapped in gymnasium.wrappers.TransformAction(environment, lambda action: "
    if outputs.dtype.kind != "f":
        raise TaskError(
            f"--task {environment_id} must have float actions, got {outputs.dtype} ({outputs}). "
            f"{wrapped}numpy.rint(action).astype(numpy.{outputs.dtype}), {format_box(outputs.low, outputs.high)})."
        )
    if max(np.abs(outputs.low).max(), np.abs(outputs.high).max()) > LARGEST_BOUND:
        low, high = np.clip((outputs.low, outputs.high), -1, 1)
        raise TaskError(
            f"--task {environment_id} must have actions bounded within ±{LARGEST_BOUND:g}, got {outputs}: a policy's "
            f"outputs are scaled to the bounds. {wrapped}action, {format_box(low, high)}), with your bounds in place "
            "of these."
        )


def format_box(low: NDArray[Any], high: NDArray[Any]) -> str:
    """Return what to type for a Box of float32."""
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return f"Box({low.flat[0]:g}, {high.flat[0]:g}, {low.shape}, numpy.float32)"
    return f"Box(numpy.float32({low.tolist()}), numpy.float32({high.tolist()}))"


def control_period(environment: Environment | gymnasium.vector.VectorEnv[Any, Any, Any], suite: Suite) -> float:
    """Seconds between two decisions: what the environment itself says, in this order.

    The scene's step (PyBullet), ``tau`` (CartPole), ``dt`` (MuJoCo, Pendulum, Acrobot), one over the frames a second
    at which it is shown (Box2D steps once a frame), else :data:`SECONDS_UNKNOWN`.
    """
    inner: Any = environment.unwrapped
    if suite is Suite.PYBULLET:
        environment.reset(seed=0)
        return float(inner.scene.dt)
    for attribute in ("tau", "dt"):
        value = getattr(inner, attribute, None)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    frames = inner.metadata.get("render_fps")
    return 1.0 / float(frames) if frames else SECONDS_UNKNOWN


def unknown_task(text: str, reason: str) -> str:
    """Return the message for a name that nothing answers to, with the names that are near it."""
    known = list_task_words() + sorted(gymnasium.registry)
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.6) or difflib.get_close_matches(
        text.lower(), known, n=3, cutoff=0.6
    )
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    return (
        f"--task {text} is neither a word of this project nor an id that Gymnasium can make ({reason.strip()}). {hint}"
        "quarl tasks shows the words; others are navigation and CartPole-v1."
    )
