"""From a host name to an authenticated SSH transport: open, compare the host key, log in. In this order, always.

Nothing here ever adds an unknown host key by itself, and nothing is sent to a host whose key was not accepted.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import paramiko

from quarl.device.deploy.errors import (
    ChangedHostKeyError,
    ConnectionFailedError,
    LoginError,
    TrustError,
    UnknownHostKeyError,
)
from quarl.device.deploy.hostkeys import certificates
from quarl.device.deploy.hostkeys.known_hosts import Finding, HostKey, KnownHosts, Verdict
from quarl.device.deploy.target import Endpoint, Target

CONNECT_TIMEOUT_S = 15.0
KEEPALIVE_S = 10
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# paramiko logs tracebacks of errors that we catch and tell in our own words; without a handler of the program's own,
# logging would print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


def _why_not_own(path: Path) -> str:
    """Return why others than this user and root may change what is at a path, and what to type; "" where none may.

    As StrictModes of sshd judges authorized_keys.
    """
    status, quoted = path.stat(), shlex.quote(str(path))
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}; allowed are this user and root: chown it ({quoted})"
    # In a folder like /tmp others may add, but not replace what is not theirs.
    is_shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and status.st_uid == 0
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_shared:
        return (
            f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):04o}); allowed are its owner and "
            f"root: see whether what it holds is yours, then type chmod go-w {quoted}"
        )
    return ""


def accept_command(target: Target, fingerprint: str) -> str:
    """The command with which a person accepts a host key after comparing its fingerprint."""
    return f"quarl accept-host-key --target {shlex.quote(str(target))} --fingerprint {shlex.quote(fingerprint)}"


def check_host_key(target: Target, endpoint: Endpoint, key: HostKey, known_hosts: KnownHosts) -> Finding:
    """Let a known key pass.

    Raises:
        UnknownHostKeyError: nobody accepted it yet; the message has its fingerprint and the command.
        ChangedHostKeyError: another key was accepted for this host, or this one is revoked.
        TrustError: others may write what is known of hosts.
    """
    for file in filter(Path.exists, known_hosts.files):
        path = file.resolve()
        # No further up: where a user has a group alone, many folders of a home are the group's, too.
        for place in (path, path.parent):
            if why := _why_not_own(place):
                raise TrustError(f"Which hosts are known is not believed: {why}. Nothing was sent.")
    finding = known_hosts.check(endpoint.host_key_name, key)
    if finding.verdict is Verdict.KNOWN:
        return finding
    if finding.verdict is Verdict.UNKNOWN:
        raise UnknownHostKeyError(
            f"The host key of {endpoint.host_key_name} is not known: it shows {key.kind} {key.fingerprint}. "
            "Nothing was sent.",
            "Compare the fingerprint with the device's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there); "
            f"if it is the same, type: {accept_command(target, key.fingerprint)}",
        )
    where = "; ".join(
        f"{entry.file}:{entry.line} has {entry.key.kind} {entry.key.fingerprint}" for entry in finding.entries
    )
    if finding.verdict is Verdict.NOT_CERTIFIED:
        raise ChangedHostKeyError(
            f"The host certificate of {endpoint.host_key_name} does not hold: {finding.why} (its authority: {where}). "
            "Nothing was sent.",
            "Have the authority sign the device's key for its name and for now: ssh-keygen -h -s AUTHORITY -I ID "
            "-n NAME /etc/ssh/ssh_host_ed25519_key.pub.",
        )
    if finding.verdict is Verdict.REVOKED:
        raise ChangedHostKeyError(
            f"THE HOST KEY OF {endpoint.host_key_name} IS REVOKED ({where}). Nothing was sent.",
            "Give the device a new host key.",
        )
    own = any(entry.file == known_hosts.own for entry in finding.entries)
    forget = (
        f"{accept_command(target, key.fingerprint)} --replace"
        if own
        else f"ssh-keygen -R {shlex.quote(endpoint.host_key_name)}, then {accept_command(target, key.fingerprint)}"
    )
    raise ChangedHostKeyError(
        f"THE HOST KEY OF {endpoint.host_key_name} HAS CHANGED: it shows {key.kind} {key.fingerprint}, but {where}. "
        "Another machine may be answering in its place. Nothing was sent.",
        f"Find out why. Only if the device was really set up anew, type: {forget}",
    )


def _open_socket(endpoint: Endpoint) -> socket.socket:
    where = f"{endpoint.hostname} port {endpoint.port}"
    try:
        sock = socket.create_connection((endpoint.hostname, endpoint.port), timeout=CONNECT_TIMEOUT_S)
    except socket.gaierror as error:
        raise ConnectionFailedError(
            f"The name {endpoint.hostname!r} has no address: {error.strerror}.",
            "Check the name (pi@virtual is there once `make pi` has started it), or use the device's IP address: "
            "TARGET=user@192.168.1.5.",
        ) from None
    except TimeoutError:
        raise ConnectionFailedError(
            f"{where} did not answer within {CONNECT_TIMEOUT_S:g} s.", "Is the device on, and in this network?"
        ) from None
    except OSError as error:
        raise ConnectionFailedError(
            f"{where} cannot be reached: {error.strerror or error}.",
            "Is the SSH server on? On a Raspberry Pi: sudo systemctl enable --now ssh.",
        ) from None
    # Requests are small and wait for their answer: do not let Nagle's algorithm hold them back.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def shake_hands(endpoint: Endpoint, known_hosts: KnownHosts) -> tuple[paramiko.Transport, HostKey]:
    """Open the encrypted transport and learn the host key, without logging in.

    Args:
        endpoint: where.
        known_hosts: whose kinds of keys are asked for first, and certificates where an authority may vouch.

    Raises:
        ConnectionFailedError: nobody answers, or not with SSH.
    """
    transport = paramiko.Transport(_open_socket(endpoint))
    transport.banner_timeout = CONNECT_TIMEOUT_S
    transport.auth_timeout = CONNECT_TIMEOUT_S
    transport.channel_timeout = CONNECT_TIMEOUT_S
    # Ask for the kinds on record first: a server with several keys then shows one that can be compared.
    options, name = transport.get_security_options(), endpoint.host_key_name
    kinds, vouched = known_hosts.kinds(name), known_hosts.has_authority(name)
    wanted = list(certificates.KINDS) if vouched else []
    wanted += [name for kind in kinds for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    first = [each for each in wanted if each in options.key_types or each in certificates.KINDS]
    options.key_types = (*first, *(each for each in options.key_types if each not in first))
    try:
        transport.start_client(timeout=CONNECT_TIMEOUT_S)
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise ConnectionFailedError(
            f"{endpoint.hostname} port {endpoint.port} answered, but there is no SSH session: {error or 'it hung up'}.",
            f"Is that port an SSH server? Try: ssh -v -p {endpoint.port} {endpoint.hostname}",
        ) from None
    try:
        return transport, _shown(key)
    except ValueError as error:
        transport.close()
        raise ConnectionFailedError(
            f"{endpoint.hostname} port {endpoint.port} shows a host certificate that cannot be read: {error}.",
            "Look at the server's HostCertificate: ssh-keygen -L -f FILE-cert.pub there.",
        ) from None


def _shown(key: paramiko.PKey) -> HostKey:
    """The key that a server showed, out of its certificate if it has one."""
    if key.public_blob is None:
        return HostKey(key.get_name(), key.asbytes())
    certificate = certificates.HostCertificate.parse(key.public_blob.key_type, key.public_blob.key_blob)
    return HostKey(certificate.kind, certificate.blob, certificate)


def _candidate_keys(endpoint: Endpoint, use_agent: bool, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys to offer, most specific first; those that cannot be used are noted in ``tried``."""
    files = list(endpoint.identity_files)
    if not endpoint.identities_only:
        files += [Path.home() / ".ssh" / name for name in DEFAULT_KEYS]
    for index, file in enumerate(dict.fromkeys(files)):
        is_requested = index < len(endpoint.identity_files)
        if not file.is_file():
            if is_requested:
                tried.append(f"{file} (no such file)")
            continue
        try:
            key = paramiko.PKey.from_path(file)
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, TypeError, OSError) as error:
            tried.append(f"{file} (cannot be used: {str(error)[:80]}; with a passphrase, `ssh-add {file}` first)")
            continue
        yield str(file), key
    if use_agent and not endpoint.identities_only:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                yield f"SSH agent {key.fingerprint}", key
        finally:
            agent.close()


def log_in(transport: paramiko.Transport, endpoint: Endpoint, use_agent: bool) -> None:
    """Offer our keys until one is accepted.

    Raises:
        LoginError: none was; the message lists what was tried.
    """
    tried: list[str] = []
    for name, key in _candidate_keys(endpoint, use_agent, tried):
        try:
            if not transport.auth_publickey(endpoint.user, key):
                return
            tried.append(f"{name} (accepted, but the server wants a second factor)")
        except paramiko.BadAuthenticationType as error:
            tried.append(f"{name} (the server allows only {', '.join(error.allowed_types)})")
            break
        except (paramiko.SSHException, OSError, EOFError) as error:
            tried.append(f"{name} ({'refused' if isinstance(error, paramiko.AuthenticationException) else error})")
            if not transport.is_active():
                break
    transport.close()
    raise LoginError(
        f"{endpoint.hostname} port {endpoint.port} does not let {endpoint.user} in; tried: "
        f"{'; '.join(tried) or 'no key was found'}. Passwords are not used.",
        f"ssh-copy-id -p {endpoint.port} {endpoint.user}@{endpoint.hostname}, or --identity FILE.",
    )


def fetch_host_key(target: Target, endpoint: Endpoint, known_hosts: KnownHosts) -> HostKey:
    """The key that the device shows now, without logging in and without judging it."""
    transport, key = shake_hands(endpoint, known_hosts)
    transport.close()
    return key
