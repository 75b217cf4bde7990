"""An embedded fleet for the tests of rollouts: real SSH, one policy at two precisions, a fleet.toml for each test."""

import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.convert.pipeline import convert_each, missing
from quarl.device.deploy.fleet.journal import events
from quarl.device.deploy.fleet.rollout import Rollout
from quarl.device.deploy.records import RECORD_FILE, parse_record
from quarl.device.deploy.signing.keys import VARIABLE
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import ArtifactFormat, Precision
from tests.device_deploy.fleet.faulty_fleet import LocalFleet, running_fleet

DEVICES = 9
_numbers = itertools.count(1)


@contextlib.contextmanager
def own_state(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """No name, key or setting of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("HOME", str(folder))
        patch.delenv(VARIABLE, raising=False)
        yield patch


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Policy I in int8 and int4 for the native engine: two releases; tests must not change it."""
    folder = tmp_path_factory.mktemp("bundle") / "I"
    shutil.copytree(ZOO / "I", folder)
    for precision in (Precision.INT8, Precision.INT4):
        convert_each(missing([(Bundle.load(folder), precision, ArtifactFormat.NATIVE)]))
    return Bundle.load(folder)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with own_state(folder), running_fleet(folder / "fleet", DEVICES) as fleet:
        yield fleet


@dataclass
class Arena:
    """Devices of a fleet that a test has for itself, under a fleet.toml of its own."""

    devices: LocalFleet
    policy: Bundle
    file: Path
    capture: pytest.CaptureFixture[str]

    def write(self, names: list[str], more: str = "") -> None:
        self.file.write_text(f"[groups.arena]\ntargets = {json.dumps(names)}\nagent = 'native'\n{more}")

    def typed(self, *words: str) -> tuple[int, list[dict[str, Any]], str]:
        """A verb of fleet in this process: exit status, its lines of JSON, and standard error."""
        self.capture.readouterr()
        status = cli.main(["fleet", *words, "--fleet", str(self.file), "--json"])
        output = self.capture.readouterr()
        return status, [json.loads(line) for line in output.out.splitlines()], output.err

    def deploy(self, bits: int = 8, *words: str, soak: float = 0) -> tuple[int, list[dict[str, Any]], dict[str, str]]:
        """A rollout: exit status, its events, and the last state of each device."""
        options = ["--policy", str(self.policy.path), "--bits", str(bits), "--soak", str(soak), *words]
        status, lines, _ = self.typed("deploy", *options)
        return status, lines, last_states(lines)

    def serving(self, name: str) -> str | None:
        """The precision of the release that a device serves, as its files say."""
        release = self.devices.folder(name).home / "quarl" / "policies" / "I" / "current"
        if not release.is_symlink():
            return None
        return parse_record(release.name, "I", (release / RECORD_FILE).read_text()).precisions[0]

    def served(self, names: list[str]) -> dict[str, str | None]:
        return {name: self.serving(name) for name in names}

    def half_done(self, names: list[str]) -> list[str]:
        found: list[str] = []
        for name in names:
            folder = self.devices.folder(name).home / "quarl" / "policies" / "I"
            found += [str(path) for pattern in ("incoming/*", "current.*") for path in folder.glob(pattern)]
        return found

    def is_idle(self, names: list[str]) -> bool:
        for name in names:
            lock = self.devices.folder(name).home / "quarl" / "lock"
            if lock.exists() and subprocess.run(["flock", "-n", str(lock), "true"]).returncode:
                return False
        return True

    def journal(self) -> list[dict[str, Any]]:
        return events(self.file.with_name("fleet.journal.jsonl"))


def last_states(lines: list[dict[str, Any]]) -> dict[str, str]:
    """The state of each device at a rollout's end; empty where none began."""
    return next((dict(line["states"]) for line in lines if line.get("event") == "end"), {})


def summary(lines: list[dict[str, Any]]) -> Mapping[str, Any]:
    return lines[-1]


@pytest.fixture
def arena(running: LocalFleet, policy: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Arena]:
    """The fleet with nothing on it: the test before may have left anything."""
    for name in running.names:
        running.heal(name)
        shutil.rmtree(running.folder(name).home / "quarl", ignore_errors=True)
    made = Arena(running, policy, tmp_path / "fleet.toml", capsys)
    made.write(list(running.names[:6]))
    yield made
    for name in running.names:
        running.heal(name)


@pytest.fixture
def at_soak(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen once, when the first phase begins to be watched, whatever the machine's speed."""

    def happens(action: Callable[[], object]) -> None:
        watched, waiting = Rollout._soak, [action]

        def soak(rollout: Rollout, *arguments: Any) -> None:
            while waiting:
                waiting.pop()()
            watched(rollout, *arguments)

        monkeypatch.setattr(Rollout, "_soak", soak)

    return happens
