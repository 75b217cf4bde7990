"""known_hosts: who is who, read strictly and written only when a person accepts a fingerprint.

Two files are read: the user's own ``~/.ssh/known_hosts`` (never written here) and the project's, where
``accept-host-key`` adds a line. The format is OpenSSH's (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): plain,
comma separated, wildcard and hashed names, and the markers ``@revoked`` and ``@cert-authority``.

A host that is known by one kind of key and shows another kind counts as changed: whoever sits in between
could otherwise escape by offering only a kind that was never recorded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quarl.device.deploy.hostkeys.certificates import HostCertificate, bare_name, pattern_matches
from quarl.device.deploy.signing.lists import fingerprint
from quarl.policy.files import write_atomically
from quarl.policy.places import state_folder

AUTHORITY, REVOKED = "@cert-authority", "@revoked"


class Verdict(Enum):
    """What known_hosts says about a key that a server showed."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"
    NOT_CERTIFIED = "not certified"
    """An authority that counts has signed the key, but not for this host, or not for now."""


@dataclass(frozen=True)
class HostKey:
    """A public host key: its kind (``ssh-ed25519``) and its bytes on the wire."""

    kind: str
    blob: bytes
    certificate: HostCertificate | None = None
    """What an authority said of it, where the server showed that."""

    @property
    def fingerprint(self) -> str:
        """``SHA256:…`` as OpenSSH prints it: base64 of the digest without padding."""
        return fingerprint(self.blob)


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    file: Path
    line: int
    names: str
    key: HostKey
    marker: str = ""

    def matches(self, name: str) -> bool:
        """Return whether the line speaks of the host ``name`` (``host`` or ``[host]:port``)."""
        if self.names.startswith("|1|"):
            return _matches_hashed_name(self.names, name)
        is_match = False
        for pattern in self.names.split(","):
            if pattern.startswith("!"):
                if pattern_matches(pattern[1:], name):
                    return False
            elif pattern_matches(pattern, name):
                is_match = True
        return is_match


@dataclass(frozen=True)
class Finding:
    """The verdict on one shown key, and the entries it rests on."""

    verdict: Verdict
    entries: tuple[Entry, ...] = ()
    why: str = ""
    """What is wrong with its certificate."""


def _matches_hashed_name(hashed: str, name: str) -> bool:
    # |1|base64(salt)|base64(HMAC-SHA1(salt, name))
    try:
        _, _, salt, digest = hashed.split("|")
        expected = base64.b64decode(digest, validate=True)
        name_hash = hmac.new(base64.b64decode(salt, validate=True), name.lower().encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(name_hash, expected)


def read_entries(file: Path) -> list[Entry]:
    """Return the lines of a known_hosts file that hold a key; a line that cannot be read accepts nobody."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3:
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        entries.append(Entry(file, number, fields[0], HostKey(fields[1], blob), marker))
    return entries


class KnownHosts:
    """The host keys a person has accepted, in one file we may write and others we only read."""

    def __init__(self, own: Path, *others: Path) -> None:
        self.own = own
        self.files = (own, *others)

    @classmethod
    def of_user(cls, *others: Path) -> KnownHosts:
        """Return the project's own file under the user's state folder, and those that ``ssh`` reads.

        Under a umask of 002 the folder was made writable for the user's group; it is made the user's alone.
        """
        with contextlib.suppress(OSError):
            if (mode := state_folder().stat().st_mode) & stat.S_IWGRP and not mode & stat.S_IWOTH:
                state_folder().chmod(mode & 0o755)
        return cls(state_folder() / "known_hosts", *(file for file in others if file != state_folder() / "known_hosts"))

    def entries(self, name: str) -> tuple[Entry, ...]:
        """Return the entries of one host: its keys, and authorities and what was revoked, also where these name no
        port."""
        names = {name, bare_name(name)}
        return tuple(
            entry
            for file in self.files
            for entry in read_entries(file)
            if any(entry.matches(host_name) for host_name in (names if entry.marker else [name]))
        )

    def has_authority(self, name: str) -> bool:
        """Return whether an authority may vouch for a host, so that the server is asked for a certificate."""
        return any(entry.marker == AUTHORITY for entry in self.entries(name))

    def kinds(self, name: str) -> list[str]:
        """Return the kinds of key recorded for a host, so that the server can be asked for one of them."""
        return list(dict.fromkeys(entry.key.kind for entry in self.entries(name) if not entry.marker))

    def check(self, name: str, key: HostKey) -> Finding:
        """Judge the key that the server ``name`` has shown."""
        entries = self.entries(name)
        blobs = [key.blob] if key.certificate is None else [key.blob, key.certificate.authority]
        revoked = tuple(entry for entry in entries if entry.marker == REVOKED and entry.key.blob in blobs)
        if revoked:
            return Finding(Verdict.REVOKED, revoked)
        if key.certificate is not None:
            signer = key.certificate.authority
            authorities = tuple(
                authority for authority in entries if authority.marker == AUTHORITY and authority.key.blob == signer
            )
            if authorities:
                why = key.certificate.why_not(bare_name(name))
                return Finding(Verdict.NOT_CERTIFIED if why else Verdict.KNOWN, authorities, why)
        accepted = tuple(entry for entry in entries if not entry.marker)
        same = tuple(entry for entry in accepted if entry.key.blob == key.blob)
        if same:
            return Finding(Verdict.KNOWN, same)
        return Finding(Verdict.CHANGED, accepted) if accepted else Finding(Verdict.UNKNOWN)

    def accept(self, name: str, key: HostKey, *, replace: bool = False) -> None:
        """Write the key into our own file, whole or not at all; ``replace`` drops our older lines of that host."""
        self.accept_all({name: key}, replace=replace)

    def accept_all(self, keys: Mapping[str, HostKey], *, replace: bool = False) -> None:
        """Write the keys of several hosts, by their names, as ``accept`` does; the file is written once."""
        self.own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = self.own.read_text(encoding="utf-8").splitlines() if self.own.exists() else []
        own_entries = [entry for entry in read_entries(self.own) if replace and not entry.marker]
        dropped = {entry.line for entry in own_entries if any(entry.matches(name) for name in keys)}
        lines = [line for number, line in enumerate(old, 1) if number not in dropped]
        lines += [f"{name} {key.kind} {base64.b64encode(key.blob).decode()}" for name, key in keys.items()]
        write_atomically(self.own, ("\n".join(lines) + "\n").encode(), mode=0o600)
