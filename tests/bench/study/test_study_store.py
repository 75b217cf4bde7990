"""Sweeps as they are kept: what is written is read, and what is no sweep is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.store import StoreError
from bench.study.sweep.store import Sweep, of_bundle, read_sweep, read_sweeps, write_sweep
from policy.quantization import Scheme


def test_what_is_written_is_read(tmp_path: Path, made_sweep: Sweep) -> None:
    path = write_sweep(made_sweep, tmp_path)
    assert path.name == "sweep-cartpole-dqn-quarl.json"
    assert read_sweep(path) == made_sweep
    other = replace(made_sweep, bundle="II", scheme=Scheme.SYMMETRIC, variant="a4-i6")
    assert write_sweep(other, tmp_path).name == "sweep-II-symmetric-a4-i6.json"
    assert read_sweeps(tmp_path) == [other, made_sweep]
    assert of_bundle(read_sweeps(tmp_path), "II") == [other]
    # the last one of its kind takes the place of the one before
    write_sweep(replace(made_sweep, episodes=7), tmp_path)
    assert [sweep.episodes for sweep in read_sweeps(tmp_path)] == [100, 7]


def test_a_sweep_says_whether_the_policy_was_trained_with_quantizers(tmp_path: Path, made_sweep: Sweep) -> None:
    trained = replace(made_sweep, trained_bits=4)
    assert read_sweep(write_sweep(trained, tmp_path)) == trained
    # documents from before the field
    values = json.loads(made_sweep.to_json())
    del values["trained_bits"]
    assert Sweep.from_json(json.dumps(values), tmp_path) == made_sweep


def test_numbers_are_kept_to_six_digits_and_episodes_not_at_all(made_sweep: Sweep) -> None:
    text = replace(made_sweep, seconds=1.23456789).to_json()
    assert json.loads(text)["seconds"] == 1.23457
    assert len(text) < 8000


def test_a_width_is_found_by_name(made_sweep: Sweep) -> None:
    width = made_sweep.width("4")
    assert width is not None and width.weight_bits == 4
    assert made_sweep.width("31") is None
    assert made_sweep.presets == ("",)


def test_what_is_no_sweep_is_named(tmp_path: Path, made_sweep: Sweep) -> None:
    assert read_sweeps(tmp_path / "none") == []
    with pytest.raises(StoreError, match=r"absent.json does not exist.*\n.*python -m bench.study sweep"):
        read_sweep(tmp_path / "absent.json")
    values = json.loads(made_sweep.to_json())
    for wrong, words in [
        ("[1]", "is no stored sweep"),
        ("{", "is no stored sweep"),
        (json.dumps({**values, "format_version": 9}), "version 9"),
        (json.dumps({**values, "kind": "training"}), "'training'"),
        (json.dumps({**values, "scheme": "binary"}), "scheme 'binary' is not known"),
        (json.dumps({key: value for key, value in values.items() if key != "widths"}), "widths"),
        (json.dumps({**values, "more": 1}), "more"),
    ]:
        path = tmp_path / "sweep-wrong.json"
        path.write_text(wrong)
        with pytest.raises(StoreError, match=words):
            read_sweep(path)
