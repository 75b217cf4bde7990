"""Throttle flags by hand, and devices made of a few files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from quarl.device.agent import conditions, server
from quarl.device.agent.conditions import Conditions, Throttled
from quarl.device.agent.fingerprint import emulation, fingerprint

QUIET = Conditions(1200.0, 1200.0, "performance", 50.0, Throttled.of(0), 0.1)

PI_CPUINFO = """processor\t: 0
BogoMIPS\t: 38.40
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd03

Hardware\t: BCM2835
Model\t\t: Raspberry Pi 3 Model B Rev 1.2
"""


def seen(throttled: int, **changes: object) -> Conditions:
    return Conditions(**{**vars(QUIET), "throttled": Throttled.of(throttled), **changes})


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def pi(tmp_path: Path) -> Path:
    """Root of a file system as on a Raspberry Pi 3b."""
    return write(
        tmp_path,
        {
            "proc/device-tree/model": "Raspberry Pi 3 Model B Rev 1.2\0",
            "proc/device-tree/compatible": "raspberrypi,3-model-b\0brcm,bcm2837\0",
            "proc/cpuinfo": PI_CPUINFO,
            "proc/meminfo": "MemTotal:         930792 kB\nMemFree: 1 kB\n",
            "proc/loadavg": "0.25 0.10 0.05 1/100 1234\n",
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "600000\n",
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1200000\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
            "sys/class/thermal/thermal_zone0/temp": "48312\n",
            "sys/class/thermal/thermal_zone1/temp": "-274000\n",
            "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
        },
    )


@pytest.mark.parametrize(
    ("text", "now", "occurred"),
    [
        ("throttled=0x0\n", (), ()),
        ("throttled=0x1", ("under-voltage",), ()),
        ("throttled=0x50005", ("under-voltage", "throttled"), ("under-voltage", "throttled")),
        ("50005\n", ("under-voltage", "throttled"), ("under-voltage", "throttled")),
        ("throttled=0x80008", ("soft-temperature-limit",), ("soft-temperature-limit",)),
        ("throttled=0xe0000", (), ("frequency-capped", "throttled", "soft-temperature-limit")),
        ("2", ("frequency-capped",), ()),
    ],
)
def test_throttle_words_are_read_bit_by_bit(text: str, now: tuple[str, ...], occurred: tuple[str, ...]) -> None:
    word = Throttled.parse(text)
    assert word is not None and (word.now, word.occurred) == (now, occurred)


@pytest.mark.parametrize("text", ["", "throttled=", "VCHI initialization failed", "error=1 error_msg=bad"])
def test_what_is_no_throttle_word_is_unknown(text: str) -> None:
    assert Throttled.parse(text) is None


def test_a_measurement_under_throttling_is_not_valid() -> None:
    assert conditions.invalid_reasons([seen(0), seen(0)]) == []
    assert conditions.invalid_reasons([seen(0), seen(0x4), seen(0)]) == ["throttled during the measurement"]
    assert conditions.invalid_reasons([seen(0x1), seen(0x10000)]) == ["under-voltage during the measurement"]


def test_only_throttling_between_two_readings_counts() -> None:
    assert conditions.invalid_reasons([seen(0x40000), seen(0x40000)]) == []
    assert conditions.invalid_reasons([seen(0x40000), seen(0xC0000)]) == [
        "soft-temperature-limit during the measurement"
    ]


def test_where_nobody_knows_of_throttling_nothing_is_claimed() -> None:
    unknown = Conditions(**{**vars(QUIET), "throttled": None})
    assert conditions.invalid_reasons([unknown, unknown]) == []


def test_the_conditions_of_a_pi(pi: Path) -> None:
    look = conditions.look(pi)
    assert look.mhz_now == 600.0 and look.governor == "ondemand" and look.temperature_c == 48.312
    assert look.throttled == Throttled.of(0x50005)
    assert look.mhz_firmware is None and look.load_1min == 0.25
    assert dataclasses.asdict(look)["throttled"] == {
        "raw": 0x50005,
        "now": ("under-voltage", "throttled"),
        "occurred": ("under-voltage", "throttled"),
    }


def test_the_fingerprint_of_a_pi(pi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = SimpleNamespace(sysname="Linux", release="6.1.0", machine="aarch64")
    monkeypatch.setattr("os.uname", lambda: system)
    device = fingerprint(pi)
    assert device["model"] == "Raspberry Pi 3 Model B Rev 1.2" and device["cpu_model"] == "Cortex-A53"
    assert device["machine"] == "aarch64" and device["mhz_nominal"] == 1200.0 and device["mhz_now"] == 600.0
    assert device["memory_total_bytes"] == 930792 * 1024
    assert device["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert (device["emulated"], device["virtualised"]) == (False, False)


def test_an_unknown_device_has_nulls_and_no_inventions(tmp_path: Path) -> None:
    device = fingerprint(tmp_path)
    unknown = ["model", "cpu_model", "mhz_nominal", "mhz_now", "mhz_firmware", "governor", "temperature_c"]
    unknown += ["throttled", "memory_total_bytes", "os", "load_1min"]
    assert {name: device[name] for name in unknown} == dict.fromkeys(unknown)
    assert device["cores"] >= 1 and device["python"] and device["kernel"].startswith("Linux")


def test_this_machines_fingerprint_is_complete_json() -> None:
    import json

    device = fingerprint()
    json.dumps(device, allow_nan=False)
    assert device["memory_total_bytes"] > 2**26


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "files", "expected"),
    [
        # qemu-system's Arm: its timer gives it away, whatever the device tree says
        (
            "aarch64",
            {"CPU implementer": "0x41", "BogoMIPS": "125.00"},
            {"proc/device-tree/compatible": "raspberrypi,3-model-b\0"},
            (True, True),
        ),
        # qemu-user: the kernel below it describes its own processor
        ("aarch64", {"model name": "AMD EPYC", "flags": "fpu"}, {}, (True, None)),
        # qemu-user with a processor description made for it: the kernel's clocks are still another machine's
        (
            "aarch64",
            {"CPU implementer": "0x41", "BogoMIPS": "38.40"},
            {"sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet\n"},
            (True, None),
        ),
        ("x86_64", {"model name": "QEMU TCG CPU version 2.5+", "flags": "fpu hypervisor"}, {}, (True, True)),
        (
            "x86_64",
            {"model name": "AMD EPYC", "flags": "fpu hypervisor"},
            {"sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock\n"},
            (False, True),
        ),
        ("x86_64", {"model name": "Intel", "flags": "fpu hypervisor"}, {}, (False, True)),
        (
            "x86_64",
            {"model name": "Intel", "flags": "fpu hypervisor"},
            {"sys/class/dmi/id/sys_vendor": "QEMU\n"},
            (None, True),
        ),
        ("x86_64", {"model name": "Intel", "flags": "fpu sse"}, {}, (False, False)),
        ("aarch64", {"CPU implementer": "0x41", "BogoMIPS": "50.00"}, {}, (None, None)),
    ],
)
def test_emulation_is_told_from_virtualisation_and_from_the_unknown(
    tmp_path: Path,
    machine: str,
    cpuinfo: dict[str, str],
    files: dict[str, str],
    expected: tuple[bool | None, bool | None],
) -> None:
    emulated, virtualised, evidence = emulation(write(tmp_path, files), cpuinfo, machine)
    assert (emulated, virtualised) == expected
    assert evidence or expected == (None, None)


def test_an_arm_program_on_an_x86_kernel_is_emulated(tmp_path: Path) -> None:
    cpuinfo = {"CPU implementer": "0x41", "BogoMIPS": "38.40"}
    assert emulation(tmp_path, cpuinfo, "aarch64", "6.1.0-18-amd64")[0] is True
    assert emulation(tmp_path, cpuinfo, "aarch64", "6.12.25+rpt-rpi-v8")[0] is None


def test_notes_name_slow_clocks_emulators_and_throttling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "mhz_nominal", lambda root, cpuinfo: 1200.0)
    monkeypatch.setattr(server, "emulation", lambda *_: (True, True, ["its timer"]))
    slow = seen(0x20000, mhz_firmware=818.0, governor="ondemand")
    assert server.notes([slow, slow]) == [
        "emulated: its timer",
        "the clock was 818 MHz at the end, of 1200 MHz",
        "since boot, before this measurement: frequency-capped",
        "the clock is governed by 'ondemand', so the first runs may be slower",
    ]
    monkeypatch.setattr(server, "emulation", lambda *_: (None, None, []))
    assert server.notes([QUIET, QUIET]) == []
