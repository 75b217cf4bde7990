"""What a deployment does on the device itself, one step a request, all under one lock.

One JSON object a line comes in, one goes out (``{"progress": …}`` lines may precede it); blank lines are the
host's heartbeat. The lock belongs to this process: when it dies, or the connection ends, or the host falls
silent, what was half done is removed and the kernel releases the lock. So there is no stale lock to break.

Sent to the device as text together with ``store.py``; only the standard library.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from device.host.on_device.store import (
    MARKER,
    RELEASE_FILE,
    HelperError,
    Store,
    number_of,
    remove,
    sha256_of,
    sync,
    wheel_is_whole,
    write_json,
)

KEEP_RELEASES = 3
LOCK_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
Request = dict[str, Any]
Reply = dict[str, Any]


class Device(Store):
    """The releases on this device, and this process's hold on them."""

    def __init__(self, home: str | Path) -> None:
        super().__init__(home)
        self.lock: TextIO | None = None
        self.policy = ""
        self.incoming: Path | None = None

    def show(self, request: Request) -> Reply:
        """Everything that is deployed; needs no lock."""
        return self.overview()

    def acquire(self, by: dict[str, Any], wait_s: float) -> None:
        """Take the lock, or say who has it."""
        self.root.mkdir(parents=True, exist_ok=True)
        stream = (self.root / "lock").open("a+", encoding="utf-8")
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    stream.close()
                    raise HelperError("locked", "another deployment is at work here", holder=self.holder()) from None
                if host_is_gone():
                    sys.exit(0)
                time.sleep(LOCK_POLL_S)
        stream.truncate(0)
        json.dump(dict(by, device_pid=os.getpid(), since=time.strftime("%Y-%m-%dT%H:%M:%S%z")), stream)
        stream.flush()
        self.lock = stream

    def begin(self, request: Request) -> Reply:
        """Take the lock, sweep what a dead deployment left, say what is here."""
        self.acquire(request["by"], request.get("wait_s", 0))
        self.policy = request["policy"]
        swept = self.sweep()
        releases = self.releases(self.policy)
        number = 1 + max([number_of(record["release"]) for record in releases] or [0])
        same = [record["release"] for record in releases if record.get("digest") == request.get("digest")]
        return {
            "next_number": number,
            "current": self.current(self.policy),
            "releases": [record["release"] for record in releases],
            "same": same[-1] if same else None,
            "swept": swept,
            "environments": sorted(path.name for path in self.environments()),
            "free_bytes": self.free_bytes(),
        }

    def sweep(self) -> list[str]:
        """Remove what a deployment that died left behind. Only under the lock: nobody else is at work."""
        left = [path for policy in self.policies() for path in self.folder(policy).glob("incoming/*")]
        left += list((self.root / "envs").glob("*.part"))
        for path in left:
            remove(path)
        for policy in self.policies():
            for link in self.folder(policy).glob("current.*"):
                link.unlink()
        return [str(path.relative_to(self.root)) for path in left]

    def receive(self, request: Request) -> Reply:
        """Open incoming/ID with the folders that the upload needs, if the disk has room for all of it."""
        free, need = self.free_bytes(), request["need_bytes"]
        if free < need:
            raise HelperError("no-space", f"{need / 1e6:.1f} MB are needed, nothing was written", free_bytes=free)
        (self.folder(self.policy) / "releases").mkdir(parents=True, exist_ok=True)
        self.incoming = self.folder(self.policy) / "incoming" / request["release"]
        for name in ("", *request["folders"]):
            (self.incoming / name).mkdir(parents=True, exist_ok=True)
        return {"incoming": str(self.incoming)}

    def upload_folder(self) -> Path:
        """incoming/ID, once ``receive`` has opened it."""
        if self.incoming is None:
            raise HelperError("request", "nothing was received yet")
        return self.incoming

    def reuse(self, request: Request) -> Reply:
        """Copy files that an older release here already has, by hash; the host need not send them."""
        known: dict[str, Path] = {}
        for policy in self.policies():
            for record in self.releases(policy):
                folder = self.folder(policy) / "releases" / record["release"]
                known.update({digest: folder / name for name, digest in record.get("files", {}).items()})
        done = []
        for name, digest in request["files"].items():
            source, target = known.get(digest), self.upload_folder() / name
            if source is not None and source.is_file():
                shutil.copyfile(source, target)
                if sha256_of(target) == digest:
                    done.append(name)
                else:  # damaged there; it will be sent
                    target.unlink()
        return {"files": done}

    def verify(self, request: Request) -> Reply:
        """Compare every uploaded file with the hash of what was sent, and set its mode."""
        wrong = []
        for name, expected in request["files"].items():
            path = self.upload_folder() / name
            if not path.is_file() or sha256_of(path) != expected:
                wrong.append(name)
            elif name in request["executable"]:
                path.chmod(0o755)
        if wrong:
            raise HelperError("verify", "damaged on the way: " + ", ".join(wrong), files=wrong)
        return {"files": len(request["files"])}

    def unpack(self, request: Request) -> Reply:
        """Verify an uploaded wheel and unpack it (a wheel is a zip), to a temporary folder that is then renamed."""
        wheel = self.upload_folder() / request["file"]
        if sha256_of(wheel) != request["sha256"]:
            raise HelperError("verify", "damaged on the way: " + request["file"], files=[request["file"]])
        target = self.root / "envs" / request["folder"]
        part = target.with_name(target.name + ".part")
        for path in (part, target):  # a target that is here although the host sent it is not whole
            if path.exists():
                remove(path)
        part.mkdir(parents=True)
        try:
            with zipfile.ZipFile(wheel) as archive:
                members = archive.infolist()
                for index, member in enumerate(members):
                    archive.extract(member, part)
                    if index % 20 == 0:
                        report(index, len(members))
                report(len(members), len(members))
            sizes = {member.filename: member.file_size for member in members if not member.is_dir()}
            write_json(part / MARKER, {"wheel": request["file"], "sha256": request["sha256"], "files": sizes})
        except BaseException:
            remove(part)
            raise
        wheel.unlink()
        os.sync()  # a thousand small files: one sync is quicker than a thousand fsyncs
        part.rename(target)
        return {"folder": target.name, "files": len(sizes)}

    def publish(self, request: Request) -> Reply:
        """Turn incoming/ID into releases/ID: from now on it is complete, but not yet current."""
        incoming = self.upload_folder()
        write_json(incoming / RELEASE_FILE, dict(request["record"], files=request["files"]))
        for path in incoming.rglob("*"):
            sync(path)
        target = self.folder(self.policy) / "releases" / incoming.name
        incoming.rename(target)
        self.incoming = None
        sync(target.parent)
        return {"release": target.name}

    def check(self, request: Request) -> Reply:
        """Compare a release that is here already with its own record."""
        record = self.find(self.policy, request["release"])
        folder = self.folder(self.policy) / "releases" / request["release"]
        wrong = [
            name
            for name, digest in record.get("files", {}).items()
            if not (folder / name).is_file() or sha256_of(folder / name) != digest
        ]
        missing = [name for name in record.get("environments", []) if not wheel_is_whole(self.root / "envs" / name)]
        return {"record": record, "damaged": wrong, "missing_environments": missing}

    def switch(self, request: Request) -> Reply:
        """Point ``current`` at a release: a new link is made beside it and renamed over it, so it is never absent."""
        self.find(self.policy, request["release"])
        folder = self.folder(self.policy)
        before = self.current(self.policy)
        link = folder / f"current.{os.getpid()}"
        link.symlink_to(Path("releases") / request["release"])
        link.replace(folder / "current")
        sync(folder)
        return {"current": request["release"], "previous": before}

    def prune(self, request: Request) -> Reply:
        """Remove all but the newest releases, the current one and ``previous``, and wheels that no release needs."""
        releases = [record["release"] for record in self.releases(self.policy)]
        kept = {*releases[-KEEP_RELEASES:], self.current(self.policy), request.get("previous")}
        gone = [release for release in releases if release not in kept]
        for release in gone:
            remove(self.folder(self.policy) / "releases" / release)
        needed: set[str] = set()
        for policy in self.policies():
            for record in self.releases(policy):
                needed.update(record.get("environments", []))
        unused = [path for path in self.environments() if path.name not in needed]
        for path in unused:
            remove(path)
        return {"releases": gone, "environments": [path.name for path in unused]}

    def discard(self, request: Request | None = None) -> Reply:
        """Remove what this deployment uploaded so far, and give the lock back."""
        if self.incoming is not None:
            remove(self.incoming)
            self.incoming = None
        if self.lock is not None:
            self.lock.truncate(0)
            self.lock.close()
            self.lock = None
        return {}


# By name, so that a request can reach nothing else.
NEED_NO_LOCK = ("show", "begin", "discard")
OPERATIONS = (*NEED_NO_LOCK, "receive", "reuse", "verify", "unpack", "publish", "check", "switch", "prune")


def answer(device: Device, request: Request) -> Reply:
    """One request, one reply; whatever goes wrong is a reply too."""
    try:
        name = request["op"]
        if name not in OPERATIONS:
            raise HelperError("request", f"there is no operation {name!r}")
        if name not in NEED_NO_LOCK and device.lock is None:
            raise HelperError("request", f"{name} without the lock")
        return dict(getattr(device, name)(request), ok=True)
    except HelperError as error:
        return {"ok": False, "error": dict(error.facts, code=error.code, message=str(error))}
    except OSError as error:
        code = "no-space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "os"
        return {"ok": False, "error": {"code": code, "message": str(error), "free_bytes": device.free_bytes()}}
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        return {"ok": False, "error": {"code": "request", "message": repr(error)}}


def say(data: Any) -> None:
    """Write one line to the host."""
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def report(done: int, total: int) -> None:
    """Tell the host how far a long step is."""
    say({"progress": {"done": done, "total": total}})


_received = bytearray()


def host_is_gone() -> bool:
    """Whether the host has hung up; what it sent meanwhile is kept."""
    while select.select([0], [], [], 0)[0]:
        block = os.read(0, 65536)
        if not block:
            return True
        _received.extend(block)
    return False


def requests(silence_s: float) -> Iterator[Request]:
    """The host's requests until it hangs up or says nothing, not even a heartbeat, for ``silence_s`` seconds."""
    while True:
        while b"\n" in _received:
            line, _, rest = bytes(_received).partition(b"\n")
            _received[:] = rest
            if line.strip():
                yield json.loads(line.decode())
        if not select.select([0], [], [], silence_s)[0]:
            return
        block = os.read(0, 65536)
        if not block:
            return
        _received.extend(block)


def stop(number: int, frame: object) -> None:
    """A signal ends the helper in good order: ``main`` discards."""
    sys.exit(128 + number)


def main(silence_s: float) -> None:
    """Serve one host until it is gone, then leave nothing half done."""
    os.umask(0o077)
    for number in _SIGNALS:
        signal.signal(number, stop)
    device = Device(Path.home())
    try:
        say({"quarl-helper": 1})
        for request in requests(silence_s):
            say(answer(device, request))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the host is gone; nothing is left to tell it at exit
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        device.discard()
