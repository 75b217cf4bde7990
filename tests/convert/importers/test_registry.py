"""Formats are entry points: this package's, and those of another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl.convert.importers import registry
from quarl.convert.importers.chain import ForeignError

MODULE = """
from quarl.convert.importers.chain import ForeignPolicy
from quarl.convert.importers.registry import Importer

def read(path, output=None):
    return ForeignPolicy(f"another program, {output}", (), (), None)

IMPORTER = Importer("Another", (".another",), read, ("output",))
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package with a format."""
    (tmp_path / "another_format.py").write_text(MODULE)
    metadata = tmp_path / "another_format-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another-format\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[quarl.importers]\nanother = another_format:IMPORTER\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.importers.cache_clear()
    yield
    registry.importers.cache_clear()


def test_every_format_is_an_entry_point() -> None:
    assert {each.name for each in registry.importers()} >= {"ONNX", "LEAPP", "exploy", "Stable-Baselines3", "Keras"}


@pytest.mark.usefixtures("_installed")
def test_another_package_adds_a_format(tmp_path: Path) -> None:
    path = tmp_path / "policy.another"
    path.write_text("")
    assert registry.read(path, output="mean", spec=None).source == "another program, mean"
    with pytest.raises(ForeignError, match="--spec"):
        registry.read(path, spec=path)


def test_what_is_of_no_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_text("")
    for name in ("policy.txt", "absent.onnx"):
        with pytest.raises(ForeignError, match="Stable-Baselines3"):
            registry.read(tmp_path / name)
