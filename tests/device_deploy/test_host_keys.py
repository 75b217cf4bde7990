"""known_hosts, read as OpenSSH wrote it: the constants below come from ssh-keygen 9.2."""

import base64
from pathlib import Path

import pytest

from quarl.device.deploy.errors import ChangedHostKeyError, UnknownHostKeyError
from quarl.device.deploy.handshake import verify_host_key
from quarl.device.deploy.hostkeys.known_hosts import Entry, HostKey, KnownHosts, Verdict, read_entries
from quarl.device.deploy.ssh_config import Endpoint
from quarl.device.deploy.target import Target

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIBRaXuokYNsWouEpAtDAjYmbi83shNHHwVtKYQu3p/r7"
OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAIBIgFGHBhTCJRz4Ffiyso1uVgXcZLScdUHplj3hoOwTO"
ECDSA = (
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEX0WzluE4cLDux/YnplZqsNpKzo+cMyhD2j0axh4guLApdDx3BpcDNg+5"
    "qFDsUbP794gFIQb+wsAYfto5xcLuc="
)
HASHED = "|1|3cvrvoPAGIb9qXVoyUBA/eC55ps=|fF9+ryukEtNbtF6V7meWDA4P4RY="  # [10.0.0.7]:2200
KEY = HostKey("ssh-ed25519", base64.b64decode(ED25519))
OTHER_KEY = HostKey("ssh-ed25519", base64.b64decode(OTHER))
ECDSA_KEY = HostKey("ecdsa-sha2-nistp256", base64.b64decode(ECDSA))


def known(tmp_path: Path, own: str = "", user: str = "") -> KnownHosts:
    (tmp_path / "own").write_text(own)
    (tmp_path / "user").write_text(user)
    return KnownHosts(tmp_path / "own", tmp_path / "user")


def test_fingerprint_is_what_ssh_keygen_prints() -> None:
    assert KEY.fingerprint == "SHA256:exq9F0e7ivgfFs6qBjcLxKFvX8KB1/UuSquuEVgKj/8"
    assert ECDSA_KEY.fingerprint == "SHA256:dGl75SdnyFVTDbH72JjqDlQ8Jd3qN64waJNg84hOQ7c"


@pytest.mark.parametrize(("names", "host", "matches"), [
    ("pi", "pi", True),
    ("pi", "PI", True),
    ("pi", "pi2", False),
    ("other,pi", "pi", True),
    ("*.local", "pi.local", True),
    ("*.local,!bad.local", "bad.local", False),
    ("pi?", "pi2", True),
    ("[10.0.0.7]:2200", "[10.0.0.7]:2200", True),
    ("[10.0.0.7]:2200", "10.0.0.7", False),
    ("10.0.0.7", "[10.0.0.7]:2200", False),
    (HASHED, "[10.0.0.7]:2200", True),
    (HASHED, "10.0.0.7", False),
    ("|1|broken", "pi", False),
])  # fmt: skip
def test_names(names: str, host: str, matches: bool) -> None:
    assert Entry(Path("f"), 1, names, KEY).matches(host) is matches


@pytest.mark.parametrize(("own", "user", "host", "key", "verdict"), [
    (f"pi ssh-ed25519 {ED25519}\n", "", "pi", KEY, Verdict.KNOWN),
    ("", f"drone ssh-ed25519 {ED25519} a comment\n", "drone", KEY, Verdict.KNOWN),
    (f"pi ssh-ed25519 {ED25519}\n", "", "pi", OTHER_KEY, Verdict.CHANGED),
    (f"pi ssh-ed25519 {ED25519}\n", "", "nobody", KEY, Verdict.UNKNOWN),
    # Offering a kind that was never recorded is no way around the recorded one.
    (f"pi ssh-ed25519 {ED25519}\n", "", "pi", ECDSA_KEY, Verdict.CHANGED),
    # A revoked key is refused even where it was accepted; an authority's line accepts nobody.
    (f"pi ssh-ed25519 {ED25519}\n", f"@revoked * ssh-ed25519 {ED25519}\n", "pi", KEY, Verdict.REVOKED),
    (f"@cert-authority * ssh-ed25519 {ED25519}\n", "", "pi", KEY, Verdict.UNKNOWN),
])  # fmt: skip
def test_verdicts(tmp_path: Path, own: str, user: str, host: str, key: HostKey, verdict: Verdict) -> None:
    hosts = known(tmp_path, own, user)
    assert hosts.check(host, key).verdict is verdict
    assert hosts.kinds("pi") == (["ssh-ed25519"] if own.startswith("pi ") else [])


def test_lines_that_cannot_be_read_accept_nobody(tmp_path: Path) -> None:
    hosts = known(tmp_path, f"pi\npi ssh-ed25519\npi ssh-ed25519 %%%\n# pi ssh-ed25519 {ED25519}\n\n\udcff".encode(
        errors="surrogateescape").decode(errors="replace"))  # fmt: skip
    assert hosts.check("pi", KEY).verdict is Verdict.UNKNOWN
    assert read_entries(tmp_path / "absent") == []


def test_accept_writes_our_file_only(tmp_path: Path) -> None:
    hosts = known(tmp_path, "# mine\n", "")
    hosts.accept("[10.0.0.7]:2200", KEY)
    assert hosts.check("[10.0.0.7]:2200", KEY).verdict is Verdict.KNOWN
    assert (tmp_path / "own").read_text() == f"# mine\n[10.0.0.7]:2200 ssh-ed25519 {ED25519}\n"
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "user").read_text() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "user"]


def test_replace_drops_the_old_key_of_that_host_alone(tmp_path: Path) -> None:
    hosts = known(tmp_path, f"pi ssh-ed25519 {ED25519}\ndrone ssh-ed25519 {ED25519}\n")
    hosts.accept("pi", OTHER_KEY, replace=True)
    assert hosts.check("pi", OTHER_KEY).verdict is Verdict.KNOWN
    assert hosts.check("pi", KEY).verdict is Verdict.CHANGED
    assert hosts.check("drone", KEY).verdict is Verdict.KNOWN


ENDPOINT = Endpoint(Target.parse("pi@10.0.0.7:2200"), "10.0.0.7", 2200, "pi", "[10.0.0.7]:2200")


def test_unknown_key_message_has_the_fingerprint_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(UnknownHostKeyError) as caught:
        verify_host_key(ENDPOINT, KEY, known(tmp_path))
    assert KEY.fingerprint in caught.value.message
    assert f"quarl accept-host-key --target pi@10.0.0.7:2200 --fingerprint {KEY.fingerprint}" in caught.value.next_step


def test_changed_key_message_is_loud_and_names_the_line(tmp_path: Path) -> None:
    hosts = known(tmp_path, f"\n[10.0.0.7]:2200 ssh-ed25519 {OTHER}\n")
    with pytest.raises(ChangedHostKeyError, match="HAS CHANGED") as caught:
        verify_host_key(ENDPOINT, KEY, hosts)
    assert f"{tmp_path / 'own'}:2" in caught.value.message
    assert "--replace" in caught.value.next_step


def test_changed_key_of_the_users_own_file_is_theirs_to_forget(tmp_path: Path) -> None:
    hosts = known(tmp_path, "", f"[10.0.0.7]:2200 ssh-ed25519 {OTHER}\n")
    with pytest.raises(ChangedHostKeyError) as caught:
        verify_host_key(ENDPOINT, KEY, hosts)
    assert f"ssh-keygen -f {tmp_path / 'user'} -R '[10.0.0.7]:2200'" in caught.value.next_step
