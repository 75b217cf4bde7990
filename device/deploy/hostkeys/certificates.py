"""Host certificates: keys that an authority signed for a host's names and a span of time.

The format is OpenSSH's PROTOCOL.certkeys. Honoured as OpenSSH does: the authority has a line ``@cert-authority NAMES
KEY`` in known_hosts for the host; the certificate is a host's, in its time, for its name, without demands that are
not understood.
"""

from __future__ import annotations

import base64
import fnmatch
import time
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)
from paramiko import Message

KINDS = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
"""How a server is asked for a certificate."""


@dataclass(frozen=True)
class HostCertificate:
    """What a server showed instead of a bare key.

    Attributes:
        kind, blob: the certified key itself, and its bytes on the wire.
        authority: the bytes of the key that signed it.
        signed_with: the algorithm of that signature.
    """

    kind: str
    blob: bytes
    authority: bytes
    signed_with: str
    _certificate: SSHCertificate

    @classmethod
    def parse(cls, kind: str, blob: bytes) -> HostCertificate:
        """Read a certificate as it came over the wire.

        Raises:
            ValueError: it is none, or of kinds of keys that are unknown here.
        """
        try:
            certificate = load_ssh_public_identity(f"{kind} {base64.b64encode(blob).decode()}".encode())
        except UnsupportedAlgorithm as error:
            raise ValueError(str(error)) from error
        if not isinstance(certificate, SSHCertificate):
            raise ValueError(f"{kind} is no certificate")
        certified, signed_by = (
            key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode().split()
            for key in (certificate.public_key(), certificate.signature_key())
        )
        authority = base64.b64decode(signed_by[1])
        signature = Message(blob[blob.rindex(authority) + len(authority) :]).get_binary()  # behind the authority's key
        return cls(certified[0], base64.b64decode(certified[1]), authority, Message(signature).get_text(), certificate)

    @property
    def line(self) -> bytes:
        """The certificate as a file has it."""
        return self._certificate.public_bytes()

    def why_not(self, host: str, now: float | None = None) -> str:
        """Why it does not hold for a host of that name (without a port); empty where it does.

        Args:
            host: as it was named, or its alias.
            now: seconds since 1970; default the time.
        """
        certificate, moment = self._certificate, time.time() if now is None else now
        if self.signed_with == "ssh-rsa":
            return "the authority signed it with SHA-1"
        if certificate.type is not SSHCertificateType.HOST:
            return "it is a user's certificate"
        if not certificate.valid_after <= moment < certificate.valid_before:
            begin, end, clock = (
                _date(timestamp) for timestamp in (certificate.valid_after, certificate.valid_before, int(moment))
            )
            return f"it holds from {begin} to {end}, and this host's clock says {clock}"
        names = [name.decode(errors="replace") for name in certificate.valid_principals]
        if names and not any(pattern_matches(name, host) for name in names):
            return f"it is for {', '.join(names)}"
        if certificate.critical_options:
            return f"it demands {', '.join(name.decode(errors='replace') for name in certificate.critical_options)}"
        try:
            certificate.verify_cert_signature()
        except InvalidSignature:
            return "the authority did not sign it"
        return ""


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(seconds, 1 << 36)))


def bare_name(name: str) -> str:
    """Return ``host`` of ``[host]:port``."""
    return name[1:].partition("]")[0] if name.startswith("[") else name


def pattern_matches(pattern: str, name: str) -> bool:
    """Return whether a name fits a pattern of known_hosts or of a certificate."""
    # fnmatch reads [..] as a set of characters; in known_hosts brackets are part of "[host]:port".
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))
