"""A policy as C: compiled and run for each processor, Cortex-M4 and -M7 boards among them; to the bit the reference."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.convert.export_c.__main__ import main
from quarl.policy.places import ZOO
from tests.convert.conftest import Capture

ZIG = f"ZIG={sys.executable} -m ziglang"
TARGETS = {
    "x86_64": (),
    "aarch64": ("qemu-aarch64",),
    "armv7": ("qemu-arm",),
    "cortex-m4": ("qemu-system-arm",),
    "cortex-m7": ("qemu-system-arm",),
}


def exported(folder: Path, name: str, *words: str) -> Path:
    """The folder that was written from a copy of the repository's bundle."""
    bundle = folder / "bundle"
    shutil.copytree(ZOO / name, bundle)
    written = folder / "written"
    assert main(["--policy", str(bundle), "--output-path", str(written), *words]) == 0
    return written


@pytest.fixture(scope="module")
def policy_i(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("I"), "I", "--bits", "8")


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(folder), *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", TARGETS)
def test_every_output_is_the_references_on_each_processor(policy_i: Path, target: str) -> None:
    if missing := [each for each in TARGETS[target] if shutil.which(each) is None]:
        pytest.skip(f"needs {missing[0]}: apt-get install qemu-user qemu-system-arm")
    done = make(policy_i, f"test-{target}", ZIG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr


@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="needs qemu-system-arm")
def test_a_board_that_decides_otherwise_fails_its_test(policy_i: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(policy_i, folder, ignore=shutil.ignore_patterns("example-*"))
    golden = (folder / "golden.h").read_text()
    (folder / "golden.h").write_text(re.sub(r"\n +\d+,\n +\},", "\n 99,\n },", golden, count=1))
    done = make(folder, "test-cortex-m4", ZIG)
    assert done.returncode == 2 and "Error 1" in done.stderr, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_c_compiler_of_the_users_own_has_nothing_to_complain_about(policy_i: Path) -> None:
    done = make(policy_i, "test", "CC=gcc", "CFLAGS=-O2 -Wall -Wextra -Werror -Wno-unknown-pragmas")
    assert done.returncode == 0, done.stderr
    assert "16 of 16 golden observations decided as by the reference" in done.stdout


def test_the_header_says_what_goes_in_and_comes_out(policy_i: Path) -> None:
    header, readme = (policy_i / "policy.h").read_text(), (policy_i / "README.md").read_text()
    for line in (
        "0 … 23  ranges [m]",
        "24  goal_bearing [rad]",
        "#define POLICY_FALLBACK 19 ",
        "POLICY_OBSERVATION = 32",
    ):
        assert line in header
    assert "15488 bytes of constant data" in readme and "every 0.25 s" in readme


def test_a_continuous_policy_and_fewer_bits(tmp_path: Path, capsys: Capture) -> None:
    written = exported(tmp_path, "benchmark/pendulum-ddpg", "--bits", "4", "--json", "--accept")
    report = json.loads(capsys.readouterr().out)
    assert (report["precision"], report["golden_rows"], report["made"]) == ("int4", 16, True)
    assert "the action's elements" in (written / "policy.h").read_text()


REFUSED = [("--bits 32", "got fp32"), ("--bits 9", "9"), ("--bits 8 --policy nobody", "nobody"), ("", "exists already")]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_what_is_refused_writes_nothing(tmp_path: Path, capsys: Capture, words: str, why: str) -> None:
    folder = tmp_path / "new" if words else tmp_path
    assert main(["--policy", str(ZOO / "I"), "--output-path", str(folder), *words.split()]) == 1
    assert why in capsys.readouterr().err and not list(tmp_path.iterdir())
