"""An import whose int8 loses the return says so, and which bits keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quarl.convert.importers import importing
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.returns import advise_bits
from quarl.policy.simulate import quantize_network
from tests.convert.conftest import Capture, Patch

POLICY = Path(__file__).parent / "files" / "sb3" / "ppo_cartpole" / "policy.zip"


def row(low: float, high: float) -> dict[str, Any]:
    return {"minus_original": (low + high) / 2, "minus_original_interval": (low, high)}


def test_the_fewest_bits_that_keep_the_return_are_advised() -> None:
    assert advise_bits({}) == 8
    assert advise_bits({"int8": row(-3.0, 1.0)}) == 8
    assert advise_bits({"int8": row(-9.0, -1.0), "fp16": row(-1.0, 1.0)}) == 16
    assert advise_bits({"int8": row(-9.0, -1.0), "fp16": row(-8.0, -2.0)}) == 32
    assert advise_bits({"int8": {"minus_original": -5.0, "minus_original_interval": None}}) == 8, "nothing is known"


def test_an_import_with_poor_int8_recommends_another_precision(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    def other(spec: Any, weights: Any, rows: Any) -> Any:  # integers that decide the contrary
        return quantize_network(spec, {**weights, "head/kernel": -weights["head/kernel"]}, rows)

    words = [str(POLICY), "--task", "CartPole-v1", "--name", "pole", "--episodes", "10"]
    monkeypatch.setattr(importing, "quantize_network", other)
    assert main([*words, "--output-path", str(tmp_path / "pole")]) == 0
    said = capsys.readouterr().out
    assert "16 bits keep it" in said and "quarl convert --bits 16 --policy" in said and "fp16     return" in said
    monkeypatch.undo()
    assert main([*words, "--output-path", str(tmp_path / "whole")]) == 0
    assert "--bits 8 --policy" in capsys.readouterr().out
