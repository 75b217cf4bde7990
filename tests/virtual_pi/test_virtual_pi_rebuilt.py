"""The image is rebuilt: other keys, an empty card. Whoever knew the old host key is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarl.cli import main as host_main
from quarl.device.deploy.connection import connect
from quarl.device.deploy.errors import ChangedHostKeyError
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.hostkeys.named_hosts import config_file
from quarl.device.deploy.ssh_config import resolve
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.image import ensure_image

pytestmark = pytest.mark.slow


def test_a_rebuilt_image_has_another_host_key(
    pi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pi.up()
    target = Target.parse(f"pi@{pi.name}")
    with pi.connect() as connection:
        connection.run("touch kept")
        before = connection.host_key_fingerprint
    other_user = tmp_path / "state-of-another" / "quarl"
    other_user.mkdir(parents=True)
    (other_user / "known_hosts").write_bytes(KnownHosts.of_user().own.read_bytes())

    before_build = ensure_image(print)
    key_before = before_build.host_key
    after_build = ensure_image(print, rebuild=True)
    assert after_build.build != before_build.build
    assert after_build.host_key != key_before
    with pi.connect() as connection:  # the running machine is not disturbed
        assert connection.run("ls kept").ok
    pi.stop()
    begun = pi.start()
    assert begun.new_card
    assert begun.host_key_replaced
    with pi.connect() as connection:  # who built it knows the new key
        assert connection.host_key_fingerprint != before
        assert not connection.run("ls kept", check=False).ok
        now = connection.host_key_fingerprint

    # Somebody who accepted the old key: told, nothing sent, and what to type.
    theirs = other_user / "known_hosts"
    stanza = config_file(pi.name).read_text().replace(str(KnownHosts.of_user().own), str(theirs))
    with (
        pytest.raises(ChangedHostKeyError, match="HAS CHANGED") as caught,
        connect(target, known_hosts=KnownHosts(theirs)),
    ):
        pass
    assert now in caught.value.message
    assert "Nothing was sent" in caught.value.message
    assert "--replace" in caught.value.next_step

    monkeypatch.setenv("XDG_STATE_HOME", str(other_user.parent))
    folder = config_file(pi.name).parent
    folder.mkdir()
    config_file(pi.name).write_text(stanza)
    command = ["accept-host-key", "--target", str(target), "--fingerprint", now]
    assert host_main(command) == 1
    assert "--replace" in capsys.readouterr().err
    assert host_main([*command, "--replace"]) == 0
    with connect(target) as connection:
        assert connection.run("true").ok
    assert resolve(target).host_key_name == running.host_key_alias(pi.name)
