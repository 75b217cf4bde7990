"""What lies in a device's home folder is no module of the programs that are started there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from device.host import __main__ as cli
from device.host.agent_session import AgentSession
from device.host.fleet.inventory import Member
from device.host.fleet.status import status_of
from device.host.local_device import running_local_device
from device.host.probe import is_emulated, probe
from policy.bundle import Bundle
from tests.device_host.devices import TestDevice, as_test_device

STANDARD = ("signal", "types", "platform", "json", "struct", "zipfile", "hashlib", "fcntl", "socket", "selectors")
STARTED = ("sitecustomize", "usercustomize")
USUAL = ("--rate", "20", "--fallback", "19", "--priority", "0", "--trial", "0.2", "--most-missed", "1e6")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestDevice, Path]]:
    """The local device with modules wherever a Python that is not isolated looks, and the file that they write."""
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    marker = tmp_path / "executed"
    with running_local_device(tmp_path / "device") as local:
        device = as_test_device(local)
        with device.connect() as connection:
            version = probe(connection).python.series
        packages = device.home / f".local/lib/python{version}/site-packages"
        for folder in (device.home, device.home / "quarl/services", device.home / "quarl", packages):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (*STANDARD, *STARTED):
                (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__file__ + chr(10))\n")
        (packages / "planted.pth").write_text(f"import sys; open({str(marker)!r}, 'a').write('planted.pth')\n")
        yield device, marker


def test_no_module_of_the_home_folder_is_executed(planted: tuple[TestDevice, Path], bundle: Bundle) -> None:
    device, marker = planted

    def run(verb: str, *arguments: str) -> None:
        ended = cli.main([verb, "--target", "local", *arguments])
        assert not marker.exists(), f"{verb}: {marker.read_text()}"
        assert ended == 0, verb

    run("status")
    run("deploy", "--policy", str(bundle.path))
    run("serve", "--policy", "tiny", *USUAL)
    run("serving", "--policy", "tiny")
    with device.connect() as connection:
        with AgentSession(connection, "tiny") as agent:
            agent.request("load", precision="int8", runtime="litert")
            agent.act(bundle.golden().observations[0])
        is_emulated(connection, probe(connection))
    status_of(Member("local"), lambda step: None, {}, None)
    run("releases", "--policy", "tiny")
    run("unserve", "--policy", "tiny")
