"""Log in to an SSH server with a key: of a file, or of the SSH agent, as the configuration allows.

OpenSSH's rules: of the agent with ``IdentitiesOnly`` only the keys of the files that are configured, of which the
public part is enough; else all. Passwords and what a person has to type are not used.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from paramiko import AuthenticationException, BadAuthenticationType, Message, PKey, SSHException, Transport
from paramiko.agent import SSH2_AGENT_SIGN_RESPONSE, AgentKey, AgentSSH
from paramiko.agent import cSSH2_AGENTC_SIGN_REQUEST as _SIGN
from paramiko.pkey import PublicBlob, UnknownKeyType
from paramiko.util import asbytes

from quarl.device.deploy.errors import LoginError, SecondFactorError
from quarl.device.deploy.hostkeys.certificates import HostCertificate
from quarl.device.deploy.ssh_config import DEFAULT_KEYS, Endpoint
from quarl.device.deploy.target import with_home

_PRIVATE = b"openssh-key-v1\0"


class _Agent(AgentSSH):
    """The agent behind a socket, which is not always that of SSH_AUTH_SOCK."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        super().__init__()
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(60.0)  # it may ask its user first
        connection.connect(str(path))
        self._connect(connection)

    def _send_message(self, msg: object) -> tuple[int, Message]:
        """Take no signature for a wrong one: the server refuses that, and takes the next key."""
        try:
            kind, reply = super()._send_message(msg)
        except (OSError, SSHException):
            kind, reply = 0, Message()
        is_refused = asbytes(msg)[:1] == _SIGN and kind != SSH2_AGENT_SIGN_RESPONSE
        return (SSH2_AGENT_SIGN_RESPONSE, Message(bytes(4))) if is_refused else (kind, reply)


def _read_public(file: Path) -> bytes:
    """Return the public part of a key file, as it is sent; of a private one, also where it is encrypted; or nothing."""
    for path in (file, Path(f"{file}.pub")):
        with contextlib.suppress(OSError, ValueError, binascii.Error, SSHException):
            lines = path.read_text(encoding="ascii").splitlines()
            if lines[:1] == ["-----BEGIN OPENSSH PRIVATE KEY-----"]:
                data = base64.b64decode("".join(lines[1:-1]))
                if data.startswith(_PRIVATE):
                    message = Message(data[len(_PRIVATE) :])
                    for _ in ("cipher", "derivation", "its options"):
                        message.get_string()
                    message.get_int()  # how many keys
                    return message.get_string()
            elif lines and len(words := lines[0].split()) > 1:
                return base64.b64decode(words[1], validate=True)
    return b""


def _find_certificates(endpoint: Endpoint, held: Iterable[AgentKey]) -> dict[bytes, list[PublicBlob]]:
    """Return the user certificates of files and of the agent by the public key that they are for."""
    blobs = [PublicBlob(key.name, key.blob) for key in held if "-cert-" in key.name]
    files = filter(None, (endpoint.identity, *endpoint.identity_files))
    beside = (Path(f"{str(file).removesuffix('.pub')}-cert.pub") for file in files)
    for path in dict.fromkeys((*endpoint.certificate_files, *beside)):
        with contextlib.suppress(OSError, ValueError):
            blobs.append(PublicBlob.from_file(str(path)))
    certificates: dict[bytes, list[PublicBlob]] = {}
    for blob in blobs:
        with contextlib.suppress(ValueError):
            certificates.setdefault(HostCertificate.parse(blob.key_type, blob.key_blob).blob, []).append(blob)
    return certificates


def _candidate_keys(endpoint: Endpoint, tried: list[str], stack: contextlib.ExitStack) -> Iterator[tuple[str, PKey]]:
    """Yield the keys to offer, most specific first; those that cannot be used are noted in ``tried``."""
    held: dict[bytes, AgentKey] = {}
    if endpoint.agent is not None:
        try:
            held = {key.blob: key for key in _Agent(endpoint.agent, stack).get_keys()}
        except (OSError, SSHException) as error:
            tried.append(f"the agent at {endpoint.agent} (cannot be asked: {error})")
    certificates = _find_certificates(endpoint, held.values())
    defaults = {with_home(Path(name)) for name in DEFAULT_KEYS}
    # As OpenSSH: of the agent those of the files, then its others, then the files that it does not hold.
    left, keys, files = dict(held), list[tuple[str, Path | AgentKey]](), list[tuple[str, Path | AgentKey]]()
    for file in dict.fromkeys((*filter(None, [endpoint.identity]), *endpoint.identity_files)):
        in_agent = left.pop(_read_public(file), None)
        if in_agent is not None:
            keys.append((f"{file} of the SSH agent", in_agent))
        else:
            (keys if file == endpoint.identity else files).append((str(file), file))
    if not endpoint.identities_only:
        offered_with_key = {blob.key_blob for key, blobs in certificates.items() if key in held for blob in blobs}
        others = (key for key in left.values() if key.blob not in offered_with_key)
        keys += [(f"SSH agent {key.fingerprint}", key) for key in others]
    for name, key in (*keys, *files):
        if isinstance(key, Path):
            if not key.is_file():
                if key not in defaults:
                    tried.append(f"{key} (no such file)")
                continue
            try:
                key = PKey.from_path(key)
            except (SSHException, UnknownKeyType, ValueError, TypeError, OSError) as error:
                tried.append(f"{name} (cannot be used: {str(error)[:80]}; with a passphrase, `ssh-add {name}` first)")
                continue
        for certificate in (*certificates.get(key.asbytes(), []), None):
            key.public_blob = certificate
            yield name + " with a certificate" * (certificate is not None), key


def log_in(transport: Transport, endpoint: Endpoint) -> None:
    """Offer our keys until one is accepted.

    Raises:
        SecondFactorError: one was, and the server wants something else besides.
        LoginError: none was; the message lists what was tried.
    """
    tried: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, key in _candidate_keys(endpoint, tried, stack):
            try:
                others = transport.auth_publickey(endpoint.user, key)
                if not others:
                    return
                tried.append(f"{name} (accepted)")
                if "publickey" not in others:
                    raise SecondFactorError(
                        f"{endpoint} accepts a key of {endpoint.user} but also requires {' or '.join(others)}, which "
                        "cannot be entered here.",
                        "Allow this user to log in with the key alone (sshd_config on the device: Match User, "
                        "AuthenticationMethods publickey). For a jump host, open the connection beforehand: ssh -M "
                        "-S ~/.ssh/jump -fN HOST, and for the device set ProxyCommand ssh -S ~/.ssh/jump -W %h:%p "
                        "HOST.",
                        methods=others,
                    )
            except BadAuthenticationType as error:
                tried.append(f"{name} (the server allows only {', '.join(error.allowed_types)})")
                break
            except (SSHException, OSError, EOFError) as error:
                is_refused = isinstance(error, AuthenticationException) and "timeout" not in str(error)
                tried.append(f"{name} ({'refused' if is_refused else error})")
                if not transport.is_active():
                    break
    raise LoginError(
        f"{endpoint} refused the login of {endpoint.user}; tried: {'; '.join(tried) or 'no key was found'}. "
        "Passwords are not used.",
        f"Type ssh-copy-id -p {endpoint.port} {endpoint.user}@{endpoint.hostname}, or add --identity FILE.",
        tried=tried,
    )
