"""Success without any device: the numpy reference of a precision, flown in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.measuring.questions import Flights, Progress, fly_on_host
from bench.report.document import Kind, Report, Transport
from policy.spec import Precision

if TYPE_CHECKING:
    from policy.bundle import Bundle


def host_success(bundle: Bundle, precision: Precision, flights: Flights, run: str, progress: Progress) -> Report:
    """Fly the numpy reference: what an artifact of this precision would do if its runtime rounded as policy/ does.

    Raises:
        SpecError: the policy does not fly this task.
    """
    import numpy as np

    from airlearning_envs.config import preset
    from airlearning_envs.observation import observation_fields
    from device.agent.fingerprint import fingerprint

    bundle.spec.check_observation(observation_fields(preset(flights.preset).with_settings(flights.changed)))
    return Report(
        kind=Kind.SUCCESS,
        run=run,
        policy=bundle.spec.name,
        precision=precision.value,
        runtime="numpy",
        runtime_version=np.__version__,
        threads=None,
        artifact=None,
        target="local",
        transport=Transport.LOCAL_PROCESS,
        device=fingerprint(),
        success=fly_on_host(reference(bundle, precision), flights, progress=progress),
        notes=("numpy reference on the host; no artifact was executed",),
    )


def reference(bundle: Bundle, precision: Precision) -> Callable[[Any], Any]:
    """Observations (E, N) to actions (E,), by the reference forward pass of this precision."""
    from policy.integer import forward_integer, quantize_network
    from policy.network import choose_actions, forward_float
    from policy.quantization import to_fp16

    spec, weights = bundle.spec, bundle.weights()
    if precision.is_integer:
        network = quantize_network(spec, weights, bundle.calibration(), precision.bits)
        return lambda observations: choose_actions(spec, forward_integer(spec, network, observations))
    if precision is Precision.FP16:
        weights = {name: to_fp16(value).astype("float32") for name, value in weights.items()}
    return lambda observations: choose_actions(spec, forward_float(spec, weights, observations))
