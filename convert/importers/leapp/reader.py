"""A LEAPP folder as one chain, from named sensor values to named targets, its states as fields that remember.

The graph is followed once with the states as inputs, to see what they hold (:mod:`convert.importers.leapp.states`), and
once more with the states made of the fields that remember. Then the file's own program runs episodes of random
observations, its states fed back as the YAML says, and the chain has to give the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from quarl.convert.importers.leapp.remembering import (
    check_beginnings,
    initial_names,
    initial_of,
    initial_values,
    remembering,
    size_of,
    spare_rows,
    used,
)
from quarl.convert.importers.leapp.states import Recalled, recalled, resolved
from quarl.convert.importers.leapp.wiring import fly

from quarl.convert.importers.chain import (
    Continuous,
    ForeignError,
    ForeignPolicy,
    state_inputs,
)
from quarl.convert.importers.leapp.description import Description, describe
from quarl.convert.importers.onnx.call import refuse_by_name
from quarl.convert.importers.onnx.cells import Found
from quarl.convert.importers.onnx.file import OnnxFile, load
from quarl.convert.importers.onnx.inputs import Reach, feeds_of, reach_of, state_feeds
from quarl.convert.importers.onnx.original import Feed, original_of, verify
from quarl.convert.importers.onnx.reader import CELLS_ALONE, opened, output_of, recognised, trace
from quarl.convert.importers.onnx.simplify import simplified
from quarl.convert.importers.onnx.value import materialised
from quarl.convert.importers.onnx.wired import Wired, ordered, states_held, wired_of
from quarl.policy.errors import PolicyError


def read_leapp(path: Path, output: str | None = None) -> ForeignPolicy:
    """The policy in a LEAPP folder.

    Args:
        path: the folder, or its YAML.
        output: which of the pipeline's outputs acts; default the only one that depends on an input.

    Raises:
        ForeignError: several nodes, another backend, a state that is no memory of observations or of the last action,
            a file that is not the one that the YAML names, or whatever the ONNX reader refuses.
    """
    described = describe(path)
    file = load(described.model)
    if described.sha256 != file.hashes[described.model.name]:
        difference = "is another" if described.sha256 else "is not in it"
        raise ForeignError(
            f"{described.model.name} is not the file that the YAML was written for: its sha256 {difference}.",
            "Export the folder again, or copy all of it.",
        )
    return read_described(described, file, output)


def read_described(described: Description, file: OnnxFile, output: str | None) -> ForeignPolicy:
    """The policy of a model whose inputs, outputs and wiring are known; errors as :func:`read_leapp`."""
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused where it is compared
            return _read(described, file, output)
    except PolicyError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, MemoryError) as error:
        message = f"{described.model.name} holds a node whose operands do not fit ({type(error).__name__}: {error})."
        raise ForeignError(message, "Export the policy again.") from error


def _read(described: Description, file: OnnxFile, output: str | None) -> ForeignPolicy:
    chosen = _chosen(described, file, output)
    reach, states = _with_states(described, file, chosen)
    for index in reach.nodes:
        refuse_by_name(file.model.graph.node[index])
    feedback = {name: described.feedback[name] for name in states}
    found = recognised(file, chosen, state_feeds(file, states, every=False), feedback)
    reach, states = _with_states(described, file, chosen, found)
    found = [cell for cell in found if reach.tensors & cell.outputs.keys()]
    cells = state_feeds(file, states_held(found))
    if looked_at := sorted(set(states) & cells.keys()):
        raise ForeignError(
            f"the state {looked_at[0]!r} of a recurrent layer is looked at by something else, too.", CELLS_ALONE
        )
    feeds = feeds_of(file, reach, cells)
    _check_inputs(described, (*feeds, *cells.values()))
    inputs = opened(feeds)
    try:
        traced = trace(file, reach, inputs, found)
        action = output_of(traced, chosen)
        each = {
            name: recalled(name, inputs[name].selection, output_of(traced, described.feedback[name]), action)
            for name in states
        }
        recalls = resolved(each, {name: inputs[name].selection for name in states})
    except ForeignError as error:
        if not states:
            raise
        raise ForeignError(
            f"{error.args[0]} The states {', '.join(map(repr, states))} are none of a GRU or an LSTM; read are these, "
            "as PyTorch computes them, earlier observations, and the last action.",
            error.next_step,
        ) from error
    fields, values = remembering(described, feeds, inputs, recalls, chosen, action.size)
    result = materialised(output_of(trace(file, reach, values, found), chosen))
    check_beginnings(recalls, initial_values(described, recalls), feeds, fields)
    if spare := spare_rows(fields, used(result.steps, result.observed)):
        fields, values = remembering(described, feeds, inputs, recalls, chosen, action.size, spare)
        result = materialised(output_of(trace(file, reach, values, found), chosen))
    steps = simplified(result.steps, None)
    layers = ordered(found, steps)
    initial = initial_values(described, recalls) | initial_of(described, {n: feed.size for n, feed in cells.items()})
    begun = [np.concatenate([initial[name][places] for name, places in cell.states]) for cell in layers]
    target = described.outputs[chosen]
    policy = ForeignPolicy(
        source=described.source,
        inputs=state_inputs(steps, fields, begun),
        steps=steps,
        actions=Continuous(target.element_names if len(target.element_names) == result.size else (), target.unit),
        period_s=None if described.frequency is None else 1.0 / described.frequency,
        ignored=tuple(_ignored(described, (*feeds, *cells.values()), chosen)),
        assumed=tuple(_assumed(described, recalls, cells)),
        provenance={"node": described.node, "sha256": file.hashes, **described.versions},
    )
    if result.order_only or result.is_index:
        raise ForeignError(f"the output {chosen!r} is the number of an action; continuous targets are read.")
    remembered = [*states, *cells]
    following = [described.feedback[name] for name in remembered]
    whole = Reach.of([reach_of(file, name) for name in (chosen, *following)])
    together = (*feeds, *cells.values())
    original = original_of(file.model, list(whole.nodes), together, result.tensor, chosen, *following)
    parts = tuple(
        Feed(field.name, size_of(field), (1, size_of(field)), None, False, np.dtype(np.float32), True)
        for field in fields
    )
    wired = Wired(original, values, parts)
    if layers:
        wired = wired_of(original, values, parts, layers, {name: 2 + remembered.index(name) for name in cells})
    verify(policy, wired)
    fly(policy, original, remembered, initial)
    return replace(policy, original=wired)


def _chosen(described: Description, file: OnnxFile, output: str | None) -> str:
    inputs = set(described.inputs)
    living = [name for name in described.results if reach_of(file, name).tensors & inputs]
    if output is not None:
        if output not in living:
            raise ForeignError(f"the node has no output {output!r} that depends on an input; it has {living}.")
        return output
    if len(living) != 1:
        raise ForeignError(f"the node has {len(living)} outputs, {living}.", "Type --output NAME with one of them.")
    return living[0]


def _with_states(
    described: Description, file: OnnxFile, chosen: str, found: Sequence[Found] = ()
) -> tuple[Reach, list[str]]:
    """The part of the graph that leads to the output and to the states on its way; and these states' names, those of
    recurrent layers left out."""
    outputs, states = [chosen], list[str]()
    reach = reach_of(file, chosen, found)
    while new := [name for name in described.feedback if name in reach.tensors and name not in states]:
        states += new
        outputs += [described.feedback[name] for name in new]
        reach = Reach.of([reach_of(file, name, found) for name in outputs])
    return reach, states


def _check_inputs(described: Description, feeds: tuple[Feed, ...]) -> None:
    for feed in feeds:
        tensor = described.inputs.get(feed.name)
        if tensor is None or tensor.size != feed.size:
            raise ForeignError(
                f"the model's input {feed.name!r} of {feed.size} elements is not what the YAML describes.",
                "Export the folder again.",
            )


def _ignored(described: Description, feeds: tuple[Feed, ...], chosen: str) -> list[str]:
    used = {feed.name for feed in feeds}
    phrases = [f"output {name!r}" for name in described.results if name != chosen]
    unused = [name for name in described.inputs if name not in used]
    return phrases + ([f"inputs without influence: {', '.join(unused)}"] if unused else [])


def _assumed(described: Description, recalls: dict[str, Recalled], cells: Iterable[str]) -> list[str]:
    stored = initial_names(described)
    difference = [
        f"The state {name!r} begins with zeros: the file does not say with what."
        for name in (*recalls, *cells)
        if name not in stored
    ]
    difference += [
        f"The state {name!r} is a recurrent layer's: whoever runs the policy feeds it back." for name in cells
    ]
    for recall in recalls.values():
        if recall.of_action.any():
            periods = int(recall.ages[recall.of_action].max())
            difference.append(
                f"The state {recall.name!r} holds the actions of {periods} periods before: whoever runs the policy "
                "remembers them."
            )
        else:
            difference.append(
                f"The state {recall.name!r} is the observations of {int(recall.ages.max())} periods before: whoever "
                "runs the policy remembers them."
            )
    return difference
