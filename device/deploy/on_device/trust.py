"""Who is trusted on a device, and what was accepted there.

Whose signature counts stands in root's /etc/quarl/allowed_signers alone where that exists, else in
~/quarl/trust/allowed_signers. Keys in ``revoked`` beside it count no longer. Lists that others may write are not
believed. Sent to the device as text together with
``helper.py`` and ``launch.py``; only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import (
    HelperError,
    open_to_others,
    read_object,
    what_is,
    write_bytes,
    write_json,
)
from quarl.device.deploy.on_device.signatures import (
    KEY_KINDS,
    NAMESPACE,
    PRINCIPAL,
    REVOKED_FILE,
    SIGNERS_FILE,
    check_signature,
    fingerprint_of,
    key_in,
    read_lines,
)

SYSTEM = Path("/etc/quarl")
CLASS_FILE, ACCEPTED_FILE = "device_class", "accepted.json"
ANY_CLASS = "any"
_MOST_ACCEPTED = 4 << 20  # bytes
_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")


def machine() -> str:
    """This device's processor, as far as this Python uses it: aarch64, armv7l, x86_64."""
    found = platform.machine().lower()
    return found if sys.maxsize > 1 << 32 else {"aarch64": "armv7l", "x86_64": "i686"}.get(found, found)


class Trust:
    """Who is trusted under one ~/quarl, and what was accepted there."""

    def __init__(self, root: Path, system: Path = SYSTEM) -> None:
        self.folder = root / "trust"
        self.by_root = bool(what_is(system / SIGNERS_FILE))
        """Whether root alone says whose signature counts."""
        self.anchor = system if self.by_root else self.folder

    def check_kept(self) -> None:
        """See that nobody but the user and root can change who is trusted here.

        Raises:
            HelperError: ``trust``: others may; says where.
        """
        lists = [self.anchor / name for name in (SIGNERS_FILE, REVOKED_FILE, CLASS_FILE)]
        for path in (self.anchor, self.folder, *lists, self.folder / ACCEPTED_FILE):
            if what_is(path) and (why := self.open_to_others(path)):
                raise HelperError("trust", why)

    def open_to_others(self, path: Path) -> str:
        """As that of ``files``, of a path that exists."""
        return open_to_others(os.path.realpath(path), os.path.realpath(Path.home()))

    def device_class(self) -> str:
        """What this device is, which a release must be signed for: ``any/aarch64``, or ``rover/aarch64``."""
        names = read_lines(self.anchor / CLASS_FILE)
        return f"{names[0] if names else ANY_CLASS}/{machine()}"

    def overview(self, policy: str) -> dict[str, Any]:
        """What a host has to know before it signs: ``signers``, ``revoked``, ``target_class``, highest ``serial``."""
        self.check_kept()
        return {
            "anchor": str(self.anchor),
            "by_root": self.by_root,
            "signers": read_lines(self.anchor / SIGNERS_FILE),
            "revoked": read_lines(self.anchor / REVOKED_FILE),
            "target_class": self.device_class(),
            "serial": self._accepted()["serials"].get(policy, 0),
        }

    def _accepted(self) -> dict[str, dict[str, Any]]:
        path = self.folder / ACCEPTED_FILE
        found = read_object(path, _MOST_ACCEPTED) if what_is(path) else {}
        if not all(isinstance(value, dict) for value in found.values()):
            raise HelperError("damaged", f"{ACCEPTED_FILE} does not hold what was accepted here")
        return {"serials": {}, "releases": {}, **found}

    def check_new(self, policy: str, text: bytes, signature: bytes) -> dict[str, Any]:
        """The record of a release that is not here yet, if it may come.

        Raises:
            HelperError: ``trust``: its signature, its class or its serial is not right; says what it is and must be.
        """
        record = self._check(policy, text, signature)
        highest, serial = self._accepted()["serials"].get(policy, 0), record["serial"]
        if serial <= highest and record.get("lowers") != highest:
            raise HelperError(
                "trust", f"its serial is {serial}, and {highest} was accepted here: it is an older one, sent again"
            )
        return record

    def check_accepted(self, policy: str, release: str, text: bytes, signature: bytes) -> dict[str, Any]:
        """The record of a release that is here, if it is the one that was accepted, of a signer who still counts.

        Raises:
            HelperError: ``trust``.
        """
        record = self._check(policy, text, signature)
        if self._accepted()["releases"].get(f"{policy}/{release}") != hashlib.sha256(text).hexdigest():
            raise HelperError("trust", f"its record is not the one that was accepted here as release {release}")
        return record

    def _check(self, policy: str, text: bytes, signature: bytes) -> dict[str, Any]:
        self.check_kept()
        signer = check_signature(text, signature, self.anchor)
        record = json.loads(text)  # a signer's own: whatever is wrong with it is no attack
        ours = {"policy": policy, "signer": signer, "target_class": self.device_class()}
        for name, wanted in ours.items():
            if record.get(name) != wanted:
                raise HelperError("trust", f"it is signed for the {name} {record.get(name)!r}; here it is {wanted!r}")
        if type(record.get("serial")) is not int:
            raise HelperError("trust", "it has no serial")
        return dict(record)

    def accept(self, policy: str, release: str, text: bytes) -> None:
        """Remember a release that passed: its record may be gone back to, and older serials come no more."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        accepted = self._accepted()
        accepted["serials"][policy] = json.loads(text)["serial"]
        accepted["releases"][f"{policy}/{release}"] = hashlib.sha256(text).hexdigest()
        write_json(self.folder / ACCEPTED_FILE, accepted)

    def forget(self, policy: str, releases: list[str]) -> None:
        """Releases that were removed. The serial stays: they do not come back by being sent again."""
        accepted = self._accepted()
        gone = {f"{policy}/{release}" for release in releases} & accepted["releases"].keys()
        for name in gone:
            del accepted["releases"][name]
        if gone:
            write_json(self.folder / ACCEPTED_FILE, accepted)

    def change(self, add: list[str], revoke: list[str], device_class: str | None) -> None:
        """Let keys sign, revoke others, name the device's class.

        Args:
            add, revoke: lines with a public key each.
            device_class: a name; None leaves it.

        Raises:
            HelperError: ``trust``: root's list is none that we change, others can write it, or no signer would be left.
        """
        self.check_kept()
        if self.by_root:
            raise HelperError("trust", f"{self.anchor} is root's: its lists are changed there, by root")
        if device_class is not None and not _CLASS.match(device_class):
            raise HelperError("trust", f"the class is {device_class!r}; allowed are letters, digits, '.', '_' and '-'")
        wrong = [line[:60] for line in (*add, *revoke) if not fingerprint_of(line)]
        if wrong:
            raise HelperError("trust", f"{wrong[0]!r} has no public key of a kind in {', '.join(KEY_KINDS)}")
        signers, revoked = (read_lines(self.folder / name) for name in (SIGNERS_FILE, REVOKED_FILE))
        gone = {fingerprint_of(line) for line in (*revoked, *revoke)}
        if again := gone.intersection(fingerprint_of(line) for line in add):
            raise HelperError("trust", f"{again.pop()} was revoked here, and a revoked key does not come back")
        known = {fingerprint_of(line) for line in signers}
        signers += [
            f'{PRINCIPAL} namespaces="{NAMESPACE}" {key_in(line)}' for line in add if fingerprint_of(line) not in known
        ]
        signers = [line for line in signers if fingerprint_of(line) not in gone]
        if revoke and not any(map(fingerprint_of, signers)):
            raise HelperError("trust", "nobody could sign any more: add another signer first")
        listed = {fingerprint_of(line) for line in revoked}
        revoked += [key_in(line) for line in revoke if fingerprint_of(line) not in listed]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(
            self.folder / REVOKED_FILE, "".join(f"{line}\n" for line in revoked).encode()
        )  # first: revoked is revoked
        write_bytes(self.folder / SIGNERS_FILE, "".join(f"{line}\n" for line in signers).encode())
        if device_class is not None:
            write_bytes(self.folder / CLASS_FILE, f"{device_class}\n".encode())
