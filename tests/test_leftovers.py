"""What a run of the tests leaves in the temporary folder: what a failed test wrote, and nothing of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    (folder / "large").write_text("shared")
    return folder

def test_that_passes(shared, tmp_path):
    (tmp_path / "large").write_text("of one test")

@pytest.mark.parametrize("fails", [{fails}])
def test_that_may_fail(fails, tmp_path):
    (tmp_path / "evidence").write_text("of one test")
    assert not fails
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_only_where_a_test_failed_something_is_left(tmp_path: Path, processes: int) -> None:
    def left_after(fails: bool) -> list[str]:
        (tmp_path / "test_written.py").write_text(TESTS.format(fails=fails))
        command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
        command += ["-q", "-p", "no:cacheprovider", "-n", str(processes), str(tmp_path / "test_written.py")]
        temporary = tmp_path / "temporary"
        temporary.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, cwd=tmp_path, env={**environment, "TMPDIR": str(temporary)}, capture_output=True, text=True
        )
        assert done.returncode == int(fails), done.stdout
        return sorted(path.name for path in temporary.rglob("*") if path.is_file() and path.name != ".lock")

    assert left_after(fails=False) == []
    for _ in range(2):  # that of the last run that failed, not of those before
        assert left_after(fails=True) == ["evidence", "large"]
