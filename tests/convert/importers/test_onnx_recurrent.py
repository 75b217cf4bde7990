"""GRUs and LSTMs in ONNX, with their states as inputs and outputs, as PyTorch's exporters and rsl_rl's write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarl.convert.importers import chain
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx import cells, gates
from quarl.policy.spec import Cell, Memory, Recurrence, Remembered
from tests.convert.importers.onnx_graphs import Graph, numbers
from tests.refusals import refused

GATES = {"GRU": 3, "LSTM": 4}
UNITS = 4


def layer(g: Graph, operator: str, x: str, inputs: int, *states: str, **attributes: object) -> list[str]:
    """Outputs of one layer: of every period, and the next states."""
    gates = GATES[operator] * UNITS
    weights = [g.c(0.8 * numbers(1, gates, inputs)), g.c(0.8 * numbers(1, gates, UNITS)), g.c(numbers(1, 2 * gates))]
    if operator == "GRU":
        attributes = {"linear_before_reset": 1, **attributes}
    outputs = [f"{part}_{len(g.nodes)}" for part in ("y", "h", "c")[: len(states) + 1]]
    g.n(operator, x, *weights, "", *states, outputs=outputs, hidden_size=UNITS, **attributes)
    return outputs


def row(g: Graph, y: str) -> str:
    return g.n("Reshape", y, g.c([1, UNITS]))


def one(operator: str, **attributes: object) -> tuple[Graph, str]:
    """A graph of one layer between a dense one and the output, with its states wired."""
    states = ["h_in", "c_in"][: 1 + (operator == "LSTM")]
    g = Graph(17, obs=[1, 5], **{name: [1, 1, UNITS] for name in states})
    x = g.n("Unsqueeze", g.n("Elu", g.dense("obs", 5, 6)), g.c([0]))
    y, *following = layer(g, operator, x, 6, *states, **attributes)
    for name, made in zip(("h_out", "c_out"), following, strict=False):
        g.n("Identity", made, outputs=[name])
    return g, g.n("Identity", g.dense(row(g, y), UNITS, 3), outputs=["actions"])


def outputs(operator: str) -> list[str]:
    return ["actions", "h_out", "c_out"][: 2 + (operator == "LSTM")]


@pytest.mark.parametrize("operator", GATES)
def test_a_layer_with_its_states_wired_becomes_a_recurrence(operator: str, tmp_path: Path) -> None:
    policy = one(operator)[0].read(tmp_path, *outputs(operator))
    (step,) = (step for step in policy.steps if isinstance(step, chain.Recurrent))
    assert step.recurrence == Recurrence(Cell[operator], UNITS)
    *_, state = policy.inputs
    assert state.memory == Memory(Remembered.STATE, (0.0,) * step.recurrence.state_size)
    assert not policy.ignored and "fed back as 'h_in'" in policy.assumed[0]


def two(swapped: bool) -> Graph:
    g = Graph(17, obs=[1, 5], h_in=[2, 1, UNITS])
    x = g.n("Unsqueeze", "obs", g.c([0]))
    parts = [g.n("Slice", "h_in", g.c([at]), g.c([at + 1]), g.c([0])) for at in (0, 1)]
    first, second = parts[::-1] if swapped else parts
    y, h = layer(g, "GRU", x, 5, first)
    z, k = layer(g, "GRU", g.n("Squeeze", y, g.c([1])), UNITS, second)
    g.n("Concat", *((k, h) if swapped else (h, k)), outputs=["h_out"], axis=0)
    g.n("Identity", g.dense(row(g, z), UNITS, 3), outputs=["actions"])
    return g


@pytest.mark.parametrize("swapped", [False, True])
def test_several_layers_share_an_input_in_any_order(swapped: bool, tmp_path: Path) -> None:
    policy = two(swapped).read(tmp_path, "actions", "h_out")
    assert [part.name for part in policy.inputs] == ["obs", "state_0", "state_1"]


@pytest.mark.parametrize("cell", Cell)
def test_a_wrong_order_of_gates_is_refused(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = tuple(range(len(cells.ORDERS[cell])))  # the contract's own
    monkeypatch.setitem(cells.ORDERS, cell, gates)
    with refused(ForeignError, "graph_not_reproduced"):
        one(cell.name)[0].read(tmp_path, *outputs(cell.name))


def written_out_lstm() -> Graph:
    """An LSTMCell of PyTorch in sums and products, as LEAPP and torch.onnx write it."""
    g = Graph(17, obs=[1, 5], h_in=[1, UNITS], c_in=[1, UNITS])
    sums = g.n("Add", g.dense("obs", 5, 4 * UNITS), g.dense("h_in", UNITS, 4 * UNITS))
    g.n("Split", sums, g.c([UNITS] * 4), outputs=["i", "f", "g", "o"], axis=1)
    kept = g.n("Mul", g.n("Sigmoid", "f"), "c_in")
    g.n("Add", kept, g.n("Mul", g.n("Sigmoid", "i"), g.n("Tanh", "g")), outputs=["c_out"])
    g.n("Mul", g.n("Sigmoid", "o"), g.n("Tanh", "c_out"), outputs=["h_out"])
    g.n("Identity", g.dense("h_out", UNITS, 3), outputs=["actions"])
    return g


def test_an_lstm_that_is_written_out_is_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["actions", "h_out", "c_out"]
    policy = written_out_lstm().read(tmp_path, *names)
    (step,) = (step for step in policy.steps if isinstance(step, chain.Recurrent))
    assert step.recurrence == Recurrence(Cell.LSTM, UNITS)
    recognised = gates._lstm

    def misread(*given: Any) -> Any:
        found = recognised(*given)
        return None if found is None else [found[at] for at in (0, 1, 3, 2)]

    monkeypatch.setattr(gates, "_lstm", misread)
    with refused(ForeignError, "graph_not_reproduced"):
        written_out_lstm().read(tmp_path, *names)


def test_an_output_that_is_not_the_next_state_is_refused(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5], h_in=[1, 1, UNITS])
    y, h = layer(g, "GRU", g.n("Unsqueeze", "obs", g.c([0])), 5, "h_in")
    g.n("Mul", h, g.c(0.9), outputs=["h_out"])
    g.n("Identity", g.dense(row(g, y), UNITS, 3), outputs=["actions"])
    with refused(ForeignError, "graph_not_reproduced"):
        g.read(tmp_path, "actions", "h_out")


def test_a_state_that_no_output_continues_is_refused(tmp_path: Path) -> None:
    graph, _ = one("GRU")
    with pytest.raises(ForeignError, match="--states h_in=OUTPUT"):
        graph.read(tmp_path, "actions")
    constant = Graph(17, obs=[1, 5])
    y, _ = layer(constant, "GRU", constant.n("Unsqueeze", "obs", constant.c([0])), 5, constant.c(numbers(1, 1, UNITS)))
    with refused(ForeignError, "recurrent_without_state"):
        constant.read(tmp_path, constant.dense(row(constant, y), UNITS, 3))


def test_a_state_that_something_else_looks_at_is_refused(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5], h_in=[1, 1, UNITS])
    y, h = layer(g, "GRU", g.n("Unsqueeze", "obs", g.c([0])), 5, "h_in")
    g.n("Identity", h, outputs=["h_out"])
    both = g.n("Concat", row(g, y), row(g, "h_in"), axis=1)
    g.n("Identity", g.dense(both, 2 * UNITS, 3), outputs=["actions"])
    with refused(ForeignError, "unsupported_memory", shows=["'h_in'"]):
        g.read(tmp_path, "actions", "h_out")


def test_a_layer_that_leads_nowhere_leaves_states_over(tmp_path: Path) -> None:
    g = Graph(17, obs=[1, 5], h_in=[2, 1, UNITS])
    x = g.n("Unsqueeze", "obs", g.c([0]))
    parts = [g.n("Slice", "h_in", g.c([at]), g.c([at + 1]), g.c([0])) for at in (0, 1)]
    (y, h), (_, k) = (layer(g, "GRU", x, 5, part) for part in parts)
    g.n("Concat", h, k, outputs=["h_out"], axis=0)
    g.n("Identity", g.dense(row(g, y), UNITS, 3), outputs=["actions"])
    with refused(ForeignError, "state_size_mismatch", shows=["'h_in'", "8", "4"]):
        g.read(tmp_path, "actions", "h_out")


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("GRU", {"linear_before_reset": 0}, r"has the reset before the product \(linear_before_reset=0\)"),
        ("GRU", {"clip": 3.0}, "cuts its gates' sums"),
        ("LSTM", {"input_forget": 1}, "couples its gates"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}, r"has the functions \['Sigmoid', 'Tanh', 'Relu'\]"),
        ("GRU", {"direction": "reverse"}, "runs backward, or both ways"),
    ],
)
def test_other_cells_are_refused_by_name(
    operator: str, attributes: dict[str, object], message: str, tmp_path: Path
) -> None:
    graph, _ = one(operator, **attributes)
    with pytest.raises(ForeignError, match=rf"{operator} .*{message}"):
        graph.read(tmp_path, *outputs(operator))
