"""Unpack wheels on the device and compare them with what was recorded then; needs nothing but a Python.

python3 -IS -c TEXT unpack WHEEL SHA256 FOLDER | compare FOLDER…

Writes lines: ``progress DONE TOTAL``, and last one JSON object. The working folder is ~/quarl.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

MARKER = ".quarl-wheel.json"  # size and sha256 of every file, written last
MOST_MARKER = 8 << 20  # bytes; numpy's has about 0.1 MB
BYTECODE = "__pycache__"
MOST_REASONS = 12  # a message is read by a person


def sha256_of(path: Path) -> str:
    """Return the hash of a regular file; of anything else no hash."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a folder, or of a link the link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def report(done: int, total: int) -> None:
    """Write how far it is."""
    print(f"progress {done} {total}", flush=True)


def unpack(wheel: Path, sha256: str, target: Path) -> dict[str, Any]:
    """Verify a wheel and unpack it (it is a zip) to a temporary folder, renamed once all of it is on the disk."""
    if sha256_of(wheel) != sha256:
        return {"damaged": wheel.name}
    part = target.with_name(target.name + ".part")
    for path in (part, target):  # a target that is here although the host sent the wheel is not whole
        remove(path)
    part.mkdir(parents=True)
    files: dict[str, tuple[int, str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
        for index, member in enumerate(members):
            path = Path(archive.extract(member, part))
            if not member.is_dir():
                files[str(path.relative_to(part))] = (member.file_size, sha256_of(path))
            if index % 20 == 0:
                report(index, len(members))
        report(len(members), len(members))
    content = {"wheel": wheel.name, "sha256": sha256, "files": files}
    (part / MARKER).write_text(json.dumps(content, indent=1, sort_keys=True))
    wheel.unlink()
    os.sync()  # a thousand small files: one sync is quicker than a thousand fsyncs
    part.rename(target)
    os.sync()
    return {"files": len(files)}


def read_recorded_files(folder: Path) -> dict[str, list[Any]]:
    """Return size and hash of every file as recorded when it was unpacked.

    Raises:
        ValueError: there is no such record.
    """
    marker = folder / MARKER
    if folder.is_symlink() or marker.is_symlink() or not marker.is_file() or marker.stat().st_size > MOST_MARKER:
        raise ValueError("it is missing, or not a small regular file")
    files: dict[str, list[Any]] = json.loads(marker.read_bytes())["files"]
    if not files or not all(type(size) is int and isinstance(sha256, str) for size, sha256 in files.values()):
        raise ValueError("it must give size and sha256 of every file")
    return files


def compare(folder: Path) -> dict[str, Any]:
    """Compare every file with its record. Bytecode beside it is removed: the next start makes it again."""
    try:
        files = read_recorded_files(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return {"files": 0, "wrong": [f"{MARKER} cannot be used: {error}"[:200]]}
    wrong, seen = [], set()
    parents = {str(parent) for name in files for parent in Path(name).parents}
    for top, folders, names in os.walk(folder):
        if BYTECODE in folders and str(Path(top, BYTECODE).relative_to(folder)) not in parents:
            folders.remove(BYTECODE)
            try:
                remove(Path(top, BYTECODE))
            except OSError as error:
                wrong.append(f"{Path(top, BYTECODE).relative_to(folder)} cannot be removed: {error.strerror}")
        for name in [*names, *(subfolder for subfolder in folders if Path(top, subfolder).is_symlink())]:
            path = Path(top, name)
            key = str(path.relative_to(folder))
            if key in files and path.is_file() and not path.is_symlink():
                size, sha256 = files[key]
                if path.stat().st_size != size or sha256_of(path) != sha256:
                    wrong.append(f"{key} differs")
                seen.add(key)
                if len(seen) % 100 == 0:
                    report(len(seen), len(files))
            elif key != MARKER:
                wrong.append(f"{key} does not belong there")
    wrong += [f"{name} is missing" for name in sorted(set(files) - seen)]
    return {"files": len(files), "wrong": wrong[:MOST_REASONS]}


def main(operation: str, arguments: list[str]) -> dict[str, Any]:
    """Do what the host asks for."""
    if operation == "unpack":
        wheel, sha256, folder = arguments
        try:
            return unpack(Path(wheel), sha256, Path("envs", folder))
        except BaseException:  # the disk is full
            remove(Path("envs", f"{folder}.part"))
            raise
    begun = time.monotonic()
    reports = {name: compare(Path("envs", name)) for name in arguments}
    return {"folders": reports, "seconds": time.monotonic() - begun}


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], sys.argv[2:])), flush=True)
    except OSError as refused:
        sys.exit(str(refused))  # of a traceback the host would show the end
