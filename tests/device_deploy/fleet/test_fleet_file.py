"""fleet.toml: what it says, and how it is refused."""

import re
import shlex
from pathlib import Path

import pytest

from quarl.cli import app
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import Fleet, FleetFileError, Member
from quarl.device.deploy.fleet.payloads import override_settings, parse_member_settings
from quarl.device.deploy.fleet.plan import BatchSize, PlanError, batches
from quarl.device.deploy.fleet.states import State
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.spec import Precision, RuntimeName
from tests.refusals import refused

EXAMPLE = """
[groups.arena]
targets = ["pi@arena-[08-11]", "pi@192.168.1.40:2222"]
runtime = "onnxruntime"
bits = 8
labels = { hall = 3, kind = "rover" }

[groups.lab]
targets = ["pi@arena-09", "local", "a[1-2]b[1-2]"]
agent = "native"
labels = { hall = "1" }

[devices."pi@arena-08"]
runtime = "native"
bits = "4"
identity = "~/.ssh/arena"
labels = { camera = "left" }
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "fleet.toml"
    file.write_text(text)
    return file


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet.load(written(tmp_path, EXAMPLE))


def test_ranges_groups_and_single_devices(fleet: Fleet) -> None:
    assert [each.target for each in fleet.members] == [
        *("pi@arena-08", "pi@arena-09", "pi@arena-10", "pi@arena-11", "pi@192.168.1.40:2222"),
        *("local", "a1b1", "a1b2", "a2b1", "a2b2"),
    ]
    first, second = fleet.members[:2]
    assert (first.runtime, first.bits, first.identity) == ("native", "4", Path("~/.ssh/arena").expanduser())
    assert first.labels == {"hall": "3", "kind": "rover", "camera": "left"}
    assert second.groups == ("arena", "lab") and second.agent == "native"
    assert second.labels == {"hall": "1", "kind": "rover"}, "the later group decides"


def test_devices_are_selected_by_group_label_and_name(fleet: Fleet) -> None:
    assert len(fleet.select_members()) == 10
    assert [each.target for each in fleet.select_members("lab")][:2] == ["pi@arena-09", "local"]
    assert [each.target for each in fleet.select_members(labels={"camera": "left"})] == ["pi@arena-08"]
    assert [each.target for each in fleet.select_members("arena", {"hall": "3"}, ["pi@arena-10"])] == ["pi@arena-10"]
    for arguments, says in (
        (("hall",), "no group 'hall'; it has arena, lab"),
        (("lab", {"kind": "boat"}), "camera=left, hall=1, hall=3"),
        (("lab", {}, ["pi@nowhere"]), "no device 'pi@nowhere' in lab; it has pi@arena-09, local, a1b1"),
    ):
        with pytest.raises(FleetFileError, match=says):
            fleet.select_members(*arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "": "has no group",
        "[groups": "cannot be read: ",
        "[group.a]": r"\[group\] is not known; allowed are \[groups.NAME\]",
        "groups = 3": r"a table, \[groups\]",
        "[groups.a]": "targets",
        "[groups.a]\ntargets = []": "at least one",
        "[groups.a]\ntargets = [3]": "has an example",
        "[groups.a]\ntargets = ['pi@@pi']": "TARGET='pi@@pi'",
        "[groups.a]\ntargets = ['pi@a-[9-1]']": "must rise",
        "[groups.a]\ntargets = ['a[1-99999]']": "by less than 10,000",
        "[groups.'a b']\ntargets = ['a']": "consist of letters",
        "[groups.a]\ntargets = ['a']\nruntme = 'x'": "has 'runtme'; allowed are runtime, agent, bits, identity, labels",
        "[groups.a]\ntargets = ['a']\nruntime = 3": "has an example",
        "[groups.a]\ntargets = ['a']\n[devices.b]": "has an example",
        "[groups.a]\ntargets = [\n'pi@a-[0-9999]-[0-9999]-[0-9999]']": "all groups together",
        "[groups.a]\ntargets = ['a[1-9999]',\n'b[1-9999]']": "all groups together",
        f"[groups.a]\ntargets = ['a[0-{'9' * 5000}]']": "less than 10,000",
        "# [groups.b]\n[groups.a]\ntargets = ['a']\n\n[groups.b]\ntargets = ['@a']": "line 6: .*is a group",
        f"[groups.a]\ntargets = ['a',\n'pi@a:{'9' * 5000}']": "line 3",
        "[groups.a]\ntargets = ['pi@a:²']": "line 2",
        "[groups.a]\ntargets = ['a']\nidentity = '~nobodyx/x'": "begins with the",
        "[groups.a]\ntargets = ['a']\n[devices.'a']\nidentity = '~nobodyx/x'": "line 4",
        '[groups.a]\ntargets = ["a"]\nidentity = "a\\u0000"': "on one line",
        f"[groups.a]\ntargets = ['a']\nbits = {'9' * 5000}": "number is too",
        f"[groups.a]\ntargets = {'[' * 3000}{']' * 3000}": "line 2: it",
        f"[groups.a]\ntargets = ['a']\n[groups.a.labels]\nx = {'[' * 300}{']' * 300}": "has an example",
    }.items(),
)
def test_what_it_may_not_say(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FleetFileError, match=says) as caught:
        Fleet.load(written(tmp_path, text))
    assert "fleet.toml" in caught.value.message and caught.value.next_step


def test_no_file_is_answered_by_the_smallest_one(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"(?s)There is no .*fleet.toml.*next: .*\[groups.all\] and targets = "):
        Fleet.load(tmp_path / "fleet.toml")


def test_what_is_typed_goes_before_what_the_file_says(fleet: Fleet) -> None:
    assert parse_member_settings(fleet.members[0]) == ((Precision.INT4,), (RuntimeName.NATIVE,), False)
    assert parse_member_settings(fleet.members[1]) == ((Precision.INT8,), (RuntimeName.NATIVE,), True)
    typed = override_settings(fleet.members, "onnxruntime", None, "16,8")
    assert parse_member_settings(typed[1]) == ((Precision.FP16, Precision.INT8), (RuntimeName.ONNXRUNTIME,), False)
    assert override_settings(fleet.members, None, None, None) == fleet.members
    with refused(HostError, "host", shows=["'rust'"]):
        parse_member_settings(Member("pi@a", agent="rust"))


def test_batches_are_shares_or_counts() -> None:
    assert [BatchSize.parse("25%").of(devices) for devices in (1, 4, 9, 200)] == [1, 1, 3, 50]
    assert BatchSize.parse("7").of(200) == 7
    members = [Member(f"d{number}") for number in range(5)]
    assert [(name, len(part)) for name, part in batches(members, 2)] == [
        ("batch 1 of 3", 2),
        ("batch 2 of 3", 2),
        ("batch 3 of 3", 1),
    ]
    for wrong in ("0", "0%", "101%", "half", "-1", "2.5", ""):
        with refused(PlanError, "plan", shows=["10"]):
            BatchSize.parse(wrong)


# docs/fleet.md: its fleet.toml is read, each of its commands is one, its table of states has every state.

PAGE = (PROJECT_ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    quarl ([^#\n]*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one(command: str) -> None:
    app().parse_args(shlex.split(command), exit_on_error=False)


def test_the_fleet_file_of_the_page(tmp_path: Path) -> None:
    (text,) = re.findall(r"(?<=## fleet\.toml\n\n)((?:    .*\n|\n)+)", PAGE)
    fleet = Fleet.load(written(tmp_path, text))
    assert fleet.groups == ("arena", "lab") and len(fleet.members) == 12 + 1 + 4
    one = next(each for each in fleet.members if each.target == "pi@arena-07")
    assert (one.runtime, one.agent) == ("native", None) and one.labels == {"hall": "3", "camera": "left"}


@pytest.mark.parametrize("state", [each for each in State if each not in (State.BEGUN, State.SWITCHING)])
def test_every_state_that_a_rollout_leaves_stands_in_the_page(state: State) -> None:
    assert re.search(rf"^\|[^|\n]*\b{state}\b", PAGE, re.MULTILINE)
