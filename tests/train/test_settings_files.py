"""The settings files can be read, name their source, and fit their algorithm and task."""

from pathlib import Path

import pytest

from train.__main__ import METHODS, settings_class
from train.ppo import PPOSettings
from train.presets import FOLDER, SettingsError, build, load_settings, parse_overrides
from train.tasks import make_task

FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_settings_file_fits_its_algorithm_and_its_task(path: Path) -> None:
    task, method = path.stem.rsplit("-", 1)
    assert method in METHODS
    for policy in ("I", "II", "III"):
        found = load_settings(task, method, policy)
        assert found.source != load_settings("no such task", method, policy).source
        build(settings_class(method), found.settings)
        make_task(task, None, found.task)


def test_a_policys_own_settings_win_over_the_common_ones(tmp_path: Path) -> None:
    (tmp_path / "t-ppo.json").write_text(
        '{"steps": 1, "settings": {"epochs": 2, "discount": 0.9}, '
        '"policies": {"II": {"steps": 3, "settings": {"epochs": 5}}}}'
    )
    one, two = (load_settings("t", "ppo", policy, tmp_path) for policy in ("I", "II"))
    assert (one.steps, one.settings) == (1, {"epochs": 2, "discount": 0.9})
    assert (two.steps, two.settings) == (3, {"epochs": 5, "discount": 0.9})


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ('{"stps": 1}', "stps")])
def test_a_bad_settings_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t-ppo.json").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings("t", "ppo", "I", tmp_path)


def test_overrides_are_json_and_checked() -> None:
    overrides = parse_overrides(["value_hidden=[8,4]", "learning_rate=1"])
    settings = build(PPOSettings, overrides)
    assert settings.value_hidden == (8, 4)
    assert settings.learning_rate == 1.0
    with pytest.raises(SettingsError, match="epochs is True; it takes a int"):
        build(PPOSettings, {"epochs": True})
