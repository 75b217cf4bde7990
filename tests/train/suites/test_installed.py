"""The base install needs no suite: names, lists and classic control work without, and a missing one is named."""

import pytest

from tests.without_suites import BLOCKED, run


def test_classic_control_and_the_list_need_no_suite() -> None:
    done = run(
        "import numpy as np\n"
        "import quarl.train.list\n"
        "from quarl.train.suites.make import make_task\n"
        "for word in ('navigation', 'cartpole', 'mountaincar', 'acrobot', 'pendulum', 'mountaincarcontinuous'):\n"
        "    task = make_task(word)\n"
        "    task.make(2, 0).reset(np.ones(2, bool), np.arange(2))\n"
        "assert quarl.train.list.main(['--json']) == 0\n"
        f"assert not set(sys.modules) & set({BLOCKED!r})\n"
    )
    assert done.returncode == 0, done.stderr
    assert '"installed": false' in done.stdout


@pytest.mark.parametrize(("task", "package", "extra"), [
    ("bipedalwalker", "box2d", "box2d"),
    ("breakout", "ale-py", "atari"),
    ("halfcheetah", "pybullet and pybullet-envs-gymnasium", "pybullet"),
    ("HalfCheetah-v5", "mujoco", "mujoco"),
    ("dm_control,walker_stand", "dm-control", "dm-control"),
])  # fmt: skip
def test_a_missing_suite_is_named_with_its_command(task: str, package: str, extra: str, tmp_path: object) -> None:
    output = f"{tmp_path}/x"
    done = run(
        "from quarl.train.__main__ import main\n"
        f"sys.exit(main(['--task', {task!r}, '--output-path', {output!r}, '--quiet']))"
    )
    assert done.returncode == 2
    assert f"--task {task} requires {package}" in done.stderr
    assert "make suites" in done.stderr
    assert f'".[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_help_of_a_task_whose_suite_is_missing_still_shows_its_settings() -> None:
    done = run(
        "from quarl.train.__main__ import main\nsys.exit(main(['--task', 'pong', '--method', 'ppo', '--defaults']))"
    )
    assert done.returncode == 0, done.stderr
    assert "make suites" in done.stdout
    assert "clip_range" in done.stdout
