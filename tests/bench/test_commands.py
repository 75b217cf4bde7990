"""The commands as a person or a program types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl import cli
from quarl.bench import success, table, timing
from quarl.bench import tables as rendering
from quarl.bench.report import store
from quarl.bench.report.document import Report
from quarl.bench.study.__main__ import main as studies

Make = Callable[..., Report]
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [name for name in cli.VERBS["Measuring"] if not name.startswith("study ")]
STUDIES = ("", *(name.removeprefix("study ") for name in cli.VERBS["Measuring"] if name.startswith("study ")))


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_help_from_another_folder_imports_nothing_heavy(tmp_path: Path) -> None:
    """All in one process: what one of them loads is seen behind it."""
    watch = "import sys\nfrom quarl import cli\n"
    for name in ["", "bench", "study", *COMMANDS]:
        watch += f"try: cli.main({[*name.split(), '--help']!r})\nexcept SystemExit as ended: assert not ended.code\n"
        watch += "heavy = {'numpy', 'tensorflow', 'paramiko', 'matplotlib'} & set(sys.modules)\n"
        watch += f"assert not heavy, ({name!r}, heavy)\n"
    done = run(sys.executable, "-c", watch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not [name for name in COMMANDS if f"quarl {name}" not in done.stdout]


def test_help_of_a_study_loads_no_framework(tmp_path: Path) -> None:
    """All in one process: what one of them loads is seen behind it."""
    watch = "import sys\nfrom quarl.bench.study.__main__ import main\n"
    for name in STUDIES:
        watch += (
            f"try: main({[*filter(None, [name]), '--help']!r})\nexcept SystemExit as ended: assert not ended.code\n"
        )
        watch += f"assert not {{'tensorflow','paramiko','matplotlib','ray'}} & set(sys.modules), {name!r}\n"
    done = run(sys.executable, "-c", watch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert not [name for name in STUDIES if f"quarl study {name}".strip() not in printed]


def test_an_unknown_study_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        studies(["swep"])
    assert ended.value.code == cli.EXIT_USAGE
    assert "sweep" in capsys.readouterr().err


@pytest.mark.parametrize("typed", [["-m", "quarl.bench.table"], ["bench/latency.py"], ["bench/memory.py"]])
def test_a_command_is_a_module_or_a_script_too(typed: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *typed, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage: quarl bench" in done.stdout


def test_a_python_without_the_project_goes_on_with_the_projects_own(tmp_path: Path) -> None:
    script = tmp_path / "bench" / "latency.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "bench" / "latency.py", script)
    typed = [sys.executable, "-I", "-S", str(script), "--policy", "III"]  # without the packages that are installed
    done = subprocess.run(typed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "make setup" in done.stderr
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\necho "own: $@"\n')
    own.chmod(0o755)
    done = subprocess.run(typed, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"own: {script} --policy III\n"


def test_no_file_shadows_a_module() -> None:
    names = {path.stem for path in (ROOT / "bench").glob("*.py")} - {"__init__"}
    packages = {entry.name for entry in os.scandir(Path(json.__file__).parent.parent) if entry.is_dir()}
    assert not names & (set(sys.stdlib_module_names) | packages)


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (timing.main, ["--policy", "I", "--precision", "int9"], "int9"),
        (timing.main, ["--policy", "I", "--runtime", "torch"], "torch"),
        (timing.main, ["--policy", "I", "--runs", "0"], "positive integer"),
        (success.main, ["--policy", "I", "--settings", "[1]"], "no JSON object"),
        (success.main, ["--policy", "I", "--late=-5"], "quarl bench success"),
        (success.main, ["--policy", "I", "--late", "50,10000"], "milliseconds"),
        (success.main, ["--policy", "I", "--late", "measured", "--on", "loop"], "measured"),
        (table.main, ["zoom"], "there is no table 'zoom'"),
    ],
)
def test_wrong_arguments_are_named(
    command: Callable[[list[str]], int], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = command(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == cli.EXIT_USAGE
    assert words in capsys.readouterr().err


def test_no_latency_is_always_flown_too() -> None:
    assert success._delays("measured,100,50") == (0.0, 0.05, 0.1, "measured"), "the differences are to it"


def test_an_unknown_policy_in_words_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["--policy", "XLII"]) == cli.EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "'XLII'" in printed.err and "--output-path artifacts/XLII" in printed.err
    assert timing.main(["--policy", "XLII", "--json"]) == cli.EXIT_FAILED
    output = json.loads(capsys.readouterr().out)
    assert output["ok"] is False
    assert "XLII" in output["error"]["message"]


@pytest.mark.parametrize("command", [timing.main, success.main])
def test_an_unreachable_device_is_reported_at_once(
    command: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["--policy", "XLII", "--results", str(tmp_path / "r.jsonl"), "--target", "pi@no-such-host.invalid"]
    assert command(typed) == cli.EXIT_FAILED
    output = capsys.readouterr().err
    assert "'no-such-host.invalid'" in output and "XLII" not in output


@pytest.mark.parametrize("command", [timing.main, success.main])
def test_an_unwritable_results_file_is_refused_at_once(
    command: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "other.jsonl").write_text("no store")
    for results, words in ((tmp_path / "file" / "r.jsonl", "file"), (tmp_path / "other.jsonl", "not valid JSON")):
        arguments = ["--policy", "XLII", "--json", "--results", str(results)]
        assert command(arguments) == cli.EXIT_FAILED
        output = json.loads(capsys.readouterr().out)
        assert words in output["error"]["message"] and "XLII" not in output["error"]["message"]
    assert command(["--policy", "XLII", "--results", str(tmp_path / "r.jsonl")]) == cli.EXIT_FAILED
    assert "XLII" in capsys.readouterr().err
    assert not (tmp_path / "r.jsonl").exists(), "an empty store would hide the committed measurements"


def test_an_unknown_task_setting_is_refused_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert success.main(["--policy", "XLII", "--settings", '{"wind": 2}']) == cli.EXIT_USAGE
    assert "'wind' is not known" in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latency_report: Make, success_report: Make) -> Path:
    """A checkout with a committed case study of 3,000 episodes, and 300 of this machine's own."""
    results = tmp_path / "results"
    committed = [latency_report("I", "fp32", 1500), latency_report("I", "int8", 1000)]
    store.write_lines([*committed, success_report("I", episodes=3000)], results / "case-study.jsonl")
    own = [latency_report("I", "fp32", 9000), latency_report("I", "int8", 2000)]
    store.add([*own, success_report("I", episodes=300)], results / "results.jsonl")
    (tmp_path / "docs").mkdir()
    for page, name in (("README.md", "summary"), ("docs/case-study.md", "case-study")):
        (tmp_path / page).write_text(f"<!-- table:{name} -->\n<!-- /table:{name} -->\n")
    monkeypatch.setattr(store, "RESULTS", results)
    monkeypatch.setattr(store, "DEFAULT_STORE", results / "results.jsonl")
    monkeypatch.setattr("quarl.bench.report.figures.FIGURES", tmp_path / "docs" / "figures")
    monkeypatch.setattr(rendering.update_pages, "__defaults__", (tmp_path,))
    return tmp_path


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "results.jsonl"}


def test_committed_results_are_shown_unless_local_is_requested(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(checkout)
    assert table.main(["case-study", "--markdown"]) == 0
    printed = capsys.readouterr()
    assert "| I | int8 | 1.00 µs |" in printed.out and "3,000 fresh episodes" in printed.out
    assert printed.err.count("This machine's own are in") == 1 and "--local" in printed.err
    for own in (["--local"], ["--results", str(checkout / "results" / "results.jsonl")]):
        assert table.main(["case-study", "--markdown", *own]) == 0
        printed = capsys.readouterr()
        assert "| I | int8 | 2.00 µs |" in printed.out and "300 fresh episodes" in printed.out
        assert "own are in" not in printed.err
    assert files(checkout) == before, "printing is all it does"


def test_the_pages_are_filled_and_no_stored_result_gives_way_to_less(
    checkout: Path, capsys: pytest.CaptureFixture[str], success_report: Make
) -> None:
    both = ["summary", "case-study", "--update-docs"]
    before = files(checkout)
    assert table.main([*both, "--local"]) == cli.EXIT_FAILED
    assert "300 instead of 3,000 episodes or runs; nothing was written" in capsys.readouterr().err
    assert files(checkout) == before
    for state in ("README.md: updated", "up to date"):
        assert table.main(both) == 0
        assert state in capsys.readouterr().err
    assert "| I | int8 | 1.00 µs |" in (checkout / "docs" / "case-study.md").read_text()
    assert "| I |" in (checkout / "README.md").read_text()
    assert (checkout / "docs" / "figures" / "latency.png").exists()
    committed = checkout / "results" / "case-study.jsonl"
    assert committed.read_bytes() == before[committed]
    store.add([success_report("I", episodes=5000)], store.DEFAULT_STORE)
    assert table.main([*both, "--local"]) == 0, "as much as there is may take its place"
    assert "| I | int8 | 2.00 µs |" in (checkout / "docs" / "case-study.md").read_text()
    assert "5,000 fresh episodes" in (checkout / "docs" / "case-study.md").read_text()
    assert [r.success.episodes for r in store.read_results(committed) if r.success] == [5000]


def test_a_table_as_words_and_as_json(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["case-study"]) == 0
    assert "1.50×" in capsys.readouterr().out
    assert table.main(["case-study", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert [row["precision"] for row in rows] == ["fp32", "int8"]


def test_the_pictures_of_a_table(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["case-study", "--output-path", str(checkout / "pictures")]) == 0
    assert str(checkout / "pictures" / "success.png") in capsys.readouterr().out
    assert (checkout / "pictures" / "latency.png").stat().st_size > 10_000


def test_the_pages_tables_are_those_of_the_committed_measurements() -> None:
    arguments = table.Options()
    found, skipped = table.tables(arguments)
    assert not skipped
    made = [each for each, _ in found.values()]
    texts = [path.read_text(encoding="utf-8") for path in rendering.pages()]
    assert [each.name for each in made if sum(f"<!-- table:{each.name} -->" in text for text in texts) > 1] == []
    assert [rendering.fill_page(text, made) for text in texts] == texts, "type: quarl bench table --update-docs"
    for name, (_, reports) in found.items():
        if reports:
            kept = {report.id for report in store.read_results(store.RESULTS / f"{name}.jsonl")}
            assert {report.id for report in reports} == kept, "each of the committed measurements is shown"
