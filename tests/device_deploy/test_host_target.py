"""TARGET as people write it, and ~/.ssh/config."""

from pathlib import Path

import pytest

from quarl.device.deploy.errors import TargetError
from quarl.device.deploy.ssh_config import resolve
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


@pytest.mark.parametrize(
    "text",
    ["", "pi@", "host:", "host:0", "host:65536", "host:abc", "[::1", "[::1]22", "-oProxyCommand=x", "a b",
     "pi@local", "local:22", "host;reboot", "pi@host:２２"],
)  # fmt: skip
def test_target_refusals_name_the_forms(text: str) -> None:
    with pytest.raises(TargetError, match="user@host:port"):
        Target.parse(text)


def config(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config"
    file.write_text(text)
    return file


def test_config_fills_what_was_not_typed(tmp_path: Path) -> None:
    file = config(
        tmp_path, "Host drone\n HostName 10.0.0.7\n Port 2200\n User pi\n IdentityFile ~/k\n IdentitiesOnly yes\n"
    )
    endpoint = resolve(Target.parse("drone"), config_file=file)
    assert (endpoint.hostname, endpoint.port, endpoint.user) == ("10.0.0.7", 2200, "pi")
    assert endpoint.identity_files == (Path.home() / "k",)
    assert endpoint.identities_only
    assert endpoint.host_key_name == "[10.0.0.7]:2200"


def test_what_was_typed_wins(tmp_path: Path) -> None:
    file = config(tmp_path, "Host drone\n HostName 10.0.0.7\n Port 2200\n User pi\n IdentityFile /config-key\n")
    endpoint = resolve(Target.parse("me@drone:22"), Path("/my-key"), file)
    assert (endpoint.hostname, endpoint.port, endpoint.user) == ("10.0.0.7", 22, "me")
    assert (endpoint.identity, endpoint.identity_files) == (Path("/my-key"), (Path("/config-key"),))
    assert endpoint.host_key_name == "10.0.0.7"


def test_host_key_alias(tmp_path: Path) -> None:
    file = config(tmp_path, "Host drone\n HostName 10.0.0.7\n HostKeyAlias the-drone\n")
    assert resolve(Target.parse("drone"), config_file=file).host_key_name == "the-drone"


@pytest.mark.parametrize("setting", ["Port abc", "Port 0", f"Port {'9' * 5000}"])
def test_a_setting_that_means_nothing_is_named(tmp_path: Path, setting: str) -> None:
    with pytest.raises(TargetError):
        resolve(Target.parse("drone"), config_file=config(tmp_path, f"Host drone\n {setting}\n"))
    with pytest.raises(TargetError, match="'~nobodyx/x'"):
        resolve(Target.parse("drone"), Path("~nobodyx/x"), tmp_path / "absent")


def test_no_config_at_all(tmp_path: Path) -> None:
    endpoint = resolve(Target.parse("pi@host"), config_file=tmp_path / "absent")
    assert (endpoint.hostname, endpoint.port, endpoint.user) == ("host", 22, "pi")
    assert Path.home() / ".ssh" / "id_ed25519" in endpoint.identity_files


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_target_is_called_empty(text: str) -> None:
    with pytest.raises(TargetError, match=r"(?s)TARGET .*empty.*local, .*TARGET=pi@raspberrypi"):
        Target.parse(text)


def test_a_group_is_for_other_commands() -> None:
    with pytest.raises(TargetError, match=r"(?s)'@arena'.*next: .*make deploy TARGET=@arena"):
        Target.parse("@arena")
