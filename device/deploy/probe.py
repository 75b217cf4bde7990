"""What the device is: asked with one POSIX shell script, before anything of ours is there."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from quarl.device.agent.conditions import Throttled, hottest
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import RemoteCommandError, UnsupportedDeviceError
from quarl.device.deploy.remote_process import ISOLATED, program_of
from quarl.device.deploy.text import printable

# Every line it prints is KEY=VALUE; a line without a known key (a login greeting) is skipped. Python is asked for
# its own word size: a 32-bit Raspberry Pi OS runs under a 64-bit kernel, and `uname -m` names the kernel. Its numpy is
# found among the system's packages, so that -S is left out of what ISOLATED has.
PROBE_SCRIPT = r"""
new='
'
case "$HOME" in
  *"$new"*) echo "refused=has a line break"; exit 0;;
  *:*) echo "refused=has a ':'"; exit 0;;
  /*) ;;
  *) echo "refused=does not begin with '/'"; exit 0;;
esac
echo "machine=$(uname -m)"
echo "kernel=$(uname -sr)"
echo "home=$HOME"
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "disk=$(df -Pk "$HOME" 2>/dev/null | tail -n 1)"
echo "memory=$(sed -n '/^MemTotal:/p;/^MemAvailable:/p' /proc/meminfo 2>/dev/null | tr '\n' ' ')"
echo "model=$(tr -d '\0' </proc/device-tree/model 2>/dev/null)"
echo "temperatures=$(sed -n p /sys/class/thermal/thermal_zone*/temp 2>/dev/null | tr '\n' ' ')"
echo "throttled=$(sed -n p /sys/devices/platform/soc/soc:firmware/get_throttled 2>/dev/null ||
  timeout 2 vcgencmd get_throttled 2>/dev/null)"
for name in python3 python3.11 python3.12 python3.13; do
  path=$(command -v "$name" 2>/dev/null) || continue
  found=$("$path" -I -c '
import importlib.util, struct, sys
numpy = ""
if importlib.util.find_spec("numpy"):
    from importlib import metadata
    try:
        numpy = metadata.version("numpy")
    except Exception:
        numpy = "?"
version = "%d.%d.%d" % sys.version_info[:3]
print("|".join((version, str(struct.calcsize("P") * 8), numpy, sys.implementation.name)))' 2>/dev/null) || continue
  echo "python=$path|$found"
done
echo "end=1"
"""
# The agent's own judgement, before the agent is there: its two modules need nothing but the standard library.
EMULATION_SCRIPT = """
import platform
said = sys.modules["quarl.device.agent.fingerprint"]
found = said.emulation(said.ROOT, said.read_cpuinfo(said.ROOT), platform.machine(), platform.release())
print("emulated=%s" % found[0])
"""
AGENT = Path(__file__).resolve().parent.parent / "agent"
NO_PYTHON = "On the device: sudo apt-get install python3; or deploy the agent that needs none: type AGENT=native"
_DISK = re.compile(r"\s(\d+)\s+(\d+)\s+(-?\d+)\s+\d+%")
_MEMORY = re.compile(r"(MemTotal|MemAvailable):\s+(\d+) kB")
MACHINES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
_THIRTY_TWO_BIT = {"aarch64": "armv7l", "x86_64": "i686"}


@dataclass(frozen=True)
class PythonFacts:
    """One interpreter of the device."""

    path: str
    version: tuple[int, int, int]
    bits: int
    """32 or 64: the word size of the interpreter, which is what a wheel must fit."""
    numpy: str = ""
    """Version of the numpy it has by itself, or empty."""

    @property
    def series(self) -> str:
        """``3.11`` of 3.11.2."""
        return f"{self.version[0]}.{self.version[1]}"


@dataclass(frozen=True)
class TargetFacts:
    """What a probe found."""

    machine: str
    """What a wheel must be built for: the interpreter's word size is taken into account."""
    kernel: str
    home: str
    glibc: tuple[int, int] | None
    """None: another C library (musl), for which there are no wheels."""
    free_disk_bytes: int
    memory_total_bytes: int
    memory_available_bytes: int
    model: str
    pythons: tuple[PythonFacts, ...]
    temperature_c: float | None = None
    throttled: Throttled | None = None

    @property
    def python(self) -> PythonFacts:
        """The interpreter that `python3` names; where there is none, one whose path is empty."""
        return self.pythons[0] if self.pythons else PythonFacts("", (0, 0, 0), 0)

    def summary(self) -> str:
        """Return one line for people."""
        glibc = f"glibc {self.glibc[0]}.{self.glibc[1]}" if self.glibc else "no glibc"
        pythons = ", ".join(".".join(map(str, python.version)) for python in self.pythons) or "none"
        conditions = [] if self.temperature_c is None else [f"{self.temperature_c:.0f} °C"]
        if self.throttled is not None:
            flags = [f"{flag} now" for flag in self.throttled.now]
            flags += [f"{flag} since boot" for flag in self.throttled.occurred if flag not in self.throttled.now]
            conditions += flags or ["not throttled since boot"]
        return ", ".join(
            (
                f"{self.model or self.machine} ({self.machine}), Python {pythons}, {glibc}, "
                f"{self.memory_total_bytes / 1e6:.0f} MB memory, {self.free_disk_bytes / 1e9:.1f} GB disk free",
                *conditions,
            )
        )


def parse_facts(output: str, device: str) -> TargetFacts:
    """Read what the probe script printed.

    Raises:
        UnsupportedDeviceError: the home folder's name cannot stand in a path of packages.
        RemoteCommandError: the script did not run to its end.
    """
    values: dict[str, str] = {}
    pythons: list[PythonFacts] = []
    for line in output.splitlines():
        key, _, value = line.partition("=")
        if key == "python":
            path, version, bits, numpy, implementation = value.split("|")
            major, minor, micro = (int(part) for part in version.split("."))
            facts = PythonFacts(path, (major, minor, micro), int(bits), numpy)
            # python3 and python3.11 are often the same; wheels are for CPython.
            if implementation == "cpython" and all(other.version != facts.version for other in pythons):
                pythons.append(facts)
        else:
            values.setdefault(key, printable(value.strip()))
    if "refused" in values:
        raise UnsupportedDeviceError(
            f"The home folder of {device} {values['refused']}, which Python's path of packages does not allow.",
            "Give the user another home folder; on the device: sudo usermod -d /home/NAME -m NAME. Or deploy as "
            "another user.",
        )
    if "end" not in values:
        raise RemoteCommandError(
            f"The probe of {device} did not finish; it printed {output[-200:]!r}.",
            "The device needs a POSIX shell as `sh`.",
        )
    disk, memory = _DISK.search(values.get("disk", "")), dict(_MEMORY.findall(values.get("memory", "")))
    glibc = re.search(r"glibc (\d+)\.(\d+)", values.get("glibc", ""))
    machine = MACHINES.get(values["machine"].lower(), values["machine"].lower())
    if pythons and pythons[0].bits == 32:
        machine = _THIRTY_TWO_BIT.get(machine, machine)
    return TargetFacts(
        machine=machine,
        kernel=values.get("kernel", ""),
        home=values.get("home", ""),
        glibc=(int(glibc[1]), int(glibc[2])) if glibc else None,
        free_disk_bytes=max(0, int(disk[3])) * 1024 if disk else 0,
        memory_total_bytes=int(memory.get("MemTotal", 0)) * 1024,
        memory_available_bytes=int(memory.get("MemAvailable", 0)) * 1024,
        model=values.get("model", ""),
        pythons=tuple(pythons),
        temperature_c=hottest(values.get("temperatures", "").split()),
        throttled=Throttled.parse(values.get("throttled", "")),
    )


def probe(connection: Connection) -> TargetFacts:
    """Ask the device what it is, with one command.

    Raises:
        UnsupportedDeviceError: it has a home folder that cannot be used.
        RemoteCommandError, ConnectionLostError.
    """
    result = connection.run("exec sh -s", stdin=PROBE_SCRIPT.encode(), timeout=60, check=False)
    return parse_facts(result.stdout, connection.name)


def is_emulated(connection: Connection, facts: TargetFacts) -> bool:
    """Return whether the device's processor is imitated in software, as its agent would say; False where that is
    unknown.

    Nothing is left on the device.

    Raises:
        RemoteCommandError, ConnectionLostError.
    """
    if not facts.pythons:
        return False
    sources = {
        f"quarl.device.agent.{name}": (AGENT / f"{name}.py").read_text() for name in ("conditions", "fingerprint")
    }
    script = program_of(sources, EMULATION_SCRIPT)
    result = connection.run(f"exec {shlex.quote(facts.python.path)} {ISOLATED} -", stdin=script, timeout=60)
    return "emulated=True" in result.stdout.splitlines()
