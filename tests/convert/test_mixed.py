"""Bits by layer: the assignment, the network that it makes, and what a bundle keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import __main__ as cli
from quarl.convert import mixed
from quarl.convert.mixed import Layers, kernel_sizes, output_error, recipe_of, total_bits
from quarl.convert.pipeline import convert
from quarl.convert.rebuild import check_artifact
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError, QuantizationError
from quarl.policy.places import ZOO
from quarl.policy.reading import MANIFEST_FILE
from quarl.policy.reference import forward_float, forward_integer, layer_names
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision, Ranges, Recipe
from tests.convert.conftest import Runtimes, Small
from tests.refusals import refused

NATIVE, TFLITE = ArtifactFormat.NATIVE, ArtifactFormat.TFLITE
ASSIGNMENT = {"dense_0": 8, "dense_1": 4, "head": 2}


def test_sizes_by_hand() -> None:
    # CartPole: 4 numbers, two layers of 64, 2 actions
    spec = PolicySpec.from_json((ZOO / "benchmark" / "cartpole-dqn" / "policy.json").read_text(encoding="utf-8"))
    assert kernel_sizes(spec) == {"dense_0": 256, "dense_1": 4096, "head": 128}
    # 256 · 8 + 4096 · 3 + 128 · 8
    assert total_bits(kernel_sizes(spec), {"dense_0": 8, "dense_1": 3, "head": 8}) == 15_360


def test_every_layer_is_that_of_its_own_width(small: Small) -> None:
    spec, weights, calibration, _ = small
    network = quantize_network(spec, weights, calibration, ASSIGNMENT)
    uniform = {bits: quantize_network(spec, weights, calibration, bits) for bits in (8, 4, 2)}
    for index, layer in enumerate(network.layers):
        own = uniform[ASSIGNMENT[layer.name]].layers[index]
        np.testing.assert_array_equal(layer.kernel, own.kernel)
        np.testing.assert_array_equal(layer.bias, own.bias)
        assert np.abs(layer.kernel).max() == {8: 127, 4: 7, 2: 1}[ASSIGNMENT[layer.name]]
        assert layer.output == own.output
    assert network.input == uniform[8].input


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        ({"dense_0": 8, "head": 8}, r"the layers \['dense_0'"),
        ({**ASSIGNMENT, "dense_7": 8}, "dense_7"),
        ({**ASSIGNMENT, "head": 9}, "9"),
    ],
)
def test_bits_of_no_layer_are_refused(small: Small, bits: dict[str, int], message: str) -> None:
    spec, weights, calibration, _ = small
    with pytest.raises(QuantizationError, match=message):
        quantize_network(spec, weights, calibration, bits)


def test_the_assignment_is_within_its_size_and_no_worse_than_4_bits(small: Small) -> None:
    spec, weights, calibration, _ = small
    found, sizes = mixed.assign_layer_bits(spec, weights, calibration), kernel_sizes(spec)
    assert found == mixed.assign_layer_bits(spec, weights, calibration)
    assert list(found) == list(layer_names(spec)) and set(found.values()) <= {8, 4, 2}
    assert total_bits(sizes, found) <= mixed.MOST_BITS * sum(sizes.values())
    layers = Layers(spec, weights, calibration, mixed.PACKED)
    errors = [output_error(spec, layers.outputs(each), layers.reference) for each in (found, dict.fromkeys(sizes, 4))]
    assert errors[0] <= errors[1]


def test_the_layer_that_needs_its_bits_keeps_them(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that is always the mean has large weights in the first layer: 4 bits leave the others no level."""
    spec, weights, calibration, _ = small
    monkeypatch.setattr(mixed, "MOST_BITS", 5.5)  # 192, 384 and 96 weights: the first layer may have 8 bits
    kernel, rows = weights["dense_0/kernel"].copy(), calibration.copy()
    kernel[7], rows[:, 7] = 20.0 * np.abs(kernel).max(axis=0), spec.normaliser.mean[7]
    weights = {**weights, "dense_0/kernel": kernel}
    found, reference = mixed.assign_layer_bits(spec, weights, rows), forward_float(spec, weights, rows)
    assert found["dense_0"] == 8 > found["dense_1"]
    networks = (quantize_network(spec, weights, rows, bits) for bits in (found, 4))
    errors = [output_error(spec, forward_integer(spec, each, rows), reference) for each in networks]
    assert errors[0] < 0.75 * errors[1]


def test_a_bundle_keeps_its_assignment(bundle: Bundle, runtimes: Runtimes, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--policy", str(bundle.path), "--bits", "mixed", "--format", "native"]) == 0
    written = Bundle.load(bundle.path)
    entry = written.artifact(Precision.MIXED, NATIVE)
    wanted = mixed.assign_layer_bits(bundle.spec, bundle.weights(), bundle.calibration())
    assert entry.layer_bits == wanted == recipe_of(written, Precision.MIXED).bits
    words = ", ".join(f"{layer} {width}" for layer, width in wanted.items())
    assert f"per output channel, {words} bits" in capsys.readouterr().out
    # Another format of the same bundle gets the same bits, whatever would be chosen now.
    other = dict.fromkeys(wanted, 8)
    edited = change(written.path, other)
    with refused(BundleError, "artifact_not_rebuilt", shows=["mixed.native", "--bits"]):
        check_artifact(edited, edited.artifact(Precision.MIXED, NATIVE))
    convert(edited, Precision.MIXED, TFLITE, runtimes)
    assert Bundle.load(bundle.path).artifact(Precision.MIXED, TFLITE).layer_bits == other


def test_a_bundle_keeps_where_its_ranges_end(bundle: Bundle, runtimes: Runtimes) -> None:
    words = ["--policy", str(bundle.path), "--bits", "8", "--format"]
    assert cli.main([*words, "native"]) == 0
    plain = Bundle.load(bundle.path).artifact_data(Bundle.load(bundle.path).artifact(Precision.INT8, NATIVE))
    assert '"ranges"' not in (bundle.path / MANIFEST_FILE).read_text()
    assert cli.main([*words, "native", "--ranges", "mse"]) == 0
    written = Bundle.load(bundle.path)
    entry = written.artifact(Precision.INT8, NATIVE)
    assert (entry.recipe, "mse" in entry.scheme) == (Recipe(8, Ranges.MSE), True)
    assert written.artifact_data(entry) != plain
    check_artifact(written, entry)
    # Made again, in another format too, they end where they ended.
    convert(written, Precision.INT8, TFLITE, runtimes)
    entries = [Bundle.load(bundle.path).artifact(Precision.INT8, form) for form in (NATIVE, TFLITE)]
    assert [each.ranges for each in entries] == [Ranges.MSE] * 2
    # A manifest that says another way is not that of the artifact.
    path = bundle.path / MANIFEST_FILE
    path.write_text(path.read_text().replace('"mse"', '"percentile-99.99"'))
    edited = Bundle.load(bundle.path)
    with pytest.raises(BundleError):
        check_artifact(edited, edited.artifact(Precision.INT8, NATIVE))
    path.write_text(path.read_text().replace('"percentile-99.99"', '"widest"'))
    with pytest.raises(BundleError, match="widest"):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(("file", "bits"), [("mixed.native", None), ("int8.native", {"head": 8})])
def test_a_manifest_whose_bits_do_not_belong_to_its_artifact_is_refused(
    bundle: Bundle, file: str, bits: dict[str, int] | None
) -> None:
    cli.main(["--policy", str(bundle.path), "--bits", "8,mixed", "--format", "native"])
    with refused(BundleError, "bundle", shows=["layer_bits"]):
        change(bundle.path, bits, file)


def change(folder: Path, bits: dict[str, int] | None, file: str = "mixed.native") -> Bundle:
    """The bundle with other bits in its manifest."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    for entry in manifest["artifacts"]:
        if entry["file"] == file:
            entry.pop("layer_bits", None)
            entry |= {} if bits is None else {"layer_bits": bits}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return Bundle.load(folder)
