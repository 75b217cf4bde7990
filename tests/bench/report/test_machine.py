"""Which machine a number belongs to."""

from __future__ import annotations

from quarl.bench.report.machine import IDENTITY, is_this_machine, this_machine
from quarl.bench.report.text import machine
from quarl.device.agent.fingerprint import fingerprint


def test_this_machine_knows_itself_and_no_other() -> None:
    device = fingerprint()
    assert is_this_machine(device)
    for key in IDENTITY:
        assert not is_this_machine({**device, key: "another"})


def test_the_sentence_names_what_is_known() -> None:
    device = fingerprint()
    assert str(device["machine"]) in this_machine() and str(device["kernel"]) in this_machine()
    assert ("virtual machine" in this_machine()) == bool(device["virtualised"])


def test_a_clock_that_is_not_the_one_asked_for_is_told_apart() -> None:
    pi = {"model": "Raspberry Pi 3 Model B", "cpu_model": "Cortex-A53", "machine": "aarch64", "cores": 4}
    pi |= {"mhz_nominal": 1200.0, "mhz_now": 600.0, "memory_total_bytes": 1_000_000_000}
    assert machine(pi) == (
        "Raspberry Pi 3 Model B · Cortex-A53, aarch64, 4 cores, 1200 MHz asked, 600 MHz when idle, 1.0 GB"
    )
    assert "1200 MHz, " in machine({**pi, "mhz_now": 1200.0})
    assert machine({}) == "unknown processor"
