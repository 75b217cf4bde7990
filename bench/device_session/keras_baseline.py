"""The denominator of a speed-up: the same policy in the framework that trained it, timed in a process of its own.

Started by latency.py; a person can type to it: ``{"call": "keras", "warmup": 20, "runs": 200}`` a line, one reply a
line with the keys of the agent's ``latency``. TensorFlow is imported here and nowhere else in this room.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quarl.policy.spec import NetworkSpec

CALLS = ("keras", "tf.function")
TOLERANCE = 1e-3
"""Largest relative difference to the golden outputs; a baseline that computes something else is none."""


def build(bundle: Any) -> Any:
    """Return the float policy as a Keras model: raw observation (1, N) in, outputs (1, A) out; no continuous one is
    asked."""
    import keras

    from quarl.policy.exact import LAYER_NORM_EPSILON
    from quarl.policy.reference import layer_names, normaliser_bounds, normaliser_constants
    from quarl.policy.spec import observation_shape

    spec, weights = bundle.spec, bundle.weights()
    mean, inverse_scale = normaliser_constants(spec.normaliser)

    class Normalise(keras.layers.Layer):
        """z = clip((x − mean) / scale, low, high)."""

        def call(self, x: Any) -> Any:
            z = (x - mean) * inverse_scale
            return keras.ops.clip(z, *normaliser_bounds(spec.normaliser))

    observation = keras.Input(batch_shape=(1, spec.observation_size))
    x = Normalise()(observation)
    first = spec.observation_size - spec.vector_size
    vector = x[:, first:] if spec.vector_size else None
    if spec.network.convolutions:
        x = x[:, :first] if vector is not None else x
        x = keras.layers.Reshape(observation_shape(spec))(x)
    for index, name in enumerate(layer_names(spec)):
        kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
        normalised = f"{name}/gamma" in weights
        activation = None if name == "head" or normalised else keras_activation(spec.network, name)
        if index < len(spec.network.convolutions):
            filters = spec.network.convolutions[index]
            layer = keras.layers.Conv2D(filters.filters, filters.kernel, filters.stride, activation=activation)
        else:
            x = keras.layers.Flatten()(x) if len(x.shape) > 2 else x
            layer = keras.layers.Dense(kernel.shape[1], activation=activation)
        x = layer(x)
        layer.set_weights([kernel, bias])
        if normalised:
            layer = keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON)
            x = layer(x)
            layer.set_weights([weights[f"{name}/gamma"], weights[f"{name}/beta"]])
            x = keras.layers.Activation(keras_activation(spec.network, name))(x)
        if vector is not None and index == len(spec.network.convolutions) - 1:
            x = keras.layers.Concatenate()([keras.layers.Flatten()(x), vector])
    return keras.Model(observation, x)


def keras_activation(network: NetworkSpec, layer: str) -> Any:
    """Return a layer's activation, as Keras takes it."""
    import keras

    from quarl.policy.spec import Activation

    kind = network.activation_of(layer)
    if kind is Activation.LEAKY_RELU:
        return keras.layers.LeakyReLU(negative_slope=network.negative_slope)
    return None if kind is Activation.NONE else kind.value


def deciders(model: Any) -> dict[str, Callable[[Any], int]]:
    """Return how each framework's call is made: observation (1, N) in, action out, as on the device."""
    import numpy as np
    import tensorflow as tf

    compiled = tf.function(lambda x: tf.argmax(model(x, training=False), axis=1), jit_compile=False)
    return {
        "keras": lambda x: int(np.argmax(model(x, training=False))),
        "tf.function": lambda x: int(compiled(tf.constant(x)).numpy()[0]),
    }


def verify(bundle: Any, model: Any) -> None:
    """Compare with the golden vectors.

    Raises:
        SystemExit: it computes something else.
    """
    import numpy as np

    golden = bundle.golden()
    for row, expected in list(zip(golden.observations, golden.outputs, strict=True))[:32]:
        error = np.abs(np.asarray(model(row[None], training=False))[0] - expected).max()
        if not error <= TOLERANCE * (1 + np.abs(expected).max()):
            raise SystemExit(f"the Keras model differs from the policy's golden outputs by {error}: not measured")


def serve(bundle: Any) -> None:
    """Answer timing requests until the end of input."""
    import keras
    import tensorflow as tf

    from quarl.device.agent import measure
    from quarl.device.agent.fingerprint import fingerprint

    begin = time.perf_counter_ns()
    model = build(bundle)
    load_ns = time.perf_counter_ns() - begin
    calls = deciders(model)
    observations = [row[None] for row in bundle.golden().observations]
    cold = {}
    for name, call in calls.items():
        begin = time.perf_counter_ns()
        call(observations[0])
        cold[name] = time.perf_counter_ns() - begin
    verify(bundle, model)
    versions = {"keras": f"{keras.__version__} on TensorFlow {tf.__version__}", "tf.function": tf.__version__}
    print(json.dumps({"ready": True, "versions": versions, "device": fingerprint()}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            continue
        request = json.loads(line)
        times = measure.time_calls(calls[request["call"]], observations, request["warmup"], request["runs"])
        reply = {
            "path": "call",
            "runs": len(times),
            "samples_ns": sorted(times),
            "cold_first_ns": cold[request["call"]],
            "load_ns": load_ns,
            "timer": measure.timer_overhead(),
            "before": None,
            "after": None,
            "invalid_reasons": [],
            "notes": [],
            "page_faults": {"major": 0, "minor": 0},
            "context_switches": {"voluntary": 0, "involuntary": 0},
        }
        print(json.dumps(reply), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Load a bundle and answer timing requests on standard input."""
    parser = argparse.ArgumentParser(prog="python -m bench.device_session.keras_baseline", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the policy's bundle")
    arguments = parser.parse_args(argv)
    # As on the device: one thread. Set before TensorFlow is imported; its own settings follow.
    os.environ.update(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1")
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    import tensorflow as tf

    from quarl.policy.bundle import Bundle

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    serve(Bundle.load(arguments.bundle))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
