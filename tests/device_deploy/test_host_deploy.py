"""Deployment on both servers, with a small stand-in agent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quarl import cli
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployRequest, DeployResult, install
from quarl.device.deploy.device import Device
from quarl.device.deploy.errors import HostError, ReleaseError, VerificationError
from quarl.device.deploy.golden import Step
from quarl.device.deploy.records import Record
from quarl.device.deploy.releases import list_releases, rollback
from quarl.device.deploy.state import DeviceState, Policy
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.devices import TestDevice, served_text, stand_in_payload, stand_in_wheel


def test_first_deployment(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    steps: list[Step] = []
    ballast = os.urandom(300_000)
    payload = stand_in_payload(name, ballast=ballast)
    result = install(connection, payload, bare, progress=steps.append)
    assert (result.previous, result.unchanged) == (None, False)
    assert result.release == f"0001-{payload.digest[:8]}"
    # What other tests have deployed before (the starter, for example) is not sent again.
    assert result.sent_files + result.reused_files == 4
    assert len(ballast) < result.sent_bytes <= payload.size + 20_000, "an archive of them"
    assert [(check.precision, check.vectors, check.max_error) for check in result.checks] == [("int8", 8, 0.5)]
    sent = [step for step in steps if step.unit == "B"]
    assert [step.done for step in sent] == sorted({step.done for step in sent}), "progress only grows"
    assert sent[-1].done == sent[-1].total == result.sent_bytes
    assert (device.policy_folder(name) / "current").readlink() == Path("releases", result.release)
    assert (device.policy_folder(name) / "current" / "bundle" / "ballast.bin").read_bytes() == ballast
    assert not device.leftovers(name)
    assert served_text(connection, name) == "one"


def test_the_same_again_is_recognised(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    again = install(connection, stand_in_payload(name, "old"), bare)
    assert again.unchanged and again.release == old.release and again.sent_bytes == 0
    assert device.releases(name) == [old.release]


def test_a_damaged_release_is_not_taken_for_the_same(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    (device.policy_folder(name) / "current" / "bundle" / "policy.json").write_bytes(b"[]")
    again = install(connection, stand_in_payload(name, "old"), bare)
    assert not again.unchanged and again.release.startswith("0002-")
    assert (device.policy_folder(name) / "current" / "bundle" / "policy.json").read_bytes() == b"{}"


def test_an_update_sends_only_what_is_new(connection: Connection, name: str, bare: WheelSet) -> None:
    ballast = os.urandom(300_000)
    install(connection, stand_in_payload(name, "old", ballast=ballast), bare)
    text = f"new of {name}"  # what another policy has is not sent either
    result = install(connection, stand_in_payload(name, text, ballast=ballast), bare)
    assert (result.sent_files, result.reused_files) == (1, 3)
    assert result.sent_bytes < 20_000
    assert served_text(connection, name) == text


def test_three_releases_are_kept(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    results = [install(connection, stand_in_payload(name, f"text {number}"), bare) for number in range(5)]
    assert device.releases(name) == [result.release for result in results[2:]]
    assert results[3].removed == (results[0].release,)
    assert [result.release[:4] for result in results] == ["0001", "0002", "0003", "0004", "0005"]


def fail_once(monkeypatch: pytest.MonkeyPatch, op: str, error: HostError) -> None:
    """The next request of this kind does not reach the device."""
    call, left = getattr(Device, op), [error]

    def failing(session: Device, *arguments: Any) -> Any:
        if left:
            raise left.pop()
        return call(session, *arguments)

    monkeypatch.setattr(Device, op, failing)


def test_removing_old_releases_fails_after_the_switch(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = [install(connection, stand_in_payload(name, text), bare).release for text in ("a", "b", "c")]
    fail_once(monkeypatch, "prune", connection.build_lost_error("the device worked on `prune`"))
    result = install(connection, stand_in_payload(name, "d"), bare)
    assert served_text(connection, name) == "d"
    assert (result.previous, result.removed) == (releases[-1], ())
    (warning,) = result.warnings
    assert f"Release {result.release} serves" in warning and "lost while the device worked on `prune`" in warning
    assert "discarded" not in warning
    assert device.releases(name) == [*releases, result.release]
    again = install(connection, stand_in_payload(name, "e"), bare)
    assert (again.removed, again.warnings) == (tuple(releases[:2]), ())


def test_the_serving_release_is_kept_however_old(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (install(connection, stand_in_payload(name, text), bare).release for text in ("a", "b", "c"))
    # Back to the oldest, and two deployments after it, the second ended before it could remove anything.
    assert rollback(connection, name, first).release == first
    fail_once(monkeypatch, "publish", connection.build_lost_error("publishing"))
    with pytest.raises(HostError, match=f"Release {first} still serves"):
        install(connection, stand_in_payload(name, "d"), bare)
    assert served_text(connection, name) == "a"
    fail_once(monkeypatch, "prune", connection.build_lost_error("pruning"))
    fourth = install(connection, stand_in_payload(name, "d"), bare).release
    assert device.releases(name) == [first, *others, fourth]
    # What the oldest of the four holds is deployed: it is not sent, it serves, and three newer ones are there.
    again = install(connection, stand_in_payload(name, "a"), bare)
    assert (again.release, again.sent_files, again.removed) == (first, 0, ())
    assert device.releases(name) == [first, *others, fourth]
    assert served_text(connection, name) == "a"


def test_the_release_that_served_before_is_kept_to_go_back_to(
    connection: Connection, name: str, bare: WheelSet
) -> None:
    first, *_ = (install(connection, stand_in_payload(name, text), bare).release for text in ("a", "b", "c"))
    rollback(connection, name, first)
    fourth = install(connection, stand_in_payload(name, "d"), bare)
    assert (fourth.previous, fourth.removed) == (first, ())
    rollback(connection, name, first)
    assert served_text(connection, name) == "a"


def test_pruning_counts_the_newest_and_the_serving_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself: five releases, the oldest serves."""
    device, names, done = Device.__new__(Device), [f"000{number}-{number:08x}" for number in range(1, 6)], list[str]()
    policy = Policy(names[0], releases=[Record(name) for name in names])
    device.name, device.state = "P", DeviceState({}, {}, {"P": policy}, {})
    monkeypatch.setattr(Device, "read", lambda device: device.state)
    monkeypatch.setattr(Device, "run", lambda device, script, **options: done.append(script))
    assert device.prune(None)["releases"] == [names[1]]
    assert done == [f"erase policies/P/releases/{names[1]}"]
    assert [record.release for record in device.policy.releases] == [names[0], *names[2:]]


def test_current_is_never_absent(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    """Read it as fast as we can while releases come and go: every reading names a release that is there."""
    first = install(connection, stand_in_payload(name, "text 0"), bare).release
    link, ended, seen, wrong = device.policy_folder(name) / "current", threading.Event(), {first}, list[str]()

    def watch() -> None:
        while not ended.is_set():
            try:
                target = link.readlink()
                if not (link.parent / target / "run-agent").is_file():
                    wrong.append(f"{target} is not whole")
                seen.add(target.name)
            except FileNotFoundError:
                wrong.append("absent")

    watcher = threading.Thread(target=watch)
    watcher.start()
    results = [install(connection, stand_in_payload(name, f"text {number}"), bare) for number in (1, 2)]
    results_back = [rollback(connection, name) for _ in range(2)]
    ended.set()
    watcher.join()
    assert not wrong
    assert seen == {first, *(result.release for result in results)}
    assert results_back[-1].release == first


@pytest.mark.slow
def test_rollback_and_forward(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    first, second, third = (install(connection, stand_in_payload(name, text), bare) for text in ("a", "b", "c"))
    back = rollback(connection, name)
    assert (back.release, back.previous) == (second.release, third.release)
    assert len(back.checks) == 1
    assert served_text(connection, name) == "b"
    assert rollback(connection, name).release == first.release
    with pytest.raises(ReleaseError, match=f"no release of {name} before {first.release}"):
        rollback(connection, name)
    assert rollback(connection, name, third.release).release == third.release
    with pytest.raises(ReleaseError, match="there is no release 0099-x"):
        rollback(connection, name, "0099-x")
    # Deploying what a kept release holds switches to it and sends nothing.
    again = install(connection, stand_in_payload(name, "a"), bare)
    assert (again.release, again.sent_bytes, again.unchanged) == (first.release, 0, False)
    assert served_text(connection, name) == "a"
    assert device.releases(name) == [first.release, second.release, third.release]


def test_rollback_to_a_damaged_release_is_refused(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    new = install(connection, stand_in_payload(name, "new"), bare)
    (device.policy_folder(name) / "releases" / old.release / "lib" / "agent.py").write_text("")
    with pytest.raises(VerificationError, match=f"lib/agent.py.*Release {new.release} still serves"):
        rollback(connection, name)
    assert served_text(connection, name) == "new"


def test_policies_live_side_by_side(connection: Connection, name: str, bare: WheelSet) -> None:
    install(connection, stand_in_payload(f"{name}-I", "one"), bare)
    install(connection, stand_in_payload(f"{name}-II", "two"), bare)
    found = list_releases(connection)
    assert {f"{name}-I", f"{name}-II"} <= set(found.policies)
    assert (served_text(connection, f"{name}-I"), served_text(connection, f"{name}-II")) == ("one", "two")
    assert found.locked_by is None


def test_wheels_are_shared_mended_and_removed_with_the_last_release(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, tmp_path: Path
) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", name.encode() * 1000)
    with_wheel = dataclasses.replace(bare, wheels=(wheel,))
    needs = (wheel.folder,)
    unpacked = device.home / "quarl" / "envs" / wheel.folder / "numpy" / "content.bin"

    def bring(policy: str, text: str, wheels: WheelSet, environments: tuple[str, ...]) -> DeployResult:
        payload = stand_in_payload(policy, text, environments=environments)
        return install(connection, payload, wheels, wheel_cache=cache)

    assert bring(f"{name}-I", "one", with_wheel, needs).wheels_sent == (str(wheel),)
    assert unpacked.read_bytes() == name.encode() * 1000
    assert bring(f"{name}-II", "one", with_wheel, needs).wheels_sent == (), "shared between policies"

    unpacked.write_bytes(b"")  # a power cut can leave empty files behind
    mended = bring(f"{name}-I", "one", with_wheel, needs)
    assert mended.wheels_sent == (str(wheel),) and not mended.unchanged
    assert unpacked.read_bytes() == name.encode() * 1000

    for policy in (f"{name}-I", f"{name}-II"):
        assert unpacked.exists(), "a release of the other policy, or an older one, still needs it"
        for text in ("two", "three", "four"):
            bring(policy, text, bare, ())
    assert not unpacked.exists()


@pytest.mark.parametrize("json_wanted", [False, True])
def test_the_command_prints_warnings_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], json_wanted: bool
) -> None:
    request = DeployRequest("pi@pi", "P", (Precision.INT8,), (RuntimeName.LITERT,))
    done = DeployResult(request, "0002-b", "0001-a", False, 1, 1, 0, (), (), (), 1.0, ("the card is slow",))
    monkeypatch.setattr("quarl.device.deploy.deploy.deploy", lambda *args, **options: done)
    monkeypatch.setattr("quarl.policy.locate.working_bundle", lambda name: SimpleNamespace(artifact=lambda *args: None))
    connected = contextlib.nullcontext(SimpleNamespace(name="pi@pi"))
    monkeypatch.setattr("quarl.device.deploy.connection.connect", lambda target, identity: connected)
    assert cli.main(["deploy", "--policy", "P", *(["--json"] if json_wanted else [])]) == 0
    printed = capsys.readouterr()
    assert printed.err == "warning: the card is slow\n"
    if json_wanted:
        assert json.loads(printed.out)["warnings"] == ["the card is slow"]
    else:
        assert "release 0002-b serves" in printed.out
