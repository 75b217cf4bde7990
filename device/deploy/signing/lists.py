"""Whose signature counts on a device: lists of public keys in OpenSSH's own formats, as they are read and changed.

Who may sign stands in ``allowed_signers`` (ssh-keygen(1), "ALLOWED SIGNERS"), who may no longer in ``revoked`` beside
it, a public key a line: in root's /etc/quarl alone where that has the first, else in ~/quarl/trust.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quarl.device.deploy.errors import TrustError

NAMESPACE, PRINCIPAL = "quarl-release", "release@quarl"
SIGNERS_FILE, REVOKED_FILE, CLASS_FILE = "allowed_signers", "revoked", "device_class"
KEY_KINDS = ("ssh-ed25519", "sk-ssh-ed25519@openssh.com")
"""Ed25519, in a file or an agent, and in a FIDO2 token."""
_KEY = re.compile(rf"(?:^|\s)({'|'.join(map(re.escape, KEY_KINDS))}) ([A-Za-z0-9+/]+=*)(?:\s|$)")
_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")


def fingerprint(blob: bytes) -> str:
    """Return ``SHA256:…`` of a public key as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def key_in(line: str) -> str:
    """Return the public key in a line of any of OpenSSH's files, ``ssh-ed25519 AAAA…``; "" where there is none."""
    match = _KEY.search(line)
    return f"{match[1]} {match[2]}" if match and not line.lstrip().startswith("#") else ""


def fingerprint_of(line: str) -> str:
    """Return the fingerprint of the public key in a line; "" where there is none."""
    with contextlib.suppress(IndexError, binascii.Error):
        return fingerprint(base64.b64decode(key_in(line).split()[1], validate=True))
    return ""


def lists_text(lines: Sequence[str]) -> str:
    """Return the content of a list."""
    return "".join(f"{line}\n" for line in lines)


def change_lists(
    device: str, trust: Mapping[str, Any], add: Sequence[str], revoke: Sequence[str], device_class: str | None
) -> dict[str, list[str]]:
    """Return the lines of each list after a change, in the order in which they are written: revoked is revoked.

    Args:
        device: as messages call it.
        trust: what it says of whom it trusts.
        add, revoke: lines with a public key each.
        device_class: a name; None leaves it.

    Raises:
        TrustError: root's list is none that we change, others can write it, or no signer would be left.
    """

    def refuse(why: str, next_step: str = "See who may sign there: quarl signers") -> TrustError:
        return TrustError(f"The signers of {device} were not changed: {why}.", next_step)

    if why := trust.get("refused"):
        raise refuse(why)
    if trust["by_root"]:
        raise refuse(f"{trust['anchor']} belongs to root, so that only root can change its lists on the device")
    if device_class is not None and not _CLASS.match(device_class):
        raise refuse(f"the class must consist of letters, digits, '.', '_' and '-', got {device_class!r}")
    if wrong := [line[:60] for line in (*add, *revoke) if not fingerprint_of(line)]:
        raise refuse(f"{wrong[0]!r} must hold a public key of one of the kinds {', '.join(KEY_KINDS)}")
    signers, revoked = list(trust["signers"]), list(trust["revoked"])
    gone = {fingerprint_of(line) for line in (*revoked, *revoke)}
    if again := gone.intersection(fingerprint_of(line) for line in add):
        raise refuse(f"{again.pop()} was revoked on this device, and a revoked key cannot be added again")
    known = {fingerprint_of(line) for line in signers}
    new = (key_in(line) for line in add if fingerprint_of(line) not in known)
    signers += [f'{PRINCIPAL} namespaces="{NAMESPACE}" {key}' for key in new]
    signers = [line for line in signers if fingerprint_of(line) not in gone]
    if revoke and not any(map(fingerprint_of, signers)):
        raise refuse("no key could sign any more; add another signer first")
    listed = {fingerprint_of(line) for line in revoked}
    revoked += [key_in(line) for line in revoke if fingerprint_of(line) not in listed]
    lists = {REVOKED_FILE: revoked, SIGNERS_FILE: signers}
    return lists if device_class is None else {**lists, CLASS_FILE: [device_class]}
