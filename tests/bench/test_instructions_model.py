"""The modelled bounds and the active share, worked by hand; the stored document; the tables of the virtual Pi."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.bench import virtual_pi
from quarl.bench.cost import cost_model
from quarl.bench.cost.activity import activities, read_share
from quarl.bench.cost.cost_model import Level, Weights
from quarl.bench.instructions import TARGET
from quarl.bench.qemu_counter.counting import COLUMNS, PATHS, Counted
from quarl.bench.report.document import Artifact, Counts, InvalidDocumentError, Kind, Report, Transport
from quarl.bench.report.selection import Selection
from quarl.bench.report.store import StoreError
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
)
from tests.refusals import refused

Make = Callable[..., Report]
EMULATED = {"emulated": True, "cpu_model": "Cortex-A53", "model": "virtual"}


def counted(instructions: int, l1: int, l2: int, l2_random: int | None = None) -> Counted:
    values = {"instructions": instructions, "l1d_misses": l1, "l2_data_misses": l2}
    values["l2_random_misses"] = l2 if l2_random is None else l2_random
    return Counted(**{**dict.fromkeys(COLUMNS, 0), **values})


def test_the_active_share_by_hand(tmp_path: Path) -> None:
    """One layer of 4 outputs: two are positive for a positive observation, one of them for a negative one."""
    spec = PolicySpec(
        "four",
        (ObservationField("x", (1,), "1"),),
        Normaliser((0.0,), (1.0,)),
        NetworkSpec((4, 2)),
        DiscreteHead(("a", "b", "c")),
        1.0,
        EnvironmentSpec("nowhere"),
    )
    weights = {
        "dense_0/kernel": np.array([[1.0, 1.0, -1.0, -1.0]], np.float32),
        "dense_0/bias": np.array([0.0, 0.0, 0.0, -2.0], np.float32),  # the last is never positive within ±1
        "dense_1/kernel": np.ones((4, 2), np.float32) * np.array([1.0, -1.0], np.float32),  # one of two
        "dense_1/bias": np.zeros(2, np.float32),
        "head/kernel": np.ones((2, 3), np.float32),
        "head/bias": np.array([0.0, 1.0, 2.0], np.float32),
    }
    observations = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32)
    write_bundle(tmp_path / "four", spec, weights, observations, observations)
    # dense_1: 8 weights, of which (2 + 2 + 1 + 1) / 4 of 4 rows; head: 6 weights, of which one row of two.
    expected = (8 * 1.5 / 4 + 6 * 0.5) / 14
    found = activities(Bundle.load(tmp_path / "four"), Precision.INT8)
    assert [(layer.weights, layer.share) for layer in found] == [(4, 1.0), (8, 0.375), (6, 0.5)]
    assert read_share(found[1:]) == pytest.approx(expected)


def test_bounds_worked_by_hand() -> None:
    # 1,200 instructions: 500 ns at two a cycle of 1.2 GHz, 2,000 ns at one in two cycles.
    # 10 lines, 2 of them from DRAM: 8 · 29 + 2 · 173 = 578 ns.
    found = cost_model.bounds(counted(1_200, 10, 2))
    assert found.lower_ns == pytest.approx(500.0)
    assert found.upper_ns == pytest.approx(2_578.0)


def test_where_memory_is_slower_than_issue_it_is_the_lower_bound() -> None:
    # 61 lines of 64 bytes at 2.44 GB/s: 1,600 ns.
    assert cost_model.bounds(counted(1_200, 61, 61)).lower_ns == pytest.approx(1_600.0)


def test_each_bound_takes_the_replacement_that_makes_it_one() -> None:
    # Fewest: 61 lines, 1,600 ns. Most: 100 lines of 100 from DRAM, 17,300 ns, and 2,000 ns for the instructions.
    for lru, chance in ((100, 61), (61, 100)):
        found = cost_model.bounds(counted(1_200, 100, lru, chance))
        assert found.lower_ns == pytest.approx(1_600.0)
        assert found.upper_ns == pytest.approx(19_300.0)


@pytest.fixture(scope="module")
def spec() -> PolicySpec:
    return PolicySpec.from_json((ZOO / "I" / "policy.json").read_bytes())


def test_weights_of_policy_i_and_where_they_fit(spec: PolicySpec) -> None:
    # 32·64 + 64·64 + 64·64 + 64·25 = 11,840 weights, 64 + 64 + 64 + 25 = 217 biases of 4 bytes.
    assert Weights.of(spec, Precision.FP32) == Weights(11_840, 4 * 11_840 + 868, Level.L2)
    assert Weights.of(spec, Precision.FP16) == Weights.of(spec, Precision.FP32)
    assert Weights.of(spec, Precision.INT8) == Weights(11_840, 11_840 + 868, Level.L1)
    packed = {bits: Weights.of(spec, Precision(f"int{bits}"), bits).bytes - 868 for bits in (8, 5, 4, 3, 2)}
    assert packed == {8: 11_840, 5: 11_840, 4: 5_920, 3: 5_920, 2: 2_960}
    mixed = {"dense_0": 8, "dense_1": 4, "dense_2": 2, "head": 8}
    assert Weights.of(spec, Precision.MIXED, mixed).bytes - 868 == 2_048 + 2_048 + 1_024 + 1_600
    assert Weights.of(spec, Precision("int2")) == Weights.of(spec, Precision.INT8)  # an int8 container
    assert [cost_model.level_of(kb << 10) for kb in (32, 33, 512, 513)] == [Level.L1, Level.L2, Level.L2, Level.DRAM]


def test_roofline_worked_by_hand(spec: PolicySpec) -> None:
    # 11,840 MACs at 2 a cycle: 5,920 cycles of 0.8333 ns; int8 at 4 a cycle: half of it.
    assert cost_model.roofline_ns(Weights.of(spec, Precision.FP32), Precision.FP32) == pytest.approx(4_933.3, abs=0.1)
    assert cost_model.roofline_ns(Weights.of(spec, Precision.INT8), Precision.INT8) == pytest.approx(2_466.7, abs=0.1)
    # 2.44 MB from DRAM take 1 ms, whatever the arithmetic.
    assert cost_model.roofline_ns(Weights(1_000, 2_440_000, Level.DRAM), Precision.INT8) == pytest.approx(1e6)
    # A quarter of the rows is read: a quarter of the time.
    sparse = cost_model.roofline_ns(Weights(1_000, 2_440_000, Level.DRAM), Precision.INT8, 0.25)
    assert sparse == pytest.approx(2.5e5)


@pytest.fixture
def counts_report() -> Make:
    def make(policy: str = "I", precision: str = "int8", runtime: str = "litert", n: int = 40_000) -> Report:
        values = {**dict.fromkeys(COLUMNS, 7), "instructions": n}
        paths = {path: dict(values) for path in PATHS}
        paths["runtime_cold"]["l2_data_misses"] = 900
        return Report(
            kind=Kind.COUNTS,
            run="c" * 32,
            policy=policy,
            precision=precision,
            runtime=runtime,
            runtime_version="2.3.0",
            threads=1,
            artifact=Artifact(
                f"{precision}.tflite", hashlib.sha256(f"{policy}{precision}".encode()).hexdigest(), 61_234, "int8"
            ),
            target=TARGET,
            transport=Transport.LOCAL_PROCESS,
            device=_device(),
            counts=Counts(
                warmup=10,
                runs=11,
                paths=paths,
                weights={"macs": 11_840, "bytes": 12_708, "level": "L1"},
                model={
                    "bounds_ns": {path: [17_000, 80_000] for path in PATHS},
                    "roofline_ns": 2_467,
                    "assumptions": cost_model.ASSUMPTIONS,
                },
            ),
            code_version="v0.1",
        )

    return make


def _device() -> dict[str, Any]:
    names = (
        "machine cores mhz_nominal mhz_now mhz_firmware governor temperature_c throttled memory_total_bytes kernel os"
    )
    return {**dict.fromkeys(names.split()), "python": "3.11.2", "virtualised": None, "machine": "aarch64", **EMULATED}


def test_the_document_of_counts_is_read_as_it_was_written(counts_report: Make, memory_report: Make) -> None:
    report = counts_report()
    assert Report.from_json(report.to_json()) == report
    assert "counts" not in memory_report().to_dict()  # documents of other kinds are as they were
    data = report.to_dict()
    with refused(InvalidDocumentError, "kind_mismatch"):
        Report.from_dict({**data, "kind": "memory"})
    del data["counts"]["paths"]["decide_cold"]
    with pytest.raises(InvalidDocumentError, match="decide_cold"):
        Report.from_dict(data)


def test_counting_does_not_choose_the_device_of_the_other_tables(counts_report: Make, latency_report: Make) -> None:
    latency = latency_report()
    assert Selection.of_target([latency, counts_report()]).reports == (latency,)


def test_an_emulated_device_is_chosen_only_where_there_is_no_other(latency_report: Make) -> None:
    real, emulated = latency_report(), latency_report(target="pi@virtual", device=_device())
    assert Selection.of_target([real, emulated]).reports == (real,)
    assert Selection.of_target([emulated]).reports == (emulated,)
    assert Selection.of_target([real, emulated], "pi@virtual").reports == (emulated,)


def test_both_paths_have_their_table(counts_report: Make) -> None:
    runtime, agent = virtual_pi.counts_tables([counts_report("II"), counts_report("I"), counts_report("I", "fp32")])
    assert [row[:2] for row in runtime.rows] == [("I", "fp32"), ("I", "int8"), ("II", "int8")]
    cells = dict(zip(runtime.headers, runtime.rows[0], strict=True))
    assert (cells["instructions"], cells["L2 misses"], cells["L2 misses, cold"]) == ("40,000", "14", "907")
    assert (cells["modelled bound"], cells["roofline"]) == ("17.0 µs … 80.0 µs", "2.47 µs")
    assert any(note.startswith("MODEL, not measured") for note in agent.notes)
    native = counts_report("I", runtime="native")
    assert native.counts is not None and isinstance(native.counts.model, dict)
    native.counts.model["roofline_sparse_ns"] = 1_234
    assert Report.from_json(native.to_json()) == native
    (table, _) = virtual_pi.counts_tables([native])
    assert dict(zip(table.headers, table.rows[0], strict=True))["roofline"] == "1.23 µs … 2.47 µs"


def test_the_virtual_pis_table_joins_counts_with_what_the_guest_measured(
    counts_report: Make, memory_report: Make, success_report: Make, latency_report: Make
) -> None:
    guest = {"target": "pi@virtual", "device": _device()}
    reports = [
        counts_report(n=39_999),
        counts_report(),
        counts_report(precision="fp32", n=50_000),
        memory_report(**guest),
        success_report(**guest),
        success_report(rate=0.5, settings={"latency": 0.1}, **guest),
        latency_report(p50=1_000_000, **guest),
        latency_report(precision="fp32", p50=2_000_000, **guest),
        memory_report(policy="II", target="pi@raspberrypi"),
    ]
    table, used = virtual_pi.virtual_pi(reports)
    assert [row[0] for row in table.rows if row] == ["I", "I"]
    cells = dict(zip(table.headers, table.rows[-1], strict=True))
    assert cells["instructions"] == "40,000"  # the latest
    assert cells["MB resident"] == "35.5"
    assert cells["% success, hard"].startswith("8")  # flown as the preset is
    assert cells["fp32's time over this one's, emulated"] == "2.00× [2.00, 2.00]"
    assert not any(" ms" in cell or "1,000" in cell for row in table.rows for cell in row)  # no emulated time
    assert len(used) == 6
    assert any("EMULATED" in note for note in table.notes)


def test_without_counts_there_is_no_table(memory_report: Make) -> None:
    with pytest.raises(StoreError, match=r"bench instructions"):
        virtual_pi.virtual_pi([memory_report(target="pi@virtual", device=_device())])
