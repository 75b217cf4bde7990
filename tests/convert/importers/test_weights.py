"""Plain files of weights with a spec: the steps are what the spec says, and nothing else is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from quarl.convert.importers import chain, registry
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.weights import read_weights
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from quarl.policy.spec import Activation, Squash
from tests.refusals import refused

RANDOM = np.random.default_rng(3)
TENSORS = {
    "obs_rms.mean": RANDOM.normal(size=5),
    "obs_rms.var": RANDOM.uniform(0.5, 2.0, 5),
    **{f"actor.{n}.weight": RANDOM.normal(0, 0.5, shape) for n, shape in ((0, (8, 5)), (2, (8, 8)), (4, (4, 8)))},
    **{f"actor.{n}.bias": RANDOM.normal(0, 0.2, width) for n, width in ((0, 8), (2, 8), (4, 4))},
    "critic.weight": RANDOM.normal(size=(1, 5)),
}
SPEC: dict[str, Any] = {
    "source": "CleanRL ppo_continuous_action",
    "layout": "torch",
    "actions": "continuous",
    "period_s": 0.02,
    "observation": [["state", 5, "1"]],
    "steps": [
        {"normalise": {"mean": "obs_rms.mean", "variance": "obs_rms.var", "epsilon": 1e-8}},
        {"clip": [-2, 2]},
        {"dense": "actor.0"},
        {"activation": "silu"},
        {"dense": "actor.2"},
        {"activation": {"name": "leaky_relu", "negative_slope": 0.2}},
        {"dense": "actor.4"},
        {"take": 2},
        {"activation": "tanh"},
        {"affine": {"scale": [2.0, 3.0], "offset": 0.5}},
    ],
}
ROWS = RANDOM.normal(0, 2, (40, 5)).astype(np.float32)


def by_hand(rows: np.ndarray) -> np.ndarray:
    t = TENSORS
    x = np.clip((rows - t["obs_rms.mean"]) / np.sqrt(t["obs_rms.var"] + 1e-8), -2, 2)
    x = x @ t["actor.0.weight"].T + t["actor.0.bias"]
    x = x / (1 + np.exp(-x))
    x = x @ t["actor.2.weight"].T + t["actor.2.bias"]
    x = np.where(x > 0, x, 0.2 * x)
    y = np.tanh((x @ t["actor.4.weight"].T + t["actor.4.bias"])[:, :2])
    return np.asarray(y * [2.0, 3.0] + 0.5)


def written(folder: Path, **changes: Any) -> tuple[Path, Path]:
    (folder / "spec.json").write_text(json.dumps({**SPEC, **changes}))
    save_file({name: value.astype(np.float32) for name, value in TENSORS.items()}, folder / "weights.safetensors")
    return folder / "weights.safetensors", folder / "spec.json"


def test_the_steps_are_those_of_the_spec(tmp_path: Path) -> None:
    weights, spec = written(tmp_path)
    policy = read_weights(weights, spec)
    assert policy.ignored == ("1 tensors that no step uses: critic.weight",)
    np.savez(tmp_path / "weights.npz", **{name: value.astype(np.float32) for name, value in TENSORS.items()})
    again = read_weights(tmp_path / "weights.npz", spec)
    np.testing.assert_array_equal(chain.run(again, ROWS), chain.run(policy, ROWS))


def test_the_command_makes_a_bundle_of_them(tmp_path: Path) -> None:
    weights, spec = written(tmp_path)
    np.savez(tmp_path / "golden.npz", observations=ROWS, outputs=by_hand(ROWS).astype(np.float32))
    golden = str(tmp_path / "golden.npz")
    words = [str(weights), "--spec", str(spec), "--observations", golden, "--golden", golden]
    assert main([*words, "--output-path", str(tmp_path / "imported")]) == 0
    bundle = Bundle.load(tmp_path / "imported")
    np.testing.assert_allclose(forward_float(bundle.spec, bundle.weights(), ROWS), by_hand(ROWS), atol=1e-4)
    assert bundle.spec.network.activations == (Activation.SILU, Activation.LEAKY_RELU)
    assert bundle.spec.head.squash is Squash.TANH  # type: ignore[union-attr]
    (tmp_path / "wrong.json").write_text(spec.read_text().replace('"silu"', '"elu"'))
    words[2] = str(tmp_path / "wrong.json")
    assert main([*words, "--output-path", str(tmp_path / "wrong")]) == 1 and not (tmp_path / "wrong").exists()


def test_a_tensor_s_name_stands_wherever_numbers_may(tmp_path: Path) -> None:
    weights, spec = written(tmp_path)
    tensors = {name: value.astype(np.float32) for name, value in TENSORS.items()}
    scaled = {"action_scale": np.array([[2, 3]], np.float32), "action_bias": np.array([[0.5, 0.5]], np.float32)}
    save_file({**tensors, **scaled}, tmp_path / "scaled.safetensors")
    named = [*SPEC["steps"][:-1], {"affine": {"scale": "action_scale", "offset": "action_bias"}}]
    (tmp_path / "named.json").write_text(json.dumps({**SPEC, "steps": named}))
    policy = read_weights(tmp_path / "scaled.safetensors", tmp_path / "named.json")
    np.testing.assert_array_equal(chain.run(policy, ROWS), chain.run(read_weights(weights, spec), ROWS))


def test_a_file_of_cleanrl_asks_for_its_spec() -> None:
    path = Path(__file__).parent / "files" / "weights" / "cleanrl_dqn" / "policy.cleanrl_model"
    with refused(ForeignError, "weights_only_file"):
        registry.read(path)
    assert registry.read(path, spec=path.with_name("spec.json")).source == "CleanRL dqn"


def test_images_are_flattened_as_each_program_does(tmp_path: Path) -> None:
    kernel, dense = RANDOM.normal(size=(2, 2, 3, 4)), RANDOM.normal(size=(16, 3))
    torch_rows = dense.reshape(2, 2, 4, 3).transpose(2, 0, 1, 3).reshape(16, 3)
    files = {"jax": {"c": kernel, "d": dense}, "torch": {"c": kernel.transpose(3, 2, 0, 1), "d": torch_rows.T}}
    outputs = []
    for layout, tensors in files.items():
        save_file(
            {name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()}, tmp_path / "w.safetensors"
        )
        steps = [
            {"convolution": {"of": {"kernel": "c"}, "stride": 2}},
            {"activation": "relu"},
            {"dense": {"kernel": "d"}},
        ]
        changes = {"layout": layout, "steps": steps, "observation": [["camera", [5, 5, 3], "1"]]}
        (tmp_path / "spec.json").write_text(json.dumps({**SPEC, **changes}))
        policy = read_weights(tmp_path / "w.safetensors", tmp_path / "spec.json")
        outputs.append(chain.run(policy, np.arange(150.0).reshape(2, 75)))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "flax"}, "layout"),
        ({"steps": []}, "a non-empty list"),
        ({"extra": 1}, "the keys of"),
        ({"actions": "both"}, "discrete or continuous"),
        ({"period_s": "fast"}, "period_s"),
        ({"observation": [["state", -5]]}, "the spec's observation"),
        ({"steps": [{"dense": "actor.9"}]}, r"has no tensor 'actor\.9\.weight'; it has actor"),
        ({"steps": [{"dense": "obs_rms"}]}, "has no tensor"),
        ({"steps": [{"dense": {"kernel": "obs_rms.mean"}}]}, "2"),
        ({"steps": [{"activation": "gelu"}]}, "'gelu'"),
        ({"steps": [{"warp": 1}]}, "one of affine"),
        ({"steps": ["dense"]}, "the spec must"),
        ({"steps": [{"take": 2}]}, "a dense step"),
        ({"steps": [{"normalise": {"mean": 0}}]}, "deviation"),
        ({"steps": [{"normalise": {"mean": 0, "variance": 0}}]}, "divides by 0"),
        ({"steps": [{"clip": 3}]}, "cannot be used"),
        ({"steps": [{"convolution": {"of": "actor.0"}}]}, "4"),
    ],
)
def test_a_spec_that_says_nothing_usable_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    weights, spec = written(tmp_path, **changes)
    with pytest.raises(Exception, match=message) as refused:
        read_weights(weights, spec)
    assert refused.type.__name__ in ("ForeignError", "SpecError")


@pytest.mark.parametrize("name", ["weights.pt", "weights.cleanrl_model", "weights.safetensors", "weights.npz"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\xff" * 100, b"{}"])
def test_a_damaged_file_is_refused(name: str, data: bytes, tmp_path: Path) -> None:
    _, spec = written(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ForeignError):
        read_weights(tmp_path / name, spec)
