"""The library is the same bytes wherever it is compiled, and says nothing of the machine that compiled it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.device import engine
from quarl.device.agent import building as agent_building
from quarl.device.agent import measure
from quarl.device.engine import building
from quarl.device.engine.building import HERE, SHARED, TARGETS, BuildError, compile_engine, library
from quarl.policy.places import ARTIFACTS
from tests.refusals import refused

Compile = Callable[[str], bytes]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles a copy of the sources in another folder, with nothing that was compiled before at hand."""
    folder = tmp_path / "a folder of another name"
    folder.mkdir()
    for source in HERE.rglob("*.[ch]"):
        copy = folder / source.relative_to(HERE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def compile_there(machine: str) -> bytes:
        monkeypatch.setattr(building, "HERE", folder)
        return compile_engine(machine, SHARED)

    return compile_there


@pytest.mark.parametrize(
    "machine", [*list(TARGETS)[:1], *(pytest.param(each, marks=pytest.mark.slow) for each in list(TARGETS)[1:])]
)
def test_another_folder_and_another_cache_give_the_same_bytes(machine: str, elsewhere: Compile, tmp_path: Path) -> None:
    here = compile_engine(machine, SHARED)
    assert elsewhere(machine) == here
    assert list(tmp_path.glob("zig_*_cache_dir/o/*/*")), "the other cache was used"
    assert library(machine).read_bytes() == here


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine", [*list(TARGETS)[:1], *(pytest.param(each, marks=pytest.mark.not_in_ci) for each in list(TARGETS)[1:])]
)
def test_so_does_the_agent(machine: str, elsewhere: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = agent_building.agent(machine).read_bytes()
    elsewhere(machine)  # from now on its folder is the engine's
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR")  # musl, which takes a minute to compile, lies there; the rest does not
    monkeypatch.setattr(building, "KEPT", tmp_path / "kept")
    assert agent_building.agent(machine).read_bytes() == here and list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("machine", TARGETS)
def test_the_library_holds_no_path_of_this_machine_and_needs_no_other(machine: str) -> None:
    made = library(machine).read_bytes()
    ours = {str(HERE), str(ARTIFACTS), str(Path.home()), socket.gethostname()}
    for words in (*(each for each in ours if len(each) > 4), "/tmp/", "/home/", "/usr/", ".cache", "device/engine"):
        assert words.encode() not in made, f"{words!r} is in it"
    assert made.startswith(b"\x7fELF")
    assert b".so." not in made and b"GLIBC" not in made and b"ld-linux" not in made


def test_without_a_compiler_what_the_wheel_brings_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    for module in (building, agent_building, engine):
        monkeypatch.setattr(module, "PREBUILT", tmp_path)
    assert not engine.is_here()
    for machine in TARGETS:
        files = tmp_path / f"engine-{machine}.so", tmp_path / f"agent-{machine}", tmp_path / f"loop-{machine}.so"
        for file in files:
            file.write_bytes(b"")
        assert (library(machine), agent_building.agent(machine), agent_building.loop_library(machine)) == files
    assert engine.is_here()


def test_a_changed_source_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = building.fingerprint()
    (tmp_path / "engine.c").write_text("int nothing;\n")
    monkeypatch.setattr(building, "HERE", tmp_path)
    assert building.fingerprint() != before


def test_a_changed_number_is_another_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "KEPT", tmp_path)
    monkeypatch.setattr(building, "compile_with_options", lambda *_: b"")
    before = agent_building.agent("x86_64")
    assert agent_building.agent("x86_64") == before
    monkeypatch.setitem(measure.PERCENTILES, "p99.95", 0.9995)
    assert agent_building.agent("x86_64") != before


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with refused(BuildError, "build", shows=["'riscv64'", "x86_64"]):
        library("riscv64")
    for name in building.SOURCES:
        (tmp_path / name).write_text("int unfinished = \n")
    monkeypatch.setattr(building, "HERE", tmp_path)
    with pytest.raises(BuildError, match=r"does not compile for x86_64: .*engine.c:1"):
        compile_engine("x86_64", SHARED)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(BuildError, "missing_compiler"):
        building.fingerprint()
