"""The page of the committed results, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quarl.bench import page
from quarl.bench.report import store
from quarl.policy.places import PROJECT_ROOT


@pytest.fixture(scope="session")
def committed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page without what this machine has measured itself."""
    folder = tmp_path_factory.mktemp("committed")
    kept = shutil.ignore_patterns("results.*", "*.html", "*.png", "*.svg", "weights", "study")
    shutil.copytree(PROJECT_ROOT / "results", folder / "results", ignore=kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "RESULTS", folder / "results")
        assert page.main(["--output", str(folder / "report.html")]) == 0
    return folder / "report.html"
