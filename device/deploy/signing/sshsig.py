"""What this project needs of ssh-keygen, by the library ``cryptography``, for a host that has no OpenSSH.

Such a host uses keys in files alone, and its local device verifies with
``python -m device.deploy.signing.sshsig -Y verify …``. The format is OpenSSH's PROTOCOL.sshsig.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from quarl.device.deploy.signing.lists import fingerprint

MAGIC, KIND, HASH = b"SSHSIG", b"ssh-ed25519", b"sha512"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"


def make_key(file: Path, comment: str) -> None:
    """Write a new Ed25519 key in OpenSSH's format: ``file``, its owner's alone, and ``file.pub``."""
    key = Ed25519PrivateKey.generate()
    encoding, public = serialization.Encoding, key.public_key()
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(private)
    line = public.public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    file.with_name(f"{file.name}.pub").write_text(f"{line} {comment}\n")


def sign(file: Path, text: bytes, namespace: str) -> bytes:
    """Return an armoured signature by the private key in a file.

    Raises:
        ValueError: it is no Ed25519 key that opens without a passphrase.
    """
    try:
        key = serialization.load_ssh_private_key(file.read_bytes(), password=None)
    except (OSError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it must be an Ed25519 key")
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = _pack_strings(KIND, key.sign(_build_signed_data(text, namespace.encode())))
    blob = (
        MAGIC + bytes((0, 0, 0, 1)) + _pack_strings(_pack_strings(KIND, raw), namespace.encode(), b"", HASH, signature)
    )
    lines = textwrap.wrap(base64.b64encode(blob).decode(), 70)
    return "\n".join((BEGIN, *lines, END, "")).encode()


def verify_signature(text: bytes, armoured: bytes, namespace: str) -> bytes:
    """Return the public key, as on the wire, that made an armoured signature of ``text``.

    Raises:
        ValueError: it is no such signature.
    """
    body = b"".join(line for line in armoured.splitlines() if not line.startswith(b"-----"))
    blob = base64.b64decode(body, validate=True)
    if not blob.startswith(MAGIC + bytes((0, 0, 0, 1))):
        raise ValueError("it must be an SSH signature of version 1")
    key, signed_for, _, hash_name, signature_blob = _unpack_strings(blob[len(MAGIC) + 4 :], 5)
    (kind, raw), (made_by, signature) = _unpack_strings(key, 2), _unpack_strings(signature_blob, 2)
    if (kind, made_by, hash_name, signed_for) != (KIND, KIND, HASH, namespace.encode()):
        raise ValueError("its key type, hash or namespace is not the expected one")
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, _build_signed_data(text, signed_for))
    except InvalidSignature:
        raise ValueError("the signature does not match the text") from None
    return key


def _build_signed_data(text: bytes, namespace: bytes) -> bytes:
    return MAGIC + _pack_strings(namespace, b"", HASH, hashlib.sha512(text).digest())


def _pack_strings(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _unpack_strings(data: bytes, count: int) -> list[bytes]:
    parts = []
    for _ in range(count):
        size = int.from_bytes(data[:4], "big")
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    if data or b"" in (parts[0], parts[-1]):
        raise ValueError("the lengths of its parts do not match its size")
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    """``-Y verify`` of standard input, as ``ssh-keygen`` does it. Returns 0, or 255 where it is not verified."""
    parser = argparse.ArgumentParser(prog="python -m device.deploy.signing.sshsig", description=main.__doc__)
    for flag, name in (
        ("-Y", "what"),
        ("-n", "namespace"),
        ("-I", "principal"),
        ("-f", "signers"),
        ("-s", "signature"),
    ):
        parser.add_argument(flag, dest=name, required=True)
    parser.add_argument("-r", dest="revoked")
    options = parser.parse_args(argv)
    if options.what != "verify":
        parser.error(f"-Y is {options.what}; allowed is verify")
    try:
        key = verify_signature(sys.stdin.buffer.read(), Path(options.signature).read_bytes(), options.namespace)
    except ValueError as error:
        print(f"Could not verify signature: {error}", file=sys.stderr)
        return 255
    encoded = base64.b64encode(key).decode()
    wanted = [options.principal, f'namespaces="{options.namespace}"', KIND.decode(), encoded]
    signers = Path(options.signers).read_text().splitlines()
    revoked = Path(options.revoked).read_text() if options.revoked else ""
    if not any(line.split()[:4] == wanted for line in signers) or encoded in revoked:
        print("Could not verify signature: its key may not sign", file=sys.stderr)
        return 255
    print(f'Good "{options.namespace}" signature for {options.principal} with ED25519 key {fingerprint(key)}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
