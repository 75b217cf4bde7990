"""From an endpoint to an authenticated SSH transport: open, verify the host key, log in; the same at every jump host.

Nothing here ever adds an unknown host key by itself, and nothing is sent to a host whose key was not accepted.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shlex
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import IO

import paramiko

from quarl.device.deploy.errors import (
    ChangedHostKeyError,
    ConnectionFailedError,
    IncompatibleServerError,
    TrustError,
    UnknownHostKeyError,
)
from quarl.device.deploy.hostkeys import certificates
from quarl.device.deploy.hostkeys.known_hosts import Finding, HostKey, KnownHosts, Verdict
from quarl.device.deploy.login import log_in
from quarl.device.deploy.ssh_config import Endpoint
from quarl.device.deploy.target import Target

CONNECT_TIMEOUT_S = 15.0
LOGIN_TIMEOUT_S = 75.0  # the agent may ask its user first
STALL_MS = 30_000
KEEPALIVE_S = 10
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
    """Return the command with which a person accepts a host key after comparing its fingerprint."""
    return f"quarl accept-host-key --target {shlex.quote(str(target))} --fingerprint {shlex.quote(fingerprint)}"


def _is_revoked(file: Path, key: HostKey) -> bool:
    """Return whether RevokedHostKeys lists a key or the authority that signed it; all are where it cannot be read."""
    blobs = [key.blob] if key.certificate is None else [key.blob, key.certificate.authority]
    try:
        listed = file.read_bytes()
    except OSError:
        return True
    if not listed.startswith(b"SSHKRL"):
        return any(base64.b64encode(blob) in listed.split() for blob in blobs)
    line = key.certificate.line if key.certificate else b"%b %b" % (key.kind.encode(), base64.b64encode(key.blob))
    try:
        done = subprocess.run(["ssh-keygen", "-Q", "-f", str(file), "/dev/stdin"], input=line, capture_output=True)
    except FileNotFoundError:
        return True
    return done.returncode != 0


def verify_host_key(endpoint: Endpoint, key: HostKey, known_hosts: KnownHosts) -> Finding:
    """Verify that the key which a host shows is known as its own.

    Raises:
        UnknownHostKeyError: nobody accepted it yet; the message has its fingerprint and the command.
        ChangedHostKeyError: another key was accepted for this host, or this one is revoked.
        TrustError: others may write what is known of hosts.
    """
    for file in filter(Path.is_file, known_hosts.files):
        path = file.resolve()
        # No further up: where a user has a group alone, many folders of a home are the group's, too.
        for place in (path, path.parent):
            if why := _why_not_own(place):
                raise TrustError(f"The known_hosts files cannot be trusted: {why}. Nothing was sent.")
    finding = known_hosts.check(endpoint.host_key_name, key)
    if endpoint.revoked_keys is not None and _is_revoked(endpoint.revoked_keys, key):
        finding = Finding(Verdict.REVOKED)
    if (
        finding.verdict is Verdict.UNKNOWN
        and (plain := certificates.bare_name(endpoint.host_key_name)) != endpoint.host_key_name
    ):
        at_any_port = known_hosts.check(plain, key)  # as OpenSSH has it: only where it is the same
        finding = at_any_port if at_any_port.verdict is Verdict.KNOWN else finding
    if finding.verdict is Verdict.KNOWN:
        return finding
    accept = accept_command(endpoint.target, key.fingerprint)
    if finding.verdict is Verdict.UNKNOWN:
        raise UnknownHostKeyError(
            f"The host key of {endpoint.host_key_name} is not known: it presents {key.kind} {key.fingerprint}. "
            "Nothing was sent.",
            "Compare the fingerprint with the device's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there); "
            f"if it is the same, type: {accept}"
            + (f" ({endpoint.jump.target} must be its ProxyJump in ~/.ssh/config)" if endpoint.jump else ""),
        )
    where = "; ".join(
        f"{entry.file}:{entry.line} has {entry.key.kind} {entry.key.fingerprint}" for entry in finding.entries
    )
    if finding.verdict is Verdict.NOT_CERTIFIED:
        raise ChangedHostKeyError(
            f"The host certificate of {endpoint.host_key_name} is not valid: {finding.why} (its authority: {where}). "
            "Nothing was sent.",
            "Let the authority sign the device's key again, with its name and a current validity: ssh-keygen -h -s "
            "AUTHORITY -I ID -n NAME /etc/ssh/ssh_host_ed25519_key.pub.",
        )
    if finding.verdict is Verdict.REVOKED:
        raise ChangedHostKeyError(
            f"THE HOST KEY OF {endpoint.host_key_name} IS REVOKED ({where or endpoint.revoked_keys}). "
            "Nothing was sent.",
            "Give the device a new host key; on it: sudo rm /etc/ssh/ssh_host_*, then sudo ssh-keygen -A.",
        )
    file = finding.entries[0].file
    own = any(entry.file == known_hosts.own for entry in finding.entries)
    removed = shlex.join(["ssh-keygen", "-f", str(file), "-R", endpoint.host_key_name])
    forget = f"{accept} --replace" if own else f"{removed}, then {accept}"
    raise ChangedHostKeyError(
        f"THE HOST KEY OF {endpoint.host_key_name} HAS CHANGED: it presents {key.kind} {key.fingerprint}, but "
        f"{where}. Another machine may be answering in its place. Nothing was sent.",
        f"Find out why. Only if the device was really reinstalled, type: {forget}",
    )


def _connect_socket(endpoint: Endpoint) -> socket.socket:
    try:
        source = (endpoint.bind_address, 0) if endpoint.bind_address else None
        sock = socket.create_connection((endpoint.hostname, endpoint.port), CONNECT_TIMEOUT_S, source)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: an empty or too long part of a name
        name = endpoint.target.host
        mdns = "have mDNS here (sudo apt-get install libnss-mdns); or " * endpoint.hostname.endswith(".local")
        raise ConnectionFailedError(
            f"The name {endpoint.hostname!r} cannot be resolved: {getattr(error, 'strerror', error)}.",
            f"Check the name; or {mdns}write `Host {name}` and `HostName 192.168.1.5` into ~/.ssh/config (`ssh -G "
            f"{name}` shows the result); or type TARGET=user@192.168.1.5. `make pi` starts pi@virtual.",
        ) from None
    except TimeoutError:
        raise ConnectionFailedError(
            f"{endpoint} did not answer within {CONNECT_TIMEOUT_S:g} s.",
            f"Check that the device is on and in this network: ping {endpoint.hostname}",
        ) from None
    except OSError as error:
        raise ConnectionFailedError(
            f"{endpoint} cannot be reached: {error.strerror or error}.",
            "Start the SSH server. On a Raspberry Pi: sudo systemctl enable --now ssh.",
        ) from None
    # Requests are small and wait for their answer: do not let Nagle's algorithm hold them back.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # paramiko fills the socket's buffer without an end
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)
    return sock


def _connect_through(
    endpoint: Endpoint, jump: Endpoint, known_hosts: KnownHosts | None, stack: contextlib.ExitStack
) -> paramiko.Channel:
    transport, _ = open_session(jump, known_hosts, stack)
    try:
        return transport.open_channel(
            "direct-tcpip", (endpoint.hostname, endpoint.port), ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ConnectionFailedError(
            f"The jump host {jump} accepted the login, but did not connect to {endpoint}: "
            f"{error or 'it closed the connection'}.",
            f"Check that `ssh {endpoint.target.host}` works, and that AllowTcpForwarding is on at the jump host.",
            jump=str(jump.target),
        ) from None


def _start_proxy(command: str, stack: contextlib.ExitStack) -> tuple[socket.socket, IO[bytes]]:
    """Start a ProxyCommand; return the end that we talk to, and what it writes to standard error."""
    local_socket, its = socket.socketpair()
    errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    with its:
        # In a session of its own: Ctrl-C ends it by ending us, after what was begun on the device has been undone.
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
            stdin=its.fileno(), stdout=its.fileno(), stderr=errors, start_new_session=True,
        )  # fmt: skip

    def end() -> None:
        local_socket.close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        process.kill()
        process.wait()

    stack.callback(end)
    return local_socket, errors


def open_transport(
    endpoint: Endpoint, known_hosts: KnownHosts | None, stack: contextlib.ExitStack
) -> tuple[paramiko.Transport, HostKey]:
    """Open the encrypted transport and learn the host key, without logging in there; jump hosts are logged in to.

    Args:
        endpoint: where.
        known_hosts: for every host on the way: whose kinds of keys are requested first, and certificates where an
            authority may vouch; default the project's and the files of the endpoint.
        stack: closes what was opened.

    Raises:
        ConnectionFailedError: nobody answers, or not with SSH.
        HostError: as :func:`open_session`, of a jump host.
    """
    known = known_hosts or KnownHosts.of_user(*endpoint.known_hosts_files)
    errors = None
    if endpoint.proxy_command:
        sock, errors = _start_proxy(endpoint.proxy_command, stack)
    elif endpoint.jump is not None:
        sock = _connect_through(endpoint, endpoint.jump, known_hosts, stack)
    else:
        sock = _connect_socket(endpoint)
    transport = paramiko.Transport(sock)
    stack.callback(transport.close)
    transport.banner_timeout = CONNECT_TIMEOUT_S
    transport.auth_timeout = LOGIN_TIMEOUT_S
    transport.channel_timeout = CONNECT_TIMEOUT_S
    # Ask for the kinds on record first: a server with several keys then shows one that can be compared.
    options, name = transport.get_security_options(), endpoint.host_key_name
    kinds, vouched = known.kinds(name) or known.kinds(certificates.bare_name(name)), known.has_authority(name)
    wanted = list(certificates.KINDS) if vouched else []
    wanted += [name for kind in kinds for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    first = [key_type for key_type in wanted if key_type in options.key_types or key_type in certificates.KINDS]
    options.key_types = (*first, *(key_type for key_type in options.key_types if key_type not in first))
    try:
        transport.start_client(timeout=CONNECT_TIMEOUT_S)
        return transport, _read_key(transport.get_remote_server_key())
    except paramiko.IncompatiblePeer as error:
        raise IncompatibleServerError(
            f"{endpoint} shares no SSH algorithm with this program: {error}; ciphers here are "
            f"{', '.join(options.ciphers)}.",
            "Install the server of OpenSSH or dropbear on the device. (TinySSH has only chacha20-poly1305, which "
            "paramiko lacks.)",
        ) from None
    except ValueError as error:
        raise ConnectionFailedError(
            f"{endpoint} presents a host certificate that cannot be read: {error}.",
            "Check the server's HostCertificate; on the device: ssh-keygen -L -f FILE-cert.pub.",
        ) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        why, hint = (
            error or "it hung up",
            f"Is that port an SSH server? Try: ssh -v -p {endpoint.port} {endpoint.hostname}",
        )
        if errors is not None:
            errors.seek(0)
            error_lines = errors.read().decode(errors="replace").strip().splitlines()
            why, hint = (
                f"its ProxyCommand {endpoint.proxy_command!r} says {error_lines[-1] if error_lines else why}",
                "Try it by hand.",
            )
        raise ConnectionFailedError(f"{endpoint} answered, but no SSH session could be opened: {why}.", hint) from None


def _read_key(key: paramiko.PKey) -> HostKey:
    """Return the key that a server showed, out of its certificate if it has one."""
    if key.public_blob is None:
        return HostKey(key.get_name(), key.asbytes())
    certificate = certificates.HostCertificate.parse(key.public_blob.key_type, key.public_blob.key_blob)
    return HostKey(certificate.kind, certificate.blob, certificate)


def open_session(
    endpoint: Endpoint, known_hosts: KnownHosts | None, stack: contextlib.ExitStack
) -> tuple[paramiko.Transport, HostKey]:
    """Open the transport, verify the host key, and log in.

    Args:
        endpoint: where.
        known_hosts: as :func:`open_transport`.
        stack: closes what was opened.

    Raises:
        ConnectionFailedError, UnknownHostKeyError, ChangedHostKeyError, LoginError: of this host, or one on the way.
    """
    transport, key = open_transport(endpoint, known_hosts, stack)
    verify_host_key(endpoint, key, known_hosts or KnownHosts.of_user(*endpoint.known_hosts_files))
    transport.set_keepalive(KEEPALIVE_S)
    log_in(transport, endpoint)
    return transport, key
