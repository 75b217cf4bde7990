"""Foreign files to bundles and artifacts: every policy of files/, compared with what the original computed; of
recurrent ones the states are fields, and what is proved is proved over sequences."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quarl.convert import pipeline
from quarl.convert.importers import chain, importing, registry, sources
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Dense,
    ForeignError,
    ForeignPolicy,
    Input,
    LayerNorm,
    Recurrent,
    state_inputs,
)
from quarl.convert.importers.fold import Folded, fold
from quarl.convert.importers.proof import prove
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import QuantizationError, SpecError
from quarl.policy.history import History
from quarl.policy.reference import forward_float
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    Activation,
    ArtifactFormat,
    Cell,
    ContinuousHead,
    EnvironmentSpec,
    PolicySpec,
    Precision,
    Recurrence,
    Remembered,
    RuntimeName,
    Squash,
)
from quarl.train import evaluate
from quarl.train.suites.make import make_task
from tests.convert.conftest import Capture, Patch, Runtimes
from tests.convert.importers.onnx_graphs import Graph
from tests.convert.importers.test_sb3 import changed, keywords
from tests.refusals import refused

FILES = Path(__file__).parent / "files"
CART = FILES / "sb3/recurrent_cartpole"
OBSERVED, UNITS = 4, 6
ONE = np.ones(1)
TANH = Activate(Activation.TANH)


def cell(kind: Cell, inputs: int, units: int = UNITS, seed: int = 3) -> Recurrent:
    random, gates = np.random.default_rng(seed), Recurrence(kind, units).gate_size
    shapes = (inputs, gates), (gates,), (units, gates), (gates,)
    return Recurrent(kind, *(random.normal(0.0, 0.6, shape).astype(np.float32) for shape in shapes))


def dense(inputs: int, outputs: int, seed: int = 4) -> Dense:
    random = np.random.default_rng(seed)
    kernel, bias = random.normal(0.0, 0.7, (inputs, outputs)), random.normal(0.0, 0.3, outputs)
    return Dense(kernel.astype(np.float32), bias.astype(np.float32))


def policy_of(*steps: chain.Step) -> ForeignPolicy:
    return ForeignPolicy("by hand", state_inputs(steps, (Input("sensed", (OBSERVED,)),)), steps, Continuous())


def rows_of(policy: ForeignPolicy, count: int = 48) -> np.ndarray:
    size = sum(int(np.prod(part.shape)) for part in policy.inputs)
    return np.random.default_rng(5).normal(0.2, 0.8, (count, size)).astype(np.float32)


def spec_of(folded: Folded) -> PolicySpec:
    parts = {name: getattr(folded, name) for name in ("observation", "normaliser", "network", "head")}
    return PolicySpec(name="folded", control_period_s=0.02, environment=EnvironmentSpec("foreign"), **parts)


SCALE = Affine(np.array([2.0, -0.5, 1.0, 3.0]), np.array([0.1, 0.2, -0.3, 0.0]))
BETWEEN = Affine(np.linspace(0.5, 2.0, UNITS), np.linspace(-1.0, 1.0, UNITS))
CHAINS: dict[str, tuple[chain.Step, ...]] = {
    "a GRU behind a normaliser": (SCALE, Clip(-ONE, ONE), cell(Cell.GRU, OBSERVED), dense(UNITS, 3)),
    "an LSTM without one": (cell(Cell.LSTM, OBSERVED), dense(UNITS, 3)),
    "two of them, a map between": (
        *(cell(Cell.LSTM, OBSERVED), BETWEEN, cell(Cell.GRU, UNITS, 5), dense(5, 8), TANH, dense(8, 3)),
        Affine(2 * np.ones(3), np.ones(3)),
    ),
    "behind dense layers": (dense(OBSERVED, 8), TANH, cell(Cell.GRU, 8), BETWEEN, dense(UNITS, 3), TANH),
    "behind one without an activation": (dense(OBSERVED, 2), cell(Cell.GRU, 2), dense(UNITS, 3)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_whatever_is_folded_computes_outputs_and_next_states(name: str) -> None:
    policy = policy_of(*CHAINS[name])
    rows = rows_of(policy)
    folded = fold(policy, rows)
    spec = spec_of(folded)
    assert [field.memory is not None and field.memory.of is Remembered.STATE for field in spec.observation[1:]]
    np.testing.assert_allclose(forward_float(spec, folded.weights, rows), chain.run(policy, rows), atol=2e-6)
    proof = prove(policy, spec, folded.weights, rows)
    assert proof.flown is not None and proof.near < 1e-5


def exchanged(step: chain.Step, order: tuple[int, ...]) -> chain.Step:
    """A recurrent layer with its gates in another order."""
    if not isinstance(step, Recurrent):
        return step
    places = np.arange(step.kernel.shape[1]).reshape(len(order), -1)[list(order)].reshape(-1)
    kernels = [kernel[..., places] for kernel in (step.kernel, step.bias, step.state_kernel, step.state_bias)]
    return Recurrent(step.cell, *kernels)


@pytest.mark.parametrize(
    ("kind", "order"), [(Cell.GRU, (1, 0, 2)), (Cell.LSTM, (0, 3, 1, 2)), (Cell.LSTM, (1, 0, 2, 3))]
)
def test_gates_in_another_order_are_refused(kind: Cell, order: tuple[int, ...]) -> None:
    policy = policy_of(cell(kind, OBSERVED), dense(UNITS, 3))
    misread = policy_of(*(exchanged(step, order) for step in policy.steps))
    rows = rows_of(policy)
    folded = fold(misread, rows)
    with refused(ForeignError, "not_reproduced"):
        prove(policy, spec_of(folded), folded.weights, rows)


def test_a_state_that_is_not_fed_back_is_refused() -> None:
    policy = policy_of(cell(Cell.GRU, OBSERVED), dense(UNITS, 3))
    rows = rows_of(policy)
    folded = fold(policy, rows)

    def forgetful(observations: np.ndarray) -> np.ndarray:
        """It agrees in each period that begins with the state it was given, and hands the wrong one on."""
        made = chain.run(policy, observations)
        if len(observations) == 1:
            made[:, 3:] = 0.0
        return made.astype(np.float32)

    with refused(ForeignError, "state_not_reproduced"):
        prove(replace(policy, original=forgetful), spec_of(folded), folded.weights, rows)


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (TANH, "the activation tanh"),
        (Clip(-ONE, ONE), "a clip between layers"),
        (LayerNorm(np.ones(UNITS, np.float32), np.zeros(UNITS, np.float32), 1e-5), "normalisation must stand"),
    ],
)
def test_what_cannot_follow_a_recurrent_layer_is_refused_by_name(between: chain.Step, message: str) -> None:
    policy = policy_of(cell(Cell.LSTM, OBSERVED), between, dense(UNITS, 3))
    with pytest.raises(ForeignError, match=message):
        fold(policy, rows_of(policy))


def recorded(folder: Path, **changes: np.ndarray) -> Path:
    with np.load(CART / "golden.npz") as golden:
        arrays = {name: golden[name] for name in ("observations", "outputs", "episode_starts")}
    np.savez(folder / "pairs.npz", **{**arrays, **changes})
    return folder / "pairs.npz"


def fed_back(file: Path, pairs: Path, folder: Path) -> int:
    words = [str(file), "--observations", str(pairs), "--golden", str(pairs), "--period", "0.02", "--name", "imported"]
    return main([*words, "--output-path", str(folder / "imported")])


def test_pairs_of_episodes_with_another_beginning_are_refused(tmp_path: Path, capsys: Capture) -> None:
    for starts, code in ((np.arange(32) % 11 == 0, 0), (np.zeros(32, bool), 1), (np.ones(32, bool), 1)):
        folder = tmp_path / str(starts.sum())
        folder.mkdir()
        assert fed_back(CART / "policy.zip", recorded(folder, episode_starts=starts), folder) == code
    assert "(on the given pairs)" in capsys.readouterr().err
    assert fed_back(CART / "policy.zip", recorded(tmp_path, episode_starts=np.zeros(3)), tmp_path) == 1
    assert "'episode_starts'" in capsys.readouterr().err


def test_whole_observations_may_be_recorded_too(tmp_path: Path) -> None:
    policy = registry.read(CART / "policy.zip")
    rows = np.random.default_rng(1).normal(0.0, 0.5, (64, 4 + 24)).astype(np.float32)
    pairs = tmp_path / "pairs.npz"
    np.savez(pairs, observations=rows, outputs=chain.run(policy, rows)[:, :2])
    assert fed_back(CART / "policy.zip", pairs, tmp_path) == 0


def test_it_flies_a_task_with_its_memory(tmp_path: Path, capsys: Capture) -> None:
    words = [str(CART / "policy.zip"), "--task", "cartpole", "--name", "balance", "--episodes", "3", "--json"]
    assert main([*words, "--output-path", str(tmp_path / "balance")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["returns"]["fp32"]["minus_original"] == 0.0 and answer["proof"]["flown"] is not None
    bundle = Bundle.load(tmp_path / "balance")
    assert [field.name for field in bundle.spec.observation][-2:] == ["pole_angular_velocity", "state_0"]
    assert bundle.spec.network.recurrences == (Recurrence(Cell.LSTM, 12),)
    states = bundle.golden().observations[:, 4:]
    assert np.abs(states).max() > 0.1  # recorded while it flew, each with its own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lstm_hidden_size": 8, "net_arch": [8]}, "inputs and 12"),
        ({"lstm_hidden_size": 2000}, "LSTM layers of"),
        ({"lstm_hidden_size": 12, "n_lstm_layers": 2, "net_arch": [8]}, "no tensor lstm_actor.weight_ih_l1"),
        ({"lstm_hidden_size": 12, "net_arch": [8], "lstm_kwargs": {"proj_size": 3}}, "proj_size"),
        ({"lstm_hidden_size": 12, "net_arch": [8], "gru": 3}, "gru"),
    ],
)
def test_an_lstm_that_is_not_what_the_zip_says_is_refused(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ForeignError, match=message) as caught:
        registry.read(changed(tmp_path, "recurrent_cartpole", {"policy_kwargs": given}))
    assert caught.value.next_step


def test_an_lstm_of_an_image_is_refused(tmp_path: Path) -> None:
    extractor = keywords("features_extractor_class", b"cstable_baselines3.common.torch_layers\nNatureCNN\n")
    with pytest.raises(ForeignError, match="space must be"):
        registry.read(changed(tmp_path, "recurrent_cartpole", {"policy_kwargs": extractor}))


SB3 = sorted(path.parent for path in FILES.glob("sb3/*/policy.zip"))
REFUSED = {"swish_split_dynamo", "swish_split_script"}
ONNX = sorted(path for path in FILES.glob("onnx/*.onnx") if path.stem not in REFUSED)
WEIGHTS = sorted(FILES.glob("weights/*/policy.*"))
ACTIONS = {"swish_plain": "as-is", "images": "discrete", "sb3_discrete": "discrete"}


def converted(bundle: Bundle, runtimes: Runtimes) -> None:
    for precision in (Precision.FP32, Precision.INT8):
        for artifact_format in ArtifactFormat:
            pipeline.convert(bundle, precision, artifact_format, runtimes, accept=True)


def centred(bundle: Bundle, outputs: np.ndarray) -> np.ndarray:
    return outputs - outputs.mean(axis=1, keepdims=True) if bundle.spec.is_discrete else outputs


def flown(bundle: Bundle, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Outputs of a recurrent policy for what successive periods bring."""
    history, made = History(bundle.spec.observation), []
    for values, start in zip(rows, starts, strict=True):
        if start:
            history.reset()
        result = forward_float(bundle.spec, bundle.weights(), np.array(history.observe(values), np.float32))[0]
        made.append(result[: bundle.spec.output_size])
        history.record_action(made[-1], result[bundle.spec.output_size :])
    return np.array(made)


def imported(path: Path, folder: Path, *options: str) -> Bundle:
    """The bundle of a file with golden.npz beside it, whose outputs are those that were recorded."""
    golden = path.with_name("golden.npz")
    words = [str(path), "--observations", str(golden), "--golden", str(golden), *options]
    assert main([*words, "--name", "imported", "--output-path", str(folder / "imported")]) == 0
    bundle = Bundle.load(folder / "imported")
    with np.load(golden) as original:
        wanted, rows = original["outputs"], original["observations"]
        if bundle.spec.state_size:
            own = flown(bundle, rows, original["episode_starts"])
        else:
            own = forward_float(bundle.spec, bundle.weights(), rows)
        np.testing.assert_allclose(own, centred(bundle, wanted), rtol=1e-4, atol=2e-5 * np.ptp(wanted))
    return bundle


@pytest.mark.parametrize("folder", SB3, ids=lambda folder: folder.name)
def test_a_policy_of_stable_baselines3_acts_as_the_original(folder: Path, tmp_path: Path, runtimes: Runtimes) -> None:
    statistics = folder / "vecnormalize.pkl"
    options = ["--vecnormalize", str(statistics)] if statistics.exists() else []
    converted(imported(folder / "policy.zip", tmp_path, "--period", "0.02", *options), runtimes)


@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: path.parent.name)
def test_a_policy_in_plain_weights_acts_as_the_original(path: Path, tmp_path: Path, runtimes: Runtimes) -> None:
    bundle = imported(path, tmp_path, "--spec", str(path.with_name("spec.json")))
    assert str(bundle.spec.provenance["how"]).split()[2] in ("CleanRL", "Brax")
    converted(bundle, runtimes)


@pytest.mark.parametrize("path", ONNX, ids=lambda path: path.stem)
def test_a_policy_in_onnx_acts_as_the_original(path: Path, tmp_path: Path, runtimes: Runtimes) -> None:
    policy = registry.read(path)
    size = sum(int(np.prod(part.shape)) for part in policy.inputs)
    random = np.random.default_rng(1)
    is_image = len(policy.inputs[0].shape) == 3
    rows = random.integers(0, 256, (96, size)) if is_image else random.normal(0.3, 1.5, (96, size))
    np.savez(tmp_path / "rollouts.npz", observations=rows.astype(np.float32))
    words = [str(path), "--observations", str(tmp_path / "rollouts.npz"), "--period", "0.02"]
    if policy.actions is None:
        words += ["--actions", ACTIONS[path.stem.rpartition("_")[0]]]
    assert main([*words, "--name", "imported", "--output-path", str(tmp_path / "imported")]) == 0
    bundle = Bundle.load(tmp_path / "imported")
    assert policy.original is not None
    wanted = policy.original(rows.astype(np.float32))
    own = forward_float(bundle.spec, bundle.weights(), rows)
    np.testing.assert_allclose(own, centred(bundle, wanted), rtol=1e-4, atol=2e-5 * float(np.ptp(wanted)))
    converted(bundle, runtimes)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_no_bundle_says_of_a_chain_makes_it_opaque(name: str, tmp_path: Path) -> None:
    """A layer normalisation behind an activation is a chain, and no layer of a bundle."""
    path = FILES / "onnx" / f"{name}.onnx"
    assert not registry.read(path).is_opaque
    assert main([str(path), "--actions", "as-is", "--output-path", str(tmp_path / "imported")]) == 0
    opaque = Bundle.load(tmp_path / "imported").spec.network.opaque
    assert opaque is not None and "normalisation" in opaque.reason


def test_a_task_gives_observations_names_and_returns(tmp_path: Path, capsys: Capture) -> None:
    folder = FILES / "sb3" / "ppo_cartpole"
    words = [str(folder / "policy.zip"), "--task", "cartpole", "--name", "balance", "--episodes", "3", "--json"]
    assert main([*words, "--output-path", str(tmp_path / "balance")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["returns"]["fp32"]["minus_original"] == 0.0
    spec = Bundle.load(tmp_path / "balance").spec
    assert spec.observation[0].name == "cart_position"
    assert spec.environment.id == "CartPole-v1" and spec.control_period_s == 0.02
    assert set(answer["proof"]["runtimes"]) == {name.value for name in RuntimeName}


def test_an_imported_policy_of_a_task_is_evaluated_there(tmp_path: Path) -> None:
    folder, path = FILES / "sb3" / "ppo_pendulum_normalised", tmp_path / "swing"
    words = [str(folder / "policy.zip"), "--vecnormalize", str(folder / "vecnormalize.pkl"), "--task", "pendulum"]
    assert main([*words, "--episodes", "0", "--output-path", str(path)]) == 0
    spec = Bundle.load(path).spec
    assert isinstance(spec.head, ContinuousHead)
    evaluate.check_task(replace(spec, head=replace(spec.head, low=(-9.0,), high=(9.0,))), make_task("pendulum"))
    assert evaluate.main(["--input-path", str(path), "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["golden.npz"], "--spec"),
        (["../../weights/cleanrl_dqn/spec.json"], "--spec"),
        (["absent.zip", "--task", "cartpole"], "there is no file"),
        (["policy.zip", "--task", "pendulum"], "elements like the"),
        (["policy.zip", "--task", "cartpole", "--actions", "clip", "--bounds=-1:1"], "actions are discrete"),
        (["policy.zip", "--task", "cartpole", "--name", "a/b"], "--name"),
        (["policy.zip", "--task", "cartpole", "--output", "logits"], "--output"),
        (["policy.zip", "--task", "cartpole", "--period", "0"], "--period more than 0"),
        (["policy.zip", "--task", "cartpole", "--bounds=-1:1,-1:1,-1:1"], "--bounds"),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_nothing_is_written(
    words: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = FILES / "sb3" / "ppo_cartpole"
    given = [str(folder / word) if word.endswith((".zip", ".npz", ".json")) else word for word in words]
    assert main([*given, "--output-path", str(tmp_path / "imported"), "--episodes", "0"]) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--fields", "a:0"], ["--bounds", "2:1"], ["--actions", "other"], []])
def test_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*["policy.zip"] * bool(words), *words])
    assert ended.value.code == 2


def small(*steps: list[chain.Step]) -> ForeignPolicy:
    random = np.random.default_rng(5)
    kernels = [random.normal(0, 0.7, shape).astype(np.float32) for shape in ((4, 8), (8, 3))]
    biases = [random.normal(0, 0.3, width).astype(np.float32) for width in (8, 3)]
    before, between, behind = ([step for step in part if step is not None] for part in steps)
    layers = Dense(kernels[0], biases[0]), Dense(kernels[1], biases[1])
    return ForeignPolicy(
        "by hand", (Input("state", (4,)),), (*before, layers[0], *between, layers[1], *behind), Continuous()
    )


def affine(*numbers: float, offset: float = 0.3) -> Affine:
    return Affine(np.array(numbers), np.full(len(numbers), offset))


TANH, ELU = Activate(Activation.TANH), Activate(Activation.ELU)
LOW, HIGH = np.array([-1.0, -0.5, 0.0]), np.array([1.0, 2.0, 3.0])
ROWS = np.random.default_rng(2).normal(0.5, 2.0, (64, 4)).astype(np.float32)
CASES: dict[str, tuple[tuple[list[chain.Step], ...], Squash]] = {
    "signs and clips": (
        ([affine(-2.0, 0.5, 1.0, -1.0), Clip(-ONE, 2 * ONE), affine(3.0), Clip(np.full(1, -np.inf), ONE)], [ELU], []),
        Squash.NONE,
    ),
    "a constant element": (([affine(0.0, 1.0, 2.0, 1.0)], [TANH], []), Squash.NONE),
    "affine between layers": (([], [affine(2.0), TANH, affine(*range(1, 9)), affine(0.5)], [affine(2.0)]), Squash.NONE),
    "no activation": (([], [], []), Squash.NONE),
    "clipped actions": (([], [TANH], [Clip(LOW, HIGH)]), Squash.CLIP),
    "clipped, then scaled": (([], [TANH], [Clip(-ONE, ONE), affine(2.0, -3.0, 0.5)]), Squash.CLIP),
    "squashed and unscaled": (([], [ELU], [affine(1.5), TANH, affine(2.0, -1.0, 3.0)]), Squash.TANH),
    "limited before the squashing": (([], [ELU], [Clip(-2 * ONE, 2 * ONE), TANH]), Squash.TANH),
    "limited before a sigmoid": (([], [ELU], [Clip(-ONE, ONE), Activate(Activation.SIGMOID)]), Squash.TANH),
    "a sigmoid": (([], [ELU], [Activate(Activation.SIGMOID), affine(2.0)]), Squash.TANH),
    "a clip that cuts nothing": (([], [ELU], [TANH, Clip(-ONE, ONE)]), Squash.TANH),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_folded_computes_what_the_steps_do(case: str) -> None:
    steps, squash = CASES[case]
    policy = small(*steps)
    folded = fold(policy, ROWS)
    spec = spec_of(folded)
    assert isinstance(spec.head, ContinuousHead) and spec.head.squash is squash
    far = ROWS * 20
    for rows in (ROWS, far):
        made, wanted = forward_float(spec, folded.weights, rows), chain.run(policy, rows)
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
    assert prove(policy, spec, folded.weights, ROWS).near < 1e-4


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (([TANH], [], []), "the activation tanh before the first layer"),
        (([], [TANH, ELU], []), "another activation"),
        (([], [Clip(-ONE, ONE)], []), "a clip between layers"),
        (([], [TANH], [ELU]), "the activation elu"),
        (([], [TANH], [ELU, affine(2.0)]), "the activation elu"),
        (([], [TANH], [TANH, Clip(-ONE / 2, ONE / 2)]), "squashed actions must"),
        (([], [TANH], [Clip(-ONE, 2 * ONE), TANH]), "squashing must have"),
        (([], [TANH], [Clip(-ONE, np.array([1.0, np.inf, 1.0]))]), "actions or none"),
        (([], [TANH], [TANH, affine(0.0, 1.0, 1.0)]), "multiplied by 0"),
    ],
)
def test_what_the_contract_cannot_say_is_refused_by_name(steps: tuple[list[chain.Step], ...], message: str) -> None:
    with pytest.raises(ForeignError, match=message):
        fold(small(*steps), ROWS)


WIDE = Clip(np.full(3, -1e6), np.full(3, 1e6))


def test_wide_bounds_hide_no_misread_policy() -> None:
    policy, wrong = small([], [TANH], [WIDE]), small([], [TANH], [affine(-1.0, offset=0.0), WIDE])
    folded, misread = fold(policy, ROWS), fold(wrong, ROWS)
    head = spec_of(folded).head
    assert isinstance(head, ContinuousHead) and head.squash is Squash.NONE and max(head.high) < 10
    assert head.limit * (head.high[0] - head.low[0]) / 2 == pytest.approx(1e6)
    np.testing.assert_allclose(forward_float(spec_of(folded), folded.weights, ROWS), chain.run(policy, ROWS), atol=1e-5)
    with refused(ForeignError, "not_reproduced"):
        prove(policy, spec_of(misread), misread.weights, ROWS)


def test_a_small_output_beside_a_large_one_is_compared_by_its_own_span() -> None:
    policy = small([], [TANH], [Affine(np.array([1000.0, 0.01, 1.0]), np.zeros(3))])
    misread = fold(small([], [TANH], [Affine(np.array([1000.0, -0.01, 1.0]), np.zeros(3))]), ROWS)
    with refused(ForeignError, "not_reproduced", shows=["output 1"]):
        prove(policy, spec_of(misread), misread.weights, ROWS)


def test_a_mean_that_no_float32_holds_is_taken_up_by_the_first_layer() -> None:
    mean, deviation = np.full(4, 1e4 + 1 / 3e3), np.full(4, 0.5)
    policy = small([Affine(1 / deviation, -mean / deviation)], [ELU], [])
    rows = (1e4 + RANDOM_ROWS).astype(np.float32)
    folded = fold(policy, rows)
    assert prove(policy, spec_of(folded), folded.weights, rows).near < 1e-4


RANDOM_ROWS = np.random.default_rng(8).normal(0.0, 0.5, (64, 4))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((Input("b", (2,)), Input("a", (2,))), "the file's inputs"),
        ((Input("a", (3,)), Input("c", (1,))), "the file's inputs"),
        ((Input("a", (2,)), Input("x", (2, 1, 1))), "three sides"),
        ((Input("a", (2,)), Input("b", (3,))), "the fields"),
    ],
)
def test_fields_cannot_exchange_the_inputs_of_a_file(fields: tuple[Input, ...], message: str) -> None:
    policy = replace(small([], [TANH], []), inputs=(Input("a", (2,)), Input("b", (2,))))
    with pytest.raises(ForeignError, match=message):
        sources.with_inputs(policy, fields)
    parts = (Input("a", (2,), "m"), Input("left", (1,)), Input("right", (1,)))
    assert sources.with_inputs(policy, parts).inputs == parts


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"observations": np.zeros((0, 4))}, "has no rows"),
        ({"observations": np.zeros((32, 4), "c8")}, "observations"),
        ({"observations": np.zeros(32, [("a", "f4")])}, "observations"),
        ({"observations": np.full((32, 4), 1e30)}, "have values within"),
        ({"observations": np.full((32, 4), np.nan)}, "NaN or infinity"),
        ({"rows": np.zeros((32, 4))}, "has no array 'observations'; it has rows"),
        ({"observations": np.array([{}], object)}, "observations"),
        ({"observations": np.zeros((8, 4))}, "at least 16"),
    ],
)
def test_recordings_that_are_none_are_refused(
    arrays: dict[str, np.ndarray], message: str, tmp_path: Path, capsys: Capture
) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    words = [str(FILES / "sb3" / "ppo_cartpole" / "policy.zip"), "--observations", str(tmp_path / "rows.npz")]
    assert main([*words, "--period", "0.02", "--output-path", str(tmp_path / "imported")]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_a_policy_that_was_misread_is_not_written(tmp_path: Path) -> None:
    policy = small([], [Activate(Activation.LEAKY_RELU, 0.01)], [])
    misread = fold(small([], [Activate(Activation.RELU)], []), ROWS)
    spec, wanted = spec_of(misread), chain.run(policy, ROWS)
    with refused(ForeignError, "not_reproduced"):
        prove(policy, spec, misread.weights, ROWS)
    with refused(SpecError, "golden_mismatch"):
        write_bundle(tmp_path / "folded", spec, misread.weights, ROWS[:32], ROWS, golden_outputs=wanted)
    with pytest.raises(ForeignError, match="on the given pairs"):
        prove(replace(policy, steps=small([], [Activate(Activation.RELU)], []).steps), spec, misread.weights, ROWS,
              (ROWS, wanted.astype(np.float32)))  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_the_file_alone_suffices_for_floats(tmp_path: Path, capsys: Capture) -> None:
    graph, folder = FILES / "onnx" / "rsl_rl_script.onnx", tmp_path / "mine"
    assert main([str(graph), "--output-path", str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["assumed"]) == 1  # the period: the file names its actions
    bundle = Bundle.load(folder)
    assert bundle.calibration().shape == (0, bundle.spec.observation_size)
    made = pipeline.convert_all([bundle], [Precision.FP32, Precision.FP16], list(ArtifactFormat))
    assert len(made) == 6
    with pytest.raises(QuantizationError):
        pipeline.convert_all([bundle], [Precision.INT8], [ArtifactFormat.ONNX])


def test_an_import_is_made_again_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = FILES / "sb3" / "ppo_cartpole"
    words = [str(folder / "policy.zip"), "--observations", str(folder / "golden.npz"), "--period", "0.02"]
    words += ["--output-path", str(tmp_path / "mine"), "--name", "mine"]
    assert main(words) == 0 and main(words) == 1 and main([*words, "--period", "0.04", "--replace"]) == 0
    assert Bundle.load(tmp_path / "mine").spec.control_period_s == 0.04
    (tmp_path / "mine" / "manifest.json").unlink()
    assert main([*words, "--replace"]) == 1


HALF, SIZES = onnx.TensorProto.FLOAT16, (6, 32, 3)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """policy.onnx, a perceptron in float16, and rows.npz of 600 observations."""
    generator, graph, x = np.random.default_rng(0), Graph(17), "observation"
    graph.inputs = [onnx.helper.make_tensor_value_info(x, HALF, ["n", 6])]
    for given, made in pairwise(SIZES):
        kernel = (generator.normal(size=(given, made)) / np.sqrt(given)).astype(np.float16)
        x = graph.n("Tanh", graph.n("Gemm", x, graph.c(kernel), graph.c(np.zeros(made, np.float16))))
    onnx.save(graph.model(x), tmp_path / "policy.onnx")
    np.savez(tmp_path / "rows.npz", observations=generator.normal(size=(600, 6)).astype(np.float32))
    return tmp_path


def half_imported(half: Path, *more: str) -> int:
    words = ["--observations", str(half / "rows.npz"), "--actions", "as-is", "--period", "0.02", "--name", "half"]
    return main([str(half / "policy.onnx"), *words, "--output-path", str(half / "made"), *more])


def test_a_float16_file_is_imported(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert half_imported(half) == 0
    assert (half / "made" / "manifest.json").exists() and "by its own runtime" in capsys.readouterr().out


def test_outputs_beyond_float16s_roundings_are_refused(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.load(half / "rows.npz")["observations"][:50]
    np.savez(half / "pairs.npz", observations=rows, outputs=np.full((50, 3), 0.3, np.float32))
    assert half_imported(half, "--golden", str(half / "pairs.npz")) == 1
    assert "(on the given pairs)" in capsys.readouterr().err and not (half / "made").exists()


def test_an_import_with_poor_int8_recommends_another_precision(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    def other(spec: Any, weights: Any, rows: Any, *how: Any) -> Any:  # integers that decide the contrary
        return quantize_network(spec, {**weights, "head/kernel": -weights["head/kernel"]}, rows, *how)

    words = [str(FILES / "sb3/ppo_cartpole/policy.zip"), "--task", "CartPole-v1", "--name", "pole", "--episodes", "10"]
    monkeypatch.setattr(importing, "quantize_network", other)
    monkeypatch.setattr(pipeline, "quantize_network", other)
    assert main([*words, "--output-path", str(tmp_path / "pole"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["advised_bits"] == "w8" and any("w8 keeps it" in sentence for sentence in answer["warnings"])
    assert any("int8 acts as the policy in only" in sentence for sentence in answer["warnings"])
    monkeypatch.undo()
    assert main([*words, "--output-path", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    assert "8      " in said and "; taken for " in said and "quarl convert --bits auto --policy" in said
