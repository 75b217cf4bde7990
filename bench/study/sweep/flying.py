"""Flying a bundle at several bit widths, the same episodes with each: the work of ``python -m bench.study sweep``.

Vectors are decided on in numpy, a batch of environments at a time. Images whose activations stay float go through the
compiled graph that training acts with; images with quantized activations through numpy's convolutions, which take about
ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.measuring.execution import DEVICE_ACTIVATION_BITS, execution_of
from bench.report.intervals import Estimate, paired_difference
from bench.study.sweep import store as study_store
from policy.bundle import Bundle
from policy.integer import trained_with
from policy.network import choose_actions, forward_float
from policy.quantization import FLOAT_BITS, LARGEST_SIMULATED_BITS, Scheme
from policy.simulated import HALF_BITS, WEIGHTS_ONLY, Simulated, Widths, forward_simulated, simulate
from policy.spec import ContinuousHead, PolicySpec

if TYPE_CHECKING:
    from train.suites.episodes import Decide
    from train.suites.task import Task

FP16 = "fp16"
CONTINUOUS_SHARE = 0.01  # of an action's range: nearer than that is the same action
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """What a sweep is to quantize.

    Attributes:
        scheme: of every width other than fp16.
        weights_only: activations and observation stay float.
        activation_bits: the same for every width; None is the scheme's own, see :func:`widths_of`.
        input_bits: likewise, of the observation.
    """

    scheme: Scheme
    weights_only: bool = False
    activation_bits: int | None = None
    input_bits: int | None = None

    @property
    def variant(self) -> str:
        """As :attr:`bench.study.sweep.store.Sweep.variant`."""
        said = [
            "weights" if self.weights_only and self.scheme not in WEIGHTS_ONLY else "",
            f"a{self.activation_bits}" if self.activation_bits else "",
            f"i{self.input_bits}" if self.input_bits else "",
        ]
        return "-".join(word for word in said if word)


def widths_of(name: str, asked: Asked, spec: PolicySpec) -> Widths:
    """The widths that ``4`` or ``fp16`` means in a scheme.

    Activations: in ``quarl`` as many bits as the weights; ``quarl-released`` leaves them float, as its script does; in
    ``symmetric`` 8 bits where the weights have fewer, as the artifacts on devices (or as many as the policy was trained
    with, at its own width), else as many as the weights. 32 leaves everything float, fp16 the activations.

    Raises:
        QuantizationError: the widths cannot be.
    """
    if name == FP16:
        return Widths(Scheme.FP16, HALF_BITS)
    bits = int(name)
    activations = asked.activation_bits
    if activations is None and bits <= LARGEST_SIMULATED_BITS and asked.scheme not in WEIGHTS_ONLY:
        activations = bits
        if asked.scheme is Scheme.SYMMETRIC and trained_with(spec, bits) is None:
            activations = max(DEVICE_ACTIVATION_BITS, bits)
    if asked.weights_only:
        activations = None
    return Widths(asked.scheme, bits, activations, asked.input_bits)


def decide_with(spec: PolicySpec, simulated: Simulated) -> Decide:
    """A simulated policy as a function of raw observations."""
    if spec.network.convolutions and not simulated.maps:
        from train.runs.results import greedy

        return greedy(spec, simulated.weights)

    def decide(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = choose_actions(spec, forward_simulated(spec, simulated, observation))
        return actions

    return decide


def float_decide(bundle: Bundle) -> Decide:
    """The float policy."""
    spec, weights = bundle.spec, bundle.weights()
    if spec.network.convolutions:
        from train.runs.results import greedy

        return greedy(spec, weights)
    return lambda observation: choose_actions(spec, forward_float(spec, weights, observation))


@dataclass(frozen=True)
class Flown:
    """Episodes of one policy on one preset, those of all seeds one after the other.

    Attributes:
        preset: its name.
        returns: (episodes,).
        successes: (episodes,); empty where the task has no success.
    """

    preset: str
    returns: tuple[float, ...]
    successes: tuple[bool, ...]

    def outcome(self) -> study_store.Outcome:
        """Means with intervals."""
        from airlearning_envs.flights import wilson_interval

        success = None
        if self.successes:
            wins, n = sum(self.successes), len(self.successes)
            success = Estimate(wins / n, *wilson_interval(wins, n))
        return study_store.Outcome(self.preset, len(self.returns), Estimate.of_mean(self.returns), success)

    def change_from(self, reference: Flown) -> study_store.Change:
        """This minus the reference, episode by episode."""
        differences = [q - f for q, f in zip(self.returns, reference.returns, strict=True)]
        success = None
        if self.successes:
            pair = paired_difference(self.successes, reference.successes)
            success = Estimate(pair.difference, pair.low, pair.high)
        return study_store.Change(
            self.preset,
            Estimate.of_mean(differences),
            Estimate.of_relative_error(self.returns, reference.returns),
            success,
        )


def fly(task: Task, decide: Decide, seeds: Sequence[int], episodes: int) -> list[Flown]:
    """Greedy episodes on every preset that the task is judged on, ``episodes`` of each seed."""
    found = []
    for preset in task.presets:
        results = [task.evaluate(decide, episodes, seed, preset) for seed in seeds]
        returns = tuple(value for result in results for value in result.returns)
        successes = tuple(value for result in results for value in result.successes)
        found.append(Flown(preset, returns, successes))
    return found


def sweep_widths(
    bundle: Bundle, task: Task, names: Sequence[str], asked: Asked, seeds: Sequence[int], episodes: int
) -> Iterator[tuple[list[Flown], study_store.Width | None]]:
    """First fp32 with None, then every width as it is measured, with its episodes."""
    spec = bundle.spec
    weights, calibration, golden = bundle.weights(), bundle.calibration(), bundle.golden()
    planned = {name: widths_of(name, asked, spec) for name in names}  # refuses what is wrong before anything flies
    reference = fly(task, float_decide(bundle), seeds, episodes)
    yield reference, None
    for name, widths in planned.items():
        simulated = simulate(spec, weights, calibration, widths)
        decide = decide_with(spec, simulated)
        # 32 bits are the float policy: its episodes are those that were flown.
        is_float = widths.weight_bits == FLOAT_BITS and not simulated.maps
        flown = reference if is_float else fly(task, decide, seeds, episodes)
        trained = trained_with(spec, widths.weight_bits) is not None
        yield (
            flown,
            study_store.Width(
                name=name,
                weight_bits=widths.weight_bits,
                activation_bits=widths.activation_bits,
                input_bits=widths.observation_bits,
                actions_differ=0.0 if is_float else share_differing(spec, decide(golden.observations), golden.actions),
                execution=execution_of(widths.scheme, widths.weight_bits, widths.activation_bits, trained=trained),
                outcomes=tuple(each.outcome() for each in flown),
                changes=tuple(each.change_from(other) for each, other in zip(flown, reference, strict=True)),
            ),
        )


def share_differing(spec: PolicySpec, actions: np.ndarray, reference: np.ndarray) -> float:
    """Share of observations whose action is another one than the reference's.

    Args:
        spec: the policy.
        actions, reference: (n,) of a discrete head; (n, size) of a continuous one, where an element has to differ by
            more than a hundredth of its range.
    """
    if not isinstance(spec.head, ContinuousHead):
        return float(np.mean(actions != reference))
    span = np.asarray(spec.head.high) - np.asarray(spec.head.low)
    return float(np.mean((np.abs(actions - reference) > CONTINUOUS_SHARE * span).any(axis=1)))
