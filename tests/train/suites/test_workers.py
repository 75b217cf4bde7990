"""``--workers``: environments in several processes, to the same bits as in one; processes that end with their run."""

import importlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quarl.train import __main__ as command
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import EnvironmentFaultError, TaskError
from quarl.train.suites.make import make_episodes, make_task
from quarl.train.suites.workers import InProcesses, WorkerError
from tests.device_deploy.devices import eventually, runs
from tests.train.small_runs import assert_same_weights, curve, train
from tests.train.suites.test_suites import installed

MODULE = """
import os
import threading
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box

FOLDER = Path(__file__).parent / "pids"


class Noisy(gymnasium.Env):
    observation_space, action_space = Box(-9.0, 9.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / str(os.getpid())).touch()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.limit = 0, int(self.np_random.integers(3, 12))
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        if self.fails_at == -self.time:
            (FOLDER.parent / "hangs").touch()
            threading.Event().wait()
        if self.time == self.fails_at:
            raise ValueError("the arm left its joint")
        ended = bool(self.np_random.random() < 0.05)
        return self.seen(), float(action.sum() + self.np_random.normal()), ended, self.time >= self.limit, {}

    def seen(self):
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)


gymnasium.register("Noisy-v0", Noisy)
gymnasium.register("Failing-v0", Noisy, kwargs={"fails_at": 2})
"""
NAME, MINUTE_S = "stepped_by_workers_in_a_test", 60.0
TASK = f"{NAME}:Noisy-v0"
PPO = ["--method", "ppo", "--set", "environments=6", "--set", "rollout_steps=16", "--set", "minibatch=48"]
SMALL = ["--task", TASK, "--policy", "I", "--quiet", *PPO, "--steps", "384"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which every process that has an environment leaves its number."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    return tmp_path / "pids"


def others(folder: Path) -> set[int]:
    """Processes that had an environment, but for this one."""
    return {int(each.name) for each in folder.glob("*")} - {os.getpid()}


@pytest.mark.parametrize("workers", [2, 9])
@pytest.mark.parametrize("task", [TASK, "Pendulum-v1", "BipedalWalker-v3"])
def test_episodes_in_processes_are_those_of_one_process_to_the_last_bit(task: str, workers: int, module: Path) -> None:
    here, there = make_task(installed(task)), make_task(task, workers=workers)
    generator = np.random.default_rng(0)
    one, other = (EpisodeStream(each.make(5, 3)) for each in (here, there))
    for step in range(220):
        if step == 100:  # as a run that is resumed, with another number of processes
            other = EpisodeStream(make_task(task, workers=3).make(5, 3))
            other.restore({name: array.copy() for name, array in one.state().items()})
        np.testing.assert_array_equal(one.observation, other.observation)
        actions = generator.uniform(-1.0, 1.0, (5, here.outputs)).astype(np.float32)
        mine, its = one.step(actions), other.step(actions)
        for name, value in vars(mine).items():
            np.testing.assert_array_equal(value, getattr(its, name), err_msg=f"{name} of step {step}")
            assert value is None or value.dtype == getattr(its, name).dtype


def test_judging_in_processes_gives_the_same_numbers(module: Path) -> None:
    tilted = lambda observation: observation[:, :2]  # noqa: E731
    found = [make_task(TASK, workers=workers).evaluate(tilted, 40, 5, "") for workers in (1, 2)]
    assert found[0] == found[1]
    assert eventually(lambda: not any(map(runs, others(module))), MINUTE_S) and others(module)


def test_a_run_in_processes_is_the_same_run_and_leaves_none(module: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "one", *SMALL) == 0
    assert not others(module)
    assert train(tmp_path / "two", *SMALL, "--workers", "2", "--minutes", "0") == 0
    assert train(tmp_path / "two", *SMALL, "--workers", "3", "--resume") == 0
    assert '"workers"' not in (tmp_path / "two" / "policy.json").read_text()
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    assert len(others(module)) >= 5
    assert eventually(lambda: not any(map(runs, others(module))), MINUTE_S)


def test_an_error_of_an_environment_is_that_of_one_process(module: Path) -> None:
    stream = EpisodeStream(make_task(f"{NAME}:Failing-v0", workers=2).make(4, 0))
    actions = np.zeros((4, 2), np.float32)
    stream.step(actions)
    with pytest.raises(EnvironmentFaultError, match="ValueError: the arm left its joint") as caught:
        stream.step(actions)
    assert (caught.value.values["episode"], caught.value.values["step"]) == (0, 2) and f"{NAME}.py" in str(caught.value)
    assert eventually(lambda: not any(map(runs, others(module))), MINUTE_S)


def test_environments_that_cannot_be_made_there_say_so(module: Path) -> None:
    with pytest.raises(WorkerError, match="fails_never"):
        InProcesses(partial(make_episodes, TASK, None, {"fails_never": True}), 2, 4, 0)
    assert eventually(lambda: not any(map(runs, others(module))), MINUTE_S)


def test_a_process_that_was_killed_is_told(module: Path) -> None:
    episodes = make_task(TASK, workers=2).make(4, 0)
    stream = EpisodeStream(episodes)
    for number in others(module):
        os.kill(number, signal.SIGKILL)
    with pytest.raises(WorkerError, match="same command without"):
        stream.step(np.zeros((4, 2), np.float32))


def test_no_process_outlives_a_run_that_is_killed(module: Path) -> None:
    folder = module.parent
    words = [*SMALL[:-1], "100000000", "--workers", "2", "--evaluate-every", "1000000000", "--output-path", "I"]
    run = subprocess.Popen(
        [sys.executable, "-m", "quarl.train", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    checkpoint = folder / ".training" / "I"
    assert eventually(lambda: checkpoint.exists() or run.poll() is not None, MINUTE_S)  # with the curve's first row
    started = others(module) - {run.pid}
    assert len(started) == 2 and all(map(runs, started))
    os.killpg(run.pid, signal.SIGKILL)
    _, printed = run.communicate(timeout=100)
    assert run.returncode == -signal.SIGKILL, printed
    assert eventually(lambda: not any(map(runs, others(module) - {run.pid})), MINUTE_S)


@pytest.mark.slow
def test_no_process_outlives_a_killed_run_with_a_hung_environment(module: Path) -> None:
    script = (
        "import numpy as np\n"
        "from quarl.train.suites.episodes import EpisodeStream\n"
        "from quarl.train.suites.make import make_task\n"
        f"stream = EpisodeStream(make_task({TASK!r}, None, {{'fails_at': -1}}, 2).make(4, 0))\n"
        "stream.step(np.zeros((4, 2), np.float32))"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script], cwd=module.parent, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert eventually(lambda: (module.parent / "hangs").exists() and len(others(module)) == 3, MINUTE_S)
    run.kill()
    run.wait()
    assert eventually(lambda: not any(map(runs, others(module))), MINUTE_S)


def test_where_processes_mean_nothing(module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--task", TASK, "--workers", "0"], "--workers"),
        (["--task", "navigation", "--workers", "2"], "stepped as one batch"),
    ):
        assert command.main([*words, "--output-path", str(tmp_path / "I")]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(TaskError, match="neither a word"):
        make_task("NoSuchTask-v0", workers=2)
