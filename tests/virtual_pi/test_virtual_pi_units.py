"""What of the virtual Pi can be checked without starting it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from quarl.device.deploy.errors import ChangedHostKeyError
from quarl.device.deploy.handshake import verify_host_key
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts, Verdict
from quarl.device.deploy.hostkeys.named_hosts import config_file, unregister
from quarl.device.deploy.ssh_config import resolve
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import card, image, initrd, machine, programs, recipe, running, sources
from quarl.device.virtual_pi.__main__ import main
from quarl.device.virtual_pi.errors import BuildError, MachineNameError, MissingProgramsError, StartError
from quarl.device.virtual_pi.image import Image, give_to_user
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.device.virtual_pi.recipe import MachineKind
from tests.device_deploy.devices import needs_ssh

KEY_A = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g"
KEY_B = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICAfHh0cGxoZGBcWFRQTEhEQDw4NDAsKCQgHBgUEAwIB"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here reads or writes the user's own cache, state or ~/.ssh."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_another_recipe_has_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe.recipe_hash()
    assert len(before) == 12
    copy = tmp_path / "guest"
    shutil.copytree(recipe.GUEST_FILES, copy)
    monkeypatch.setattr(recipe, "GUEST_FILES", copy)
    assert recipe.recipe_hash() == before
    (copy / "rcS").write_text("#!/bin/sh\n")
    with_script = recipe.recipe_hash()
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "vim"))
    assert len({before, with_script, recipe.recipe_hash()}) == 3


def test_the_partition_table_by_hand() -> None:
    table = card.partition_table([(0x82, 1 << 20, 1 << 30), (0x83, 1 << 31, 1 << 30)])
    assert len(table) == 512
    assert table[510:] == b"\x55\xaa"
    # first entry at 446: type in byte 4, first sector in 8..11, sectors in 12..15; 1 MiB = 2048 sectors of 512
    assert table[446 + 4] == 0x82
    assert struct.unpack("<II", table[446 + 8 : 446 + 16]) == (2048, 2097152)
    assert table[462 + 4] == 0x83
    assert struct.unpack("<II", table[462 + 8 : 462 + 16]) == (4194304, 2097152)
    assert table[478:510] == bytes(32)
    assert card.CARD_BYTES.bit_count() == 1  # QEMU refuses other SD cards


def test_the_swap_header_by_hand() -> None:
    page = card.swap_header(1 << 30)
    assert page[-10:] == b"SWAPSPACE2"
    assert struct.unpack_from("<III", page, 1024) == (1, 262143, 0)  # 1 GiB in pages of 4 KiB, the last one


def test_modules_load_after_what_they_need() -> None:
    text = (
        "kernel/fs/ext4.ko: kernel/fs/jbd2.ko kernel/lib/crc16.ko\n"
        "kernel/fs/jbd2.ko:\nkernel/lib/crc16.ko:\n"
        "kernel/mmc/sdhci-iproc.ko: kernel/mmc/sdhci-pltfm.ko kernel/mmc/sdhci.ko\n"
        "kernel/mmc/sdhci-pltfm.ko: kernel/mmc/sdhci.ko\nkernel/mmc/sdhci.ko:\n"
    )
    order = initrd.load_order(["sdhci_iproc", "ext4"], initrd.parse_dependencies(text))
    assert [Path(file).stem for file in order] == ["sdhci", "sdhci-pltfm", "sdhci-iproc", "crc16", "jbd2", "ext4"]
    with pytest.raises(BuildError, match="dwc2"):
        initrd.load_order(["dwc2"], {})


def test_missing_packages_are_named_in_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"qemu-img", "cpio"}
    monkeypatch.setattr(shutil, "which", lambda program, path: program if program in there else None)
    with pytest.raises(MissingProgramsError) as caught:
        programs.require(programs.BUILDING, programs.RUNNING)
    packages = "mmdebstrap e2fsprogs kmod openssh-client qemu-system-arm"
    assert caught.value.next_step == f"sudo apt-get install --no-install-recommends {packages}"


DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates trixie
Components: main contrib
Signed-By: /k.gpg

Types: deb
Enabled: no
URIs: http://other.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://third.example/node
Suites: nodistro
Components: main
"""
ONE_LINE = """\
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian trixie main
deb http://mirror.example/debian bookworm-updates main # with a remark
"""


@pytest.mark.parametrize(
    ("file", "text", "options"),
    [("debian.sources", DEB822, "[signed-by=/k.gpg] "), ("debian.list", ONE_LINE, "")],
)
def test_sources_come_from_this_machines_apt(tmp_path: Path, file: str, text: str, options: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / file).write_text(text)
    assert sources.own_sources("bookworm", tmp_path) == [
        "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main",
        f"deb {options}http://mirror.example/debian bookworm-updates main",
    ]
    assert sources.own_sources("noble", tmp_path) == []


def test_no_address_of_a_mirror_stands_in_the_room() -> None:
    for path in Path(recipe.__file__).parent.rglob("*"):
        if path.suffix in (".py", "") and path.is_file():
            assert "debian.org" not in path.read_text(encoding="utf-8"), path


def test_without_root_the_message_says_why_and_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(BuildError) as caught:
        image.require_root()
    assert "needs root" in caught.value.message
    assert "Running the image needs no root" in caught.value.message
    assert caught.value.next_step.startswith("sudo ")


def test_accounts_have_no_password_that_fits(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    image.write_accounts(tmp_path)
    shadow = (tmp_path / "etc" / "shadow").read_text().splitlines()
    assert [line.split(":")[:2] for line in shadow] == [
        [name, "*"] for name in ("root", "sshd", "pi", "messagebus", "nobody")
    ]
    assert (tmp_path / "etc" / "shadow").stat().st_mode & 0o007 == 0
    assert "pi:x:1000:1000::/home/pi:/bin/bash" in (tmp_path / "etc" / "passwd").read_text()


def words_of(settings: MachineSettings, tmp_path: Path) -> list[str]:
    image = Image(tmp_path, "b1", 0, "6.1.0-1-arm64")
    return machine.command(settings, image, tmp_path / "a,b.qcow2", tmp_path / "s.log", 2222)


def test_the_default_machine_is_a_pi_3b(tmp_path: Path) -> None:
    words = words_of(MachineSettings(), tmp_path)
    pairs = list(itertools.pairwise(words))
    for pair in (("-cpu", "cortex-a53"), ("-smp", "4"), ("-m", "1024"), ("-machine", "virt")):
        assert pair in pairs
    assert "user,id=net,hostfwd=tcp:127.0.0.1:2222-:22" in words  # on loopback only, never to the network
    assert any("a,,b.qcow2" in word for word in words)  # QEMU's way to write a comma


def test_the_raspberry_pi_machine_has_its_own_card_and_console(tmp_path: Path) -> None:
    words = words_of(MachineSettings(MachineKind.RASPI3B), tmp_path)
    assert "raspi3b" in words
    assert str(tmp_path / "bcm2837-rpi-3-b.dtb") in words
    assert "root=/dev/mmcblk0p2" in words[words.index("-append") + 1]


def test_swap_and_clock_reach_the_guest() -> None:
    printed = machine.kernel_arguments(MachineSettings(swap=False, clock_unix=86400)).split()
    assert "quarl.swap=off" in printed
    assert "quarl.clock=86400" in printed


@pytest.mark.parametrize(("kind", "memory"), [(MachineKind.RASPI3B, 512), (MachineKind.VIRT, 64)])
def test_impossible_memory_is_refused(kind: MachineKind, memory: int) -> None:
    with pytest.raises(StartError, match=str(memory)):
        MachineSettings(kind, memory)


@pytest.mark.parametrize("name", ["local", "", "Pi", "../x", "a b", "-x", "a" * 40])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(MachineNameError):
        running.folder_of(name)


def test_a_registered_machine_is_a_host_by_name(tmp_path: Path) -> None:
    key = tmp_path / "with space" / "client"
    assert running.register("virtual", 40022, key, KEY_A) is False
    running.register("second", 40023, tmp_path / "b", KEY_B)
    endpoint = resolve(Target.parse("pi@virtual"))
    assert (endpoint.hostname, endpoint.port, endpoint.user) == ("127.0.0.1", 40022, "pi")
    assert endpoint.identity_files == (key,)
    assert endpoint.identities_only
    assert KnownHosts.of_user().kinds(endpoint.host_key_name) == ["ssh-ed25519"]
    assert resolve(Target.parse("root@virtual")).user == "root"
    unregister("virtual")
    assert resolve(Target.parse("pi@virtual")).hostname == "virtual"  # a name like any other again
    assert resolve(Target.parse("pi@second")).port == 40023
    entries = KnownHosts.of_user().entries("quarl-virtual-pi-second")
    assert {entry.names for entry in entries} == {"quarl-virtual-pi-second"}


@needs_ssh
def test_openssh_reads_the_stanza_as_we_do(tmp_path: Path) -> None:
    running.register("virtual", 40022, tmp_path / "with space" / "client", KEY_A)
    printed = subprocess.run(
        ["ssh", "-G", "-F", str(config_file("virtual")), "pi@virtual"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for line in ("hostname 127.0.0.1", "port 40022", "user pi", "stricthostkeychecking true"):
        assert line in printed
    assert f"identityfile {tmp_path}/with space/client" in printed


def test_while_it_runs_its_name_is_its_own(tmp_path: Path) -> None:
    """Signers are let in there without a question, so that the name must not lead elsewhere."""
    running.register("virtual", 40022, tmp_path / "client", KEY_A)
    own = Path.home() / ".ssh"
    own.mkdir(parents=True)
    (own / "config").write_text("Host virtual\n  HostName pi.example\n")
    assert resolve(Target.parse("pi@virtual")).hostname == "127.0.0.1"
    unregister("virtual")
    assert resolve(Target.parse("pi@virtual")).hostname == "pi.example"


def test_a_rebuilt_images_host_key_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    running.register("virtual", 40022, tmp_path / "a", KEY_A)
    old = tmp_path / "another user's known_hosts"
    old.write_bytes(KnownHosts.of_user().own.read_bytes())
    assert running.register("virtual", 40024, tmp_path / "a", KEY_B) is True
    alias = running.host_key_alias("virtual")
    new = KnownHosts.of_user().entries(alias)[0].key
    assert KnownHosts.of_user().check(alias, new).verdict is Verdict.KNOWN
    assert len(KnownHosts.of_user().entries(alias)) == 1
    # Whoever accepted the old one is not served silently by the new one.
    target = Target.parse("pi@virtual")
    with pytest.raises(ChangedHostKeyError, match="HAS CHANGED") as caught:
        verify_host_key(resolve(target), new, KnownHosts(old))
    assert "--replace" in caught.value.next_step


def test_a_machine_whose_process_is_gone_does_not_run(tmp_path: Path) -> None:
    folder = running.folder_of("virtual")
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        facts = {
            "name": "virtual",
            "kind": "virt",
            "settings": {"memory_mb": 1024, "swap": True, "clock_unix": None},
            "pid": sleeper.pid,
            "pid_started": running.read_start_time(sleeper.pid),
            "port": 40022,
            "build": "b1",
        }
        (folder / "machine.json").write_text(json.dumps(facts))
        assert running.find("virtual") is not None
        assert running.find("virtual").target == "pi@virtual"  # type: ignore[union-attr]
        # The same id at another time is another process, which must never be taken for the machine and killed.
        (folder / "machine.json").write_text(json.dumps({**facts, "pid_started": 1}))
        assert running.find("virtual") is None
        (folder / "machine.json").write_text('{"name": "virt')
        assert running.find("virtual") is None and running.all_running() == []
        (folder / "machine.json").write_text(json.dumps(facts))
        sleeper.kill()
        sleeper.wait()
    assert running.find("virtual") is None


def test_stopping_what_does_not_run_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 0
    assert "Nothing was running" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "machines": []}


def test_errors_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--machine", "raspi3b", "--memory", "2048"]) == 1
    assert "1024 MB" in capsys.readouterr().err
    assert main(["start", "--name", "local", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "virtual_pi_name"
    with pytest.raises(SystemExit) as usage:
        main(["start", "--clock", "yesterday"])
    assert usage.value.code == 2


def test_a_date_is_read_as_utc() -> None:
    from quarl.device.virtual_pi.__main__ import read_clock

    assert read_clock("1970-01-02") == 86400
    assert read_clock("1970-01-01T02:00+01:00") == 3600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give files away")
def test_what_root_builds_for_a_user_is_the_users_also_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "4321")
    monkeypatch.setenv("SUDO_GID", "4321")
    images = tmp_path / ".cache" / "quarl" / "virtual-pi" / "images"
    with pytest.raises(BuildError), give_to_user(images):
        images.mkdir(parents=True)
        (images / ".lock").touch()
        raise BuildError("the network is gone", "try again")
    made = [tmp_path / ".cache", *(tmp_path / ".cache").rglob("*")]
    assert len(made) == 5
    assert {path.stat().st_uid for path in made} == {4321}
    assert tmp_path.stat().st_uid == 0, "what was there before keeps its owner"
