"""The file's own graph, run by onnxruntime, and a chain compared with it: a reader that errs returns nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx

from quarl.convert.importers.chain import Affine, Discrete, Floats, ForeignError, ForeignPolicy, run, state_size
from quarl.device.agent.graph_executors import onnx_session_options
from quarl.device.agent.runtimes import import_runtime
from quarl.policy.errors import PolicyError
from quarl.policy.spec import RuntimeName

SEED = 20
SCALES = (0.1, 0.5, 1.0, 3.0, 10.0, 40.0)
OBSERVATIONS_PER_SCALE = 64
LARGEST_BATCH = 2_000_000
"""Elements of all observations compared: of images there are fewer."""
TOLERANCE = 1e-4
"""Share of the output's span that two results may differ by. float32 in another order of sums differs by about 1e-6; a
wrong step by 1e-2 and more."""

ROUNDING = 2e-6
"""Share of the largest output that sixteen roundings to float32 amount to."""
HALF_TOLERANCE, HALF_ROUNDING = 5e-3, 2e-3
"""The same of a file in float16, whose single rounding is 2⁻¹¹."""
FARTHEST_MEAN = 1e3
"""Deviations: observations around zero, farther than this from the file's mean, leave nothing of float32."""


@dataclass(frozen=True)
class Feed:
    """How one of the file's inputs is fed.

    Attributes:
        name: of the input.
        size: elements of one observation's part.
        shape: in the file, for a batch of one.
        image: (height, width, channels) of an input that is one, whatever the file's order is; else None.
        channels_first: whether the file's order is (channels, height, width).
        kind: the numpy type.
        batched: whether the file leaves the batch open.
        copies: rows of a batch that the file fixes; each is the observation.
    """

    name: str
    size: int
    shape: tuple[int, ...]
    image: tuple[int, int, int] | None
    channels_first: bool
    kind: np.dtype[Any]
    batched: bool
    copies: int = 1

    def array(self, rows: Floats) -> np.ndarray:
        """Reshape observations (batch, size) as the file wants them."""
        if self.image is not None and self.channels_first:
            rows = rows.reshape(-1, *self.image).transpose(0, 3, 1, 2)
        shape = (len(rows), *self.shape[1:]) if self.batched else self.shape
        if self.copies > 1:
            rows = np.broadcast_to(rows.reshape(1, -1), (self.copies, self.size))
        return np.ascontiguousarray(rows.reshape(shape).astype(self.kind))


@dataclass(frozen=True)
class Original:
    """Raw observations (batch, n) to outputs (batch, m) by the file's nodes, none of them changed.

    Attributes:
        data: the model: the file's nodes that reach the output.
        feeds: its inputs, in the observation's order.
        outputs: tensors: first the one that a chain's result stands for.
        is_half: it computes in float16.
    """

    data: bytes = field(repr=False)
    feeds: tuple[Feed, ...]
    outputs: tuple[str, ...]
    is_half: bool = False
    _session: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, observations: Floats) -> Floats:
        """Return the file's output for each observation."""
        return self.tensors(observations)[0]

    def tensors(self, observations: Floats) -> list[Floats]:
        """Return all of the tensors, a row for each observation."""
        rows = np.asarray(observations, np.float32)
        if all(feed.batched for feed in self.feeds):
            results = self._run(rows)
            if all(len(result) == len(rows) for result in results if result.ndim) and all(r.ndim for r in results):
                return self._rows(results, len(rows))
        parts = [self._rows(self._run(row[None]), 1) for row in rows]
        return [np.concatenate(tensor) for tensor in zip(*parts, strict=True)]

    def _run(self, rows: Floats) -> list[np.ndarray]:
        ends = np.cumsum([feed.size for feed in self.feeds])
        parts = np.split(rows, ends[:-1], axis=1)
        feeds = {feed.name: feed.array(part) for feed, part in zip(self.feeds, parts, strict=True)}
        results: list[np.ndarray] = self._load_session().run(list(self.outputs), feeds)
        return results

    def _rows(self, results: list[np.ndarray], count: int) -> list[Floats]:
        return [np.asarray(result, np.float32).reshape(count, -1) for result in results]

    def _load_session(self) -> Any:
        if not self._session:
            onnxruntime = import_runtime(RuntimeName.ONNXRUNTIME)
            options = onnx_session_options(onnxruntime)
            options.log_severity_level = 4  # what it warns of is the file's, and nobody here can change it
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(self.data, options, providers=["CPUExecutionProvider"])
            self._session.append(session)
        return self._session[0]


def original_of(model: onnx.ModelProto, nodes: list[int], feeds: tuple[Feed, ...], *outputs: str) -> Original:
    """Return the file's program for one output.

    Args:
        model: the whole model.
        nodes: the numbers of those that reach the output, in order.
        feeds: the inputs that reach it.
        outputs: first what the chain computes, a tensor inside the graph where the output is an action's number.
    """
    graph = model.graph
    reached_nodes = [graph.node[index] for index in nodes]
    needed = {name for node in reached_nodes for name in node.input} | set(outputs)
    inputs = [value for value in graph.input if value.name in needed]
    constants = [value for value in graph.initializer if value.name in needed]
    tensors = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(outputs)]
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.CopyFrom(onnx.helper.make_graph(reached_nodes, "policy", inputs, [], constants))
    part.graph.output.extend(tensors)
    is_half = any(value.data_type == onnx.TensorProto.FLOAT16 for value in constants)
    return Original(part.SerializeToString(), feeds, outputs, is_half)


class Program(Protocol):
    """A program that :func:`verify` compares with a chain: the chain's tensor, and the output that was chosen."""

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """Inputs, in the observation's order."""
        ...

    def tensors(self, observations: Floats) -> list[Floats]:
        """Return a row of each for each observation."""


def verify(policy: ForeignPolicy, original: Program) -> float:
    """Compare the chain with the file on random observations; the largest difference, relative to the output's span.

    Raises:
        ForeignError: they differ, or the file cannot be run.
    """
    groups = observations(policy, original.feeds)
    try:
        expected = [original.tensors(group)[:2] for group in groups]
    except PolicyError:
        raise
    except Exception as error:  # onnxruntime documents no exception classes
        message = f"onnxruntime cannot run the file ({type(error).__name__}: {error})."
        raise ForeignError(message, "Export the policy again with opset 17.") from error
    everything = np.concatenate([outputs for outputs, _ in expected])
    total_span = float(np.ptp(everything)) or float(np.abs(everything).max()) or 1.0
    is_half = getattr(original, "is_half", False)
    tolerance, rounding = (HALF_TOLERANCE, HALF_ROUNDING) if is_half else (TOLERANCE, ROUNDING)
    worst = 0.0
    for group, (outputs, actions) in zip(groups, expected, strict=True):
        try:
            got = run(policy, group)
        except ValueError as error:
            raise _differs(f"it cannot run: {error}") from error
        if got.shape != outputs.shape or not np.isfinite(outputs).all() or not np.isfinite(got).all():
            raise _differs(f"shapes {got.shape} and {outputs.shape}, or numbers that are not finite")
        span = max(float(np.ptp(outputs)), 0.01 * total_span)
        difference = float(np.abs(got - outputs).max()) / span
        worst = max(worst, difference)
        # What the file's type loses in numbers of this size is no difference.
        if difference > tolerance + rounding * float(np.abs(outputs).max()) / span:
            raise _differs(f"off by {difference:.2g} of the output's span")
        if isinstance(policy.actions, Discrete) and actions.shape[1] == 1 < outputs.shape[1]:
            chosen = got[np.arange(len(got)), np.clip(actions[:, 0].astype(int), 0, got.shape[1] - 1)]
            if (chosen < got.max(axis=1) - tolerance * span).any():
                raise _differs("another action")
    return worst


def observations(policy: ForeignPolicy, feeds: tuple[Feed, ...]) -> list[Floats]:
    """Random observations in groups of one scale each, small and large, around zero and around the file's own mean."""
    generator = np.random.default_rng(SEED)
    size = sum(math.prod(part.shape) for part in policy.inputs)
    count = int(np.clip(LARGEST_BATCH // (size * 2 * len(SCALES)), 2, OBSERVATIONS_PER_SCALE))
    levels = np.concatenate([np.full(feed.size, feed.kind.kind == "u") for feed in feeds])
    groups = []
    for scale in SCALES:
        unit = generator.standard_normal((count, size)) * scale
        centred = unit
        first = policy.steps[0] if policy.steps else None
        if isinstance(first, Affine) and (first.scale != 0).all():
            sensed = size - state_size(policy.steps)
            centred = np.concatenate([(unit[:, :sensed] - first.offset) / first.scale, unit[:, sensed:]], axis=1)
        far = isinstance(first, Affine) and bool((np.abs(first.offset) > FARTHEST_MEAN).any())
        for rows in (centred,) if far or centred is unit else (unit, centred):
            pixels = generator.integers(0, 256, rows.shape)
            groups.append(np.where(levels, pixels, rows).astype(np.float32))
    return groups


def _differs(how: str) -> ForeignError:
    return ForeignError(
        f"The imported policy does not compute what the file computes ({how}); nothing was written.",
        "This is a bug in the importer: please report the file. Meanwhile, try another output: --output NAME.",
        code="graph_not_reproduced",
    )
