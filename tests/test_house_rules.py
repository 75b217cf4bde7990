"""Who may import whom, and what may not stand in the repository (CONTRIBUTING.md: "The rooms")."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeGuard

import pytest

from setup.messages import FOLDER as MESSAGES
from setup.messages import ROOMS as ROOMS_WITH_MESSAGES
from setup.messages import collect_messages

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "policy",
    "airlearning_envs",
    "device.engine",
    "device.agent",
    "device.deploy",
    "device.virtual_pi",
    "convert.native",
    "convert",
    "train",
    "convert.ladder",
    "convert.importers",
    "convert.foreign",
    "convert.package",
    "bench.report",
    "bench.tables",
    "bench.case_study",
    "bench.command_line",
    "bench.qemu_counter",
    "convert.__main__",
    "bench.cost",
    "bench.memory_pressure",
    "bench.device_session",
    "bench.recommending",
    "bench.study",
    "bench.peers",
    "bench",
)
"""Folders and single modules: each imports those before it alone. What lies in one and has a name is no part of it."""
HOUSE = ("policy", "airlearning_envs", "train", "convert", "device", "bench")
STDLIB = set(sys.stdlib_module_names)

MAY_IMPORT_PACKAGES = {
    "policy": {"numpy", "safetensors"},
    "airlearning_envs": {"numpy", "gymnasium", "PIL", "imageio", "rich", "matplotlib", "msgpack", "cyclopts", "cli"},
    "device.agent": {"numpy", "tflite_runtime", "ai_edge_litert", "onnxruntime"},
}


def room_of(module: str) -> str | None:
    found = [room for room in ROOMS if module == room or module.startswith(room + ".")]
    return max(found, key=len, default=None)


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions and under TYPE_CHECKING; rooms without ``quarl.``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written absolutely in this house"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("quarl.") for name in found}


def files_of(room: str) -> list[Path]:
    """The Python files of a room, those of the rooms in it left out."""
    folder = ROOT / room.replace(".", "/")
    inner = [ROOT / other.replace(".", "/") for other in ROOMS if other.startswith(f"{room}.")]
    found = sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]
    return [path for path in found if not any(path.with_suffix("").is_relative_to(other) for other in inner)]


def forbidden_imports(room: str, modules: set[str]) -> list[str]:
    bad = []
    for module in sorted(modules):
        other = room_of(module)
        if other is not None:
            if ROOMS.index(other) > ROOMS.index(room):
                bad.append(module)
        elif room in MAY_IMPORT_PACKAGES and module.split(".")[0] not in STDLIB | MAY_IMPORT_PACKAGES[room]:
            bad.append(module)
    return bad


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_imports_upwards(room: str) -> None:
    files = files_of(room)
    assert files, f"the room {room} is empty"
    bad = {
        str(path.relative_to(ROOT)): wrong
        for path in files
        if (wrong := forbidden_imports(room, imported_modules(path)))
    }
    assert not bad


SOURCES = sorted(path for room in HOUSE for path in (ROOT / room).rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}


def is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def loaded_modules(path: Path, modules: Collection[str], *, typing: bool = False) -> set[str]:
    """The modules of the house that a file imports as it runs, at any depth; with ``typing`` those it names, too.

    What stands under ``TYPE_CHECKING`` is never imported, and a name in an annotation obliges nobody.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unread = {
        id(inner)
        for node in ast.walk(tree)
        if is_type_checking(node) and not typing
        for part in node.body
        for inner in ast.walk(part)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("quarl.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module).removeprefix("quarl.")
            whole = {f"{node.module}.{alias.name}".removeprefix("quarl.") for alias in node.names}
            found |= {name if name in modules else module for name in whole}
    return found & set(modules)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group (strongly connected components)."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph if name in reach[name]
    }
    return sorted(map(list, groups))


def test_no_circle_of_imports() -> None:
    assert circles({name: loaded_modules(path, MODULES) for name, path in MODULES.items()}) == []


def test_no_circle_of_names_in_bench() -> None:
    modules = {name: path for name, path in MODULES.items() if name.startswith("bench.")}
    assert circles({name: loaded_modules(path, modules, typing=True) for name, path in modules.items()}) == []


def test_the_circle_test_sees_a_circle(tmp_path: Path) -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]
    file = tmp_path / "file.py"
    file.write_text(
        "from quarl.train import runs\n"
        "if TYPE_CHECKING:\n    import quarl.bench\n"
        "def late():\n    from quarl.policy.spec import PolicySpec\n"
    )
    modules = {"train.runs", "bench", "policy.spec"}
    assert loaded_modules(file, modules) == {"train.runs", "policy.spec"}
    assert loaded_modules(file, modules, typing=True) == modules


def test_an_algorithm_knows_neither_another_nor_the_updates_by_hand() -> None:
    # another's training with settings of its own, and another's losses through time
    variants = {"td3": "train.algorithms.ddpg", "recurrent_ppo": "train.algorithms.ppo"}
    methods = sorted((ROOT / "train" / "algorithms").glob("*.py"))
    others = {f"train.algorithms.{path.stem}" for path in methods} - {"train.algorithms.__init__"}
    for path in [*methods, *(ROOT / "train" / "algorithms" / "common").glob("*.py")]:
        modules = imported_modules(path)
        assert not [name for name in modules if name.startswith("train.accelerator")], path
        mine = others - {variants.get(path.stem, "")}
        assert not [name for name in modules if name.rpartition(".")[0] in mine], path


def test_the_import_test_sees_a_wrong_import() -> None:
    assert forbidden_imports("policy", {"train.algorithms.ppo"}) == ["train.algorithms.ppo"]
    assert forbidden_imports("device.agent", {"tensorflow"}) == ["tensorflow"]
    assert forbidden_imports("bench.report", {"bench.study.cells", "bench.report.text"}) == ["bench.study.cells"]
    assert forbidden_imports("bench.device_session", {"bench.latency", "bench.command_line"}) == ["bench.latency"]
    assert forbidden_imports("device.agent", {"json", "policy.spec", "onnxruntime"}) == []


def test_paramiko_lives_only_in_device_deploy() -> None:
    users = {
        room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for room in ROOMS
        for path in (ROOT / room.replace(".", "/")).rglob("*.py")
        if any(module.split(".")[0] == "paramiko" for module in imported_modules(path))
    }
    assert users == {"device.deploy"}


def users_of(package: str) -> set[str]:
    """The files of all rooms that import a package."""
    return {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room.replace(".", "/")).rglob("*.py")
        if package in path.read_text(encoding="utf-8")  # most files need not be parsed
        and any(module.split(".")[0] == package for module in imported_modules(path))
    }


def test_ray_lives_only_in_three_files() -> None:
    assert users_of("ray") == {"train/actorq/cluster.py", "train/actorq/processes.py", "bench/study/running.py"}


def test_msgpack_lives_in_one_file() -> None:
    assert users_of("msgpack") == {"airlearning_envs/simulators/airsim/rpc.py"}


def repository_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def test_no_pickle_no_shell_no_blind_trust() -> None:
    words = re.compile(
        r"\bimport pickle\b|allow_pickle\s*=\s*True|shell\s*=\s*True|AutoAddPolicy\(|sys\.path\.(insert|append)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        if path.suffix == ".py" and path not in (Path(__file__), ROOT / "train" / "suites" / "gymnasium_task.py")
        for match in words.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_no_module_shadows_a_package() -> None:
    shadowable = STDLIB | {
        "numpy",
        "onnx",
        "onnxruntime",
        "tensorflow",
        "gymnasium",
        "paramiko",
        "keras",
        "rich",
        "matplotlib",
    }
    # A script's own folder is first on the path, so a file there hides any package of its name.
    names = {path.stem for path in (ROOT / "bench").glob("*.py")} - {"__init__", "__main__"}
    assert not names & shadowable


def test_the_messages_are_those_that_a_review_reads() -> None:
    """To mend: python setup/messages.py, and read what changed in tests/messages."""
    for room in ROOMS_WITH_MESSAGES:
        assert collect_messages(room) == (MESSAGES / f"{room}.txt").read_text(encoding="utf-8"), room


def test_the_prose_linter_finds_a_word_of_ours_and_a_misspelling(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, status in (("Measure anew.\n", 65), ("Measure it seperately.\n", 65), ("Measure again.\n", 0)):
        page.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-m", "codespell_lib", page], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == status, (text, done.stdout, done.stderr)
