"""TARGET as people write it, and ~/.ssh/config."""

from pathlib import Path

import pytest

from quarl.device.deploy.errors import TargetError
from quarl.device.deploy.ssh_config import Endpoint, resolve
from quarl.device.deploy.target import Target


@pytest.mark.parametrize(("text", "user", "host", "port"), [
    ("local", None, "local", None),
    ("raspberrypi", None, "raspberrypi", None),
    ("pi@raspberrypi", "pi", "raspberrypi", None),
    ("pi@raspberrypi.local:2222", "pi", "raspberrypi.local", 2222),
    ("192.168.1.5:22", None, "192.168.1.5", 22),
    ("pi@[fe80::1%eth0]:2222", "pi", "fe80::1%eth0", 2222),
    ("[::1]", None, "::1", None),
    ("pi@fe80::1", "pi", "fe80::1", None),
    ("ssh://pi@host:22", "pi", "host", 22),
])  # fmt: skip
def test_target_forms(text: str, user: str | None, host: str, port: int | None) -> None:
    assert Target.parse(text) == Target(host, user, port)
    assert Target.parse(str(Target.parse(text))) == Target(host, user, port)


FORMS = ("pi@", "host:", "host:0", "host:65536", "host:abc", "[::1", "[::1]22", "-oProxyCommand=x", "a b",
         "pi@local", "local:22", "host;reboot", "pi@host:２２")  # fmt: skip
REFUSED = {
    **dict.fromkeys(FORMS, "user@host:port"),
    **dict.fromkeys(("", "  "), r"(?s)TARGET .*empty.*local, .*user@host:port.*TARGET=pi@raspberrypi"),
    "@arena": r"(?s)'@arena'.*next: .*make deploy TARGET=@arena",  # a group is for other commands
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_target_is_refused_by_the_forms(text: str) -> None:
    with pytest.raises(TargetError, match=REFUSED[text]):
        Target.parse(text)


DRONE = "Host drone\n HostName 10.0.0.7\n Port 2200\n User pi\n IdentityFile ~/k\n IdentitiesOnly yes\n"


def test_config_fills_what_was_not_typed(tmp_path: Path) -> None:
    file = tmp_path / "config"

    def resolved(target: str, text: str = DRONE, identity: Path | None = None) -> Endpoint:
        file.write_text(text)
        return resolve(Target.parse(target), identity, file)

    endpoint = resolved("drone")
    assert (endpoint.hostname, endpoint.port, endpoint.user) == ("10.0.0.7", 2200, "pi")
    assert endpoint.identity_files == (Path.home() / "k",) and endpoint.identities_only
    assert endpoint.host_key_name == "[10.0.0.7]:2200"
    typed = resolved("me@drone:22", identity=Path("/my-key"))  # which wins
    assert (typed.hostname, typed.port, typed.user) == ("10.0.0.7", 22, "me")
    assert (typed.identity, typed.identity_files) == (Path("/my-key"), (Path.home() / "k",))
    assert typed.host_key_name == "10.0.0.7"
    assert resolved("drone", f"{DRONE} HostKeyAlias the-drone\n").host_key_name == "the-drone"
    for setting in ("Port abc", "Port 0", f"Port {'9' * 5000}"):
        with pytest.raises(TargetError):
            resolved("drone", f"Host drone\n {setting}\n")
    file.unlink()
    with pytest.raises(TargetError, match="'~nobodyx/x'"):
        resolve(Target.parse("drone"), Path("~nobodyx/x"), file)
    bare = resolve(Target.parse("pi@host"), config_file=file)
    assert (bare.hostname, bare.port, bare.user) == ("host", 22, "pi")
    assert Path.home() / ".ssh" / "id_ed25519" in bare.identity_files
