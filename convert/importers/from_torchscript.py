"""From a TorchScript file to ONNX, where PyTorch is: copy this file there; it needs torch, numpy and nothing else.

    python from_torchscript.py policy.pt --observations rollouts.npz --output-path go2

It writes go2.onnx, and go2-pairs.npz with the observations and what the module answers to them, and prints the command
that imports both. 'observations' in rollouts.npz are rows as the module takes them: (rows, size), or (rows, channels,
height, width), at least 16; of a recurrent actor of rsl_rl's, those of successive periods. TorchScript is a program:
give a file that you trust.
"""

from __future__ import annotations

import argparse
import inspect
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

OPSET = 17
FEWEST_ROWS = 16
"""Fewest observations that convert.importers takes."""
COMPARED = 16
"""Observations that are computed again, in another order, by a module that was loaded again."""
APART = 1e-4
"""Share of the largest output by which the same rows may differ in a batch and alone."""
Answer = Callable[[torch.Tensor], torch.Tensor]


STATES = ("hidden_state", "cell_state")
PARTS = {"obs_normalizer", "rnn", "mlp", "deterministic_output"}
"""What a recurrent actor is made of in rsl_rl's export."""


class RefusedError(Exception):
    """The file or the observations cannot be used; the message says why, and what to do."""


def main(words: list[str] | None = None) -> int:
    """Write both files; the exit code is 0, or 1 when something was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="what torch.jit.save wrote")
    parser.add_argument("--observations", type=Path, required=True, metavar="NPZ", help="array 'observations'")
    parser.add_argument("--output-path", type=Path, required=True, metavar="NAME", help="of NAME.onnx, NAME-pairs.npz")
    parser.add_argument("--output", type=int, metavar="NUMBER", help="of a module with several: the one that acts")
    arguments = parser.parse_args(words)
    try:
        command = converted(arguments.file, arguments.observations, arguments.output_path, arguments.output)
    except RefusedError as error:
        print(f"from_torchscript: {error}", file=sys.stderr)
        return 1
    print(f"Next, where convert is, with the time between two decisions:\n  {command}")
    print("If the outputs are values or logits of numbered actions: --actions discrete instead of as-is.")
    return 0


def converted(file: Path, observations: Path, name: Path, output: int | None = None) -> str:
    """Write NAME.onnx and NAME-pairs.npz; the command that imports them.

    Args:
        file: of TorchScript.
        observations: npz with the array 'observations'.
        name: of both files, with its folder.
        output: which of several outputs acts, from 0.

    Raises:
        RefusedError: the module has a state, samples, or does not run on the observations; nothing was written.
    """
    graph, pairs = name.with_name(f"{name.name}.onnx"), name.with_name(f"{name.name}-pairs.npz")
    for path in (graph, pairs):
        if path.exists():
            raise RefusedError(f"{path} exists already. Give another --output-path, or remove it.")
    rows = read_observations(observations)
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load(file)
        if (wired := with_states(module)) is not None:
            recurrent(module, wired, rows, graph, pairs)
            return next_command(graph, pairs, name.name, [])
        answer, outputs = answering(module, rows[:1], output)
        check_state(answer, answering(load(file), rows[:1], output)[0], rows)
        answers, batched = answers_of(answer, rows)
        if not np.isfinite(answers).all():
            raise RefusedError("the module answers NaN or infinity. Is it trained? Look for divergence.")
        export(load(file), rows[: 2 if batched else 1], graph, outputs, batched)
    kept = rows.numpy()
    if kept.ndim == 4:
        kept = kept.transpose(0, 2, 3, 1)  # a bundle's images are (height, width, channels)
    np.savez_compressed(pairs, observations=kept.reshape(len(kept), -1), outputs=answers)
    return next_command(graph, pairs, name.name, ["--output", outputs[output or 0]] if len(outputs) > 1 else [])


def next_command(graph: Path, pairs: Path, name: str, more: list[str]) -> str:
    """The command that imports both files."""
    options = ["--observations", str(pairs), "--golden", str(pairs), "--actions", "as-is", "--period", "0.02", *more]
    return shlex.join(["quarl", "import", str(graph), *options, "--name", name])


class Gru(torch.nn.Module):
    """rsl_rl's GRU actor, its state an input and an output."""

    def __init__(self, module: Any, cells: torch.nn.Module) -> None:
        super().__init__()
        self.before, self.behind, self.last = module.obs_normalizer, module.mlp, module.deterministic_output
        self.cells = cells

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions of one observation, and the next state."""
        y, after = self.cells(self.before(x).unsqueeze(0), h)
        return self.last(self.behind(y.squeeze(0))), after


class Lstm(Gru):
    """rsl_rl's LSTM actor, likewise."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions of one observation, and the next states."""
        y, (hidden, cell) = self.cells(self.before(x).unsqueeze(0), (h, c))
        return self.last(self.behind(y.squeeze(0))), hidden, cell


def with_states(module: Any) -> Any | None:
    """A recurrent actor of rsl_rl's with its states as inputs and outputs; None of another module."""
    known = set(dict(module.named_children())) == PARTS and hasattr(module, "reset") and hasattr(module, STATES[0])
    if not known:
        return None
    lstm, weights = hasattr(module, STATES[1]), dict(module.rnn.named_parameters())
    layers, _, units = getattr(module, STATES[0]).shape
    cells = (torch.nn.LSTM if lstm else torch.nn.GRU)(weights["weight_ih_l0"].shape[1], units, layers)
    cells.load_state_dict(weights)
    return torch.jit.freeze(torch.jit.script((Lstm if lstm else Gru)(module, cells).eval()))


def recurrent(module: Any, wired: Any, rows: torch.Tensor, graph: Path, pairs: Path) -> None:
    """Write both files of a recurrent actor, if with its states wired it answers as it does by itself.

    Raises:
        RefusedError: it does not, or its reset() leaves something behind.
    """
    names = [name for name in STATES if hasattr(module, name)]
    zeros = [torch.zeros_like(getattr(module, name)) for name in names]
    module.reset()
    answers = torch.cat([module(rows[at : at + 1]).clone() for at in range(len(rows))]).numpy()
    module.reset()
    again = torch.cat([module(rows[at : at + 1]).clone() for at in range(COMPARED)]).numpy()
    made, states = [], zeros
    for at in range(len(rows)):
        action, *states = wired(rows[at : at + 1], *states)
        made.append(action)
    own = torch.cat(made).numpy()
    close = np.allclose(own, answers, rtol=APART, atol=APART * np.abs(answers).max())
    if not close or not np.array_equal(again, answers[:COMPARED]):
        raise RefusedError(
            "the module keeps a state, as a recurrent actor of rsl_rl's does, but does not answer as one: from zeros "
            "after reset(), each answer by normaliser, GRU or LSTM, and layers behind it. Export it to ONNX."
        )
    parts = ["h", "c"][: len(names)]
    options = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    inputs, outputs = ["observation", *(f"{p}_in" for p in parts)], ["actions", *(f"{p}_out" for p in parts)]
    given = (rows[:1], *zeros)
    torch.onnx.export(
        wired, given, str(graph), opset_version=OPSET, input_names=inputs, output_names=outputs, **options
    )
    np.savez_compressed(pairs, observations=rows.numpy(), outputs=answers, episode_starts=np.arange(len(rows)) == 0)


def read_observations(path: Path) -> torch.Tensor:
    """(rows, size) or (rows, channels, height, width), float32."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "observations" not in arrays.files:
                raise RefusedError(f"{path} has no array 'observations'; it has {', '.join(arrays.files)}.")
            rows = np.asarray(arrays["observations"], np.float32)
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedError(f"{path} cannot be read ({error}). Save it: np.savez(FILE, observations=ROWS).") from None
    if len(rows.shape) and len(rows) < FEWEST_ROWS:
        raise RefusedError(f"{path} has {len(rows)} observations; at least {FEWEST_ROWS} are needed. Record more.")
    if rows.ndim not in (2, 4):
        raise RefusedError(
            f"observations are {rows.shape}; allowed are (rows, size) or (rows, channels, height, width)."
        )
    if not np.isfinite(rows).all():
        raise RefusedError("observations hold NaN or infinity. Leave those rows out.")
    return torch.from_numpy(np.ascontiguousarray(rows))


def load(path: Path) -> Any:
    """The module, on the CPU, in float32, as it decides."""
    try:
        module = torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise RefusedError(
            f"{path} is no TorchScript that this PyTorch reads ({first}). Write it: torch.jit.save."
        ) from None
    return module.eval().float()


def answering(module: Any, row: torch.Tensor, output: int | None) -> tuple[Answer, tuple[str, ...]]:
    """A function that gives the output that acts, (batch, m); and what the ONNX file calls its outputs."""
    try:
        found = module(row)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        shape = tuple(row.shape)
        raise RefusedError(f"the module does not take one observation of the shape {shape}: {lines[-1]}.") from None
    if isinstance(found, torch.Tensor):
        if output:
            raise RefusedError(f"--output {output}: the module has one output. Leave it out.")
        return module, ("actions",)
    if not isinstance(found, (tuple, list)) or not all(isinstance(each, torch.Tensor) for each in found):
        raise RefusedError(f"the module gives a {type(found).__name__}; allowed are a tensor, or several in a tuple.")
    if output is None or not 0 <= output < len(found):
        shapes = ", ".join(f"{at}: {tuple(each.shape)}" for at, each in enumerate(found))
        raise RefusedError(f"the module has several outputs, {shapes}. Add --output NUMBER, the one that acts.")
    return (lambda rows: module(rows)[output]), tuple(f"output_{at}" for at in range(len(found)))


def check_state(answer: Answer, again: Answer, rows: torch.Tensor) -> None:
    """Refuse a module whose answer depends on more than the observation: on those before it, or on chance."""
    few = rows[:COMPARED]
    first = [answer(few[at : at + 1]).clone() for at in range(len(few))]
    second = [again(few[at : at + 1]).clone() for at in reversed(range(len(few)))][::-1]
    twice = [answer(few[:1]).clone(), answer(few[:1]).clone()]
    same = all(torch.equal(own, first[0]) for own in twice)
    if not same or not all(torch.equal(first[at], second[at]) for at in range(len(few))):
        raise RefusedError(
            "the module answers the same observation differently the second time: it keeps a state (a recurrent "
            "policy, a history, running statistics) or draws at random. A bundle does neither; nothing was written. "
            "Save the module that gives the mean, without the state."
        )


def answers_of(answer: Answer, rows: torch.Tensor) -> tuple[np.ndarray, bool]:
    """(rows, m), one observation at a time, and whether the module also takes them in a batch."""
    alone = torch.cat([answer(rows[at : at + 1]).reshape(1, -1) for at in range(len(rows))]).numpy()
    try:
        together = answer(rows).reshape(len(rows), -1).numpy()
    except Exception:  # a module for one observation at a time
        return alone, False
    close = together.shape == alone.shape and np.allclose(together, alone, rtol=APART, atol=APART * np.abs(alone).max())
    return alone, bool(close)


def export(module: Any, rows: torch.Tensor, path: Path, outputs: tuple[str, ...], batched: bool) -> None:
    """Write the ONNX file, by tracing nothing: the module is a program already."""
    options: dict[str, Any] = {}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False
    if batched:
        options["dynamic_axes"] = {name: {0: "batch"} for name in ("observation", *outputs)}
    names = {"input_names": ["observation"], "output_names": list(outputs)}
    try:
        torch.onnx.export(module, (rows,), str(path), opset_version=OPSET, **names, **options)
    except Exception as error:
        path.unlink(missing_ok=True)
        lines = str(error).strip().splitlines() or [""]
        raise RefusedError(
            f"PyTorch does not export the module ({type(error).__name__}: {lines[0]}). Export the nn.Module itself "
            "with torch.onnx.export, or give its state_dict() with --spec."
        ) from None


if __name__ == "__main__":
    # Run where it lies, a folder named onnx lies beside it.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    raise SystemExit(main())
