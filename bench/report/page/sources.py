"""What the HTML report reads: stored results and committed bundles; each is read once, nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.store import RESULTS, StoreError
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from bench.report.document import Report
    from bench.report.selection import Selection
    from bench.report.tables import Table
    from bench.study.cells import command as cells
    from bench.study.sweep.store import Sweep
    from policy.bundle import Bundle

ROOT = PROJECT_ROOT
ZOO = ROOT / "zoo"
BENCHMARK = "benchmark"


@dataclass(frozen=True)
class Sources:
    """Where to read.

    Attributes:
        results: folder of the stored results, with ``study`` in it.
        zoo: folder of the bundles, with ``benchmark`` in it.
        preset: of the navigation task, that the case study is shown for.
    """

    results: Path = RESULTS
    zoo: Path = ZOO
    preset: str = "hard"

    @property
    def study(self) -> Path:
        """Folder of the quantization study's answers."""
        return self.results / "study"

    @property
    def benchmark(self) -> Path:
        """Folder of the benchmark cells' bundles."""
        return self.zoo / BENCHMARK

    @cached_property
    def bundles(self) -> dict[str, Bundle]:
        """Every committed bundle by name: the case study's, then the benchmark's in the order of its tables.

        Raises:
            BundleError: one is damaged; says which.
        """
        from bench.report.selection import policy_order
        from bench.study.cells.table import order
        from policy.bundle import Bundle
        from train.suites.cells import Cell

        def loaded(folder: Path) -> list[Bundle]:
            return [Bundle.load(manifest.parent) for manifest in sorted(folder.glob("[!.]*/manifest.json"))]

        def place(bundle: Bundle) -> tuple[int, int, str, int, str]:
            origin = bundle.spec.provenance
            return order(Cell(str(origin.get("task", "")), str(origin.get("algorithm", ""))))

        case = sorted(loaded(self.zoo), key=lambda bundle: policy_order(bundle.spec.name))
        return {bundle.spec.name: bundle for bundle in (*case, *sorted(loaded(self.benchmark), key=place))}

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of the weights by bundle."""
        return {name: b.manifest.files["weights.safetensors"].sha256 for name, b in self.bundles.items()}

    @cached_property
    def answers(self) -> dict[str, cells.Answer]:
        """What the benchmark's artifacts reached, by bundle; without those of weights that are no longer there."""
        from bench.study.cells.command import read_answers

        found = read_answers(self.results / "cells.json")
        return {name: each for name, each in found.items() if self.hashes.get(name) == each.weights_sha256}

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Sweeps of weights that are there, by bundle and scheme; those of bundles that are not committed come last."""
        from bench.study.sweep.plot import LABELS
        from bench.study.sweep.store import read_sweeps

        places, schemes = {name: at for at, name in enumerate(self.bundles)}, list(LABELS)

        def place(sweep: Sweep) -> tuple[int, str, int]:
            scheme = sweep.scheme.value, sweep.variant
            known = schemes.index(scheme) if scheme in schemes else len(schemes)
            return places.get(sweep.bundle, len(places)), sweep.bundle, known

        found = [each for each in read_sweeps(self.study) if self.is_current(each.bundle, each.weights_sha256)]
        return sorted(found, key=place)

    @cached_property
    def trained_cells(self) -> set[str]:
        """Those that were trained with quantizers."""
        from bench.study.records import read

        return {record["subject"] for record in read(self.study / "qat.jsonl")}

    def is_current(self, bundle: str, sha256: str) -> bool:
        """Whether these are the weights of the committed bundle of that name, or there is none."""
        return self.hashes.get(bundle, sha256) == sha256

    def reports(self, table: str) -> list[Report]:
        """The measurements that a table stands on.

        Raises:
            StoreError: there are none.
        """
        from bench.report.store import read_results, results_for

        return read_results(results_for(table, self.results))

    def own(self) -> dict[str, Selection]:
        """What this machine measured itself, by device.

        Raises:
            StoreError: there is nothing.
        """
        from bench.report.selection import Selection
        from bench.report.store import DEFAULT_STORE, read_store

        reports = read_store(self.results / DEFAULT_STORE.name)
        targets = dict.fromkeys(report.target for report in reports if report.artifact and report.counts is None)
        return {target: Selection.of_target(reports, target) for target in targets}

    def selection(self, table: str) -> Selection:
        """Those of one device."""
        from bench.report.selection import Selection

        return Selection.of_target(self.reports(table))

    @cached_property
    def case_tables(self) -> dict[str, Table]:
        """The tables about the policies of the case study that there are measurements for, by name."""
        from bench.report import case_study
        from bench.report import virtual_pi as virtual_pi_table

        makers = {
            case_study.CASE_STUDY: lambda: case_study.case_study(self.selection("case-study"), self.preset),
            case_study.LATENCY_FLOWN: lambda: case_study.latency_flown(self.selection("latency-flown"), self.preset),
            virtual_pi_table.VIRTUAL_PI: lambda: virtual_pi_table.virtual_pi(self.reports("virtual-pi"), self.preset),
        }
        found = {}
        for name, make in makers.items():
            try:
                found[name] = make()[0]
            except (case_study.NothingStoredError, StoreError):
                continue  # its section says what is missing
        return found

    def document(self, name: str) -> Mapping[str, Any]:
        """A stored JSON document of the results folder.

        Raises:
            StoreError: it is missing or damaged.
        """
        import json

        path = self.results / name
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StoreError(f"{path} does not exist.") from None
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}.") from None
        if not isinstance(values, dict):
            raise StoreError(f"{path} holds no JSON object.")
        return values
