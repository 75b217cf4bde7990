"""What is sent to a device, and nothing else: the agent's code, the part of the bundle it needs, a starter.

run-agent         starts the agent of this very folder; speaks JSON lines on stdin and stdout
run-agent loop    starts it as a service in a robot's loop instead: device/agent/loop
lib/quarl.zip     the agent's code, its compiled libraries, and what it imports of the contract and of the simulator: as
                  source, and for a Python of the host's series as bytecode, too. The same sources give the same bytes
lib/quarl_loop.h  what a robot's program in C speaks with the loop by
bundle/           policy.json, golden.npz, manifest.json, the chosen artifacts and their expected outputs; never the
                  fp32 master weights, never the calibration observations
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import shlex
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, source_hash
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from quarl.device import engine as native
from quarl.device.agent.building import loop_library
from quarl.device.deploy.records import CODE_ARCHIVE, STARTER
from quarl.device.deploy.target import check_policy_name
from quarl.device.deploy.wheels import WheelSet
from quarl.device.engine import building
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError
from quarl.policy.places import IMPORTED_FROM
from quarl.policy.reading import DEVICE_FILES, LARGEST_MANIFEST, MANIFEST_FILE, WEIGHTS_FILE, read_file, read_verified
from quarl.policy.spec import Precision, RuntimeName, executions

BUNDLE = "bundle"
LOOP_MODULES = ("quarl.device.agent.loop.__main__", "quarl.device.agent.loop.client")
"""The service in a robot's loop, and what a robot's program in Python speaks with it by."""
LOOP_HEADER = "quarl/device/agent/loop/quarl_loop.h"
"""The same for one in C, which a release has as lib/quarl_loop.h."""
# Imported by functions that the agent never calls: Gymnasium's face of the simulator, what needs the weights, and what
# compiles the engine and the loop.
STAYS_AT_HOME = ["quarl.airlearning_envs.gym_env", "quarl.device.engine.building", "quarl.device.agent.building"]


@dataclass(frozen=True)
class PayloadFile:
    """One file of a release, with the content it had when it was hashed."""

    path: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The hash that the device must find too."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Payload:
    """A release as it will lie on the device."""

    policy: str
    files: tuple[PayloadFile, ...]
    environments: tuple[str, ...]
    """Folders under ~/quarl/envs that it needs."""
    precisions: tuple[Precision, ...]
    runtimes: tuple[RuntimeName, ...]
    weights: str = ""
    """sha256 of the float weights that the artifacts were made of; they stay on the host."""

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 of every file by its path in the release."""
        return {file.path: file.sha256 for file in self.files}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(file.data) for file in self.files)

    @property
    def digest(self) -> str:
        """One hash for everything that makes the release: the same content has the same digest."""
        content = {"files": self.hashes, "environments": self.environments, "policy": self.policy}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def build_payload(
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtimes: Sequence[RuntimeName],
    wheel_set: WheelSet,
    root: Path = IMPORTED_FROM,
) -> Payload:
    """Gather a release. Every file of the bundle is verified against the manifest as it is read.

    Args:
        bundle: as loaded on the host.
        precisions: what to deploy; each in every format that ``runtimes`` execute.
        runtimes: what will execute it.
        wheel_set: the device's interpreter and wheels.
        root: the folder of the package to take the code from.

    Raises:
        BundleError: an artifact is missing, tampered with, or was never checked in one of the runtimes.
    """
    members = [*code_files(root), *library_files(wheel_set.machine, RuntimeName.NATIVE in runtimes)]
    if wheel_set.python.version[:2] == sys.version_info[:2]:
        members += [compile_module(file) for file in members if file.path.endswith(".py")]
    files = [PayloadFile(CODE_ARCHIVE, archive(members)), *bundle_files(bundle, precisions, runtimes)]
    files.append(PayloadFile("lib/quarl_loop.h", (root / LOOP_HEADER).read_bytes()))
    environments = tuple(wheel.folder for wheel in wheel_set.wheels)
    brings_numpy = any(wheel.distribution == "numpy" for wheel in wheel_set.wheels)
    isolated = brings_numpy or not wheel_set.python.numpy
    files.append(PayloadFile(STARTER, starter(wheel_set.python.path, environments, isolated=isolated).encode()))
    policy = check_policy_name(bundle.spec.name)
    weights = bundle.manifest.files[WEIGHTS_FILE].sha256
    return Payload(policy, tuple(files), environments, tuple(precisions), tuple(runtimes), weights)


def bundle_files(bundle: Bundle, precisions: Sequence[Precision], runtimes: Sequence[RuntimeName]) -> list[PayloadFile]:
    """Return the device's part of a bundle, each file compared with the manifest's hash; raises as
    :func:`build_payload`."""
    manifest = read_file(bundle.path / MANIFEST_FILE, LARGEST_MANIFEST)
    names = {name: bundle.manifest.files[name] for name in DEVICE_FILES}
    for precision, runtime in executions(precisions, runtimes):
        entry = bundle.artifact(precision, runtime.artifact_format)
        if runtime not in entry.runtimes:
            checked = ", ".join(name.value for name in entry.runtimes) or "none"
            raise BundleError(
                f"{entry.file} was not verified in {runtime.value}; according to the manifest it was in {checked}.",
                f"Type: quarl convert --bits {precision.bits_argument} --policy {bundle.spec.name}, or choose "
                "another --runtime.",
            )
        names[entry.file] = entry.record
        names[entry.golden_file] = bundle.manifest.files[entry.golden_file]
    files = [PayloadFile(f"{BUNDLE}/{MANIFEST_FILE}", manifest)]
    for name, record in sorted(names.items()):
        try:
            data = read_verified(bundle.path / name, record, record.size)
        except BundleError as error:
            raise BundleError(
                f"{error} Nothing was sent.", f"Type: quarl convert --policy {bundle.spec.name}"
            ) from error
        files.append(PayloadFile(f"{BUNDLE}/{name}", data))
    return files


class OwnModules(ModuleFinder):
    """Finds the project's modules alone, though other packages may be installed beside it."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """See :class:`ModuleFinder`."""
        if path is None and name != "quarl":
            raise ImportError(name)
        return super().find_module(name, path, parent)


def code_files(root: Path = IMPORTED_FROM) -> list[PayloadFile]:
    """Return the agent's code: every module of the package that ``python -m quarl.device.agent`` may come to import.

    Args:
        root: the folder that holds the package ``quarl``.
    """
    finder = OwnModules([str(root)], excludes=STAYS_AT_HOME)
    finder.run_script(str(root / "quarl" / "device" / "agent" / "__main__.py"))  # reads; nothing is executed
    for module in LOOP_MODULES:
        finder.import_hook(module)
    files = (getattr(module, "__file__", None) for module in finder.modules.values())  # None: built into Python
    paths = sorted(Path(file) for file in files if file is not None)
    return [PayloadFile(str(path.relative_to(root)), path.read_bytes()) for path in paths]


def library_files(machine: str, with_engine: bool) -> list[PayloadFile]:
    """Return the compiled libraries for a processor: the robot's loop and, where asked for, the native engine.

    Raises:
        BuildError: the engine is not built for this processor, or cannot be compiled here.
    """
    libraries = {native.SHIPPED: building.library(machine)} if with_engine else {}
    if machine in building.TARGETS:  # on another one, the agent answers lines alone
        libraries[native.SHIPPED_LOOP] = loop_library(machine)
    return [PayloadFile(f"quarl/device/engine/{name}", path.read_bytes()) for name, path in libraries.items()]


def archive(members: Iterable[PayloadFile]) -> bytes:
    """Return a zip that Python imports from: uncompressed, since zlib's bytes differ between its versions; no dates."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as written:
        for member in sorted(members, key=lambda each: each.path):
            written.writestr(zipfile.ZipInfo(member.path), member.data)
    return stream.getvalue()


def compile_module(file: PayloadFile) -> PayloadFile:
    """Return a module's bytecode: a Python of this one's series imports it in place of compiling the source beside it.

    A Python with another magic number takes the source. The same source gives the same bytes: marshal's version 2 has
    no references between objects, whose number differs from run to run.
    """
    code = compile(file.data, file.path, "exec", dont_inherit=True, optimize=0)
    # PEP 552: the flags of a file that is not compared with its source; that one's hash.
    header = MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(file.data)
    return PayloadFile(f"{file.path}c", header + marshal.dumps(code, 2))


def starter(python: str, environments: Sequence[str], *, isolated: bool) -> str:
    """Return the script that starts a release's agent, for the host and for a person who types to it.

    Args:
        python: the device's interpreter.
        environments: folders under ~/quarl/envs, in the order of the path.
        isolated: leave out the device's own packages; false where its numpy is used.
    """
    # releases/ID and incoming/ID are equally deep: four levels below ~/quarl. verify.sh names the verified code.
    path = ":".join(
        ["${QUARL_CODE:-$here/lib/quarl.zip}", *(f"$here/../../../../envs/{name}" for name in environments)]
    )
    return f"""#!/bin/sh
# Starts the agent of this release: one JSON object a line. Try {{"op": "help"}}. Or, run-agent loop --help: in a loop.
here=$(CDPATH= cd -P -- "$(dirname -- "$0")" && pwd -P) || exit 1
case "$here" in *:*) echo "run-agent: $here has a ':', which PYTHONPATH cannot hold; move it" >&2; exit 64;; esac
cd -- "$here" || exit 1
module=quarl.device.agent
[ "$1" != loop ] || {{ module=quarl.device.agent.loop; shift; }}
exec env -i HOME="$HOME" PATH="$PATH" LANG=C.UTF-8 PYTHONPATH="{path}" PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 \\
  ${{NOTIFY_SOCKET:+NOTIFY_SOCKET="$NOTIFY_SOCKET"}} ${{WATCHDOG_USEC:+WATCHDOG_USEC="$WATCHDOG_USEC"}} \\
  {shlex.quote(python)} -s{"S" if isolated else ""} -c "import sys
sys.path[:] = [each for each in sys.path if each]
from $module.__main__ import main
sys.exit(main())" --bundle "$here/{BUNDLE}" "$@"
"""
