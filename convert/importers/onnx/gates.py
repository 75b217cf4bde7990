"""GRUs and LSTMs that a graph writes out in sums, products, sigmoids and tanhs, recognised by what they compute.

A next state is multiplied out, element by element, into products of sources (:mod:`convert.importers.onnx.sums`):

    GRU:   h' = n − z n + z h,  or h − z h + z n with the gate turned round;   n = tanh(… + r (h U + d))
    LSTM:  c' = f c + i g,   h' = o tanh(c')

Names, the number of nodes and their order do not matter; whatever multiplies out to something else is not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from quarl.convert.importers.chain import Doubles, Recurrent
from quarl.convert.importers.onnx.cells import Found
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.sums import Source, Sum, Tensor, source_of, sums
from quarl.policy.spec import MOST_UNITS, Cell

Product = tuple[Source, ...]
Products = dict[Product, Doubles]
MOST_FACTORS = 3
RESHAPES = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


def find_decomposed_cells(
    file: OnnxFile, nodes: Iterable[int], shapes: Mapping[str, tuple[int, ...]], fed_back: Mapping[str, str]
) -> list[Found]:
    """Return the recurrent layers that these nodes write out.

    Args:
        file: the model.
        nodes: their numbers, in order.
        shapes: of the graph's inputs.
        fed_back: outputs by the input that they become.
    """
    nodes, cells = list(nodes), list[Found]()
    sources = {name: source_of(name, shape) for name, shape in shapes.items()}
    while True:
        tensors = sums(file, nodes, sources)
        open_ones = [name for name in fed_back if name not in {own for cell in cells for own, _ in cell.states}]
        cell = next(_candidates(file, tensors, open_ones, fed_back), None)
        if cell is None:
            return cells
        cells.append(cell)
        # To a layer behind it, its state is one tensor.
        sources |= {name: source_of(name, shape) for name, shape in cell.outputs.items()}


def _candidates(
    file: OnnxFile, tensors: Mapping[str, Tensor], states: Sequence[str], fed_back: Mapping[str, str]
) -> Iterator[Found]:
    for names in [(name,) for name in states] + list(permutations(states, 2)):
        held = [_only_source(tensors.get(name)) for name in names]
        next_values = [tensors.get(fed_back[name]) for name in names]
        known = [tensor for tensor in held if tensor is not None]
        following = [tensor for tensor in next_values if isinstance(tensor, Sum)]
        if len(known) != len(names) or len(following) != len(names):
            continue
        units = len(following[0].bias)
        if units > MOST_UNITS or any(len(tensor.bias) != units for tensor in following):
            continue
        kind = Cell.GRU if len(names) == 1 else Cell.LSTM
        gates = _gru(known[0], following[0]) if kind is Cell.GRU else _lstm(known, following)
        weights = None if gates is None else _weights(kind, gates, known[0], units)
        if weights is None:
            continue
        step, fed = weights
        output = _before_reshapes(file, fed_back[names[0]])
        output_sum = tensors[output]
        assert isinstance(output_sum, Sum)
        places = tuple((name, np.arange(units)) for name in names)
        yield Found(step, fed, places, {output: output_sum.shape}, f"the state {names[0]!r}")


def _only_source(value: Tensor) -> Source | None:
    return next(iter(value.terms)) if isinstance(value, Sum) and len(value.terms) == 1 else None


def _before_reshapes(file: OnnxFile, tensor: str) -> str:
    makers = {name: node for node in file.model.graph.node for name in node.output}
    while (node := makers.get(tensor)) is not None and node.op_type in RESHAPES:
        tensor = node.input[0]
    return tensor


def products(value: Sum) -> Products | None:
    """Multiplied out, element by element: the factors (n,) of each product of sources; None where that is not so."""
    diagonal = value.diagonal()
    if diagonal is None:
        return None
    terms: Products = {(): value.bias} if value.bias.any() else {}
    for source, factors in diagonal.items():
        parts: Products | None = {(source,): np.ones(len(factors))}
        if source.gate == "Mul":
            parts = _multiply_products(*(products(operand) for operand in source.operands))
        if parts is None:
            return None
        for key, part in parts.items():
            terms[key] = terms.get(key, 0.0) + factors * part
    return {key: part for key, part in terms.items() if part.any()}


def _multiply_products(first: Products | None, second: Products | None) -> Products | None:
    if first is None or second is None:
        return None
    terms: Products = {}
    for one, factor in first.items():
        for other, its in second.items():
            key = _key(*one, *other)
            if len(key) > MOST_FACTORS:
                return None
            terms[key] = terms.get(key, 0.0) + factor * its
    return terms


def _key(*sources: Source) -> Product:
    return tuple(sorted(sources, key=id))


def _are(found: Products, wanted: Mapping[Product, float]) -> bool:
    return found.keys() == wanted.keys() and all((found[key] == factor).all() for key, factor in wanted.items())


def _select_by_gate(found: Products, gate: str) -> list[Source]:
    return list(dict.fromkeys(source for key in found for source in key if source.gate == gate))


def _gru(h: Source, following: Sum) -> list[Sum] | None:
    """Return the sums of the gates r and z, of n without what is reset, and what is reset; None if it is no GRU."""
    terms = products(following)
    if (
        terms is None
        or len(update := _select_by_gate(terms, "Sigmoid")) != 1
        or len(new := _select_by_gate(terms, "Tanh")) != 1
    ):
        return None
    z, n = update[0], new[0]
    (gate,) = z.operands
    if _are(terms, {(h,): 1.0, _key(z, h): -1.0, _key(z, n): 1.0}):
        gate = gate.scale_by(np.array(-1.0))  # 1 − σ(x) = σ(−x)
    elif not _are(terms, {(n,): 1.0, _key(z, n): -1.0, _key(z, h): 1.0}):
        return None
    (inside,) = n.operands
    resets = [source for source in inside.terms if source.gate == "Mul"]
    if len(resets) != 1 or not np.array_equal(inside.terms[resets[0]], np.eye(len(inside.bias))):
        return None
    rest = Sum({s: m for s, m in inside.terms.items() if s is not resets[0]}, inside.bias, inside.shape)
    if h in rest.terms:
        return None
    for reset, of_state in permutations(resets[0].operands):
        r = _only_source(reset)
        pure = r is not None and r.gate == "Sigmoid" and not reset.bias.any()
        if r is not None and pure and np.array_equal(reset.terms[r], np.eye(len(reset.bias))):
            return [r.operands[0], gate, rest, of_state] if set(of_state.terms) <= {h} else None
    return None


def _lstm(held: Sequence[Source], following: Sequence[Sum]) -> list[Sum] | None:
    """Return the sums of the gates i, f, g, o; None if it is no LSTM."""
    hidden, cell = (products(next_value) for next_value in following)
    if cell is None or hidden is None or len(new := _select_by_gate(cell, "Tanh")) != 1:
        return None
    g, c = new[0], held[1]
    for f, i in permutations(_select_by_gate(cell, "Sigmoid"), 2):
        if not _are(cell, {_key(f, c): 1.0, _key(i, g): 1.0}):
            continue
        for o, t in ((o, t) for o in _select_by_gate(hidden, "Sigmoid") for t in _select_by_gate(hidden, "Tanh")):
            inside = products(t.operands[0])
            same = inside is not None and _are(inside, {_key(f, c): 1.0, _key(i, g): 1.0})
            if same and _are(hidden, {_key(o, t): 1.0}):
                return [source.operands[0] for source in (i, f, g, o)]
    return None


def _weights(kind: Cell, gates: list[Sum], h: Source, units: int) -> tuple[Recurrent, tuple[str, ...]] | None:
    """Return the layer, and the tensors that are fed to it; None where a gate is made of something else."""
    sums_of, reset = (gates, None) if kind is Cell.LSTM else (gates[:3], gates[3])
    fed = list(dict.fromkeys(source for gate in sums_of for source in gate.terms if source is not h))
    if not fed or any(source.gate for source in fed):
        return None
    sizes = {source: len(gate.terms[source]) for gate in sums_of for source in gate.terms}
    kernel = np.concatenate(
        [np.concatenate([g.terms.get(s, np.zeros((sizes[s], units))) for g in sums_of], axis=1) for s in fed]
    )
    nothing = np.zeros((units, units))
    of_state = [gate.terms.get(h, nothing) for gate in sums_of]
    state_bias = np.zeros(len(sums_of) * units)
    if reset is not None:
        of_state[2] = reset.terms.get(h, nothing)
        state_bias[2 * units :] = reset.bias
    bias = np.concatenate([gate.bias for gate in sums_of])
    arrays = (np.ascontiguousarray(array, np.float32) for array in (kernel, bias, np.hstack(of_state), state_bias))
    return Recurrent(kind, *arrays), tuple(source.name for source in fed)
