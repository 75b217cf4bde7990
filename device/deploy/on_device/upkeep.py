"""What is done to the releases that are on a device: compare, switch, mark, prune, remove. All under the lock.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import (
    HelperError,
    differences,
    entries,
    remove,
    running_in,
    sync,
    what_is,
    write_json,
)
from quarl.device.deploy.on_device.records import (
    ENDED_FILE,
    GOOD,
    MARK_FILE,
    MARKER,
    MARKS,
    OWN_FILES,
    ROLLOUT_FILE,
    Record,
    one_line,
    read_marker,
)
from quarl.device.deploy.on_device.store import Store, number_of
from quarl.device.deploy.on_device.wire import report

KEEP_RELEASES = 3
Request = dict[str, Any]
Reply = dict[str, Any]


class Upkeep(Store):
    """The releases on this device, and what may be done to those of one policy."""

    def __init__(self, home: str | Path) -> None:
        super().__init__(home)
        self.policy = ""
        self.compared: dict[str, list[str]] = {}  # unpacked wheels, and what in them is not as recorded
        self.unhashed: set[str] = set()  # those of which only sizes were recorded

    def require_layout(self) -> None:
        """Refuse to work where a folder of ours is something else, for example a link that leads elsewhere.

        Raises:
            HelperError: ``layout``.
        """
        wrong = [reason for reason in self.misplaced(self.policy) if "must be" in reason]
        if wrong:
            raise HelperError("layout", "; ".join(wrong))

    def environments_compared(self, request: Request) -> Reply:
        """Compare unpacked wheels, file by file, with what was recorded when they were unpacked."""
        names = request["environments"]
        begun, files = time.monotonic(), 0
        for name in names:
            if name not in self.compared:
                count, self.compared[name] = self.compare(self.root / "envs" / name)
                files += count
        return {
            "whole": [name for name in names if not self.compared[name] and name not in self.unhashed],
            "damaged": {name: self.compared[name] for name in names if self.compared[name]},
            "unhashed": [name for name in names if name in self.unhashed],
            "files": files,
            "seconds": time.monotonic() - begun,
        }

    def compare(self, folder: Path) -> tuple[int, list[str]]:
        """The number of files of an unpacked wheel, and what is not as recorded."""
        try:
            files = read_marker(folder)
        except HelperError as error:
            return 0, [str(error)]
        if not all(sha256 for _, sha256 in files.values()):
            self.unhashed.add(folder.name)

        def compared(count: int) -> None:
            if count % 100 == 0:
                report(count, len(files))

        return len(files), differences(folder, files, (MARKER,), compared)

    def differing(self, record: Record) -> list[str]:
        """What in a release's folder is not as its record says."""
        return differences(self.release_folder(self.policy, record.release), record.files, OWN_FILES)

    def running(self, policy: str) -> dict[str, list[int]]:
        """The processes that run from a policy's releases, by release."""
        return running_in(self.folder(policy) / "releases")

    def check(self, request: Request) -> Reply:
        """Compare a release that is here already, and the wheels it needs, with what was recorded of them."""
        record = self.accepted(self.policy, request["release"])
        wrong = self.differing(record)
        wheels = self.environments_compared({"environments": record.environments})
        missing = [f"envs/{name}: {', '.join(reasons)}" for name, reasons in wheels["damaged"].items()]
        mark = self.mark(self.policy, record.release)
        return {
            "precisions": record.precisions,
            "runtimes": record.runtimes,
            "signer": record.signer,
            "damaged": wrong,
            "missing_environments": missing,
            "unhashed": wheels["unhashed"],
            "doubted": mark is not None and mark.kind != GOOD,
            "files": wheels["files"],
            "seconds": wheels["seconds"],
        }

    def switch(self, request: Request) -> Reply:
        """Point ``current`` at a release: a new link is made beside it and renamed over it, so it is never absent.

        The release has passed its check, so that a mark from earlier no longer holds; its files are compared once more.
        """
        record = self.accepted(self.policy, request["release"])
        self.require_layout()
        if wrong := self.differing(record):
            raise HelperError("damaged", f"release {record.release} is not as it was signed: {', '.join(wrong)}")
        before = self.current(self.policy)
        mark = self.mark(self.policy, request["release"])
        if mark is not None and mark.kind != GOOD:
            remove(self.release_folder(self.policy, request["release"]) / MARK_FILE)
        if request.get("rollout"):
            self.write_rollout(request["rollout"])
        self.point("current", request["release"])
        return {"current": request["release"], "previous": before}

    def write_rollout(self, rollout: dict[str, Any]) -> None:
        """Say whose rollout switches the policy; where the disk takes no more, say at least that no other's does."""
        file = self.folder(self.policy) / ROLLOUT_FILE
        try:
            write_json(file, rollout)
        except OSError:
            with contextlib.suppress(OSError):
                self.rename_rollout()

    def rename_rollout(self) -> None:
        """Give the file that says whose rollout is at work the name of one that has ended."""
        (self.folder(self.policy) / ROLLOUT_FILE).replace(self.folder(self.policy) / ENDED_FILE)

    def end_rollout(self, request: Request) -> Reply:
        """Say that a rollout has ended, unless another came in its place."""
        found = self.rollout(self.policy)
        if found is not None and not found["ended"] and found.get("rollout") == request["rollout"]:
            self.rename_rollout()
        return {}

    def point(self, name: str, release: str) -> None:
        """Have a link in the policy's folder lead to a release, on the disk, too."""
        folder = self.folder(self.policy)
        link = folder / f"current.{os.getpid()}"
        link.symlink_to(Path("releases") / release)
        link.replace(folder / name)
        sync(folder)

    def set_mark(self, request: Request) -> Reply:
        """Mark a release: bad and left until it is deployed again, or good."""
        kind, reason = request["kind"], request["reason"]
        if kind not in MARKS:
            raise HelperError("request", f"the mark is {kind!r}; allowed are {', '.join(MARKS)}")
        record = self.find(self.policy, request["release"])
        write_json(
            self.release_folder(self.policy, record.release) / MARK_FILE, {"kind": kind, "reason": one_line(reason)}
        )
        return {}

    def prune(self, request: Request) -> Reply:
        """Remove older releases, and wheels that no release needs.

        What stays: the newest, the current one and ``previous``; the newest good one but the current one, the newest
        good one before it and the newest that somebody went back to, so that there is something to go back to; and
        whatever a process runs from.
        """
        records, current = self.releases(self.policy), self.current(self.policy)
        names = [record.release for record in records]
        good = [record.release for record in records if self.is_good(self.policy, record)]
        before = [name for name in good if current is None or number_of(name) < number_of(current)]
        others = [name for name in good if name != current]
        marks = {name: self.mark(self.policy, name) for name in good}
        chosen = [name for name, mark in marks.items() if mark is not None]  # a good one has no other mark
        kept = {*names[-KEEP_RELEASES:], current, request.get("previous"), *before[-1:], *others[-1:], *chosen[-1:]}
        busy = self.running(self.policy)
        gone = [name for name in names if name not in kept and name not in busy]
        for name in gone:
            remove(self.release_folder(self.policy, name))
        self.trust.forget(self.policy, gone)
        in_use = {name: busy[name] for name in names if name not in kept and name in busy}
        return {"releases": gone, "environments": self.drop_environments(), "in_use": in_use}

    def drop_environments(self) -> list[str]:
        """Remove the unpacked wheels that no release needs."""
        needed: set[str] = set()
        for policy in self.policies():
            busy = self.running(policy)
            for record in self.releases(policy):
                if record.damage and (record.release in busy or record.release == self.current(policy)):
                    return []  # it works, and nobody knows what it needs
                needed.update(record.environments)
        there = [path for path in entries(self.root / "envs") if what_is(path) == "folder"]
        unused = [path for path in there if path.name not in needed and not path.name.endswith(".part")]
        for path in unused:
            remove(path)
        return [path.name for path in unused]

    def drop(self, request: Request) -> Reply:
        """Remove one release, or all but the current one, or with ``whole`` all of the policy.

        The current one is removed by ``whole``, or where it is the one to ``withdraw``.
        """
        names, current = [record.release for record in self.releases(self.policy)], self.current(self.policy)
        if not what_is(self.folder(self.policy)):
            raise HelperError("release", f"there is no policy {self.policy}; there are {', '.join(self.policies())}")
        wanted, whole = request.get("release"), request.get("whole", False)
        if wanted is not None and wanted not in names:
            self.find(self.policy, wanted)
        withdrawn = wanted is not None and wanted == current
        if withdrawn and not request.get("withdraw", False):
            raise HelperError("serving", f"release {wanted} of {self.policy} serves")
        gone = [wanted] if wanted is not None else [name for name in names if whole or name != current]
        busy = {name: pids for name, pids in self.running(self.policy).items() if name in gone}
        if busy and not request.get("force", False):
            processes = "; ".join(f"{name} (process {', '.join(map(str, pids))})" for name, pids in busy.items())
            raise HelperError("in-use", f"an agent runs from {processes}")
        if whole or withdrawn:
            remove(self.folder(self.policy) / "current")  # first: it must never lead to half a release
        for name in gone:
            remove(self.release_folder(self.policy, name))
        self.trust.forget(self.policy, gone)
        if whole or (withdrawn and not self.releases(self.policy)):
            remove(self.folder(self.policy))
        return {
            "releases": gone,
            "current": None if whole or withdrawn else current,
            "environments": self.drop_environments(),
        }
