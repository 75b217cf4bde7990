"""The settings files can be read, name their source, and fit their algorithm and task."""

from pathlib import Path

import pytest

from quarl.train.algorithms.ppo import PPOSettings
from quarl.train.methods import METHODS, default_method, refuse_mismatch, settings_class
from quarl.train.runs.models import choose_network
from quarl.train.runs.presets import FOLDER, SettingsError, build, load_settings, parse_overrides, settings_path
from quarl.train.suites.make import make_task
from quarl.train.suites.names import missing_packages, resolve
from tests.refusals import refused

FILES = sorted(FOLDER.glob("*/*.json"))


EXAMPLES = {"atari": "breakout", "dm_control": "dm_control,cheetah_run"}
"""A task for each file that holds for a whole suite."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_settings_file_fits_its_algorithm_and_its_task(path: Path) -> None:
    stem, method = path.stem.rsplit("-", 1)
    assert method in METHODS
    name = resolve(EXAMPLES.get(stem, stem))
    assert settings_path(name, method) == path  # no other file takes precedence
    for policy in ("I", "II", "III"):
        found = load_settings(name.canonical, method, policy)
        assert found.source != load_settings("no such task", method, policy).source
        build(settings_class(method), found.settings)
    if missing_packages(name.suite):
        pytest.skip(f"{name.suite.value} is not installed; type make suites")
    task = make_task(name.canonical, None, found.task)
    refuse_mismatch(method, task)
    choose_network(task, None, None, False, found.network)


def test_a_task_has_one_settings_file_under_all_names(tmp_path: Path) -> None:
    names = ("halfcheetah", "HalfCheetahBulletEnv-v0", "pybullet,halfcheetah")
    assert {settings_path(resolve(name), "ddpg", tmp_path) for name in names} == {None}
    for stem in ("pybullet", "halfcheetah", "HalfCheetahBulletEnv-v0"):  # each takes precedence over the one before
        path = tmp_path / "pybullet" / f"{stem}-ddpg.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"steps": 1}')
        assert {settings_path(resolve(name), "ddpg", tmp_path) for name in names} == {path}
    (tmp_path / "dm_control").mkdir()
    (tmp_path / "dm_control" / "dm_control-walker_stand-d4pg.json").write_text('{"steps": 7}')
    assert load_settings("dm_control,walker_stand", "d4pg", "I", tmp_path).steps == 7


def test_without_a_method_the_first_with_a_settings_file_is_taken() -> None:
    assert default_method(resolve("navigation"), None) == "ppo"
    assert default_method(resolve("navigation"), "III") == "distill"
    assert default_method(resolve("navigation-depth"), None) == "distill"
    assert default_method(resolve("cartpole"), "III") == "ppo"
    assert default_method(resolve("MountainCarContinuous-v0"), None) == "ddpg"
    assert default_method(resolve("SomebodysOwn-v0"), None) == "ppo"


def test_a_policys_own_settings_win_over_the_common_ones(tmp_path: Path) -> None:
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "t-ppo.json").write_text(
        '{"steps": 1, "settings": {"epochs": 2, "discount": 0.9}, '
        '"policies": {"II": {"steps": 3, "settings": {"epochs": 5}}}}'
    )
    one, two = (load_settings("t", "ppo", policy, tmp_path) for policy in ("I", "II"))
    assert (one.steps, one.settings) == (1, {"epochs": 2, "discount": 0.9})
    assert (two.steps, two.settings) == (3, {"epochs": 5, "discount": 0.9})


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ('{"stps": 1}', "stps")])
def test_a_bad_settings_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "t-ppo.json").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings("t", "ppo", "I", tmp_path)


def test_overrides_are_json_and_checked() -> None:
    overrides = parse_overrides(["value_hidden=[8,4]", "learning_rate=1"])
    settings = build(PPOSettings, overrides)
    assert settings.value_hidden == (8, 4)
    assert settings.learning_rate == 1.0
    assert parse_overrides(["engine=numpy", 'engine="numpy"']) == {"engine": "numpy"}  # a word needs no second quotes
    with refused(SettingsError, "settings", shows=["'four'"]):
        build(PPOSettings, parse_overrides(["epochs=four"]))
    with pytest.raises(SettingsError, match="epochs"):
        build(PPOSettings, {"epochs": True})
