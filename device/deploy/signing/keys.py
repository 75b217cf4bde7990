"""The keys that sign releases: files of OpenSSH's, or public keys whose private halves an agent or a token has."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.errors import TrustError
from quarl.device.deploy.signing import sshsig
from quarl.device.deploy.signing.lists import KEY_KINDS, NAMESPACE, fingerprint_of, key_in
from quarl.device.deploy.target import with_home
from quarl.policy.files import lock_folder
from quarl.policy.places import state_folder

ACTIVE, SPARE = "release_ed25519", "spare_ed25519"
VARIABLE = "QUARL_SIGN_KEY"
_SIGN_S = 120.0
"""Seconds in which a person touches a token."""


@dataclass(frozen=True)
class SigningKey:
    """A key that can sign.

    Attributes:
        file: the private key, or a public one (``.pub``) whose private half is in the SSH agent.
        public: ``ssh-ed25519 AAAA…``.
    """

    file: Path
    public: str

    @property
    def fingerprint(self) -> str:
        """``SHA256:…`` as OpenSSH prints it: the key's id in a record."""
        return fingerprint_of(self.public)

    def sign(self, text: bytes) -> bytes:
        """Return an armoured signature of these bytes, made by ssh-keygen, or where there is none from the key's file.

        Raises:
            TrustError: no signature is made; says why.
        """
        if has_ssh_keygen():
            return _ssh_keygen("-Y", "sign", "-n", NAMESPACE, "-f", str(self.file), given=text).stdout
        try:
            return sshsig.sign(self.file, text, NAMESPACE)
        except ValueError as error:
            raise TrustError(
                f"Signing with {self.file} requires ssh-keygen, which is not on this host: {error}.",
                "sudo apt-get install openssh-client",
            ) from None


def has_ssh_keygen() -> bool:
    """Return whether this host has OpenSSH's tool; without it keys in files sign, and no agent's and no token's."""
    return shutil.which("ssh-keygen") is not None


def _ssh_keygen(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(["ssh-keygen", *words], input=given, capture_output=True, timeout=_SIGN_S, check=False)
    except subprocess.TimeoutExpired:
        raise TrustError(
            f"ssh-keygen did not answer within {_SIGN_S:g} s.",
            "If the key is on a token, touch it, then run the same command again.",
        ) from None
    if done.returncode != 0:
        raise TrustError(
            f"ssh-keygen refused to sign: {done.stderr.decode(errors='replace').strip()[-300:]}",
            "Check that only the owner can read the key file (chmod 600); if it has a passphrase, add it to the "
            "agent (ssh-add).",
        )
    return done


def read_public(path: Path) -> str:
    """Return the public key in a file, ``ssh-ed25519 AAAA…``: of ``KEY.pub``, or of the one beside ``KEY``.

    Raises:
        TrustError: there is none, or it is of a kind that does not count.
    """
    file = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise TrustError(
            f"{file} cannot be read: {error.strerror}.", f"Make a key: ssh-keygen -t ed25519 -f {path.with_suffix('')}"
        ) from None
    for line in lines:
        if fingerprint_of(line):
            return key_in(line)
    raise TrustError(
        f"{file} must hold a public key of one of the kinds {', '.join(KEY_KINDS)}.", "Make one: ssh-keygen -t ed25519"
    )


def signing_key(path: Path) -> SigningKey:
    """Return the key in a file that a person named.

    Raises:
        TrustError: as :func:`read_public`.
        TargetError: it begins with the home folder of a user who is none.
    """
    path = with_home(path)
    return SigningKey(path, read_public(path))


def own_folder() -> Path:
    """Return where this user's keys are kept that this project made."""
    return state_folder() / "signing"


def ensure_key(folder: Path, name: str = ACTIVE) -> SigningKey:
    """Return the key of that name in a folder, made now where there is none; without a passphrase, its owner's
    alone."""
    file = folder / name
    with lock_folder(folder, mode=0o700):
        if not file.exists():
            sshsig.make_key(file, f"quarl {name}")
    return signing_key(file)


def resolve_signing_key(path: Path | None) -> SigningKey | None:
    """Return the key that was named, or QUARL_SIGN_KEY's, or this user's own; None where there is none yet."""
    named = path or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        return signing_key(named)
    own = own_folder() / ACTIVE
    return signing_key(own) if own.exists() else None
