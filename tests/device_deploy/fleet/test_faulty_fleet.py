"""The faults that tests of rollouts inject are those that they say, and go again."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from quarl.device.deploy import handshake, switching
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import ConnectionFailedError, ConnectionLostError
from quarl.device.deploy.probe import probe
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import eventually, runs, served_text, stand_in_payload
from tests.device_deploy.fleet.faulty_fleet import FAULT_FILE, Fault, LocalFleet

NAME = "device-001"


@pytest.fixture
def fleet(running: LocalFleet) -> Iterator[LocalFleet]:
    """The fleet of this file; whatever a test does to its device, the next one finds it well."""
    yield running
    running.heal(NAME)


def deploy(text: str) -> DeployResult:
    with connect(NAME) as connection:
        return install(connection, stand_in_payload("S", text), WheelSet(probe(connection).python, ()))


def serving() -> str:
    with connect(NAME) as connection:
        return served_text(connection, "S")


def is_dead(fleet: LocalFleet) -> bool:
    return (fleet.folder(NAME).root / FAULT_FILE).read_text() == Fault.UNREACHABLE


def test_unreachable_and_silent(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.set_fault(NAME, Fault.UNREACHABLE)
    with pytest.raises(ConnectionFailedError), connect(NAME):
        pass
    with connect("device-002") as other:
        assert other.run("echo well").stdout == "well\n"
    fleet.set_fault(NAME, Fault.SILENT)
    with monkeypatch.context() as patch:
        patch.setattr(handshake, "CONNECT_TIMEOUT_S", 0.7)
        begun = time.monotonic()
        with pytest.raises(ConnectionFailedError), connect(NAME):
            pass
        assert time.monotonic() - begun >= 0.7
    fleet.heal(NAME)
    with connect(NAME) as connection:
        assert connection.run("echo well").stdout == "well\n"


@pytest.mark.parametrize(("fault", "serves"), [(Fault.DIES_BEFORE_SWITCH, "old"), (Fault.DIES_AFTER_SWITCH, "new")])
def test_it_dies_in_the_switch(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch, fault: Fault, serves: str) -> None:
    monkeypatch.setattr(switching, "PAUSE_S", 0.05)
    deploy("old")
    with connect(NAME) as bystander:
        process = bystander.start("echo $$; exec sleep 1000")
        pid = int(process.read_line(10))
        fleet.set_fault(NAME, fault)
        with pytest.raises(ConnectionLostError, match="is unknown"):
            deploy("new")
        assert eventually(lambda: not bystander.alive) and eventually(lambda: not runs(pid))
    assert is_dead(fleet)
    with pytest.raises(ConnectionFailedError), connect(NAME):
        pass
    fleet.heal(NAME)
    assert serving() == serves
    folder = fleet.folder(NAME).home / "quarl" / "policies" / "S"
    assert [*(folder / "incoming").iterdir(), *folder.glob("current.*")] == []
    deploy("newer")
    assert serving() == "newer"


def test_the_old_release_serves_where_the_device_comes_back_in_time(fleet: LocalFleet) -> None:
    deploy("old")
    fleet.set_fault(NAME, Fault.DIES_BEFORE_SWITCH)
    with ThreadPoolExecutor(1) as pool:
        deployment = pool.submit(deploy, "new")
        assert eventually(lambda: is_dead(fleet))
        fleet.heal(NAME)
        with pytest.raises(ConnectionLostError, match=r"\d{4}-\w+ still serves"):
            deployment.result(30)
