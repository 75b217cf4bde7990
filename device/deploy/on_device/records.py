"""What lies beside a release's files: its record, and the mark of one that is not to be gone back to.

A record is parsed once; what is wrong with it is a sentence in it, never an exception, so that one damaged file stops
neither a deployment nor a listing. The record stays as it was published; what happens later is in the mark.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import HelperError, read_bytes, read_object, what_is
from quarl.device.deploy.on_device.signatures import MOST_SIGNATURE

MARKER = ".quarl-wheel.json"  # of an unpacked wheel: size and sha256 of every file
RELEASE_FILE = "release.json"
TRIAL_LINK = "trial"  # beside current while that is on trial in a loop: the release to go back to
SIGNATURE_FILE = "release.json.sig"
MARK_FILE = "mark.json"
ROLLOUT_FILE, ENDED_FILE = "rollout.json", "rollout.ended.json"
"""Beside current: who rolls out here, or did last. To end one is a rename, which needs no room on the disk."""
# What is ours in a release's folder; the last is left when the power is cut while a mark is written.
OWN_FILES = (RELEASE_FILE, SIGNATURE_FILE, MARK_FILE, f"{MARK_FILE}.part")
STARTER = "run-agent"
PROGRAM, PACK = "lib/policy-agent", "bundle/policy.pack"
"""Of a release whose agent is one program without Python, and what that reads."""
MOST_RECORD = 1 << 20  # bytes; a real one has about 10 kB
MOST_MARKER = 8 << 20  # numpy's has about 0.1 MB
RELEASE_NAME = re.compile(r"[0-9]{4,8}-[0-9a-z]{1,16}\Z")
POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_LINE = 200  # characters
BAD, LEFT, GOOD = MARKS = "bad", "left", "good"


@dataclass(frozen=True)
class Record:
    """One release: what its record says, or in ``damage`` why that cannot be used."""

    release: str
    damage: str = ""
    policy: str = ""
    digest: str = ""
    created: str = ""
    by: str = ""
    precisions: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    signer: str = ""
    """Fingerprint of the key that signed it, as it says itself; an older version signed none."""
    files: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    """Size (None in a record of an older version) and sha256 by path."""


@dataclass(frozen=True)
class Mark:
    """What became known of a release after it was published.

    ``bad``: its files or golden vectors failed, or a person said so. ``left``: it was rolled back from. To neither goes
    a rollback without ``--to``. ``good``: a person went back to it; the newest of these is never pruned.
    """

    kind: str
    reason: str


def read_record(folder: Path, policy: str) -> Record:
    """The record of the release in a folder; never raises for what it holds."""
    kind = what_is(folder)
    if kind != "folder":
        return Record(folder.name, f"{folder.name} is a {kind}, not a folder" if kind else "it is missing")
    try:
        return parse_record(folder.name, policy, read_object(folder / RELEASE_FILE, MOST_RECORD))
    except HelperError as error:
        return Record(folder.name, str(error))


def signed_record(folder: Path) -> tuple[bytes, bytes]:
    """Record and signature in a release's folder, as they are.

    Raises:
        HelperError: ``trust``, there is no signature, or ``damaged``.
    """
    if not what_is(folder / SIGNATURE_FILE):
        raise HelperError("trust", "it is not signed (an older version deployed it so)")
    return read_bytes(folder / RELEASE_FILE, MOST_RECORD), read_bytes(folder / SIGNATURE_FILE, MOST_SIGNATURE)


def parse_record(release: str, policy: str, data: dict[str, Any]) -> Record:
    """What a record says.

    Args:
        release: name of the release.
        policy: which it must be of.
        data: the record, as JSON gives it.

    Raises:
        HelperError: ``damaged``, and what is wrong in it.
    """
    if data.get("policy") != policy:
        raise _damaged("policy", f"it must be {policy!r}")
    digest = data.get("digest")
    if not (isinstance(digest, str) and _SHA256.match(digest)):
        raise _damaged("digest", "it must be a sha256")
    precisions, runtimes = _words(data, "precisions"), _words(data, "runtimes")
    environments = _words(data, "environments", or_none=True)
    files = _files(data.get("files"), data.get("sizes"))
    created, by = _line(data, "created"), _line(data, "by")
    signer = _line(data, "signer") if "signer" in data else ""
    return Record(release, "", policy, digest, created, by, precisions, runtimes, environments, signer, files)


def _damaged(name: str, allowed: str) -> HelperError:
    return HelperError("damaged", f"{name} of {RELEASE_FILE} is wrong: {allowed}")


def _line(data: dict[str, Any], name: str) -> str:
    text = data.get(name)
    if not (isinstance(text, str) and len(text) <= _LINE and text.isprintable()):
        raise _damaged(name, f"it must be a line of at most {_LINE} characters")
    return text


def _words(data: dict[str, Any], name: str, or_none: bool = False) -> tuple[str, ...]:
    found = data.get(name)
    if not isinstance(found, list) or not (found or or_none):
        raise _damaged(name, "it must be a list" + ("" if or_none else " that is not empty"))
    if len(found) > 64 or not all(isinstance(word, str) and _WORD.match(word) for word in found):
        raise _damaged(name, "it must hold names")
    return tuple(found)


def _files(files: Any, sizes: Any) -> dict[str, tuple[int | None, str]]:
    if not isinstance(files, dict) or STARTER not in files:
        raise _damaged("files", f"it must name the files, {STARTER} among them")
    if sizes is not None and not (isinstance(sizes, dict) and sizes.keys() == files.keys()):
        raise _damaged("sizes", "it must name the same files")
    found = {}
    for name, sha256 in files.items():
        size = sizes[name] if sizes is not None else None
        if not is_inside(name) or not (isinstance(sha256, str) and _SHA256.match(sha256)):
            raise _damaged("files", "it must give a sha256 for each path inside the release")
        if sizes is not None and type(size) is not int:
            raise _damaged("sizes", "it must give whole numbers")
        found[name] = (size, sha256)
    return found


def is_inside(name: str) -> bool:
    """Whether a path is relative, and leads nowhere else."""
    return name.isprintable() and all(part not in ("", ".", "..") for part in name.split("/"))


def one_line(text: Any) -> str:
    """A reason as one printable line of at most 200 characters, whatever it was."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 10 * _LINE])
    return " ".join(shown.split())[:_LINE] or "no reason was given"


def read_mark(folder: Path) -> Mark | None:
    """The mark of the release in a folder; one that cannot be read counts as bad."""
    if what_is(folder) != "folder" or not what_is(folder / MARK_FILE):
        return None
    try:
        data = read_object(folder / MARK_FILE, MOST_RECORD)
    except HelperError as error:
        return Mark(BAD, one_line(f"its mark is damaged: {error}"))
    kind, reason = data.get("kind"), data.get("reason")
    if kind not in MARKS or not isinstance(reason, str):
        return Mark(BAD, f"its mark is damaged: {MARK_FILE} has no kind and reason")
    return Mark(kind, one_line(reason))


def read_marker(folder: Path) -> dict[str, tuple[int | None, str]]:
    """Size and sha256 of every file of an unpacked wheel, as recorded when it was unpacked.

    An older version recorded no sha256; it is empty then.

    Raises:
        HelperError: with the code ``damaged`` and why.
    """
    if what_is(folder) != "folder":
        raise HelperError("damaged", f"it is a {what_is(folder)}" if what_is(folder) else "it is missing")
    files = read_object(folder / MARKER, MOST_MARKER).get("files")
    found: dict[str, tuple[int | None, str]] = {}
    for name, value in files.items() if isinstance(files, dict) else ():
        if type(value) is int and is_inside(name):
            found[name] = (value, "")
            continue
        if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], str)):
            break
        if is_inside(name) and _SHA256.match(value[1]):
            found[name] = (value[0], value[1])
    if not isinstance(files, dict) or not found or len(found) != len(files):
        raise HelperError("damaged", f"{MARKER} does not give size and sha256 of every file")
    return found
