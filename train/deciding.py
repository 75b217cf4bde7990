"""A bundle's policy as a function of raw observations (n, …): its floats, simulated quantization, numpy's reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quarl.convert.mixed import integers
from quarl.policy.bundle import Bundle
from quarl.policy.pilot import deciding
from quarl.policy.quantize import Scheme
from quarl.policy.reference import apply_head, as_batch, forward_float, forward_integer, normalise, split
from quarl.policy.simulate import Simulated, Widths, forward_simulated, forward_stored
from quarl.policy.spec import PROGRAM, ArtifactFormat, PolicySpec, Precision
from quarl.train.algorithms.common.normalisation import ImageScaling
from quarl.train.networks.forward import Acting
from quarl.train.quantization.fake import FakeQuantization, fake_quantize_weights, scales_of
from quarl.train.suites.episodes import Decide, Observations


def greedy(spec: PolicySpec, weights: Mapping[str, np.ndarray]) -> Decide:
    """Return the policy as a function of raw observations.

    Through the reference forward pass of the contract, and for images as training has them through the graph that it
    acts with: the same function, compiled. A policy that was trained with quantizers decides with them.
    """
    if spec.network.opaque:
        return deciding(spec, lambda observation: forward_float(spec, weights, as_batch(spec, observation)))
    trained, computed = spec.quantization, weights
    if trained is not None:
        fake = FakeQuantization.of(trained, spec.network)
        computed = fake_quantize_weights(weights, scales_of(trained.ranges, trained.bits), fake)
    can_use_graph = spec.network.is_relu and (spec.vector_size or spec.normaliser == ImageScaling().frozen())
    if spec.network.convolutions and not can_use_graph:
        return deciding(spec, lambda observation: forward_float(spec, weights, as_batch(spec, observation)))
    outputs = Acting(spec.network)

    def results(observation: Observations) -> NDArray[np.float32]:
        inputs: Observations | tuple[Observations, Observations]
        if spec.vector_size:
            inputs = split(spec, normalise(spec.normaliser, as_batch(spec, observation)))
        elif spec.network.convolutions:
            inputs = observation.reshape(-1, *spec.observation[0].shape)
        elif trained is not None:
            inputs = normalise(spec.normaliser, observation)
        else:
            return forward_float(spec, weights, observation)
        return apply_head(spec, outputs(computed, inputs))

    return deciding(spec, results)


def float_decide(bundle: Bundle) -> Decide:
    """Return the float32 weights; those of a perceptron without the quantizers that it was trained with."""
    return decide_with(bundle.spec, Simulated(Widths(Scheme.SYMMETRIC), bundle.weights(), {}))


def decide_with(spec: PolicySpec, simulated: Simulated) -> Decide:
    """Return a simulated policy; images whose activations stay float go through :func:`greedy`'s compiled graph."""
    if spec.network.opaque or (spec.network.convolutions and not simulated.maps):
        return greedy(spec, simulated.weights)
    return deciding(spec, lambda observation: forward_simulated(spec, simulated, observation))


def reference(bundle: Bundle, precision: Precision) -> Decide:
    """Return the reference forward pass of this precision in numpy, images too.

    Raises:
        QuantizationError: weights or calibration cannot be quantized.
        BundleError: an opaque program has no artifact of this precision.
    """
    spec, weights = bundle.spec, bundle.weights()
    if spec.network.opaque:
        entry = bundle.artifact(precision, ArtifactFormat.ONNX)
        return greedy(spec, {PROGRAM: np.frombuffer(bundle.artifact_data(entry), np.uint8)})
    if precision.is_integer:
        network = integers(bundle, precision)
        return deciding(spec, lambda observation: forward_integer(spec, network, observation))
    return deciding(spec, forward_stored(spec, weights, precision))
