"""Which wheels a device needs, pinned by hash in wheels.json, and how the host gets them.

Only what is imported is sent: numpy and one runtime. What the runtimes' metadata ask for besides (protobuf,
flatbuffers, tqdm, …) is for converters and is not imported by their interpreters (tried with `python3 -S` and
nothing but the two wheels on the path: tflite-runtime 2.14.0, ai-edge-litert 2.3.0, onnxruntime 1.31.1).

numpy is 1.26.4 because tflite-runtime breaks with numpy 2; Python 3.13 has no wheel of it and no tflite-runtime
either, so there it is 2.2.6. 32-bit ARM has tflite-runtime and nothing else: numpy must be the device's own.

The native engine needs no wheel, and no numpy: where there is one, it is sent for flights on the device.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.errors import UnsupportedDeviceError, WheelError
from quarl.device.deploy.probe import MACHINES, NO_PYTHON, PythonFacts, TargetFacts
from quarl.policy.places import cache_folder
from quarl.policy.reading import FileRecord
from quarl.policy.spec import RuntimeName

PINS_FILE = Path(__file__).with_name("wheels.json")
NUMPY = "numpy"
OLDEST_PYTHON = (3, 9)
"""What the agent's code runs on; the wheels want more."""
DOWNLOAD_TIMEOUT_S = 900
_DOWNLOADING = threading.Lock()
_OLD_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}  # PEP 600


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    distribution: str
    version: str
    python: str
    """Series, e.g. ``3.11``."""
    machine: str
    file: str
    sha256: str

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags in its name (PEP 427: the last part, joined with dots)."""
        return tuple(self.file.removesuffix(".whl").split("-")[-1].split("."))

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest glibc it runs with, from its platform tags (PEP 600)."""
        versions = []
        for tag in self.platforms:
            match = re.match(r"manylinux_(\d+)_(\d+)_", tag)
            versions.append((int(match[1]), int(match[2])) if match else _OLD_NAMES[tag.split("_")[0]])
        return min(versions)

    @property
    def folder(self) -> str:
        """Name of its unpacked folder on the device: what and exactly which."""
        return f"{self.distribution}-{self.version}-{self.sha256[:12]}"

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class WheelSet:
    """An interpreter of the device and the wheels it needs for the requested runtimes."""

    python: PythonFacts
    wheels: tuple[Wheel, ...]
    machine: str = ""
    """The processor as ``uname -m`` names it; only the native engine's library depends on it."""


def load_pins(path: Path = PINS_FILE) -> tuple[Wheel, ...]:
    """Return all pinned wheels."""
    return tuple(Wheel(**row) for row in json.loads(path.read_text(encoding="utf-8")))


def parse_runtimes(text: str) -> tuple[RuntimeName, ...]:
    """Read ``litert``, ``litert,onnxruntime`` or ``all``.

    Raises:
        WheelError: a name is not known.
    """
    if text == "all":
        return tuple(RuntimeName)
    known = {runtime.value: runtime for runtime in RuntimeName}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise WheelError(
                f"--runtime must be among {', '.join(known)}, all, got {name!r}.", "Type --runtime litert, for example."
            )
    return tuple(dict.fromkeys(known[name] for name in names))


def select(facts: TargetFacts, runtimes: Sequence[RuntimeName], pins: Sequence[Wheel] | None = None) -> WheelSet:
    """Return the first interpreter of the device that has wheels for all ``runtimes``, and these wheels.

    Raises:
        UnsupportedDeviceError: there is none; says for each interpreter what is missing, and what is supported.
    """
    if not facts.pythons:
        raise UnsupportedDeviceError(f"The device ({facts.machine}) has no python3 (CPython) on its PATH.", NO_PYTHON)
    pins = load_pins() if pins is None else pins
    needs_wheels = any(runtime.distribution for runtime in runtimes)  # else numpy is for flights on the device alone
    if facts.glibc is None and needs_wheels:
        raise UnsupportedDeviceError(
            "The device's C library must be glibc, got another one (musl, as on Alpine?): the runtimes have no "
            "wheels for others.",
            "Use Raspberry Pi OS, Debian or Ubuntu, 64-bit; or type --runtime native.",
        )
    problems, glibc = [], facts.glibc or (0, 0)
    for python in facts.pythons:
        if python.version < OLDEST_PYTHON:
            problems.append(f"Python {python.series} is older than {'.'.join(map(str, OLDEST_PYTHON))}")
            continue
        wheels: list[Wheel] = []
        missing: list[str] = []
        for distribution in (NUMPY, *(r.distribution for r in runtimes if r.distribution)):
            wheel = next(
                (
                    pin
                    for pin in pins
                    if (pin.distribution, pin.machine, pin.python) == (distribution, facts.machine, python.series)
                ),
                None,
            )
            fits = wheel is not None and wheel.glibc <= glibc
            if not fits and not needs_wheels:
                continue
            if wheel is None:
                if distribution == NUMPY and python.numpy and facts.machine == "armv7l":
                    continue  # 32-bit ARM has no numpy wheel; Debian's own python3-numpy does
                missing.append(distribution)
            elif not fits:
                missing.append("{} for glibc {}.{} (it needs {}.{})".format(wheel, *glibc, *wheel.glibc))
            else:
                wheels.append(wheel)
        if not missing:
            return WheelSet(python, tuple(wheels), facts.machine)
        problems.append(f"Python {python.series} on {facts.machine} lacks {', '.join(missing)}")
    raise UnsupportedDeviceError(
        f"No interpreter of the device has all the wheels: {'; '.join(problems)}. {describe_supported_runtimes(pins)}",
        "On 32-bit ARM, type --runtime native; or sudo apt-get install python3-numpy on the device, and --runtime "
        "tflite-runtime."
        if facts.machine == "armv7l"
        else "Choose another --runtime, or install another Python or operating system on the device.",
    )


def unseen(machine: str, python: str) -> TargetFacts:
    """Return what is assumed of a device that cannot be asked. Its C library is taken to be new enough; deployment
    looks.

    Args:
        machine: as ``uname -m`` says it on the device, e.g. ``aarch64``. On ``armv7l`` numpy is the device's own.
        python: the series of its interpreter, e.g. ``3.11``.

    Raises:
        WheelError: ``python`` is no version.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", python)
    if match is None:
        raise WheelError(
            f"--python must be a version such as 3.11, got {python!r}.", "Type --python 3.11, for example."
        )
    machine = MACHINES.get(machine.lower(), machine.lower())
    interpreter = PythonFacts(
        "python3", (int(match[1]), int(match[2]), 0), 32 if machine == "armv7l" else 64, "its own"
    )
    return TargetFacts(machine, "", "", (sys.maxsize, 0), 0, 0, 0, "", (interpreter,))


def describe_supported_runtimes(pins: Sequence[Wheel]) -> str:
    """Return what is supported, in a sentence."""
    table: dict[tuple[str, str], list[str]] = {}
    for pin in pins:
        if pin.distribution != NUMPY:
            table.setdefault((pin.machine, pin.distribution), []).append(pin.python)
    lines = [f"{name} on {machine} for Python {', '.join(series)}" for (machine, name), series in sorted(table.items())]
    return "Supported: " + "; ".join(lines) + "."


def fetch(
    wheels: Sequence[Wheel], cache: Path | None = None, progress: Callable[[Wheel], None] | None = None
) -> dict[Wheel, Path]:
    """Return the wheels as files of the host. What the cache has, with the right hash, touches no network.

    Args:
        wheels: which.
        cache: the folder; default ``wheels`` under the user's cache folder.
        progress: called before a wheel is downloaded.

    Raises:
        WheelError: pip could not download one, or what came has another hash than the pin.
    """
    folder = cache if cache is not None else cache_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for wheel in wheels:
        path = folder / wheel.file
        if not _is_there(path, wheel):
            with _DOWNLOADING:  # devices of a fleet that lack it wait for one download
                if not _is_there(path, wheel):
                    if progress is not None:
                        progress(wheel)
                    _download(wheel, path)
        paths[wheel] = path
    return paths


def _is_there(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and FileRecord.of_file(path).sha256 == wheel.sha256


def _download(wheel: Wheel, path: Path) -> None:
    series = wheel.python.replace(".", "")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "2"),
        *("--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", wheel.python),
        *("--abi", f"cp{series}", *(word for tag in wheel.platforms for word in ("--platform", tag))),
        f"{wheel.distribution}=={wheel.version}",
    ]
    # In the cache's own folder, so that the finished file comes in by a rename.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as temporary:
        try:
            done = subprocess.run(
                [*command, "--dest", temporary], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
            )
            reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ")
            if "Retry(total=0" in done.stderr:  # its last line then says that there is no such version
                reason = "the package index could not be reached"
        except subprocess.TimeoutExpired:
            reason = f"no end after {DOWNLOAD_TIMEOUT_S} s"
        files = list(Path(temporary).glob("*.whl"))
        if len(files) != 1:
            raise WheelError(
                f"pip could not download {wheel} for Python {wheel.python} on {wheel.machine}: {reason}.",
                f"Check that this machine is online, or put {wheel.file} into {path.parent}.",
            )
        if (sha256 := FileRecord.of_file(files[0]).sha256) != wheel.sha256:
            raise WheelError(
                f"{files[0].name} must have the pinned sha256 {wheel.sha256}, got {sha256}. It was not used.",
                "Check where pip gets its packages from: pip config list",
            )
        files[0].replace(path)
