"""The public interface as a notebook uses it: a Stable-Baselines3 policy imported, converted, deployed, measured."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import quarl
from quarl.device.deploy.errors import ReleaseError
from quarl.policy.bundle import Bundle

FILES = Path(__file__).parent / "convert/importers/files/sb3/ppo_pendulum_normalised"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> quarl.Policy:
    found = quarl.import_policy(
        FILES / "policy.zip",
        vecnormalize=FILES / "vecnormalize.pkl",
        task="Pendulum-v1",
        name="swing",
        episodes=2,
        output_path=tmp_path_factory.mktemp("bundles") / "swing",
    )
    found.convert(bits=[8, 32])
    return found


@pytest.fixture(scope="module")
def device(policy: quarl.Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[quarl.Device]:
    with pytest.MonkeyPatch.context() as patch, quarl.Device("local") as found:
        patch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path_factory.mktemp("device")))
        assert found.deploy(policy, bits=[8, 32])["previous"] is None
        yield found


def test_importing_it_loads_neither_numpy_nor_tensorflow_nor_onnx() -> None:
    program = "import quarl, sys; dir(quarl); print({'numpy', 'tensorflow', 'onnx', 'rich'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def test_every_public_name_is_there_and_documented() -> None:
    public: list[str] = vars(quarl)["__all__"]
    assert {"load", "import_policy", "Policy", "Device"} <= set(public) <= set(dir(quarl))
    for name in public:
        assert getattr(quarl, name).__doc__, name
    stub = ast.parse(Path(quarl.__file__).with_suffix(".pyi").read_text())
    typed = [alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(typed) == sorted(public), "what type checkers read"
    with pytest.raises(AttributeError, match="nothing"):
        quarl.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_policy_acts_and_is_evaluated(policy: quarl.Policy) -> None:
    assert policy.name == "swing" and {"int8.tflite", "fp32.onnx", "int8.native"} <= set(policy.artifacts)
    action, coarse = policy.act([1.0, 0.0, 0.0]), policy.act(np.array([1.0, 0.0, 0.0]), bits=8)
    assert isinstance(action, np.ndarray) and isinstance(coarse, np.ndarray) and action.shape == (1,)
    assert 0 < abs(float(action[0] - coarse[0])) < 0.5
    judged = policy.evaluate(3, bits=8)
    assert (judged.episodes, judged.precision, judged.success) == (3, "int8", None)
    assert json.loads(json.dumps(judged.to_dict()))["task"] == "Pendulum-v1"
    assert "Pendulum-v1" in str(judged) and "<td>Pendulum-v1</td>" in judged._repr_html_()


def test_a_discrete_policy_returns_a_number(tmp_path: Path) -> None:
    bundle = Path(__file__).parents[1] / "zoo" / "benchmark" / "cartpole-dqn"
    assert quarl.Policy(Bundle.load(bundle)).act([0.0, 0.0, 0.1, 0.0]) in (0, 1)


def test_a_device_is_measured(policy: quarl.Policy, device: quarl.Device) -> None:
    latency, memory = device.latency(policy, runs=40, warmup=4), device.memory("swing", runs=10)
    assert set(latency.p50_us) == {"fp32", "int8"} and min(latency.p50_us.values()) > 0
    assert [row["precision"] for row in memory.rows()] == ["fp32", "int8"]
    assert "speed-up over fp32" in str(latency) and "loopback" in memory.notes()[0]
    judged = device.success(policy, episodes=3)
    assert isinstance(judged, quarl.Evaluations) and [each.episodes for each in judged.evaluations] == [3, 3]
    # The same episodes on this host: the device decides as the artifact does here.
    here = policy.evaluate(3, bits=8)
    assert judged.evaluations[1].mean_return == pytest.approx(here.mean_return, rel=1e-6)


def test_a_device_is_looked_at_and_cleared(policy: quarl.Policy, device: quarl.Device) -> None:
    assert device.status()["target"] == "local"
    current = device.releases().to_dict()["policies"]["swing"]["current"]
    assert current and current in str(device.releases())
    assert device.deploy(policy, bits=[8, 32])["unchanged"]
    with pytest.raises(ReleaseError) as refused:
        device.latency("absent")
    assert refused.value.code == "release"
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        device.serve(policy, speed=3)
    assert device.remove(policy, whole=True)["removed"] == [current]
