"""The releases on a device: where they are, which there are, who is at work. Reads only, needs no lock.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import HelperError, entries, open_regular, read_object, what_is
from quarl.device.deploy.on_device.records import (
    ENDED_FILE,
    GOOD,
    MARKS,
    POLICY_NAME,
    RELEASE_NAME,
    ROLLOUT_FILE,
    Mark,
    Record,
    parse_record,
    read_mark,
    read_marker,
    read_record,
    signed_record,
)
from quarl.device.deploy.on_device.trust import Trust

_SHOWN = ("release", "damage", "created", "by", "precisions", "runtimes", "digest", "signer")
_MOST_HOLDER = 4096  # bytes


def number_of(release: str) -> int:
    """The running number in front of a release's name, e.g. 7 of ``0007-1a2b3c4d``."""
    head = release.split("-")[0]
    return int(head) if head.isdigit() else 0


def wheel_has_its_sizes(folder: Path) -> bool:
    """Whether an unpacked wheel is there with every file at its full size (a power cut can leave empty files).

    Quick, for a listing; what is to be run is compared by hash.
    """
    try:
        return all((folder / name).lstat().st_size == size for name, (size, _) in read_marker(folder).items())
    except (OSError, HelperError):
        return False


class Store:
    """What is deployed under one home folder."""

    def __init__(self, home: str | Path) -> None:
        self.root = Path(home) / "quarl"
        self.trust = Trust(self.root)

    def folder(self, policy: str) -> Path:
        """The folder of one policy."""
        return self.root / "policies" / policy

    def release_folder(self, policy: str, release: str) -> Path:
        """The folder of one release."""
        return self.folder(policy) / "releases" / release

    def policies(self) -> list[str]:
        """Names of the policies that were ever deployed here."""
        found = entries(self.root / "policies")
        return [path.name for path in found if POLICY_NAME.match(path.name) and what_is(path) == "folder"]

    def releases(self, policy: str) -> list[Record]:
        """The records of a policy's releases, oldest first, the damaged ones too."""
        folder = self.folder(policy)
        found = entries(folder / "releases") if what_is(folder) == "folder" else []
        records = [read_record(path, policy) for path in found if RELEASE_NAME.match(path.name)]
        return sorted(records, key=lambda record: number_of(record.release))

    def mark(self, policy: str, release: str) -> Mark | None:
        """The mark of a release, if it has one."""
        return read_mark(self.release_folder(policy, release))

    def find(self, policy: str, release: str) -> Record:
        """The record of one release.

        Raises:
            HelperError: ``release``, there is none, or ``damaged``, its record cannot be used.
        """
        releases = self.releases(policy)
        for record in releases:
            if record.release == release:
                if record.damage:
                    raise HelperError("damaged", f"release {release} of {policy} is damaged: {record.damage}")
                return record
        names = ", ".join(record.release for record in releases) or "none"
        raise HelperError("release", f"there is no release {release} of {policy}; there are {names}")

    def accepted(self, policy: str, release: str) -> Record:
        """The record of a release that may run: signed, accepted here, its signer not revoked.

        Raises:
            HelperError: ``trust``, or as :meth:`find`.
        """
        self.find(policy, release)
        try:
            text, signature = signed_record(self.release_folder(policy, release))
            return parse_record(release, policy, self.trust.check_accepted(policy, release, text, signature))
        except HelperError as error:
            raise HelperError(error.code, f"release {release} of {policy} is refused: {error}") from None

    def is_good(self, policy: str, record: Record) -> bool:
        """Whether nothing is known against a release."""
        mark = self.mark(policy, record.release)
        return not record.damage and (mark is None or mark.kind == GOOD)

    def current(self, policy: str) -> str | None:
        """The release that ``current`` points to, or None, also when it points to something else."""
        link = self.folder(policy) / "current"
        if what_is(link) != "symbolic link":
            return None
        head, name = os.path.split(str(link.readlink()))
        there = head == "releases" and RELEASE_NAME.match(name) and what_is(self.release_folder(policy, name))
        return name if there == "folder" else None

    def misplaced(self, policy: str) -> list[str]:
        """Sentences on what of ours is not what it must be: a link there would lead writes out of ~/quarl."""
        folder = self.folder(policy)
        wrong = []
        for path in (folder.parent, self.root / "envs", folder, folder / "releases", folder / "incoming"):
            if (kind := what_is(path)) not in ("", "folder"):
                wrong.append(f"{path} is a {kind}; it must be a folder")
        if (kind := what_is(folder / "current")) not in ("", "symbolic link"):
            wrong.append(f"{folder / 'current'} is a {kind}; it must be a symbolic link to releases/ID")
        elif kind and self.current(policy) is None:
            wrong.append(
                f"{folder / 'current'} leads to {str((folder / 'current').readlink())[:80]!r}, which is no release"
            )
        return wrong

    def problems(self) -> list[str]:
        """Everything that is misplaced."""
        found: dict[str, None] = {}
        for path in entries(self.root / "policies"):
            if POLICY_NAME.match(path.name):
                found.update(dict.fromkeys(self.misplaced(path.name)))
        for path in (self.root / "policies", self.root / "envs"):
            if (kind := what_is(path)) not in ("", "folder"):
                found[f"{path} is a {kind}; it must be a folder"] = None
        if (kind := what_is(self.root / "lock")) not in ("", "file"):
            found[f"{self.root / 'lock'} is a {kind}; it must be a file"] = None
        return list(found)

    def environments(self) -> list[Path]:
        """The unpacked wheels that seem whole."""
        return [path for path in entries(self.root / "envs") if wheel_has_its_sizes(path)]

    def free_bytes(self) -> int:
        """Bytes that an ordinary user may still write."""
        path = self.root
        while not path.exists():
            path = path.parent
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def open_lock(self) -> int:
        """The lock's file, made when missing.

        Raises:
            HelperError: something else is in its place: what is written to it would land elsewhere.
        """
        path = self.root / "lock"
        try:
            flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                descriptor = open_regular(path, os.O_RDWR | flags)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                descriptor = open_regular(path, os.O_RDONLY | flags)  # it is locked all the same
        except OSError:
            if what_is(path) in ("", "file"):
                raise
            raise HelperError("layout", f"{path} is a {what_is(path)}; it must be a file") from None
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise HelperError("layout", f"{path} is a second name of another file; it must be a file by itself")
        return descriptor

    def holder(self) -> dict[str, Any]:
        """What the holder of the lock wrote about itself."""
        try:
            holder = read_object(self.root / "lock", _MOST_HOLDER)
        except HelperError:
            return {}
        return {key: value for key, value in holder.items() if isinstance(value, (str, int))}

    def rollout(self, policy: str) -> dict[str, Any] | None:
        """What the last rollout that switched a policy wrote about itself, and whether it has ended; None: nothing.

        What cannot be read is nothing: it keeps nobody from the device.
        """
        for name in (ROLLOUT_FILE, ENDED_FILE):
            with contextlib.suppress(HelperError):
                found = read_object(self.folder(policy) / name, _MOST_HOLDER)
                known = {key: value for key, value in found.items() if isinstance(value, (str, int))}
                return {**known, "ended": name == ENDED_FILE}
        return None

    def is_locked(self) -> bool:
        """Whether some process holds the lock now."""
        try:
            descriptor = open_regular(self.root / "lock")
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def shown(self, policy: str) -> list[dict[str, Any]]:
        """A policy's releases for the host, oldest first."""
        found = []
        for record in self.releases(policy):
            mark = self.mark(policy, record.release)
            marks = {kind: mark.reason if mark is not None and mark.kind == kind else "" for kind in MARKS}
            found.append({**{key: getattr(record, key) for key in _SHOWN}, **marks})
        return found

    def overview(self) -> dict[str, Any]:
        """Everything that is deployed."""
        return {
            "root": str(self.root),
            "free_bytes": self.free_bytes(),
            "environments": sorted(path.name for path in self.environments()),
            "locked_by": self.holder() if self.is_locked() else None,
            "policies": {
                policy: {
                    "current": self.current(policy),
                    "releases": self.shown(policy),
                    "rollout": self.rollout(policy),
                }
                for policy in self.policies()
            },
            "problems": self.problems(),
        }
