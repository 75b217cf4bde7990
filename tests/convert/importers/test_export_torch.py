"""``quarl export-torch``: TorchScript, modules and checkpoints, from the file to the bundle that answers the same."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quarl import cli
from quarl.convert.importers import registry
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.run_export_torch import SCRIPT
from quarl.policy.bundle import Bundle
from tests.convert.conftest import Capture, Patch

ROOT = Path(__file__).resolve().parents[3]
PYTORCH = ROOT / ".venv-peers" / "bin" / "python"
with_pytorch = pytest.mark.skipif(not PYTORCH.exists(), reason="needs PyTorch, which `make peers` installs")

MODULES = """
import sys
import numpy as np
import torch
from torch import nn

torch.manual_seed(3)
class Actor(nn.Module):
    def __init__(self, units=16):
        super().__init__()
        self.register_buffer("mean", torch.randn(1, 6))
        self.body = nn.Sequential(nn.Linear(6, units), nn.ELU(), nn.Linear(units, 8), nn.ELU(), nn.Linear(8, 3))
    def forward(self, x):
        return torch.tanh(self.body((x - self.mean) / 2.0))
class Two(Actor):
    def forward(self, x):
        return self.body(x), self.body(x).sum(dim=1)
class Gelu(Actor):
    # No chain of layers: it comes in opaque.
    def forward(self, x):
        return torch.nn.functional.gelu(self.body(x))
class Diverged(Actor):
    def forward(self, x):
        return torch.sqrt(-torch.exp(self.body(x)))
class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(1, 6))
        self.head = nn.Linear(6, 3)
    def forward(self, x):
        self.hidden[:] = 0.5 * self.hidden + 0.5 * x[:1]
        return self.head(self.hidden)
class Drawing(Actor):
    def forward(self, x):
        y = self.body(x)
        return y + torch.randn_like(y)
class Cut(Actor):
    def forward(self, x):
        return self.body(x[:, :5].repeat(1, 2)[:, :6])
class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))
    def forward(self, x):
        return self.body(x / 255.0)
class Centre(nn.Module):
    def forward(self, x):
        return (x - 0.5) / 2.0
class Gru(nn.Module):  # As rsl_rl exports a recurrent actor.
    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.obs_normalizer, self.deterministic_output = Centre(), nn.Identity()
        self.rnn, self.mlp = kind(6, 5, 2), nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 3))
        self.register_buffer("hidden_state", torch.zeros(2, 1, 5))
    def forward(self, x):
        x, h = self.rnn(self.obs_normalizer(x).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = h
        return self.deterministic_output(self.mlp(x.squeeze(0)))
    @torch.jit.export
    def reset(self):
        self.hidden_state[:] = 0.0
class Lstm(nn.Module):  # As legged_gym and Isaac Lab do.
    def __init__(self):
        super().__init__()
        self.actor, self.memory = nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 3)), nn.LSTM(6, 5)
        self.normalizer, self.critic = Centre(), nn.Linear(5, 1)
        self.register_buffer("hidden_state", torch.ones(1, 1, 5))
        self.register_buffer("cell_state", torch.zeros(1, 1, 5))
    def forward(self, x):
        y, (h, c) = self.memory(self.normalizer(x).unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.actor(y.squeeze(0))
    @torch.jit.export
    def reset_memory(self):
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0
class Half(Gru):
    def forward(self, x):
        x, h = self.rnn(self.obs_normalizer(x).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = 0.5 * h
        return self.deterministic_output(self.mlp(x.squeeze(0)))

def layers(*named):
    sizes = (6, 16, 8, 3)[-1 - len(named):]
    found = {}
    for at, name in enumerate(named):
        one = nn.Linear(6 if at == 0 else sizes[at], sizes[at + 1])
        found |= {f"{name}.weight": one.weight.detach(), f"{name}.bias": one.bias.detach()}
    return found

mean, var = torch.randn(6), torch.rand(6) + 0.5
three = torch.ones(3)
critic = {f"critic.{name}": value for name, value in layers("0", "2").items()}
memory = {f"memory_a.rnn.{name}": value.detach() for name, value in nn.LSTM(6, 6).named_parameters()}
running = dict(running_mean=mean, running_var=var, count=torch.tensor(9.0))
empirical = dict(_mean=mean[None], _var=var[None], _std=var[None].sqrt(), count=torch.tensor(9))
body = layers("actor.0", "actor.2", "actor.4")
CHECKPOINTS = dict(
    rsl_rl=dict(model_state_dict={"std": three, **body, **critic}, obs_norm_state_dict=empirical, iter=7),
    rsl_rl_5=dict(
        actor_state_dict={
            **layers("mlp.0", "mlp.2", "mlp.4"),
            **{f"obs_normalizer.{name}": value for name, value in empirical.items()},
            "distribution.std_param": three,
        },
        critic_state_dict=layers("mlp.0"),
    ),
    rsl_rl_lstm=dict(model_state_dict={"std": three, **memory, **layers("actor.0", "actor.2"), **critic}),
    rl_games=dict(
        model={
            "a2c_network.sigma": three,
            **layers("a2c_network.actor_mlp.0", "a2c_network.actor_mlp.2", "a2c_network.mu"),
            **{f"running_mean_std.{name}": value.double() for name, value in running.items()},
            "a2c_network.value.weight": torch.ones(1, 8),
        },
        last_mean_rewards=np.float64(3.0),
    ),
    skrl=dict(
        policy={
            "log_std_parameter": three,
            **layers("net_container.0", "net_container.2", "policy_layer"),
            "value_layer.weight": torch.ones(1, 8),
        },
        state_preprocessor=dict(running_mean=mean.double(), running_variance=var.double()),
    ),
    cleanrl_ppo={"actor_logstd": three, **layers("actor_mean.0", "actor_mean.2", "actor_mean.4"), **critic},
    cleanrl_sac={
        **layers("fc1", "fc2", "fc_mean"), "fc_logstd.weight": torch.ones(3, 8),
        "action_scale": 2 * three, "action_bias": three,
    },
    cleanrl_dqn=layers("network.0", "network.2", "network.4"),
    tianshou_sac={
        **layers(*(f"actor.{name}" for name in ("preprocess.model.model.0", "preprocess.model.model.2", "mu.model.0"))),
        "actor.sigma.model.0.weight": torch.ones(3, 8), "critic1.last.model.0.weight": torch.ones(1, 8),
    },
    tianshou_last=layers("preprocess.model.model.0", "preprocess.model.model.2", "last.model.0"),
    plain=layers("fc1", "fc2", "fc3"),
    unknown={**layers("fc1", "fc2", "fc3"), "norm.weight": torch.ones(16)},
    heteroscedastic=dict(actor_state_dict=layers("mlp.0", "mlp.2", "mlp.4")),
    one_action={"fc.weight": torch.ones(1, 6), "fc.bias": torch.tensor([2.0])},
    whole=Actor(),
)
MODULES = dict(
    gru=Gru(), lstm=Lstm(), half=Half(), actor=Actor(), two=Two(), remembering=Remembering(), drawing=Drawing(),
    cut=Cut(), image=Image(), gelu=Gelu(), diverged=Diverged(),
)
def write():
    for name, module in MODULES.items():
        torch.jit.script(module.eval()).save(f"{name}.pt")
    torch.jit.trace(Actor().eval(), torch.randn(1, 6)).save("traced.pt")
    for name, checkpoint in CHECKPOINTS.items():
        torch.save(checkpoint, f"{name}.pth")
    torch.save(Actor(12).state_dict(), "weights.pth")
    np.savez("mean_var.npz", mean=mean, var=var, **{f"rsl_{k}": v for k, v in body.items()})
"""


BUNDLES: list[tuple[str, list[str], tuple[int, ...]]] = [
    ("actor.pt", ["--observations", "rollouts.npz"], (16, 8)),
    ("rl_games.pth", [], (16, 8)),
    ("cleanrl_sac.pth", [], (16, 8)),
    ("gru.pt", [], (8,)),
    ("lstm.pt", [], (8,)),
    ("image.pt", ["--observations", "pictures.npz"], ()),
    ("gelu.pt", [], ()),
]
PRINTED: list[tuple[str, list[str], list[str]]] = [
    ("traced.pt", [], ["TorchScript"]),
    ("two.pt", ["--output", "0"], ["TorchScript"]),
    ("modules:Actor", ["--weights", "weights.pth", "--kwargs", '{"units": 12}'], ["modules:Actor"]),
    ("rsl_rl_lstm.pth", [], ["rsl_rl", "6 × LSTM"]),
    ("rsl_rl.pth", ["--observations", "rollouts.npz"], ["rsl_rl", "elu"]),
    ("skrl.pth", ["--squash", "tanh"], ["skrl", "last layer tanh"]),
    ("plain.pth", ["--activation", "leaky_relu"], ["Linear layers in order", "leaky_relu"]),
    ("rsl_rl_5.pth", [], ["rsl_rl", "elu", "normaliser: actor_state_dict.obs_normalizer._mean"]),
    ("cleanrl_ppo.pth", [], ["CleanRL (PPO)", "tanh"]),
    ("cleanrl_dqn.pth", [], ["CleanRL (DQN)", "relu"]),
    ("one_action.pth", [], ["Linear layers in order"]),
    ("tianshou_sac.pth", [], ["Tianshou (SAC)", "activation relu", "last layer tanh"]),
]
REFUSED: list[tuple[str, list[str], str]] = [
    ("two.pt", [], "--output NUMBER"),
    ("actor.pt", ["--output", "0"], "--output"),
    ("actor.pt", ["--observations", "nowhere.npz"], "nowhere.npz"),
    ("actor.pt", ["--observations", "pictures.npz"], "(1, 2, 8, 8)"),
    ("actor.pt", ["--activation", "relu"], "--activation"),
    ("remembering.pt", [], "state"),
    ("drawing.pt", [], "chance"),
    ("half.pt", [], "state"),
    ("cut.pt", [], "--observation-size N"),
    ("image.pt", [], "--observations"),
    ("diverged.pt", ["--observations", "rollouts.npz"], "NaN"),
    ("actor.pt", ["--output-path", "taken"], "taken.onnx"),
    ("plain.pth", [], "--activation"),
    ("tianshou_last.pth", [], "--squash"),
    ("unknown.pth", ["--activation", "relu"], "norm.weight (16,)"),
    ("heteroscedastic.pth", ["--activation", "elu"], "package.module:Class"),
    ("whole.pth", [], "weights_only=True"),
    ("modules:Actor", ["--weights", "weights.pth"], "--kwargs"),
    ("modules:Actor", [], "--weights FILE"),
]


DRIVER = """
import contextlib, importlib.util, io, json, modules, sys
modules.write()
spec = importlib.util.spec_from_file_location("export_torch", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
done = []
for words in json.load(open("cases.json")):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        done.append([script.main(words), out.getvalue(), err.getvalue()])
json.dump(done, open("done.json", "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script makes of each case; one process does them all, for PyTorch takes seconds to load."""
    made = tmp_path_factory.mktemp("torch")
    (made / "modules.py").write_text(MODULES)  # torch.jit.script reads the source
    (made / "taken.onnx").touch()
    random = np.random.default_rng(0)
    np.savez(made / "rollouts.npz", observations=random.normal(0.5, 1.5, (96, 6)).astype(np.float32))
    np.savez(made / "pictures.npz", observations=random.integers(0, 256, (64, 2, 8, 8)).astype(np.float32))
    cases = [[case, "--output-path", name_of(case, words), *words] for case, words, _ in [*BUNDLES, *PRINTED, *REFUSED]]
    (made / "cases.json").write_text(json.dumps(cases))
    subprocess.run([PYTORCH, "-c", DRIVER, str(SCRIPT)], check=True, cwd=made)
    return made


def name_of(file: str, words: Sequence[str]) -> str:
    """The --output-path of a case."""
    return re.sub(r"[^a-z0-9.]", "_", f"{file}{''.join(words)}".lower())


def exported(folder: Path, file: str, words: Sequence[str]) -> tuple[int, str, str]:
    """The status and what was printed."""
    cases = json.loads((folder / "cases.json").read_text())
    at = [case[2] for case in cases].index(name_of(file, words))
    status, out, err = json.loads((folder / "done.json").read_text())[at]
    return status, out, err


@with_pytorch
@pytest.mark.parametrize(("file", "words", "hidden"), BUNDLES)
def test_a_policy_becomes_a_bundle(
    file: str, words: list[str], hidden: tuple[int, ...], folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Import compares the ONNX file, the pairs and the bundle."""
    status, printed, error = exported(folder, file, words)
    assert status == 0, error
    typed = next(line for line in printed.splitlines() if "quarl import" in line).split()
    monkeypatch.chdir(folder)
    assert ("--observations" in typed) == ("--observations" in words), "int8 is not calibrated on made observations"
    assert main([*typed[2:], "--output-path", str(tmp_path / "bundle")]) == 0
    spec = Bundle.load(tmp_path / "bundle").spec
    assert spec.network.hidden == hidden and bool(spec.network.opaque) == (file == "gelu.pt")
    kinds = {"gru.pt": ["gru", "gru"], "lstm.pt": ["lstm"]}
    assert [each.cell.value for each in spec.network.recurrences] == kinds.get(file, [])
    assert spec.observation[0].shape == ((8, 8, 2) if file == "image.pt" else (6,))


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


@with_pytorch
def test_outputs_are_those_computed_by_hand(folder: Path) -> None:
    name = name_of("rsl_rl.pth", ["--observations", "rollouts.npz"])
    with np.load(folder / f"{name}-pairs.npz") as pairs, np.load(folder / "mean_var.npz") as own:
        y = (pairs["observations"] - own["mean"]) / (np.sqrt(own["var"]) + 0.01)
        for at in (0, 2, 4):
            y = (elu(y) if at else y) @ own[f"rsl_actor.{at}.weight"].T + own[f"rsl_actor.{at}.bias"]
        np.testing.assert_allclose(pairs["outputs"], y, atol=1e-5)
    with np.load(folder / "one_action.pth-pairs.npz") as pairs:
        np.testing.assert_allclose(pairs["outputs"][:, 0], pairs["observations"].sum(1) + 2.0, atol=1e-5)


@with_pytorch
@pytest.mark.parametrize(("file", "words", "found"), PRINTED)
def test_what_a_framework_does_by_default_is_printed(
    file: str, words: list[str], found: list[str], folder: Path
) -> None:
    status, printed, error = exported(folder, file, words)
    assert status == 0 and not [word for word in found if word not in printed], error


@with_pytorch
@pytest.mark.parametrize(("file", "words", "named"), REFUSED)
def test_what_cannot_be_decided_is_refused(file: str, words: list[str], named: str, folder: Path) -> None:
    status, _, error = exported(folder, file, words)
    assert status == 1 and named in error
    assert not {f"{name_of(file, words)}{end}" for end in (".onnx", "-pairs.npz")} & {
        path.name for path in folder.iterdir()
    }


@pytest.mark.parametrize("ending", [".pt", ".pth"])
def test_import_refuses_torchscript(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy{ending}"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "code/__torch__/module.py", "version"):
            archive.writestr(f"policy/{name}", b"")
    for spec in (None, tmp_path / "steps.json"):
        with pytest.raises(ForeignError, match="quarl export-torch"):
            registry.read(path, spec=spec)


def test_the_verb_prints_the_script_or_runs_it(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["export-torch", "--print"]) == 0 and capsys.readouterr().out == SCRIPT.read_text()
    assert cli.main(["export-torch", "x.pt", "--python", str(tmp_path / "python")]) == 1
    assert cli.main(["export-torch", "x.pt", "--activation", "relu"]) == 1, "this Python has no PyTorch"
    assert "--print" in capsys.readouterr().err


def test_the_verb_passes_options_and_the_status_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || {{ echo "$@" > {tmp_path}/words; exit 3; }}\n')
    python.chmod(0o755)
    assert cli.main(["export-torch", "plain.pth", "--activation", "relu", "--python", str(python)]) == 3
    assert (tmp_path / "words").read_text().split() == [str(SCRIPT), "plain.pth", "--activation", "relu"]
