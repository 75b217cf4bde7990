"""Deployment on both servers, with a small stand-in agent."""

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
from quarl.device.deploy.deploy import DeployRequest, DeployResult, install
from quarl.device.deploy.device import Device
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.golden import Step
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.ladder import Kept, Loss
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.devices import Site, stand_in_payload, stand_in_wheel


def test_first_deployment(site: Site) -> None:
    steps: list[Step] = []
    ballast = os.urandom(300_000)
    payload = stand_in_payload(site.name, ballast=ballast)
    result = install(site.connection, payload, site.bare, progress=steps.append)
    assert (result.previous, result.unchanged) == (None, False)
    assert result.release == f"0001-{payload.digest[:8]}"
    # What other tests have deployed before (the starter, for example) is not sent again.
    assert result.sent_files + result.reused_files == 4
    assert len(ballast) < result.sent_bytes <= payload.size + 20_000, "an archive of them"
    assert [(check.precision, check.vectors, check.max_error) for check in result.checks] == [("int8", 8, 0.5)]
    sent = [step for step in steps if step.unit == "B"]
    assert [step.done for step in sent] == sorted({step.done for step in sent}), "progress only grows"
    assert sent[-1].done == sent[-1].total == result.sent_bytes
    assert (site.folder / "current").readlink() == Path("releases", result.release)
    assert (site.folder / "current" / "bundle" / "ballast.bin").read_bytes() == ballast
    assert not site.leftovers()
    assert site.served() == "one"
    again = install(site.connection, payload, site.bare)
    assert again.unchanged and again.release == result.release and again.sent_bytes == 0
    assert site.releases() == [result.release]


def test_an_update_sends_only_what_is_new(site: Site) -> None:
    ballast = os.urandom(300_000)
    site.install("old", ballast=ballast)
    text = f"new of {site.name}"  # what another policy has is not sent either
    result = site.install(text, ballast=ballast)
    assert (result.sent_files, result.reused_files) == (1, 3)
    assert result.sent_bytes < 20_000
    assert site.served() == text


def test_three_releases_are_kept(site: Site) -> None:
    results = [site.install(f"text {number}") for number in range(5)]
    assert site.releases() == [result.release for result in results[2:]]
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


def test_removing_old_releases_fails_after_the_switch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = site.bring("a", "b", "c")
    fail_once(monkeypatch, "prune", site.connection.build_lost_error("the device worked on `prune`"))
    result = site.install("d")
    assert site.served() == "d"
    assert (result.previous, result.removed) == (releases[-1], ())
    (warning,) = result.warnings
    assert f"Release {result.release} serves" in warning and "lost while the device worked on `prune`" in warning
    assert "discarded" not in warning
    assert site.releases() == [*releases, result.release]
    again = site.install("e")
    assert (again.removed, again.warnings) == (tuple(releases[:2]), ())


def test_the_serving_release_is_kept_however_old(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = site.bring("a", "b", "c")
    # Back to the oldest, and two deployments after it, the second ended before it could remove anything.
    assert site.rollback(first).release == first
    fail_once(monkeypatch, "publish", site.connection.build_lost_error("publishing"))
    with pytest.raises(HostError, match=f"Release {first} still serves"):
        site.install("d")
    assert site.served() == "a"
    fail_once(monkeypatch, "prune", site.connection.build_lost_error("pruning"))
    fourth = site.install("d").release
    assert site.releases() == [first, *others, fourth]
    # What the oldest of the four holds is deployed: it is not sent, it serves, and three newer ones are there.
    again = site.install("a")
    assert (again.release, again.sent_files, again.removed) == (first, 0, ())
    assert site.releases() == [first, *others, fourth]
    assert site.served() == "a"


def test_current_is_never_absent(site: Site) -> None:
    """Read it as fast as we can while releases come and go: every reading names a release that is there."""
    first = site.install("text 0").release
    link, ended, seen, wrong = site.folder / "current", threading.Event(), {first}, list[str]()

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
    releases = site.bring("text 1", "text 2")
    results_back = [site.rollback() for _ in range(2)]
    ended.set()
    watcher.join()
    assert not wrong
    assert seen == {first, *releases}
    assert results_back[-1].release == first


def test_policies_live_side_by_side(site: Site) -> None:
    second = dataclasses.replace(site, name=f"{site.name}-II")
    site.install("one")
    second.install("two")
    found = list_releases(site.connection)
    assert {site.name, second.name} <= set(found.policies)
    assert (site.served(), second.served()) == ("one", "two")
    assert found.locked_by is None


def test_wheels_are_shared_mended_and_removed_with_the_last_release(site: Site, tmp_path: Path) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", site.name.encode() * 1000)
    with_wheel = dataclasses.replace(site.bare, wheels=(wheel,))
    needs = (wheel.folder,)
    unpacked = site.device.home / "quarl" / "envs" / wheel.folder / "numpy" / "content.bin"

    def bring(policy: str, text: str, wheels: WheelSet, environments: tuple[str, ...]) -> DeployResult:
        payload = stand_in_payload(policy, text, environments=environments)
        return install(site.connection, payload, wheels, wheel_cache=cache)

    assert bring(f"{site.name}-I", "one", with_wheel, needs).wheels_sent == (str(wheel),)
    assert unpacked.read_bytes() == site.name.encode() * 1000
    assert bring(f"{site.name}-II", "one", with_wheel, needs).wheels_sent == (), "shared between policies"

    unpacked.write_bytes(b"")  # a power cut can leave empty files behind
    mended = bring(f"{site.name}-I", "one", with_wheel, needs)
    assert mended.wheels_sent == (str(wheel),) and not mended.unchanged
    assert unpacked.read_bytes() == site.name.encode() * 1000

    for policy in (f"{site.name}-I", f"{site.name}-II"):
        assert unpacked.exists(), "a release of the other policy, or an older one, still needs it"
        for text in ("two", "three", "four"):
            bring(policy, text, site.bare, ())
    assert not unpacked.exists()


@pytest.mark.parametrize("json_wanted", [False, True])
def test_the_command_prints_warnings_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], json_wanted: bool
) -> None:
    request = DeployRequest("pi@pi", "P", (Precision.INT8,), (RuntimeName.LITERT,))
    done = DeployResult(request, "0002-b", "0001-a", False, 1, 1, 0, (), (), (), 1.0, ("the card is slow",))
    monkeypatch.setattr("quarl.device.deploy.deploy.deploy", lambda *args, **options: done)
    monkeypatch.setattr("quarl.policy.locate.working_bundle", lambda name: None)
    monkeypatch.setattr("quarl.policy.ladder.read_ladder", lambda bundle: None)
    kept = Kept("int8.tflite", 0.975, Loss(0.4, 0.1, 0.7, 500))
    monkeypatch.setattr("quarl.policy.ladder.require_artifact", lambda *args: kept)
    connected = contextlib.nullcontext(SimpleNamespace(name="pi@pi"))
    monkeypatch.setattr("quarl.device.deploy.connection.connect", lambda target, identity: connected)
    assert cli.main(["deploy", "--policy", "P", *(["--json"] if json_wanted else [])]) == 0
    printed = capsys.readouterr()
    assert printed.err == "warning: the card is slow\n"
    if json_wanted:
        answer = json.loads(printed.out)
        assert answer["warnings"] == ["the card is slow"] and answer["kept"][0]["return_lost"]["percent"] == 0.4
    else:
        assert "release 0002-b serves" in printed.out
        assert "int8.tflite: agreement 97.5%, return lost 0.40 % [0.10, 0.70], 500 episodes" in printed.out
