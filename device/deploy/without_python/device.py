"""What the helper does on a device with Python, done from the host where there is none: the same operations and files.

Records, marks and lists are read and written in a mirror (:mod:`mirror`) by the helper's own code. What a release's
files hold is judged on the device alone, by launch.sh, as at each start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.on_device.files import HelperError, write_bytes
from quarl.device.deploy.on_device.helper import Device
from quarl.device.deploy.on_device.launch import GREETING
from quarl.device.deploy.on_device.records import ENDED_FILE, PROGRAM, RELEASE_FILE, ROLLOUT_FILE, STARTER, Record
from quarl.device.deploy.on_device.signatures import read_lines
from quarl.device.deploy.on_device.store import Store
from quarl.device.deploy.on_device.trust import ANY_CLASS, CLASS_FILE, SYSTEM, Trust
from quarl.device.deploy.on_device.upkeep import Reply, Request, Upkeep
from quarl.device.deploy.remote_process import RemoteProcess
from quarl.device.deploy.without_python.lock import LOOK, take
from quarl.device.deploy.without_python.mirror import Mirror

LAUNCHER = Path(__file__).with_name("launch.sh")
CHECK_S = 120.0  # an emulated device takes its time
NO_LOOP = "there is no Python, and without it no policy is served in a loop"
NEXT_STEP = (
    "On the device: sudo apt-get install python3; or let what starts your other programs start it, verified each time: "
    "/bin/sh ~/quarl/services/launch.sh POLICY ~/quarl/policies/POLICY/current loop --rate=50 (docs/native.md)"
)


class DeviceTrust(Trust):
    """Who is trusted on a device whose lists lie in a mirror."""

    def __init__(self, root: Path, mirror: Mirror) -> None:
        super().__init__(root, mirror.system)
        self._mirror = mirror

    def open_to_others(self, path: Path) -> str:
        """Whether others may write it there."""
        return self._mirror.open_to_others(path)

    def device_class(self) -> str:
        """What the device is, with its own processor instead of this host's."""
        names = read_lines(self.anchor / CLASS_FILE)
        return f"{names[0] if names else ANY_CLASS}/{self._mirror.machine}"


class BareDevice(Device):
    """The releases on a device without Python, and this host's hold on them."""

    def __init__(self, connection: Connection, home: Path) -> None:
        """Read what is there.

        Args:
            connection: to the device.
            home: an empty folder of this host, for the mirror.
        """
        super().__init__(home)
        self._connection, self._home = connection, home
        self.mirror = Mirror(connection, home)
        self._holder: RemoteProcess | None = None
        self.pull()

    def pull(self) -> None:
        """Read what is there now."""
        self.mirror.pull()
        self.trust = DeviceTrust(self.root, self.mirror)

    def as_shown(self, reply: Reply) -> Reply:
        """A reply with the device's paths in the place of the mirror's."""
        text = json.dumps(reply)
        text = text.replace(json.dumps(str(self.mirror.system))[1:-1], str(SYSTEM))
        shown: Reply = json.loads(
            text.replace(json.dumps(str(self._home))[1:-1], json.dumps(self.mirror.remote_home)[1:-1])
        )
        return shown

    def acquire(self, by: dict[str, Any], wait_s: float) -> None:
        """Take the lock, and read what is there anew: another deployment may just have ended."""
        self._holder = take(self._connection, by, wait_s)
        self.lock = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the helper looks whether there is one
        self.pull()

    def beat(self) -> None:
        """Keep the line to the lock's shell in use."""
        if self._holder is not None:
            self._holder.send(b"\n")

    def discard(self, request: Request | None = None) -> Reply:
        """Remove what this deployment uploaded so far, and give the lock back."""
        had = self.incoming
        reply = super().discard(request)
        try:
            if had is not None:
                self.mirror.push()
        finally:
            holder, self._holder = self._holder, None
            if holder is not None:
                holder.close_input()
                holder.wait(5.0)
                holder.close()
        return reply

    def free_bytes(self) -> int:
        """Bytes that an ordinary user may still write."""
        found = re.search(r"\s\d+\s+\d+\s+(-?\d+)\s+\d+%", self.mirror.shell("df -Pk ."))
        return max(0, int(found[1])) * 1024 if found else 0

    def is_locked(self) -> bool:
        """Whether some host holds the lock now."""
        return "yes" in self.mirror.shell(f"{LOOK}\nif held; then echo yes; fi").split()

    def holder(self) -> dict[str, Any]:
        """What the holder of the lock wrote about itself."""
        try:
            found = json.loads(self.mirror.shell("cat quarl/lock"))
        except (OSError, ValueError):
            return {}
        return {key: value for key, value in found.items() if isinstance(value, str | int)}

    def running(self, policy: str) -> dict[str, list[int]]:
        """The processes that run from a policy's releases, by release: from the device's /proc."""
        releases = shlex.quote(self._remote(self.folder(policy) / "releases"))
        listing = self.mirror.shell(
            f"top=$(cd -P {releases} 2>/dev/null && pwd -P) || exit 0\n"
            "for process in /proc/[0-9]*; do\n"
            '  at=$(readlink "$process/cwd" 2>/dev/null) || continue\n'
            '  case $at in "$top"/*) at=${at#"$top"/}; echo "${process##*/} ${at%%/*}" ;; esac\n'
            "done"
        )
        found: dict[str, list[int]] = {}
        for line in listing.splitlines():
            process, _, release = line.partition(" ")
            found.setdefault(release, []).append(int(process))
        return found

    def _remote(self, path: Path) -> str:
        return str(path.relative_to(self._home))

    def _judged(self, place: str, release: str) -> Mapping[str, Any]:
        """What launch.sh, on the device, has against a release: a code and a message, or nothing."""
        folder = self._remote(self.folder(self.policy) / place / release)
        words = " ".join(map(shlex.quote, (self.policy, folder, "--check")))
        command = "exec sh -c " + shlex.quote(f'cd -P "$HOME" && exec sh -s -- {words}')
        done = self._connection.run(command, stdin=LAUNCHER.read_bytes(), timeout=CHECK_S, check=False)
        for line in done.stdout.splitlines():
            if line.startswith(f'{{"{GREETING}"'):
                refused = json.loads(line)[GREETING]
                return refused if isinstance(refused, dict) else {}
        raise HelperError("os", f"launch.sh did not run to its end: {done.stderr.strip()[-200:] or 'it wrote nothing'}")

    def differing(self, record: Record) -> list[str]:
        """What in a release's folder is not as its record says."""
        refused = self._judged("releases", record.release)
        if refused and refused.get("code") != "damaged":
            raise HelperError(str(refused.get("code")), str(refused.get("message")))
        return [str(refused.get("message")).partition(": ")[2]] if refused else []

    def reuse(self, request: Request) -> Reply:
        """Copy files that an older release here already has, by hash; the host need not send them."""
        done, folder = [], self._remote(self.upload_folder())
        for name, (_, digest) in self.record.files.items():
            for record in self.releases(self.policy):
                if record.files.get(name, (None, ""))[1] != digest:
                    continue
                source = shlex.quote(f"{self._remote(self.release_folder(self.policy, record.release))}/{name}")
                target = shlex.quote(f"{folder}/{name}")
                same = f'[ ! -L {source} ] && [ "$(sha256sum < {source} 2>/dev/null)" = "{digest}  -" ]'
                if "copied" in self.mirror.shell(f"if {same} && cat {source} > {target}; then echo copied; fi").split():
                    done.append(name)
                    break
        return {"files": done}

    def verify(self, request: Request) -> Reply:
        """Let the device compare what was uploaded with the record, and set the programs' mode."""
        incoming = self.upload_folder()
        sftp, folder = self._connection.sftp(), self._remote(incoming)
        if refused := self._judged("incoming", incoming.name):
            code = "verify" if refused.get("code") == "damaged" else str(refused.get("code"))
            raise HelperError(code, str(refused.get("message")))
        for name in (STARTER, PROGRAM):
            sftp.chmod(self.mirror.at(f"{folder}/{name}"), 0o755)
        return {"files": len(self.record.files)}

    def publish(self, request: Request) -> Reply:
        """Turn incoming/ID into releases/ID: from now on it is complete and accepted, but not yet current."""
        incoming = self.upload_folder()
        self.verify(request)  # its agent has run meanwhile
        folder, name = self._remote(incoming), incoming.name
        with self._connection.sftp().open(self.mirror.at(f"{folder}/{RELEASE_FILE}"), "rb") as stream:
            if stream.read(len(self.signed) + 1) != self.signed:
                raise HelperError("verify", f"{RELEASE_FILE} was changed", files=[RELEASE_FILE])
        self.trust.accept(self.policy, name, self.signed)
        self.mirror.push()
        self.mirror.moved(folder, self._remote(self.folder(self.policy) / "releases" / name))
        self.incoming = None
        return {"release": name}

    def switch(self, request: Request) -> Reply:
        """Point ``current`` at a release, and leave beside it what verifies and starts it by hand."""
        if self.settings() is not None:
            raise HelperError("service", f"{self.policy} is served in a loop, and {NO_LOOP}", next=NEXT_STEP)
        services = self.root / "services"
        services.mkdir(mode=0o700, exist_ok=True)
        write_bytes(services / LAUNCHER.name, LAUNCHER.read_bytes())  # for what starts a loop there by itself
        return Upkeep.switch(self, request)

    def write_rollout(self, rollout: dict[str, Any]) -> None:
        """Say whose rollout switches the policy, past the mirror: where the disk is full, the switch needs no room."""
        file = shlex.quote(self._remote(self.folder(self.policy) / ROLLOUT_FILE))
        ended = shlex.quote(self._remote(self.folder(self.policy) / ENDED_FILE))
        with contextlib.suppress(OSError):
            self.mirror.shell(
                f"rm -rf -- {file}.part; if printf %s {shlex.quote(json.dumps(rollout))} > {file}.part; "
                f"then mv -f -- {file}.part {file}; else rm -f -- {file}.part; mv -f -- {file} {ended}; fi"
            )

    def rename_rollout(self) -> None:
        """Give the file that says whose rollout is at work the name of one that has ended."""
        folder = self._remote(self.folder(self.policy))
        self.mirror.moved(f"{folder}/{ROLLOUT_FILE}", f"{folder}/{ENDED_FILE}")

    def drop(self, request: Request) -> Reply:
        """Remove one release, or all but the current one, or with ``whole`` all of the policy."""
        return Upkeep.drop(self, request)

    def serve(self, request: Request) -> Reply:
        """Refuse: nothing here starts a loop on a device without Python."""
        raise HelperError("service", NO_LOOP, next=NEXT_STEP)

    unserve = serving = serve

    def settle(self) -> list[str]:
        """Nothing: no loop is tried here."""
        return []

    def overview(self) -> Reply:
        """Everything that is deployed."""
        return Store.overview(self)
