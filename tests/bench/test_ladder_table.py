"""``quarl bench ladder``: a line for each policy, of the ladder in its bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.bench import ladder
from quarl.bench.report import store
from quarl.policy.bundle import Bundle
from quarl.policy.ladder import Ladder, Loss, Prefer, Rung
from quarl.policy.reading import WEIGHTS_FILE
from quarl.policy.spec import ArtifactFormat, Precision


def test_a_line_for_each_policy(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = balancing(tmp_path / "pole")
    digest, chosen, fresh = (
        bundle.manifest.files[WEIGHTS_FILE].sha256,
        Loss(0.2, -0.4, 0.8, 400),
        Loss(0.3, 0.1, 0.5, 400),
    )
    others = (Precision.INT4, Precision.W4, Precision.W8, Precision.DYNAMIC)
    Ladder(digest, Precision.FP32, "CartPole-v1", "", 7, 1.0, Prefer.SIZE, (
        *(Rung(each, 0.5, {ArtifactFormat.NATIVE: 5000}, Loss(50.0, 40.0, 60.0, 50)) for each in others),
        Rung(Precision.INT8, 0.9, {ArtifactFormat.NATIVE: 9000}, Loss(0.9, -1.0, 2.8, 800)),
        Rung(Precision.FP16, 0.99, {ArtifactFormat.NATIVE: 12000}, chosen, fresh),
        Rung(Precision.FP32, 1.0, {ArtifactFormat.NATIVE: 20000}),
    )).write(bundle.path)  # fmt: skip
    assert ladder.main(["--policy", str(bundle.path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = ladder.ladder_table(answer).rows
    assert row == (
        bundle.spec.name, "CartPole-v1", "fp16", "12.0", "20.0", "99.0", "0.30 [0.10, 0.50]",
        "90.0", "0.90 [-1.00, 2.80]*",
    )  # fmt: skip
    other = {**answer["policies"][0], "policy": "another"}
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    store.answer_file(ladder.LADDER).write_text(json.dumps({**answer, "policies": [other]}))
    assert ladder.main(["--policy", str(bundle.path), "--keep"]) == 0
    both = store.read_answer(store.answer_file(ladder.LADDER), "")["policies"]
    assert [each["policy"] for each in both] == ["another", bundle.spec.name]
