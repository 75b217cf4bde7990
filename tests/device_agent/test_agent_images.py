"""Image policies in the agent: observations of 28,224 numbers in one line, measured and served like any other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.device.agent.protocol import MAX_LINE_BYTES
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.reference import forward_float
from quarl.policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    RuntimeName,
    weight_shapes,
)

SHAPE = (84, 84, 4)
ROWS = 60


def random_weights(spec: PolicySpec, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: random.normal(0.0, 1.0 / np.sqrt(np.prod(shape[:-1]) or 1), shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }


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
    weights = random_weights(spec, random)
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
    assert load["golden"]["vectors"] >= 16 and load["golden"]["action_agreement"] == 1.0
    assert memory["memory"]["running_peak"] and runtime["runs"] == decide["runs"] == 10
    expected = forward_float(watching.spec, watching.weights(), fresh)
    np.testing.assert_allclose(one["outputs"], expected[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(many["outputs"], expected, rtol=0, atol=1e-4)
    assert many["actions"] == expected.argmax(axis=1).tolist()
    assert "28223 values" in short["error"]["message"] and "screen (28224)" in short["error"]["message"]
    assert len(short["error"]["message"]) < 300, "an error does not repeat the image"
    assert "observation[30] (screen[30])" in wrong["error"]["message"]
    assert integer["golden"]["max_error_steps"] <= 3.0 and served["ok"]


@pytest.mark.parametrize("runtime", [RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE])
def test_the_other_runtimes_load_it_too(
    watching: Bundle, converse: Callable[..., tuple[list[dict[str, Any]], bytes]], runtime: RuntimeName
) -> None:
    lines = [b'{"op": "load", "precision": "int8", "runtime": "%s"}' % runtime.value.encode()]
    replies, _ = converse(Path(watching.path), lines)
    assert replies[0]["ok"], replies[0]
    assert replies[0]["loaded"]["runtime"] == runtime.value


@pytest.fixture(scope="module")
def seeing(watching: Bundle, tmp_path_factory: pytest.TempPathFactory, make_artifacts: Callable) -> Bundle:
    """A policy of a depth picture and two vector fields, of another task."""
    random = np.random.default_rng(3)
    fields = (("depth", (84, 84, 1), "m"), ("goal", (2,), "1"), ("motion", (6,), "1"))
    picture = math.prod(fields[0][1])
    spec = replace(
        watching.spec,
        name="seeing",
        observation=tuple(ObservationField(*each) for each in fields),
        normaliser=Normaliser((0.0,) * (picture + 8), (20.0,) * picture + (1.0,) * 8, 5.0),
        environment=EnvironmentSpec("Seeing-v0"),
    )
    pictures, vectors = random.uniform(0.0, 20.0, (80, picture)), random.normal(0.0, 1.0, (80, 8))
    observations = np.concatenate([pictures, vectors], axis=1).astype(np.float32)
    path = tmp_path_factory.mktemp("seeing") / "seeing"
    made: Bundle = make_artifacts(
        write_bundle(path, spec, random_weights(spec, random), observations[:64], observations[64:])
    )
    return made


@pytest.mark.parametrize("runtime", RuntimeName)
def test_a_policy_of_a_picture_and_a_vector_is_fed_one_flat_row(
    seeing: Bundle, converse: Callable[..., tuple[list[dict[str, Any]], bytes]], runtime: RuntimeName
) -> None:
    row = seeing.golden().observations[0].tolist()
    requests = (
        {"op": "hello"},
        {"op": "load", "precision": "fp32", "runtime": runtime.value},
        {"op": "act", "observation": row},
        {"op": "act", "observation": row[:-1]},
        {"op": "act", "observation": [*row[:-1], "x"]},
        {"op": "load", "precision": "int8"},
        {"op": "act", "observation": row},
        {"op": "episodes", "episodes": 1},
    )
    replies, _ = converse(seeing.path, [json.dumps(request).encode() for request in requests])
    hello, load, one, short, wrong, integer, served, flown = replies
    assert hello["bundle"]["observation_size"] == 84 * 84 + 8
    assert load["golden"]["action_agreement"] == 1.0
    np.testing.assert_allclose(one["outputs"], seeing.golden().outputs[0], rtol=0, atol=1e-4)
    assert "depth (7056), goal (2), motion (6)" in short["error"]["message"]
    assert "observation[7063] (motion[5])" in wrong["error"]["message"]
    assert integer["golden"]["max_error_steps"] <= 3.0 and served["ok"]
    assert "'goal' of shape" in flown["error"]["message"], "of another task than the simulator's"
