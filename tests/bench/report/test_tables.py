"""What the joined tables say, and what they may not leave unsaid."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError
from rich.console import Console

from quarl.bench.case_study import case_study
from quarl.bench.flights import latency_flown, zoo_table
from quarl.bench.memory import memory_table
from quarl.bench.report import store
from quarl.bench.report.document import Artifact, Kind, Report, Transport, Where
from quarl.bench.report.notes import ratio_cell, report_notes
from quarl.bench.report.selection import (
    Selection,
    keep_todays_flights,
    pair_successes,
    precision_order,
    speed_up,
    turn_ratios,
)
from quarl.bench.report.store import StoreError
from quarl.bench.report.text import figure_words, kilobytes, nanoseconds, percent, times
from quarl.bench.success import success_table
from quarl.bench.tables import (
    PageError,
    Table,
    column_groups,
    fill_page,
    pivot,
    print_table,
    tabulate,
    to_markdown,
    update_pages,
)
from quarl.bench.timing import latency_table
from quarl.train.intervals import Estimate

Make = Callable[..., Report]
OTHER_RUN = "b" * 32


def cells(table: Table, policy: str, precision: str) -> dict[str, str]:
    row = next(row for row in table.rows if row and row[:2] == (policy, precision))
    return dict(zip(table.headers, row, strict=True))


def everything(table: Table) -> str:
    return to_markdown(table)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3.00 ns"),
        (853, "853 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (1523, "1.52 µs"),
        (118_400, "118 µs"),
        (208_115_000, "208 ms"),
        (2.5e9, "2.50 s"),
        (None, "–"),
    ],
)
def test_a_short_time_never_reads_zero(value: float | None, text: str) -> None:
    assert nanoseconds(value) == text


def test_other_words() -> None:
    assert times(1133.7) == "1,134×"
    assert [figure_words(value) for value in (8003584, 132.44, -0.00012345, None, "x")] == [
        "8,003,584", "132.4", "−0.0001234", "–", "x",
    ]  # fmt: skip
    assert times(0.6251) == "0.625×"
    assert kilobytes(21_437) == "21.4"
    assert percent(Estimate(-0.0003, -0.013, 0.007), "+") == "0.0 [−1.3, +0.7]"


@pytest.fixture
def study(latency_report: Make, memory_report: Make, success_report: Make) -> list[Report]:
    found = []
    for precision, p50, rate in (("fp32", 118_000, 0.9), ("int8", 26_000, 0.89)):
        found.append(latency_report("III", precision, p50))
        found.append(memory_report("III", precision, 26_000_000 if precision == "fp32" else 9_000_000))
        found.append(success_report("III", precision, rate, episodes=3000))
    found.append(latency_report("III", "fp32", 1_579_000, runtime="keras", artifact=None, path="call"))
    found.append(
        success_report("blind", None, 0.35, artifact=None, runtime="none", where=Where.HOST, target="elsewhere")
    )
    return found


def test_the_case_study_joins_what_was_measured(study: list[Report]) -> None:
    table, used = case_study(Selection.of_target(study))
    int8 = cells(table, "III", "int8")
    assert int8["p50"] == "26.0 µs"
    assert int8["speed-up over fp32"] == "4.54× [4.54, 4.54]"  # 118,000 / 26,000 = 4.538…
    assert int8["speed-up over Keras fp32"] == "60.7× [60.7, 60.7]"  # 1,579,000 / 26,000 = 60.73…
    assert int8["MB added by loading"] == "9.0"
    assert int8["MB resident"] == "42.5"  # 33 before + 9 loaded + 0.5 at the peak
    assert int8["KB artifact"] == "61.2"
    assert int8["paper's, Raspberry Pi 3b"] == "11.036 ms, 75 %"
    assert cells(table, "III", "fp32")["speed-up over fp32"] == "1 (base)"
    success = next(r.success for r in study if r.success and r.precision == "int8")
    assert int8["% success, hard"].startswith(f"{100 * success.rate:.1f} [")
    assert int8["points to fp32"] != "–"
    assert cells(table, "blind", "–")["% success, hard"].startswith("35")
    assert {r.id for r in used} == {r.id for r in study}
    assert "Raspberry Pi 3 Model B · Cortex-A53" in everything(table)


def test_a_table_is_made_again_from_what_it_stands_on(
    study: list[Report], latency_report: Make, success_report: Make
) -> None:
    old = latency_report("III", "int8", 99_000, time="2020-01-01T00:00:00.000+00:00")
    study.append(latency_report("III", "fp32", 348_000, runtime="tf.function", artifact=None, path="call"))
    table, used = case_study(Selection.of_target([old, *study]))
    assert old.id not in {r.id for r in used}
    assert {r.runtime for r in used} >= {"keras", "tf.function"}  # the picture draws both
    assert case_study(Selection.of_target(used)) == (table, used)
    flown = [success_report("I", "int8", 0.9 - late, settings={"latency": late}) for late in (0.0, 0.2)]
    late, stands_on = latency_flown(Selection.of_target([success_report("I", "int8", 0.9, run=OTHER_RUN), *flown]))
    assert latency_flown(Selection.of_target(stands_on)) == (late, stands_on)


def test_a_ratio_is_never_formed_across_runs(study: list[Report], latency_report: Make) -> None:
    later = latency_report("III", "int8", 20_000, run=OTHER_RUN, time="2999-01-01T00:00:00.000+00:00")
    int8 = cells(case_study(Selection.of_target([*study, later]))[0], "III", "int8")
    assert int8["p50"] == "20.0 µs"
    assert int8["speed-up over fp32"] == "–"
    assert int8["speed-up over Keras fp32"] == "–"


def test_success_of_an_older_artifact_is_not_the_new_ones(study: list[Report], latency_report: Make) -> None:
    other = Artifact("int8.tflite", "e" * 64, 61_234, "int8")
    later = latency_report("III", "int8", artifact=other, time="2999-01-01T00:00:00.000+00:00")
    int8 = cells(case_study(Selection.of_target([*study, later]))[0], "III", "int8")
    assert int8["% success, hard"] == "–"
    assert int8["MB resident"] == "–"


def test_success_in_another_runtime_is_not_this_ones(study: list[Report], success_report: Make) -> None:
    other = success_report("III", "int8", 0.5, episodes=9000, runtime="tflite-runtime")
    table, used = case_study(Selection.of_target([*study, other]))
    assert other.id not in {r.id for r in used}, "it rests on more episodes, but the row is of litert"
    assert not cells(table, "III", "int8")["% success, hard"].startswith("5")


def test_a_ratio_is_never_formed_across_paths(study: list[Report], latency_report: Make) -> None:
    later = "2999-01-01T00:00:00.000+00:00"
    decide = latency_report("III", "fp32", 999_000, path="decide", time=later)
    assert (
        cells(case_study(Selection.of_target([*study, decide]))[0], "III", "int8")["speed-up over fp32"]
        == "4.54× [4.54, 4.54]"
    )


def test_only_the_same_episodes_are_paired(success_report: Make) -> None:
    calm, windy = success_report(), success_report(settings={"wind_m_s": 2.0})
    late, other = success_report(settings={"latency": 0.2}), success_report(preset="shipped")
    assert pair_successes(late, calm) is not None, "latency changes what becomes of an episode, not which it is"
    assert pair_successes(windy, calm) is None and pair_successes(other, calm) is None
    assert pair_successes(windy, success_report(settings={"wind_m_s": 2.0, "latency": 0.2})) is not None


def test_episodes_of_a_preset_whose_constants_changed_are_not_paired(success_report: Make) -> None:
    now, before = success_report(task="a" * 12), success_report(task="b" * 12)
    unknown = success_report(task=None)
    assert pair_successes(now, success_report(task="a" * 12)) is not None
    assert pair_successes(now, before) is None
    assert pair_successes(now, unknown) is None and pair_successes(unknown, now) is None
    assert pair_successes(unknown, success_report(task=None)) is not None


def test_the_success_with_most_episodes_counts(study: list[Report], success_report: Make) -> None:
    later = success_report("III", "int8", 0.5, episodes=100, time="2999-01-01T00:00:00.000+00:00")
    table, used = case_study(Selection.of_target([*study, later]))
    assert later.id not in {r.id for r in used}
    assert not cells(table, "III", "int8")["% success, hard"].startswith("5")


def test_a_percentile_without_enough_runs_is_a_dash_with_its_reason(latency_report: Make) -> None:
    few = [latency_report("I", "fp32", runs=100), latency_report("I", "int8", runs=100)]
    for table in (case_study(Selection.of_target(few))[0], latency_table(few)):
        assert cells(table, "I", "int8")["p99"] == "–"
        assert cells(table, "I", "int8")["p50"] != "–"
        assert "p99 needs 662 runs, there are 100" in everything(table)


SLOW = {"before": None, "after": {"mhz_firmware": 657.0}}
THROTTLED = {"before": {"throttled": {"raw": 4, "now": ["throttled"], "occurred": []}}, "after": None}


@pytest.mark.parametrize(
    ("circumstance", "words"),
    [
        ({"transport": Transport.LOOPBACK}, "loopback"),
        ({"device_says": {"emulated": True}}, "EMULATED"),
        ({"device_says": {"virtualised": True}}, "virtual machine"),
        ({"conditions": THROTTLED}, "THROTTLED"),
        ({"conditions": SLOW}, "CLOCK 657 of 1200 MHz"),
        ({"valid": False, "invalid_reasons": ("the clock changed",)}, "NOT VALID: the clock changed"),
    ],
)
def test_what_must_stand_beside_a_number_does(
    latency_report: Make, memory_report: Make, success_report: Make, circumstance: dict[str, Any], words: str
) -> None:
    changes = dict(circumstance)
    device = dict(latency_report().device) | changes.pop("device_says", {})
    sound = [latency_report("I", "fp32"), memory_report("I", "fp32"), success_report("I", "fp32")]
    for index, make in enumerate((latency_report, memory_report, success_report)):
        marked = make("I", "int8", device=device, **changes)
        mixed = [*sound, marked]
        table = (latency_table, memory_table, success_table)[index]([sound[index], marked])
        assert words in cells(table, "I", "int8")["measured"]
        assert words not in cells(table, "I", "fp32")["measured"]
        joined, _ = case_study(Selection.of_target(mixed))
        assert words in cells(joined, "I", "int8")["measured"]
        assert words not in cells(joined, "I", "fp32")["measured"]


def test_an_emulators_times_appear_only_as_ratios(latency_report: Make) -> None:
    emulated = dict(latency_report().device) | {"emulated": True}
    fp32 = latency_report("III", "fp32", 118_000, device=emulated)
    int8 = latency_report("III", "int8", 26_000, device=emulated)
    for table in (case_study(Selection.of_target([fp32, int8]))[0], latency_table([fp32, int8])):
        assert cells(table, "III", "fp32")["p50"] == "1.00×"
        measured = cells(table, "III", "int8")
        assert measured["p50"] == "0.22×"  # 26 / 118
        # The paper's times were taken on a real Pi.
        shown = [cell for name, cell in measured.items() if not name.startswith("paper")]
        assert not [cell for cell in shown if re.search(r"[0-9] (ns|µs|ms|s)\b", cell)]
    assert cells(latency_table([int8]), "III", "int8")["p50"] == "–"


def test_what_is_true_of_all_rows_stands_in_the_title(study: list[Report]) -> None:
    table, _ = case_study(Selection.of_target([r for r in study if r.policy != "blind"]))
    assert not {"measured", "runtime"} & set(table.headers)
    assert table.title == "Case study · litert · SSH"


def test_the_turns_of_a_ratio_are_shown(latency_report: Make) -> None:
    assert ratio_cell(latency_report("I", "fp32", 3000), latency_report("I", "int8", 1500)) == "2.00× [2.00, 2.00]"
    assert ratio_cell(None, latency_report()) == "–"


def test_a_speed_up_lies_within_its_own_brackets(latency_report: Make) -> None:
    def timed(p50: int, *turns: int) -> Report:
        report = latency_report(p50=p50)
        assert report.latency is not None
        return replace(report, latency=replace(report.latency, block_p50_ns=turns))

    # of all runs 701 against 1,000; of the turns 896, 1,000 and 1,060 against 1,000
    slow, fast = timed(701, 1060, 896, 1000), timed(1000, 1000, 1000, 1000)
    assert ratio_cell(slow, fast) == "1.00× [0.896, 1.06]"
    assert ratio_cell(timed(701), fast) == "0.701×", "no turns are kept: of all runs"
    committed = Selection(tuple(store.read_results(store.RESULTS / "case-study.jsonl")))
    for report in committed.reports:
        keras = committed.last(Kind.LATENCY, run=report.run, policy=report.policy, runtime="keras")
        for other in (committed.fp32_partner(report), keras):
            if (ratios := turn_ratios(other, report)) and (value := speed_up(other, report)) is not None:
                assert min(ratios) <= value <= max(ratios), (report.policy, report.precision)


def test_latency_flown_is_paired_with_no_latency(success_report: Make) -> None:
    flown = [
        success_report("I", "int8", 0.9 - late, episodes=500, settings={"latency": late} if late else {})
        for late in (0.0, 0.1, 0.4)
    ]
    longer = success_report("I", "int8", 0.99, episodes=5000, run=OTHER_RUN)  # another run without latency
    table, used = latency_flown(Selection.of_target([*flown, longer]))
    rate, loss = (dict(zip(table.headers, row, strict=True)) for row in table.rows if row)
    assert rate["0 ms"].startswith("9") and rate["400 ms"].startswith(("4", "5"))
    assert loss["0 ms"] == "–"
    assert loss["400 ms"].startswith("−")
    assert {r.id for r in used} == {r.id for r in flown}
    assert "500 episodes" in everything(table)


def test_a_measured_latency_flown_has_its_own_column(success_report: Make) -> None:
    drawn = {"latency": {"kind": "empirical", "values_s": [0.001, 0.002]}}
    flown = [success_report("I", "int8", 0.9), success_report("I", "int8", 0.8, settings={"latency": 0.1})]
    flown.append(success_report("I", "int8", 0.85, settings=drawn))
    flown.append(success_report("I", "int8", 0.1, settings={"wind_m_s": 3.0}))  # another question
    table, used = latency_flown(Selection.of_target(flown))
    assert table.headers[3:6] == ("0 ms", "100 ms", "as measured")
    loss = dict(zip(table.headers, table.rows[1], strict=True))
    assert loss["as measured"].startswith("−") and loss["0 ms"] == "–"
    assert {r.id for r in used} == {r.id for r in flown[:3]}


def test_nothing_stored_says_what_to_type(latency_report: Make) -> None:
    with pytest.raises(StoreError, match=r"make demo"):
        case_study(Selection.of_target([]))
    with pytest.raises(StoreError, match="--late"):
        latency_flown(Selection.of_target([latency_report()]))
    with pytest.raises(StoreError, match="quarl train"):
        zoo_table(Path("no-such-folder"), Selection(()))


def test_the_zoo_says_where_a_policy_comes_from_and_how_good_it_is(tmp_path: Path, success_report: Make) -> None:
    provenance = {"algorithm": "distill", "teacher": "II", "steps": 3_006_464, "cpu_s": 193.4, "seed": 0}
    spec = {"name": "III", "network": {"hidden": [4096, 512, 1024]}, "provenance": provenance}
    (tmp_path / "III").mkdir()
    (tmp_path / "III" / "policy.json").write_text(json.dumps(spec))
    hard = success_report("III", "fp32", 0.89)
    shipped = success_report("III", "fp32", 0.995, preset="shipped")
    blind = success_report("blind", None, 0.35, artifact=None, runtime="none", where=Where.HOST)
    table, used = zoo_table(tmp_path, Selection.of_target([hard, shipped, blind]))
    row = cells(table, "III", "4096 × 512 × 1024")
    assert row["trained by"] == "distill from II"
    assert (row["environment steps"], row["CPU seconds"], row["wall seconds"]) == ("3,006,464", "193", "–")
    assert hard.success is not None and shipped.success is not None
    assert row["% success, hard"].startswith(f"{100 * hard.success.rate:.1f} [")
    assert row["% success, shipped"].startswith(f"{100 * shipped.success.rate:.1f} [")
    assert {r.id for r in used} == {hard.id, shipped.id, blind.id}


def test_the_device_measured_last_is_shown_and_no_other(latency_report: Make) -> None:
    old = latency_report("I", "int8", 9000, target="pi@old", time="2020-01-01T00:00:00.000+00:00")
    new = latency_report("I", "int8", 1000, target="pi@new", time="2021-01-01T00:00:00.000+00:00")
    assert cells(case_study(Selection.of_target([new, old]))[0], "I", "int8")["p50"] == "1.00 µs"
    assert cells(case_study(Selection.of_target([new, old], "pi@old"))[0], "I", "int8")["p50"] == "9.00 µs"


LINES = [
    {"policy": "I", "device": "pi", "p50": "1 µs"},
    {"policy": "I", "device": "pi", "p50": ""},
    {"policy": "II", "device": "pi", "p99": "9 µs"},
    {"policy": "blind", "device": "host"},
]


def test_lines_become_rows_with_a_dash_where_a_cell_is_missing() -> None:
    table = tabulate("t", "{{ n }} runs\nA note of {{ n }}.", LINES, left=2, rules=("policy",), n=3)
    assert (table.title, table.notes, table.left) == ("3 runs", ("A note of 3.",), 2)
    assert table.headers == ("policy", "device", "p50", "p99")
    assert [row[2:] for row in table.rows if row] == [("1 µs", "–"), ("–", "–"), ("–", "9 µs"), ("–", "–")]
    assert [number for number, row in enumerate(table.rows) if not row] == [2, 4]


def test_shared_columns_move_to_the_title() -> None:
    table = tabulate("t", "Title", LINES, left=2, once=True, titled=("device",), exempt="blind")
    assert (table.title, table.left) == ("Title · pi", 1)
    assert [row[0] if row else None for row in table.rows] == ["I", "", None, "II", None, "blind"]
    assert tabulate("t", "Title", LINES, titled=("device",)).title == "Title", "the last line has another device"
    with pytest.raises(UndefinedError):
        tabulate("t", "{{ nothing }}", LINES)


def test_rows_that_share_the_index_are_one_line() -> None:
    rows = [
        {"policy": "b", "bits": 8, "error": "0"},
        {"policy": "a", "bits": 8, "error": "1"},
        {"policy": "b", "bits": 2, "error": "9"},
    ]
    assert pivot(rows, ["policy"], "bits", {"error": "error at {} bits"}) == [
        {"policy": "b", "error at 8 bits": "0", "error at 2 bits": "9"},
        {"policy": "a", "error at 8 bits": "1", "error at 2 bits": "–"},
    ]


TABLE = Table("demo", "Demo", ("name", "value in µs"), (("a|b", "1 [0, 2]"), (), ("c", "–")), ("A note.",))
OTHER = "<!-- table:other -->\nkept\n<!-- /table:other -->\n"
PAGE = f"# Title\n<!-- table:demo -->\nold\n<!-- /table:demo -->\ntext\n{OTHER}"


def test_a_table_is_filled_in_wherever_it_has_a_place_once_and_for_all(tmp_path: Path) -> None:
    readme, page, other = tmp_path / "README.md", tmp_path / "docs" / "more" / "page.md", tmp_path / "docs" / "other.md"
    page.parent.mkdir(parents=True)
    for path, words in ((readme, PAGE), (page, PAGE), (other, OTHER)):
        path.write_text(words)
    assert update_pages([TABLE], tmp_path) == [readme, page]
    text = readme.read_text()
    assert (page.read_text(), other.read_text()) == (text, OTHER)
    assert "old" not in text
    assert "| a\\|b | 1 [0, 2] |" in text
    assert text.startswith("# Title\n<!-- table:demo -->\n**Demo**\n")
    assert text.endswith(f"text\n{OTHER}")
    assert update_pages([TABLE], tmp_path) == []
    assert update_pages([replace(TABLE, name="nowhere")], tmp_path) == []
    assert sorted(path.name for path in tmp_path.rglob("*.md")) == ["README.md", "other.md", "page.md"]


@pytest.mark.parametrize(
    "text", ["<!-- table:demo -->", "<!-- table:a --><!-- table:b --><!-- /table:a --><!-- /table:b -->"]
)
def test_a_page_without_pairs_of_markers_is_left_alone(text: str) -> None:
    with pytest.raises(PageError):
        fill_page(text, [TABLE])


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="have 2 cells"):
        Table("t", "T", ("a", "b"), (("only",),))


def test_a_narrow_terminal_gets_parts_and_loses_no_number(study: list[Report]) -> None:
    table, _ = case_study(Selection.of_target(study))
    assert len(column_groups(table, 60)) > 1
    assert [i for group in column_groups(table, 60) for i in group if i >= table.left] == list(
        range(table.left, len(table.headers))
    )
    for width in (60, 200):
        out = io.StringIO()
        print_table(table, Console(file=out, width=width))
        printed = out.getvalue()
        assert "…" not in printed
        for row in table.rows:
            assert all(cell in printed for cell in row)
        assert max(len(line) for line in printed.splitlines()) <= width


def test_of_notes_of_a_kind_the_one_with_the_greatest_figure_is_said(latency_report: Callable[..., Report]) -> None:
    loads = {"fp32": 9.5, "int8": 12.3}
    busy = [latency_report("I", name, notes=(f"busy: load average {load}",)) for name, load in loads.items()]
    plain = latency_report("I", "fp16", notes=("no peak",))
    assert report_notes([*busy, plain]) == ["I fp32, I int8: busy: load average 12.3.", "I fp16: no peak."]


def test_flights_of_another_task_than_todays_are_in_no_table(success_report: Make, latency_report: Make) -> None:
    """Other dynamics or another arena: what they reached says nothing about today's."""
    late = success_report(settings={"latency": 0.2})
    windy = success_report(settings={"wind_m_s": 3.0})
    others = [success_report(task="0123456789ab"), success_report(task=None)]
    timed = latency_report()
    assert keep_todays_flights([late, others[0], windy, timed, others[1]]) == [late, windy, timed]


def test_the_latency_table_names_who_was_trained_late(success_report: Make) -> None:
    flown = [
        success_report(policy, settings={"latency": seconds} if seconds else {}, run="c" * 32, rate=rate)
        for policy in ("I", "I-late")
        for seconds, rate in ((0.0, 0.88), (0.4, 0.7))
    ]
    table, _ = latency_flown(Selection(tuple(flown)))
    notes = everything(table)
    assert "I-late was trained with commands 0 to 400 ms late, drawn for each episode" in notes
    assert "SimpleFlight does 4 m high" in notes
    table, _ = latency_flown(Selection(tuple(flown[:2])))
    assert "the policies were trained without latency" in everything(table)


def test_flights_in_another_simulator_stand_beside_the_embedded_ones(success_report: Make) -> None:
    from quarl.bench.flights import airsim_flights

    embedded = success_report()
    assert embedded.success is not None
    there = replace(embedded, success=replace(embedded.success, simulator="AirSim, some client"), id="f" * 32)
    with pytest.raises(StoreError, match="--simulator airsim"):
        airsim_flights([embedded], embedded.success.preset)
    table, used = airsim_flights([there, embedded], embedded.success.preset)
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
    assert [row["simulator"] for row in rows] == ["embedded", "AirSim, some client"]
    assert rows[1]["ended alike"] == f"{embedded.success.episodes} of {embedded.success.episodes}"
    assert rows[1]["points to embedded"].startswith("0.0 [") and rows[0]["points to embedded"] == "–"
    assert used == [embedded, there] and Report.from_dict(there.to_dict()) == there


def test_flights_of_simulators_are_not_mixed(success_report: Make) -> None:
    embedded = success_report()
    assert embedded.success is not None
    there = replace(embedded, success=replace(embedded.success, simulator="AirSim, some client"), id="f" * 32)
    assert Selection((embedded, there)).of(Kind.SUCCESS) == [embedded]
    assert pair_successes(there, embedded) is None and pair_successes(there, there) is None


def test_precisions_from_the_most_bits_to_the_fewest() -> None:
    names = ["int2", "mixed", "int8", "int4", "fp32", "int5", "fp16"]
    assert sorted(names, key=precision_order) == ["fp32", "fp16", "int8", "int5", "mixed", "int4", "int2"]
