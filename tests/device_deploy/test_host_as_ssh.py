"""What ``ssh HOST`` reaches is reached: real sshds, configurations of real users, and OpenSSH's client beside ours."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import install
from quarl.device.deploy.errors import (
    HostError,
    IncompatibleServerError,
    LoginError,
    SecondFactorError,
    SessionLimitError,
    TargetError,
    UnknownHostKeyError,
    UnsupportedDeviceError,
)
from quarl.device.deploy.local_device import free_port
from quarl.device.deploy.probe import probe
from quarl.device.deploy.shell import DeviceShell
from quarl.device.deploy.ssh_config import Endpoint, resolve
from quarl.device.deploy.target import Target
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import (
    TestDevice,
    eventually,
    make_key,
    needs_ssh,
    needs_sshd,
    openssh_server,
    served_text,
    stand_in_payload,
)

pytestmark = [needs_ssh, needs_sshd, pytest.mark.usefixtures("own_home")]


RELAY = """
import socket, sys, threading
line = socket.create_connection(sys.argv[1:])
def send():
    while data := sys.stdin.buffer.read1():
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := line.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class Lab:
    """A device behind two gateways, each an sshd with keys of its own, and an agent.

    Attributes:
        folder: has ``device``, ``near`` and ``far`` (private keys let in there), ``signed`` (with a user certificate,
            let in at the device), ``locked`` (let in at the device, with a passphrase) and ``stranger`` (nowhere).
        agent: the socket of an agent that holds ``locked`` and ``stranger``.
    """

    folder: Path
    device: TestDevice
    near: TestDevice
    far: TestDevice
    agent: Path

    def write(self, text: str, **more: object) -> Path:
        """Write a configuration whose host ``drone`` is the device, after ``text``, in which names are replaced."""
        names = {
            "folder": self.folder, "agent": self.agent, "port": self.device.port, "python": sys.executable,
            "near": self.near.port, **more,
        }  # fmt: skip
        common = f"""
Host *
  UserKnownHostsFile {self.folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
Host near
  HostName 127.0.0.1
  HostKeyAlias near
  Port {self.near.port}
  IdentityFile {self.folder}/near
  IdentitiesOnly yes
Host far
  HostName 127.0.0.1
  HostKeyAlias far
  Port {self.far.port}
  IdentityFile {self.folder}/far
  IdentitiesOnly yes
Host drone
  HostName 127.0.0.1
  HostKeyAlias drone
  Port {self.device.port}
"""
        file = self.folder / "config"
        file.write_text(text.format(**names) + common)
        return file


def add(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Give an agent a key, once it listens."""
    assert eventually(lambda: not subprocess.call(command, cwd=folder, env=environment))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab")
    for key in ("authority", "signed", "locked", "stranger"):
        make_key(root / key, passphrase="secret" if key == "locked" else None)
    subprocess.run(["ssh-keygen", "-qs", "authority", "-I", "me", "-n", user(), "signed.pub"], cwd=root, check=True)
    shutil.copy(root / "signed-cert.pub", root / "certificate.pub")
    more = f"AuthorizedKeysFile {root}/device.pub {root}/locked.pub\nTrustedUserCAKeys {root}/authority.pub\n"
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in ("device", "near", "far"):
            server = stack.enter_context(openssh_server(root / f"sshd-{name}", first=more if name == "device" else ""))
            for suffix in ("", ".pub"):
                shutil.copy(f"{server.identity}{suffix}", f"{root / name}{suffix}")
            servers[name] = server
        known = [
            f"{alias} {servers[name].known_hosts.read_text().split(maxsplit=1)[1]}"
            for alias, name in (("drone", "device"), ("near", "near"), ("far", "far"))
        ]
        (root / "known_hosts").write_text("".join(known))
        (root / "relay").write_text(RELAY)
        for file, public in (("revoked", root / "sshd-device" / "host_ed25519.pub"), ("others", root / "stranger.pub")):
            subprocess.run(["ssh-keygen", "-qkf", str(root / file), str(public)], check=True)
        (root / "no_port").write_text("127.0.0.1 " + known[0].split(maxsplit=1)[1])
        (root / "answer").write_text("#!/bin/sh\necho secret\n")
        (root / "answer").chmod(0o755)
        shutil.copy(root / "signed.pub", root / "plain.pub")
        for name, words in {
            "agent": ["locked", "stranger"],
            "refusing": ["-c", "locked"],
            "certified": ["signed"],
        }.items():
            asked = {**os.environ, "SSH_AUTH_SOCK": str(root / name), "SSH_ASKPASS_REQUIRE": "force"}
            agent = subprocess.Popen(
                ["ssh-agent", "-D", "-a", str(root / name)],
                stdout=subprocess.DEVNULL,
                env={**asked, "SSH_ASKPASS": "/bin/false"},
            )
            stack.callback(agent.wait)
            stack.callback(agent.terminate)
            environment = {**asked, "SSH_ASKPASS": "./answer"}
            add(["ssh-add", "-q", *words], root, environment)
        subprocess.call(["ssh-add", "-qd", "plain.pub"], cwd=root, env=environment)  # and its certificate stays
        yield Lab(root, **servers, agent=root / "agent")


def user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()


def ours(file: Path, host: str = "drone") -> str:
    """Return what a command there writes, or the code of the error."""
    try:
        with connect(host, config_file=file) as connection:
            assert connection.transport_name in ("loopback", "ssh")
            return connection.run("echo in").stdout.strip()
    except HostError as error:
        return error.code


def theirs(file: Path, host: str = "drone") -> str:
    """Return the same by OpenSSH's client; its errors have no codes."""
    done = subprocess.run(["ssh", "-F", str(file), host, "echo in"], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or "refused"


LETS_IN = {
    "a file that is included": "Include {folder}/included\n",
    "a comment behind a value": "Host drone\n  Port {port} # the lab\n  IdentityFile {folder}/device\n",
    "settings of the canonical name": """CanonicalizeHostname yes
Match canonical host localhost
  HostName 127.0.0.1
  Port {port}
  HostKeyAlias drone
  IdentityFile {folder}/device
Host dev
  HostName localhost
""",
    "a name with capitals": "Host Drone\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias drone\n"
    "  IdentityFile {folder}/device\n",
    "tokens in the name of a key": "Host drone\n  IdentityFile {folder}/%n\n",
    "Match exec": 'Match host drone exec "test -d {folder}"\n  IdentityFile {folder}/device\n',
    "IdentityAgent": "Host drone\n  IdentityAgent {agent}\n",
    "IdentitiesOnly, the public part of a key of the agent's": (
        "Host drone\n  IdentitiesOnly yes\n  IdentityAgent {agent}\n  IdentityFile {folder}/locked.pub\n"
    ),
    "IdentitiesOnly, an encrypted key that the agent holds": (
        "Host drone\n  IdentitiesOnly yes\n  IdentityAgent {agent}\n  IdentityFile {folder}/bare/locked\n"
    ),
    "IdentitiesOnly, a key": "Host drone\n  IdentitiesOnly yes\n  IdentityFile {folder}/device\n",
    "a user certificate": (
        "Host drone\n  IdentityFile {folder}/bare/signed\n  CertificateFile {folder}/certificate.pub\n"
    ),
    "ProxyJump": "Host drone\n  ProxyJump near\n  IdentityFile {folder}/device\n",
    "two jump hosts": "Host drone\n  ProxyJump near,far\n  IdentityFile {folder}/device\n",
    "a jump host that is reached by another": (
        "Host far\n  ProxyJump near\nHost drone\n  ProxyJump far\n  IdentityFile {folder}/device\n"
    ),
    "ProxyCommand": "Host drone\n  ProxyCommand {python} {folder}/relay %h %p\n  IdentityFile {folder}/device\n",
    "a jump host that is reached by a ProxyCommand": (
        "Host near\n  ProxyCommand {python} {folder}/relay %h %p\n"
        "Host drone\n  ProxyJump near\n  IdentityFile {folder}/device\n"
    ),
    "ProxyCommand by ssh": "Host drone\n  ProxyCommand ssh -F {folder}/config -W %h:%p near\n"
    "  IdentityFile {folder}/device\n",
    "a key that is known by its name without a port": (
        "Host bare\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {folder}/no_port\n"
        "  IdentityFile {folder}/device\n"
    ),
    "a jump host of the same address": (
        "Host near\n  ProxyJump none\nHost same\n  HostName 127.0.0.1\n  HostKeyAlias near\n  Port {near}\n"
        "  IdentityFile {folder}/near\n  ProxyJump near\n"
    ),
    "%k in the name of a key": "Host drone\n  HostKeyAlias drone\n  IdentityFile {folder}/%k\n",
    "BindAddress": "Host drone\n  BindAddress 127.0.0.1\n  IdentityFile {folder}/device\n",
    "an agent that refuses a key": (
        "Host drone\n  IdentityAgent {folder}/refusing\n  IdentityFile {folder}/locked.pub\n"
        "  IdentityFile {folder}/device\n"
    ),
    "a certificate that the agent alone holds": "Host drone\n  IdentityAgent {folder}/certified\n",
    "a list of other keys that are revoked": (
        "RevokedHostKeys {folder}/others\nHost drone\n  IdentityFile {folder}/device\n"
    ),
    "ProxyJump none": "Host drone\n  ProxyJump none\n  IdentityFile {folder}/device\nHost *\n  ProxyJump nobody\n",
}
HOSTS = {
    "a name with capitals": "Drone", "settings of the canonical name": "dev", "a jump host of the same address": "same",
    "a key that is known by its name without a port": "bare",
}  # fmt: skip
KEEPS_OUT = {
    "IdentitiesOnly, and the agent's key is of no file": (
        "Host drone\n  IdentitiesOnly yes\n  IdentityAgent {agent}\n  IdentityFile {folder}/stranger\n",
        "login",
    ),
    "IdentityAgent none": ("Host drone\n  IdentityAgent none\n", "login"),
    "a certificate without its key": ("Host drone\n  CertificateFile {folder}/certificate.pub\n", "login"),
    "a jump host that does not let us in": (
        "Host near\n  IdentityFile {folder}/stranger\n  IdentitiesOnly yes\nHost drone\n  ProxyJump near\n", "login"
    ),
    "a jump host whose key is another": (
        "Host near\n  HostKeyAlias far\nHost drone\n  ProxyJump near\n", "changed_host_key"
    ),
    "a jump host whose key is not known": (
        "Host near\n  HostKeyAlias new\nHost drone\n  ProxyJump near\n", "unknown_host_key"
    ),
    "the device's key, behind a jump host": (
        "Host drone\n  ProxyJump near\n  HostKeyAlias far\n  IdentityFile {folder}/device\n", "changed_host_key"
    ),
    "a revoked key": ("RevokedHostKeys {folder}/sshd-device/host_ed25519.pub\n", "changed_host_key"),
    "a key of a revocation list": ("RevokedHostKeys {folder}/revoked\n", "changed_host_key"),
    "a list of revoked keys that is not there": ("RevokedHostKeys {folder}/absent\n", "changed_host_key"),
    "a ProxyCommand that is not there": ("Host drone\n  ProxyCommand no-such-program %h\n", "connection_failed"),
    "a device that the jump host does not reach": (
        "Host drone\n  ProxyJump near\n  Port {closed}\n  IdentityFile {folder}/device\n", "connection_failed"
    ),
    "an option that there is not": ("Host drone\n  Portt 22\n", "target"),
}  # fmt: skip


@pytest.mark.parametrize("case", LETS_IN)
def test_what_ssh_reaches_is_reached(lab: Lab, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    (lab.folder / "included").write_text(f"Host dro*\n  IdentityFile {lab.folder}/device\n")
    (lab.folder / "bare").mkdir(exist_ok=True)  # without the public part beside it
    for key in ("locked", "signed"):
        shutil.copy(lab.folder / key, lab.folder / "bare" / key)
    shutil.copy(lab.folder / "device", lab.folder / "drone")
    host = HOSTS.get(case, "drone")
    file = lab.write(LETS_IN[case])
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent")
    assert (ours(file, host), theirs(file, host)) == ("in", "in")


@pytest.mark.parametrize("case", KEEPS_OUT)
def test_what_ssh_does_not_reach_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text, code = KEEPS_OUT[case]
    file = lab.write(text, closed=free_port())
    monkeypatch.setenv("SSH_AUTH_SOCK", str(lab.agent) if case == "IdentityAgent none" else "/nonexistent")
    assert (ours(file), theirs(file)) == (code, "refused")


def test_tags_are_known_as_far_as_the_installed_ssh_knows_them(lab: Lab) -> None:
    file = lab.write("Match tagged lab\n  User nobody\nHost drone\n  IdentityFile {folder}/device\n")
    assert (ours(file) == "in") == (theirs(file) == "in")


def test_a_typed_key_has_its_certificate_beside_it(lab: Lab) -> None:
    with connect("drone", identity=lab.folder / "signed", config_file=lab.write("")) as connection:
        assert connection.run("echo in").ok


def test_a_loop_of_jump_hosts_is_refused(lab: Lab) -> None:
    """OpenSSH 9.2 starts one ssh after the other for this, without an end."""
    assert ours(lab.write("Host *\n  ProxyJump near\n")) == "target"


def test_without_a_configured_key_the_default_ones_are_offered(lab: Lab, own_home: Path) -> None:
    """Also with IdentitiesOnly, which is about the agent."""
    (own_home / ".ssh").mkdir()
    shutil.copy(lab.folder / "device", own_home / ".ssh" / "id_ed25519")
    assert ours(lab.write("Host drone\n  IdentitiesOnly yes\n")) == "in"


def test_a_release_travels_through_two_jump_hosts_with_an_agent_key(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(lab.agent))
    file = lab.write("Host drone\n  ProxyJump near,far\n")
    with connect("drone", config_file=file) as connection:
        assert install(connection, stand_in_payload("J", "through"), WheelSet(probe(connection).python, ())).release
        assert served_text(connection, "J") == "through"
        assert connection.transport_name == "loopback" and connection.endpoint.jump is not None
        with connection.again() as other:
            assert other.run("echo in").ok
    assert not list((lab.device.home / "quarl" / "policies" / "J" / "incoming").iterdir())


def test_a_jump_hosts_key_is_accepted_by_name(lab: Lab, own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (lab.folder / "known_hosts").read_text().splitlines()
    (own_home / ".ssh").mkdir()
    (own_home / ".ssh" / "known_hosts").write_text(
        "\n".join(line for line in lines if not line.startswith("near")) + "\n"
    )
    text = lab.write("Host drone\n  ProxyJump near\n  IdentityFile {folder}/device\n").read_text()
    text = text.replace(f"{lab.folder}/known_hosts", f"{own_home}/.ssh/known_hosts")
    (own_home / ".ssh" / "config").write_text(text)
    with pytest.raises(UnknownHostKeyError) as caught, connect("drone"):
        pass
    fingerprint = caught.value.next_step.rpartition(" ")[2]
    assert caught.value.next_step.endswith(f"quarl accept-host-key --target near --fingerprint {fingerprint}")
    assert cli.main(["accept-host-key", "--target", "near", "--fingerprint", fingerprint]) == 0
    assert cli.main(["reach", "--target", "drone"]) == 0
    assert cli.main(["accept-host-key", "--target", "drone"]) == 1, "it is reached, and shown"
    assert "SHA256:" in capsys.readouterr().err


def test_a_second_factor_is_named(lab: Lab, tmp_path: Path) -> None:
    more = "AuthenticationMethods publickey,password\nPasswordAuthentication yes\n"
    with openssh_server(tmp_path / "sshd", first=more) as server:
        with pytest.raises(SecondFactorError) as caught, server.connect():
            pass
        assert caught.value.values["methods"] == ["password"]
    with openssh_server(
        tmp_path / "other", first="AuthenticationMethods password\nPasswordAuthentication yes\n"
    ) as server:
        with pytest.raises(LoginError) as refused, server.connect():
            pass
        assert type(refused.value) is LoginError and any("password" in tried for tried in refused.value.values["tried"])


def test_two_keys_that_are_both_wanted(tmp_path: Path, lab: Lab) -> None:
    keys = (
        f"AuthorizedKeysFile {lab.folder}/device.pub {lab.folder}/near.pub\nAuthenticationMethods publickey,publickey\n"
    )
    with openssh_server(tmp_path / "sshd", first=keys) as server:
        file = lab.write("Host drone\n  Port {at}\n  HostKeyAlias both\n  UserKnownHostsFile {known}\n"
                         "  IdentityFile {folder}/device\n  IdentityFile {folder}/near\n",
                         at=server.port, known=tmp_path / "known")  # fmt: skip
        (tmp_path / "known").write_text(f"both {server.known_hosts.read_text().split(maxsplit=1)[1]}")
        assert (ours(file), theirs(file)) == ("in", "in")


@pytest.mark.parametrize(
    "setting", ["Ciphers chacha20-poly1305@openssh.com", "KexAlgorithms sntrup761x25519-sha512@openssh.com"]
)
def test_a_server_with_which_nothing_is_in_common(tmp_path: Path, setting: str) -> None:
    """TinySSH has that cipher alone."""
    with (
        openssh_server(tmp_path / "sshd", first=f"{setting}\n") as server,
        pytest.raises(IncompatibleServerError),
        server.connect(),
    ):
        pass


def test_a_server_that_opens_no_further_session(tmp_path: Path) -> None:
    with openssh_server(tmp_path / "sshd", first="MaxSessions 1\n") as server, server.connect() as connection:
        process = connection.start("cat")
        with pytest.raises(SessionLimitError):
            connection.run("true")
        process.close()


def test_two_sessions_are_enough(tmp_path: Path) -> None:
    with openssh_server(tmp_path / "sshd", first="MaxSessions 2\n") as server, server.connect() as connection:
        wheels = WheelSet(probe(connection).python, ())
        for text in ("one", "two"):
            assert install(connection, stand_in_payload("M", text), wheels).release
            assert served_text(connection, "M") == text


@pytest.mark.parametrize("program", ["/usr/sbin/nologin", "/bin/false"])
def test_a_user_without_a_shell(tmp_path: Path, program: str) -> None:
    with openssh_server(tmp_path / "sshd", first=f"ForceCommand {program}\n") as server, server.connect() as connection:
        for look in (probe, DeviceShell):
            with pytest.raises(UnsupportedDeviceError) as caught:
                look(connection)
            assert f"chsh -s /bin/sh {connection.endpoint.user}" in caught.value.next_step


def without_ssh(monkeypatch: pytest.MonkeyPatch, file: Path, host: str = "drone") -> Endpoint:
    monkeypatch.setattr("shutil.which", lambda program: None)
    return resolve(Target.parse(host), config_file=file)


def test_paramiko_reads_the_file_where_there_is_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(
        'Host drone\n  HostName 10.0.0.7\n  Port 2200 # the lab\n  IdentityFile "/a # b"\n  ProxyJump me@gate:23\n'
    )
    endpoint = without_ssh(monkeypatch, file)
    assert (endpoint.hostname, endpoint.port, endpoint.identity_files) == ("10.0.0.7", 2200, (Path("/a # b"),))
    assert endpoint.jump is not None and (endpoint.jump.hostname, endpoint.jump.port) == ("gate", 23)


@pytest.mark.parametrize(
    "text",
    ["Include other\n", "CanonicalizeHostname yes\n", "Match host x tagged y\n", "Match localnetwork 10.0.0.0/8\n"],
)
def test_what_only_ssh_understands_is_refused_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "config").write_text(f"Host *\n  User me\n{text}")
    with pytest.raises(TargetError):
        without_ssh(monkeypatch, tmp_path / "config")
