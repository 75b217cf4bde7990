"""Task words: what may be typed after ``--task``, which suite it means, and the one name under which it is kept.

A task has many names: ``halfcheetah``, ``pybullet,HalfCheetahBulletEnv-v0`` and ``HalfCheetahBulletEnv-v0`` are one
environment. :func:`resolve` brings them to one canonical name, so that settings files, output folders and provenance
are shared. Nothing here imports a simulator: names resolve whether or not a suite is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec

from quarl.train.suites.errors import TaskError

MAX_EPISODE_STEPS = "max_episode_steps"
"""The argument of ``gymnasium.make``, and an option of a task."""


class Suite(Enum):
    """A family of tasks; the value is what may be typed before a comma."""

    NAVIGATION = "navigation"
    CLASSIC = "classic"
    BOX2D = "box2d"
    ATARI = "atari"
    PYBULLET = "pybullet"
    MUJOCO = "mujoco"
    DM_CONTROL = "dm_control"
    GYMNASIUM = "gym"  # any other environment that Gymnasium can make
    VECTOR = "vector"  # one that steps many of itself as a batch, where it also can be made one by one


@dataclass(frozen=True)
class TaskName:
    """One task.

    Attributes:
        canonical: the name that settings, folders and provenance use.
        suite: where it comes from.
        target: its name in the suite: a Gymnasium id, ``walker_stand``, or a game's ROM such as ``ms_pacman``.
        word: the paper's word, or "" where it has none.
    """

    canonical: str
    suite: Suite
    target: str
    word: str = ""

    @property
    def file_name(self) -> str:
        """The canonical name with the signs that a file name may not have replaced by ``-``."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.canonical)

    @property
    def short_name(self) -> str:
        """The paper's word as a file name, or ``file_name``: ``cartpole``, ``cartpole_balance``."""
        return self.word or (self.target if self.suite is Suite.DM_CONTROL else self.file_name)


# The paper's words for Gymnasium environments. Its HalfCheetah, Walker2D, … are those of PyBullet (slide "Summary of
# algorithms, environments"); the MuJoCo ones have their ids, e.g. HalfCheetah-v5.
GYMNASIUM_WORDS = {
    "cartpole": (Suite.CLASSIC, "CartPole-v1"),
    "mountaincar": (Suite.CLASSIC, "MountainCar-v0"),
    "mountaincarcontinuous": (Suite.CLASSIC, "MountainCarContinuous-v0"),
    "acrobot": (Suite.CLASSIC, "Acrobot-v1"),
    "pendulum": (Suite.CLASSIC, "Pendulum-v1"),
    "bipedalwalker": (Suite.BOX2D, "BipedalWalker-v3"),
    "lunarlander": (Suite.BOX2D, "LunarLander-v3"),
    "lunarlandercontinuous": (Suite.BOX2D, "LunarLanderContinuous-v3"),
    "halfcheetah": (Suite.PYBULLET, "HalfCheetahBulletEnv-v0"),
    "walker2d": (Suite.PYBULLET, "Walker2DBulletEnv-v0"),
    "hopper": (Suite.PYBULLET, "HopperBulletEnv-v0"),
    "ant": (Suite.PYBULLET, "AntBulletEnv-v0"),
    "humanoid": (Suite.PYBULLET, "HumanoidBulletEnv-v0"),
}
# The Atari games of the slides' tables, and what the Arcade Learning Environment calls them.
ATARI_WORDS = {
    "beamrider": "beam_rider",
    "breakout": "breakout",
    "mspacman": "ms_pacman",
    "pong": "pong",
    "qbert": "qbert",
    "seaquest": "seaquest",
    "spaceinvaders": "space_invaders",
}
NAVIGATION_ID = "AirLearning/Navigation-v0"
"""The task's id in Gymnasium and in every bundle."""
NAVIGATION = "navigation"
NAVIGATION_NAME = TaskName(NAVIGATION, Suite.NAVIGATION, NAVIGATION, NAVIGATION)
NAVIGATION_DEPTH_ID = "AirLearning/NavigationDepth-v0"
"""The id of the task with a depth picture in place of the ranges."""
NAVIGATION_DEPTH = "navigation-depth"
NAVIGATION_DEPTH_NAME = TaskName(NAVIGATION_DEPTH, Suite.NAVIGATION, NAVIGATION_DEPTH, NAVIGATION_DEPTH)
ALE_ID = r"(?:ALE/(\w+)-v5|(\w+?)(?:NoFrameskip|Deterministic)-v\d)"
IDS = {
    Suite.PYBULLET: r".*BulletEnv-.*",
    Suite.CLASSIC: r"(CartPole|MountainCar|MountainCarContinuous|Acrobot|Pendulum)-v\d+",
    Suite.BOX2D: r"(BipedalWalker|BipedalWalkerHardcore|LunarLander|LunarLanderContinuous|CarRacing)-v\d+",
    Suite.MUJOCO: r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|"
    r"Reacher|Swimmer|Walker2d)-v\d+",
}
"""The Gymnasium ids that each suite registers."""


def resolve(name: str) -> TaskName:
    """Return the task that a name means, whether or not it exists or is installed.

    Args:
        name: a word (``breakout``), a suite's word and the suite's own name (``gym,CartPole-v1``, ``atari,freeway``,
            ``dm_control,cartpole_balance``, ``mujoco,HalfCheetah-v5``), or a Gymnasium id; ``vector,`` before an id
            means its own vectorised environment.
    """
    text = name.strip()
    prefix, comma, rest = (part.strip() for part in text.partition(","))
    if comma and prefix.lower() in ("gym", "gymnasium", "classic", "box2d", "mujoco", "pybullet"):
        return resolve_id(rest)
    if comma and prefix.lower() == Suite.VECTOR.value:
        return TaskName(f"vector,{rest}", Suite.VECTOR, rest)
    if comma and prefix.lower() == Suite.ATARI.value:
        return atari_name(rest)
    if match := re.fullmatch(r"dm_control[,/-](\w+?)(?:-v0)?", text.replace(", ", ",")):
        return TaskName(f"dm_control,{match.group(1)}", Suite.DM_CONTROL, match.group(1))
    return resolve_id(text)


def resolve_id(text: str) -> TaskName:
    """Return a word or a Gymnasium id; see :func:`resolve`."""
    lower = text.lower()
    if lower.rpartition(":")[2] in (NAVIGATION_NAME.canonical, NAVIGATION_ID.lower()):
        return NAVIGATION_NAME
    if lower.rpartition(":")[2] in (NAVIGATION_DEPTH_NAME.canonical, NAVIGATION_DEPTH_ID.lower()):
        return NAVIGATION_DEPTH_NAME
    if lower in GYMNASIUM_WORDS:
        suite, target = GYMNASIUM_WORDS[lower]
        return TaskName(target, suite, target, lower)
    if lower in ATARI_WORDS:
        return atari_name(lower)
    for word, (suite, target) in GYMNASIUM_WORDS.items():
        if text == target:
            return TaskName(target, suite, target, word)
    if match := re.fullmatch(ALE_ID, text):
        return atari_name(match.group(1) or match.group(2))
    suite = next((suite for suite, pattern in IDS.items() if re.fullmatch(pattern, text)), Suite.GYMNASIUM)
    return TaskName(text, suite, text)


def atari_name(text: str) -> TaskName:
    """Return the Atari game, written as a word (``mspacman``), in snake case or in camel case (``MsPacman``).

    Whatever its id says about frame skips and sticky actions, the task has the preprocessing of ``train.suites.atari``.
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    word = snake.replace("_", "")
    if word in ATARI_WORDS:
        return TaskName(word, Suite.ATARI, ATARI_WORDS[word], word)
    return TaskName(f"atari,{snake}", Suite.ATARI, snake)


def list_task_words() -> list[str]:
    """Return the words that may be typed, to list and to suggest."""
    return [NAVIGATION_NAME.canonical, NAVIGATION_DEPTH_NAME.canonical, *GYMNASIUM_WORDS, *ATARI_WORDS]


# --- what is installed -----------------------------------------------------------------------------------------------

NEEDS = {
    Suite.BOX2D: ("box2d", {"Box2D": "box2d"}),
    Suite.ATARI: ("atari", {"ale_py": "ale-py"}),
    Suite.PYBULLET: ("pybullet", {"pybullet": "pybullet", "pybullet_envs_gymnasium": "pybullet-envs-gymnasium"}),
    Suite.MUJOCO: ("mujoco", {"mujoco": "mujoco"}),
    Suite.DM_CONTROL: ("dm-control", {"dm_control": "dm-control", "mujoco": "mujoco"}),
}
"""Suite to its extra in pyproject.toml and, by the module it imports, the packages it needs."""


def missing_packages(suite: Suite) -> list[str]:
    """Return the packages of a suite that are not installed."""
    _, modules = NEEDS.get(suite, ("", {}))
    return [package for module, package in modules.items() if not is_importable(module)]


def is_importable(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require_installed(name: TaskName) -> None:
    """Refuse a task whose suite is not installed.

    Raises:
        TaskError: names what is missing and the command that installs it.
    """
    if missing := missing_packages(name.suite):
        extra, _ = NEEDS[name.suite]
        raise TaskError(
            f"--task {name.word or name.canonical} requires {' and '.join(missing)}, not installed here. Type: make "
            "suites   (all suites), or only this one: .venv/bin/pip install -c requirements-suites.txt -e "
            f'".[{extra}]"   (outside a checkout: pip install "quarl[{extra}]")'
        )
