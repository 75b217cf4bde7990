"""From PyTorch to ONNX, where PyTorch is: this one file needs torch and numpy, and nothing else of its package.

    python export_torch.py policy.pt                      TorchScript (torch.jit.save)
    python export_torch.py package.module:Class --weights state_dict.pth --kwargs '{"hidden": 64}'
    python export_torch.py model_1500.pt                  a checkpoint: rsl_rl, rl_games, skrl, CleanRL, Tianshou

It writes NAME.onnx, and NAME-pairs.npz: observations and answers, over episodes; and prints the command that imports
both. TorchScript and a module are programs: give those that you trust. Checkpoints are read with weights_only=True.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import itertools
import json
import re
import shlex
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

try:
    import numpy as np
    import torch
except ImportError as missing:
    raise SystemExit(f"export-torch: {missing.name} is not installed for {sys.executable}.") from None

OPSET, MOST_PARTS = 17, 6
EPISODES, PERIODS = 8, 64  # of made observations; a state is proved for PERIODS, which is also the fewest given rows
NEAR, FAR = 1.0, 3.0  # standard deviations of made episodes, in turn: far away a clip or a slope shows
HUGE = 1e18  # a deviation of about that overflowed in training, and is not one of a sensor
TOLERANCE = 1e-4  # share of the largest output by which float32 may differ between two orders of the same sums
KINDS = "ELU ReLU Tanh SiLU GELU SELU Sigmoid Softplus Mish Identity"
ACTIVATIONS = {**{name.lower(): getattr(torch.nn, name) for name in KINDS.split()}, "leaky_relu": torch.nn.LeakyReLU}


class RefusedError(Exception):
    """The policy or the observations cannot be used; the message says why, and what to do."""


class Layout(NamedTuple):
    """How a framework names an actor's Linear layers, a tensor that it alone has, and what its files do not say.

    An activation or squash of "" has no default. ``normaliser``: the divisor, of the variance, and the clip.
    """

    framework: str
    layers: str
    needs: str
    activation: str
    squash: str = "identity"
    normaliser: tuple[Callable[[torch.Tensor], torch.Tensor], float] | None = None
    note: str = ""


RSL_RL = r"model_state_dict\.(actor|student)\.\d+|actor_state_dict\.mlp\.\d+"
RSL_RL_STD = r"(model_state_dict|actor_state_dict\.distribution)\.(log_)?std(_param)?"
RSL_RL_MEMORY = re.compile(r"(model_state_dict\.memory_[as]|actor_state_dict\.rnn)\..*")
RL_GAMES = r"model\.a2c_network\.(actor_mlp\.\d+|mu|logits)"
SKRL = r"state_preprocessor\..*|policy\.log_std_parameter|target_policy\..*"
TIANSHOU = r"(.*\.)?(preprocess\.(model\.)+\d+|(mu|last)\.model\.\d+)"
CLIPS, SQUASHES = "Its player clips actions to -1..1 (--bounds).", "If compute() ends in a tanh: --squash tanh."
RUNNING, TIMES = "A wrapper's observation statistics are not in it.", "The tanh times max_action: --actions scale."
LAYOUTS = (
    Layout("rsl_rl", RSL_RL, RSL_RL_STD, "elu", normaliser=(lambda var: var.sqrt() + 1e-2, 0.0)),
    Layout("rl_games", RL_GAMES, RL_GAMES + ".*", "elu", "identity", (lambda var: (var + 1e-5).sqrt(), 5.0), CLIPS),
    Layout("skrl", r"policy\..*", SKRL, "elu", "identity", (lambda var: var.sqrt() + 1e-8, 5.0), SQUASHES),
    Layout("CleanRL (PPO)", r"actor_mean\.\d+", r"actor_logstd", "tanh", note=RUNNING),
    Layout("CleanRL (SAC, TD3, DDPG)", r"(0\.)?(fc\d+|fc_mean|fc_mu)", r"(0\.)?action_scale", "relu", "tanh"),
    Layout("CleanRL (DQN)", r"network\.\d+", r"network\.\d+\.weight", "relu"),
    Layout("Tianshou (SAC)", TIANSHOU, r".*actor\.sigma\.model\..*", "relu", "tanh", note=TIMES),
    Layout("Tianshou (PPO)", TIANSHOU, r".*actor\.sigma_param", "relu", note=RUNNING),
    Layout("Tianshou", TIANSHOU, r".*preprocess\..*", "relu", "", note=TIMES),
    Layout("Tianshou (DQN)", r"(policy\.)?model\.model\.model\.\d+", r".*model\.model\.model\..*", "relu"),
    Layout("Linear layers in order", r"(?!(model|actor)_state_dict).*", r".*", ""),
)
IGNORED = re.compile(  # tensors of critics, deviations, discriminators, optimizers and copies
    r"[1-9]\d*\..*|(.*\.)?((\w*_)?(critic|value|vf|teacher|disc|amp|sigma|target|privileged|rnd)(_\w+|\d+)?|qf?\d+"
    r"|memory_c|\w*log_?std\w*|std(_param)?|\w+_old|_actor_critic|\w*optimizer\w*|\w*_vf_\w*)(\..*)?"
)


class Recurrent(torch.nn.Module):
    """after(cells(before(x))), with the states as inputs and outputs."""

    def __init__(self, before: torch.nn.Module, cells: Any, after: torch.nn.Module) -> None:
        super().__init__()
        self.before, self.cells, self.after = before, cells, after

    def begin(self) -> tuple[torch.Tensor, ...]:
        """Return the states at the start of an episode."""
        zero = torch.zeros(self.cells.num_layers, 1, self.cells.hidden_size)
        return (zero, zero) if self.cells.mode == "LSTM" else (zero,)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Actions of one observation (1, size), and the next states, each (layers, 1, units)."""
        y, following = self.cells(self.before(x).unsqueeze(0), states if len(states) > 1 else states[0])
        return (self.after(y.squeeze(0)), *(following if len(states) > 1 else (following,)))


class Chosen(torch.nn.Module):
    """A module as it is, or one of its outputs, in the form of Recurrent: without states, or with its own inside."""

    def __init__(self, module: Any, output: int | None) -> None:
        super().__init__()
        self.module, self.output = module, output

    def begin(self) -> tuple[torch.Tensor, ...]:
        """Begin an episode."""
        for name in ("reset", "reset_memory"):
            with contextlib.suppress(AttributeError, TypeError, RuntimeError):
                getattr(self.module, name)()
                return ()
        for name, buffer in self.module.named_buffers():
            if name.endswith("_state"):
                buffer.zero_()
        return ()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Actions (batch, m)."""
        result = self.module(x)
        several = isinstance(result, (tuple, list))
        if several != (self.output is not None) or (several and not 0 <= (self.output or 0) < len(result)):
            advice = "several outputs: add" if several else "one output: leave out"
            raise RefusedError(f"the policy has {advice} --output NUMBER.")
        return (result[self.output] if several else result,)


def normalise(mean: torch.Tensor, divisor: torch.Tensor, clip: float = 0.0) -> list[Any]:
    """(x - mean) / divisor, clipped to ± clip if that is not 0."""
    layer = torch.nn.BatchNorm1d(mean.numel(), eps=0.0, affine=False)
    layer.running_mean, layer.running_var = mean.reshape(-1), divisor.reshape(-1).square()
    return [layer, torch.nn.Hardtanh(-clip, clip)] if clip else [layer]


def brief(error: Exception) -> str:
    """Return the last line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:200]}"


def main(words: list[str] | None = None) -> int:
    """Write both files; the exit code is 0, or 1 when something was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="TorchScript, a checkpoint, or package.module:Class")
    parser.add_argument("--weights", type=Path, help="of package.module:Class: its state dictionary")
    parser.add_argument("--kwargs", type=json.loads, default={}, metavar="JSON", help="of its constructor")
    parser.add_argument("--observations", type=Path, metavar="NPZ", help="'observations', and 'episode_starts' if any")
    parser.add_argument("--observation-size", type=int, metavar="N", help="where it does not follow from the layers")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="", help="of a checkpoint: between the layers")
    parser.add_argument("--squash", choices=ACTIVATIONS, default="", help="of a checkpoint: behind the last layer")
    parser.add_argument("--output", type=int, metavar="NUMBER", help="of several outputs: the one that acts, from 0")
    parser.add_argument("--output-path", type=Path, metavar="NAME", help="of NAME.onnx and NAME-pairs.npz")
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            print("\n".join(write_graph_and_pairs(parser.parse_args(words))))
    except RefusedError as error:
        print(f"export-torch: {error}", file=sys.stderr)
        return 1
    return 0


def write_graph_and_pairs(options: argparse.Namespace) -> list[str]:
    """Write NAME.onnx and NAME-pairs.npz, or raise RefusedError; what was found, and the command that imports both."""
    own_name, load, notes = open_policy(options)
    name = options.output_path or Path(own_name)
    graph, pairs = name.with_name(f"{name.name}.onnx"), name.with_name(f"{name.name}-pairs.npz")
    if graph.exists() or pairs.exists() or not name.parent.is_dir():
        raise RefusedError(f"{graph} or {pairs} exists, or their folder does not. Type another --output-path.")
    policy, recording_path = load(), options.observations
    rows, starts = (
        read_observations(recording_path)
        if recording_path
        else sample_observations(policy, options.observation_size, notes)
    )
    try:
        answers = answers_of(policy, rows, starts)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise RefusedError(f"the policy fails on observations {tuple(rows[:1].shape)}: {brief(error)}") from None
    if not np.isfinite(answers).all():
        raise RefusedError("the policy's outputs must be finite, got NaN or infinity. Check whether training diverged.")
    few, no = rows[:PERIODS], np.zeros(PERIODS, bool)
    if isinstance(policy, Chosen) and (answers_of(load(), few.flip(0), no)[::-1] != answers_of(policy, few, no)).any():
        policy = expose_recurrent_state(policy.module, rows, starts, answers)
        notes.append(f"state: {len(policy.begin())} inputs; {len(rows)} periods from reset are answered as by itself.")
    with tempfile.TemporaryDirectory(dir=name.parent) as folder:
        export(policy, rows[:1], Path(folder, "graph"))
        flat_rows = np.moveaxis(rows.numpy(), 1, -1).reshape(len(rows), -1)  # a bundle's images end in channels
        np.savez_compressed(Path(folder, "pairs.npz"), observations=flat_rows, outputs=answers, episode_starts=starts)
        Path(folder, "graph").replace(graph)
        Path(folder, "pairs.npz").replace(pairs)
    recorded = ["--observations", str(pairs)] if recording_path else []
    command = ["quarl", "import", str(graph), "--golden", str(pairs), *recorded]
    command += ["--actions", "as-is", "--period", "0.02", "--name", name.name]
    hints = "Give the time between two decisions; for values or logits of numbered actions: --actions discrete."
    hints += "" if recording_path else " int8 needs recorded observations: add --observations rollouts.npz."
    return [*notes, f"Next, where quarl is:\n  {shlex.join(command)}", hints]


def open_policy(options: argparse.Namespace) -> tuple[str, Callable[[], Any], list[str]]:
    """Return the policy's name, what loads it on the CPU in float32 as it decides, and what was found."""
    path, (module, _, attribute) = Path(options.file), options.file.partition(":")
    if attribute and not path.exists():
        try:
            built = getattr(importlib.import_module(module), attribute)(**options.kwargs)
            built.load_state_dict(torch.load(options.weights, map_location="cpu", weights_only=True))
        except Exception as error:
            why = f"{options.file} cannot be built from the weights {options.weights} ({brief(error)})"
            raise RefusedError(f"{why}. Check --weights FILE (a state dictionary) and --kwargs JSON.") from None
        return attribute, lambda: Chosen(copy.deepcopy(built).eval().float(), options.output), [options.file]
    if zipfile.is_zipfile(path) and any(
        member.endswith("/constants.pkl") for member in zipfile.ZipFile(path).namelist()
    ):
        if options.activation or options.squash:
            raise RefusedError("TorchScript already has its activations. Leave --activation and --squash out.")
        load = partial(torch.jit.load, str(path), map_location="cpu")
        return path.stem, lambda: Chosen(load().eval().float(), options.output), ["TorchScript"]
    policy, notes = policy_of(read_checkpoint(path), path.name, options.activation, options.squash)
    return path.stem, lambda: policy, notes


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by their dotted names, float32."""
    types: list[Any] = [np.dtype, *(type(np.dtype(kind)) for kind in "fdilqB?")]  # of numbers that rl_games saves
    types += [(np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]

    def flat(node: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(node, torch.Tensor):
            yield name.replace("_orig_mod.", ""), node.detach().float()
        elif isinstance(node, (Mapping, list, tuple)):
            for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
                yield from flat(value, f"{name}.{key}" if name else str(key))

    try:
        with getattr(torch.serialization, "safe_globals", contextlib.nullcontext)(types):
            return dict(flat(torch.load(path, map_location="cpu", weights_only=True), ""))
    except Exception as error:
        held = re.findall(r"GLOBAL (\S+)", str(error)) or [brief(error)]
        advice = f"{held[0]}. Save only tensors, torch.save(policy.state_dict(), FILE), or TorchScript."
        raise RefusedError(f"{path} cannot be read by torch.load(weights_only=True): {advice}") from None


def policy_of(tensors: Mapping[str, Any], what: str, activation: str, squash: str) -> tuple[Any, list[str]]:
    """Return the actor whose tensors a checkpoint holds, and what was found; RefusedError lists the tensors."""
    actor = {name: value for name, value in tensors.items() if value.ndim and not IGNORED.fullmatch(name)}
    for layout in LAYOUTS:
        names = [name[:-7] for name in actor if re.fullmatch(rf"({layout.layers})\.weight", name)]
        if names and any(re.fullmatch(layout.needs, name) for name in tensors):
            break

    def build_refusal(
        why: str, advice: str = "Export the module: package.module:Class --weights FILE."
    ) -> RefusedError:
        listed = "\n  ".join(f"{name} {tuple(value.shape)}" for name, value in actor.items())
        return RefusedError(f"{what}, read as {layout.framework}: {why}. {advice} The actor's tensors:\n  {listed}")

    weights = [actor[f"{name}.weight"] for name in names]
    memory = {name: actor[name] for name in actor if RSL_RL_MEMORY.fullmatch(name)}
    cells = cells_of({name.rpartition(".")[2]: value for name, value in memory.items()}) if memory else None
    if not names or any(matrix.ndim != 2 for matrix in weights):
        raise build_refusal("it is not a chain of Linear layers")
    size = cells.input_size if cells else weights[0].shape[1]
    sizes = [*(matrix.shape[1] for matrix in weights), len(weights[-1])]
    mean, spread = statistics(actor, size)
    scales = [name for name in actor if name.endswith(("action_scale", "action_bias"))]
    used = {*memory, *scales, *(f"{name}.{kind}" for name in names for kind in ("weight", "bias"))}
    if layout.normaliser:
        used |= {name for name in actor if mean and name.rpartition(".")[0] == mean.rpartition(".")[0]}
    if left := [name for name in actor if name not in used]:
        raise build_refusal(f"the role of {', '.join(left[:4])} is unknown")
    if sizes != [cells.hidden_size if cells else size, *map(len, weights)]:
        raise build_refusal("the layer sizes do not match one another")
    activation = activation or layout.activation or ("identity" if len(names) == 1 else "")
    squash = squash or layout.squash or ("" if activation else "identity")
    if not activation or not squash:
        option = "--squash, after the last layer," if activation else "--activation, between the layers,"
        raise build_refusal("the file does not name an activation", f"Add {option} as one of {', '.join(ACTIVATIONS)}.")
    after: list[Any] = []
    for name, weight in zip(names, weights):  # noqa: B905 (Python 3.9)
        after += [torch.nn.Linear(weight.shape[1], len(weight)), ACTIVATIONS[activation]()]
        after[-2].load_state_dict({"weight": weight, "bias": actor.get(f"{name}.bias", torch.zeros(len(weight)))})
    after[-1] = ACTIVATIONS[squash]()
    if len(scales) == 2:
        scale, bias = (actor[name] for name in scales)
        after += normalise(-bias / scale, 1 / scale)
    before: list[Any] = []
    if layout.normaliser and spread is not None:
        # A variance that overflowed in training makes its element 0; clamp keeps the divisor's square finite.
        before = normalise(actor[mean], layout.normaliser[0](spread.square()).clamp(max=HUGE), layout.normaliser[1])
    network = " × ".join(map(str, [*([size, cells.mode] if cells else []), *sizes]))
    summary = f"{network}, activation {activation}, last layer {squash}; normaliser: {mean or 'none'}. {layout.note}"
    parts = torch.nn.Sequential(*before), torch.nn.Sequential(*after)
    policy = Recurrent(parts[0], cells, parts[1]) if cells else Chosen(torch.nn.Sequential(*parts), None)
    return policy.eval(), [layout.framework, summary.rstrip()]


def cells_of(weights: Mapping[str, torch.Tensor]) -> Any:
    """Return the LSTM or GRU with these weights."""
    rows, units = weights["weight_hh_l0"].shape
    layers, bias = sum(name.startswith("weight_ih_l") for name in weights), "bias_ih_l0" in weights
    try:
        kind = torch.nn.LSTM if rows == 4 * units else torch.nn.GRU
        cells = kind(weights["weight_ih_l0"].shape[1], units, layers, bias)
        cells.load_state_dict(dict(weights))
    except RuntimeError:
        raise RefusedError("its memory must be a unidirectional LSTM or GRU without projection.") from None
    return cells.eval()


def statistics(tensors: Mapping[str, torch.Tensor], size: int) -> tuple[str, torch.Tensor | None]:
    """Return the name of a normaliser's mean, and its standard deviations (size,); "" and None: there is no
    normaliser."""
    for name, mean in tensors.items():
        for end, power in (("var", 0.5), ("variance", 0.5), ("std", 1.0)) if name.endswith("mean") else ():
            spread = tensors.get(name[:-4] + end)
            if spread is not None and mean.numel() == spread.numel() == size:
                return name, spread.reshape(-1) ** power
    return "", None


def sample_observations(policy: Any, given: int | None, notes: list[str]) -> tuple[torch.Tensor, np.ndarray]:
    """Rows (n, size) of the normaliser's distribution, else of a unit normal; where episodes start."""
    named = {**dict(policy.named_parameters()), **dict(policy.named_buffers())}
    layers = {name: value.shape[1] for name, value in named.items() if "weight" in name and value.ndim == 2}
    memory = [size for name, size in layers.items() if name.endswith("weight_ih_l0")]
    for size in [given] if given else memory or dict.fromkeys(layers.values()):
        normal = np.random.default_rng(0).normal(size=(EPISODES, PERIODS, size))
        rows = (normal * np.resize([NEAR, FAR], (EPISODES, 1, 1))).reshape(-1, size)
        mean, spread = statistics(named, size)
        if spread is not None:
            rows = named[mean].numpy().reshape(-1) + rows * spread.where(spread < HUGE / 10, torch.ones(())).numpy()
        observations, starts = torch.from_numpy(rows.astype(np.float32)), np.arange(len(rows)) % PERIODS == 0
        ends = observations[:PERIODS], observations[:PERIODS] + FAR * torch.eye(size)[-1]
        with contextlib.suppress(RuntimeError):  # another size; one that is too long may be cut: its last has to matter
            if given or len({answers_of(policy, variant, starts).tobytes() for variant in ends}) > 1:
                kind = "the normaliser's distribution" if mean else "a unit normal"
                notes.append(f"observations ({size}) are of {kind}, {NEAR} and {FAR} wide. Better: --observations.")
                return observations, starts
    raise RefusedError("the layers do not give the observation's size. Add --observation-size N, or --observations.")


def read_observations(path: Path) -> tuple[torch.Tensor, np.ndarray]:
    """(rows, size) or (rows, channels, height, width), float32; where episodes start."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows = np.ascontiguousarray(arrays["observations"], np.float32)
            starts = np.asarray(arrays.get("episode_starts", np.arange(len(rows)) == 0), bool)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise RefusedError(f"{path} cannot be read ({error}). Save it: np.savez(FILE, observations=ROWS).") from None
    if rows.ndim not in (2, 4) or len(rows) < PERIODS or not np.isfinite(rows).all() or starts.shape != rows.shape[:1]:
        allowed = f"(rows, size) or (rows, channels, height, width), finite, {PERIODS} rows or more, one start a row"
        raise RefusedError(f"{path}: arrays must be {allowed}, got {rows.shape}, starts {starts.shape}.")
    return torch.from_numpy(rows), np.concatenate([[True], starts[1:]])


def answers_of(policy: Any, rows: torch.Tensor, starts: np.ndarray) -> np.ndarray:
    """(rows, m), one observation at a time, from the beginning where an episode starts."""
    answers, states = [], ()
    for row, is_first in zip(rows.split(1), starts):  # noqa: B905 (Python 3.9)
        action, *states = policy(row, *(policy.begin() if is_first else states))
        answers.append(action.reshape(1, -1).clone())
    return torch.cat(answers).numpy()


def expose_recurrent_state(module: Any, rows: torch.Tensor, starts: np.ndarray, answers: np.ndarray) -> Recurrent:
    """Return the module with its LSTM's or GRU's state as inputs and outputs; trying finds the order of its other
    parts."""
    recurrent_modules = [
        candidate
        for candidate in module.named_modules()
        if "weight_ih_l0" in dict(candidate[1].named_parameters(recurse=False))
    ]
    parts = [
        child
        for name, child in module.named_children()
        if recurrent_modules and name != recurrent_modules[0][0].partition(".")[0]
    ]
    atol = TOLERANCE * np.abs(answers).max()
    if len(recurrent_modules) == 1 and len(parts) <= MOST_PARTS:
        cells = cells_of(dict(recurrent_modules[0][1].named_parameters(recurse=False)))
        orders = itertools.chain(*(itertools.permutations(parts, count) for count in range(len(parts) + 1)))
        for order, at in ((candidate, at) for candidate in orders for at in range(len(candidate) + 1)):
            wired = Recurrent(torch.nn.Sequential(*order[:at]), cells, torch.nn.Sequential(*order[at:])).eval()
            with contextlib.suppress(RuntimeError, TypeError, ValueError):  # parts that do not fit
                tried = (answers_of(wired, rows[:count], starts) for count in (2, len(rows)))
                if all(np.allclose(own, answers[: len(own)], TOLERANCE, atol) for own in tried):
                    return wired
    why = "its answers vary by chance, or by a state (a history, statistics) other than that"
    raise RefusedError(f"{why} of one LSTM or GRU. Export a module that returns the mean and keeps no such state.")


def export(policy: Any, row: torch.Tensor, path: Path) -> None:
    """Write the ONNX file, for one observation."""
    inputs = row, *policy.begin()
    options: dict[str, Any] = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    options["input_names"] = ["observation", "h_in", "c_in"][: len(inputs)]
    options["output_names"] = ["actions", "h_out", "c_out"][: len(inputs)]
    try:
        traced = torch.jit.freeze(torch.jit.trace(policy.eval(), inputs))
        torch.onnx.export(traced, inputs, str(path), opset_version=OPSET, **options)
    except Exception as error:
        raise RefusedError(f"torch.onnx cannot export the policy ({brief(error)}). Export another module.") from None


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # where a module may lie; beside this file may be a folder named onnx
    raise SystemExit(main())
