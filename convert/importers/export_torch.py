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
from pathlib import Path
from typing import Any, NamedTuple

try:
    import numpy as np
    import torch
except ImportError as missing:
    raise SystemExit(f"export-torch: {missing.name} is not installed for {sys.executable}.") from None

OPSET = 17
EPISODES, PERIODS = 8, 64
"""Of the observations that are made; PERIODS is also the fewest that are taken, and for which a state is proved."""
NEAR, FAR = 1.0, 3.0
"""Standard deviations of the episodes of made observations, in turn: far away a clip or a slope shows."""
HUGE = 1e18
"""A deviation from which on it overflowed in training, not one of a sensor."""
MOST_PARTS = 6
TOLERANCE = 1e-4
"""Share of the largest output by which float32 may differ between two orders of the same sums."""
KINDS = "ELU ReLU Tanh SiLU LeakyReLU GELU SELU Sigmoid Softplus Mish Identity"
ACTIVATIONS = {name.lower(): getattr(torch.nn, name) for name in KINDS.split()}
Tensors = dict[str, torch.Tensor]


class RefusedError(Exception):
    """The policy or the observations cannot be used; the message says why, and what to do."""


class Layout(NamedTuple):
    """How a framework names an actor's tensors, and what it computes that the file does not say.

    ``layers`` and ``needs`` match names: of the Linear layers, and of a tensor without which it is another layout. An
    activation, or squash behind the last layer, of "" has no default. ``normaliser`` is an observation's divisor, of
    the variance, and its clip (0: none).
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
IGNORED = re.compile(
    r"[1-9]\d*\..*|(.*\.)?((\w*_)?(critic|value|vf|teacher|disc|amp|sigma|target|privileged|rnd)(_\w+|\d+)?|qf?\d+"
    r"|memory_c|\w*log_?std\w*|std(_param)?|\w+_old|_actor_critic|\w*optimizer\w*|\w*_vf_\w*)(\..*)?"
)
"""Tensors that an actor does not use: those of critics, deviations, discriminators, optimizers and copies."""


class Normalise(torch.nn.Module):
    """(x - mean) / divisor, clipped."""

    def __init__(self, mean: torch.Tensor, divisor: torch.Tensor, clip: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("divisor", divisor)
        self.clip = clip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, size)."""
        y = (x - self.mean) / self.divisor
        return y.clamp(-self.clip, self.clip) if self.clip else y


class Recurrent(torch.nn.Module):
    """after(cells(before(x))), with the states as inputs and outputs."""

    def __init__(self, before: torch.nn.Module, cells: Any, after: torch.nn.Module) -> None:
        super().__init__()
        self.before, self.cells, self.after = before, cells, after

    def zeros(self) -> tuple[torch.Tensor, ...]:
        """The states at the start of an episode."""
        zero = torch.zeros(self.cells.num_layers, 1, self.cells.hidden_size)
        return (zero, zero) if self.cells.mode == "LSTM" else (zero,)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Actions of one observation (1, size), and the next states, each (layers, 1, units)."""
        y, following = self.cells(self.before(x).unsqueeze(0), states if len(states) > 1 else states[0])
        return (self.after(y.squeeze(0)), *(following if len(states) > 1 else (following,)))


class Chosen(torch.nn.Module):
    """The output that acts, of a module that may have several."""

    def __init__(self, module: Any, row: torch.Tensor, output: int | None) -> None:
        super().__init__()
        self.module, self.output = module, output
        try:
            found = module(row)
        except Exception as error:
            raise RefusedError(f"an observation of the shape {tuple(row.shape)} is not taken: {brief(error)}") from None
        several = found if isinstance(found, (tuple, list)) else [found]
        if (found is several) != (output is not None) or not 0 <= (output or 0) < len(several):
            shapes = ", ".join(f"{at}: {tuple(getattr(each, 'shape', ()))}" for at, each in enumerate(several))
            advice = "Add --output NUMBER, the one that acts" if found is several else "Leave --output out"
            raise RefusedError(f"the policy's outputs are {shapes}. {advice}.")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, m)."""
        return self.module(x) if self.output is None else self.module(x)[self.output]


def brief(error: Exception) -> str:
    """The last line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:200]}"


def main(words: list[str] | None = None) -> int:
    """Write both files; the exit code is 0, or 1 when something was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="TorchScript, a checkpoint, or package.module:Class")
    parser.add_argument("--weights", type=Path, help="of package.module:Class: its state dictionary")
    parser.add_argument("--kwargs", type=json.loads, default={}, metavar="JSON", help="of its constructor")
    parser.add_argument("--observations", type=Path, metavar="NPZ", help="'observations', and 'episode_starts' if any")
    parser.add_argument("--observation-size", type=int, metavar="N", help="where it does not follow from the layers")
    for word, place in (("--activation", "between the layers"), ("--squash", "behind the last layer")):
        parser.add_argument(
            word, type=lambda name: name.replace("_", ""), choices=ACTIVATIONS, help=f"of a checkpoint: {place}"
        )
    parser.add_argument("--output", type=int, metavar="NUMBER", help="of several outputs: the one that acts, from 0")
    parser.add_argument("--output-path", type=Path, metavar="NAME", help="of NAME.onnx and NAME-pairs.npz")
    arguments = parser.parse_args(words)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print("\n".join(converted(arguments)))
    except RefusedError as error:
        print(f"export-torch: {error}", file=sys.stderr)
        return 1
    return 0


def converted(options: argparse.Namespace) -> list[str]:
    """Write NAME.onnx and NAME-pairs.npz; what was found, and the command that imports both.

    Raises:
        RefusedError: nothing was written.
    """
    is_class = ":" in options.file and not Path(options.file).exists()
    name = options.output_path or Path(options.file.rpartition(":")[2] if is_class else Path(options.file).stem)
    graph, pairs = name.with_name(f"{name.name}.onnx"), name.with_name(f"{name.name}-pairs.npz")
    for path in (graph, pairs):
        if path.exists() or not path.parent.is_dir():
            raise RefusedError(f"{path} exists already, or its folder does not. Give another --output-path.")
    torch.manual_seed(0)
    load, notes = class_of(options) if is_class else opened(options)
    module = load()
    if options.observations:
        rows, starts = read_observations(options.observations)
    else:
        rows, starts = made_observations(module, options.observation_size, notes)
    policy: Any = module if isinstance(module, Recurrent) else Chosen(module, rows[:1], options.output).eval()
    answers = answers_of(policy, rows, starts)
    if not np.isfinite(answers).all():
        raise RefusedError("the policy answers NaN or infinity. Is it trained? Look for divergence.")
    if not isinstance(policy, Recurrent) and remembers(policy.module, load(), rows):
        policy = rewired(policy.module, rows, starts, answers)
        notes.append(f"state: {len(policy.zeros())} inputs; {len(rows)} periods from reset are answered as by itself.")
    with tempfile.TemporaryDirectory(dir=name.parent) as made:
        export(policy, rows, Path(made, "graph"), f"{notes[0]}, PyTorch {torch.__version__}")
        kept = np.moveaxis(rows.numpy(), 1, -1).reshape(len(rows), -1)  # a bundle's images end in channels
        np.savez_compressed(Path(made, "pairs.npz"), observations=kept, outputs=answers, episode_starts=starts)
        Path(made, "graph").replace(graph)
        Path(made, "pairs.npz").replace(pairs)
    command = ["quarl", "import", str(graph), "--observations", str(pairs), "--golden", str(pairs)]
    command += ["--actions", "as-is", "--period", "0.02", "--name", name.name]
    hints = "Give the time between two decisions; for values or logits of numbered actions: --actions discrete."
    return [*notes, f"Next, where quarl is:\n  {shlex.join(command)}", hints]


def class_of(options: argparse.Namespace) -> tuple[Callable[[], Any], list[str]]:
    """What builds package.module:Class with its weights, and what was found."""
    module, _, attribute = options.file.partition(":")
    try:
        built = getattr(importlib.import_module(module), attribute)(**options.kwargs)
        built.load_state_dict(torch.load(options.weights, map_location="cpu", weights_only=True))
    except Exception as error:
        why = f"{options.file} is not made with the weights {options.weights} ({brief(error)})"
        raise RefusedError(f"{why}. Check --weights FILE, of torch.save(state_dict), and --kwargs JSON.") from None
    return lambda: copy.deepcopy(built).eval().float(), [options.file]


def opened(options: argparse.Namespace) -> tuple[Callable[[], Any], list[str]]:
    """What loads a file's policy, on the CPU, in float32, as it decides; and what was found."""
    path = Path(options.file)
    if zipfile.is_zipfile(path) and any(each.endswith("/constants.pkl") for each in zipfile.ZipFile(path).namelist()):
        if options.activation or options.squash:
            raise RefusedError("TorchScript has its activations. Leave --activation and --squash out.")
        return lambda: torch.jit.load(str(path), map_location="cpu").eval().float(), ["TorchScript"]
    policy, notes = policy_of(read_checkpoint(path), path.name, options.activation, options.squash)
    return lambda: policy, notes


def read_checkpoint(path: Path) -> Tensors:
    """Tensors by their dotted names, float32."""
    scalar, types = np.float64(0).__reduce__()[0], {type(np.dtype(kind)) for kind in "fdilqB?"}
    names = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # rl_games saves such numbers

    def flat(node: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(node, torch.Tensor):
            yield name.replace("_orig_mod.", ""), node.detach().float()
        elif isinstance(node, (Mapping, list, tuple)):
            for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
                yield from flat(value, f"{name}.{key}" if name else str(key))

    try:
        with getattr(torch.serialization, "safe_globals", contextlib.nullcontext)([*names, np.dtype, *types]):
            return dict(flat(torch.load(path, map_location="cpu", weights_only=True), ""))
    except Exception as error:
        held = re.findall(r"GLOBAL (\S+)", str(error))
        why = f"it holds {held[0]}, which is no tensor" if held else brief(error)
        advice = "Save tensors alone, torch.save(policy.state_dict(), FILE), or TorchScript."
        raise RefusedError(f"{path} is not read by torch.load(weights_only=True): {why}. {advice}") from None


def policy_of(tensors: Tensors, what: str, activation: str | None, squash: str | None) -> tuple[Any, list[str]]:
    """The actor whose tensors a checkpoint holds, and what was found.

    Raises:
        RefusedError: tensors are left over, or something is not in the file; the message lists the tensors.
    """
    actor = {name: value for name, value in tensors.items() if value.ndim and not IGNORED.fullmatch(name)}
    layers = [name[:-7] for name in actor if name.endswith(".weight")]
    for layout in LAYOUTS:
        names = [name for name in layers if re.fullmatch(layout.layers, name)]
        if names and any(re.fullmatch(layout.needs, name) for name in tensors):
            break

    def refused(why: str, advice: str = "Export the module: package.module:Class --weights FILE.") -> RefusedError:
        listed = "\n  ".join(f"{name} {tuple(value.shape)}" for name, value in actor.items())
        return RefusedError(f"{what}, read as {layout.framework}: {why}. {advice} The actor's tensors:\n  {listed}")

    weights = [actor[f"{name}.weight"] for name in names]
    if not names or any(each.ndim != 2 for each in weights):
        raise refused("it is no chain of Linear layers")
    memory = [name for name in actor if RSL_RL_MEMORY.fullmatch(name)]
    cells = cells_of({name.rpartition(".")[2]: actor[name] for name in memory}) if memory else None
    size = cells.input_size if cells else weights[0].shape[1]
    mean, spread = statistics(actor, size)
    scales = [name for name in actor if name.endswith(("action_scale", "action_bias"))]
    used = {*memory, *scales, *(f"{name}.{kind}" for name in names for kind in ("weight", "bias"))}
    if layout.normaliser:
        used |= {name for name in actor if mean and name.rpartition(".")[0] == mean.rpartition(".")[0]}
    if left := [name for name in actor if name not in used]:
        raise refused(f"what {', '.join(left[:4])} do is not known")
    sizes = [*(each.shape[1] for each in weights), len(weights[-1])]
    if sizes != [cells.hidden_size if cells else size, *map(len, weights)]:
        raise refused("the layers do not follow each other")
    activation = activation or layout.activation or ("identity" if len(names) == 1 else "")
    squash = squash or layout.squash or ("" if activation else "identity")
    if not activation or not squash:
        option = "--squash, what is behind the last layer" if activation else "--activation, what is between the layers"
        raise refused("an activation is not in it", f"Add {option}: one of {', '.join(ACTIVATIONS)}.")
    after: list[Any] = []
    for name, weight in zip(names, weights):  # noqa: B905 (Python 3.9)
        after += [torch.nn.Linear(weight.shape[1], len(weight)), ACTIVATIONS[activation]()]
        after[-2].weight.copy_(weight)
        after[-2].bias.copy_(actor.get(f"{name}.bias", torch.zeros(len(weight))))
    after[-1] = ACTIVATIONS[squash]()
    if len(scales) == 2:
        scale, bias = (actor[name].reshape(-1) for name in scales)
        after.append(Normalise(-bias / scale, 1 / scale, 0.0))
    before = []
    if layout.normaliser and spread is not None:
        # A variance that overflowed in training makes its element 0; clamp keeps the divisor finite for other readers.
        divisor = layout.normaliser[0](spread.square()).clamp(max=1e37)
        before = [Normalise(actor[mean].reshape(-1), divisor, layout.normaliser[1])]
    network = " × ".join(map(str, [*([size, cells.mode] if cells else []), *sizes]))
    how = f"activation {activation}, behind the last layer {squash} (others: --activation, --squash)"
    notes = [layout.framework, f"{network}, {how}; normaliser: {mean or 'none'}. {layout.note}".rstrip()]
    parts = torch.nn.Sequential(*before), torch.nn.Sequential(*after)
    return (Recurrent(parts[0], cells, parts[1]) if cells else torch.nn.Sequential(*parts)).eval(), notes


def cells_of(weights: Mapping[str, torch.Tensor]) -> Any:
    """The LSTM or GRU with these weights."""
    rows, units = weights["weight_hh_l0"].shape
    layers = sum(name.startswith("weight_ih_l") for name in weights)
    kind = torch.nn.LSTM if rows == 4 * units else torch.nn.GRU
    try:
        cells = kind(weights["weight_ih_l0"].shape[1], units, layers, bias="bias_ih_l0" in weights)
        cells.load_state_dict(dict(weights))
    except RuntimeError:
        raise RefusedError("its memory is no LSTM or GRU of one direction without projection.") from None
    return cells.eval()


def statistics(tensors: Mapping[str, torch.Tensor], size: int) -> tuple[str, torch.Tensor | None]:
    """The name of a normaliser's mean, and its standard deviations (size,); "" and None: there is no normaliser."""
    for name, mean in tensors.items():
        for end, power in (("var", 0.5), ("variance", 0.5), ("std", 1.0), ("divisor", 1.0)):
            spread = tensors.get(name[:-4] + end)
            if name.endswith("mean") and mean.numel() == size and spread is not None and spread.numel() == size:
                return name, spread.reshape(-1) ** power
    return "", None


def made_observations(module: Any, given: int | None, notes: list[str]) -> tuple[torch.Tensor, np.ndarray]:
    """Rows (n, size) of the normaliser's distribution, else of a unit normal; where episodes start."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    layers = {name: value.shape[1] for name, value in named.items() if "weight" in name and value.ndim == 2}
    memory = [size for name, size in layers.items() if name.endswith("weight_ih_l0")]
    for size in [given] if given else memory or dict.fromkeys(layers.values()):
        rows = np.random.default_rng(0).normal(size=(EPISODES, PERIODS, size))
        rows *= np.resize([NEAR, FAR], EPISODES)[:, None, None]
        mean, spread = statistics(named, size)
        if spread is not None:
            rows = named[mean].numpy().reshape(-1) + rows * spread.where(spread < HUGE, torch.ones(())).numpy()
        made = torch.from_numpy(rows.reshape(-1, size).astype(np.float32))
        with contextlib.suppress(RuntimeError):  # another size
            # A row that is too long may be cut: its last element has to matter.
            ends = made[:PERIODS], made[:PERIODS] + FAR * torch.eye(size)[-1]
            if not (given or memory) and all(alike(*(module(e[n : n + 1]) for e in ends)) for n in range(PERIODS)):
                continue
            kind = "of the normaliser's distribution" if mean else "of a unit normal"
            notes.append(f"observations ({size}) were made {kind}, {NEAR} and {FAR} wide. Better: --observations.")
            return made, np.arange(len(made)) % PERIODS == 0
    raise RefusedError("the layers do not say the observation's size. Add --observation-size N, or --observations.")


def alike(one: Any, other: Any) -> bool:
    """Whether outputs, a tensor or several, are the same."""
    return all(map(torch.equal, one, other)) if isinstance(one, (tuple, list)) else torch.equal(one, other)


def read_observations(path: Path) -> tuple[torch.Tensor, np.ndarray]:
    """(rows, size) or (rows, channels, height, width), float32; where episodes start."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows = np.ascontiguousarray(arrays["observations"], np.float32)
            starts = np.asarray(arrays.get("episode_starts", np.arange(len(rows)) == 0), bool)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise RefusedError(f"{path} cannot be read ({error}). Save it: np.savez(FILE, observations=ROWS).") from None
    if rows.ndim not in (2, 4) or len(rows) < PERIODS or not np.isfinite(rows).all() or starts.shape != rows.shape[:1]:
        allowed = (
            f"(rows, size) or (rows, channels, height, width), finite, in at least {PERIODS} rows, one start a row"
        )
        raise RefusedError(f"{path}: observations {rows.shape}, starts {starts.shape}; allowed are {allowed}.")
    return torch.from_numpy(rows), np.concatenate([[True], starts[1:]])


def remembers(module: Any, again: Any, rows: torch.Tensor) -> bool:
    """Whether an answer depends on more than the observation: on those before it, or on chance."""
    few = rows[:PERIODS].split(1)
    backwards = [copy.deepcopy(again(row)) for row in reversed(few)][::-1]
    forwards = [copy.deepcopy(module(row)) for row in [*few, few[0], few[0]]]
    return not all(map(alike, forwards, [*backwards, forwards[0], forwards[0]]))


def answers_of(policy: Any, rows: torch.Tensor, starts: np.ndarray) -> np.ndarray:
    """(rows, m), one observation at a time, from reset where an episode starts."""
    made, states = [], ()
    for at, row in enumerate(rows.split(1)):
        if isinstance(policy, Recurrent):
            action, *states = policy(row, *(policy.zeros() if starts[at] else states))
        else:
            if starts[at]:
                reset(policy.module)
            action = policy(row)
        made.append(action.reshape(1, -1).clone())
    return torch.cat(made).numpy()


def reset(module: Any) -> None:
    """Begin an episode."""
    for name in ("reset", "reset_memory"):
        with contextlib.suppress(AttributeError, TypeError, RuntimeError):
            return getattr(module, name)()
    for name, buffer in module.named_buffers():
        if name.endswith("_state"):
            buffer.zero_()
    return None


def rewired(module: Any, rows: torch.Tensor, starts: np.ndarray, answers: np.ndarray) -> Recurrent:
    """A module that keeps the state of an LSTM or a GRU, with the state as inputs and outputs.

    The order of its parts is found by trying: in the right one it answers from zeros as the module does from reset.
    """
    found = [each for each in module.named_modules() if "weight_ih_l0" in dict(each[1].named_parameters(recurse=False))]
    parts = [child for name, child in module.named_children() if found and name != found[0][0].partition(".")[0]]
    atol = TOLERANCE * np.abs(answers).max()
    if len(found) == 1 and len(parts) <= MOST_PARTS:
        cells = cells_of(dict(found[0][1].named_parameters(recurse=False)))
        orders = itertools.chain(*(itertools.permutations(parts, count) for count in range(len(parts) + 1)))
        for order, at in ((each, at) for each in orders for at in range(len(each) + 1)):
            wired = Recurrent(torch.nn.Sequential(*order[:at]), cells, torch.nn.Sequential(*order[at:])).eval()
            with contextlib.suppress(RuntimeError, TypeError, ValueError):  # parts that do not fit
                tried = (answers_of(wired, rows[:count], starts) for count in (2, len(rows)))
                if all(np.allclose(own, answers[: len(own)], TOLERANCE, atol) for own in tried):
                    return wired
    raise RefusedError(
        "the same observation is answered differently the second time: a state (a history, running statistics), or "
        "chance; and no order of its parts around one LSTM or GRU answers as it does. Export the mean, without a state."
    )


def export(policy: Any, rows: torch.Tensor, path: Path, source: str) -> None:
    """Write the ONNX file; its batch size is free where the policy takes several observations at once."""
    states = policy.zeros() if isinstance(policy, Recurrent) else ()
    options: dict[str, Any] = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    options["input_names"] = ["observation", "h_in", "c_in"][: 1 + len(states)]
    options["output_names"] = ["actions", "h_out", "c_out"][: 1 + len(states)]
    given = rows[:1]
    with contextlib.suppress(Exception):  # a policy for one observation at a time, as any with a state
        alone, both = torch.cat([policy(rows[:1]), policy(rows[1:2])]), policy(rows[:2])
        if torch.allclose(alone, both, TOLERANCE, TOLERANCE * float(alone.abs().max())):
            given, options["dynamic_axes"] = rows[:2], {name: {0: "batch"} for name in ("observation", "actions")}
    try:
        traced = torch.jit.freeze(torch.jit.trace(policy, (given, *states)))
        torch.onnx.export(traced, (given, *states), str(path), opset_version=OPSET, **options)
    except Exception as error:
        raise RefusedError(f"torch.onnx does not export the policy ({brief(error)}). Export another module.") from None
    with contextlib.suppress(ImportError):
        onnx = importlib.import_module("onnx")
        model = onnx.load(str(path))
        onnx.helper.set_model_props(model, {"quarl.source": source})
        onnx.save(model, str(path))


if __name__ == "__main__":
    # A module may lie in this folder; where this file lies may be a folder named onnx.
    sys.path[:] = [
        str(Path.cwd()),
        *(path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent),
    ]
    raise SystemExit(main())
