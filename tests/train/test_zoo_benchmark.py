"""The benchmark policies of the repository: whole, of their cell, judged, and convertible at every precision."""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.executor import RuntimeProcess, runtime_processes
from quarl.convert.pipeline import convert
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from quarl.train.evaluate import check_task, task_options
from quarl.train.intervals import read_return_interval
from quarl.train.runs.logs import CURVE_FILE, column, read_rows
from quarl.train.suites.errors import TaskError
from quarl.train.suites.make import make_task
from quarl.train.suites.names import resolve

ZOO = Path(__file__).resolve().parents[2] / "zoo" / "benchmark"
NAMES = sorted(path.parent.name for path in ZOO.glob("[!.]*/manifest.json"))
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)
LARGEST_BYTES = 16e6  # a committed bundle, its recorded observations included


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Mapping[RuntimeName, RuntimeProcess]]:
    """The runtimes, started once: importing them takes longer than executing a small policy."""
    with runtime_processes() as started:
        yield started


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_whole_has_its_provenance_and_is_of_its_task(name: str) -> None:
    bundle = Bundle.load(ZOO / name)
    origin = bundle.spec.provenance
    assert bundle.spec.name == name == f"{resolve(origin['task']).short_name}-{origin['algorithm']}"
    assert isinstance(origin["seed"], int) and origin["settings"]
    assert min(origin["steps"], origin["cpu_s"]) > 0
    row = origin["judged"][0]
    if interval := read_return_interval(row):
        assert interval[0] < row["mean_return"] < interval[1]
    assert bundle.manifest.artifacts == {}
    assert sum(path.stat().st_size for path in bundle.path.iterdir()) < LARGEST_BYTES
    rows = read_rows((bundle.path / CURVE_FILE).read_text())
    assert column(rows, "return")[1]
    assert any(column(rows, heading)[1] for heading in rows[0] if heading.startswith("greedy_return"))
    assert len(np.unique(bundle.golden().actions, axis=0)) > 1  # one that always does the same would pass any gate
    assert row["episodes"] >= 100, f"type: quarl study cells --take zoo/benchmark/{name}"
    try:
        task = make_task(origin["task"], options=task_options(bundle.spec, origin["task"]))
    except TaskError as error:
        pytest.skip(str(error))  # its suite is not installed
    check_task(bundle.spec, task)


@pytest.mark.parametrize(
    "name",  # a discrete and a continuous one; the bytes of all stand in tests/convert/bytes.json
    ["cartpole-dqn", "walker2d-ddpg", pytest.param("pong-dqn", marks=pytest.mark.slow)],
)
def test_a_bundle_converts_at_every_precision_through_the_gate(
    name: str, runtimes: Mapping[RuntimeName, RuntimeProcess], tmp_path: Path
) -> None:
    copy = copy_bundle(Bundle.load(ZOO / name), tmp_path / name, origin="zoo")
    for precision, artifact_format in product(PRECISIONS, ArtifactFormat):
        entry = convert(copy, precision, artifact_format, runtimes).entry
        tolerance = Bundle.load(copy.path).read_expected(entry).tolerance.max()
        assert all(parity.max_error <= tolerance for parity in entry.runtimes.values())
    assert len(Bundle.load(copy.path).manifest.artifacts) == len(PRECISIONS) * len(ArtifactFormat)
