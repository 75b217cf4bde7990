"""In which order recipes call quarl: the Makefile itself, with a quarl that notes each call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTING = '#!/bin/bash\necho "${0##*/} $*" >>calls\ncase " $* " in *" --target nowhere "*) exit 1;; esac\n'
"""Notes what it was called with; a device called nowhere is not there."""
REACH = "quarl reach --target"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, an environment whose programs note their calls, and the policy I to deploy."""
    (tmp_path / "setup").mkdir()
    for name in ("Makefile", "setup/recipe.sh", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "zoo" / "I").mkdir(parents=True)
    (tmp_path / "zoo" / "I" / "policy.json").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for program in (python, python.with_name("quarl")):
        program.write_text(NOTING)
        program.chmod(0o755)
    (tmp_path / ".venv" / ".installed").write_text(f"{tmp_path}\n")
    return tmp_path


def typed(checkout: Path, *words: str) -> tuple[int, str, list[str]]:
    """Exit status of ``make WORDS``, what it printed, and what its recipe called."""
    calls = checkout / "calls"
    calls.write_text("")
    done = subprocess.run(["make", *words], cwd=checkout, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()


@pytest.mark.parametrize("target", ["demo", "deploy"])
def test_a_device_is_looked_for_before_anything_is_made_for_it(checkout: Path, target: str) -> None:
    status, printed, calls = typed(checkout, target, "TARGET=nowhere")
    assert status == 2 and calls == [f"{REACH} nowhere"], printed
    status, printed, calls = typed(checkout, target, "TARGET=pi@raspberrypi")
    assert status == 0 and len(calls) > 2 and calls[0] == f"{REACH} pi@raspberrypi", printed


@pytest.mark.parametrize("target", ["demo", "deploy"])
def test_the_local_device_is_not_started_only_to_look(checkout: Path, target: str) -> None:
    status, printed, calls = typed(checkout, target)
    assert status == 0 and len(calls) > 1, printed
    assert not [call for call in calls if call.startswith(REACH)]


def test_a_group_is_deployed_to_in_phases_with_what_was_typed_alone(checkout: Path) -> None:
    status, _, calls = typed(checkout, "deploy", "TARGET=@arena", "POLICY=I")
    last = " ".join(calls[-1].split())
    assert status == 0 and last == "quarl fleet deploy --group arena --policy I"
    more = ["BITS=4", "RUNTIME=native", "ROLLOUT=--canary 2 --soak 60"]
    calls = typed(checkout, "deploy", "TARGET=@arena", "POLICY=I", *more)[2]
    assert calls[-1].endswith("--policy I --bits 4 --runtime native --canary 2 --soak 60")
    assert calls[0].startswith("quarl convert --missing --policy I --bits 4"), "nobody is asked before"
    calls = typed(checkout, "bench", "TARGET=@arena", "POLICY=I")[2]
    kinds = ("latency", "memory", "success")
    assert calls == [f"quarl fleet run {kind} --group arena --policy I" for kind in kinds]
    status, printed, calls = typed(checkout, "demo", "TARGET=@arena")
    assert status == 2 and not calls and "is a group of devices, and the demo is for one" in printed


def test_the_demo_says_where_it_trains_nothing_and_what_trains_anew(checkout: Path) -> None:
    _, printed, calls = typed(checkout, "demo")
    assert "Nothing is trained" not in printed and calls[0].startswith("quarl train --task navigation --policy I")
    bundle = checkout / "artifacts" / "I"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").touch()
    _, printed, calls = typed(checkout, "demo")
    assert calls[0].startswith("quarl bench latency")
    (line,) = [line for line in printed.splitlines() if line.startswith("Nothing is trained: ")]
    assert "Policy I is artifacts/I" in line
    again = line.partition("type: ")[2].partition("; make demo")[0]
    subprocess.run(["bash", "-c", again], cwd=checkout, check=True)
    _, printed, calls = typed(checkout, "demo")
    assert calls[0].startswith("quarl train") and (checkout / "artifacts" / "I-before" / "manifest.json").exists()
