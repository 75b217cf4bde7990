"""Task words: every name of a task leads to one canonical name, whether or not its suite is installed."""

import re

import pytest

from quarl.train.suites.cells import load_cells
from quarl.train.suites.names import ATARI_WORDS, GYMNASIUM_WORDS, Suite, list_task_words, resolve


@pytest.mark.parametrize(("names", "canonical", "suite", "file_name", "short_name"), [
    (["navigation", "Navigation"], "navigation", Suite.NAVIGATION, "navigation", "navigation"),
    (["AirLearning/NavigationDepth-v0"], "navigation-depth", Suite.NAVIGATION, *["navigation-depth"] * 2),
    (["cartpole", "CartPole-v1", "gym,CartPole-v1", "gym,cartpole", "CARTPOLE", "gymnasium, CartPole-v1"],
     "CartPole-v1", Suite.CLASSIC, "CartPole-v1", "cartpole"),
    (["halfcheetah", "HalfCheetahBulletEnv-v0", "pybullet,halfcheetah", "pybullet,HalfCheetahBulletEnv-v0"],
     "HalfCheetahBulletEnv-v0", Suite.PYBULLET, "HalfCheetahBulletEnv-v0", "halfcheetah"),
    (["HalfCheetah-v5", "mujoco,HalfCheetah-v5"], "HalfCheetah-v5", Suite.MUJOCO, *["HalfCheetah-v5"] * 2),
    (["bipedalwalker", "BipedalWalker-v3"], "BipedalWalker-v3", Suite.BOX2D, "BipedalWalker-v3", "bipedalwalker"),
    (["mspacman", "atari,MsPacman", "atari,ms_pacman", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"],
     "mspacman", Suite.ATARI, "mspacman", "mspacman"),
    (["atari,freeway", "ALE/Freeway-v5"], "atari,freeway", Suite.ATARI, "atari-freeway", "atari-freeway"),
    (["dm_control,walker_stand", "dm_control/walker_stand-v0", "dm_control, walker_stand"],
     "dm_control,walker_stand", Suite.DM_CONTROL, "dm_control-walker_stand", "walker_stand"),
    (["Somebody/Own-v3"], "Somebody/Own-v3", Suite.GYMNASIUM, "Somebody-Own-v3", "Somebody-Own-v3"),
])  # fmt: skip
def test_names_of_a_task(names: list[str], canonical: str, suite: Suite, file_name: str, short_name: str) -> None:
    found = {resolve(name) for name in names}
    assert len(found) == 1
    name = found.pop()
    assert (name.canonical, name.suite, name.file_name, name.short_name) == (canonical, suite, file_name, short_name)
    assert resolve(name.canonical) == name  # canonical names stay
    assert resolve(name.file_name).canonical in (canonical, file_name)


def test_words_and_their_files_are_all_different() -> None:
    words = list_task_words()
    assert len(words) == len(set(words)) == 2 + len(GYMNASIUM_WORDS) + len(ATARI_WORDS)
    for kind in ("canonical", "file_name", "short_name"):
        assert len({getattr(resolve(word), kind) for word in words}) == len(words)
    assert resolve("halfcheetah") != resolve("HalfCheetah-v5")
    assert resolve("walker2d").target == "Walker2DBulletEnv-v0"
    assert resolve("spaceinvaders").target == "space_invaders"


def test_cells_have_known_words_and_names_that_are_folders() -> None:
    cells = load_cells()
    assert len({cell.bundle_name for cell in cells}) == len(cells)
    for cell in cells:
        assert cell.name.suite is not Suite.GYMNASIUM, cell.task
        assert re.fullmatch(r"[a-z0-9_]+-(dqn|ppo|a2c|ddpg|d4pg|td3|sac)", cell.bundle_name)
    names = {cell.bundle_name for cell in cells}
    assert {"cartpole-dqn", "mountaincarcontinuous-ddpg", "pong-ppo", "cartpole_balance-d4pg"} <= names
