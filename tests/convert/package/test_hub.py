"""``quarl package``: the folder is a bundle, whole or not there, and its card says what it holds."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import __main__ as convert_command
from quarl.convert.package.__main__ import main
from quarl.convert.package.card import CARD_FILE, MOST_NAMES, plain
from quarl.device.deploy.payload import bundle_files
from quarl.policy.bundle import HOST_FILES, Bundle, copy_bundle, write_bundle
from quarl.policy.files import write_folder
from quarl.policy.locate import working_bundle
from quarl.policy.places import ZOO
from quarl.policy.reading import MANIFEST_FILE, FileRecord
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    ObservationField,
    Precision,
    RuntimeName,
    Squash,
    weight_shapes,
)
from quarl.train import evaluate
from tests.convert.conftest import Capture, Patch


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles/cartpole-dqn, which has an int4 artifact, and out/cartpole-dqn, packed from it."""
    place = tmp_path_factory.mktemp("hub")
    source = Bundle.load(ZOO / "benchmark" / "cartpole-dqn")
    path = copy_bundle(source, place / "bundles" / "cartpole-dqn", origin="zoo").path
    assert convert_command.main(["--policy", str(path), "--bits", "4", "--accept"]) == 0
    assert main(["--policy", str(path), "--output-path", str(place / "out" / "cartpole-dqn")]) == 0
    return place


def test_the_folder_is_a_bundle_with_a_card(cartpole: Path) -> None:
    folder = cartpole / "out" / "cartpole-dqn"
    packed, source = Bundle.load(folder, HOST_FILES), Bundle.load(cartpole / "bundles" / "cartpole-dqn")
    both = {f"{precision}.{form}" for precision in ("int8", "fp32") for form in ("tflite", "onnx", "native")}
    assert set(packed.manifest.artifacts) == both
    assert packed.manifest.origin == "trained"
    there = {path.name for path in folder.iterdir()}
    assert there == {*packed.manifest.records(), MANIFEST_FILE, CARD_FILE}
    assert {"policy.json", "weights.safetensors", "golden.npz", "int8.golden.npz", "fp32.golden.npz"} < there
    assert "int4.golden.npz" not in there
    for name in there - {MANIFEST_FILE, CARD_FILE}:
        assert (folder / name).read_bytes() == (source.path / name).read_bytes()
    assert working_bundle(str(folder)).spec == source.spec
    sent = {Path(file.path).name for file in bundle_files(packed, [Precision.INT8], [RuntimeName.LITERT])}
    assert {"policy.json", "golden.npz", "int8.tflite", MANIFEST_FILE} <= sent and CARD_FILE not in sent


def test_the_card_says_what_the_bundle_holds(cartpole: Path) -> None:
    folder = cartpole / "out" / "cartpole-dqn"
    packed, text = Bundle.load(folder), (folder / CARD_FILE).read_text(encoding="utf-8")
    front = text.split("---\n")[1]
    assert front == (
        "library_name: quantized-policy-pipeline\npipeline_tag: reinforcement-learning\n"
        "tags:\n- reinforcement-learning\n- native\n- onnx\n- tflite\n- quantized\n"
    )
    assert "trained by dqn in" in text and "| seed | 0 |" in text and "\\\n" not in text
    for field in packed.spec.observation:
        assert f"| {field.name} |" in text
    head = packed.spec.head
    assert isinstance(head, DiscreteHead)
    for index, name in enumerate(head.action_names):
        assert f"| {index} | {name} |" in text
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (\S+) \| ([\d,]+) \| ([\d.]+) % \| .* \| `(\w+)` \|$", text, re.MULTILINE)
    found = {row[0]: (row[1], row[2], FileRecord(int(row[3].replace(",", "")), row[5]), float(row[4])) for row in rows}
    assert found == {
        name: (e.precision.value, e.format.value, e.record, round(100 * e.fp32_agreement, 1))
        for name, e in packed.manifest.artifacts.items()
    }
    (judged,) = packed.spec.provenance["judged"]
    assert f"| {judged['episodes']} | {judged['mean_return']:.4g} [" in text
    assert "![Return while it learned](learning_curve.png)" in text


def test_the_commands_of_the_card_are_the_projects(cartpole: Path, monkeypatch: Patch) -> None:
    text = (cartpole / "out" / "cartpole-dqn" / CARD_FILE).read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}quarl (.*)$", text, re.MULTILINE)
    assert [line.partition(" --")[0] for line in lines] == ["deploy", "bench latency", "evaluate"]
    assert all("./cartpole-dqn" in line for line in lines)
    monkeypatch.chdir(cartpole / "out")
    assert evaluate.main([*shlex.split(lines[2])[1:], "--episodes", "2"]) == 0


def test_packing_again_gives_the_same_bytes(cartpole: Path, tmp_path: Path) -> None:
    source = cartpole / "bundles" / "cartpole-dqn"
    assert main(["--policy", str(source), "--output-path", str(tmp_path / "cartpole-dqn")]) == 0
    first, second = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (cartpole / "out" / "cartpole-dqn", tmp_path / "cartpole-dqn")
    )
    assert first == second


def test_a_folder_that_is_there_stays(bundle: Bundle, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("small", "empty", "link"):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        assert main(["--policy", str(bundle.path), "--output-path", str(tmp_path / name)]) == 1
        message = capsys.readouterr().err
        assert "exists already" in message and "--output-path" in message
        assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_nothing_is_written_where_a_file_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_folder(tmp_path / "new", {"a": b"1", "a/such": b"2"})
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        write_folder(tmp_path / "there", {"a": b"1"})
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "int9"], "precision"),
        (["--precision", ""], "precision"),
        (["--policy", "no such"], "no policy"),
        (["--output-path", "a\nb"], "printable name"),
    ],
)
def test_refusals(
    bundle: Bundle, tmp_path: Path, arguments: list[str], message: str, capsys: Capture,
    monkeypatch: Patch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["--policy", str(bundle.path), "--output-path", "out", *arguments]) == 1
    assert message in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["small"]


def test_an_artifact_of_other_weights_is_refused(bundle: Bundle, capsys: Capture) -> None:
    assert convert_command.main(["--policy", str(bundle.path), "--bits", "8,32"]) == 0
    packed = Bundle.load(bundle.path)
    data = bytearray((packed.path / "int8.onnx").read_bytes())
    data[-200] ^= 1
    (packed.path / "int8.onnx").write_bytes(data)
    entry = packed.artifact(Precision.INT8, ArtifactFormat.ONNX)
    artifacts = {**packed.manifest.artifacts, entry.file: replace(entry, record=FileRecord.of(bytes(data)))}
    (packed.path / MANIFEST_FILE).write_text(replace(packed.manifest, artifacts=artifacts).to_json())
    out = bundle.path.with_name("out")
    assert main(["--policy", str(bundle.path), "--output-path", str(out)]) == 1
    assert "int8.onnx" in capsys.readouterr().err and not out.exists()


def test_a_bundle_of_an_import_says_so_and_names_are_only_text(bundle: Bundle, tmp_path: Path, capsys: Capture) -> None:
    fields = (
        ObservationField("a|b <i>", (3,), "`m`", ("x", "[y](z)", "w")),
        ObservationField("many", (70,), "1", tuple(f"j{k}" for k in range(70))),
    )
    head = ContinuousHead((-1.0,) * 2, (1.0, 3.0), Squash.CLIP, names=("hip", "knee"), unit="rad")
    spec = replace(
        bundle.spec, name="walk", observation=fields,
        normaliser=replace(bundle.spec.normaliser, mean=(0.0,), scale=(1.0,)), head=head,
        fallback=(0.0, 1.0), delay_s=0.04, environment=replace(bundle.spec.environment, id="foreign"),
        provenance={"how": "imported from Stable-Baselines3 2.9.2 PPO\n# of | somebody", "file_sha256": "ab"},
    )  # fmt: skip
    random = np.random.default_rng(0)
    weights = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}
    rows = random.normal(size=(300, 73)).astype(np.float32)
    made = write_bundle(tmp_path / "walk", spec, weights, rows[:200], rows[200:], {CARD_FILE: b"an older card"})
    words = ["--policy", str(made.path), "--output-path", str(tmp_path / "my walk"), "--precision", "fp32", "--json"]
    capsys.readouterr()
    assert main(words) == 0
    message = json.loads(capsys.readouterr().out)
    assert (message["policy"], message["format"], message["precisions"]) == ("walk", "hub", ["fp32"])
    assert message["made"] == ["fp32.tflite", "fp32.onnx", "fp32.native"]
    assert message["files"] == {path.name: path.stat().st_size for path in (tmp_path / "my walk").iterdir()}
    assert CARD_FILE not in Bundle.load(tmp_path / "my walk").manifest.files
    text = (tmp_path / "my walk" / CARD_FILE).read_text(encoding="utf-8")
    assert "A policy, imported from Stable-Baselines3 2.9.2 PPO # of \\| somebody: 73 numbers in, 2 numbers out" in text
    assert r"| 0 … 2 | a\|b \<i\> | 3 | \`m\` | x, \[y\](z), w | 0 | 1 |" in text
    assert f"j{MOST_NAMES - 1}, … |" in text and f"j{MOST_NAMES}," not in text
    assert "| 1 | knee | -1 | 3 | rad |" in text and "clipped to -1 … 3" in text
    assert "| where no action can be computed | 0, 1 |" in text and "| 40 ms |" in text
    assert "- quantized" not in text.split("---")[1] and "## Results" not in text
    assert "--policy './my walk'" in text and "train.evaluate" not in text


def test_plain_text_by_hand() -> None:
    assert plain("a  b\n| <x> *y* `z` [q] \\") == r"a b \| \<x\> \*y\* \`z\` \[q\] \\"
