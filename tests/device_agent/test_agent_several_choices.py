"""Policies of several choices, and of one that does not count from 0, converted and served by the real agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.export_c.writing import ExportError, export
from quarl.convert.pipeline import convert_all
from quarl.device.deploy.static_agent.packing import PackError, packed
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    Head,
    MultiDiscreteHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    weight_shapes,
)

HEADS: dict[str, Head] = {
    "dials": MultiDiscreteHead((3, 2, 4), (5, 0, -1)),
    "switches": MultiDiscreteHead((2, 2, 2)),
    "from-one": DiscreteHead(("stay", "left", "right"), 1),
}
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4)


@pytest.fixture(scope="module", params=HEADS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with artifacts of all formats that passed the parity gate."""
    random, name = np.random.default_rng(4), request.param
    spec = PolicySpec(
        name=name,
        observation=(ObservationField("seen", (6,), "1"),),
        normaliser=Normaliser((0.0,) * 6, (1.0,) * 6),
        network=NetworkSpec((16,)),
        head=HEADS[name],
        control_period_s=0.1,
        environment=EnvironmentSpec("Test-v0"),
    )
    weights = {each: random.normal(0.0, 0.5, shape).astype(np.float32) for each, shape in weight_shapes(spec).items()}
    rows = random.normal(size=(400, 6)).astype(np.float32)
    bundle = write_bundle(tmp_path_factory.mktemp(name) / name, spec, weights, rows[:300], rows[300:])
    convert_all([bundle], PRECISIONS, list(ArtifactFormat), accept=True)
    return Bundle.load(bundle.path)


@pytest.mark.parametrize("runtime", RuntimeName)
def test_the_agent_chooses_each_component_by_its_own_outputs(
    runtime: RuntimeName, served: Bundle, start_agent: Callable[..., Any]
) -> None:
    agent = start_agent(served.path)
    head, rows = served.spec.head, np.random.default_rng(5).normal(size=(20, 6)).astype(np.float32)
    assert not isinstance(head, ContinuousHead)
    floats = None
    for precision in (each for each in PRECISIONS if runtime.artifact_format.holds(each)):
        golden = agent.ask("load", precision=precision.value, runtime=runtime.value)["golden"]
        assert golden["action_agreement"] > 0.9
        reply = agent.ask("act", observations=rows.tolist())
        outputs = np.array(reply["outputs"])
        assert outputs.shape == (20, head.size)
        chosen = np.stack([outputs[:, part].argmax(axis=1) for part in head.parts], axis=1)
        wanted = (chosen + np.array(head.example)).reshape(20, *head.action_shape)
        assert reply["actions"] == wanted.tolist()
        assert agent.ask("act", observation=rows[0].tolist(), outputs=False)["action"] == wanted[0].tolist()
        assert (np.ptp(wanted, axis=0) > 0).all()
        floats = wanted if floats is None else floats
        assert np.mean(wanted == floats) > 0.8


def test_what_does_not_serve_it_says_so(served: Bundle, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=served.spec.head.describe()):
        packed(served, Precision.INT8)
    with pytest.raises(ExportError, match=served.spec.head.describe()):
        export(served, tmp_path / "c", Precision.INT8)
