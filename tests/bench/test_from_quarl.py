"""docs/from-quarl.md: every line is run, with few steps."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import study_store
from policy.locate import ZOO, working_bundle

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "from-quarl.md"
ROW = re.compile(r"^\| (?P<theirs>.+?) \| `(?P<ours>[^`]+)` \| (?P<note>.*) \|$", re.MULTILINE)
BUNDLES = ("cartpole-dqn", "cartpole-ppo", "cartpole-a2c")
SCRIPTS = (
    "new_ptq.py", "enjoy.py", "benchmark.sh", "collate.py", "qat.py", "visualize_pb.py", "visualize_pkl.py", "train.py",
    "evaluate.py", "learner_main.py", "parameter_broadcaster.py", "actor_main.py", "run_multiprocess.sh", "all.sh",
    "create_all_pngs.sh",
)  # fmt: skip
TRAINING = [
    "--steps", "4096", "--evaluate-every", "4096", "--evaluate-episodes", "1", "--final-episodes", "1", "--quiet",
    "--set", "environments=8",
]  # fmt: skip
# What is added to the lines of each module, so that they take seconds; the last of two equal options counts.
FEWER = {
    "train": TRAINING,
    "train.actorq": [
        "--steps", "1500", "--set", "learning_starts=500", "--set", "updates=1", "--samples-per-insert", "1",
        "--batch-size", "32", "--n-actors", "2", "--model", "16", "--evaluate-every", "100000", "--final-episodes", "1",
        "--quiet", "--output-path", "artifacts/actorq",
    ],
    "train.evaluate": ["--episodes", "2"],
    "train.list": [],
    "convert": ["--format", "tflite"],
    "bench.sweep": ["--bits", "4", "--seeds", "0", "--episodes", "2"],
    "bench.sweep_plot": ["--study", "study", "--output", "pictures"],
    "bench.weights": ["--output-path", "pictures"],
    "bench.width_and_error": ["--output-path", "pictures"],
    "bench.layer_widths": ["--bits", "4", "--seeds", "0", "--episodes", "2"],
    "bench.wide_weights": [],
    # a machine that does much else at the time may let a decision wait for more than 20 ms
    "bench.recommend": ["--episodes", "2", "--runs", "662", "--runtime", "litert", "--deadline-ms", "2000"],
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A row of the page: QuaRL's command or a question, and ours."""

    theirs: str
    ours: str

    @property
    def module(self) -> str | None:
        """What ``python -m`` is followed by; None of a ``make`` line."""
        words = shlex.split(self.ours)
        return words[2] if words[:2] == ["python", "-m"] else None

    @property
    def arguments(self) -> list[str]:
        """What follows."""
        return shlex.split(self.ours)[3 if self.module else 1 :]


def lines() -> list[Line]:
    found = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return [Line(row["theirs"], row["ours"]) for row in found]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in: names of bundles mean copies in its artifacts/, sweeps are kept in its study/."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in BUNDLES:
        shutil.copytree(ZOO / "benchmark" / name, folder / "artifacts" / name)
    shutil.copytree(ZOO / "benchmark" / "cartpole-dqn", folder / "artifacts" / "mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(working_bundle, "__defaults__", (folder / "artifacts", ZOO))
        patch.setattr(study_store.write_sweep, "__defaults__", (folder / "study",))
        patch.setattr("train.results.RECORDED_EPISODES", 1)
        patch.setenv("QUARL_LOCAL_DEVICE", str(folder / "device"))
        # what lines further down the page work on
        assert main_of("convert")(["--policy", "cartpole-ppo", "--bits", "8", "--format", "tflite"]) == 0
        sweep = ["cartpole-a2c", "--bits", "4,8", "--seeds", "0", "--episodes", "2", "--keep"]
        assert main_of("bench.sweep")(sweep) == 0
        yield folder


def main_of(module: str):  # type: ignore[no-untyped-def]
    """``main(argv)`` of a module, or of a package's ``__main__``."""
    package = importlib.import_module(module)
    return (package if hasattr(package, "main") else importlib.import_module(f"{module}.__main__")).main


def is_there(line: Line, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the command exists and knows every option of the line."""
    if line.module is None:
        return all(re.search(rf"^{re.escape(target)}:", makefile(), re.MULTILINE) for target in line.arguments)
    if importlib.util.find_spec(line.module) is None:
        return False
    with pytest.raises(SystemExit):
        main_of(line.module)(["--help"])
    text = capsys.readouterr().out
    return all(re.search(rf"{re.escape(word)}\b", text) for word in line.arguments if word.startswith("--"))


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_command_of_quarl_has_its_line() -> None:
    theirs = " ".join(line.theirs for line in lines())
    assert [script for script in SCRIPTS if script not in theirs] == []
    assert len(lines()) > len(SCRIPTS)
    for table_row in re.findall(r"^\| `.*", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        assert ROW.match(table_row), f"this row would not be tested: {table_row}"


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.ours)
def test_a_line_runs(line: Line, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_there(line, capsys), "an option of this line is unknown to its command"
    if line.module is None:
        # (the study itself: tests/bench/test_study.py)
        subprocess.run(["make", "-n", *line.arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)
        return
    help_only = "--help" in line.arguments
    given = [*line.arguments, *([] if help_only else FEWER[line.module])]
    status = main_of(line.module)(given)
    assert status == 0, capsys.readouterr().err
    if line.module.startswith("train") and "--output-path" in given:
        made = workspace / given[given.index("--output-path") + 1]
        assert working_bundle(made.name).path == made, "the line wrote no bundle where it says"
    elif not help_only:
        assert capsys.readouterr().out, "the line said nothing"
