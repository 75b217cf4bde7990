"""A copy of what is small in a device's ~/quarl, worked on here and then written back, file by file, each atomically.

So the same code reads and writes records, marks and lists as on a device with Python, and they are the same to the
byte. Folders, links and files are there by kind; contents only of what is read. Nothing in it leads out of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import paramiko

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.on_device.files import open_to_others
from quarl.device.deploy.on_device.records import MOST_RECORD
from quarl.device.deploy.on_device.signatures import REVOKED_FILE, SIGNERS_FILE
from quarl.device.deploy.on_device.trust import CLASS_FILE, SYSTEM

_ENTERED = re.compile(r"quarl(/(trust|services|envs|policies(/[^/]+(/(releases(/[^/]+)?|incoming))?)?))?\Z")
_READ = re.compile(
    r"quarl/(trust/[^/]+|services/([^/]+\.json|launch\.sh)"
    r"|policies/[^/]+/(rollout(\.ended)?\.json|releases/[^/]+/(release\.json(\.sig)?|mark\.json(\.part)?)))\Z"
)
_MOST = 4 * MOST_RECORD  # bytes; what remembers the accepted releases may have as many
_ELSEWHERE = "-> "
"""In front of where a link leads, unless it is a release beside it: it leads nowhere here."""
_CURRENT = re.compile(r"releases/[A-Za-z0-9-]+\Z")
SHELL = "exec sh -c 'cd -P \"$HOME\" && umask 077 && exec sh -s'"


@dataclass(frozen=True)
class _Entry:
    """``folder``, ``link`` with where it leads, or ``file`` with its content."""

    kind: str
    content: bytes = b""


class Mirror:
    """A device's ~/quarl under a folder of this host."""

    def __init__(self, connection: Connection, home: Path) -> None:
        self._connection, self._home = connection, home
        self._before: dict[str, _Entry] = {}
        shown = self.shell(
            'printf "\\nhome=%s\\nmachine=%s\\n" "$(pwd -P)" "$(uname -m)"; '
            r"sed -n 's/^Uid:[^0-9]*\([0-9]*\).*/user=\1/p' /proc/self/status"
        )
        values = dict(line.partition("=")[::2] for line in shown.splitlines())  # start-up files may print, too
        self.remote_home, self.machine = values["home"], values["machine"].lower()
        self._user = int(values["user"])

    def at(self, name: str) -> str:
        """A path in the device's home folder, whole: SFTP may start elsewhere than a shell."""
        return f"{self.remote_home}/{name}"

    def open_to_others(self, path: Path) -> str:
        """As that of ``files``, asked of the device for a path of the mirror."""
        of_root = path.is_relative_to(self.system)
        shown = str(SYSTEM / path.relative_to(self.system)) if of_root else self.at(str(path.relative_to(self._home)))
        sftp = self._connection.sftp()
        with contextlib.suppress(FileNotFoundError):  # it was just made here, and will be its owner's alone
            return open_to_others(sftp.normalize(shown), self.remote_home, sftp.stat, self._user)
        return ""

    def shell(self, script: str, timeout: float = 120.0) -> str:
        """What a script printed that ran in the device's home folder.

        Raises:
            OSError: it failed; says what it wrote.
        """
        done = self._connection.run(SHELL, stdin=f"{script}\n".encode(), timeout=timeout, check=False)
        if not done.ok:
            raise OSError(done.stderr.strip()[-300:] or f"`{script[:80]}` ended with status {done.exit_status}")
        return done.stdout

    def pull(self) -> None:
        """Copy what the device has now."""
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir(parents=True)
        sftp = self._connection.sftp()
        try:
            root = sftp.lstat(self.at("quarl")).st_mode or 0
        except FileNotFoundError:
            root = 0
        if root:
            self._copy(sftp, "quarl", root)
        for name in (SIGNERS_FILE, REVOKED_FILE, CLASS_FILE):
            try:
                content = _content(sftp, f"{SYSTEM}/{name}")
            except FileNotFoundError:
                continue
            self.system.mkdir(exist_ok=True)
            (self.system / name).write_bytes(content)
        self._before = self._now()

    @property
    def system(self) -> Path:
        """What root has in /etc/quarl; a folder that is missing where that has no list."""
        return self._home / "etc"

    def _copy(self, sftp: paramiko.SFTPClient, name: str, mode: int) -> None:
        path = self._home / name
        if stat.S_ISLNK(mode):
            target = sftp.readlink(self.at(name)) or ""
            path.symlink_to(target if _CURRENT.match(target) else f"{_ELSEWHERE}{target}"[:4000])
        elif stat.S_ISDIR(mode):
            path.mkdir()
            for entry in sftp.listdir_attr(self.at(name)) if _ENTERED.match(name) else ():
                if entry.filename not in ("", ".", "..") and "/" not in entry.filename and "\0" not in entry.filename:
                    self._copy(sftp, f"{name}/{entry.filename}", entry.st_mode or 0)
        elif stat.S_ISREG(mode):
            path.write_bytes(_content(sftp, self.at(name)) if _READ.match(name) else b"")
        else:
            os.mkfifo(path)

    def _now(self) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        waiting = [self._home / "quarl"]
        while waiting:
            path = waiting.pop()
            name = str(path.relative_to(self._home))
            if path.is_symlink():
                found[name] = _Entry("link", os.fsencode(path.readlink()))
            elif path.is_dir():
                found[name] = _Entry("folder")
                waiting += path.iterdir()
            elif path.is_file():
                found[name] = _Entry("file", path.read_bytes())
        return found

    def push(self) -> None:
        """Change on the device what was changed here: links, folders, files, and last what is gone.

        A file is written whole beside its place and renamed into it; so is a link. Of the files ``revoked`` comes
        before ``allowed_signers``: revoked is revoked.

        Raises:
            OSError: the device refuses; what was written until then stays.
        """
        before, now = self._before, self._now()
        changed = {name: entry for name, entry in now.items() if before.get(name) != entry}
        gone = sorted(name for name in before if name not in now)
        folders = [name for name in sorted(changed) if changed[name].kind == "folder"]
        if folders:
            self.shell(f"mkdir -p -- {_quoted(folders)}")
        links = [name for name in gone if before[name].kind == "link"]
        if links:  # first: a link must never lead to half a release
            self.shell(f"rm -f -- {_quoted(links)}")
        for name in sorted(changed, reverse=True):
            if changed[name].kind == "file":
                self._write(name, changed[name].content)
        for name, entry in changed.items():
            if entry.kind == "link":
                self._link(name, os.fsdecode(entry.content))
        tops = [name for name in gone if name.rpartition("/")[0] in {"", *now}]
        if left := [name for name in tops if name not in links]:
            self.shell(f"rm -rf -- {_quoted(left)}")
        self._before = now

    def _write(self, name: str, content: bytes) -> None:
        part = f"{name}.part"
        self.shell(f"rm -rf -- {shlex.quote(part)}")
        self._connection.upload(content, self.at(part))
        sftp = self._connection.sftp()
        sftp.chmod(self.at(part), 0o600)
        sftp.posix_rename(self.at(part), self.at(name))

    def _link(self, name: str, target: str) -> None:
        new = f"{name}.{os.getpid()}"
        # SFTP servers do not agree on the order of a link's two ends, and `mv` would move into the folder it leads to.
        self.shell(f"rm -f -- {shlex.quote(new)} && ln -s -- {shlex.quote(target)} {shlex.quote(new)}; {SYNC}")
        self._connection.sftp().posix_rename(self.at(new), self.at(name))

    def moved(self, old: str, new: str) -> None:
        """Rename a folder on the device and here, after what it holds has reached the disk."""
        self.shell(SYNC)
        self._connection.sftp().posix_rename(self.at(old), self.at(new))
        (self._home / old).rename(self._home / new)
        self._before = self._now()


SYNC = "sync 2>/dev/null || :"
"""A power cut after the switch finds the release whole. A small system may lack the program."""


def _quoted(names: list[str]) -> str:
    return " ".join(map(shlex.quote, names))


def _content(sftp: paramiko.SFTPClient, name: str) -> bytes:
    """The first bytes of a file; one byte more than any may have shows that it has too many."""
    with sftp.open(name, "rb") as stream:
        return stream.read(_MOST + 1)
