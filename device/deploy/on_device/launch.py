"""Starts a release that was verified, and nothing else: for the host, or as a policy's loop.

What is verified is what is executed: starter and code are read once, and Python imports them from a sealed file in
memory; of the bundle the manifest's hash is passed on, by which the agent verifies what it reads. Sent to the device by
the host, and written to ~/quarl/services/launch.py for systemd and supervise.py, as text together with the modules
that it imports; only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path

from quarl.device.deploy.on_device.files import HelperError, differences, open_regular, read_bytes, what_is
from quarl.device.deploy.on_device.records import (
    OWN_FILES,
    PACK,
    PROGRAM,
    RELEASE_FILE,
    STARTER,
    TRIAL_LINK,
    parse_record,
    signed_record,
)
from quarl.device.deploy.on_device.signatures import sealed
from quarl.device.deploy.on_device.trust import Trust

EXIT_REFUSED, EXIT_HINDERED = 1, 74
"""The second says that starting it again may help: no memory, or a disk that does not answer."""
CODE, MANIFEST = "lib/", "bundle/manifest.json"
GREETING = "quarl-launch"


def verified(root: Path, policy: str, folder: Path) -> dict[str, bytes]:
    """Starter, code and manifest of a release's folder, by path, when everything in it is as its signer left it.

    Args:
        root: ~/quarl, whose trust counts, wherever a link may have led.
        policy: whose release it must be.
        folder: policies/POLICY/releases/ID there, or incoming/ID, which must be a new one. No link any more.

    Raises:
        HelperError: ``trust``, or ``damaged``: a file is not the one that was signed, or does not belong there.
    """
    release, trust, own = folder.name, Trust(root), root / "policies" / policy
    if folder.parent == (own / "releases").resolve():
        text, signature = signed_record(folder)
        trust.check_accepted(policy, release, text, signature)
    elif folder.parent == (own / "incoming").resolve():
        text, signature = signed_record(folder)
        trust.check_new(policy, text, signature)
    else:
        raise HelperError("trust", f"{folder} is no release of {policy} in {own}: a link leads there")
    record = parse_record(release, policy, json.loads(text))
    contents = {
        name: read_bytes(folder / name, size or 0)
        for name, (size, _) in record.files.items()
        if name.startswith(CODE) or name in (STARTER, MANIFEST, PACK)
    }
    wrong = [
        f"{name} differs"
        for name, data in contents.items()
        if hashlib.sha256(data).hexdigest() != record.files[name][1]
    ]
    wrong = wrong or differences(folder, record.files, OWN_FILES)
    if wrong:
        raise HelperError("damaged", f"its files are not those in {RELEASE_FILE}: {', '.join(wrong)}")
    return contents


def _archived(contents: dict[str, bytes]) -> bytes:
    """The code as an archive that Python imports from, uncompressed."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        for name, data in contents.items():
            # A date of its own: a device without a battery may think it is 1970, which a zip cannot hold.
            written.writestr(zipfile.ZipInfo(name.removeprefix(CODE)), data)
    return archive.getvalue()


def _in_memory(name: str, content: bytes) -> str:
    """The path of a sealed file in memory, for this process and those it becomes."""
    with sealed(name, content) as descriptor:
        # Opened anew to be read alone: what is open to be written is not executed.
        readable = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.set_inheritable(readable, True)
    return f"/proc/self/fd/{readable}"


def start(root: Path, policy: str, folder: Path, arguments: list[str], greet: bool = False) -> int:
    """Become the release's agent; returns an exit status, and only when it is not started, which is said.

    Args:
        root, policy, folder: as of :func:`verified`.
        arguments: of its starter.
        greet: say on standard output whether it is started, one JSON object.
    """
    try:
        contents = verified(root, policy, folder)
    except (HelperError, OSError, ValueError, MemoryError) as error:
        code = error.code if isinstance(error, HelperError) else "damaged"
        message = f"release {folder.name} of {policy} is not started: {error}"
        if greet:
            print(json.dumps({GREETING: {"code": code, "message": message}}), flush=True)
        print(message, file=sys.stderr)
        hindered = isinstance(error, (OSError, MemoryError)) or getattr(error, "facts", {}).get("hindered", False)
        return EXIT_HINDERED if hindered else EXIT_REFUSED
    starter, manifest = contents.pop(STARTER).decode(), contents.pop(MANIFEST, None)
    if manifest is not None:
        arguments = [*arguments, f"--manifest={hashlib.sha256(manifest).hexdigest()}"]
    for variable, name in (("QUARL_AGENT", PROGRAM), ("QUARL_PACK", PACK)):  # of an agent without Python
        if name in contents:
            os.environ[variable] = _in_memory(variable, contents.pop(name))
    os.environ["QUARL_CODE"] = _in_memory("quarl-release", _archived(contents))
    os.chdir(folder)
    if greet:
        print(json.dumps({GREETING: {}}), flush=True)
    return os.execv("/bin/sh", ["sh", "-c", starter, str(folder / STARTER), *arguments])


def serving_folder(root: Path, policy: str) -> Path:
    """The folder of the release that serves, resolved once: whatever ``current`` leads to a moment later, it is one.

    Where a trial was cut off (the power went, or its helper was killed), it is gone back from first: nobody knows
    whether the release would have passed. While a trial goes on, its helper holds the lock.

    Raises:
        OSError: there is none.
    """
    folder = root / "policies" / policy
    current, trial = folder / "current", folder / TRIAL_LINK
    if what_is(trial) == "symbolic link":
        with contextlib.suppress(OSError):  # BlockingIOError: it goes on
            lock = open_regular(root / "lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                before = trial.resolve(strict=True)
                with contextlib.suppress(OSError):  # a disk that takes nothing
                    trial.replace(current)
                return before
            finally:
                os.close(lock)
    return current.resolve(strict=True)


def main() -> int:
    """Start a policy's loop: ``python3 launch.py POLICY``. Returns an exit status only when it is refused."""
    services, policy = Path(sys.argv[0]).resolve().parent, sys.argv[1]
    root = services.parent
    try:
        arguments = json.loads((services / f"{policy}.json").read_text())["arguments"]
        folder = serving_folder(root, policy)
    except OSError as error:
        print(f"{policy}: no release serves: {error}", file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, FileNotFoundError) else EXIT_HINDERED
    return start(root, policy, folder, ["loop", f"--socket={root / 'run' / f'{policy}.sock'}", *arguments])
