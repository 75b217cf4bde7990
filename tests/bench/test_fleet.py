"""bench/fleet.py: a small fleet through all rollouts, what its looking sees, and how its table reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench import command_line, fleet
from bench.fleet_rollout import ill
from bench.fleet_rollout.looking import Seen, look, untrue
from bench.fleet_rollout.steps import CANARIES
from bench.report import store
from bench.report import tables as rendering
from bench.tables.registry import TABLES, Kept
from device.host.fleet.plan import BatchSize
from device.host.local_fleet.layout import device_names


@pytest.mark.parametrize("devices", [6, 7, 12, 30, 200, 999])
def test_faults_are_spread_and_leave_canaries_and_a_device_of_each_batch_well(devices: int) -> None:
    names = device_names(devices)
    found = ill.chosen(names, CANARIES)
    assert found and not set(found) & set(names[:CANARIES])
    size = BatchSize("25%").of(devices)
    rest = names[CANARIES:]
    for start in range(0, len(rest), size):
        part = rest[start : start + size]
        assert len(part) == 1 or set(part) - set(found)
    if devices == 200:
        counts = {what: list(found.values()).count(what) for what in ill.SHARES}
        assert counts == {
            "dies before the switch": 1, "unreachable": 5, "slow": 10, "silent": 5, "dies after the switch": 1,
            "other host key": 2, "disk full": 2,
        }  # fmt: skip
        assert ill.FULL not in ill.chosen(names, CANARIES, [ill.FULL]).values()
    assert all(ill.fault(what) for what in ill.SHARES)


def made(folder: Path, number: int = 1, precision: str = "int8") -> Path:
    """A release that serves on a device that has nothing but files."""
    release = folder / "releases" / f"000{number}-a"
    release.mkdir(parents=True)
    (release / "program").write_text("all of it")
    files = {"program": hashlib.sha256(b"all of it").hexdigest()}
    (release / "release.json").write_text(json.dumps({"precisions": [precision], "files": files}))
    (folder / "incoming").mkdir(exist_ok=True)
    (folder / "current").unlink(missing_ok=True)
    (folder / "current").symlink_to(f"releases/{release.name}")
    return release


def test_looking_sees_what_is_half_done_and_what_was_touched(tmp_path: Path) -> None:
    assert look(tmp_path / "nothing") == Seen(None, None, (), ())
    release = made(tmp_path)
    well = look(tmp_path)
    assert (well.release, well.precision, well.half) == ("0001-a", "int8", ())
    assert look(tmp_path) == well
    (tmp_path / "incoming" / "1234").mkdir()
    (tmp_path / "current.5").symlink_to("releases/0002-a")
    assert look(tmp_path).half == ("1234", "current.5")
    (tmp_path / "incoming" / "1234").rmdir()
    (tmp_path / "current.5").unlink()
    (release / "program").write_text("half of it")
    assert look(tmp_path).half == ("program",)
    (release / "release.json").unlink()
    assert "FileNotFoundError" in look(tmp_path).half[0]
    made(tmp_path, 2, "int4")
    assert look(tmp_path).precision == "int4" and look(tmp_path).trace != well.trace


def test_a_state_that_the_files_do_not_say_is_told(tmp_path: Path) -> None:
    made(tmp_path)
    old = look(tmp_path)
    made(tmp_path, 2, "int4")
    new = look(tmp_path)
    for state, at_new, at_old in (
        ("proved", True, False), ("not changed", False, True), ("unknown", True, True), ("never heard", False, False),
    ):  # fmt: skip
        for now, fits in ((new, at_new), (old, at_old)):
            assert bool(untrue({"d": state}, "int4", {"d": old}, {"d": now})) is not fits, (state, now)


def document() -> dict[str, Any]:
    """An answer as it is stored."""
    row = {
        "precision": "int8", "exit_status": 0, "seconds": 61.0, "cpu_s": 12.0, "peak_bytes": 97_000_000,
        "sent_bytes": 9_300_000, "states": {"proved": 10, "unknown": 2}, "new": 11, "old": 1, "empty": 0,
        "half_done": 0, "untrue": 0, "touched": 11, "others_touched": 0, "settled_s": 1.0,
    }  # fmt: skip
    names = ("first", "faults", "healed", "idle", "killed", "resumed", "fallen")
    compared = [{"parallel": 1, "devices": 2, "seconds": 4.0}, {"parallel": 16, "devices": 2, "seconds": 1.0}]
    return {
        "machine": "M", "code": "c", "policy": "I", "devices": 12, "parallel": 16, "canaries": 2, "batch": "25%",
        "soak_s": 5.0, "faults": {"dies before the switch": 1, "unreachable": 1, "slow": 1},
        "left_out": {"disk full": "not allowed"}, "slow": {"bytes_per_s": 50e3, "delay_s": 0.05}, "killed_at": 4,
        "steps": [{"step": name, **row} for name in names], "compared": compared, "wrong": [],
    }  # fmt: skip


def test_the_table_says_what_was_told_and_seen(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(json.dumps(document()))
    table, _ = TABLES["fleet"].make(Kept(folder=tmp_path))
    assert table.rows[0] == (
        "1. int8, all well", "10 proved, 2 unknown", "61.0", "12.0", "97.0", "9.3", "11", "1", "0", "0", "0",
    )  # fmt: skip
    words = "\n".join(table.notes)
    for part in ("1 unreachable", "50 kB/s and 50 ms", "4.00×", "Not tried: disk full (not allowed)", "loopback"):
        assert part in words, part
    assert "10 of the other 10" in words


def test_the_page_has_what_was_stored() -> None:
    kept = store.kept_answer(store.RESULTS / "fleet.json", "python bench/fleet.py --keep")
    assert kept["wrong"] == [] and not kept["code"].endswith("-dirty")
    assert not any(each["half_done"] or each["untrue"] for each in kept["steps"])
    text = (rendering.ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    table, _ = TABLES["fleet"].make(Kept())
    assert "<!-- table:fleet -->" in text
    assert rendering.filled(text, [table]) == text, "type: python bench/table.py fleet --update-docs"


def test_too_small_a_fleet_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fleet.main(["--devices", "5"])
    assert ended.value.code == command_line.EXIT_USAGE and "is none of 6 to 999" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_fleet_through_all_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    status = fleet.main(["--devices", "6", "--soak", "0.2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == command_line.EXIT_OK and found["wrong"] == [], found["wrong"]
    steps = {each["step"]: each for each in found["steps"]}
    assert all(each["half_done"] == each["untrue"] == 0 for each in steps.values())
    for name in ("first", "healed", "idle", "resumed"):
        assert steps[name]["states"] == {"proved": 6} and steps[name]["new"] == 6, name
    assert steps["idle"]["sent_bytes"] == 0 == steps["fallen"]["others_touched"]
    assert steps["faults"]["states"]["unknown"] == 1 and steps["faults"]["exit_status"] == 1
    assert [each["parallel"] for each in found["compared"]] == [1, 16]
