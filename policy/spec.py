"""PolicySpec: everything a consumer must know to feed a policy and to use what comes out.

The spec is a tree of frozen dataclasses (its parts: ``policy/contract``), and its JSON document the same tree. It
answers the questions that an exported network alone leaves open: which observation fields in which order and unit, how
they are normalised, what the actions mean, how often a decision is due, and in which environment it was trained.
"""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from quarl.policy import json_values
from quarl.policy.contract.checks import LARGEST_SIDE, require
from quarl.policy.contract.enums import Activation, ArtifactFormat, Precision, RuntimeName, Squash, parse_enum
from quarl.policy.contract.features import FloatStep, sizes_of
from quarl.policy.contract.heads import ContinuousHead, DiscreteHead, EnvironmentSpec
from quarl.policy.contract.network import NATURE_CONVOLUTIONS, Convolution, NetworkSpec, network_shapes
from quarl.policy.contract.observation import Memory, Normaliser, ObservationField, Remembered
from quarl.policy.contract.quantization import INPUT, TrainedQuantization
from quarl.policy.errors import SpecError
from quarl.policy.json_values import OMITTED, shortened
from quarl.policy.reading.names import POLICY_NAMES_ALLOWED, is_policy_name

__all__ = [
    "NATURE_CONVOLUTIONS",
    "SPEC_FORMAT_VERSION",
    "Activation",
    "ArtifactFormat",
    "ContinuousHead",
    "Convolution",
    "DiscreteHead",
    "EnvironmentSpec",
    "Memory",
    "NetworkSpec",
    "Normaliser",
    "ObservationField",
    "PolicySpec",
    "Precision",
    "Remembered",
    "RuntimeName",
    "Squash",
    "network_values",
    "parse_enum",
    "require",
]
SPEC_FORMAT_VERSION = 1


@dataclass(frozen=True)
class PolicySpec:
    """The whole contract of one policy; see the module's docstring.

    Attributes:
        name: e.g. ``"III"``.
        observation: the fields in the order in which they are concatenated; those of recurrent layers' states last.
        normaliser: applied to the raw observation inside the graph; where there are ``features``, to what they make.
        network: the layers between the normalised observation and the head.
        head: what the outputs mean.
        control_period_s: time between two decisions, in seconds.
        environment: id and settings of the training environment.
        provenance: algorithm, seed, steps, versions, training return, … (JSON values; free form).
        quantization: the quantizers it was trained with, or None: its artifact of that width uses them.
        delay_s: time from an observation to the effect of its action that the policy was trained with, in seconds.
        fallback: what to do where no action can be computed: the action's elements, in its unit; of a discrete head the
            action's index alone; empty where nothing is known to be safe.
        features: float operators between the raw observation and the normaliser; as a rule none.
        targets: float operators between the head and the action, one result for each output; as a rule none.
    """

    name: str
    observation: tuple[ObservationField, ...]
    normaliser: Normaliser
    network: NetworkSpec
    head: Union[DiscreteHead, ContinuousHead]
    control_period_s: float
    environment: EnvironmentSpec
    provenance: Mapping[str, Any] = field(default_factory=dict, metadata=OMITTED)
    quantization: Optional[TrainedQuantization] = field(default=None, metadata=OMITTED)
    delay_s: float = field(default=0.0, metadata=OMITTED)
    fallback: tuple[float, ...] = field(default=(), metadata=OMITTED)
    features: tuple[FloatStep, ...] = field(default=(), metadata=OMITTED)
    targets: tuple[FloatStep, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            is_policy_name(self.name),
            f"policy.name is {shortened(self.name)}; allowed are {POLICY_NAMES_ALLOWED}.",
            "Give it another name: the folder that it is trained into names it.",
        )
        require(len(self.observation) > 0, "policy.observation has no fields.")
        repeated = [name for name, count in Counter(f.name for f in self.observation).items() if count > 1]
        require(not repeated, f"policy.observation repeats a field name: {shortened(repeated)}.")
        require(
            self.observation_size <= LARGEST_SIDE,
            f"policy.observation has {shortened(self.observation_size)} elements; allowed are {LARGEST_SIDE}.",
        )
        self._check_states()
        found, wanted = len(self.normaliser.mean), self.feature_size
        what = "the features" if self.features else "the observation"
        require(found in (1, wanted), f"normaliser has {found} elements, {what} {wanted}.")
        self._check_memory()
        self._check_targets()
        if self.network.convolutions:
            self.network.image_shapes(self.observation[0].shape)
            for behind in self.observation[1:]:
                require(
                    len(behind.shape) <= 1,
                    "a network with convolutions takes an image field first, and vector fields may follow; "
                    f"{behind.name!r} behind the image has the shape {shortened(behind.shape)}.",
                )
        period = self.control_period_s
        require(0 < period < math.inf, f"control_period_s is {period}; it must be positive and finite.")
        require(0 <= self.delay_s < math.inf, f"delay_s is {self.delay_s}; it must be finite and not negative.")
        if self.fallback:
            self.check_fallback(self.fallback)
        if self.quantization is not None:
            require(
                self.network.is_relu,
                "quantization is given for a network with another activation than ReLU, whose ranges begin at 0.",
            )
            require(
                self.vector_size == 0,
                "quantization is given for a network of an image and vector fields; allowed are networks of either, "
                "because the range that image and vector share is not monitored in training.",
                "Train without --quantization-method, and convert: the ranges then come from recorded rollouts.",
            )
            require(
                not self.network.recurrences,
                "quantization is given for a network with recurrent layers; allowed are others.",
                "Train without --quantization-method, and convert: the ranges then come from recorded rollouts.",
            )
            wanted_ranges, ranges = {INPUT, *self.network.hidden_names}, set(self.quantization.ranges)
            require(
                ranges == wanted_ranges,
                f"quantization.ranges are those of {shortened(sorted(ranges))}; "
                f"the network has {shortened(sorted(wanted_ranges))}.",
            )

    def _check_states(self) -> None:
        states = [each for each in self.observation if each.is_state]
        wanted = [each.state_size for each in self.network.recurrences]
        require(
            [each.size for each in states] == wanted
            and list(self.observation[len(self.observation) - len(states) :]) == states,
            f"policy.observation has states of {shortened([each.size for each in states])} elements; the network's "
            f"recurrent layers want {shortened(wanted)}, behind all other fields.",
        )
        require(len(states) < len(self.observation), "policy.observation has nothing but states.")

    def _check_memory(self) -> None:
        plain = not (self.features or self.targets or any(field.memory for field in self.observation))
        message = "a network with convolutions has neither features, targets nor memory."
        require(plain or not self.network.convolutions, message)
        for each in self.observation:
            if each.memory is not None and each.memory.of is Remembered.ACTION:
                fits = isinstance(self.head, ContinuousHead) and each.row_size == self.head.size
                require(fits, f"{each.name!r} remembers actions of {each.row_size} elements, which the head has not.")

    def _check_targets(self) -> None:
        if not self.targets:
            return
        require(isinstance(self.head, ContinuousHead), "targets are given for a discrete head; allowed are none.")
        made = sizes_of(self.targets, (self.output_size + self.sensed_size,), "targets")[-1]
        require(made == self.output_size, f"targets make {made} elements of {self.output_size} outputs.")

    def check_fallback(self, fallback: tuple[float, ...]) -> None:
        """Let an action pass that this policy may fall back to.

        Raises:
            SpecError: it is none of its actions; says what is allowed.
        """
        if isinstance(self.head, DiscreteHead):
            allowed = f"the index of one of its {self.head.size} actions"
            fits = fallback[1:] == () and fallback[0] in range(self.head.size)
        else:
            bounded = self.is_bounded
            allowed = f"{self.head.size} finite numbers" + (" within the head's bounds" if bounded else "")
            fits = len(fallback) == self.head.size and all(
                math.isfinite(value) and (not bounded or least <= value <= most)
                for value, least, most in zip(fallback, self.head.low, self.head.high)
            )
        require(fits, f"fallback is {shortened(fallback)}; allowed are none, or {allowed}.")

    @property
    def observation_size(self) -> int:
        """Number of floats of the flattened observation, states included."""
        return sum(f.size for f in self.observation)

    @property
    def state_size(self) -> int:
        """Number of floats of the observation's last fields, which the recurrent layers made of the period before."""
        return self.network.state_size

    @property
    def sensed_size(self) -> int:
        """Number of floats of the observation without them."""
        return self.observation_size - self.state_size

    @property
    def result_size(self) -> int:
        """Number of floats that a decision makes: the head's outputs, and behind them the next states."""
        return self.output_size + self.state_size

    @property
    def brought(self) -> tuple[ObservationField, ...]:
        """The fields as each period brings them: a row of those that remember observations, none of what it remembers
        of itself."""
        return tuple(each.row for each in self.observation if each.is_brought)

    @property
    def feature_size(self) -> int:
        """Number of floats that the normaliser takes: the observation's, or what the features make of them."""
        return sizes_of(self.features, (self.sensed_size,))[-1]

    @property
    def vector_size(self) -> int:
        """Number of floats that follow the image and pass the convolutions by; 0 without convolutions."""
        return sum(f.size for f in self.observation[1:]) if self.network.convolutions else 0

    @property
    def output_size(self) -> int:
        """Number of outputs of the head."""
        return self.head.size

    @property
    def is_image(self) -> bool:
        """Whether the observation is one image (height, width, channels) of grey levels 0 … 255."""
        return len(self.observation) == 1 and len(self.observation[0].shape) == 3

    @property
    def is_imported(self) -> bool:
        """Whether another program trained it: ``python -m convert.importers`` says so in its provenance."""
        return str(self.provenance.get("how", "")).startswith("imported from ")

    @property
    def is_bounded(self) -> bool:
        """Whether no action leaves the bounds of a continuous head."""
        return isinstance(self.head, ContinuousHead) and self.head.squash is not Squash.NONE and not self.targets

    @property
    def is_discrete(self) -> bool:
        """Whether the head chooses one of several named actions."""
        return isinstance(self.head, DiscreteHead)

    def check_observation(self, fields: Sequence[ObservationField]) -> None:
        """Refuse a consumer that brings other fields in a period than the policy was trained on.

        Raises:
            SpecError: names the first field that differs and how.
        """
        brought = self.brought
        for index in range(max(len(fields), len(brought))):
            mine = brought[index] if index < len(brought) else None
            fed = fields[index] if index < len(fields) else None
            if mine != fed:
                raise SpecError(
                    f"policy {self.name!r} was trained on another observation: field {index} is {_describe(mine)} in "
                    f"the policy but {_describe(fed)} in what would be fed to it.",
                    "Feed it what it was trained on, or train a policy for this environment.",
                )

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON values."""
        return {"format_version": SPEC_FORMAT_VERSION, **json_values.write(self)}

    def to_json(self) -> str:
        """The spec as an indented JSON document that ends in a newline.

        Raises:
            SpecError: the environment's settings or the provenance hold what :meth:`from_json` would refuse.
        """
        try:
            for name in ("settings", "provenance"):
                json_values.check_free(self.provenance if name == "provenance" else self.environment.settings, name)
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json: {error}.") from None
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> PolicySpec:
        """Read what :meth:`to_json` wrote.

        Raises:
            SpecError: the text is no JSON, of a future version, or lacks a field (which is named).
        """
        try:
            data = json_values.parse_object(text)
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json cannot be read: {error}.") from error
        version = data.get("format_version")
        require(
            version == SPEC_FORMAT_VERSION,
            f"policy.json has format_version {shortened(version)}; this program reads {SPEC_FORMAT_VERSION}.",
            "Use the program version that wrote it, or train the policy again.",
        )
        try:
            spec: PolicySpec = json_values.read(cls, data)
        except KeyError as error:
            raise SpecError(f"policy.json lacks the field {error.args[0]!r}.") from error
        except json_values.JsonValueError as error:
            raise SpecError(f"policy.json: {error}.") from error
        except SpecError:
            raise
        except Exception as error:  # whatever else a document that nobody wrote may bring about
            raise SpecError(f"policy.json cannot be read: {type(error).__name__} {shortened(str(error))}.") from error
        return spec


def network_values(network: NetworkSpec) -> dict[str, Any]:
    """JSON values; what a plain multilayer perceptron does not have is left out."""
    values: dict[str, Any] = json_values.write(network)
    return values


def observation_shape(spec: PolicySpec) -> tuple[int, ...]:
    """What the network's first layer takes: (height, width, channels) for convolutions, else (feature_size,).

    Of an image and vector fields it is the image's; :func:`split` parts them.
    """
    return spec.observation[0].shape if spec.network.convolutions else (spec.feature_size,)


def weight_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of the policy; see :func:`network_shapes`."""
    return network_shapes(spec.network, observation_shape(spec), spec.output_size, spec.vector_size)


def output_spans(spec: PolicySpec, smallest: float, largest: float) -> list[float]:
    """What each output can be or was, (output_size,): the bounds of a continuous head; of a discrete one, whose outputs
    are compared with each other, and of one without bounds, all from the smallest to the largest that there were, if
    they differ."""
    if isinstance(spec.head, ContinuousHead) and spec.is_bounded:
        return list(map(operator.sub, spec.head.high, spec.head.low))
    return [largest - smallest or math.inf] * spec.output_size


def _describe(observed: ObservationField | None) -> str:
    if observed is None:
        return "absent"
    return f"{observed.name!r} of shape {observed.shape} in {observed.unit!r}"
