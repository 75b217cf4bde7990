"""What a deployment does on the device itself, one step a request, all under one lock.

One JSON object a line comes in, one goes out (``{"progress": …}`` lines may precede it); blank lines are the
host's heartbeat. The lock belongs to this process: when it dies, or the connection ends, or the host falls
silent, what was half done is removed and the kernel releases the lock. So there is no stale lock to break.

Sent to the device as text together with the modules beside it; only the standard library.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, TextIO

from device.host.on_device.files import HelperError, entries, is_file_with, remove, sha256_of, sync, write_json
from device.host.on_device.records import MARKER, RELEASE_FILE
from device.host.on_device.services import Services
from device.host.on_device.store import number_of
from device.host.on_device.upkeep import Reply, Request
from device.host.on_device.wire import host_is_gone, report, requests, say

LOCK_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Device(Services):
    """The releases on this device, and this process's hold on them."""

    def __init__(self, home: str | Path) -> None:
        super().__init__(home)
        self.lock: TextIO | None = None
        self.incoming: Path | None = None

    def show(self, request: Request) -> Reply:
        """Everything that is deployed; needs no lock."""
        return self.overview()

    def acquire(self, by: dict[str, Any], wait_s: float) -> None:
        """Take the lock, or say who has it."""
        self.root.mkdir(parents=True, exist_ok=True)
        stream = os.fdopen(self.open_lock(), "r+", encoding="utf-8")
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
        try:
            self.require_layout()
        except HelperError:
            self.discard()
            raise
        swept = self.sweep()
        releases = self.releases(self.policy)
        taken = {number_of(record.release) for record in releases}
        number = 1 + max([number_of(record.release) for record in releases if not record.damage] or [0])
        while number in taken:
            number += 1
        same = [record.release for record in releases if record.digest and record.digest == request.get("digest")]
        return {
            "next_number": number,
            "current": self.current(self.policy),
            "releases": self.shown(self.policy),
            "same": same[-1] if same else None,
            "swept": swept,
            "free_bytes": self.free_bytes(),
        }

    def sweep(self) -> list[str]:
        """Remove what a deployment that died left behind. Only under the lock: nobody else is at work."""
        left = [path for policy in self.policies() for path in entries(self.folder(policy) / "incoming")]
        left += [path for path in entries(self.root / "envs") if path.name.endswith(".part")]
        links = [path for policy in self.policies() for path in self.folder(policy).glob("current.*")]
        for path in (*left, *links):
            remove(path)
        return [str(path.relative_to(self.root)) for path in left]

    def receive(self, request: Request) -> Reply:
        """Open incoming/ID with the folders that the upload needs, if the disk has room for all of it."""
        free, need = self.free_bytes(), request["need_bytes"]
        if free < need:
            raise HelperError("no-space", f"{need / 1e6:.1f} MB are needed, nothing was written", free_bytes=free)
        self.require_layout()
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
                folder = self.release_folder(policy, record.release)
                known.update({digest: folder / name for name, (_, digest) in record.files.items()})
        done = []
        for name, digest in request["files"].items():
            source, target = known.get(digest), self.upload_folder() / name
            if source is not None and is_file_with(source, digest):  # damaged there, it will be sent
                shutil.copyfile(source, target)
                done.append(name)
        return {"files": done}

    def verify(self, request: Request) -> Reply:
        """Compare every uploaded file with the hash of what was sent, and set its mode."""
        wrong = []
        for name, expected in request["files"].items():
            path = self.upload_folder() / name
            if not is_file_with(path, expected):
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
            remove(path)
        part.mkdir(parents=True)
        files: dict[str, tuple[int, str]] = {}
        try:
            with zipfile.ZipFile(wheel) as archive:
                members = archive.infolist()
                for index, member in enumerate(members):
                    path = Path(archive.extract(member, part))
                    if not member.is_dir():
                        files[str(path.relative_to(part))] = (member.file_size, sha256_of(path))
                    if index % 20 == 0:
                        report(index, len(members))
                report(len(members), len(members))
            write_json(part / MARKER, {"wheel": request["file"], "sha256": request["sha256"], "files": files})
        except BaseException:
            remove(part)
            raise
        wheel.unlink()
        os.sync()  # a thousand small files: one sync is quicker than a thousand fsyncs
        part.rename(target)
        self.compared.pop(target.name, None)
        return {"folder": target.name, "files": len(files)}

    def publish(self, request: Request) -> Reply:
        """Turn incoming/ID into releases/ID: from now on it is complete, but not yet current."""
        incoming = self.upload_folder()
        write_json(incoming / RELEASE_FILE, dict(request["record"], files=request["files"], sizes=request["sizes"]))
        for path in incoming.rglob("*"):
            sync(path)
        target = self.folder(self.policy) / "releases" / incoming.name
        incoming.rename(target)
        self.incoming = None
        sync(target.parent)
        return {"release": target.name}

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
OPERATIONS = (
    *NEED_NO_LOCK,
    "receive",
    "reuse",
    "verify",
    "unpack",
    "publish",
    "environments_compared",
    "check",
    "switch",
    "set_mark",
    "prune",
    "drop",
    "serve",
    "unserve",
    "serving",
)


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
