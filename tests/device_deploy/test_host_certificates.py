"""Host certificates: a real sshd shows one that ssh-keygen made, and it is honoured as OpenSSH honours it."""

import base64
import subprocess
import time
from pathlib import Path

import pytest

from quarl.device.deploy.connection import connect
from quarl.device.deploy.errors import ChangedHostKeyError, HostError, UnknownHostKeyError
from quarl.device.deploy.handshake import verify_host_key
from quarl.device.deploy.hostkeys.certificates import HostCertificate
from quarl.device.deploy.hostkeys.known_hosts import HostKey, KnownHosts, Verdict
from quarl.device.deploy.ssh_config import Endpoint
from quarl.device.deploy.target import Target
from tests.device_deploy.devices import make_key, needs_sshd, openssh_server

pytestmark = needs_sshd
FOR_IT = ("-n", "127.0.0.1,pi.lab")


def certified(host_key: Path, authority: Path, *words: str) -> Path:
    """Have an authority sign a host's key, as an administrator does."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "pi", *words, f"{host_key}.pub"]
    subprocess.run(command, check=True, capture_output=True)
    return host_key.with_name(f"{host_key.name}-cert.pub")


def line(authority: Path, names: str = "127.0.0.1", marker: str = "@cert-authority") -> str:
    return f"{marker} {names} {authority.with_name(authority.name + '.pub').read_text()}"


def reached(root: Path, known: list[str], *words: str) -> str:
    """The fingerprint that counts after a connection to a server whose certificate was made with these words."""
    authority = root / "authority"

    def certify(host_key: Path) -> str:
        return f"HostCertificate {certified(host_key, authority, *words)}\n"

    (root / "known_hosts").write_text("".join(known))
    with openssh_server(root / "sshd", certify) as server:
        hosts, nothing = KnownHosts(root / "known_hosts"), root / "no-config"
        with connect(server.target, identity=server.identity, known_hosts=hosts, config_file=nothing) as connection:
            assert connection.run("echo in").stdout.strip() == "in"
            return connection.host_key_fingerprint


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_key(tmp_path / "authority")
    return tmp_path / "authority"


@pytest.mark.parametrize("names", ["127.0.0.1", "127.0.*,!127.0.0.2"])
def test_a_device_whose_key_an_authority_has_signed_is_let_in(tmp_path: Path, authority: Path, names: str) -> None:
    assert reached(tmp_path, [line(authority, names)], "-h", *FOR_IT).startswith("SHA256:")


@pytest.mark.parametrize(("words", "why"), [
    (("-h", "-n", "other.lab"), "it is for other.lab"),
    (("-h", *FOR_IT, "-V", "20200101:20210101"), "it holds from 2020-01-01 .* to 2021-01-01"),
    (("-h", *FOR_IT, "-V", "+1d:+2d"), "it holds from"),
    ((*FOR_IT,), "it is a user's certificate"),
])  # fmt: skip
def test_certificates_that_do_not_hold(tmp_path: Path, authority: Path, words: tuple[str, ...], why: str) -> None:
    with pytest.raises((ChangedHostKeyError, HostError), match=why) as caught:
        reached(tmp_path, [line(authority)], *words)
    assert "Nothing was sent" in caught.value.message and "ssh-keygen -h -s" in caught.value.next_step


@pytest.mark.parametrize(("vouches", "error", "message"), [
    ([("authority", "*.lab", "@cert-authority")], UnknownHostKeyError, None),
    ([("stranger", "127.0.0.1", "@cert-authority")], UnknownHostKeyError, None),
    *(  # revoked on every port, as it vouched on every port
        (
            [("authority", "127.0.0.1", "@cert-authority"), ("authority", names, "@revoked")],
            ChangedHostKeyError,
            "REVOKED",
        )
        for names in ("*", "127.0.0.1")
    ),
], ids=["of another host", "another", "revoked for all", "revoked for it"])  # fmt: skip
def test_an_authority_that_does_not_count_vouches_for_none(
    tmp_path: Path, authority: Path, vouches: list[tuple[str, str, str]], error: type[HostError], message: str | None
) -> None:
    make_key(tmp_path / "stranger")
    with pytest.raises(error, match=message):
        reached(tmp_path, [line(tmp_path / key, *words) for key, *words in vouches], "-h", *FOR_IT)


def test_the_key_itself_may_be_accepted_beside_its_certificate(tmp_path: Path, authority: Path) -> None:
    """Where no authority counts, a certificate is a key like any other."""
    make_key(tmp_path / "stranger")

    def certify(host_key: Path) -> str:
        return f"HostCertificate {certified(host_key, authority, '-h', *FOR_IT)}\n"

    with openssh_server(tmp_path / "sshd", certify) as server:
        own = server.known_hosts.read_text()
        server.known_hosts.write_text(own + line(tmp_path / "stranger"))
        with server.connect() as connection:
            assert connection.run("true").ok


def test_a_certificate_whose_signature_is_another_ones(tmp_path: Path, authority: Path) -> None:
    make_key(tmp_path / "host")
    file = certified(tmp_path / "host", authority, "-h", *FOR_IT)
    kind, encoded = file.read_text().split()[:2]
    whole = bytearray(base64.b64decode(encoded))
    assert HostCertificate.parse(kind, bytes(whole)).why_not("127.0.0.1") == ""
    assert "it holds from" not in HostCertificate.parse(kind, bytes(whole)).why_not("127.0.0.1", time.time() + 1e9)
    whole[-1] ^= 1
    assert "did not sign" in HostCertificate.parse(kind, bytes(whole)).why_not("127.0.0.1")
    for wrong in (b"", bytes(whole[:40])):
        with pytest.raises(ValueError):
            HostCertificate.parse(kind, wrong)


def test_an_authority_that_signs_with_sha1_vouches_for_none(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-qt", "rsa", "-N", "", "-f", str(tmp_path / "authority")], check=True)
    assert reached(tmp_path, [line(tmp_path / "authority")], "-h", *FOR_IT).startswith("SHA256:")
    (tmp_path / "sshd").rename(tmp_path / "before")
    with pytest.raises(ChangedHostKeyError, match="SHA-1"):
        reached(tmp_path, [line(tmp_path / "authority")], "-h", "-t", "ssh-rsa", *FOR_IT)


@pytest.mark.parametrize("what", ["serial: 7", "id: pi", "authority", "nothing"])
def test_a_revocation_list_counts_for_certificates(tmp_path: Path, authority: Path, what: str) -> None:
    make_key(tmp_path / "host")
    file = certified(tmp_path / "host", authority, "-h", "-z", "7", *FOR_IT)
    kind, encoded = file.read_text().split()[:2]
    certificate = HostCertificate.parse(kind, base64.b64decode(encoded))
    (tmp_path / "what").write_text(f"{what}\n" if ":" in what else "serial: 8\n")
    words = [f"{authority}.pub"] if what == "authority" else ["-s", f"{authority}.pub", str(tmp_path / "what")]
    subprocess.run(["ssh-keygen", "-qkf", str(tmp_path / "revoked"), *words], check=True)
    (tmp_path / "known_hosts").write_text(line(authority))
    target = Target("127.0.0.1")
    endpoint = Endpoint(target, "127.0.0.1", 22, "pi", "127.0.0.1", revoked_keys=tmp_path / "revoked")
    key = HostKey(certificate.kind, certificate.blob, certificate)
    if what == "nothing":
        assert verify_host_key(endpoint, key, KnownHosts(tmp_path / "known_hosts")).verdict is Verdict.KNOWN
    else:
        with pytest.raises(ChangedHostKeyError):
            verify_host_key(endpoint, key, KnownHosts(tmp_path / "known_hosts"))
