"""What a deployment does on the device itself, one step a request, all under one lock.

One JSON object a line comes in, one goes out (``{"progress": …}`` lines may precede it); blank lines are the
host's heartbeat. The lock belongs to this process: when it dies, or the connection ends, or the host falls
silent, what was half done is removed and the kernel releases the lock. So there is no stale lock to break.

Sent to the device as text together with the modules beside it; only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import (
    HelperError,
    differences,
    entries,
    is_file_with,
    remove,
    sha256_of,
    sync,
    write_bytes,
    write_json,
)
from quarl.device.deploy.on_device.records import (
    MARKER,
    OWN_FILES,
    PROGRAM,
    RELEASE_FILE,
    SIGNATURE_FILE,
    STARTER,
    Record,
    parse_record,
)
from quarl.device.deploy.on_device.services import Services
from quarl.device.deploy.on_device.store import number_of
from quarl.device.deploy.on_device.upkeep import Reply, Request
from quarl.device.deploy.on_device.wire import host_is_gone, report, requests, say

LOCK_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Device(Services):
    """The releases on this device, and this process's hold on them."""

    def __init__(self, home: str | Path) -> None:
        super().__init__(home)
        self.lock: int | None = None
        self.incoming: Path | None = None
        self.signed = b""  # the record that was received
        self.record = Record("", "nothing was received yet")
        self.wheels: dict[str, str] = {}  # sha256 by folder of those that the record names

    def show(self, request: Request) -> Reply:
        """Everything that is deployed; needs no lock."""
        return self.overview()

    def acquire(self, by: dict[str, Any], wait_s: float) -> None:
        """Take the lock, or say who has it."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = self.open_lock()
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(lock)
                    raise HelperError("locked", "another deployment is at work here", holder=self.holder()) from None
                if host_is_gone():
                    sys.exit(0)
                time.sleep(LOCK_POLL_S)
        self.lock = lock
        by = dict(by, device_pid=os.getpid(), since=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        with contextlib.suppress(OSError):  # for others to read; a full disk keeps nobody from stopping a robot
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(by).encode(), 0)

    def begin(self, request: Request) -> Reply:
        """Take the lock, sweep what a dead deployment left, say what is here."""
        self.acquire(request["by"], request.get("wait_s", 0))
        self.policy = request["policy"]
        try:
            self.require_layout()
        except HelperError:
            self.discard()
            raise
        self.settle()
        swept = self.sweep()
        try:
            trust = self.trust.overview(self.policy)
        except HelperError as error:  # what is sent or started is refused; what stops a robot needs nobody's trust
            trust = {"refused": str(error)}
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
            "rollout": self.rollout(self.policy),
            "free_bytes": self.free_bytes(),
            "trust": trust,
        }

    def signers(self, request: Request) -> Reply:
        """Let keys sign, revoke others, name the device's class; who may sign now, and who signed what serves."""
        if request["add"] or request["revoke"] or request["device_class"] is not None:
            self.trust.change(request["add"], request["revoke"], request["device_class"])
        current = {policy: self.current(policy) for policy in self.policies()}
        records = {policy: self.releases(policy) for policy in self.policies()}
        serving = {
            policy: {"release": record.release, "signer": record.signer}
            for policy in records
            for record in records[policy]
            if record.release == current[policy]
        }
        return {**self.trust.overview(""), "serving": serving}

    def sweep(self) -> list[str]:
        """Remove what a deployment that died left behind. Only under the lock: nobody else is at work."""
        left = [path for policy in self.policies() for path in entries(self.folder(policy) / "incoming")]
        left += [path for path in entries(self.root / "envs") if path.name.endswith(".part")]
        links = [path for policy in self.policies() for path in self.folder(policy).glob("current.*")]
        for path in (*left, *links):
            remove(path)
        return [str(path.relative_to(self.root)) for path in left]

    def receive(self, request: Request) -> Reply:
        """Take a signed record, if it is trusted, and open incoming/ID with the folders of what it names.

        Nothing is written where the disk has no room for all of it.
        """
        text, signature = request["record"].encode(), request["signature"].encode()
        data = self.trust.check_new(self.policy, text, signature)
        self.record, self.signed = parse_record(request["release"], self.policy, data), text
        self.require_artifact(self.record)
        self.wheels = data["wheels"]
        free, need = self.free_bytes(), request["need_bytes"]
        if free < need:
            raise HelperError("no-space", f"{need / 1e6:.1f} MB are needed, nothing was written", free_bytes=free)
        self.require_layout()
        (self.folder(self.policy) / "releases").mkdir(parents=True, exist_ok=True)
        self.incoming = self.folder(self.policy) / "incoming" / request["release"]
        for name in self.record.files:
            (self.incoming / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.incoming / RELEASE_FILE, text)
        write_bytes(self.incoming / SIGNATURE_FILE, signature)
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
        for name, (_, digest) in self.record.files.items():
            source, target = known.get(digest), self.upload_folder() / name
            if source is not None and is_file_with(source, digest):  # damaged there, it will be sent
                shutil.copyfile(source, target)
                done.append(name)
        return {"files": done}

    def verify(self, request: Request) -> Reply:
        """Compare what was uploaded with the record, file by file, and set the starter's mode."""
        wrong = differences(self.upload_folder(), self.record.files, OWN_FILES)
        if wrong:
            raise HelperError("verify", "damaged on the way: " + ", ".join(wrong), files=wrong)
        for name in {STARTER, PROGRAM} & self.record.files.keys():
            (self.upload_folder() / name).chmod(0o755)
        return {"files": len(self.record.files)}

    def unpack(self, request: Request) -> Reply:
        """Verify an uploaded wheel and unpack it (a wheel is a zip), to a temporary folder that is then renamed."""
        wheel = self.upload_folder() / request["file"]
        if sha256_of(wheel) != self.wheels.get(request["folder"]):
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
            write_json(
                part / MARKER, {"wheel": request["file"], "sha256": self.wheels[request["folder"]], "files": files}
            )
        except BaseException:
            remove(part)
            raise
        wheel.unlink()
        os.sync()  # a thousand small files: one sync is quicker than a thousand fsyncs
        part.rename(target)
        self.compared.pop(target.name, None)
        return {"folder": target.name, "files": len(files)}

    def publish(self, request: Request) -> Reply:
        """Turn incoming/ID into releases/ID: from now on it is complete and accepted, but not yet current."""
        incoming = self.upload_folder()
        self.verify(request)  # its agent has run meanwhile
        if incoming.joinpath(RELEASE_FILE).read_bytes() != self.signed:
            raise HelperError("verify", f"{RELEASE_FILE} was changed", files=[RELEASE_FILE])
        for path in incoming.rglob("*"):
            sync(path)
        target = self.folder(self.policy) / "releases" / incoming.name
        self.trust.accept(self.policy, target.name, self.signed)
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
            with contextlib.suppress(OSError):
                os.ftruncate(self.lock, 0)
            os.close(self.lock)
            self.lock = None
        return {}


# By name, so that a request can reach nothing else.
NEED_NO_LOCK = ("show", "begin", "discard", "signers", "serving")
TO_THE_END = ("switch", "serve")
"""Each ends by a trial, which the device finishes also when its host is gone."""
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
    "end_rollout",
    "prune",
    "drop",
    "serve",
    "unserve",
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


@contextlib.contextmanager
def to_the_end() -> Iterator[None]:
    """Let signals that come within the block end the helper after it: a trial ends by switching back, or not at all.

    What is started within keeps the usual handlers, which ignored or blocked signals would not.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        os.kill(os.getpid(), came[0])


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
            with to_the_end() if request.get("op") in TO_THE_END else contextlib.nullcontext():
                say(answer(device, request))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the host is gone; nothing is left to tell it at exit
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        device.discard()
