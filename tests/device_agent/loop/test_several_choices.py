"""Policies of several choices, and of one that does not count from 0, converted and served by the real agent."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.export_c.writing import ExportError, export
from quarl.convert.pipeline import convert_all
from quarl.device.agent import building
from quarl.device.agent.loop.frames import Flag
from quarl.device.deploy.static_agent.packing import pack_artifact
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
from tests.device_agent.loop.loops import PATIENCE_S, LoopProcess, in_python, next_where
from tests.device_agent.test_static_agent import StaticAgent

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
    for precision in PRECISIONS:
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


@pytest.mark.parametrize("kind", ["agent in C", "engine", "runtime"])
def test_so_do_the_agent_in_c_and_every_loop(
    kind: str, served: Bundle, tmp_path: Path, start_any: Callable[..., LoopProcess]
) -> None:
    head, pack = served.spec.head, tmp_path / "policy.pack"
    assert not isinstance(head, ContinuousHead)
    rows = np.random.default_rng(5).normal(size=(12, 6)).astype(np.float32)
    pack.write_bytes(pack_artifact(served, Precision.INT8))
    program = StaticAgent(building.agent(platform.machine()), pack)
    assert program.ask("load", precision="int8")["golden"]["action_agreement"] > 0.9
    wanted = program.ask("act", observations=rows.tolist())["actions"]
    to_action: Callable[[Any], Any] = head.to_action
    assert wanted == [to_action(head.choose(row)) for row in program.ask("act", observations=rows.tolist())["outputs"]]
    assert program.end() == 0
    runtime = ["--runtime=native"] if kind == "engine" else ["--runtime=litert"]
    in_c = [building.agent(platform.machine()), pack, "loop"]
    command = in_c if kind == "agent in C" else [*in_python(served.path), *runtime]
    common = ("--pace=observation", "--rate=0.1", "--priority=0")
    refused = start_any(command, *common, f"--fallback={','.join(['99'] * len(head.numbers))}")
    assert refused.process.wait(PATIENCE_S) == 1
    fallback = ",".join(str(each[-1]) for each in head.numbers)
    agreeing = 0
    with start_any(command, *common, f"--fallback={fallback}").connect() as client:
        client.send(rows[0] * np.nan)
        lost = next_where(client, lambda action: action.sequence == 1)
        for row, action in zip(rows, wanted, strict=True):
            sequence = client.send(row)
            made = next_where(client, lambda each, sequence=sequence: each.sequence == sequence)
            agreeing += (made.index if isinstance(head, DiscreteHead) else list(made.outputs)) == action
    found = (lost.index,) if isinstance(head, DiscreteHead) else tuple(lost.outputs)
    assert found == tuple(each[-1] for each in head.numbers) and lost.flags & Flag.FALLBACK
    assert agreeing == len(rows) if kind != "runtime" else agreeing > 9  # LiteRT rounds otherwise here and there


def test_what_does_not_serve_it_says_so(served: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=served.spec.head.describe()):
        export(served, tmp_path / "c", Precision.INT8)
