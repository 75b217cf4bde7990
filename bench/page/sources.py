"""What the HTML report reads: stored results and committed bundles; each is read once, nothing is measured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from quarl.bench.report.selection import Kept
from quarl.bench.report.store import DEFAULT_STORE, RESULTS, StoreError, read_results, results_for
from quarl.bench.study.__main__ import STUDIES
from quarl.policy.places import ZOO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.bench.study.experiment import Experiment, Results
    from quarl.bench.study.joined import Joined
    from quarl.bench.tables import Table
    from quarl.policy.bundle import Bundle


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
    def kept(self) -> Kept:
        """What the tables of devices and of answers read."""
        return Kept(partial(results_for, folder=self.results), self.results, self.zoo, self.preset)

    @property
    def own(self) -> dict[str, Kept]:
        """The measurements of this machine itself, by device; empty where it has none."""
        path = self.results / DEFAULT_STORE.name
        reports = read_results(path) if path.exists() else []
        targets = dict.fromkeys(report.target for report in reports if report.artifact and report.counts is None)
        return {target: replace(self.kept, source=lambda name: path, target=target) for target in targets}

    @cached_property
    def bundles(self) -> dict[str, Bundle]:
        """Every committed bundle by name: the navigation policies', then the benchmark's by task.

        Raises:
            BundleError: one is damaged; says which.
        """
        from quarl.bench.report.selection import policy_order
        from quarl.policy.bundle import Bundle

        def loaded(folder: Path) -> list[Bundle]:
            return [Bundle.load(manifest.parent) for manifest in sorted(folder.glob("[!.]*/manifest.json"))]

        navigation = [bundle for shelf in (".", "late", "depth", "memory") for bundle in loaded(self.zoo / shelf)]
        navigation.sort(key=lambda each: policy_order(each.spec.name))
        others = sorted(loaded(self.zoo / "benchmark"), key=lambda each: str(each.spec.provenance.get("task")))
        return {bundle.spec.name: bundle for bundle in (*navigation, *others)}

    @cached_property
    def joined(self) -> dict[str, Joined]:
        """The studies that join what others measured, by name."""
        return {name: module.JOINED for name, module in self._modules.items() if hasattr(module, "JOINED")}

    @cached_property
    def studies(self) -> dict[str, tuple[Experiment, Results | None]]:
        """Each study that measures, with what is stored of it about weights that are still there; None: nothing is."""
        from quarl.bench.study.experiment import stored

        found: dict[str, tuple[Experiment, Results | None]] = {}
        for name, module in self._modules.items():
            if hasattr(module, "EXPERIMENT"):
                results = stored(module.EXPERIMENT, self.results / "study" / module.EXPERIMENT.path.name)
                found[name] = module.EXPERIMENT, results if results.found else None
        return found

    @property
    def _modules(self) -> dict[str, ModuleType]:
        return {name: importlib.import_module(module) for name, (module, _) in STUDIES.items()}

    def made(self, study: str) -> tuple[Sequence[Table], Mapping[str, Figure]]:
        """A study's tables, and its pictures by the stem of their files.

        Raises:
            StoreError, BenchError: nothing is stored of it, or of what it joins.
        """
        if study in self.joined:
            return self.joined[study].made(self.results / "study")
        _, results = self.studies[study]
        if results is None:
            raise StoreError("Its results are not stored yet.")
        return results.tables(), results.figures()

    def bundle_of(self, stem: str) -> str:
        """The bundle that a picture is of, by its file's name: the longest that it ends with; "": it is of none."""
        return max((name for name in self.bundles if stem.endswith(f"-{name}")), key=len, default="")
