"""The only verifier, on_device/verify.sh, run by itself: what is signed and accepted starts, and nothing else does."""

import base64
import binascii
import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.device.deploy.records import format_record
from quarl.device.deploy.shell import VERIFIER
from quarl.device.deploy.signing.keys import SigningKey, ensure_key
from tests.device_deploy import devices
from tests.device_deploy.conftest import link_programs
from tests.device_deploy.devices import let_sign, needs_ssh
from tests.namespaces import own

pytestmark = needs_ssh
SHELLS = [name for name in ("dash", "busybox", "bash") if shutil.which(name)]
BUSYBOX = "cat chmod find grep head id ls mkdir mv rm sed sha256sum sync tr uname"
STARTER = """#!/bin/sh
echo "argv $*"
for file in "$QUARL_CODE" "$QUARL_AGENT" "$QUARL_PACK"; do [ -z "$file" ] || cat "$file"; done
"""
CODE = {"run-agent": STARTER, "lib/quarl.zip": "the code\n", "bundle/a.bin": "x" * 3000, "bundle/manifest.json": "{}"}
PROGRAM = {"run-agent": STARTER, "lib/policy-agent": "the program\n", "bundle/policy.pack": "the pack\n"}
FIRST, SECOND, SENT = "releases/0001-aaaa", "releases/0002-bbbb", "incoming/0003-cccc"


class Pi:
    """A home folder with releases, root's folder beside it, and a shell that verifies."""

    def __init__(self, root: Path, shell: str) -> None:
        """Lay it out in a folder."""
        self.root, self.home, self.etc = root, root / "home", root / "etc"
        self.quarl, self.shell = self.home / "quarl", [str(shutil.which(shell)), *["sh"] * (shell == "busybox")]
        self.trust, self.policy = self.quarl / "trust", self.quarl / "policies" / "P"
        self.accepted, self.key = self.trust / "accepted", devices.signing_key()
        self.environment = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        if shell == "busybox":  # and its programs
            (root / "bin").mkdir()
            for name in BUSYBOX.split():
                (root / "bin" / name).symlink_to(self.shell[0])
            for name in ("ssh-keygen", "flock"):
                (root / "bin" / name).symlink_to(str(shutil.which(name)))
            self.environment["PATH"] = str(root / "bin")
        (root / "verify.sh").write_text(VERIFIER.read_text().replace("/etc/quarl", str(self.etc)))
        let_sign(self.home)
        self.said = ""

    def lay(self, place: str, files: dict[str, str] = CODE, key: SigningKey | None = None, **values: str | int) -> Path:
        """A signed release, which is accepted where it is not an incoming one; its serial is its number."""
        key, folder = key or self.key, self.policy / place
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        known: dict[str, str | int]
        machine = os.uname().machine
        known = {"policy": "P", "serial": int(folder.name[:4]), "class": f"any/{machine}", "signer": key.fingerprint}
        sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
        record = format_record(known | values, {}, sums).encode()
        (folder / "release").write_bytes(record)
        (folder / "release.sig").write_bytes(key.sign(record))
        if "releases" in place:
            self.accept(f"P {known['serial']}", f"P/{folder.name} {hashlib.sha256(record).hexdigest()}")
        return folder

    def accept(self, *lines: str) -> None:
        with self.accepted.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def let(self, folder: Path, *keys: SigningKey) -> None:
        """Write a list of signers."""
        folder.mkdir(exist_ok=True)
        lines = [f'release@quarl namespaces="quarl-release" {key.public}\n' for key in keys]
        (folder / "allowed_signers").write_text("".join(lines))

    def meanwhile(self, command: str, program: str = "ssh-keygen") -> None:
        """Have something done while the signature is verified, or before another program."""
        tool, real = self.root / "meanwhile" / program, shutil.which(program)
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\n{command}\nexec {real} "$@"\n')
        tool.chmod(0o755)
        self.environment["PATH"] = f"{tool.parent}:{self.environment['PATH']}"

    def verify(self, mode: str, place: str | Path = FIRST, *words: str, inside: tuple[str, ...] = ()) -> str:
        """The code of the one line that is printed, ``ok`` or why not; the status is that of the code."""
        words = words if mode == "loop" else (str(self.policy / place), *words)
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        command = [*inside, "env", "-i", *variables, *self.shell, str(self.root / "verify.sh"), mode, "P", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said, self.errors = process.communicate(timeout=60)
        greeting, _, rest = self.said.partition("\n")
        code = greeting.split(" ")[1] if greeting.startswith("quarl-launch ") else ""
        told = process.returncode, self.said, self.errors
        assert mode == "loop" or process.returncode == ({"ok": 0, "no-space": 74, "hindered": 74}.get(code, 1)), told
        assert self.said.count("quarl-launch ") == (mode != "loop") and (mode in ("start", "loop") or not rest), told
        for copies in (Path("/dev/shm"), self.quarl / "run"):
            assert not list(copies.glob(f"quarl.{process.pid}.*"))
        return code


@pytest.fixture(params=SHELLS)
def pi(request: pytest.FixtureRequest, tmp_path: Path) -> Pi:
    """A device with a release that may start."""
    made = Pi(tmp_path, request.param)
    made.lay(FIRST)
    return made


@pytest.fixture
def dash(tmp_path: Path) -> Pi:
    """One whose shell is the quickest: what is asked does not depend on it."""
    made = Pi(tmp_path, SHELLS[0])
    made.lay(FIRST)
    return made


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return ensure_key(tmp_path_factory.mktemp("keys"), "stranger")


def test_a_release_starts_with_what_was_verified(pi: Pi) -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    for mode in ("record", "check"):
        assert pi.verify(mode) == "ok"
    assert pi.verify("start", FIRST, "--threads=2", "two words") == "ok"
    assert pi.said.splitlines()[1:] == [f"argv --threads=2 two words --manifest={digest}", "the code"]
    assert pi.verify("start", pi.lay(SECOND, PROGRAM)) == "ok"
    assert pi.said.splitlines()[1:] == ["argv ", "the program", "the pack"]
    pi.lay(SENT)
    assert pi.verify("check", SENT) == "ok"
    (pi.policy / FIRST / "mark.json").write_text("{}")
    assert pi.verify("check") == "ok"


def test_a_loop_starts_by_its_settings_and_leaves_an_interrupted_trial(pi: Pi) -> None:
    pi.lay(SECOND, {**CODE, "lib/quarl.zip": "newer\n"})
    current, trial = pi.policy / "current", pi.policy / "trial"
    assert pi.verify("loop") == "" and "no release serves" in pi.errors
    current.symlink_to(SECOND)
    assert pi.verify("loop") == "" and "no settings" in pi.errors
    (pi.quarl / "services").mkdir()
    (pi.quarl / "services" / "P.settings").write_text("unit x\nargument --rate=20\nargument --fallback=1 2\n")
    trial.symlink_to(FIRST)
    (pi.quarl / "lock").touch()
    started = f"argv loop --socket={pi.quarl}/run/P.sock --rate=20 --fallback=1 2 --manifest="
    with (pi.quarl / "lock").open() as lock:  # who deploys is at work
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pi.verify("loop") == "" and trial.is_symlink()
        assert pi.said.startswith(started) and pi.said.endswith("newer\n")
    only_to_write = '[ "$2" != 9 ] || grep -q "^flags:.*2$" /proc/self/fdinfo/9 || exit 65'
    pi.meanwhile(only_to_write, "flock")  # as on NFS
    assert pi.verify("loop") == "" and pi.said.startswith(started) and pi.said.endswith("the code\n")
    assert not os.path.lexists(trial) and current.readlink() == Path(FIRST)


Tamper = Callable[[Pi, Path], object]


def test_older_releases_start_with_their_launcher_until_root_has_a_floor(pi: Pi) -> None:
    """So that it goes on serving after a reboot, and after a newer one has failed its trial."""
    (pi.policy / "releases" / "0000-old").mkdir()
    (pi.policy / "releases" / "0000-old" / "release.json").write_text("{}")
    (pi.policy / "current").symlink_to("releases/0000-old")
    (pi.quarl / "services").mkdir()
    (pi.quarl / "services" / "launch.py").write_text("import sys; print('launched', *sys.argv[1:])")
    if (pi.root / "bin").exists():
        (pi.root / "bin" / "python3").symlink_to(sys.executable)
    pi.verify("loop")
    assert pi.said == "launched P\n", pi.errors
    pi.etc.mkdir()
    (pi.etc / "floor").touch()
    pi.verify("loop")
    assert pi.said == "" and "0000-old" in pi.errors


def test_a_system_without_ssh_keygen_starts_nothing_unverified(dash: Pi) -> None:
    """As one with dropbear alone."""
    link_programs(dash.root / "few")
    (dash.root / "few" / "ssh-keygen").unlink()
    dash.environment["PATH"] = str(dash.root / "few")
    for mode in ("record", "check", "start"):
        assert dash.verify(mode) == "unsupported"


@pytest.mark.parametrize("name", ["0001-aaaa\nP 1\nx", "0001-aaaa x", "..", "0001-aaaa\\"])
def test_a_release_has_a_name_of_ours(pi: Pi, name: str) -> None:
    (pi.policy / FIRST).rename(pi.policy / "releases" / name) if name != ".." else None
    assert pi.verify("check", f"releases/{name}") == "trust"


def append(name: str) -> Tamper:
    return lambda pi, folder: (folder / name).write_text((folder / name).read_text() + "#")


def add(name: str) -> Tamper:
    return lambda pi, folder: (folder / name).write_text("x")


def in_place(name: str, make: Callable[[Path, Path], object]) -> Tamper:
    def tamper(pi: Pi, folder: Path) -> None:
        (folder / name).rename(pi.root / "moved")
        make(folder / name, pi.root / "moved")

    return tamper


def changed(pi: Pi, folder: Path, key: SigningKey, **values: str | int) -> None:
    """Signed again and accepted, since it is the signature that is asked."""
    pi.lay(str(folder.relative_to(pi.policy)), CODE, key, **values)


def sign_as(purpose: str) -> Tamper:
    def tamper(pi: Pi, folder: Path) -> None:
        record, key = folder / "release", str(pi.key.file)
        (folder / "release.sig").unlink()
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", purpose, "-f", key, record], check=True)

    return tamper


def forget(pi: Pi, folder: Path) -> None:
    pi.accepted.write_text("P 1\n")


FILES = {
    "artifact": (append("bundle/a.bin"), "bundle/a.bin differs"),
    "manifest": (append("bundle/manifest.json"), "bundle/manifest.json differs"),
    "code": (append("lib/quarl.zip"), " differs"),
    "starter": (append("run-agent"), "run-agent differs"),
    "huge": (lambda pi, folder: os.truncate(folder / "bundle/a.bin", 1 << 30), "bundle/a.bin differs"),
    "added": (add("lib/json.py"), "lib/json.py does not belong"),
    "hidden": (add("lib/.json.py"), "lib/.json.py does not belong"),
    "back slash": (add("lib/\\c"), "does not belong"),
    "line break": (add("lib/quarl.zip\nrelease"), "line break"),
    "link": (in_place("bundle/a.bin", lambda path, moved: path.symlink_to(moved)), "bundle/a.bin is a link"),
    "link of code": (in_place("lib/quarl.zip", lambda path, moved: path.symlink_to(moved)), "lib/quarl.zip is a link"),
    "folder": (in_place("bundle/a.bin", lambda path, moved: path.mkdir()), "bundle/a.bin"),
    "fifo": (in_place("bundle/a.bin", lambda path, moved: os.mkfifo(path)), "bundle/a.bin is a special file"),
    "missing": (in_place("bundle/a.bin", lambda path, moved: None), "bundle/a.bin is missing"),
    "no starter": (in_place("run-agent", lambda path, moved: None), "run-agent is missing"),
}
RECORDS = {
    "record changed": (append("release"), "trust", "changed"),
    "record a link": (in_place("release", lambda path, moved: path.symlink_to(moved)), "damaged", "release is a link"),
    "signature huge": (lambda pi, folder: os.truncate(folder / "release.sig", 1 << 21), "damaged", "sig is too large"),
    "record huge": (lambda pi, folder: os.truncate(folder / "release", 1 << 21), "damaged", "release is too large"),
    "record removed": (in_place("release", lambda path, moved: None), "damaged", "release is missing"),
    "of an older version": (in_place("release", lambda path, moved: moved.rename(f"{path}.json")), "old", "older"),
    "signature removed": (in_place("release.sig", lambda path, moved: None), "trust", "not signed"),
    "signature empty": (in_place("release.sig", lambda path, moved: path.touch()), "trust", "changed"),
    "for another purpose": (sign_as("git"), "trust", "changed"),
    "not accepted": (forget, "trust", FIRST[9:]),
    "accepted is damaged": (lambda pi, folder: pi.accepted.write_bytes(b"\0\xff\n"), "trust", "accepted"),
    "accepted is empty": (lambda pi, folder: pi.accepted.write_text(""), "trust", "accepted"),
    "accepted is missing": (lambda pi, folder: pi.accepted.unlink(), "trust", "accepted"),
    "accepted is a folder": (lambda pi, folder: (pi.accepted.unlink(), pi.accepted.mkdir()), "trust", "folder"),
    "nobody": (lambda pi, folder: (pi.trust / "allowed_signers").unlink(), "trust", "names no key"),
    "revoked": (lambda pi, folder: (pi.trust / "revoked").write_text(pi.key.public), "trust", "revoked"),
    "another class": (lambda pi, folder: (pi.trust / "device_class").write_text("rover"), "trust", "'rover/"),
    "signed for one": (lambda pi, folder: changed(pi, folder, pi.key, **{"class": "rover/x"}), "trust", "'rover/x'"),
    "another policy": (lambda pi, folder: changed(pi, folder, pi.key, policy="Q"), "trust", "'Q'"),
    "two policies": (lambda pi, folder: changed(pi, folder, pi.key, policy="Q Q"), "trust", "'Q Q'"),
    "another signer": (lambda pi, folder: changed(pi, folder, pi.key, signer="SHA256:x"), "trust", "'SHA256:x'"),
    "no serial": (lambda pi, folder: changed(pi, folder, pi.key, serial="1x"), "damaged", "serial"),
}


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_not_the_records(pi: Pi, what: str) -> None:
    tamper, named = FILES[what]
    tamper(pi, pi.policy / FIRST)
    for mode in ("check", "start"):
        assert pi.verify(mode) == "damaged" and named in pi.said, pi.said
    assert pi.verify("record") == "ok"


@pytest.mark.parametrize("what", ["program", "pack", "pack missing", "pack huge"])
def test_files_of_an_agent_without_python(pi: Pi, what: str) -> None:
    folder = pi.lay(SECOND, PROGRAM)
    if what == "pack missing":
        (folder / "bundle/policy.pack").unlink()
    elif what == "pack huge":
        os.truncate(folder / "bundle/policy.pack", 1 << 30)
    else:
        append({"program": "lib/policy-agent", "pack": "bundle/policy.pack"}[what])(pi, folder)
    assert [pi.verify(mode, SECOND) for mode in ("check", "start")] == ["damaged", "damaged"]
    assert "bundle/policy.pack" in pi.said or what == "program"


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_is_not_to_be_believed(pi: Pi, what: str) -> None:
    tamper, code, named = RECORDS[what]
    tamper(pi, pi.policy / FIRST)
    for mode in ("record", "check", "start"):
        assert pi.verify(mode) == code and named in pi.said, pi.said
    assert "argv" not in pi.said


def test_a_stranger_who_says_so_and_one_who_pretends(pi: Pi, stranger: SigningKey) -> None:
    for values in ({}, {"signer": pi.key.fingerprint}):
        changed(pi, pi.policy / FIRST, stranger, **values)
        assert pi.verify("check") == "trust" and stranger.fingerprint in pi.said


def test_an_older_release_sent_again_or_in_the_place_of_a_newer_one(pi: Pi) -> None:
    pi.lay(SECOND)
    shutil.copytree(pi.policy / FIRST, pi.policy / SENT)
    assert pi.verify("record", SENT) == "trust" and "serial is 1, and 2" in pi.said
    shutil.rmtree(pi.policy / SECOND)
    shutil.copytree(pi.policy / FIRST, pi.policy / SECOND)
    assert pi.verify("start", SECOND) == "trust" and SECOND[9:] in pi.said
    assert pi.verify("start", FIRST) == "ok", "among accepted ones everybody may go back"
    pi.accept("garbage", "P 1")
    assert pi.verify("record", SENT) == "trust", "the highest line counts"
    for lowers, code in ((1, "trust"), (2, "ok"), (3, "trust")):
        shutil.rmtree(pi.policy / SENT)
        pi.lay(SENT, serial=1, lowers=lowers)
        assert pi.verify("record", SENT) == code, "a lower serial, signed for this device's last alone"


def test_a_link_to_elsewhere(pi: Pi) -> None:
    """Whole, rightly signed and accepted, there."""
    current = pi.policy / "current"
    shutil.copytree(pi.quarl, pi.root / "quarl", symlinks=True)
    shutil.copytree(pi.policy, pi.policy.with_name("Q"))
    for target in (pi.root / "quarl/policies/P" / FIRST, pi.policy.with_name("Q") / FIRST, pi.policy / "releases"):
        current.symlink_to(target)
        assert pi.verify("start", "current") == "trust" and str(target) in pi.said
        current.unlink()
    current.symlink_to("nowhere")
    assert pi.verify("start", "current") == "damaged"
    current.unlink()
    current.symlink_to(FIRST)
    assert pi.verify("start", "current") == "ok"
    assert pi.verify("check", "../Q/" + FIRST) == "trust"


def test_code_that_is_there_only_while_it_is_copied(dash: Pi) -> None:
    """Its record does not name it, and when the folder is compared it is gone."""
    files = {"run-agent": STARTER, "bundle/a.bin": "x"}
    code = dash.lay(SECOND, files) / "lib" / "quarl.zip"
    dash.meanwhile(f"rm -f {code}")
    code.parent.mkdir()
    code.write_text("mine\n")
    assert dash.verify("start", SECOND) == "ok" and "mine" not in dash.said


LOOSE = {
    "the list": ("trust/allowed_signers", 0o666),
    "the list, by the group": ("trust/allowed_signers", 0o664),
    "the revoked": ("trust/revoked", 0o622),
    "the class": ("trust/device_class", 0o602),
    "what was accepted": ("trust/accepted", 0o620),
    "its folder": ("trust", 0o777),
    "a folder above": (".", 0o775),
    "one that others share": (".", 0o1777),
    "the home folder": ("..", 0o775),
    "of another user": ("trust/allowed_signers", 0o4600),
}


@pytest.mark.parametrize("what", LOOSE)
def test_a_list_that_others_may_write_is_not_believed(dash: Pi, what: str) -> None:
    name, mode = LOOSE[what]
    path = (dash.quarl / name).resolve()
    for file in ("revoked", "device_class"):
        (dash.trust / file).touch()
    assert dash.verify("check") == "ok"
    if mode & 0o5000:  # root's alone may be shared with others, as /tmp is
        if os.geteuid() != 0:
            pytest.skip("only root gives a file away")
        os.chown(path, 1, -1)
    path.chmod(mode & 0o1777)
    assert dash.verify("record") == "trust" and f"{path} " in dash.said
    if os.geteuid() == 0:
        path.chmod(0o1777 if path.is_dir() else 0o644)
        os.chown(path, 0, -1)
        assert dash.verify("record") == "ok"


def test_lists_that_are_no_files(dash: Pi) -> None:
    for name in ("allowed_signers", "revoked"):
        path = dash.trust / name
        content = path.read_text() if path.exists() else ""
        for make in (lambda path: path.symlink_to("/dev/null"), Path.mkdir, os.mkfifo):
            path.unlink(missing_ok=True)
            make(path)
            assert dash.verify("record") == "trust" and str(path) in dash.said
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_text(content)
    assert dash.verify("record") == "ok"


@pytest.mark.parametrize(
    "line",
    ['release@quarl namespaces="git" {}', 'someone@quarl namespaces="quarl-release" {}', "# release@quarl {}", ""],
)
def test_a_line_that_lets_a_key_sign_other_things_lets_it_sign_no_release(dash: Pi, line: str) -> None:
    (dash.trust / "allowed_signers").write_text(line.format(dash.key.public) + "\n")
    assert dash.verify("record") == "trust" and ("names no key" in dash.said or dash.key.fingerprint in dash.said)


def test_roots_lists_alone_count(pi: Pi, stranger: SigningKey) -> None:
    pi.let(pi.etc, stranger)
    assert pi.verify("start") == "trust" and str(pi.etc) in pi.said
    pi.let(pi.etc, pi.key)
    pi.let(pi.trust, stranger)
    (pi.trust / "revoked").write_text(pi.key.public)
    (pi.trust / "device_class").write_text("rover")
    assert pi.verify("start") == "ok"
    for name, text in (("revoked", pi.key.public), ("device_class", "drone")):
        (pi.etc / name).write_text(text)
        assert pi.verify("start") == "trust" and (name in pi.said or "drone" in pi.said)
        (pi.etc / name).unlink()
    (pi.etc / "allowed_signers").chmod(0o666)
    assert pi.verify("start") == "trust" and str(pi.etc / "allowed_signers") in pi.said


@pytest.mark.parametrize(
    ("name", "code"), [("", "trust"), ("floor", "hindered"), ("revoked", "hindered"), ("device_class", "trust")]
)
def test_what_root_hides_from_the_user_is_not_taken_for_absent(dash: Pi, name: str, code: str) -> None:
    inside = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    dash.let(dash.etc, dash.key)
    (dash.etc / name).touch()
    assert dash.verify("check", inside=inside) == "ok"
    (dash.etc / name).chmod(0)
    assert dash.verify("check", inside=inside) == code
    (dash.etc / name).chmod(0o700)


def test_roots_floor_stops_an_older_release_whatever_the_user_accepts(pi: Pi) -> None:
    """Who can write the user's file adds a line, and an older one, rightly signed, would start."""
    old = hashlib.sha256((pi.policy / FIRST / "release").read_bytes()).hexdigest()
    pi.let(pi.etc, pi.key)
    pi.lay(SECOND)
    shutil.rmtree(pi.policy / SECOND)
    shutil.copytree(pi.policy / FIRST, pi.policy / SECOND)
    assert pi.verify("start", SECOND) == "trust"
    pi.accept(f"P/{SECOND[9:]} {old}", "P 0")
    assert pi.verify("start", SECOND) == "ok", "the user's own word"
    for floor in ("P 2\n", "Q 9\nP 2", "P 2\nP 1\n"):
        (pi.etc / "floor").write_text(floor)
        assert pi.verify("start", SECOND) == "trust" and "serial is 1" in pi.said, floor
        assert pi.verify("check", pi.lay(SENT, serial=1)) == "trust"
    for floor in ("P 1\n", "Q 9\n", ""):
        (pi.etc / "floor").write_text(floor)
        assert pi.verify("start", SECOND) == "ok", floor
    (pi.etc / "floor").write_text("P two\n")
    assert pi.verify("start", SECOND) == "trust" and "floor" in pi.said
    (pi.etc / "floor").unlink()
    (pi.etc / "floor").symlink_to("/dev/null")
    assert pi.verify("start", SECOND) == "trust" and "floor" in pi.said


READ_ONLY, NOEXEC = (f'mount -o remount,bind,{option} "{{}}"' for option in ("ro", "noexec"))


@pytest.mark.parametrize(("memory", "home", "code"), [
    ("rw", READ_ONLY, "ok"),
    ("rw,noexec", "true", "ok"),
    ("ro", "true", "ok"),
    ("rw,size=4k", "true", "ok"),
    ("ro", READ_ONLY, "no-space"),
    ("rw,size=4k", READ_ONLY, "no-space"),
    ("rw", NOEXEC, "ok"),
    ("rw,noexec", NOEXEC, "unsupported"),
    ("rw,noexec", READ_ONLY, "unsupported"),
])  # fmt: skip
def test_copies_need_no_room_on_the_disk(pi: Pi, memory: str, home: str, code: str) -> None:
    starts = {"run-agent": '#!/bin/sh\nexec "$QUARL_AGENT"\n', "lib/policy-agent": "#!/bin/sh\necho on\n"}
    pi.lay(SECOND, {**PROGRAM, **starts})
    mounts = f'mount -t tmpfs -o {memory} tmpfs /dev/shm; mount --bind "{pi.home}" "{pi.home}"; {home}; exec "$@"'
    mounts = mounts.format(pi.home)
    assert pi.verify("start", SECOND, inside=(*own("mount"), "sh", "-ec", mounts, "sh")) == code
    assert code != "ok" or pi.said.endswith("\non\n")
    assert not list(pi.quarl.glob("run/*"))


def test_copies_of_a_verifier_that_was_killed_are_swept(pi: Pi) -> None:
    """One that lives is known by its lock, since /dev/shm may be shared with another container's processes."""
    left = [Path("/dev/shm/quarl.2147483647.1"), pi.quarl / "run" / "quarl.2147483647.1"]
    alive, other = pi.quarl / "run" / "quarl.2147483647.2", pi.quarl / "run" / "quarl.sock"
    for path in (*left, alive, other):
        path.mkdir(parents=True)
        (path / "policy-agent").touch()
    mounts = 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"'
    with (alive / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pi.verify("check", inside=(*own("mount"), "sh", "-c", mounts, "sh")) == "ok"
        assert not left[1].exists() and alive.exists() and other.exists()
    assert pi.verify("check") == "ok" and not left[0].exists()


@pytest.mark.parametrize("same_number", [False, True])
def test_containers_that_share_memory_leave_each_others_copies(pi: Pi, same_number: bool) -> None:
    """The number of a process in one says nothing in another."""
    container = (str(shutil.which("unshare")), *own("pid")[1:], "--fork")
    inside = container if same_number else ()
    pi.meanwhile(f'[ -e "{pi.root}/once" ] || {{ : > "{pi.root}/once"; eval "$OTHER" > "{pi.root}/other"; }}')
    pi.environment["OTHER"] = " ".join(
        [*container, *pi.shell, str(pi.root / "verify.sh"), "check", "P", str(pi.policy / FIRST)]
    )
    assert pi.verify("check", inside=inside) == "ok"
    assert (pi.root / "other").read_text() == "quarl-launch ok\n"


def test_one_that_is_ended_leaves_nothing(pi: Pi) -> None:
    pi.meanwhile(
        'for each in "$@"; do case $each in */quarl.*.sig) at=${each%/*}; at=${at%.*}; kill "${at##*.}" ;; esac; done'
    )
    command = [*pi.shell, str(pi.root / "verify.sh"), "start", "P", str(pi.policy / FIRST)]
    process = subprocess.Popen(command, env=pi.environment, stdout=subprocess.PIPE)
    assert (process.communicate(timeout=60)[0], process.returncode) == (b"", 74)
    assert not list(Path("/dev/shm").glob(f"quarl.{process.pid}.*")) and not list(pi.quarl.glob("run/*"))


def mutated(rng: random.Random, data: bytes) -> bytes:
    """It, with bytes or lines flipped, inserted, deleted, doubled or exchanged."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data) or 1)
        end = at + rng.choice((1, 1, 2, 8, 40))
        lines = data.splitlines(keepends=True) or [b""]
        line = rng.randrange(len(lines))
        by_line = [lines[:line] + lines[line + 1 :], [*lines[:line], lines[line], *lines[line:]], sorted(lines)]
        data = rng.choice(
            [
                data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else b"x",
                data[:at] + rng.randbytes(end - at) + data[at:],
                data[:at] + data[end:],
                data[:end] + data[at:],
                data[:at],
                *(b"".join(each) for each in by_line),
            ]
        )
    return data


def meaning(signature: bytes) -> bytes:
    """The bytes of a signature: its armour may be written in several ways, which mean the same."""
    begin, _, rest = signature.partition(b"-----BEGIN SSH SIGNATURE-----\n")
    try:
        return begin + base64.b64decode(rest.partition(b"\n-----END SSH SIGNATURE-----")[0])
    except binascii.Error:
        return signature


@pytest.mark.parametrize("seed", range(6))
def test_no_mutation_of_record_or_signature_is_accepted(dash: Pi, stranger: SigningKey, seed: int) -> None:
    """A hundred each: in incoming, where the signature and the serial alone count, or as an accepted release."""
    rng = random.Random(seed)

    def read(folder: Path) -> tuple[bytes, bytes]:
        return (folder / "release").read_bytes(), (folder / "release.sig").read_bytes()

    good = {folder: read(folder) for folder in (dash.lay(SECOND), dash.lay(SENT))}
    others = dash.lay("incoming/0004-dddd", policy="Q"), dash.lay("incoming/0005-eeee", key=stranger)
    replays = [read(dash.policy / FIRST), *map(read, others), *good.values()]
    assert [dash.verify("check", folder) for folder in good] == ["ok", "ok"]
    done = 0
    while done < 100:
        folder = rng.choice(list(good))
        record, signature = good[folder]
        how = rng.choice(("record", "record", "signature", "signature", "both", "replay", "exchanged"))
        if how == "replay":
            record, signature = rng.choice(replays)
        elif how == "exchanged":
            signature = rng.choice(replays)[1]
        if how in ("record", "both"):
            record = mutated(rng, record)
        if how in ("signature", "both"):
            signature = mutated(rng, signature)
        if (record, meaning(signature)) == (good[folder][0], meaning(good[folder][1])):
            continue
        done += 1
        (folder / "release").write_bytes(record)
        (folder / "release.sig").write_bytes(signature)
        assert dash.verify("check", folder) in ("trust", "damaged"), (how, record, signature)
