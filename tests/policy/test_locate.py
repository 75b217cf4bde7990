"""Which bundle a name means: the user's own, else a copy of the repository's."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import add_artifact, write_bundle
from quarl.policy.errors import BundleError
from quarl.policy.locate import similar, working_bundle
from quarl.policy.spec import (
    Normaliser,
)
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, SPEC, WEIGHTS, entry_of
from tests.refusals import refused


def test_a_name_finds_the_users_bundle_then_the_zoos(tmp_path: Path) -> None:
    zoo, artifacts = tmp_path / "zoo", tmp_path / "artifacts"
    write_bundle(zoo / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    first = working_bundle("T", artifacts, zoo)
    assert (first.path, first.manifest.origin) == (artifacts / "T", "zoo")
    add_artifact(first, entry_of(b"graph"), b"graph", EXPECTED)
    assert working_bundle("T", artifacts, zoo).manifest.artifacts, "the working copy is kept"

    newer = {**WEIGHTS, "head/bias": WEIGHTS["head/bias"] + 1}
    write_bundle(zoo / "T", SPEC, newer, CALIBRATION, GOLDEN)
    assert not working_bundle("T", artifacts, zoo).manifest.artifacts, "a copy of an older zoo is made again"

    add_artifact(working_bundle("T", artifacts, zoo), entry_of(b"graph"), b"graph", EXPECTED)
    write_bundle(zoo / "T", replace(SPEC, normaliser=Normaliser((1.0,) * 3, (1.0,) * 3)), newer, CALIBRATION, GOLDEN)
    renewed = working_bundle("T", artifacts, zoo)
    assert renewed.spec.normaliser.mean == (1.0,) * 3 and not renewed.manifest.artifacts, "also when the weights stay"

    own = {**WEIGHTS, "head/bias": WEIGHTS["head/bias"] - 1}
    write_bundle(artifacts / "T", SPEC, own, CALIBRATION, GOLDEN)
    np.testing.assert_array_equal(working_bundle("T", artifacts, zoo).weights()["head/bias"], own["head/bias"])
    with refused(BundleError, "unknown_policy", shows=["'U'", "--output-path", "artifacts/U"]):
        working_bundle("U", artifacts, zoo)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("i", ["I"]), ("iii", ["III"]), ("pong_ppo", ["pong-ppo"]), ("cartpole-dqm", ["cartpole-dqn"]), ("IV", [])],
)
def test_a_mistyped_name_is_answered_by_the_one_that_is_meant(typed: str, meant: list[str]) -> None:
    assert similar(typed, ["I", "II", "III", "cartpole-dqn", "pong-ppo"]) == meant


def test_the_error_names_what_was_meant_and_not_the_long_list(tmp_path: Path) -> None:
    for name in ("T", "other"):
        write_bundle(tmp_path / "zoo" / name, SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    with pytest.raises(BundleError, match=r"no policy 't'; did you mean T\?") as caught:
        working_bundle("t", tmp_path / "artifacts", tmp_path / "zoo")
    assert "other" not in str(caught.value)


def test_which_bundle_is_meant_is_said_once_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zoo, artifacts = tmp_path / "zoo", tmp_path / "artifacts"
    write_bundle(zoo / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    for _ in range(2):
        working_bundle("T", artifacts, zoo)
    assert capsys.readouterr() == ("", f"Policy {SPEC.name}: artifacts/T, a copy of zoo/T.\n")

    write_bundle(artifacts / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    os.utime(artifacts / "T" / "weights.safetensors", (1e9, 1e9))  # 2001-09-09 01:46:40 UTC
    working_bundle("T", artifacts, zoo)
    printed = capsys.readouterr().err
    assert re.fullmatch(
        rf"Policy {SPEC.name}: artifacts/T, trained here 2001-09-0[89] \(zoo/T is not used; .*\n", printed
    )

    # As runs that were interrupted were written over their policy once.
    provenance = {"ended": "interrupted", "steps": 512}
    write_bundle(tmp_path / "U", replace(SPEC, provenance=provenance), WEIGHTS, CALIBRATION, GOLDEN)
    working_bundle("./U", artifacts, zoo)
    assert "by a run that was interrupted at step 512" in capsys.readouterr().err
