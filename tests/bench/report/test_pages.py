"""The pages' commands: those of README.md and docs/from-quarl.md are run, with few steps; all are complete.

A ``make`` line is what its recipe calls: make runs it with a ``quarl`` that notes the commands down, and these are run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl import cli
from quarl.airlearning_envs.config import PRESETS
from quarl.bench.report import store
from quarl.bench.study import records, running
from quarl.bench.tables import pages
from quarl.policy.locate import working_bundle
from quarl.policy.places import ZOO

ROOT = Path(__file__).resolve().parents[3]
README, STEPS, FROM_QUARL = ROOT / "README.md", ROOT / "docs" / "steps.md", ROOT / "docs" / "from-quarl.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ROOMS = ("airlearning_envs", "policy", "train", "convert", "device", "bench", "examples")
ROW = re.compile(r"^\| (?P<theirs>.+?) \| `(?P<ours>[^`]+)` \| (?P<note>.*) \|$", re.MULTILINE)
TABLE = re.compile(r"<!-- table:(\S+) -->.*?<!-- /table:\1 -->", re.DOTALL)
TYPED = ("make ", "quarl ", "python ", "ssh", "git ")
VERBS = {name for verbs in cli.VERBS.values() for name in verbs}
BUNDLES = ("cartpole-dqn", "cartpole-ppo", "cartpole-a2c")
SCRIPTS = (
    "new_ptq.py", "enjoy.py", "benchmark.sh", "collate.py", "qat.py", "visualize_pb.py", "visualize_pkl.py", "train.py",
    "evaluate.py", "learner_main.py", "parameter_broadcaster.py", "actor_main.py", "run_multiprocess.sh", "all.sh",
    "create_all_pngs.sh",
)  # fmt: skip
# What takes the place of words of a line: the embedded SSH device of this machine that of a Pi, a small policy a large.
INSTEAD = {"2048,2048,2048": "64,64", "pi@raspberrypi": "local", "pi@virtual": "local", "III": "I", "II": "I"}
# They install, or .ci/run and setup/bare_machine.sh type them.
DRY = {"setup", "suites", "actorq", "peers", "test", "demo", "report", "study-quick"}
ALIKE = re.compile(
    r"--curriculum|gru-128|make train|pi@virtual|deploy POLICY=I$|--task navigation --input-path|a2c7|mine8"
)
"""Lines that differ from others in an option: they are only read, by test_every_printed_command_is_complete."""
ELSEWHERE = {  # run by tests of their own
    "import": "tests/convert/importers",
    "package": "tests/convert/package",
    "fly": "tests/airlearning_envs",
    "airsim": "tests/airlearning_envs/airsim",
    "pi start": "tests/virtual_pi",
    "pi stop": "tests/virtual_pi",
    "actorq": "tests/train/actorq",
    "recommend": "tests/bench",
}
# What is added to the lines of each verb, so that they take seconds; the last of two equal options counts.
FEWER = {
    "train": [
        "--steps", "4096", "--evaluate-every", "4096", "--evaluate-episodes", "1", "--final-episodes", "1", "--quiet",
    ],
    "evaluate": ["--episodes", "2"],
    "record": ["--side", "32"],
    "convert": ["--format", "tflite"],
    "bench latency": ["--policy", "I", "--runs", "9", "--no-baseline"],
    "bench memory": ["--runs", "3"],
    "bench success": ["--policy", "I", "--episodes", "3"],
    "page": ["--output", "report.html"],
    "study all": ["--plan"],  # (its steps: tests/bench/study/test_study.py)
    "study sweep": ["--bits", "4", "--seeds", "0", "--episodes", "2", "--jobs", "1"],
    "study weights": ["--output-path", "pictures"],
    "study width": ["--output-path", "pictures"],
}  # fmt: skip
WHERE = {"train": ["--output-path", "artifacts/trained"]}  # unless the line says where


# --- what the pages say ----------------------------------------------------------------------------------------------


def readme_commands() -> list[str]:
    """All of README.md and the steps: code blocks, and what stands between backticks and begins as a command does."""
    text = TABLE.sub("", README.read_text(encoding="utf-8") + STEPS.read_text(encoding="utf-8"))
    found = [*code_lines(text), *re.findall(r"`([^`\n]+)`", text)]
    return [command for command in dict.fromkeys(found) if command.startswith(TYPED) and "VERB" not in command]


def code_lines(text: str) -> list[str]:
    """The commands of the indented lines, without what is said beside them; ``\\`` goes on in the next line."""
    joined = re.sub(r" *\\\n +", " ", text)
    lines = re.findall(r"^ {4,8}((?:make|quarl|python|ssh\S*|git) [^= ].*)$", joined, re.MULTILINE)
    return [re.split(r" {2,}| # ", line)[0].strip() for line in lines]


def quarl_rows() -> list[tuple[str, str]]:
    """QuaRL's command or a question, and our line."""
    return [(row["theirs"], row["ours"]) for row in ROW.finditer(FROM_QUARL.read_text(encoding="utf-8"))]


def printed_commands() -> list[tuple[str, str]]:
    """Where a command is printed, and the command: pages, help texts and make's own help; without mere patterns."""
    texts = {page: TABLE.sub("", page.read_text(encoding="utf-8")) for page in (*pages(), CONTRIBUTING)}
    for room in ROOMS:
        texts |= {path: path.read_text(encoding="utf-8") for path in (ROOT / room).rglob("*.py")}
    texts[ROOT / "Makefile"] = re.sub(r"^\t@echo \"  (.*)\"$", r"    \1", (ROOT / "Makefile").read_text(), flags=re.M)
    found = [(str(path.relative_to(ROOT)), line) for path, text in texts.items() for line in code_lines(text)]
    found += [("README.md", line) for line in readme_commands()] + [
        ("docs/from-quarl.md", our) for _, our in quarl_rows()
    ]
    pattern = re.compile(r"…|[\[|<{]|\b(BUNDLE|NAME|FILE|FOLDER|VERB|RELEASE|KEY)\b")
    return sorted({(place, line) for place, line in found if not pattern.search(line)})


def split(line: str) -> tuple[str, list[str]]:
    """Verb and arguments of a ``quarl`` line."""
    words = shlex.split(line)[1:]
    length = 2 if " ".join(words[:2]) in VERBS else 1
    return " ".join(words[:length]), words[length:]


def typed(verb: str, words: list[str]) -> int:
    return cli.main([*verb.split(), *words])


def recipe(line: str, folder: Path) -> list[str]:
    """The commands that a ``make`` line calls."""
    calls, quarl = folder / "calls", folder / "noting"
    calls.write_text("")
    quarl.write_text(f'#!/bin/bash\n{{ printf "%q " quarl "$@"; echo; }} >>{shlex.quote(str(calls))}\n')
    quarl.chmod(0o755)
    words = [*shlex.split(line)[1:], f"QUARL={quarl}", "-o", ".venv/.installed"]
    subprocess.run(["make", *words], cwd=ROOT, check=True, capture_output=True, timeout=60)
    return calls.read_text().splitlines()


# --- every command is known ------------------------------------------------------------------------------------------


def test_every_printed_command_is_complete() -> None:
    """Of the README, docs/, help texts, and ``make``: its parser takes it as it stands."""
    found = printed_commands()
    assert len(found) > 200
    wrong = []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for place, line in found:
        if line.startswith("make "):
            if not {word for word in shlex.split(line)[1:] if "=" not in word} <= targets:
                wrong.append(f"{place}: {line}")
        elif line.startswith("quarl "):
            try:
                verb, words = split(line)
                assert verb in VERBS, "there is no such verb"
                cli.app(verb).parse_args([*verb.split(), *words], exit_on_error=False, print_error=False)
            except Exception as error:
                wrong.append(f"{place}: {line}: {error}")
    assert wrong == []


# --- every command runs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in: names of bundles mean copies in its artifacts/, answers are kept in it, so is the device."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in BUNDLES:
        shutil.copytree(ZOO / "benchmark" / name, folder / "artifacts" / name)
    for name, of in (("mine", "cartpole-dqn"), ("cartpole", "cartpole-dqn"), ("swing", "pendulum-ppo")):
        shutil.copytree(ZOO / "benchmark" / of, folder / "artifacts" / name)
    shutil.copytree(ZOO / "I", folder / "zoo" / "I")
    shutil.copytree(store.RESULTS, folder / "results", ignore=shutil.ignore_patterns("results.*", "*.html", "study"))
    (folder / "study").mkdir()
    shutil.copy(store.RESULTS / "study" / "cells.jsonl", folder / "study")  # what a line only shows
    own = folder / "results" / "results.jsonl"
    store.add(store.read_results(folder / "results" / "case-study.jsonl"), own)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(working_bundle, "__defaults__", (folder / "artifacts", ZOO))
        patch.setattr(store, "RESULTS", folder / "results")
        patch.setattr(store, "DEFAULT_STORE", own)
        patch.setattr(records, "FOLDER", folder / "study")
        patch.setattr(running, "refuse_dirty", lambda: None)
        patch.setattr("quarl.train.runs.results.RECORDED_EPISODES", 1)
        patch.setenv("QUARL_LOCAL_DEVICE", str(folder / "device"))
        # what lines further down work on
        assert typed("convert", ["--policy", "cartpole-ppo", "--bits", "8", "--format", "tflite"]) == 0
        sweep = ["cartpole-a2c", "--bits", "4,8", "--seeds", "0", "--episodes", "2", "--keep", "--jobs", "1"]
        assert typed("study sweep", sweep) == 0
        assert typed("convert", ["--policy", "I", "--bits", "8", "--format", "native"]) == 0
        for bits in ("4", "8"):  # two releases
            assert typed("convert", ["--policy", "I", "--bits", bits, "--format", "tflite"]) == 0
            assert typed("deploy", ["--target", "local", "--policy", "I", "--bits", bits]) == 0
        yield folder


def run(line: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a ``quarl`` line with fewer steps."""
    verb, arguments = split(line)
    if verb in ELSEWHERE:
        tests = ROOT / ELSEWHERE[verb]
        words = [path.read_text() for path in tests.rglob("*.py")]
        assert any(re.search(rf"\b{verb.split()[0]}\b", text) for text in words), f"{tests} does not run {verb}"
        return
    arguments = [INSTEAD.get(word, word) for word in arguments]
    help_only = "--help" in arguments or "--defaults" in arguments
    given = arguments if help_only else [*WHERE.get(verb, []), *arguments, *FEWER.get(verb, [])]
    capsys.readouterr()
    try:
        status = typed(verb, given)
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert not status, printed.err
    if verb == "train" and not help_only:
        made = workspace / given[len(given) - given[::-1].index("--output-path")]
        assert working_bundle(made.name).path == made, "the line wrote no bundle where it says"
    else:
        assert printed.out or verb == "reach", "the line said nothing"


def run_any(line: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a line of a page."""
    program, *words = shlex.split(line)
    if line.startswith("python bench/latency.py"):
        run(line.replace("python bench/latency.py", "quarl bench latency"), workspace, capsys)
    elif program == "python":
        assert "examples" in line and (ROOT / words[0]).is_file(), "tests/examples runs them"
    elif program == "quarl":
        run(line, workspace, capsys)
    elif program == "make" and DRY & set(words):
        subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True, timeout=60)
    elif program == "make":
        called = recipe(line, workspace)
        assert called, f"{line} calls nothing"
        for each in called:
            run(each, workspace, capsys)
    elif program == "git":
        command = line.replace("REPOSITORY", shlex.quote(str(ROOT))) + " && test -f Makefile"
        subprocess.run(["bash", "-c", command], cwd=workspace, check=True, capture_output=True, timeout=120)
    elif words[-1].endswith("run-agent"):  # ssh to the device, where it is typed
        (agent,) = (workspace / "device").rglob("policies/I/current/run-agent")
        done = subprocess.run([agent], input='{"op": "help"}\n', capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(done.stdout.splitlines()[-1])["ok"]
    else:
        assert line in ("ssh-copy-id pi@raspberrypi", "ssh pi@raspberrypi sudo apt-get install python3-numpy"), line


LONGEST = ("git clone", "--minutes 2")


def with_marks(line: str) -> object:
    """The longest lines are left to make test-all."""
    is_long = any(words in line for words in LONGEST)
    return pytest.param(line, marks=pytest.mark.slow if is_long else (), id=line)


@pytest.mark.parametrize("line", [with_marks(line) for line in readme_commands() if not ALIKE.search(line)])
def test_a_line_of_the_readme_runs(line: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_any(line, workspace, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("line", [ours for _, ours in quarl_rows() if not ALIKE.search(ours)])
def test_a_line_of_the_page_for_quarls_users_runs(
    line: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_any(line, workspace, capsys)


def test_every_command_of_quarl_has_its_line() -> None:
    theirs = " ".join(theirs for theirs, _ in quarl_rows())
    assert [script for script in SCRIPTS if script not in theirs] == []
    assert len(quarl_rows()) > len(SCRIPTS)
    for table_row in re.findall(r"^\| `.*", FROM_QUARL.read_text(encoding="utf-8"), re.MULTILINE):
        assert ROW.match(table_row), f"this row would not be tested: {table_row}"


# --- what the README says --------------------------------------------------------------------------------------------


def test_what_contributing_names_is_there() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    quoted = re.findall(r"`([^`\n]+)`", text)
    paths = [each for each in quoted if "/" in each and " " not in each] + re.findall(r"\*\*(\w+/)\*\*", text)
    assert len(paths) > 40 and [each for each in paths if not (ROOT / each).exists()] == []
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module) is not None
    for file, name in re.findall(r"`(\w+)` in `([^`]+)`", text):
        assert re.search(rf"\b{file}\b", (ROOT / name).read_text(encoding="utf-8")), (file, name)


def test_the_readme_is_short_and_says_what_its_words_mean() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    case_study = (ROOT / "docs" / "case-study.md").read_text(encoding="utf-8")
    printed = " ".join(case_study.split())
    hard, shipped = PRESETS["hard"], PRESETS["shipped"]
    assert f"comes within {hard.success_radius_m:g} m of its goal" in printed
    assert f"in at most {hard.max_steps} decisions, one every {hard.control_period_s:g} s" in printed
    for name, words in (
        ("hard", "{0:g} × {0:g} m with {1[0]} to {1[1]} standing and {2[0]} to {2[1]} moving obstacles"),
        ("shipped", "{0:g} × {0:g} m with {1[0]} standing obstacles, none moving"),
    ):
        task = PRESETS[name]
        assert words.format(task.arena_m, task.static_obstacles, task.moving_obstacles) in printed
        assert "the goal {:g} to {:g} m away".format(*task.goal_distance_m) in printed
    assert shipped.static_obstacles == (7, 7) and shipped.moving_obstacles == (0, 0)
    for task in (hard, shipped):
        assert (task.success_radius_m, task.max_steps) == (hard.success_radius_m, hard.max_steps)
    rows = re.findall(r"^\| I+ \|.*$", text, re.MULTILINE)
    assert len(rows) == 3
    for page in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / page).exists(), page
