"""bench/imports.py: files are imported, compared, quantized and deployed, and the table has a line a kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarl import cli
from quarl.bench import imports
from quarl.bench.imports import imports_table
from quarl.bench.report import store
from quarl.policy.places import PROJECT_ROOT

FILES = PROJECT_ROOT / "tests" / "convert" / "importers" / "files"


def listed(folder: Path) -> Path:
    lines: list[tuple[str, str, Path, str]] = [
        ("a", "SB3", FILES / "sb3/td3_three/policy.zip", "--period 0.05"),
        ("b", "ONNX", FILES / "onnx/rsl_rl_script.onnx", ""),
        ("c", "ONNX", FILES / "onnx/swish_split_script.onnx", "--actions as-is"),
        ("d", "weights", FILES / "weights/brax_ppo/policy.npz", ""),
    ]
    text = ["\t".join(imports.COLUMNS)]
    text += [
        "\t".join([name, kind, "owner/name", "0", "path", str(path), typed, "", ""])
        for name, kind, path, typed in lines
    ]
    (folder / "files.tsv").write_text("\n".join(text) + "\n")
    return folder / "files.tsv"


def test_files_come_in_as_contract_opaque_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert imports.main(["--files", str(listed(tmp_path)), "--json"]) == cli.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    assert [each["form"] for each in document["policies"]] == ["contract", "contract", "opaque", "refused"]
    assert all(each["far"] < 1e-3 and each["int8"] > 0.5 for each in document["policies"][:3])
    assert document["policies"][3]["code"] == "weights_only_file"
    table = imports_table(document)
    assert [list(row[:6]) for row in table.rows] == [
        ["SB3", "--period", "1", "1", "0", "0"],
        ["ONNX", "--actions", "2", "1", "1", "0"],
        ["weights", "–", "1", "0", "0", "1"],
    ]
