"""Reads a policy from an ONNX file: the graph from the observation to one output, as a chain of steps.

Exporters spell the same network in many ways: kernels behind Transpose, MatMul and Add for a dense layer, shapes
computed by ten nodes, x · Sigmoid(x), a normaliser in front, a value network beside. The graph is followed node by
node. What does not depend on the observation is computed; what depends on it is a chain with a selection of its
elements (:mod:`convert.importers.onnx.value`); everything else is refused by its name. At the end the chain is compared
with onnxruntime running the file: a chain that computes something else is never returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quarl.convert.importers.chain import (
    Continuous,
    Discrete,
    Doubles,
    ForeignError,
    ForeignPolicy,
    Input,
    state_inputs,
)
from quarl.convert.importers.onnx.call import Call, Operand, refuse_by_name
from quarl.convert.importers.onnx.cells import Found, operators
from quarl.convert.importers.onnx.file import OnnxFile, load
from quarl.convert.importers.onnx.fold import Folder
from quarl.convert.importers.onnx.gates import find_decomposed_cells
from quarl.convert.importers.onnx.inputs import (
    OUTPUT_OPTION,
    Reach,
    feeds_of,
    find_states,
    keep_reached_states,
    reach_of,
    state_feeds,
)
from quarl.convert.importers.onnx.metadata import names_that_fit, provenance_of, source_of
from quarl.convert.importers.onnx.opaque import check_states, read_opaque
from quarl.convert.importers.onnx.operators import apply
from quarl.convert.importers.onnx.original import Feed, original_of, verify
from quarl.convert.importers.onnx.simplify import simplify_steps
from quarl.convert.importers.onnx.value import Value, channels_first_order, materialise
from quarl.convert.importers.onnx.wired import order_cells, states_held, through_cell, wire_original
from quarl.convert.importers.registry import Importer
from quarl.policy.errors import PolicyError

ACTION_OUTPUTS = (
    "deterministic_continuous_actions",
    "continuous_actions",
    "discrete_actions",
    "actions",
    "action",
    "mean_actions",
    "mean",
    "mu",
    "logits",
    "q_values",
    "q",
    "output",
)
"""What exporters call the output that a policy is about, the surest first."""
CELLS_ALONE = "Export it with PyTorch's GRU or LSTM alone between observation and hidden layers."
DISCRETE_OUTPUTS = ("logits", "q_values", "q")
LONGEST_REASON = 300
"""Characters of the reason why a bundle is opaque."""


def read_onnx(path: Path, output: str | None = None, states: Mapping[str, str] | None = None) -> ForeignPolicy:
    """Return the policy that a file holds: as a chain of steps, or, where there is no such chain, as an opaque one.

    Args:
        path: the .onnx file; external data lies in its folder.
        output: which of the graph's outputs is the policy's; default the only one, or one of a known name.
        states: inputs that are states, with the outputs that replace them; default those whose names say it.

    Raises:
        ForeignError: no such file, no such output, or a graph that onnxruntime does not execute.
    """
    file = load(path)
    if states is not None:
        check_states(file.model.graph, states)
    return read_graph(file, choose_output(file.model.graph, output), find_states(file) if states is None else states)


def read_graph(
    file: OnnxFile, output: str, states: Mapping[str, str], initial: Mapping[str, Doubles] | None = None
) -> ForeignPolicy:
    """Return the policy of one output of a graph, as :func:`read_onnx` does.

    Args:
        file, output: the graph, and the output that acts.
        states: inputs that are states, with the outputs that replace them.
        initial: what a state is before the first period, flat; zeros where there is nothing.
    """

    def opaque(reason: str) -> ForeignPolicy:
        with refuse_malformed():
            policy = read_opaque(file, output, states, initial or {}, " ".join(reason.split())[:LONGEST_REASON])
        return _with_notes(file, output, policy, keep_reached_states(file, output, states), initial)

    try:
        return replace(read_chain(file, output, states, initial), as_opaque=opaque)
    except ForeignError as error:
        return opaque(error.message)


def _with_notes(
    file: OnnxFile,
    output: str,
    policy: ForeignPolicy,
    states: Mapping[str, str],
    initial: Mapping[str, Doubles] | None,
) -> ForeignPolicy:
    """Return the policy with what was left out of the graph and what was taken for granted."""
    ignored = _describe_ignored(file, output, reach_of(file, output), {*states, *states.values()})
    assumed = (*file.assumed, *policy.assumed, *_describe_feedback(states, initial or {}))
    return replace(policy, ignored=tuple(ignored), assumed=assumed)


def read_chain(
    file: OnnxFile, chosen: str, fed_back: Mapping[str, str], initial: Mapping[str, Doubles] | None = None
) -> ForeignPolicy:
    """Return the policy as a chain of steps from the observation to an output; arguments as :func:`read_graph`.

    Raises:
        ForeignError: an operator or a shape that no bundle can hold, or a chain that does not compute what the file
            computes. Names the node.
    """
    with refuse_malformed(), np.errstate(all="ignore"):  # what is not finite is refused where it is compared
        states = keep_reached_states(file, chosen, fed_back)
        return _with_notes(file, chosen, _chain(file, chosen, states, initial or {}), states, initial)


@contextmanager
def refuse_malformed() -> Iterator[None]:
    """Raise ForeignError where a graph's nodes do not fit each other."""
    try:
        yield
    except PolicyError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, MemoryError) as error:
        message = f"The graph holds a node whose operands do not fit ({type(error).__name__}: {error})."
        raise ForeignError(message, "Export the policy again.") from error


def _chain(file: OnnxFile, chosen: str, fed_back: Mapping[str, str], initial: Mapping[str, Doubles]) -> ForeignPolicy:
    reach = reach_of(file, chosen)
    for index in reach.nodes:
        refuse_by_name(file.model.graph.node[index])
    states = state_feeds(file, fed_back)
    cells = recognise_cells(file, chosen, states, fed_back)
    reach = reach_of(file, chosen, cells)
    if loose := [name for name in states if name in reach.tensors or name not in states_held(cells)]:
        raise ForeignError(
            f"The input {loose[0]!r} must be only the state of a GRU or an LSTM; other recurrent policies are not "
            "supported.",
            CELLS_ALONE,
            code="unsupported_memory",
        )
    feeds = feeds_of(file, reach, states)
    result = output_of(trace(file, reach, build_input_values(feeds), cells), chosen)
    if result.image is not None:
        raise ForeignError(
            f"The output {chosen!r} must come from a dense layer, got an image.", OUTPUT_OPTION, code="image_output"
        )
    steps = simplify_steps(materialise(result).steps, feeds[0].image if len(feeds) == 1 else None)
    begun = [
        np.concatenate([initial.get(name, np.zeros(states[name].size))[places] for name, places in cell.states])
        for cell in order_cells(cells, steps)
    ]
    inputs = state_inputs(steps, (_input(file.model, feed) for feed in feeds), begun)
    actions, assumed = _actions(file.model, chosen, result)
    policy = ForeignPolicy(
        source=source_of(file),
        inputs=inputs,
        steps=steps,
        actions=actions,
        assumed=tuple(assumed),
        provenance=provenance_of(file, chosen),
    )
    full_reach = Reach.of([reach_of(file, name) for name in (chosen, *fed_back.values())])
    together = (*feeds, *states.values())
    original = original_of(file.model, list(full_reach.nodes), together, result.tensor, chosen, *fed_back.values())
    if not cells:
        verify(policy, original)
        return replace(policy, original=original)
    wired = wire_original(
        original,
        build_input_values(feeds),
        feeds,
        order_cells(cells, steps),
        {name: 2 + at for at, name in enumerate(fed_back)},
    )
    verify(policy, wired)
    return replace(policy, original=wired)


def recognise_cells(
    file: OnnxFile, chosen: str, states: Mapping[str, Feed], fed_back: Mapping[str, str]
) -> list[Found]:
    """Return the recurrent layers on the way to an output: operators, and those that are written out.

    Args:
        file, chosen: the graph, and its output.
        states: inputs that may be states.
        fed_back: the outputs that they become.

    Raises:
        ForeignError: an operator GRU or LSTM that the contract does not have.
    """
    full_reach = Reach.of([reach_of(file, name) for name in (chosen, *fed_back.values())])
    shapes = {name: feed.shape for name, feed in states.items()}
    cells = operators(file, full_reach.nodes, shapes)
    left = {name: output for name, output in fed_back.items() if name not in states_held(cells)}
    if left:
        shapes |= {feed.name: feed.shape for feed in feeds_of(file, full_reach, states)}
        cells += find_decomposed_cells(file, full_reach.nodes, shapes, left)
    return cells


def _describe_feedback(fed_back: Mapping[str, str], initial: Mapping[str, Doubles]) -> list[str]:
    return [
        f"The output {output!r} is fed back as {name!r}"
        + ("." if name in initial else ", which begins an episode with zeros.")
        for name, output in fed_back.items()
    ]


def choose_output(graph: onnx.GraphProto, output: str | None = None) -> str:
    """Return the name of the output that acts: the given one, the only one, or one of a known name.

    Raises:
        ForeignError: there is no such output, or several of unknown names.
    """
    names = [value.name for value in graph.output]
    listed = ", ".join(repr(name) for name in names[:20]) or "none"
    if output is not None:
        if output not in names:
            raise ForeignError(f"--output must be one of {listed}, got {output!r}.", OUTPUT_OPTION)
        return output
    if len(names) == 1:
        return str(names[0])
    for name in ACTION_OUTPUTS:
        if name in names:
            return name
    raise ForeignError(
        f"The graph has {len(names)} outputs ({listed}), none of them named as an action.", OUTPUT_OPTION
    )


def build_input_values(feeds: tuple[Feed, ...]) -> dict[str, Value]:
    """Return the inputs, one behind the other, as the observation's parts."""
    values: dict[str, Value] = {}
    width, start = sum(feed.size for feed in feeds), 0
    image = feeds[0].image if len(feeds) == 1 else None
    for feed in feeds:
        selection = np.arange(start, start + feed.size)
        if feed.image is not None and feed.channels_first:
            selection = channels_first_order(feed.image)
        values[feed.name] = Value((), width, selection, feed.shape, image, feed.name, width)
        start += feed.size
    return values


def trace(file: OnnxFile, reach: Reach, inputs: Mapping[str, Value], found: Iterable[Found] = ()) -> dict[str, Operand]:
    """Return every tensor on the way, given what the inputs are of the observation, and which layers are recurrent: a
    value, or a constant."""
    cells = {name: cell for cell in found for name in cell.outputs}
    folder = Folder(file.opset)
    values: dict[str, Operand] = {**file.constants, **inputs}
    for index in reach.nodes:
        node = file.model.graph.node[index]
        if (cell := next((cells[name] for name in node.output if name in cells), None)) is not None:
            values |= through_cell(cell, values, Call(node, [], file.opset, folder))
            continue
        try:
            operands = [values[name] if name else None for name in node.input]
        except KeyError as error:
            raise ForeignError(f"A node takes {error}, which no node makes.", "Export the policy again.") from error
        call = Call(node, operands, file.opset, folder)
        results: list[Any]
        if any(isinstance(operand, Value) for operand in operands):
            results = list(apply(call))
            if wanted := reach.tensors.intersection(node.output[len(results) :]):
                raise call.build_error(f"has the output {min(wanted)!r}, which is not read")
        else:
            results = list(folder.evaluate(node, [None if o is None else np.asarray(o) for o in operands]))
        for name, result in zip(node.output, results, strict=False):
            if isinstance(result, Value) and not (result.order_only or result.is_index):
                result = replace(result, tensor=name)
            values[name] = result
    return values


def output_of(values: Mapping[str, Operand], output: str) -> Value:
    """Return one of the outputs as a chain."""
    result = values.get(output)
    if not isinstance(result, Value) or result.statistic is not None or not result.size:
        raise ForeignError(f"The output {output!r} must be a vector that depends on the observation.", OUTPUT_OPTION)
    return result


def _actions(model: onnx.ModelProto, output: str, result: Value) -> tuple[Discrete | Continuous | None, list[str]]:
    """Return the meaning of the output, and the assumptions that this makes."""
    names = names_that_fit(model, result.size)
    assumed = []
    if result.is_index or result.order_only:
        if result.order_only:
            assumed.append("A Softmax or the like at the end is left out: the largest logit is the same action.")
        if not result.is_index:
            assumed.append(f"The output {output!r} is a distribution over actions; the likeliest one is taken.")
        return Discrete(), assumed
    if output in DISCRETE_OUTPUTS:
        return Discrete(), [f"The output {output!r} holds one number for each action; the largest one is taken."]
    if output in ACTION_OUTPUTS[:8]:
        keys = [entry.key for entry in model.metadata_props if entry.key in ("action_scale", "default_joint_pos")]
        if keys:
            assumed.append(f"The file's {' and '.join(keys)} are for whoever takes the action; no step applies them.")
        return Continuous(names), assumed
    return None, assumed


def _input(model: onnx.ModelProto, feed: Feed) -> Input:
    shape = feed.image or (feed.size,)
    names = names_that_fit(model, feed.size, "observation_names") if len(shape) == 1 else ()
    return Input(feed.name, shape, element_names=names)


def _describe_ignored(file: OnnxFile, chosen: str, reach: Reach, states: set[str]) -> list[str]:
    """Phrases on what does not lead to the output, an output at a time; ``states`` are inputs and outputs of it."""
    graph = file.model.graph
    seen, tensors = set(reach.nodes), set(reach.tensors)
    phrases = []
    for name in states:
        seen |= set(reach_of(file, name).nodes)
        tensors |= {name, *reach_of(file, name).tensors}
    for value in graph.output:
        if value.name == chosen or value.name in states:
            continue
        other = reach_of(file, value.name)
        own = set(other.nodes) - seen
        parameters = sum(file.constants[name].size for name in other.tensors - tensors if name in file.constants)
        phrases.append(f"output {value.name!r}: {len(own)} nodes, {parameters} parameters of its own")
        seen |= own
        tensors |= other.tensors
    rest = len(graph.node) - len(seen)
    unused = [name for name in file.constants if name not in tensors]
    if rest or unused:
        size = sum(file.constants[name].size for name in unused)
        phrases.append(f"what leads to no output: {rest} nodes, {size} parameters")
    inputs = [v.name for v in graph.input if v.name not in {*reach.tensors, *states} and v.name not in file.constants]
    if inputs:
        phrases.append(f"inputs without influence: {', '.join(inputs)}")
    return phrases


IMPORTER = Importer("ONNX", (".onnx",), read_onnx, ("output", "states"))
