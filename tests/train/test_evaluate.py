"""``quarl evaluate``: artifacts through a device's runtime, comparison, refusals, films, zones of goal distance."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.curriculum import zone_bounds
from quarl.airlearning_envs.flights import wilson_interval
from quarl.convert.executor import ExecutionError
from quarl.convert.pipeline import build_graph, convert_all
from quarl.policy.bundle import Bundle
from quarl.policy.errors import SpecError
from quarl.policy.places import ZOO
from quarl.policy.reference import choose_actions, forward_float
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    weight_shapes,
)
from quarl.train import evaluate
from quarl.train.runs.artifact import ArtifactPolicy
from quarl.train.runs.film import film
from quarl.train.suites.episodes import Decide, EpisodeResults
from quarl.train.suites.errors import TaskError
from quarl.train.suites.make import make_task
from quarl.train.suites.task import Evaluation, Task
from tests.refusals import refused

Balancing = Callable[..., Bundle]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, balancing: Balancing) -> Bundle:
    """The balancing policy with its fp32 and int8 artifacts for TFLite and the native engine."""
    made = balancing(tmp_path_factory.mktemp("bundles") / "balance")
    convert_all([made], [Precision.FP32, Precision.INT8], [ArtifactFormat.TFLITE, ArtifactFormat.NATIVE])
    return Bundle.load(made.path)


def report_of(capsys: pytest.CaptureFixture[str], policy: Bundle | Path, *options: str) -> dict:
    path = policy.path if isinstance(policy, Bundle) else policy
    assert evaluate.main(["--input-path", str(path), "--json", *options]) == 0
    report: dict = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("runtime", ["litert", "native"])
def test_the_fp32_artifact_plays_the_float_policys_episodes(
    bundle: Bundle, runtime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [] if runtime == "litert" else ["--runtime", runtime]
    report = report_of(capsys, bundle, "--precision", "32", "--compare", "--episodes", "6", *options)
    artifact, float_policy = report["results"]
    assert artifact["returns"] == float_policy["returns"]
    assert artifact["mean_return"] > 300  # a policy that does not balance falls after ten steps
    assert report["minus_float"] == [
        {"preset": "", "paired": True, "mean_return": 0.0, "return_interval": None}
    ]  # all are equal
    assert report["precision"] == "fp32"
    assert report["executed_by"].startswith(f"{runtime} ")
    assert report["artifact"] == ("fp32.tflite" if runtime == "litert" else "fp32.native")


def test_int8_balances_too_and_is_reproduced(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--precision", "int8", "--runtime", "tflite-runtime", "--episodes", "6", "--seed", "11"]
    first, again = report_of(capsys, bundle, *options), report_of(capsys, bundle, *options)
    assert first["results"][0]["mean_return"] > 300
    assert first["results"] == again["results"]
    assert first["executed_by"].startswith("tflite-runtime ")


def test_the_default_is_the_float_policy_and_the_report_goes_to_a_file(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = report_of(capsys, bundle, "--episodes", "1", "--output", str(tmp_path / "new" / "report.json"))
    assert (report["precision"], report["task"]) == ("float", "CartPole-v1")
    assert report["results"][0]["return_interval"] is None  # one episode has none
    assert json.loads((tmp_path / "new" / "report.json").read_text()).items() <= report.items()
    assert evaluate.main(["--input-path", str(bundle.path), "--episodes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "[–] │" in printed
    assert printed.endswith("[–]: a single episode, or episodes with equal returns, give no interval.\n")


@pytest.mark.parametrize(("options", "shown"), [
    (["pendulum-ddpg", "--episodes", "4", "--seed", "313"], "-118.15 [-126.21, -110.10]"),
    (["cartpole-dqn", "--episodes", "20"], "500.00 [–]"),
])  # fmt: skip
def test_committed_policies_are_judged(options: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--input-path", *options]) == 0
    assert shown in capsys.readouterr().out


def test_an_artifact_is_judged_without_tensorflow(bundle: Bundle) -> None:
    script = (
        "import sys; from quarl.train.evaluate import main\n"
        f"code = main(['--input-path', {str(bundle.path)!r}, '--precision', 'int8', '--episodes', '1'])\n"
        "print(code, [name for name in ('tensorflow', 'tflite_runtime', 'ai_edge_litert') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(("options", "status", "words"), [
    (["--precision", "int9"], 1, ["int9", "int8"]),
    (["--precision", "fp16"], 1, ["fp16", "fp32.native, fp32.tflite", "quarl convert --bits 16 --policy"]),
    (["--precision", "int8", "--runtime", "onnxruntime"], 1, ["onnxruntime", "(onnx)", "--bits 8"]),
    (["--precision", "int8", "--runtime", "torch"], 1, ["torch", "litert"]),
    (["--runtime", "litert"], 2, ["--precision int8"]),
    (["--compare"], 2, ["--precision int8"]),
    (["--episodes", "0"], 2, ["at least 1"]),
    (["--preset", "hard"], 2, ["--preset", "Leave it out"]),
    (["--video", "film.avi"], 2, [".mp4 or .gif"]),
    (["--task", "Acrobot-v1"], 1, ["another observation", "cart_position", "cos_angle_1"]),
])  # fmt: skip
def test_what_cannot_be_judged_is_refused_with_what_can(
    bundle: Bundle, options: list[str], status: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--input-path", str(bundle.path), *options]) == status
    printed = capsys.readouterr().err
    assert all(word in printed for word in words), printed


def test_a_bundle_of_the_zoo_is_pointed_to_its_working_copy(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--input-path", str(ZOO / "I"), "--precision", "int8"]) == 1
    assert "quarl convert --bits 8 --policy I, and evaluate its working copy: --input-path I" in capsys.readouterr().err


def test_another_task_is_refused_by_the_field_that_differs(bundle: Bundle) -> None:
    task, spec = make_task("CartPole-v1"), bundle.spec
    evaluate.check_task(spec, task)
    other = dataclasses.replace(spec, head=DiscreteHead(("action_0", "push")))
    with refused(SpecError, "spec", shows=["head.action_names", "'action_0'", "'push'"]):
        evaluate.check_task(other, task)
    other = dataclasses.replace(spec, environment=EnvironmentSpec("ALE/pong"))
    with refused(SpecError, "spec", shows=["environment.id", "ALE/pong", "--task"]):
        evaluate.check_task(other, task)
    head = ContinuousHead((-1.0,), (1.0,), Squash.CLIP)
    with pytest.raises(SpecError, match="of 2 actions"):
        evaluate.check_task(dataclasses.replace(spec, head=head), task)
    wide = dataclasses.replace(task, head=ContinuousHead((-1.0,), (2.0,), Squash.TANH))
    with refused(SpecError, "spec", shows=["head.high", "1.0", "2.0"]):
        evaluate.check_task(dataclasses.replace(spec, head=head), wide)
    same = dataclasses.replace(task, head=ContinuousHead((-1.0,), (1.0,), Squash.TANH))
    evaluate.check_task(dataclasses.replace(spec, head=head), same)  # the squash is the method's


def test_differences_by_hand() -> None:
    # d = 2, 0, 1: mean 1, s = 1, t of 2 degrees of freedom 4.302653, half width 4.302653 / sqrt(3) = 2.48414
    mean, interval = evaluate.difference([3.0, 1.0, 2.0], [1.0, 1.0, 1.0], paired=True)
    assert mean == 1.0 and interval is not None
    np.testing.assert_allclose(interval, [1 - 2.48414, 1 + 2.48414], atol=1e-5)
    # returns that vary much but by the same amount with both: nothing says how far another difference may lie
    assert evaluate.difference([500.0, 10.0, 90.0], [499.0, 9.0, 89.0], paired=True) == (1.0, None)
    with pytest.raises(ValueError, match="2 and 1 episodes cannot be paired"):
        evaluate.difference([1.0, 2.0], [1.0], paired=True)
    # Unpaired: means 2 and 1, variances 1 and 4 over 3 and 4: 1/3 + 1 = 4/3; (4/3)² / (1/18 + 1/3) = 4.57, so 4
    # degrees, 2.776445
    mean, interval = evaluate.difference([1.0, 2.0, 3.0], [-1.0, 3.0, 1.0, 1.0], paired=False)
    assert mean == 1.0 and interval is not None
    half = 2.776445 * np.sqrt(1 / 3 + 8 / 3 / 4)
    np.testing.assert_allclose(interval, [1 - half, 1 + half], atol=1e-5)
    assert evaluate.difference([1.0], [2.0, 3.0], paired=False) == (-1.5, None)
    assert evaluate.difference([1.0, 1.0], [2.0, 2.0], paired=False) == (-1.0, None)


def test_an_evaluation_of_judged_episodes_by_hand() -> None:
    judged = EpisodeResults(np.array([1.0, 3.0, 5.0, 7.0]), np.array([2, 2, 4, 4]), np.array([True, False, True, True]))
    result = Evaluation.of(judged, "hard")
    # mean 4, s² = (9 + 1 + 1 + 9) / 3, half width 3.182446 sqrt(20/3) / 2 = 4.10852; Wilson's interval of 3 of 4
    assert (result.mean_return, result.mean_length, result.success) == (4.0, 3.0, 0.75)
    assert result.return_interval is not None and result.interval is not None
    np.testing.assert_allclose(result.return_interval, [4 - 4.10852, 4 + 4.10852], atol=1e-5)
    np.testing.assert_allclose(result.interval, [0.30064, 0.95441], atol=1e-5)
    assert result.returns == (1.0, 3.0, 5.0, 7.0)


def image_spec(head: DiscreteHead | ContinuousHead) -> PolicySpec:
    network = NetworkSpec((8,), convolutions=(Convolution(4, 3, 2),))
    field = ObservationField("frames", (12, 12, 2), "grey level")
    environment = EnvironmentSpec("test")
    return PolicySpec("tiny", (field,), Normaliser((0.0,), (255.0,), np.inf), network, head, 0.1, environment)


@pytest.mark.parametrize(
    "head",
    [DiscreteHead(("a", "b", "c")), ContinuousHead((-2.0, 0.0), (2.0, 1.0), Squash.TANH)],
    ids=["discrete", "box"],
)
def test_an_artifact_decides_on_batches_of_images_like_the_reference(head: DiscreteHead | ContinuousHead) -> None:
    spec, generator = image_spec(head), np.random.default_rng(5)
    weights = {n: generator.normal(0, 0.4, shape).astype(np.float32) for n, shape in weight_shapes(spec).items()}
    images = generator.integers(0, 256, (7, 12, 12, 2)).astype(np.uint8)
    wanted = choose_actions(spec, forward_float(spec, weights, images.reshape(7, -1)))
    data = build_graph(spec, weights, images.reshape(7, -1), Precision.FP32, ArtifactFormat.TFLITE)
    with ArtifactPolicy(spec, data, RuntimeName.LITERT) as policy:
        actions = policy.decide(images)
        np.testing.assert_array_equal(policy.decide(images.reshape(7, -1).astype(np.float32)), actions)
    assert actions.dtype == wanted.dtype
    np.testing.assert_allclose(actions, wanted, atol=1e-5)


def test_a_runtime_that_refuses_or_dies_says_so(bundle: Bundle) -> None:
    with pytest.raises(ExecutionError, match="litert cannot execute this artifact"):
        ArtifactPolicy(bundle.spec, b"no model", RuntimeName.LITERT).__enter__()
    data = bundle.artifact_data(bundle.artifact(Precision.FP32, ArtifactFormat.TFLITE))
    with ArtifactPolicy(bundle.spec, data, RuntimeName.LITERT) as policy:
        assert policy.decide(np.zeros((3, 4), np.float32)).shape == (3,)
        policy._process.kill()
        with pytest.raises(ExecutionError, match=r"litert ended while it was deciding \(exit code -9\)"):
            policy.decide(np.zeros((3, 4), np.float32))


@pytest.mark.slow
def test_a_film_of_the_first_judged_episode(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pygame")
    imageio = pytest.importorskip("imageio.v3")
    task = make_task("CartPole-v1")

    def push_right(observation: np.ndarray) -> np.ndarray:
        return np.ones(len(observation), np.int64)

    total = film(task, push_right, 7, "", "right", tmp_path / "film.gif")
    assert total == task.evaluate(push_right, 3, 7, "").returns[0]
    pictures = imageio.imread(tmp_path / "film.gif")
    assert len(pictures) == total + 1  # a picture before each step and one after the last
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.gif"]
    options = ["--input-path", str(bundle.path), "--episodes", "1", "--precision", "int8"]
    assert evaluate.main([*options, "--video", str(tmp_path / "flown.mp4")]) == 0
    assert (tmp_path / "flown.mp4").stat().st_size > 1000


def test_a_film_of_images_shows_what_the_policy_sees(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    images = np.zeros((3, 1, 12, 12, 2), np.uint8)
    images[1, 0, :, :, 1] = 200  # the newest picture is the last channel

    def play(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        for observation in images:
            decide(observation)
        return Evaluation.of(EpisodeResults(np.array([2.5]), np.array([3]), None), preset)

    field = ObservationField("frames", (12, 12, 2), "grey level")
    task = dataclasses.replace(make_task("CartPole-v1"), observation=(field,), evaluate=play, control_period_s=0.1)
    assert film(task, lambda observation: np.zeros(1, np.int64), 0, "", "x", tmp_path / "seen.gif") == 2.5
    pictures = imageio.imread(tmp_path / "seen.gif")
    assert pictures.shape[1:3] == (60, 60)
    assert [int(picture.max() > 100) for picture in pictures] == [0, 1, 0]


def test_an_environment_that_cannot_draw_names_what_is_missing(tmp_path: Path) -> None:
    task: Task = make_task("CartPole-v1")

    def no_display(seed: int) -> tuple:
        def draw() -> None:
            raise RuntimeError("No OpenGL rendering backend is available.")

        return task.make(1, seed), draw

    blind = dataclasses.replace(task, draw=no_display)
    with refused(TaskError, "cannot_render"):
        film(blind, lambda observation: np.zeros(1, np.int64), 0, "", "x", tmp_path / "x.mp4")
    with refused(TaskError, "no_pictures"):
        film(dataclasses.replace(task, draw=None), lambda o: np.zeros(1, np.int64), 0, "", "x", tmp_path / "x.mp4")
    assert list(tmp_path.iterdir()) == []


def test_four_zones_of_each_preset_with_the_baseline_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = report_of(capsys, ZOO / "I", "--zones", "--episodes", "60")["results"]
    keys = [(row["preset"], row["policy"], row["zone"], tuple(row["goal_distance_m"])) for row in rows]
    assert keys == [
        (preset, policy, zone, bounds)
        for preset in ("hard", "shipped")
        for zone, bounds in enumerate(zone_bounds(PRESETS[preset]), start=1)
        for policy in ("I", "blind")
    ]
    for row in rows:
        assert row["episodes"] == len(row["successes"]) == 60
        assert tuple(row["interval"]) == wilson_interval(sum(row["successes"]), 60)
    hard = [row["success"] for row in rows if row["preset"] == "hard" and row["policy"] == "blind"]
    assert hard[0] > hard[3] + 0.2, "a farther goal has more obstacles before it"
    # The preset's goal distance is uniform, so that its zones are as likely as each other.
    whole = report_of(capsys, ZOO / "I", "--preset", "hard", "--episodes", "240")["results"][1]
    assert whole["interval"][0] - 0.05 < sum(hard) / 4 < whole["interval"][1] + 0.05


def test_late_commands_are_late_in_each_zone(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--zones", "--preset", "shipped", "--episodes", "30"]
    one, late = (report_of(capsys, ZOO / "I", *options, *more) for more in ([], ["--command-latency", "1.5"]))
    assert list(late["settings"]) == ["latency"], "the zones' distances stand in the rows"
    assert sum(row["success"] for row in late["results"]) < sum(row["success"] for row in one["results"]) - 1.0


def test_an_artifact_is_compared_zone_by_zone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Bundle.load(shutil.copytree(ZOO / "I", tmp_path / "I"))
    convert_all([bundle], [Precision.FP32], [ArtifactFormat.TFLITE])
    options = ["--zones", "--preset", "hard", "--episodes", "8", "--precision", "fp32", "--compare"]
    report = report_of(capsys, bundle, *options)
    assert [(each["preset"], each["zone"]) for each in report["minus_float"]] == [
        ("hard", zone) for zone in range(1, 5)
    ]
    assert report["minus_float"][1]["goal_distance_m"] == [10.75, 15.5]
    assert [row["policy"] for row in report["results"][:3]] == ["I", "I, float", "blind"]
    capsys.readouterr()
    assert evaluate.main(["--input-path", str(bundle.path), *options]) == 0
    table = capsys.readouterr().out
    assert "2: 10.75 – 15.5 m" in table and "8 episodes a zone" in " ".join(table.split())
    assert "fp32 minus float, the same episodes on hard, zone 4: return " in table


@pytest.mark.parametrize(("options", "words"), [
    (["--input-path", str(ZOO / "benchmark" / "cartpole-dqn")], ["--zones", "CartPole-v1", "Leave it"]),
    (["--input-path", str(ZOO / "I"), "--video", "x.mp4"], ["--video", "--zones", "Leave one of them out"]),
    (["--input-path", str(ZOO / "I"), "--preset", "extreme"], ["--preset", "extreme", "shipped"]),
])  # fmt: skip
def test_zones_that_there_are_not(options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([*options, "--zones"]) == 2
    keys = capsys.readouterr().err
    assert "error" in keys and all(word in keys for word in words), keys
