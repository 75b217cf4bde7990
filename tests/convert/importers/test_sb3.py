"""Policies that Stable-Baselines3 saved (by make_sb3.py) answer through the chain as they did in the program."""

from __future__ import annotations

import base64
import importlib
import io
import json
import math
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quarl.convert.importers import chain, registry
from quarl.convert.importers.__main__ import main as importing
from quarl.convert.importers.chain import ForeignError, ForeignPolicy
from quarl.convert.importers.sb3.inputs import NOT_GIVEN
from quarl.convert.importers.sb3.reader import ALL_ALLOWED, read_sb3
from quarl.convert.pipeline import convert_all
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Activation, ArtifactFormat, MultiDiscreteHead, Precision
from tests.convert.importers.test_torch_file import packed
from tests.refusals import refused

FILES = Path(__file__).resolve().parent / "files/sb3"
ALGORITHMS = "PPO A2C DQN SAC TD3 DDPG RecurrentPPO MaskablePPO TRPO QRDQN TQC ARS CrossQ"
NAMES = sorted(path.name for path in FILES.iterdir())
# The tests write streams; nothing in the repository reads one with it.
dumps = importlib.import_module("pickle").dumps


def read(name: str) -> ForeignPolicy:
    statistics = FILES / name / "vecnormalize.pkl"
    return read_sb3(FILES / name / "policy.zip", statistics if statistics.exists() else None)


def test_a_policy_says_where_it_is_from_and_what_was_left_out() -> None:
    policy = read("ppo_cartpole")
    assert policy.source == "Stable-Baselines3 2.9.2 PPO"
    assert policy.inputs == (chain.Input("observation", (4,)),) and policy.actions == chain.Discrete()
    assert set(policy.ignored) == {
        "value network: 6 tensors",
        "optimizer: 1 file",
        "pytorch_variables.pth: a file beside the policy",
    }
    assert policy.assumed == (NOT_GIVEN,) and policy.provenance is not None
    assert policy.provenance["algorithm"] == "PPO" and policy.provenance["num_timesteps"] == 81_920
    assert policy.provenance["seed"] == 3 and set(policy.provenance["sha256"]) == {"policy"}
    json.dumps(policy.provenance)
    normalised = read("sac_pendulum")
    assert normalised.source == "Stable-Baselines3 2.9.2 SAC" and normalised.assumed == ()
    assert isinstance(normalised.actions, chain.Continuous)
    assert {"critic: 12 tensors", "target critic: 12 tensors", "exploration noise: 2 tensors"} < set(normalised.ignored)
    assert {read(name).source.split()[-1] for name in NAMES} == set(ALGORITHMS.split())
    assert read("maskable_ppo").assumed == (NOT_GIVEN, ALL_ALLOWED)


def test_reading_needs_neither_pytorch_nor_the_program() -> None:
    read("ppo_parts")
    assert not {"torch", "stable_baselines3", "cloudpickle"} & set(sys.modules)


def test_parts_of_an_observation_keep_their_order() -> None:
    policy = read("ppo_parts")
    assert [(part.name, part.shape) for part in policy.inputs] == [
        *[("angle", (2,)), ("dials", (5,)), ("gear", (3,)), ("lamps", (3,)), ("wind", (4,))]
    ]
    assert policy.inputs[2].element_names == ("is 0", "is 1", "is 2")


def symbol(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + last.encode() + b"\n"


def entry(stream: bytes) -> dict[str, str]:
    return {":type:": "?", ":serialized:": base64.b64encode(stream).decode()}


def keywords(name: str, value: bytes) -> dict[str, str]:
    return entry(b"\x80\x02}X" + len(name).to_bytes(4, "little") + name.encode() + value + b"s.")


def space(made: spaces.Space) -> dict[str, str]:
    return entry(dumps(made, 5))


def changed(folder: Path, name: str, changes: dict[str, Any], tensors: Callable[[bytes], bytes] | None = None) -> Path:
    """A policy with other entries in its data, and with policy.pth's members changed."""
    with zipfile.ZipFile(FILES / name / "policy.zip") as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    data = json.loads(members["data"]) | changes
    members["data"] = json.dumps({key: value for key, value in data.items() if value is not ...}).encode()
    if tensors is not None:
        with zipfile.ZipFile(io.BytesIO(members["policy.pth"])) as archive:
            inner = {member: tensors(archive.read(member)) for member in archive.namelist()}
        members["policy.pth"] = packed(inner)
    path = folder / "policy.zip"
    path.write_bytes(packed(members))
    return path


PARTIAL = (
    *(symbol("functools.partial"), b"(", symbol("torch.nn.modules.activation.LeakyReLU"), b"tR("),
    *(symbol("torch.nn.modules.activation.LeakyReLU"), b")}X\x0e\x00\x00\x00negative_slope"),
    *(b"G", struct.pack(">d", 0.2), b"s}tb"),
)


def test_a_leaky_relu_with_a_slope_of_its_own(tmp_path: Path) -> None:
    path = changed(tmp_path, "ppo_cartpole", {"policy_kwargs": keywords("activation_fn", b"".join(PARTIAL))})
    assert chain.Activate(Activation.LEAKY_RELU, 0.2) in read_sb3(path).steps


def test_actions_that_start_elsewhere_are_named_by_the_numbers_of_predict(tmp_path: Path) -> None:
    policy = read_sb3(changed(tmp_path, "ppo_cartpole", {"action_space": space(spaces.Discrete(2, start=5))}))
    assert policy.actions == chain.Discrete(("0", "1")) and "starts at 5" in policy.assumed[-1]


def test_several_choices_are_those_of_predict(tmp_path: Path) -> None:
    whole = read_sb3(FILES / "ppo_parts/policy.zip")
    rows = np.random.default_rng(3).normal(size=(32, sum(math.prod(part.shape) for part in whole.inputs)))
    dials = read_sb3(changed(tmp_path, "ppo_parts", {"action_space": space(MULTI)}))
    assert dials.actions == chain.Discrete(counts=(2, 2))
    np.testing.assert_array_equal(chain.run(dials, rows), chain.run(whole, rows))


def test_several_choices_become_a_bundle_that_chooses_as_the_file_does(tmp_path: Path) -> None:
    path = changed(tmp_path, "ppo_parts", {"action_space": space(spaces.MultiBinary(4))})
    words = [str(path), "--observations", str(FILES / "ppo_parts/golden.npz"), "--name", "lamps"]
    assert importing([*words, "--output-path", str(tmp_path / "lamps")]) == 0
    bundle = Bundle.load(tmp_path / "lamps")
    assert bundle.spec.head == MultiDiscreteHead((2, 2, 2, 2))
    golden = bundle.golden()
    outputs = chain.run(read_sb3(FILES / "ppo_parts/policy.zip"), golden.observations)
    assert (golden.actions == (outputs > 0)).all()
    for precision in (Precision.FP32, Precision.INT8):
        convert_all([bundle], [precision], [ArtifactFormat.ONNX], accept=True)


def test_layers_that_the_critic_shares_come_first(tmp_path: Path) -> None:
    """Before version 1.8; the same layers under the names that they had then."""

    def older(data: bytes) -> bytes:
        return swap(b"policy_net.2.", b"policy_net.0.")(swap(b"policy_net.0.", b"shared_net.0.")(data))

    arch = {"net_arch": [32, {"pi": [32], "vf": [8]}], "device": "cpu"}
    assert_same(changed(tmp_path, "ppo_cartpole", {"policy_kwargs": arch}, older), "ppo_cartpole")


def test_a_linear_policy_of_old_is_one_layer(tmp_path: Path) -> None:
    def older(data: bytes) -> bytes:
        return data.replace(b"\x13\x00\x00\x00action_net.0.", b"\x11\x00\x00\x00action_net.")

    assert_same(changed(tmp_path, "ars", {}, older), "ars")


@pytest.mark.parametrize("name", ["policy.keras", "policy", "policy.model", "policy.pt"])
def test_a_zip_is_known_by_its_members(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((FILES / "ppo_cartpole/policy.zip").read_bytes())
    assert registry.read(tmp_path / name).source == read("ppo_cartpole").source
    (tmp_path / name).write_bytes(packed({"data": b""}))
    with pytest.raises(ForeignError):
        registry.read(tmp_path / name)


def assert_same(path: Path, name: str) -> None:
    rows = np.random.default_rng(3).normal(size=(8, 4))
    np.testing.assert_array_equal(chain.run(read_sb3(path), rows), chain.run(read(name), rows))


def test_no_bounds_cut_nothing(tmp_path: Path) -> None:
    free = space(spaces.Box(-np.inf, np.inf, (3,), np.float32))
    policy = read_sb3(changed(tmp_path, "ppo_leaky", {"action_space": free}))
    assert isinstance(policy.steps[-1], chain.Dense)
    half = space(spaces.Box(np.array([-1, -np.inf, -2], np.float32), np.full(3, np.inf, np.float32)))
    clip = read_sb3(changed(tmp_path, "ppo_leaky", {"action_space": half})).steps[-1]
    assert isinstance(clip, chain.Clip) and clip.low.tolist() == [-1, -np.inf, -2]


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


def exchange_second_and_third_bias(data: bytes) -> bytes:
    """Of the actor's name of the shared NatureCNN only."""
    second, third = (b"pi_features_extractor.cnn.%d.bias" % number for number in (2, 4))
    return data.replace(second, b"-" * len(second)).replace(third, second).replace(b"-" * len(second), third)


MULTI = spaces.MultiDiscrete([2, 2])
IMAGE = spaces.Box(0, 255, (3, 36, 40), np.uint8)


def acts(made: spaces.Space) -> dict[str, Any]:
    return {"action_space": space(made)}


def sees(made: spaces.Space) -> dict[str, Any]:
    return {"observation_space": space(made)}


REFUSED: list[tuple[str, dict[str, Any], Callable[[bytes], bytes] | None, str]] = [
    ("ppo_cartpole", acts(MULTI), None, "outputs for the"),
    ("ppo_cartpole", acts(spaces.MultiBinary(3)), None, "outputs for the"),
    ("ppo_parts", acts(spaces.MultiDiscrete([2, 2], start=[1, 0])), None, "MultiDiscrete that starts"),
    ("dqn_cartpole", acts(MULTI), None, "action space must"),
    ("ars", acts(spaces.MultiBinary(2)), None, "action space must"),
    ("ppo_cartpole", acts(spaces.Discrete(3)), None, "outputs for the"),
    ("ppo_leaky", acts(spaces.Box(0, 9, (3,), np.int64)), None, "int64"),
    ("td3_three", acts(spaces.Box(-1, np.inf, (3,))), None, "which squashed actions"),
    ("dqn_cartpole", acts(spaces.Box(-1, 1, (2,))), None, "action space must"),
    ("sac_pendulum", acts(spaces.Discrete(1)), None, "SAC"),
    ("ppo_cartpole", sees(spaces.Tuple([spaces.Discrete(2)])), None, "tuple.Tuple"),
    ("ppo_cartpole", sees(spaces.Discrete(4, start=1)), None, "Discrete observation from"),
    ("ppo_cartpole", sees(spaces.Box(-1, 1, (5,))), None, "have a layer"),
    ("ppo_image", sees(spaces.Box(-1, 1, (5,))), None, "space must be"),
    ("ppo_image", sees(spaces.Box(0, 255, (3, 60, 60), np.uint8)), None, "take the image"),
    ("ppo_image", sees(spaces.Box(0, 255, (4, 36, 40), np.uint8)), None, "convolution"),
    ("ppo_image", sees(spaces.Box(0, 255, (3, 9, 9), np.uint8)), None, "convolution"),
    ("ppo_parts", sees(spaces.Dict(a=IMAGE, b=MULTI)), None, "of the observation"),
    ("ppo_parts", sees(spaces.Dict(a=spaces.Dict(b=MULTI))), None, "dict.Dict"),
    ("ppo_cartpole", sees(spaces.Dict(a=MULTI)), None, "MlpPolicy"),
    ("ppo_cartpole", {"observation_space": ...}, None, "no observation_space"),
    ("ppo_cartpole", {"observation_space": {":serialized:": "%"}}, None, "base64"),
    ("ppo_cartpole", {"policy_class": entry(b"\x80\x02" + symbol("my.own.Policy") + b".")}, None, "my.own.Policy"),
    (
        "ppo_cartpole",
        {"policy_class": entry(b"\x80\x02" + symbol("sb3_contrib.qrdqn.policies.QuantileNetwork") + b".")},
        None,
        "sb3_contrib.qrdqn.policies.QuantileNetwork",
    ),
    ("ppo_cartpole", {"policy_kwargs": {"net_arch": [32, 9]}}, None, r"\[32, 32\]"),
    ("ppo_cartpole", {"policy_kwargs": {"net_arch": [{"pi": [32]}, 32]}}, None, "net_arch"),
    ("ppo_cartpole", {"policy_kwargs": {"lstm_hidden_size": 8}}, None, "lstm_hidden_size"),
    ("ppo_cartpole", {"policy_kwargs": {"n_quantiles": 5}}, None, "n_quantiles"),
    ("qrdqn", {"policy_kwargs": {"net_arch": [8, 8], "n_quantiles": 3}}, None, "multiple of n_quantiles"),
    ("qrdqn", {"policy_kwargs": {"net_arch": [8, 8], "n_quantiles": 10}}, None, "outputs for the"),
    ("qrdqn", {"policy_kwargs": {"net_arch": [8, 8], "n_quantiles": 0}}, None, "n_quantiles, 0"),
    ("qrdqn", acts(MULTI), None, "action space must"),
    ("ars", {"policy_kwargs": {"with_bias": True}}, None, "no tensor action_net.0.bias"),
    ("ars", {"policy_kwargs": {"ortho": True}}, None, "ortho"),
    ("crossq", {"policy_kwargs": {"net_arch": [8, 8], "batch_norm": False}}, None, "Linear layers"),
    ("crossq", {}, swap(b"latent_pi.3.ra_mean", b"latent_pi.9.ra_mean"), "no tensor actor.latent_pi.3.ra_mean"),
    ("crossq", {"policy_kwargs": {"batch_norm_eps": -9.0}}, None, "and positive variances"),
    ("crossq", sees(IMAGE), None, "batch normalisation"),
    ("ppo_cartpole", {"policy_kwargs": {"features_extractor_kwargs": {"depth": 8}}}, None, "depth"),
    ("ppo_cartpole", {"policy_kwargs": {"normalize_images": 3}}, None, "data must be"),
    (
        "ppo_cartpole",
        {"policy_kwargs": keywords("features_extractor_class", symbol("my.Extractor"))},
        None,
        "my.Extractor",
    ),
    (
        "ppo_cartpole",
        {"policy_kwargs": keywords("activation_fn", symbol("torch.nn.modules.activation.GELU"))},
        None,
        "activation.GELU",
    ),
    ("ppo_cartpole", {}, swap(b"action_net.bias", b"action_nut.bias"), "no tensor action_net.bias"),
    ("ppo_cartpole", {}, swap(b"value_net.bias", b"extra_net.bias"[:14]), "tensor extra_net.bias"),
    ("ppo_cartpole", {}, swap(b"policy_net.2.", b"policy_net.3."), "such as normalisations"),
    ("ppo_cartpole", {}, swap(b"policy_net.0.", b"shared_net.0."), "such as normalisations"),
    ("ppo_image", {}, swap(b"pi_features_extractor.cnn.0.b", b"pi_features_extractor.cnn.9.b"), "no tensor"),
    ("ppo_image", {}, exchange_second_and_third_bias, "have equal tensors"),
    ("ppo_cartpole", {}, lambda data: data if len(data) != 256 else b"\xff" * 256, "infinity or values"),
]


@pytest.mark.parametrize(("name", "changes", "tensors", "words"), REFUSED, ids=[case[-1] for case in REFUSED])
def test_what_no_chain_expresses_is_refused_by_name(
    name: str, changes: dict[str, Any], tensors: Callable[[bytes], bytes] | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ForeignError, match=words) as caught:
        read_sb3(changed(tmp_path, name, changes, tensors))
    assert caught.value.next_step


def test_statistics_of_another_observation_are_refused(tmp_path: Path) -> None:
    statistics = FILES / "sac_pendulum/vecnormalize.pkl"
    with pytest.raises(ForeignError, match="means for"):
        read_sb3(FILES / "ppo_cartpole/policy.zip", statistics)
    with refused(ForeignError, "normalised_image"):
        read_sb3(FILES / "ppo_image/policy.zip", statistics)
    with pytest.raises(ForeignError, match="the policy's observations"):
        read_sb3(FILES / "sac_parts/policy.zip", statistics)
    wrong = tmp_path / "vecnormalize.pkl"
    wrong.write_bytes(dumps({"mean": 1.0}, 4))
    with refused(ForeignError, "not_vecnormalize"):
        read_sb3(FILES / "ppo_cartpole/policy.zip", wrong)
    with pytest.raises(ForeignError, match="is missing"):
        read_sb3(FILES / "ppo_cartpole/policy.zip", tmp_path / "none.pkl")


def test_statistics_that_leave_observations_alone_are_no_step(tmp_path: Path) -> None:
    stream = (FILES / "sac_pendulum/vecnormalize.pkl").read_bytes()
    assert stream.count(b"norm_obs\x94\x88") == 1
    off = tmp_path / "vecnormalize.pkl"
    off.write_bytes(stream.replace(b"norm_obs\x94\x88", b"norm_obs\x94\x89"))
    policy = read_sb3(FILES / "sac_pendulum/policy.zip", off)
    assert isinstance(policy.steps[0], chain.Dense) and policy.assumed == ()
    assert any("norm_obs=False" in phrase for phrase in policy.ignored)


@pytest.mark.parametrize("place", ["policy_class", "policy_kwargs", "observation_space", "action_space"])
def test_a_hostile_zip_runs_nothing(place: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = f"touch {trace}".encode()
    call = symbol("posix.system") + b"(X" + len(command).to_bytes(4, "little") + command + b"tR"
    path = changed(tmp_path, "ppo_cartpole", {place: entry(b"\x80\x02" + call + b".")})
    with pytest.raises(ForeignError, match=r"posix\.system"):
        read_sb3(path)
    hidden = changed(tmp_path, "ppo_cartpole", {"policy_kwargs": keywords("activation_fn", call)})
    with pytest.raises(ForeignError, match=r"posix\.system"):
        read_sb3(hidden)
    assert not trace.exists()


def test_damaged_files_give_a_policy_or_a_refusal(tmp_path: Path) -> None:
    numbers = random.Random(11)
    original = json.loads(zipfile.ZipFile(FILES / "ppo_parts/policy.zip").read("data"))
    statistics = (FILES / "ppo_parts/vecnormalize.pkl").read_bytes()
    path, other = tmp_path / "policy.zip", tmp_path / "vecnormalize.pkl"
    whole = (FILES / "ppo_parts/policy.zip").read_bytes()
    refused = 0
    for number in range(300):
        other.write_bytes(statistics)
        if number % 3 == 0:
            path.write_bytes(damaged(whole, numbers))
        else:
            place = numbers.choice(["observation_space", "action_space", "policy_class"])
            stream = damaged(base64.b64decode(original[place][":serialized:"]), numbers)
            changed(tmp_path, "ppo_parts", {place: entry(stream)} if number % 3 == 1 else {})
            other.write_bytes(damaged(statistics, numbers) if number % 3 == 2 else statistics)
        try:
            read_sb3(path, other)
        except ForeignError:
            refused += 1
    assert refused > 50
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ForeignError):
            read_sb3(path)


def damaged(data: bytes, numbers: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(numbers.randrange(1, 4)):
        raw[numbers.randrange(len(raw))] = numbers.randrange(256)
    return bytes(raw)
