"""The power is cut at each change of a device's disk: a whole release serves, and the next try works."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.device.deploy import loops, releases
from quarl.device.deploy.deploy import install
from quarl.device.deploy.device import open_device
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.probe import PythonFacts
from quarl.device.deploy.releases import remove_releases, rollback
from quarl.device.deploy.shell import VERIFIER
from quarl.device.deploy.signing.keys import ensure_key
from quarl.device.deploy.state import DeviceState
from quarl.device.deploy.switching import begin
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import let_sign, signing_key
from tests.device_deploy.power import Device, copy
from tests.device_deploy.test_host_supervisor import POLICY, SETTINGS, payload

PYTHON = PythonFacts("python3", (3, 11, 2), 64, "")
BARE = WheelSet(PYTHON, ())
LOSSES = "everything", "content"


def deploy(pi: Device, text: str) -> str:
    return install(pi.connect(), payload(text), BARE).release


def state(pi: Device) -> DeviceState:
    with open_device(pi.connect()) as session:
        return session.read()


def serves(pi: Device) -> str:
    """The release that serves, which the device verifies, every file of it."""
    current = state(pi).of(POLICY).current
    assert current is not None
    words = ["sh", str(VERIFIER), "check", POLICY, f"{pi.home}/quarl/policies/{POLICY}/current"]
    done = subprocess.run(words, env={"HOME": str(pi.home), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.stdout == "quarl-launch ok\n", done
    return current


def cut_everywhere(
    pi: Device,
    before: Callable[[], object],
    work: Callable[[], object],
    holds: Callable[[bool], object],
    is_done: Callable[[], bool],
) -> int:
    """Cut the power at each change that ``work`` makes, after ``before``; see what holds then, whatever was lost.

    Where it comes to its end, it is done whatever is lost: what a command has reported is on the disk. ``holds`` is
    told whether to try the next step, too.

    Returns:
        How many cuts there were.
    """
    pi.power_on()
    before()
    pi.power_off()
    whole, cuts, has_ended = pi.root / "whole", 0, False
    copy(pi.home, whole)
    while not has_ended:
        copy(whole, pi.home)
        pi.settle()
        pi.power_on(cuts + 1)
        try:
            work()
            has_ended = pi.is_active()
        except HostError:
            assert not pi.is_active()
        pi.power_off()
        lose = pi.copy()
        for how in LOSSES:
            lose(how)
            pi.power_on()
            try:
                assert not has_ended or is_done()
                holds(how == LOSSES[-1])
            except BaseException as error:
                error.add_note(f"cut at change {cuts + 1}, {how} lost, it had {'ended' if has_ended else 'not ended'}")
                raise
            pi.power_off()
        cuts += not has_ended
    return cuts


pytestmark = pytest.mark.slow


@pytest.fixture
def pi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    facts = type("Facts", (), {"python": PYTHON})
    monkeypatch.setattr(releases, "probe", lambda connection: facts)
    found = Device(tmp_path / "pi")
    let_sign(found.home)
    return found


def test_deploy(pi: Device) -> None:
    def holds(should_continue: bool) -> None:
        assert serves(pi)[:4] in ("0001", "0002")
        assert not should_continue or deploy(pi, "three") == serves(pi)

    cuts = cut_everywhere(
        pi, lambda: deploy(pi, "one"), lambda: deploy(pi, "two"), holds, lambda: serves(pi).startswith("0002")
    )
    assert cuts > 10


def test_a_first_deployment(pi: Device) -> None:
    def holds(should_continue: bool) -> None:
        assert not should_continue or deploy(pi, "two") == serves(pi)

    assert cut_everywhere(pi, lambda: None, lambda: deploy(pi, "one"), holds, lambda: bool(serves(pi))) > 10


def test_rollback_and_mark_bad(pi: Device) -> None:
    made: list[str] = []

    def before() -> None:
        made.extend(deploy(pi, text) for text in ("one", "two"))

    def is_done() -> bool:
        policy = state(pi).of(POLICY)
        return policy.current == made[0] and policy.marks[made[1]].kind == "bad"

    def holds(should_continue: bool) -> None:
        assert serves(pi) in made
        assert not should_continue or rollback(pi.connect(), POLICY, made[0]).release == serves(pi)

    def work() -> None:
        rollback(pi.connect(), POLICY, mark_bad_too=True)

    assert cut_everywhere(pi, before, work, holds, is_done) > 5


def test_remove(pi: Device) -> None:
    made: list[str] = []

    def before() -> None:
        made.extend(deploy(pi, text) for text in ("one", "two", "three"))

    def holds(should_continue: bool) -> None:
        assert serves(pi) == made[-1]
        if should_continue:
            remove_releases(pi.connect(), POLICY)
            assert deploy(pi, "four") == serves(pi)

    def is_done() -> bool:
        return [record.release for record in state(pi).of(POLICY).releases] == made[-1:]

    assert cut_everywhere(pi, before, lambda: remove_releases(pi.connect(), POLICY), holds, is_done) > 1


def test_signers(pi: Device, tmp_path: Path) -> None:
    old, new = ensure_key(tmp_path, "old"), ensure_key(tmp_path, "new")

    def before() -> None:
        let_sign(pi.home, signing_key(), old)
        deploy(pi, "one")

    def change() -> None:
        with open_device(pi.connect()) as session:
            session.signers([new.public], [old.public], None)

    def holds(should_continue: bool) -> None:
        trust = state(pi).trust
        signers, revoked = ("".join(trust[name]) for name in ("signers", "revoked"))
        assert signing_key().public in signers, "nobody is lost who counts"
        assert old.public in signers or old.public in revoked, "nor who does not"
        assert serves(pi)
        if should_continue:
            change()

    def is_done() -> bool:
        trust = state(pi).trust
        return old.public in "".join(trust["revoked"]) and new.public in "".join(trust["signers"])

    assert cut_everywhere(pi, before, change, holds, is_done) > 3


def test_serve(pi: Device) -> None:
    def serve() -> None:
        with open_device(pi.connect()) as session:
            begin(session, POLICY, None, 0.0)
            loops.serve(session, SETTINGS, lambda done, total: None)

    def settings() -> bool:
        return loops.settings_of(state(pi), POLICY, "pi") == SETTINGS

    def holds(should_continue: bool) -> None:
        assert serves(pi).startswith("0001")
        served = loops.settings_of(state(pi), POLICY, "pi")
        assert served in (None, SETTINGS)

    assert cut_everywhere(pi, lambda: deploy(pi, "one"), serve, holds, settings) > 3
