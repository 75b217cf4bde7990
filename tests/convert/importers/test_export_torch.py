"""TorchScript is refused with the script that makes ONNX of it; where PyTorch is, that script is tried to the end."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.importers import sources
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "convert" / "importers" / "from_torchscript.py"
PYTORCH = ROOT / ".venv-peers" / "bin" / "python"
with_pytorch = pytest.mark.skipif(not PYTORCH.exists(), reason="needs PyTorch, which `make peers` installs")

MODULES = """
import sys
import torch
from torch import nn

torch.manual_seed(3)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(1, 6))
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 3))

    def forward(self, x):
        return torch.tanh(self.body((x - self.mean) / 2.0))


class Two(Actor):
    def forward(self, x):
        return self.body(x), self.body(x).sum(dim=1)


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


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))

    def forward(self, x):
        return self.body(x / 255.0)


class Gru(nn.Module):
    # As rsl_rl exports a recurrent actor.

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.obs_normalizer, self.deterministic_output = nn.Identity(), nn.Identity()
        self.rnn, self.mlp = kind(6, 5, 2), nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 3))
        self.register_buffer("hidden_state", torch.zeros(2, 1, 5))

    def forward(self, x):
        x, h = self.rnn(self.obs_normalizer(x).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = h
        return self.deterministic_output(self.mlp(x.squeeze(0)))

    @torch.jit.export
    def reset(self):
        self.hidden_state[:] = 0.0


class Lstm(Gru):
    def __init__(self):
        super().__init__(nn.LSTM)
        self.register_buffer("cell_state", torch.zeros(2, 1, 5))

    def forward(self, x):
        x, (h, c) = self.rnn(self.obs_normalizer(x).unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.deterministic_output(self.mlp(x.squeeze(0)))

    @torch.jit.export
    def reset(self):
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


class Half(Gru):
    def forward(self, x):
        x, h = self.rnn(self.obs_normalizer(x).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = 0.5 * h
        return self.deterministic_output(self.mlp(x.squeeze(0)))


folder = sys.argv[1]
for name, module in dict(gru=Gru(), lstm=Lstm(), half=Half()).items():
    torch.jit.script(module.eval()).save(f"{folder}/{name}.pt")
for name, module in dict(actor=Actor(), two=Two(), remembering=Remembering(), drawing=Drawing(), image=Image()).items():
    torch.jit.script(module.eval()).save(f"{folder}/{name}.pt")
torch.jit.trace(Actor().eval(), torch.randn(1, 6)).save(f"{folder}/traced.pt")
torch.save(Actor().state_dict(), f"{folder}/weights.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torchscript")
    (made / "modules.py").write_text(MODULES)  # torch.jit.script reads the source
    subprocess.run([PYTORCH, "modules.py", str(made)], check=True, cwd=made)
    random = np.random.default_rng(0)
    np.savez(made / "rollouts.npz", observations=random.normal(0.5, 1.5, (96, 6)).astype(np.float32))
    np.savez(made / "pictures.npz", observations=random.integers(0, 256, (64, 2, 8, 8)).astype(np.float32))
    return made


def helped(folder: Path, name: str, *words: str, rollouts: str = "rollouts.npz") -> subprocess.CompletedProcess[str]:
    command = [str(PYTORCH), str(SCRIPT), f"{name}.pt", "--observations", rollouts, "--output-path", name, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def imported(folder: Path, printed: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bundle, np.ndarray]:
    """The bundle that the printed command makes, and what it and the original answer."""
    words = next(line for line in printed.splitlines() if "quarl import" in line).split()
    assert words[:2] == ["quarl", "import"]
    monkeypatch.chdir(folder)
    assert main([*words[2:], "--output-path", str(where)]) == 0
    bundle = Bundle.load(where)
    with np.load(words[words.index("--golden") + 1]) as pairs:
        own = forward_float(bundle.spec, bundle.weights(), pairs["observations"])
        np.testing.assert_allclose(own, pairs["outputs"], rtol=1e-4, atol=2e-5 * np.ptp(pairs["outputs"]))
    return bundle, own


@with_pytorch
@pytest.mark.parametrize("name", ["actor", "traced"])
def test_a_scripted_and_a_traced_module_become_bundles(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = helped(folder, name)
    assert done.returncode == 0, done.stderr
    bundle, _ = imported(folder, done.stdout, tmp_path / "bundle", monkeypatch)
    assert bundle.spec.network.hidden == (16, 8)
    again = helped(folder, name)
    assert again.returncode == 1 and f"{name}.onnx exists already" in again.stderr


@with_pytorch
def test_one_of_several_outputs_and_images(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = helped(folder, "two")
    assert process.returncode == 1 and "several outputs, 0: (1, 3), 1: (1,). Add --output NUMBER" in process.stderr
    done = helped(folder, "two", "--output", "0")
    assert done.returncode == 0, done.stderr
    imported(folder, done.stdout, tmp_path / "two", monkeypatch)
    pictured = helped(folder, "image", rollouts="pictures.npz")
    assert pictured.returncode == 0, pictured.stderr
    bundle, _ = imported(folder, pictured.stdout, tmp_path / "image", monkeypatch)
    assert bundle.spec.observation[0].shape == (8, 8, 2)


@with_pytorch
@pytest.mark.parametrize("name", ["remembering", "drawing"])
def test_a_module_with_a_state_or_with_chance_is_refused(name: str, folder: Path) -> None:
    done = helped(folder, name)
    assert done.returncode == 1
    assert "answers the same observation differently the second time" in done.stderr
    assert not (folder / f"{name}.onnx").exists() and not (folder / f"{name}-pairs.npz").exists()


@with_pytorch
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_recurrent_actor_of_rsl_rl_becomes_a_bundle(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = helped(folder, name)
    assert done.returncode == 0, done.stderr
    words = next(line for line in done.stdout.splitlines() if "quarl import" in line).split()
    monkeypatch.chdir(folder)
    assert main([*words[3:], "--output-path", str(tmp_path / "bundle")]) == 0
    spec = Bundle.load(tmp_path / "bundle").spec
    assert [(each.cell.value, each.units) for each in spec.network.recurrences] == [(name, 5), (name, 5)]


@with_pytorch
def test_a_module_made_as_rsl_rls_that_answers_otherwise_is_refused(folder: Path) -> None:
    done = helped(folder, "half")
    assert done.returncode == 1 and "but does not answer as one" in done.stderr
    assert not (folder / "half.onnx").exists() and not (folder / "half-pairs.npz").exists()


@with_pytorch
def test_other_files_and_observations_are_refused(folder: Path) -> None:
    assert "is no TorchScript that this PyTorch reads" in helped(folder, "weights").stderr
    wrong = helped(folder, "image", "--output-path", "wrong")
    assert wrong.returncode == 1 and "does not take one observation of the shape (1, 6)" in wrong.stderr
    assert "cannot be read" in helped(folder, "actor", "--output-path", "wrong", rollouts="nowhere.npz").stderr


@pytest.mark.parametrize("ending", [".pt", ".pth"])
def test_torchscript_is_refused_with_the_script_that_helps(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy{ending}"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "code/__torch__/module.py", "version"):
            archive.writestr(f"policy/{name}", b"")
    with pytest.raises(ForeignError, match=r"TorchScript .* from_torchscript\.py FILE --observations"):
        sources.read(path)
    with pytest.raises(ForeignError, match="Copy convert/importers/from_torchscript"):
        sources.read(path, spec=tmp_path / "steps.json")
