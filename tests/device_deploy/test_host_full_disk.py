"""A device whose disk is too small or takes no changes: in a mount namespace of its own, gone with the server."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl.device.deploy import loops
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.deploy import RESERVE, deploy
from quarl.device.deploy.device import open_device
from quarl.device.deploy.errors import DeviceFullError, ReleaseError, RemoteCommandError, UnsupportedDeviceError
from quarl.device.deploy.golden import Step
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.shell import VERIFIER
from quarl.device.deploy.signing.lists import SIGNERS_FILE
from quarl.device.deploy.switching import begin
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.conftest import new_site
from tests.device_deploy.devices import Site, TestDevice, as_test_device, stand_in_wheel
from tests.namespaces import own

MEGABYTE = 1_000_000


@contextlib.contextmanager
def small_device(root: Path, megabytes: int, inodes: int = 0) -> Iterator[TestDevice]:
    """A device whose home is a tmpfs of that size. It cannot be looked into from outside, only over SSH."""
    (root / "home").mkdir(parents=True)
    mount = f'mount -t tmpfs -o size={megabytes}m,nr_inodes={inodes} tmpfs "{root}/home" && exec "$@"'
    prefix = (*own("mount"), "sh", "-c", mount, "sh")
    with running_local_device(root, command_prefix=prefix) as local:
        device = as_test_device(local)
        with device.connect() as connection:
            signers = device.home / "quarl" / "trust" / SIGNERS_FILE
            connection.run(f"mkdir -p quarl/trust; cat > quarl/trust/{SIGNERS_FILE}", stdin=signers.read_bytes())
        yield device


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A small device, on which an old release serves."""
    with small_device(tmp_path / "small", 40) as device, device.connect() as connection:
        made = new_site(device, connection)
        made.install("old")
        yield made


def assert_old_serves_and_nothing_is_left(site: Site) -> None:
    found = site.state()
    assert [release.name for release in found.releases] == [found.current]
    assert site.connection.run(f"ls -A quarl/policies/{site.name}/incoming").stdout == ""
    assert site.connection.run("find quarl/envs -name '*.part' 2>/dev/null || true").stdout == ""
    assert site.served() == "old"


def test_too_little_room_is_found_before_anything_is_sent(site: Site) -> None:
    steps: list[Step] = []
    with pytest.raises(DeviceFullError, match=r"5\d\.\d MB are needed.*still serves") as caught:
        site.install("new", ballast=bytes(45 * MEGABYTE), progress=steps.append)
    assert "df -h" in caught.value.next_step
    assert not [step for step in steps if step.unit == "B"]
    free = list_releases(site.connection).free_bytes
    with pytest.raises(DeviceFullError):  # it would just fit, and leave less than the reserve
        site.install("new", ballast=bytes(free - RESERVE // 2))
    assert_old_serves_and_nothing_is_left(site)


def fill(device: TestDevice) -> None:
    """Somebody else takes the rest of the disk meanwhile."""
    with device.connect() as other:
        other.run("cat /dev/zero > filler 2>/dev/null", check=False)


def test_the_disk_fills_while_files_are_sent(site: Site) -> None:
    filled: list[bool] = []

    def progress(step: Step) -> None:
        if step.unit == "B" and not filled:
            filled.append(True)
            fill(site.device)

    ballast = os.urandom(10 * MEGABYTE)
    with pytest.raises(DeviceFullError, match="still serves"):
        site.install("new", ballast=ballast, progress=progress)
    assert filled
    assert_old_serves_and_nothing_is_left(site)
    site.connection.run("rm filler")
    assert site.install("new", ballast=ballast).release.startswith("0002-")


def test_the_disk_fills_while_a_wheel_is_unpacked(site: Site, tmp_path: Path) -> None:
    """A wheel that is small on the way and large on the disk, so that the writing fails on the device's side."""
    wheel, cache = stand_in_wheel(tmp_path / "cache", bytes(8 * MEGABYTE))
    with_wheel = dataclasses.replace(site, bare=dataclasses.replace(site.bare, wheels=(wheel,)))
    filled: list[bool] = []

    def progress(step: Step) -> None:
        if step.name.startswith("send numpy") and not filled:
            filled.append(True)
            fill(site.device)
            with site.device.connect() as other:  # room for the packed wheel, not for the unpacked one
                other.run("truncate -s -1000000 filler")

    with pytest.raises(DeviceFullError, match="still serves"):
        with_wheel.install("new", progress=progress, wheel_cache=cache)
    assert filled
    assert_old_serves_and_nothing_is_left(site)
    assert list_releases(site.connection).environments == ()


def test_whose_rollout_it_is_needs_no_room(site: Site) -> None:
    """On a full disk the switch goes on, the mark of the rollout before is ended, and so is one of our own."""
    first, second = ({"rollout": name, "host": "h", "user": "u", "time": 1} for name in ("first", "second"))
    new = site.install("new", rollout=first).release
    fill(site.device)
    old = site.install("old", rollout=second).release
    assert site.state().current == old != new
    with open_device(site.connection) as session:
        assert begin(session, site.name, None, 0.0)["rollout"] == {**first, "ended": True}
    site.connection.run("rm filler")
    site.install("new", rollout=second)
    fill(site.device)
    with open_device(site.connection) as session:
        assert begin(session, site.name, None, 0.0)["rollout"] == {**second, "ended": False}
        session.end_rollout("first")
        assert session.show()["policies"][site.name]["rollout"]["ended"] is False, "it is another's"
        session.end_rollout("second")
        assert session.show()["policies"][site.name]["rollout"] == {**second, "ended": True}


def test_the_real_agent_goes_on_when_a_second_runtime_does_not_fit(tmp_path: Path, bundle: Bundle) -> None:
    with small_device(tmp_path / "small", 190) as device, device.connect() as connection:
        old = deploy(connection, bundle, [Precision.INT8])
        with pytest.raises(DeviceFullError, match=f"Release {old.release} still serves"):
            deploy(connection, bundle, [Precision.INT8], [RuntimeName.ONNXRUNTIME])
        with AgentSession(connection, "tiny") as agent:
            assert agent.request("load", precision="int8")["golden"]["vectors"] >= 32
        assert len(list_releases(connection).environments) == 2


def test_a_disk_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    """And what serves starts all the same."""
    with small_device(tmp_path / "small", 40, inodes=60) as device, device.connect() as connection:
        site = new_site(device, connection)
        release = site.install("old").release
        connection.run("i=0; while : > filler.$i; do i=$((i + 1)); done 2>/dev/null", check=False)
        with pytest.raises(DeviceFullError) as caught:
            site.install("new")
        assert "inode" in caught.value.message and "df -i" in caught.value.next_step
        assert site.served() == "old"
        assert [(each.name, each.bad) for each in site.state().releases] == [(release, "")]


def mounted(folder: Path, option: str) -> tuple[str, ...]:
    """The words in front of a command for which a folder is mounted so; outside it is as before."""
    mount = f'mount --bind "{folder}" "{folder}" && mount -o "remount,bind,{option}" "{folder}" && exec "$@"'
    return (*own("mount"), "sh", "-c", mount, "sh")


@contextlib.contextmanager
def mounted_device(root: Path, option: str) -> Iterator[TestDevice]:
    """A device whose home is mounted so."""
    (root / "home").mkdir(parents=True)
    with running_local_device(root, command_prefix=mounted(root / "home", option)) as local:
        yield as_test_device(local)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[TestDevice]:
    """A device whose home takes no changes but from outside."""
    with mounted_device(tmp_path / "device", "ro") as device:
        yield device


@pytest.mark.parametrize("has_folder", [False, True])
def test_who_looks_at_a_disk_that_takes_no_changes_sees_what_is_there(read_only: TestDevice, has_folder: bool) -> None:
    """A change is refused with the reason and what to do."""
    folder = read_only.home / "quarl"
    if not has_folder:
        shutil.rmtree(folder)
    with read_only.connect() as connection:
        assert not list_releases(connection).policies
        with pytest.raises(ReleaseError), AgentSession(connection, "S"):
            pass
        with open_device(connection) as session:
            assert len(session.signers((), (), None)["signers"]) == has_folder
            assert loops.serving(session, "S") == {"settings": None}
            with pytest.raises(RemoteCommandError) as caught:
                begin(session, "S", None, 0.0)
            assert f"{session.pid}" not in caught.value.message
        assert "Read-only file system" in caught.value.message and "remount" in caught.value.next_step
    assert folder.exists() is has_folder


def test_bytecode_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "envs" / "numpy"
    (wheel / "__pycache__").mkdir(parents=True)
    (wheel / "__pycache__" / "a.pyc").touch()
    (wheel / "a.py").touch()
    (wheel / ".quarl-wheel.json").write_text(json.dumps({"files": {"a.py": [0, hashlib.sha256().hexdigest()]}}))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        wheels = str(VERIFIER.with_name("wheels.py"))
        command = [*mounted(tmp_path, "ro"), "env", "-C", str(tmp_path), sys.executable, wheels]
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False)

    (wrong,) = json.loads(run("compare", "numpy").stdout)["folders"]["numpy"]["wrong"]
    assert wrong.startswith("__pycache__ ") and "Read-only file system" in wrong
    refused = run("unpack", "none.whl", "", "numpy")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)


def test_a_noexec_home_starts_a_release_and_serves_none(tmp_path: Path) -> None:
    settings = loops.Settings(("--rate=20",), False, None, 30.0, 1 << 30, 0.1, 1e6)
    with mounted_device(tmp_path / "device", "noexec") as device, device.connect() as connection:
        site = new_site(device, connection)
        site.install("new")
        assert site.served() == "new"
        before = sorted(device.home.rglob("*"))
        with open_device(connection) as session:
            begin(session, site.name, None, 0.0)
            with pytest.raises(UnsupportedDeviceError, match="noexec") as caught:
                loops.serve(session, settings, lambda done, total: None)
        assert "exec" in caught.value.next_step and sorted(device.home.rglob("*")) == before
