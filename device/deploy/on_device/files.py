"""Files on the device, touched with care: no link is followed, no pipe waited for, nothing read without an end.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

BYTECODE = "__pycache__"
_BLOCK = 1 << 20  # bytes
_MOST_REASONS = 12  # a message is read by a person
# A link is refused, and a pipe without a writer does not hold us up.
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HelperError(Exception):
    """A request that cannot be fulfilled: a code for programs and a message for people."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


def what_is(path: Path) -> str:
    """``folder``, ``file``, ``symbolic link``, ``special file``, ``closed place``, or "" if there is nothing.

    Closed is what may not be looked at.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        return "closed place"
    kinds = ((stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "symbolic link"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "special file")


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing when it is absent, closed, or a link that leads elsewhere."""
    try:
        return sorted(folder.iterdir()) if what_is(folder) == "folder" else []
    except OSError:
        return []


def open_to_others(path: str, home: str, look: Callable[[str], Any] = os.stat, user: int | None = None) -> str:
    """Why others than its owner and root may change what is at a path, and what to type; "" where none may.

    As StrictModes of sshd judges authorized_keys: the path, every folder above it up to the home folder, and that.

    Args:
        path: without links.
        home: of the user, without links.
        look: what tells ``st_mode`` and ``st_uid`` of a path.
        user: the user's number; default this process's.
    """
    above = [str(each) for each in (Path(path), *Path(path).parents)]
    for place in above[: above.index(home) + 1] if home in above else [*above, home]:
        status = look(place)
        mode, owner, quoted = status.st_mode, status.st_uid, shlex.quote(place)
        if owner not in (0, os.geteuid() if user is None else user):
            return f"{place} belongs to user {owner}; allowed are this user and root: chown it ({quoted})"
        # In a folder like /tmp others may add, but not replace what is not theirs.
        shared = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and owner == 0
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            return (
                f"{place} may be written by others (mode {stat.S_IMODE(mode):04o}); allowed are its owner and root: "
                f"see whether what it holds is yours, then type chmod go-w {quoted}"
            )
    return ""


def open_regular(path: Path, flags: int = _LOOK) -> int:
    """A descriptor of a regular file.

    Raises:
        OSError: it is a link, a folder or a special file, or cannot be opened.
    """
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a file of at most ``most`` bytes.

    Raises:
        HelperError: with the code ``damaged``, and why, for anything else.
    """
    try:
        data = json.loads(read_bytes(path, most))
    except (ValueError, RecursionError) as error:
        raise HelperError("damaged", f"{path.name} cannot be read ({str(error)[:120]})") from None
    if not isinstance(data, dict):
        raise HelperError("damaged", f"{path.name} is not a JSON object")
    return data


def read_bytes(path: Path, most: int) -> bytes:
    """What a regular file of at most ``most`` bytes holds.

    Raises:
        HelperError: with the code ``damaged``, and why, for anything else.
    """
    kind = what_is(path)
    if kind != "file":
        raise HelperError("damaged", f"{path.name} is {'a ' + kind if kind else 'missing'}")
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise HelperError("damaged", f"{path.name} cannot be read ({str(error)[:120]})") from None
    if len(content) > most:
        raise HelperError("damaged", f"{path.name} has more than {most} bytes")
    return content


def sha256_of(path: Path) -> str:
    """The hash of a regular file, read in blocks: a Pi has little memory.

    Raises:
        OSError: as ``open_regular``.
    """
    digest = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def is_file_with(path: Path, sha256: str, size: int | None = None) -> bool:
    """Whether it is a regular file with this content; one of another size is not read, nor is one without a hash."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or size not in (None, status.st_size):
            return False
        return not sha256 or sha256_of(path) == sha256
    except OSError:
        return False


def differences(
    folder: Path,
    files: Mapping[str, tuple[int | None, str]],
    own: Collection[str] = (),
    compared: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """What in a folder is not as recorded: files that differ or are missing, and whatever was not recorded.

    Python's bytecode is removed first and never believed: the next start makes it again, of sources that were compared.

    Args:
        folder: with everything in it.
        files: size (None: not recorded) and sha256 by path.
        own: paths beside them that belong there, whatever they hold.
        compared: told the number of files compared so far.
    """
    wrong: list[str] = []
    parents = {str(parent) for name in files for parent in Path(name).parents}
    seen: set[str] = set()
    for name, path, kind in _walk(folder, parents):
        if len(wrong) > _MOST_REASONS:
            return [*wrong[:_MOST_REASONS], "and more"]
        if name in files and kind == "file":
            seen.add(name)
            if not is_file_with(path, files[name][1], files[name][0]):
                wrong.append(f"{name} differs")
            compared(len(seen))
        elif name in files:
            seen.add(name)
            wrong.append(f"{name} is a {kind}, not a file")
        elif path.name == BYTECODE and kind == "folder":
            remove(path)
            if what_is(path):
                wrong.append(f"{name} cannot be removed")
        elif name not in own or kind != "file":
            wrong.append(f"{name} does not belong there ({kind})")
    wrong += [f"{name} is missing" for name in sorted(set(files) - seen)]
    return wrong if len(wrong) <= _MOST_REASONS else [*wrong[:_MOST_REASONS], f"and {len(wrong) - _MOST_REASONS} more"]


def _walk(folder: Path, inside: Collection[str]) -> Iterator[tuple[str, Path, str]]:
    """(path in the folder, path, kind) of everything; the folders in ``inside`` are entered instead of named."""
    waiting = [folder]
    while waiting:
        for path in entries(waiting.pop()):
            name, kind = str(path.relative_to(folder)), what_is(path)
            if kind == "folder" and name in inside:
                waiting.append(path)
            elif kind:
                yield name, path, kind


def remove(path: Path) -> None:
    """Remove a folder for good, also while a dying upload still writes into it; of a link, the link."""
    for _ in range(20):
        if what_is(path) in ("folder", ""):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
        if not what_is(path):
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
    """Write a small JSON file as :func:`write_bytes` does."""
    write_bytes(path, json.dumps(data, indent=1, sort_keys=True).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all; where a link is in its place, the link is replaced."""
    part = path.with_name(path.name + ".part")
    remove(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:
        remove(part)
        raise


def holders(path: Path) -> list[int]:
    """The processes that hold an exclusive flock on a file, those that inherited it too: from /proc, of this user's.

    The file need hold nothing, for which a full disk has no room, and nobody is kept from locking it meanwhile.
    """
    found = set[int]()
    if what_is(path) != "file":
        return []
    file = path.stat()
    for process in entries(Path("/proc")):
        for each in entries(process / "fd") if process.name.isdigit() else ():
            with contextlib.suppress(OSError):  # gone meanwhile
                if os.path.samestat(each.stat(), file):
                    locks = (process / "fdinfo" / each.name).read_text().split("lock:")[1:]
                    found.update(int(process.name) for lock in locks if " WRITE " in lock)
    return sorted(found)


def runs(pid: int) -> bool:
    """Whether a process still runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running_in(folder: Path) -> dict[str, list[int]]:
    """Processes that work in a folder's folders (an agent works in its release's), by the name of each.

    From /proc, of this user's processes; nothing where there is no /proc.
    """
    top, found = os.path.realpath(folder) + "/", dict[str, list[int]]()
    for process in entries(Path("/proc")):
        with contextlib.suppress(OSError):  # no process, another user's, or gone meanwhile
            works_in = str((process / "cwd").readlink()) if process.name.isdigit() else ""
            if works_in.startswith(top):
                found.setdefault(works_in[len(top) :].split("/")[0], []).append(int(process.name))
    return found
