"""Fields of a bundle's documents that no trainer writes are refused by name: never a traceback, never slowly."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.device.deploy.errors import VerificationError
from quarl.device.deploy.target import check_policy_name
from quarl.policy.bundle import Bundle, add_artifact, write_bundle
from quarl.policy.errors import BundleError, SpecError
from quarl.policy.json_values import MOST_PARTS, is_file_name, is_policy_name, is_text
from quarl.policy.locate import working_bundle
from quarl.policy.reading import GOLDEN_FILE, MANIFEST_FILE, SPEC_FILE
from quarl.policy.spec import PolicySpec
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, SPEC, WEIGHTS, change, entry_of, sign
from tests.refusals import refused

BAD_POLICY_NAMES = ["", ".", "..", "a/b", "a\0b", "a\nb", "a\n", "\x1b[2J", "\ud800", "-rf", ".hidden", "ü", "a" * 65]
HUGE = 10**4000


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("name", BAD_POLICY_NAMES)
def test_one_rule_for_policy_names(bundle: Bundle, tmp_path: Path, name: str) -> None:
    """The reader, the writer, the manifest and the host refuse the same."""
    assert not is_policy_name(name)
    with refused(SpecError, "spec", shows=["policy.name", "64"]):
        write_bundle(tmp_path / "new", replace(SPEC, name=name), WEIGHTS, CALIBRATION, GOLDEN)
    assert not (tmp_path / "new").exists()
    with refused(VerificationError, "verification", shows=["64"]):
        check_policy_name(name)
    change(bundle.path, SPEC_FILE, lambda spec: spec.update(name=name))
    with pytest.raises(BundleError, match=rf"{SPEC_FILE}.*name"):
        Bundle.load(bundle.path)
    change(bundle.path, MANIFEST_FILE, lambda manifest: manifest.update(policy=name))
    with refused(BundleError, "bundle", shows=[MANIFEST_FILE, "policy"]):
        Bundle.load(bundle.path)


def test_names_that_are_allowed() -> None:
    assert all(is_policy_name(name) for name in ("I", "II-depth", "cartpole_balance-d4pg", "a" * 64, "7.1"))
    assert all(is_text(text) for text in ("goal distance", "m/s²", "°", ""))
    assert all(is_file_name(name) for name in ("int8.tflite", "learning curve.csv", "ü" * 127))
    assert not any(is_file_name(name) for name in ("ü" * 128, "a" * 256, "\ud800", "a\x1b", "a/b", "", ".."))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.update(provenance={"x": float("nan")}), "must be finite"),
        (lambda d: d.update(provenance={"x": [1, {"y": float("inf")}]}), r"provenance\.x\.y"),
        (lambda d: d["environment"].update(settings={"x": float("nan")}), r"environment\.settings\.x"),
        (lambda d: d.update(provenance={"x": "\ud800"}), "must be printable"),
        (lambda d: d.update(provenance={"\ud800": 1}), "provenance"),
        (lambda d: d.update(provenance={"x": "\x1b[2J"}), "must be printable"),
        (lambda d: d.update(provenance={"x": nested(70)}), r"provenance\.x"),
        (lambda d: d["observation"][0].update(shape=[HUGE]), "'state'"),
        (lambda d: d["observation"][0].update(shape=[2**24, 2**24]), "281474976710656"),
        (lambda d: d["observation"][0].update(shape=[1] * 100_000), "'state'"),
        (lambda d: d["observation"][0].update(name="a\nb"), r"observation\[0\]\.name"),
        (lambda d: d["observation"][0].update(name="a" * 201), "observation field's name"),
        (lambda d: d["observation"][0].update(unit="\ud800"), r"observation\[0\]\.unit"),
        (
            lambda d: d["head"].update(action_names=["go", "\x1b"]),
            r"head\.action_names",
        ),
        (
            lambda d: d["head"].update(action_names=[str(n) for n in range(70_000)]),
            "the head",
        ),
        (lambda d: d["head"].update(action_names=["go"] * 60_000), r"names an action twice: \['go'\]"),
        (lambda d: d["network"].update(hidden=[HUGE]), r"network\.hidden"),
        (lambda d: d["network"].update(hidden=[1] * 5000), "layers before the"),
        (lambda d: d["environment"].update(id="\ud800"), r"environment\.id"),
        (lambda d: d.update(control_period_s=HUGE), "control_period_s"),
        (lambda d: d.update(format_version=[0] * 10_000), "format_version"),
        (
            lambda d: d.update(provenance=[[]] * (MOST_PARTS + 1)),
            "numbers, strings, lists",
        ),
    ],
)
def test_a_spec_field_that_is_none_is_refused(
    bundle: Bundle, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    change(bundle.path, SPEC_FILE, edit)
    with refused(BundleError, "bundle", shows=[SPEC_FILE]) as caught:
        Bundle.load(bundle.path)
    assert len(str(caught.value)) < 2500
    with pytest.raises(SpecError, match=words):
        PolicySpec.from_json((bundle.path / SPEC_FILE).read_bytes())


@pytest.mark.parametrize(
    "text",
    [
        b'{"format_version": 1, "name": ' + b"[" * 100_000,
        b'{"format_version": 1, "name": "\xff"}',
        b'{"format_version": 1, "control_period_s": ' + b"9" * 5000 + b"}",
        b'{"format_version": 1, "provenance": {"x": 1e999}}',
        b"null",
        b"",
    ],
)
def test_a_document_that_is_none_is_refused(bundle: Bundle, text: bytes) -> None:
    sign(bundle.path, SPEC_FILE, text)
    with pytest.raises(BundleError, match=SPEC_FILE):
        Bundle.load(bundle.path)
    (bundle.path / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(BundleError, match=MANIFEST_FILE):
        Bundle.load(bundle.path)


def test_1e999_in_provenance_is_named(bundle: Bundle) -> None:
    text = SPEC.to_json().replace('"provenance": {}', '"provenance": {"return": 1e999}')
    assert "1e999" in text
    with refused(SpecError, "spec", shows=["provenance.return"]):
        PolicySpec.from_json(text)


def test_many_names_are_read_fast() -> None:
    """60,000 took minutes while each was counted among all."""
    head = {"kind": "discrete", "action_names": [f"action {index}" for index in range(60_000)]}
    text = json.dumps({**SPEC.to_dict(), "head": head})
    begin = time.process_time()
    assert PolicySpec.from_json(text).output_size == 60_000
    assert time.process_time() - begin < 5.0  # a fifth of a second; the old way needs many times that


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m["files"].update({"a" * 300: m["files"][SPEC_FILE]}), "the manifest must"),
        (lambda m: m["files"].update({"\ud800": m["files"][SPEC_FILE]}), "printable characters without"),
        (lambda m: m["files"].update({"a\x1b[2J": m["files"][SPEC_FILE]}), r"'a\\x1b\[2J'"),
        (lambda m: m["files"][SPEC_FILE].update(bytes=HUGE), "hexadecimal digits"),
        (lambda m: m["files"].update({str(n): m["files"][SPEC_FILE] for n in range(1001)}), "must list at"),
        (lambda m: m["files"].pop(SPEC_FILE), f"does not list {SPEC_FILE}"),
        (lambda m: m["files"].pop(GOLDEN_FILE), f"does not list {GOLDEN_FILE}"),
        (lambda m: m["files"].pop("int8.golden.npz"), r"lists int8\.tflite, but not its golden_file int8\.golden\.npz"),
        (lambda m: m.pop("files"), "lacks the field 'files'"),
        (lambda m: m["artifacts"][0].pop("sha256"), "lacks the field 'sha256'"),
        (lambda m: m["artifacts"][0].update(scheme=float("nan")), "must be finite"),
        (lambda m: m["artifacts"][0].update(scheme="\ud800"), "must be printable"),
        (lambda m: m["artifacts"][0].update(file="a" * 300), "the manifest must"),
        (lambda m: m["artifacts"][0].update(extra=nested(70)), "levels deep"),
        (lambda m: m.update(artifacts=[1]), "be an object"),
    ],
)
def test_a_manifest_field_that_is_none_is_refused(
    bundle: Bundle, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    change(bundle.path, MANIFEST_FILE, edit)
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "a" * 5000, "/dev/null", "/dev/null/bundle"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(BundleError):
        Bundle.load(path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 300, "\x1b[2J", ""])
def test_a_typed_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with refused(BundleError, "bad_policy_name"):
        working_bundle(name, tmp_path / "artifacts", tmp_path / "zoo")


@pytest.mark.parametrize(
    ("spec", "rows", "words"),
    [
        (SPEC, GOLDEN[:0], "golden_observations"),
        (SPEC, np.full((2, 3), np.nan, np.float32), "golden_observations"),
        (replace(SPEC, provenance={"x": float("nan")}), GOLDEN, r"provenance\.x"),
        (replace(SPEC, provenance={"x": "\ud800"}), GOLDEN, r"provenance\.x"),
    ],
)
def test_the_writer_refuses_what_the_reader_would(
    tmp_path: Path, spec: PolicySpec, rows: np.ndarray, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        write_bundle(tmp_path / "new", spec, WEIGHTS, CALIBRATION, rows)
    with refused(SpecError, "spec", shows=["'../out'"]):
        write_bundle(tmp_path / "new", SPEC, WEIGHTS, CALIBRATION, GOLDEN, {"../out": b""})
    assert list(tmp_path.iterdir()) == []


def test_a_device_imports_nothing_of_the_host() -> None:
    """Reading a bundle on a device takes neither numpy nor the forward passes that the host checks it with."""
    program = "import sys, quarl.policy.reading; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint(
        {
            "numpy",
            "safetensors",
            "convert",
            "quarl.policy.bundle",
            "quarl.policy.golden",
            "quarl.policy.reference",
        }
    )
