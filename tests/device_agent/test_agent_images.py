"""An image policy in the agent: observations of 28,224 numbers in one line, measured and served like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device.agent.protocol import MAX_LINE_BYTES
from policy.bundle import Bundle
from policy.bundle_writer import write_bundle
from policy.network import forward_float, weight_shapes
from policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    RuntimeName,
)

SHAPE = (84, 84, 4)
ROWS = 60


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory, make_artifacts: Callable[[Bundle], Bundle]) -> Bundle:
    """A policy of few weights on images of Atari's size."""
    random = np.random.default_rng(2)
    spec = PolicySpec(
        name="watching",
        observation=(ObservationField("screen", SHAPE, "grey level"),),
        normaliser=Normaliser((0.0,), (255.0,), float("inf")),
        network=NetworkSpec((8,), convolutions=(Convolution(4, 8, 8), Convolution(4, 3, 2))),
        head=DiscreteHead(("stay", "up", "down")),
        control_period_s=1 / 15,
        environment=EnvironmentSpec("ALE/Pong-v5"),
    )
    weights = {
        name: random.normal(0.0, 1.0 / np.sqrt(np.prod(shape[:-1]) or 1), shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    images = random.integers(0, 256, (80, *SHAPE)).astype(np.float32)
    path = tmp_path_factory.mktemp("watching") / "watching"
    return make_artifacts(write_bundle(path, spec, weights, images[:64], images[64:]))


def test_an_image_policy_is_verified_measured_and_asked(
    watching: Bundle, converse: Callable[..., tuple[list[dict[str, Any]], bytes]]
) -> None:
    fresh = np.random.default_rng(7).integers(0, 256, (ROWS, int(np.prod(SHAPE)))).astype(np.float32)
    rows = fresh.tolist()
    long = {"op": "act", "observations": rows}
    assert len(json.dumps(long)) < MAX_LINE_BYTES
    broken = [*rows[0][:30], "x", *rows[0][31:]]
    lines = [
        json.dumps(request).encode()
        for request in (
            {"op": "hello"},
            {"op": "load", "precision": "fp32"},
            {"op": "memory", "runs": 5},
            {"op": "latency", "warmup": 2, "runs": 10},
            {"op": "latency", "warmup": 2, "runs": 10, "path": "decide"},
            {"op": "act", "observation": rows[0]},
            long,
            {"op": "act", "observation": rows[0][:-1]},
            {"op": "act", "observation": broken},
            {"op": "load", "precision": "int8"},
            {"op": "act", "observation": rows[0]},
        )
    ]
    replies, _ = converse(watching.path, lines)
    hello, load, memory, runtime, decide, one, many, short, wrong, integer, served = replies
    assert hello["bundle"]["observation_size"] == 28_224
    assert load["golden"]["vectors"] == 16 and load["golden"]["action_agreement"] == 1.0
    assert memory["memory"]["running_peak"] and runtime["runs"] == decide["runs"] == 10
    expected = forward_float(watching.spec, watching.weights(), fresh)
    np.testing.assert_allclose(one["outputs"], expected[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(many["outputs"], expected, rtol=0, atol=1e-4)
    assert many["actions"] == expected.argmax(axis=1).tolist()
    assert "28223 values" in short["error"]["message"] and "screen (28224)" in short["error"]["message"]
    assert len(short["error"]["message"]) < 300, "an error does not repeat the image"
    assert "observation[30] (screen[30])" in wrong["error"]["message"]
    assert integer["golden"]["max_error_steps"] <= 3.0 and served["ok"]


@pytest.mark.parametrize("runtime", [RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME])
def test_the_other_runtimes_load_it_too(
    watching: Bundle, converse: Callable[..., tuple[list[dict[str, Any]], bytes]], runtime: RuntimeName
) -> None:
    lines = [b'{"op": "load", "precision": "int8", "runtime": "%s"}' % runtime.value.encode()]
    replies, _ = converse(Path(watching.path), lines)
    assert replies[0]["ok"], replies[0]
    assert replies[0]["loaded"]["runtime"] == runtime.value
