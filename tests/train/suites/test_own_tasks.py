"""Tasks of one's own: ``--task my_module:MyTask-v0``, and observations of every kind, which are learned or refused."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten

from quarl.convert.__main__ import main as convert
from quarl.policy.bundle import Bundle
from quarl.train import __main__ as command
from quarl.train import evaluate
from quarl.train.suites.make import make_task
from tests.train.small_runs import train

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Seen(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (3,), np.float32), Discrete(2)
    opened = closed = 0

    def __init__(self, box=None):
        self.observation_space = self.observation_space if box is None else box
        Seen.opened += 1

    def close(self):
        Seen.closed += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        return self.seen(), float(action), False, self.time >= 8, {}

    def seen(self):
        box = self.observation_space
        return self.np_random.uniform(box.low, box.high).astype(box.dtype)


def broken():
    raise RuntimeError("no simulator at port 4")


pictures = dict(low=0, high=255, dtype=np.uint8)
gymnasium.register("Small-v0", Seen)
gymnasium.register("Grid-v0", Seen, kwargs={"box": Box(0.0, 1.0, (3, 4, 2), np.float32)})
gymnasium.register("FloatPicture-v0", Seen, kwargs={"box": Box(0.0, 1.0, (84, 84, 3), np.float32)})
gymnasium.register("Colours-v0", Seen, kwargs={"box": Box(shape=(36, 36, 3), **pictures)})
gymnasium.register("ChannelsFirst-v0", Seen, kwargs={"box": Box(shape=(4, 84, 84), **pictures)})
gymnasium.register("Flat-v0", Seen, kwargs={"box": Box(shape=(84, 84), **pictures)})
gymnasium.register("Broken-v0", broken)
"""
PPO = ["--set", "environments=8", "--set", "rollout_steps=16", "--set", "minibatch=64", "--steps", "128"]
DQN = ["--method", "dqn", "--set", "environments=8", "--set", "minibatch=8", "--set", "learning_starts=128"]
SMALL_DQN = [*DQN, "--set", "replay_capacity=512", "--set", "updates=1", "--steps", "256"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_tasks_of_a_test.py").write_text(MODULE)
    (tmp_path / "wrong_in_a_test.py").write_text("import numpy\n\nnumpy.nothing_of_that_name()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return "own_tasks_of_a_test"


def test_environments_that_were_judged_in_are_closed(module: str) -> None:
    task, seen = make_task(f"{module}:Small-v0"), importlib.import_module(module).Seen
    assert seen.opened == seen.closed  # the one that was asked for its spaces
    for _ in range(2):
        task.evaluate(lambda observation: np.zeros(len(observation), np.int64), 5, 0, "")
    assert seen.opened == seen.closed >= 10


@pytest.mark.slow
def test_an_own_task_is_trained_and_judged_in_its_own_folder(module: str, tmp_path: Path) -> None:
    words = ["-m", "train", "--task", f"{module}:Small-v0", "--output-path", "here/mine", "--quiet", *PPO]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spec = Bundle.load(tmp_path / "here" / "mine").spec
    assert (spec.name, spec.provenance["task"], spec.environment.id) == ("mine", *[f"{module}:Small-v0"] * 2)
    report = tmp_path / "report.json"
    options = ["--input-path", str(tmp_path / "here" / "mine"), "--episodes", "2", "--output", str(report)]
    assert evaluate.main(options) == 0
    assert json.loads(report.read_text())["results"][0]["mean_length"] == 8


@pytest.mark.parametrize(
    ("task", "options", "shape"),
    [("Grid-v0", PPO, (24,)), ("Colours-v0", PPO, (36, 36, 3)), ("Colours-v0", SMALL_DQN, (36, 36, 3))],
    ids=["a small grid of floats is a vector", "coloured pictures with PPO", "coloured pictures with DQN"],
)
def test_what_is_learned(task: str, options: list[str], shape: tuple[int, ...], module: str, tmp_path: Path) -> None:
    assert train(tmp_path / "I", "--task", f"{module}:{task}", "--quiet", *options) == 0
    assert Bundle.load(tmp_path / "I").spec.observation[0].shape == shape


@pytest.mark.parametrize(("task", "words"), [
    ("own_tasks_of_a_test:FloatPicture-v0", ["(84, 84, 3), float32", "21,168", "uint8", "(height, width, channels)"]),
    ("own_tasks_of_a_test:ChannelsFirst-v0", ["(4, 84, 84)", "channels first", "Box(0, 255, (84, 84, 4)"]),
    ("own_tasks_of_a_test:Flat-v0", ["(84, 84), uint8", "(height, width, channels)"]),
    ("own_tasks_of_a_test:Broken-v0", ["RuntimeError: no simulator at port 4", "own_tasks_of_a_test.py, line"]),
    ("own_tasks_of_a_test:Absent-v0", ["Absent"]),
    ("no_such_module:Any-v0", ["no module no_such_module in", "PYTHONPATH="]),
    ("wrong_in_a_test:Any-v0", ["AttributeError", "nothing_of_that_name", "wrong_in_a_test.py, line 3"]),
])  # fmt: skip
@pytest.mark.parametrize("method", ["ppo", "dqn"])
def test_what_cannot_be_learned_is_refused_in_one_message(
    task: str, words: list[str], method: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--task", task, "--method", method, "--output-path", str(tmp_path / "out" / "I")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: --task ") and printed.count("\n") == 1
    for word in words:
        assert word in printed
    assert not (tmp_path / "out").exists()


def test_the_case_studys_task_by_its_gymnasium_id(tmp_path: Path) -> None:
    for name in ("AirLearning/Navigation-v0", "quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0"):
        assert make_task(name).name == "navigation"
    report = tmp_path / "report.json"
    words = ["--task", "AirLearning/Navigation-v0", "--input-path", "zoo/I", "--episodes", "2", "--preset", "shipped"]
    assert evaluate.main([*words, "--output", str(report)]) == 0
    assert json.loads(report.read_text())["task"] == "navigation"
    assert make_task("AirLearning/NavigationContinuous-v0").outputs == 3
    for name in ("AirLearning/NavigationDepth-v0", "quarl.airlearning_envs.gym_env:AirLearning/NavigationDepth-v0"):
        assert make_task(name).name == "navigation-depth"


def test_gymnasium_makes_it_by_its_full_name_without_an_import() -> None:
    script = (
        "import gymnasium\n"
        "environment = gymnasium.make('quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0')\n"
        "print(environment.reset(seed=1)[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(32,)"
    named = gymnasium.make("quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0")
    assert named.observation_space.dtype == np.float32


NESTED = "tests.train.suites.faulty_environments:Nested"


def test_all_spaces_are_flattened_into_named_fields(tmp_path: Path) -> None:
    task = make_task(f"{NESTED}Limited-v0")
    sizes = {"arm.angle": 2, "arm.grip": 3, "bumpers": 2, "gears": 5, "pair.0": 2, "pair.1": 2}
    assert {field.name: field.size for field in task.observation} == sizes
    environment = gymnasium.make(f"{NESTED}Limited-v0", disable_env_checker=True)
    episodes = task.make(1, 0)
    seen = episodes.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))
    environment.reset()
    for action in (0, 1, 1):
        given = environment.step(action)[0]
        seen = episodes.step(np.array([action])).observation
        wanted = flatten(environment.observation_space, given)
        assert isinstance(wanted, np.ndarray)
        np.testing.assert_array_equal(seen[0], wanted.astype(np.float32))
    assert task.bounds is not None and task.bounds[0].tolist() == [-10.0] * 2 + [0.0] * 14
    batch = make_task(f"vector,{NESTED}Batch-v0").make(3, 0)
    assert batch.reset(np.ones(3, np.bool_), np.arange(3)).shape == (3, 16)


def test_dict_observations_are_trained_converted_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "I", "--quiet", "--method", "ppo", "--set", "environments=8", "--set", "rollout_steps=64"]
    words += ["--set", "minibatch=128", "--set", "engine=numpy", "--steps", "4096", "--output-path", f"{tmp_path}/n"]
    assert command.main(["--task", f"{NESTED}Limited-v0", *words]) == 0
    assert "Constant throughout training" in capsys.readouterr().err  # bumpers, gears and the tuple's box
    assert [field.name for field in Bundle.load(tmp_path / "n").spec.observation][:2] == ["arm.angle", "arm.grip"]
    assert convert(["--policy", f"{tmp_path}/n", "--bits", "8", "--format", "tflite"]) == 0
    capsys.readouterr()
    assert evaluate.main(["--input-path", f"{tmp_path}/n", "--precision", "int8", "--compare", "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["minus_float"]
    assert abs(change["mean_return"]) < 0.5
