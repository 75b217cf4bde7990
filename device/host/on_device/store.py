"""The releases on a device: where they are, which there are, who is at work. Reads only, needs no lock.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

MARKER = ".quarl-wheel.json"
RELEASE_FILE = "release.json"
_SHOWN = ("release", "created", "by", "precisions", "runtimes", "digest")
_BLOCK = 1 << 20  # bytes


class HelperError(Exception):
    """A request that cannot be fulfilled: a code for programs and a message for people."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


def sha256_of(path: Path) -> str:
    """The hash of a file, read in blocks: a Pi has little memory."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a folder for good, also while a dying upload still writes into it."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.1)


def sync(path: Path) -> None:
    """Bring a file or folder onto the disk, so that a power cut after the switch finds it whole."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any) -> None:
    """Write a small file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def wheel_is_whole(folder: Path) -> bool:
    """Whether an unpacked wheel is there with every file at its full size (a power cut can leave empty files)."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def number_of(release: str) -> int:
    """The running number in front of a release's name, e.g. 7 of ``0007-1a2b3c4d``."""
    head = release.split("-")[0]
    return int(head) if head.isdigit() else 0


class Store:
    """What is deployed under one home folder."""

    def __init__(self, home: str | Path) -> None:
        self.root = Path(home) / "quarl"

    def folder(self, policy: str) -> Path:
        """The folder of one policy."""
        return self.root / "policies" / policy

    def policies(self) -> list[str]:
        """Names of the policies that were ever deployed here."""
        folder = self.root / "policies"
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def releases(self, policy: str) -> list[dict[str, Any]]:
        """The records of a policy's releases, oldest first."""
        folder = self.folder(policy) / "releases"
        found = []
        for path in folder.iterdir() if folder.is_dir() else ():
            try:
                record = json.loads((path / RELEASE_FILE).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # not one of ours, or damaged: never offered
            record["release"] = path.name
            found.append(record)
        return sorted(found, key=lambda record: number_of(record["release"]))

    def find(self, policy: str, release: str) -> dict[str, Any]:
        """The record of one release."""
        releases = self.releases(policy)
        for record in releases:
            if record["release"] == release:
                return record
        names = ", ".join(record["release"] for record in releases) or "none"
        raise HelperError("release", f"there is no release {release} of {policy}; there are {names}")

    def current(self, policy: str) -> str | None:
        """The release that ``current`` points to, or None."""
        link = self.folder(policy) / "current"
        return link.readlink().name if link.is_symlink() and link.exists() else None

    def environments(self) -> list[Path]:
        """The unpacked wheels that are whole."""
        folder = self.root / "envs"
        return [path for path in folder.iterdir() if wheel_is_whole(path)] if folder.is_dir() else []

    def free_bytes(self) -> int:
        """Bytes that an ordinary user may still write."""
        path = self.root
        while not path.exists():
            path = path.parent
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def holder(self) -> dict[str, Any]:
        """What the holder of the lock wrote about itself."""
        try:
            return dict(json.loads((self.root / "lock").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def is_locked(self) -> bool:
        """Whether some process holds the lock now."""
        try:
            with (self.root / "lock").open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def overview(self) -> dict[str, Any]:
        """Everything that is deployed."""
        policies = {}
        for policy in self.policies():
            shown = [{key: record.get(key) for key in _SHOWN} for record in self.releases(policy)]
            policies[policy] = {"current": self.current(policy), "releases": shown}
        return {
            "root": str(self.root),
            "free_bytes": self.free_bytes(),
            "environments": sorted(path.name for path in self.environments()),
            "locked_by": self.holder() if self.is_locked() else None,
            "policies": policies,
        }
