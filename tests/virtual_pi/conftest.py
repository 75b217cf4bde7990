"""One virtual Pi for the integration tests, in folders of its own, beside whatever the user runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarl.convert.pipeline import convert_all
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import programs, running
from quarl.device.virtual_pi.image import base_folder, ensure_image, load_image
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.device.virtual_pi.recipe import recipe_hash
from quarl.device.virtual_pi.running import Running, Started
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.places import ZOO, cache_folder
from quarl.policy.spec import ArtifactFormat, Precision

NAME = "under-test"
NEW = (Precision.INT8, Precision.FP32)


def serving(connection: Connection, precision: Precision = Precision.INT8) -> dict[str, Any]:
    """What the current release's agent says after it verified every golden vector."""
    with AgentSession(connection, "I") as agent:
        return agent.request("load", precision=precision.value)


def state(connection: Connection) -> tuple[str | None, list[str], str]:
    """(current release, all releases, what lies in incoming/ and unfinished links)."""
    found = list_releases(connection).policies["I"]
    rest = connection.run("cd quarl/policies/I; ls incoming 2>/dev/null; ls -d current.* 2>/dev/null; true").stdout
    return found.current, [release.name for release in found.releases], rest.strip()


def cut_power(name: str) -> None:
    """End a machine as a pulled plug does: at once, with whatever is in flight lost."""
    machine = running.find(name)
    if machine is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.pid, signal.SIGKILL)
        running._wait_for_end(machine, 5.0)
    running._forget(name)


class VirtualPi:
    """The machine under test: its card lives on from start to start."""

    name = NAME

    def start(self, settings: MachineSettings | None = None, *, fresh: bool = False) -> Started:
        return running.start(self.name, settings, fresh=fresh)

    def up(self) -> Running:
        """The machine, started as a Pi 3b if it does not run."""
        return running.find(self.name) or self.start().machine

    def cut_power(self) -> None:
        cut_power(self.name)

    def stop(self) -> None:
        running.stop(self.name)

    def connect(self, user: str = "pi"):  # type: ignore[no-untyped-def]  # a context manager of Connection
        return connect(Target.parse(f"{user}@{self.name}"))

    def root(self, command: str) -> str:
        """Run a command as root."""
        with self.connect("root") as connection:
            return connection.run(command).stdout


@pytest.fixture(scope="module")  # its variables are other tests' no longer when a file is done
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG folders of the tests' own, with the user's image (built if there is none) and the user's wheels in them."""
    if programs.missing_packages([programs.BUILDING, programs.RUNNING]):
        pytest.skip("QEMU and the image's tools are not installed; `make pi` names the packages")
    if os.geteuid() != 0 and load_image(base_folder() / "images" / recipe_hash()) is None:
        pytest.skip("building an image needs root")
    base = tmp_path_factory.mktemp("virtual-pi")
    image, wheels = ensure_image(print), cache_folder() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    copied = base / "cache" / "quarl" / "virtual-pi" / "images" / image.folder.name
    copied.parent.mkdir(parents=True, mode=0o700)
    subprocess.run(["cp", "-a", "--sparse=always", str(image.folder), str(copied)], check=True)
    (base / "cache" / "quarl" / "wheels").symlink_to(wheels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def pi(own_folders: Path) -> Iterator[VirtualPi]:
    """The machine; no process of it or of another machine of these tests is left behind."""
    yield VirtualPi()
    for machine in running.all_running():
        running.stop(machine.name)
    assert running.all_running() == []


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The repository's policy I with its artifacts."""
    path = tmp_path_factory.mktemp("bundles") / "I"
    copy_bundle(Bundle.load(ZOO / "I"), path, "zoo")
    convert_all([Bundle.load(path)], list(NEW), [ArtifactFormat.TFLITE, ArtifactFormat.NATIVE])
    return Bundle.load(path)
