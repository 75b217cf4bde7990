"""Wrong names, another folder, no environment, a full disk, no network: one clear message each, nothing lost, and the
command typed again works."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.first_hour.conftest import Ended, Workshop
from tests.namespaces import own

pytestmark = pytest.mark.slow
PYTHON, QUARL = ".venv/bin/python", ".venv/bin/quarl"
DEBIANS = Path("/usr/bin/python3.11")
LOOPBACK = (
    "import fcntl, socket, struct; "  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x41))"
)
LATENCY = f"{PYTHON} bench/latency.py --policy I --runs 20 --warmup 2 --no-baseline"
TRAIN = f"{QUARL} train --task cartpole --method ppo --steps 3000 --final-episodes 5 --output-path artifacts/tiny"
NO_POLICY = "no policy '{0}'; .*I, II, III.*next|no policy '{0}'; .*I, II, III.*Train one"
NOWHERE = "'nosuchhost.invalid' cannot be resolved.*\n  next: Check the name"

WRONG = {  # what is typed: what must be said of it
    "make nope": "no target 'nope'. Type: make",
    "make train": r"Which policy\? Type: make train POLICY=I",
    "make train POLICY=IV": r'Invalid value "IV" for --policy.*"I", "II", "III".*\n  next: .*quarl train --help',
    "make convert BITS=9": "32, 16, 8 … 2 bits, mixed, w8, w4 or dynamic, got 9",
    "make convert POLICY=nope": NO_POLICY.format("nope"),
    "make deploy POLICY=I RUNTIME=foo": "tflite-runtime, litert, onnxruntime, .*'foo'.*\n  next",
    "make deploy POLICY=I TARGET=pi@@pi": "TARGET='pi@@pi'.*Allowed: local, host, user@host.*\n  next: ",
    "make deploy POLICY=I TARGET=pi@nosuchhost.invalid": NOWHERE,
    "make demo TARGET=pi@127.0.0.1:1": "127.0.0.1 port 1 cannot be reached: Connection refused.*\n  next: Start",
    "make deploy POLICY=I TARGET=": "TARGET .*empty.*local, .*make deploy TARGET=pi@raspb",
    "make deploy POLICY=i": "no policy 'i'; did you mean I\\?",
    "make pi MACHINE=nope": r'Invalid value "nope" for --machine.*"virt", "raspi3b".*\n  next: .*pi start --help',
    "make test TESTS=tests/nope.py": "tests/nope.py: there is no such file. Type",
    f"{PYTHON} bench/latency.py": "--policy requires an argument.*\n  next: .venv/bin/quarl bench latency --help",
    f"{QUARL} bench latency --policy I --precision int9": "fp32, fp16, int8, .*'int9'",
    f"{QUARL} bench latency --step 5": "no option --step",
    f"{QUARL} bench latency --polici I": "Did you mean --policy",
    f"{QUARL} bench table nope": "no table 'nope'; .*summary, case-study",
    f"{QUARL} train": "task.*\n\n.*quarl train --task navigation --policy I",
    f"{QUARL} train --task nope": "neither a word of this project nor an id.*quarl tasks shows the words",
    f"{QUARL} train --task navigation --method nope": "'nope' .*ppo, recurrent_ppo",
    f"{QUARL} train --task nope:Env-v0": "no module nope in .*Type the command in the folder of nope.py",
    f"{QUARL} evaluate --input-path nope": NO_POLICY.format("nope"),
    f"{QUARL} convert --policy zoo/nope": "zoo/nope/manifest.json is missing. Train one .*quarl train --task",
    f"{QUARL} convert --policy 'my own'": "--output-path 'artifacts/my own'",
    f"{QUARL} nope": "there is no `.*quarl nope`.*\n  next: .venv/bin/quarl --help",
    f"{QUARL} rolback --policy I": "Did you mean rollback",
}
FOREIGN = ("bench/latency.py --policy I", "examples/ask_device.py", "examples/own_task.py")
ELSEWHERE = {  # what is typed in / with the folder's name in front of it
    "python3 {}/bench/latency.py --help": "Usage: quarl bench latency",
    "make -C {} table": "policy",
    "{}/.venv/bin/quarl tasks --task cartpole": "CartPole-v1-dqn.json",
    "{}/.venv/bin/python {}/bench/table.py summary": "policy",
}
FULL = {  # what is typed: the folder that is a disk of its own, and the kB that are left there
    TRAIN: ("artifacts", 40),
    "make convert POLICY=I": ("artifacts", 700),
    "make deploy POLICY=I": ("artifacts", 800),
    LATENCY: ("results", 64),
}
DISK_KB = 250_000
OFFLINE = ("make convert POLICY=I", "make deploy POLICY=I", LATENCY, f"{QUARL} bench table --local case-study")


def apart(namespace: Literal["mount", "net"], script: str) -> str:
    """The command that runs a script with mounts, or a network, of its own: root may, others in a user namespace."""
    return shlex.join([*own(namespace), "bash", "-c", script])


def offline(command: str) -> str:
    return apart("net", f"{shlex.quote(sys.executable)} -c {shlex.quote(LOOPBACK)}; {command}")


@pytest.fixture(scope="module")
def bare(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """The checkout as it was cloned, without an environment, and a user who never fetched anything."""
    folder = tmp_path_factory.mktemp("bare") / "a clone"
    ignored = shutil.ignore_patterns(".venv", "artifacts", "results", "zoo", "tests", "docs", "__pycache__")
    shutil.copytree(workshop.folder, folder, ignore=ignored, symlinks=True)
    cache = str(folder.parent / "cache")
    return Workshop(folder, {**workshop.environment, "XDG_CACHE_HOME": cache, "UV_CACHE_DIR": f"{cache}/uv"})


def refused(workshop: Workshop, command: str, says: str, **variables: Any) -> Ended:
    held = workshop.holdings()
    ended = workshop.typed(command, **variables)
    ended.is_one_clear_message()
    assert re.search(says, ended.text), ended.text
    assert "usage:" not in ended.text
    assert workshop.lost_since(held) == []
    return ended


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_name_is_answered_by_what_is_allowed(workshop: Workshop, command: str) -> None:
    ended = refused(workshop, command, WRONG[command])
    assert len(ended.text.splitlines()) <= 16 and ended.text.count("no policy") <= 1, ended.text


@pytest.mark.parametrize("words", FOREIGN)
def test_without_an_environment_the_reader_is_told_to_make_it(bare: Workshop, words: str) -> None:
    if not DEBIANS.exists():
        pytest.skip(f"there is no {DEBIANS}")
    ended = bare.typed(f"{DEBIANS} {words}")
    ended.is_one_clear_message()
    assert re.search(r"(not set up|No module) .*\n?.*make .*setup", ended.text) and len(ended.text.splitlines()) <= 2, (
        ended.text
    )


@pytest.mark.parametrize("command", ELSEWHERE)
def test_from_another_folder(workshop: Workshop, command: str) -> None:
    if shutil.which(command.split()[0], path=workshop.environment["PATH"]) is None and "{}" not in command.split()[0]:
        pytest.skip(f"there is no {command.split()[0]}")
    ended = workshop.typed(command.replace("{}", shlex.quote(str(workshop.folder))), folder=Path("/"))
    assert ended.status == 0 and re.search(ELSEWHERE[command], ended.text), ended.text


@pytest.mark.parametrize("here", [True, False], ids=["in-the-checkout", "elsewhere"])
def test_what_is_said_to_be_next_can_be_pasted(workshop: Workshop, tmp_path: Path, here: bool) -> None:
    folder = workshop.folder if here else tmp_path
    output = shlex.quote(str(workshop.folder / "artifacts" / "my first"))
    typed = TRAIN.replace("artifacts/tiny", output)
    if not here:
        typed = shlex.quote(str(workshop.folder)) + "/" + typed
    trained = workshop.typed(typed, folder=folder)
    following = re.search("Next: (.*)", trained.text)
    assert trained.status == 0 and following, trained.text
    judged = workshop.typed(f"{following[1]} --episodes 2", folder=folder)
    assert judged.status == 0, judged.text


@pytest.mark.parametrize("command", FULL, ids=["train", "convert", "deploy", "latency"])
def test_a_full_disk_is_named_and_with_room_the_command_works(workshop: Workshop, command: str) -> None:
    folder, kilobytes = FULL[command]
    held = workshop.holdings()
    script = (
        f"mkdir -p artifacts; mount -t tmpfs tmpfs artifacts; mount -t tmpfs -o size={DISK_KB}k tmpfs {folder}; "
        f"head -c {DISK_KB - kilobytes}k /dev/zero > {folder}/filler; {command}; "
        f"echo ended: $?; find {folder} -name '*.part*'; echo room; "
        f"rm {folder}/filler; {command}"
    )
    ended = workshop.typed(apart("mount", script))
    full, again = ended.text.split("room\n", 1)
    printed, left = full.split("ended: ")
    Ended(command, int(left.split()[0]), printed).is_one_clear_message()
    assert re.search("[Tt]he disk (of the local device )?is full", printed) and "ake room" in printed, printed
    assert left.split()[1:] == [], "something half-written is left"
    assert ended.status == 0, again
    assert workshop.lost_since(held) == []


def test_setting_up_on_a_full_disk_names_it(bare: Workshop) -> None:
    script = "mkdir small; mount -t tmpfs -o size=8m tmpfs small; cp -r setup *.txt pyproject.toml small; cd small; "
    ended = bare.typed(apart("mount", f"{script} bash setup/environment.sh || [ -e .venv ]"))
    ended.is_one_clear_message()
    assert re.search(r"disk is too full: \d MB are left.*Make room, then type the same command again", ended.text)


def test_what_the_tests_need_is_not_begun_on_a_full_disk(bare: Workshop) -> None:
    script = "mkdir few; mount -t tmpfs -o size=8m tmpfs few; cp -r setup requirements*.txt few; cd few; "
    ended = bare.typed(apart("mount", f"{script} bash setup/tests.sh"))
    ended.is_one_clear_message()
    assert re.search(r"\AThe disk is too full: \d MB are left.*; what the tests need.* about 3000 MB", ended.text)


def test_without_a_network_set_up_says_so(bare: Workshop) -> None:
    refused(bare, offline("make setup PYTHON311=/nope"), "PYTHON311=/nope was not found")
    refused(bare, offline("make setup"), "network or the package index could not be reached")


@pytest.mark.parametrize("command", OFFLINE)
def test_without_a_network_what_needs_none_works(workshop: Workshop, command: str) -> None:
    ended = workshop.typed(offline(command))
    assert ended.status == 0, ended.text


def test_without_a_network_a_host_is_not_found_and_wheels_are_not_fetched(workshop: Workshop, tmp_path: Path) -> None:
    command = offline("make deploy POLICY=I TARGET=pi@no-such.invalid")
    refused(workshop, command, "'no-such.invalid' cannot be resolved.*\n  next: Check the name")
    command = offline(f"{QUARL} prefetch --runtime litert")
    printed = "could not download .*: the package index could not be reached.*\n  next: .*is online"
    refused(workshop, command, printed, XDG_CACHE_HOME=str(tmp_path))


def test_without_a_network_what_cannot_be_tested_is_named(workshop: Workshop, bare: Workshop) -> None:
    caches: dict[str, Any] = {name: bare.environment[name] for name in ("XDG_CACHE_HOME", "UV_CACHE_DIR")}
    ended = workshop.typed(offline("bash setup/tests.sh"), **caches)
    assert ended.status == 0, ended.text
    said = ("Installing", "Checked", "Fetching", "  … ")
    lines = [line for line in ended.text.splitlines() if not line.startswith(said)]
    assert any(line.startswith("Not there: wheels for the Pi (") for line in lines)
    assert all(re.fullmatch(r"Not there: .* \(.*\). What needs it is not tested\.", line) for line in lines), lines
