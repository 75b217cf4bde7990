"""Tasks of MultiDiscrete, MultiBinary and Discrete(start): heads, and the actions that environments are given."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from quarl.convert.__main__ import main as convert
from quarl.policy.bundle import Bundle
from quarl.policy.errors import SpecError
from quarl.policy.spec import DiscreteHead, Head, MultiDiscreteHead
from quarl.train import __main__ as command
from quarl.train import evaluate
from quarl.train.methods import METHODS, refuse_mismatch
from quarl.train.suites.errors import TaskError
from quarl.train.suites.gymnasium_task import environment_actions, head_of, refuse_spaces
from quarl.train.suites.make import make_task
from tests.refusals import refused

MODULE = "tests.train.suites.several_choices"
HEADS: list[tuple[gymnasium.Space, Head]] = [
    (MultiDiscrete([3, 2, 4]), MultiDiscreteHead((3, 2, 4))),
    (MultiDiscrete(np.array([[3, 2], [2, 4]])), MultiDiscreteHead((3, 2, 2, 4))),
    (MultiDiscrete([3, 2], start=[5, 0]), MultiDiscreteHead((3, 2), (5, 0))),
    (MultiBinary(3), MultiDiscreteHead((2, 2, 2))),
    (MultiBinary([2, 2]), MultiDiscreteHead((2, 2, 2, 2))),
    (Discrete(3, start=1), DiscreteHead(("action_1", "action_2", "action_3"), 1)),
    (Discrete(2), DiscreteHead(("action_0", "action_1"))),
]


@pytest.mark.parametrize(("space", "head"), HEADS, ids=[str(space) for space, _ in HEADS])
def test_the_environment_is_given_actions_of_its_space(space: gymnasium.Space, head: Head) -> None:
    refuse_spaces("It-v0", Box(0, 1, (2,)), space)
    assert head_of(space) == head
    choices = np.zeros((2, *head.action_shape), np.int64)
    choices[1] = 1
    first, second = environment_actions(space, choices)
    assert space.contains(first) and space.contains(second)
    assert (np.asarray(second) - first == 1).all()


def test_a_choice_of_one_is_refused() -> None:
    with pytest.raises(TaskError, match="at least 2 choices"):
        refuse_spaces("It-v0", Box(0, 1, (2,)), MultiDiscrete([3, 1]))


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("ppo", "recurrent_ppo", "a2c")])
def test_other_methods_name_those_that_take_several_choices(method: str) -> None:
    with refused(TaskError, "task", shows=["--method", "recurrent_ppo"]):
        refuse_mismatch(method, make_task(f"{MODULE}:Switches-v0"))


@pytest.mark.parametrize("name", ["Dials", "Switches", "FromOne", "FromFive"])
def test_a_batch_made_by_its_own_function_is_stepped_alike(name: str) -> None:
    episodes = make_task(f"vector,{MODULE}:{name}Batch-v0").make(3, 0)
    seen = episodes.reset(np.ones(3, np.bool_), np.arange(3))
    head = make_task(f"{MODULE}:{name}-v0").head
    shown = np.stack([seen[:, part].argmax(axis=1) for part in head.parts], axis=1)  # type: ignore[union-attr]
    assert (episodes.step(shown.reshape(3, *head.action_shape)).reward == 1.0).all()


WORDS = ["--model", "16", "--quiet", "--set", "environments=8", "--set", "rollout_steps=64"]
SMALL = [*WORDS, "--set", "minibatch=128", "--set", "engine=numpy", "--set", "learning_rate=1e-2", "--steps", "8192"]
SMALL += ["--final-episodes", "20"]
AWARE = ["--quantization-method", "quantization-aware", "--precision", "8"]


@pytest.mark.parametrize(("name", "options"), [("Dials", []), ("FromOne", AWARE)])
def test_training_to_int8(name: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = f"{MODULE}:{name}-v0"
    folder = str(tmp_path / "made")
    assert command.main(["--task", task, "--method", "ppo", *SMALL, *options, "--output-path", folder]) == 0
    bundle = Bundle.load(folder)
    assert bundle.spec.head == make_task(task).head
    assert bundle.golden().actions.shape[1:] == bundle.spec.head.action_shape
    assert convert(["--policy", folder, "--bits", "8", "--format", "tflite"]) == 0
    capsys.readouterr()
    assert evaluate.main(["--input-path", folder, "--precision", "int8", "--compare", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert min(row["mean_return"] for row in said["results"]) > 14  # of 16; drawn at random it is 0.7 or 5.3
    for other in (MultiDiscreteHead((3, 2, 4), (0, 1, 0)), DiscreteHead(("action_1", "action_2", "action_3"))):
        with pytest.raises(SpecError, match="head"):
            evaluate.check_task(bundle.spec, replace(make_task(task), head=other))
