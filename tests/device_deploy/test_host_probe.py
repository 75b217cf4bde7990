"""What a probe's output means; the outputs are those of real systems, shortened."""

import dataclasses
import re
from importlib import import_module
from pathlib import Path

import pytest

from quarl.device.agent.fingerprint import fingerprint
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import RemoteCommandError, UnsupportedDeviceError
from quarl.device.deploy.fleet.status import _ailments
from quarl.device.deploy.probe import PROBE_SCRIPT, PythonFacts, is_emulated, parse_facts, probe
from quarl.device.deploy.wheels import select
from quarl.policy.spec import RuntimeName

PI = """Welcome to the flying machine = fun
machine=aarch64
kernel=Linux 6.6.31+rpt-rpi-v8
home=/home/pi
glibc=glibc 2.36
disk=/dev/mmcblk0p2 30000000 5000000 24000000 18% /
memory=MemTotal:         945364 kB MemAvailable:     612000 kB
model=Raspberry Pi 3 Model B Rev 1.2
temperatures=48312 0 999999
throttled=throttled=0x50001
python=/usr/bin/python3|3.11.2|64||cpython
python=/usr/bin/python3.11|3.11.2|64||cpython
end=1
"""


def test_a_pi_3b() -> None:
    facts = parse_facts(PI, "pi")
    assert facts.machine == "aarch64"
    assert facts.glibc == (2, 36)
    assert facts.free_disk_bytes == 24_000_000 * 1024
    assert facts.memory_total_bytes == 945_364 * 1024
    assert facts.model == "Raspberry Pi 3 Model B Rev 1.2"
    assert facts.pythons == (PythonFacts("/usr/bin/python3", (3, 11, 2), 64),), "the same interpreter is named once"
    assert "Raspberry Pi 3" in facts.summary()
    # Raspberry Pi OS 32-bit: uname says aarch64, but its Python loads 32-bit wheels only.
    assert parse_facts(PI.replace("|64|", "|32|"), "pi").machine == "armv7l"
    assert parse_facts(PI.replace("cpython", "pypy"), "pi").pythons == (), "no interpreter for wheels"
    assert parse_facts(PI.replace("glibc=glibc 2.36", "glibc="), "pi").glibc is None, "musl"
    bare = parse_facts(re.sub("(?m)^(temperatures|throttled)=.*$", r"\1=", PI), "pi")
    assert bare.temperature_c is None and bare.throttled is None and bare.summary().endswith("GB disk free")
    with pytest.raises(RemoteCommandError, match="POSIX shell"):
        parse_facts(PI.replace("end=1\n", ""), "pi")


@pytest.mark.parametrize(("word", "now", "occurred", "words"), [
    ("throttled=0x50001", ("under-voltage",), ("under-voltage", "throttled"), ("under-voltage now", "throttled since")),
    ("50000", (), ("under-voltage", "throttled"), ("under-voltage since boot", "throttled since boot")),
    ("0", (), (), ("not throttled since boot",)),
])  # fmt: skip
def test_status_shows_temperature_and_throttling(
    word: str, now: tuple[str, ...], occurred: tuple[str, ...], words: tuple[str, ...]
) -> None:
    facts = parse_facts(PI.replace("throttled=throttled=0x50001", f"throttled={word}"), "pi")
    assert facts.temperature_c == 48.312 and facts.throttled is not None
    assert (facts.throttled.now, facts.throttled.occurred) == (now, occurred)
    assert all(each in facts.summary() for each in ("48 °C", *words))


def test_heat_and_flags_that_hold_now_are_a_fleets_health() -> None:
    shown: dict[str, object] = {"problems": [], "locked_by": None}
    facts = parse_facts(PI, "pi")
    assert _ailments(facts, shown) == ["under-voltage"]
    assert _ailments(dataclasses.replace(facts, temperature_c=80.0, throttled=None), shown) == ["80 °C"]


def test_no_python_says_what_to_install() -> None:
    text = "\n".join(line for line in PI.splitlines() if not line.startswith("python"))
    facts = parse_facts(text, "pi")
    assert facts.machine == "aarch64" and facts.python.path == "" and "Python none" in facts.summary()
    with pytest.raises(UnsupportedDeviceError, match="AGENT=native"):
        select(facts, [RuntimeName.LITERT])


def test_probe_of_a_device(connection: Connection) -> None:
    facts = probe(connection)
    assert facts.home == connection.run('echo "$HOME"').stdout.strip()
    assert facts.machine in ("x86_64", "aarch64")
    assert facts.glibc is not None and facts.glibc >= (2, 17)
    assert facts.free_disk_bytes > 0 and facts.memory_total_bytes > 0
    assert facts.python.version >= (3, 9)
    assert dataclasses.replace(facts, pythons=facts.pythons[:1]).python == facts.python


def test_probe_without_python3_on_the_device(connection: Connection) -> None:
    """The same script with nothing but a shell and the core utilities on the PATH."""
    script = 'd=$(mktemp -d); for t in sh uname df tail sed tr; do ln -s "$(command -v $t)" $d/; done; PATH=$d\n'
    output = connection.run("exec sh -s", stdin=(script + PROBE_SCRIPT).encode()).stdout
    facts = parse_facts(output, "the device")
    assert facts.pythons == () and facts.memory_total_bytes > 0 and facts.free_disk_bytes > 0


def test_an_emulator_is_recognised(connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("quarl.device.deploy.probe")  # the package names its function by the same name
    facts = probe(connection)
    assert is_emulated(connection, facts) is bool(fingerprint()["emulated"]), "the device of the tests is this machine"
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "conditions.py").write_text((module.AGENT / "conditions.py").read_text())
    imitated = "\ndef emulation(*_):\n    return True, True, []\n"
    (agent / "fingerprint.py").write_text((module.AGENT / "fingerprint.py").read_text() + imitated)
    monkeypatch.setattr(module, "AGENT", agent)
    assert is_emulated(connection, facts)
