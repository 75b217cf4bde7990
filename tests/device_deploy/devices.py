"""Devices to test with: the embedded one, a real OpenSSH sshd on loopback, a line that breaks, an agent that obeys."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from quarl import cli
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import ConnectionFailedError
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts, read_entries
from quarl.device.deploy.local_device import LocalDevice, free_port, write_programs
from quarl.device.deploy.payload import STARTER, Payload, PayloadFile
from quarl.device.deploy.releases import PolicyReleases, Release, RollbackResult, list_releases, rollback
from quarl.device.deploy.signing.keys import VARIABLE, SigningKey, ensure_key
from quarl.device.deploy.signing.lists import NAMESPACE, PRINCIPAL, SIGNERS_FILE
from quarl.device.deploy.ssh_config import host_key_name
from quarl.device.deploy.target import Target, user_name
from quarl.device.deploy.wheels import Wheel, WheelSet, load_pins
from quarl.policy.reading import FileRecord
from quarl.policy.spec import Precision, RuntimeName

SSHD = Path("/usr/sbin/sshd")
needs_sshd = pytest.mark.skipif(
    not SSHD.exists(), reason="OpenSSH's server is not installed: apt-get install openssh-server"
)
needs_ssh = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="OpenSSH's client is not installed: apt-get install openssh-client"
)


@dataclass(frozen=True)
class TestDevice:
    """An SSH server on loopback and what is needed to log in."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    host: str
    port: int
    identity: Path
    known_hosts: Path
    """Has the host key under the server's own port."""
    home: Path

    @property
    def target(self) -> Target:
        return Target(self.host, user_name(), self.port)

    def policy_folder(self, policy: str) -> Path:
        return self.home / "quarl" / "policies" / policy

    def releases(self, policy: str) -> list[str]:
        """The releases that are there, oldest first."""
        return sorted(path.name for path in (self.policy_folder(policy) / "releases").iterdir())

    def leftovers(self, policy: str) -> list[str]:
        """What an unfinished deployment would leave; must be empty when none is at work."""
        folder = self.policy_folder(policy)
        return [str(path) for pattern in ("incoming/*", "current.*") for path in folder.glob(pattern)]

    @contextlib.contextmanager
    def connect(self, port: int | None = None) -> Iterator[Connection]:
        """A connection, through ``port`` (a proxy) if given; the host key is checked either way."""
        target = Target(self.host, user_name(), port or self.port)
        known = self.known_hosts
        if port is not None:
            known = self.known_hosts.with_name(f"known_hosts.{port}")
            kind, blob = self.known_hosts.read_text().split()[1:3]
            known.write_text(f"{host_key_name(self.host, port)} {kind} {blob}\n")
        nothing = self.known_hosts.with_name("no-config")
        with connect(target, identity=self.identity, known_hosts=KnownHosts(known), config_file=nothing) as connection:
            yield connection


def as_test_device(local: LocalDevice) -> TestDevice:
    """The embedded device as any other SSH host, reached by address and port."""
    known = local.folder.keys / f"known_hosts.{local.port}"
    entry = read_entries(local.folder.known_hosts_file)[0]
    words = local.folder.known_hosts_file.read_text().split()
    known.write_text(f"{host_key_name(local.host, local.port)} {entry.key.kind} {words[2]}\n")
    let_sign(local.folder.home)
    return TestDevice(local.host, local.port, local.folder.client_key_file, known, local.folder.home)


@functools.cache
def signing_key() -> SigningKey:
    """The key that signs what tests deploy; named by QUARL_SIGN_KEY, as a user names one."""
    key = ensure_key(Path(tempfile.mkdtemp(prefix="quarl-signing-")))
    os.environ[VARIABLE] = str(key.file)
    return key


def let_sign(home: Path, *keys: SigningKey) -> None:
    """Let keys sign what runs under a home folder, and no others."""
    folder = home / "quarl" / "trust"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'{PRINCIPAL} namespaces="{NAMESPACE}" {key.public}\n' for key in keys or [signing_key()]]
    (folder / SIGNERS_FILE).write_text("".join(lines))


def run_verb(policy: str, verb: str, *arguments: str) -> int:
    return cli.main([verb, "--target", "local", "--policy", policy, *arguments])


def good_reply(policy: str, capsys: pytest.CaptureFixture[str], verb: str, *arguments: str) -> dict[str, Any]:
    """What a verb answers in JSON, when it ends well."""
    capsys.readouterr()
    status = run_verb(policy, verb, "--json", *arguments)
    output = capsys.readouterr()
    assert status == 0, output
    reply: dict[str, Any] = json.loads(output.out)
    return reply


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until something is true; False when it is not after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not true():
        time.sleep(0.05)
    return true()


def runs(pid: int) -> bool:
    """Whether a process of this machine still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False


def holders(path: Path) -> list[int]:
    """The processes that have a file open: who holds a lock on it, and what inherited that."""
    found = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, which a glob of its files would raise
            for opened in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if opened.samefile(path):
                        found.add(int(process.name))
    return sorted(found)


def served_text(connection: Connection, policy: str) -> str:
    with AgentSession(connection, policy) as agent:
        return str(agent.request("hello")["text"])


@contextlib.contextmanager
def openssh_server(
    root: Path,
    certify: Callable[[Path], str] = lambda host_key: "",
    path: str = "/usr/local/bin:/usr/bin:/bin",
    first: str = "",
) -> Iterator[TestDevice]:
    """A real OpenSSH sshd on loopback with its own keys, port and home in a fresh folder, as the current user.

    ``certify`` is given the host key's file and returns more lines of its configuration, ``first`` stands in front of
    it: of each setting the first counts. ``path`` comes behind the folder that has python3, which a test may remove.
    """
    home = root / "home"
    home.mkdir(parents=True)
    let_sign(home)
    write_programs(root)  # the wheels that set-up has fetched are for this one
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation; Debian makes it at service start
    host_key, client_key = root / "host_ed25519", root / "client_ed25519"
    for key in (host_key, client_key):
        make_key(key)
    port = free_port()
    config = root / "sshd_config"
    config.write_text(
        f"{first}ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nPidFile none\n"
        f"AuthorizedKeysFile {client_key}.pub\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nUseDNS no\n"
        f"SetEnv HOME={home} PATH={root}:{path}\nSubsystem sftp internal-sftp\n"
        "LogLevel VERBOSE\n" + certify(host_key)
    )
    known = root / "known_hosts"
    known.write_text(f"{host_key_name('127.0.0.1', port)} " + " ".join(_public(host_key)) + "\n")
    log = root / "sshd.log"
    process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(config)], stderr=log.open("wb"))
    try:
        _wait_for_port(port, process, log)
        yield TestDevice("127.0.0.1", port, client_key, known, home)
    finally:
        process.terminate()
        process.wait(10)


def make_key(path: Path, passphrase: str | None = None) -> None:
    """Write an ed25519 key pair: the private key, for its owner's eyes only, and ``path.pub``."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.touch(mode=0o600)
    key.write_private_key(str(path), passphrase=passphrase)
    key.write_public_key(f"{path}.pub")


def _public(key: Path) -> list[str]:
    return key.with_name(key.name + ".pub").read_text().split()[:2]


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise ConnectionFailedError(f"sshd did not come up: {log.read_text()[-500:]}", f"Look at {log}.")


class Line:
    """A TCP line to a server that can be cut after so many bytes, or frozen: open, but nothing passes any more."""

    def __init__(self, host: str, port: int, cut_after: int | None = None) -> None:
        self._server = (host, port)
        self._cut_after = cut_after
        self._sockets: list[socket.socket] = []
        self._thaw = threading.Event()
        self._thaw.set()
        self._back = threading.Event()
        self._back.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.passed = 0
        """Bytes that came from the client so far."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, sink, counted in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=(source, sink, counted), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(16384):
                self._thaw.wait()
                if not counted:
                    self._back.wait()
                sink.sendall(block)
                if counted:
                    self.passed += len(block)
                    if self._cut_after is not None and self.passed >= self._cut_after:
                        break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Let nothing pass any more, as when a laptop sleeps or a cable is pulled; both ends stay open."""
        self._thaw.clear()

    def hold_back(self) -> None:
        """Let nothing pass from the server any more; what the client sends still arrives."""
        self._back.clear()

    def cut(self) -> None:
        """Close everything now; who connects again gets through."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()
        self._thaw.set()
        self._back.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *ignored: Any) -> None:
        self.close()
        self.cut()


STAND_IN_AGENT = """
import json, os, sys, time
refuse = {refuse!r}
print("stand-in agent is up", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    op, reply = request["op"], {{"ok": True, "id": request.get("id")}}
    if op == refuse:
        reply = {{"ok": False, "error": {{"code": "golden", "message": "vector 3 differs", "next": "Convert again."}}}}
    elif op == "load":
        golden = {{"vectors": 8, "max_error": 0.5, "tolerance": 1.0, "action_agreement": 1.0}}
        reply.update(golden=golden, loaded={{"runtime": request["runtime"]}})
    elif op == "hello":
        reply.update(device={{"model": "stand-in"}}, pid=os.getpid(), text={text!r}, environ=sorted(os.environ))
    elif op == "count":
        for done in range(1, 4):
            print(json.dumps({{"progress": {{"done": done, "total": 3}}}}), flush=True)
    elif op == "sleep":
        time.sleep(request["seconds"])
    elif op == "nonsense":
        print("Segmentation fault, or so", flush=True)
        continue
    elif op == "die":
        print("giving up now", file=sys.stderr, flush=True)
        sys.exit(7)
    elif op == "ignore-the-end":
        while True:
            time.sleep(1)
    print(json.dumps(reply), flush=True)
    if op == "bye":
        sys.exit(0)
"""


def stand_in_payload(
    policy: str = "S",
    text: str = "one",
    *,
    refuse: str = "",
    ballast: bytes = b"",
    python: str = "python3",
    environments: tuple[str, ...] = (),
) -> Payload:
    """A release with a small agent that refuses one operation, if any, and needs no wheels but those it says."""
    starter = f'#!/bin/sh\nexec {python} "$(dirname "$0")/lib/agent.py" "$@"\n'
    files = (
        PayloadFile(STARTER, starter.encode()),
        PayloadFile("lib/agent.py", STAND_IN_AGENT.format(refuse=refuse, text=text).encode()),
        PayloadFile("bundle/policy.json", b"{}"),
        PayloadFile("bundle/ballast.bin", ballast),
    )
    return Payload(policy, files, environments, (Precision.INT8,), (RuntimeName.LITERT,))


def stand_in_wheel(cache: Path, content: bytes) -> tuple[Wheel, Path]:
    """A wheel with one file, as if it was pinned, and the cache that has it, so that nothing is downloaded."""
    pin = load_pins()[0]
    cache.mkdir()
    with zipfile.ZipFile(cache / pin.file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("numpy/content.bin", content)
    return dataclasses.replace(pin, sha256=FileRecord.of_file(cache / pin.file).sha256), cache


@dataclass(frozen=True)
class Site:
    """Where a test deploys: a policy of its own on a device, the connection to it, and no wheels."""

    device: TestDevice
    connection: Connection
    name: str
    bare: WheelSet
    """The device's interpreter and no wheels: what a stand-in agent needs."""

    @property
    def folder(self) -> Path:
        return self.device.policy_folder(self.name)

    def through(self, connection: Connection) -> Site:
        return dataclasses.replace(self, connection=connection)

    def install(self, text: str = "one", **options: Any) -> DeployResult:
        """Deploy a stand-in release; the options are those of ``stand_in_payload`` and of ``install``."""
        content = {key: options.pop(key) for key in ("refuse", "ballast", "python") if key in options}
        return install(self.connection, stand_in_payload(self.name, text, **content), self.bare, **options)

    def bring(self, *texts: str) -> list[str]:
        """Deploy one stand-in after the other; returns the releases' names."""
        return [self.install(text).release for text in texts]

    def rollback(self, release: str | None = None, **options: Any) -> RollbackResult:
        return rollback(self.connection, self.name, release, **options)

    def served(self) -> str:
        return served_text(self.connection, self.name)

    def state(self) -> PolicyReleases:
        return list_releases(self.connection).policies[self.name]

    def shown(self) -> dict[str, Release]:
        return {release.name: release for release in self.state().releases}

    def releases(self) -> list[str]:
        return self.device.releases(self.name)

    def leftovers(self) -> list[str]:
        return self.device.leftovers(self.name)
