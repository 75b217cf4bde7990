"""What lies beside a release's files: its signed record, and the mark of one that is not to be rolled back to.

The record is a few lines ``KEY VALUE``, an empty line and a list as ``sha256sum -c`` reads it. What is wrong with one
is a sentence in the parsed record, never an exception: one damaged file stops neither a deployment nor a listing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RECORD_FILE, MARK_FILE = "release", "mark.json"
STARTER = "run-agent"
CODE_ARCHIVE = "lib/quarl.zip"
"""The agent's code, of a release whose agent is in Python."""
PROGRAM, PACK = "lib/policy-agent", "bundle/policy.pack"
"""Of a release whose agent is one program without Python, and what that reads."""
RELEASE_NAME = re.compile(r"[0-9]{4,8}-[0-9a-z]{1,16}\Z")
POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
BAD, LEFT, GOOD = MARKS = "bad", "left", "good"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SUM = re.compile(r"([0-9a-f]{64})  (\S.*)\Z")
_MOST_LINE = 200  # characters


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
    """Fingerprint of the key that signed it, by its own word."""
    serial: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 by path."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each wheel, by its unpacked folder."""
    is_old: bool = False
    """An older version deployed it: its record is JSON, and this version does not start it."""


@dataclass(frozen=True)
class Mark:
    """What became known of a release after it was published.

    ``bad``: its files or golden vectors failed, or a person said so. ``left``: it was rolled back from. To neither goes
    a rollback without ``--to``. ``good``: a person went back to it; the newest of these is never pruned.
    """

    kind: str
    reason: str


def format_record(values: Mapping[str, str | int], wheels: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Return the text that is signed.

    Args:
        values: by key; none has a line break.
        wheels: sha256 by unpacked folder.
        files: sha256 by path.
    """
    lines = [f"{key} {value}" for key, value in values.items()]
    lines += [f"wheel {folder} {sha256}" for folder, sha256 in wheels.items()]
    sums = [f"{sha256}  {path}" for path, sha256 in sorted(files.items())]
    return "\n".join([*lines, "", *sums, ""])


def parse_record(release: str, policy: str, text: str) -> Record:
    """Return what a record says.

    Args:
        release: name of the release.
        policy: which it must be of.
        text: as :func:`format_record` made it.
    """
    head, _, body = text.partition("\n\n")
    wheels, values = dict[str, str](), dict[str, str]()
    for line in head.splitlines():
        key, _, value = line.partition(" ")
        if key == "wheel":
            folder, _, sha256 = value.partition(" ")
            wheels[folder] = sha256
        else:
            values[key] = value
    files = {match[2]: match[1] for match in map(_SUM.match, body.splitlines()) if match}
    data: dict[str, Any] = {**values, "files": files, "environments": list(wheels)}
    for name in ("precisions", "runtimes"):
        data[name] = values.get(name, "").split()
    serial = values.get("serial", "")
    if not serial.isdigit() or len(serial) > 15:
        return Record(release, "serial of the record must be a whole number")
    if not all(_WORD.match(folder) and _SHA256.match(sha256) for folder, sha256 in wheels.items()):
        return Record(release, "wheel of the record must be a folder and a sha256")
    return _validate_record(release, policy, data, serial=int(serial), wheels=wheels)


def parse_old_record(release: str, policy: str, text: str) -> Record:
    """Return what the record of an older version says, release.json."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Record(release, f"release.json cannot be read ({str(error)[:120]})", is_old=True)
    if not isinstance(data, dict):
        return Record(release, "release.json is not a JSON object", is_old=True)
    serial = data.get("serial")
    return _validate_record(release, policy, data, serial=serial if type(serial) is int else 0, is_old=True)


def _validate_record(release: str, policy: str, data: Mapping[str, Any], **more: Any) -> Record:
    def words(name: str, may_be_empty: bool = False) -> bool:
        value = data.get(name)
        if not isinstance(value, list) or len(value) > 64 or not (value or may_be_empty):
            return False
        return all(isinstance(word, str) and _WORD.match(word) for word in value)

    def line(name: str) -> bool:
        value = data.get(name)
        return isinstance(value, str) and len(value) <= _MOST_LINE and value.isprintable()

    files = data.get("files")
    paths = list(files) if isinstance(files, dict) else []
    are_files = STARTER in paths
    rules = (
        ("policy", data.get("policy") == policy, repr(policy)),
        ("digest", isinstance(data.get("digest"), str) and bool(_SHA256.match(data["digest"])), "a sha256"),
        ("precisions", words("precisions"), "a list of names that is not empty"),
        ("runtimes", words("runtimes"), "a list of names that is not empty"),
        ("environments", words("environments", may_be_empty=True), "a list of names"),
        ("created", line("created"), f"a line of at most {_MOST_LINE} characters"),
        ("by", line("by"), f"a line of at most {_MOST_LINE} characters"),
        ("signer", "signer" not in data or line("signer"), f"a line of at most {_MOST_LINE} characters"),
        ("files", are_files, f"the files' sha256, {STARTER} among them"),
        ("files", are_files and all(map(is_inside, paths)), "a sha256 for each path inside the release"),
    )
    for name, holds, allowed in rules:
        if not holds:
            return Record(release, f"{name} of the record must be {allowed}", is_old=bool(more.get("is_old")))
    return Record(
        release,
        policy=policy,
        digest=data["digest"],
        created=data["created"],
        by=data["by"],
        precisions=tuple(data["precisions"]),
        runtimes=tuple(data["runtimes"]),
        environments=tuple(data["environments"]),
        signer=data.get("signer", ""),
        files=dict(data["files"]),
        **more,
    )


def is_inside(name: str) -> bool:
    """Return whether a path is relative, and leads nowhere else."""
    return name.isprintable() and all(part not in ("", ".", "..") for part in name.split("/"))


def one_line(text: Any) -> str:
    """Return a reason as one printable line of at most 200 characters, whatever it was."""
    printable = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 10 * _MOST_LINE])
    return " ".join(printable.split())[:_MOST_LINE] or "no reason was given"


def parse_mark(text: str) -> Mark:
    """Return a mark; one that cannot be read counts as bad."""
    try:
        data = json.loads(text)
        kind, reason = data["kind"], data["reason"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        return Mark(BAD, one_line(f"its mark is damaged: {error!r}"))
    if kind not in MARKS or not isinstance(reason, str):
        return Mark(BAD, f"its mark is damaged: {MARK_FILE} has no kind and reason")
    return Mark(kind, one_line(reason))


def number_of(release: str) -> int:
    """Return the running number in front of a release's name, 7 of ``0007-1a2b3c4d``."""
    head = release.split("-")[0]
    return int(head) if head.isdigit() else 0
