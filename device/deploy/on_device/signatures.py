"""Signatures in OpenSSH's own format, verified with its own ssh-keygen, which every device has with its sshd.

Who may sign stands in a file allowed_signers (ssh-keygen(1), "ALLOWED SIGNERS"), who may no longer in ``revoked``
beside it, a public key a line. Used by the host before it sends, and sent to the device as text together with
``helper.py`` and ``launch.py``; only the standard library.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from quarl.device.deploy.on_device.files import HelperError, read_bytes, what_is

NAMESPACE, PRINCIPAL = "quarl-release", "release@quarl"
SIGNERS_FILE, REVOKED_FILE = "allowed_signers", "revoked"
KEY_KINDS = ("ssh-ed25519", "sk-ssh-ed25519@openssh.com")
"""Ed25519, in a file or an agent, and in a FIDO2 token."""
MOST_SIGNATURE = 16384  # bytes
_MOST_LIST = 65536
_VERIFY_S = 60.0  # an emulated device takes its time
_KEY = re.compile(rf"(?:^|\s)({'|'.join(map(re.escape, KEY_KINDS))}) ([A-Za-z0-9+/]+=*)(?:\s|$)")


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` of a public key as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def key_in(line: str) -> str:
    """The public key in a line of any of OpenSSH's files, ``ssh-ed25519 AAAA…``; "" where there is none."""
    found = _KEY.search(line)
    return f"{found[1]} {found[2]}" if found and not line.lstrip().startswith("#") else ""


def fingerprint_of(line: str) -> str:
    """The fingerprint of the public key in a line; "" where there is none."""
    with contextlib.suppress(IndexError, binascii.Error):
        return fingerprint(base64.b64decode(key_in(line).split()[1], validate=True))
    return ""


def claimed_signer(signature: bytes) -> str:
    """The fingerprint of the key that a signature names, which proves nothing yet; "" where it names none."""
    body = b"".join(line for line in signature.splitlines() if not line.startswith(b"-----"))
    with contextlib.suppress(binascii.Error):
        blob = base64.b64decode(body, validate=True)  # "SSHSIG", a version of 4 bytes, the key after its length
        size = int.from_bytes(blob[10:14], "big")
        if blob.startswith(b"SSHSIG") and 0 < size <= len(blob) - 14:
            return fingerprint(blob[14 : 14 + size])
    return ""


@contextlib.contextmanager
def sealed(name: str, content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory that nobody can change any more; others open it as /proc/self/fd/N."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(content)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


def check_signature(text: bytes, signature: bytes, folder: Path, tool: tuple[str, ...] = ("ssh-keygen",)) -> str:
    """Verify that one of the signers has signed these very bytes.

    Args:
        text: what was signed.
        signature: armoured, as ``ssh-keygen -Y sign`` writes it.
        folder: with allowed_signers, and where keys were revoked ``revoked``.
        tool: what verifies; a host may have no OpenSSH.

    Returns:
        The signer's fingerprint.

    Raises:
        HelperError: ``trust``: nobody is allowed to sign, the signer is none of them or revoked, or it is no signature
            of these bytes.
    """
    signers, revoked = (read_lines(folder / name) for name in (SIGNERS_FILE, REVOKED_FILE))
    claimed = claimed_signer(signature) if len(signature) <= MOST_SIGNATURE else ""
    allowed = {fingerprint_of(line) for line in signers} - {""}
    if not allowed:
        raise HelperError("trust", f"nobody may sign what runs here: {folder / SIGNERS_FILE} names no key")
    if not claimed:
        raise HelperError("trust", "its signature is none that ssh-keygen makes")
    if claimed in {fingerprint_of(line) for line in revoked}:
        raise HelperError("trust", f"it is signed by {claimed}, a key that was revoked here")
    if claimed not in allowed:
        raise HelperError("trust", f"it is signed by {claimed}; allowed are {', '.join(sorted(allowed))}")
    # What is verified is what was judged above: the lists as they were read, not the files again.
    with (
        sealed("signers", "\n".join(signers).encode() + b"\n") as names,
        sealed("revoked", "\n".join(revoked).encode() + b"\n") as gone,
        sealed("signature", signature) as armoured,
    ):
        paths = {flag: f"/proc/self/fd/{number}" for flag, number in (("-f", names), ("-r", gone), ("-s", armoured))}
        command = [*tool, "-Y", "verify", "-n", NAMESPACE, "-I", PRINCIPAL]
        for flag, path in paths.items():
            command += [flag, path]
        try:
            done = subprocess.run(
                command,
                input=text,
                pass_fds=(names, gone, armoured),
                capture_output=True,
                timeout=_VERIFY_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HelperError(
                "trust", f"no signature can be verified here, since ssh-keygen does not run: {error}", hindered=True
            ) from None
    if done.returncode != 0 or claimed not in done.stdout.decode(errors="replace"):
        raise HelperError("trust", f"the signature of {claimed} is not of this record: it was changed")
    return claimed


def read_lines(path: Path) -> list[str]:
    """The lines of a small file that hold something; none where it is missing."""
    if not what_is(path):
        return []
    return [line.strip() for line in read_bytes(path, _MOST_LIST).decode(errors="replace").splitlines() if line.strip()]
