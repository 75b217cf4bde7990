"""``quarl train``: when it ends, what it writes, its help, and its messages."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.train import __main__ as command
from quarl.train.algorithms.common.settings import about
from quarl.train.algorithms.dqn import DQNSettings
from quarl.train.methods import METHODS as METHODS_OF_HELP
from quarl.train.methods import settings_class
from quarl.train.runs.presets import load_settings
from tests.train.small_runs import AWARE, DISTILL, PPO, curve, ended, train

NAVIGATION = ["--task", "navigation"]
WRONG = {
    "": "is required|quarl train --task navigation --policy I|--task my_module:MyTask-v0",
    "--steps 5": "is required|--task cartpole",
    "--task NoSuch-v0": "NoSuch-v0|navigation|CartPole-v1",
    "--task cartpol": "cartpol|Did you mean cartpole?",
    "--task MountainCarContinous-v0": "Did you mean MountainCarContinuous-v0",
    "--task Pendulum-v1 --method dqn": "discrete actions|--method ppo, recurrent_ppo, a2c, ddpg, d4pg, td3, sac",
    "--task cartpole --method ddpg": "requires continuous actions|--method ppo, recurrent_ppo, dqn, a2c, distill",
    "--task gym,CartPole-v1 --method d4pg": "requires continuous actions|CartPole-v1",
    "--task cartpole --model nature": "nature does not fit CartPole-v1",
    "--task CartPole-v1 --preset hard": "--preset hard|Leave it out",
    "--task cartpole --seed -1": "--seed",
    "--task cartpole --stop-preset hard": "--stop-preset|CartPole-v1|leave it out",
    "--task cartpole --command-latency 0.2": "--command-latency|Leave it out",
    "--task cartpole --curriculum": "the task cartpole|Leave it out",
    "--task cartpole --method dqn --set n_step=2000": "learning_starts|at least 16000",
    "--task cartpole --method dqn --set n_step=0": "at least 1",
    "--task cartpole --method dqn --mixed-precision int8": "float32, bfloat16, float16",
    "--task cartpole --method distill --mixed-precision bfloat16": "in float32 only",
    "--task pendulum --method d4pg --set minibatch=0": "at least 1",
    "NAVIGATION --precision 8": "--precision 8|--quantization-method quantization-aware|convert --bits 8 --policy NAME",
    "NAVIGATION --preset extreme": "extreme|hard|shipped",
    "NAVIGATION --set learning_rat=1": "learning_rat|learning_rate",
    "NAVIGATION --set epochs=1.5": "epochs|1.5|int",
    "NAVIGATION --set epochs": "NAME=VALUE",
    "NAVIGATION --steps 0": "--steps",
    "NAVIGATION --command-latency 0.4,0.1": "0.4,0.1|[low, high]|0.05,0.4|quarl bench latency",
    "NAVIGATION --command-latency -1": "--command-latency -1|none negative",
    "NAVIGATION --command-latency ./nowhere.json": "nowhere.json|No such file|0.05,0.4",
    "NAVIGATION --stop-preset extreme": "--stop-preset|hard, shipped",
    "NAVIGATION --set minibatch=1000": "1000|minibatch must divide|2048",
    "--task navigation-depth --method ppo": "--method ppo|learns from images|--method distill",
    "DEPTH --model 64,64": "has no convolutions|--model nature",
    "DEPTH AWARE 8": "quantization-aware distillation requires",
    "PPO --precision 4": "--quantization-method quantization-aware",
    "PPO AWARE 32": "--precision 8",
    "PPO --minutes -1": "--minutes",
    "PPO --teacher III": "--method ppo",
    "PPO AWARE 9": "2 … 8",
    "PPO --quant-delay 0.2": "--quant-delay",
    "PPO AWARE 4 --steps 512 --quant-delay 512": "would be quantized",
    "PPO AWARE 4 --mixed-precision bfloat16": "float32",
    "PPO --set learning_rate=-1": "learning_rate must",
    "PPO --set discount=1.5": "discount",
    "PPO --set gae_lambda=-0.1": "gae_lambda",
    "DISTILL AWARE 9": "2 … 8",
    "DISTILL --set activity_penalty=-1": "activity_penalty",
}
DEPTH = ["--task", "navigation-depth", "--teacher", "zoo/I"]
SHORT = {"NAVIGATION": NAVIGATION, "DEPTH": DEPTH, "PPO": PPO, "DISTILL": DISTILL, "AWARE": AWARE}


@pytest.mark.parametrize("typed", WRONG)
def test_mistakes_are_answered_by_what_may_be(typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for each in typed.split() for word in SHORT.get(each, [each])]
    assert ended([*words, "--quiet", "--output-path", str(tmp_path / "x")]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    for wanted in WRONG[typed].split("|"):
        assert wanted in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_success_or_a_time_limit_can_end_training(tmp_path: Path) -> None:
    navigation = ["--task", "navigation", "--preset", "easy", "--quiet", "--set", "environments=16"]
    small = [*navigation, "--set", "rollout_steps=16", "--set", "minibatch=128", "--steps", "100000"]
    assert train(tmp_path / "a", *small, "--stop-at-success", "0", "--stop-preset", "shipped") == 0
    spec = Bundle.load(tmp_path / "a").spec
    assert spec.provenance["ended"] == "greedy success reached 0"
    assert spec.provenance["steps"] == 512
    assert spec.environment.settings == {"preset": "easy"}
    assert train(tmp_path / "b", *small, "--minutes", "0") == 0
    first = Bundle.load(tmp_path / "b").spec.provenance
    assert first["ended"] == "0 minutes were over"
    assert "resumed_at" not in first
    # A resumption of no time at all: its sentence says so, and steps and times are those of the whole run.
    assert train(tmp_path / "b", *small, "--minutes", "0", "--resume") == 0
    second = Bundle.load(tmp_path / "b").spec.provenance
    assert second["ended"] == f"0 minutes since it was resumed at step {first['steps']} were over"
    assert second["resumed_at"] == [first["steps"]]
    assert second["steps"] == 2 * first["steps"]
    assert second["wall_s"] > first["wall_s"]
    assert second["cpu_s"] > first["cpu_s"]


def test_the_folder_names_the_policy(tmp_path: Path) -> None:
    assert train(tmp_path / "my cart (2)", *PPO, "--steps", "256") == 0
    spec = Bundle.load(tmp_path / "my cart (2)").spec
    assert (spec.name, spec.provenance["network"]) == ("my-cart-2", "I")


def test_the_bundle_says_how_it_was_trained(tmp_path: Path) -> None:
    assert train(tmp_path / "I", *PPO, "--steps", "512") == 0
    bundle = Bundle.load(tmp_path / "I")
    provenance = bundle.spec.provenance
    assert provenance["algorithm"] == "ppo"
    assert (provenance["seed"], provenance["steps"], provenance["ended"]) == (3, 512, "all steps made")
    assert provenance["settings"]["minibatch"] == 64
    assert {"python", "tensorflow-cpu", "numpy"} <= provenance["versions"].keys()
    assert provenance["cpu_s"] > 0 and provenance["wall_s"] > 0
    assert (tmp_path / "I" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert bundle.spec.environment.id == "CartPole-v1"
    assert bundle.spec.control_period_s == 0.02  # CartPole's own tau


def test_command_latency_is_trained_kept_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from quarl.train import evaluate

    small = [*NAVIGATION, "--quiet", "--set", "environments=16", "--set", "rollout_steps=16", "--set", "minibatch=128"]
    small += ["--minutes", "0"]
    report = tmp_path / "report.json"
    artifact = {"policy": "I", "artifact": {"bytes": 1}, "latency": {"samples_ns": [2e8, 4e8]}}
    keras = {"policy": "I", "artifact": None, "latency": {"samples_ns": [9e9]}}
    report.write_text(json.dumps({"ok": True, "reports": [artifact, keras]}))
    kept = {
        "0.2": {"kind": "fixed", "values_s": [0.2]},
        "0.05,0.4": {"kind": "uniform", "values_s": [0.05, 0.4], "drawn_for": "episode"},
        str(report): {"kind": "empirical", "values_s": [0.2, 0.4]},
    }
    for typed, latency in kept.items():
        assert train(tmp_path / "I-late", *small, "--fresh", "--command-latency", typed) == 0
        spec = Bundle.load(tmp_path / "I-late").spec
        assert spec.environment.settings == {"preset": "hard", "latency": latency}
        assert spec.provenance["settings"]["task"]["settings"]["latency"] == latency
    # Another latency is another run.
    assert train(tmp_path / "I-late", *small, "--resume", "--command-latency", "0.3") == 2
    report.write_text(json.dumps({"ok": True, "reports": [artifact, artifact]}))
    assert train(tmp_path / "other", *small, "--command-latency", str(report)) == 2
    assert "decide --no-baseline --json" in capsys.readouterr().err
    judge = ["--input-path", str(tmp_path / "I-late"), "--episodes", "60", "--preset", "shipped", "--json"]
    blind = []
    for late in ([], ["--command-latency", "1.5"]):
        assert evaluate.main([*judge, *late]) == 0
        blind.append(json.loads(capsys.readouterr().out)["results"][-1]["success"])
    assert blind[1] < blind[0] - 0.2, "the baseline flies with the same latency"


def test_keep_best_needs_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*PPO, "--steps", "2048", "--set", "keep_best=true", "--set"]
    assert train(tmp_path / "I", *options, "normaliser_steps=2048") == 2
    printed = capsys.readouterr().err
    assert "after normaliser_steps =" in printed
    assert "Type --set normaliser_steps=204 or --set keep_best=false" in printed
    assert not list(tmp_path.iterdir())  # neither the bundle's folder nor that of checkpoints
    assert train(tmp_path / "I", *options, "normaliser_steps=1024") == 0
    assert Bundle.load(tmp_path / "I").spec.provenance["best_step"] >= 1024


def test_without_the_extra_it_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "is_importable", lambda module: module != "tensorflow")
    output = tmp_path / "mine"
    assert command.main(["--task", "cartpole", "--output-path", str(output)]) == 1
    assert 'pip install "quarl[train]"' in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_help_needs_neither_tensorflow_nor_numpy() -> None:
    script = (
        "import sys; from quarl.train.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('tensorflow', 'numpy', 'gymnasium') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--stop-at-success" in done.stdout
    assert done.stderr.strip() == "[]"


def test_task_help_shows_defaults_without_tensorflow() -> None:
    script = (
        "import sys; from quarl.train.__main__ import main\n"
        "code = main(['--task', 'cartpole', '--method', 'dqn', '--defaults'])\n"
        "print(code, 'tensorflow' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 False"
    found = load_settings("cartpole", "dqn", "I")
    assert f"{found.steps:,}" in done.stdout
    assert "4 floats, 2 actions" in done.stdout
    assert "train/settings/classic/CartPole-v1-dqn.json" in done.stdout
    assert "".join(found.source.split()) in "".join(done.stdout.split())
    for field in dataclasses.fields(DQNSettings):
        assert f" {field.name} " in done.stdout
        value = found.settings.get(field.name, field.default)
        assert f"= {value:g}" in done.stdout if isinstance(value, int | float) else True
    assert "Environments stepped together." in done.stdout


def test_help_of_a_task_marks_what_differs_and_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--task", "cartpole", "--method", "ppo", "--model", "8,8", "--defaults"]) == 0
    shown = capsys.readouterr().out
    assert "8,8 (--model" in shown
    assert "\n* environments" in shown and "\n  epochs" in shown
    assert command.main(["--defaults", "--task", "pendulum", "--method", "dqn"]) == 0
    assert "dqn cannot learn it: it takes discrete actions" in capsys.readouterr().out
    assert command.main(["--defaults", "--task", "NoSuch-v0"]) == 2
    assert "NoSuch-v0" in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS_OF_HELP)
def test_every_setting_of_every_method_has_its_sentence(method: str) -> None:
    kind = settings_class(method)
    for field in dataclasses.fields(kind):
        assert about(kind, field.name)["sentence"].endswith("."), field.name


def test_a_task_has_one_name_and_a_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ARTIFACTS", tmp_path / "artifacts")
    few = ["--evaluate-episodes", "1", "--final-episodes", "1", "--quiet", "--steps", "256", "--method", "PPO"]
    small = [*few, "--set", "environments=8", "--set", "rollout_steps=32", "--set", "minibatch=64"]
    assert command.main(["--task", "gym,CartPole-v1", *small]) == 0
    spec = Bundle.load(tmp_path / "artifacts" / "cartpole-ppo").spec
    assert (spec.provenance["task"], spec.provenance["algorithm"]) == ("CartPole-v1", "ppo")
    assert [part.name for part in spec.observation][:2] == ["cart_position", "cart_velocity"]
    assert command.main(["--task", "cartpole", *small, "--resume"]) == 0  # the same run by another name
    assert command.main(["--task", "cartpole", "--model", "8,8", *small]) == 0
    assert (tmp_path / "artifacts" / "cartpole-ppo-8-8").is_dir()


@pytest.mark.slow
def test_evaluate_prints_the_baseline_beside_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from quarl.train import evaluate

    small = ["--task", "navigation", "--quiet", "--set", "environments=16", "--set", "rollout_steps=16"]
    assert train(tmp_path / "I", *small, "--set", "minibatch=128", "--steps", "256") == 0
    options = ["--input-path", str(tmp_path / "I"), "--episodes", "20", "--preset", "shipped", "--seed", "5"]
    assert evaluate.main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["policy"]: row for row in report["results"]}
    assert rows.keys() == {"I", "blind"}
    low, high = rows["blind"]["interval"]
    assert 0.0 <= low < rows["blind"]["success"] < high <= 1.0
    assert evaluate.main(options) == 0
    assert "blind" in capsys.readouterr().out
    assert evaluate.main(["--input-path", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert evaluate.main([*options, "--task", "CartPole-v1"]) == 1
    assert "another observation" in capsys.readouterr().err


def test_the_delay_ends_and_the_rest_is_quantized(tmp_path: Path) -> None:
    """8 iterations of 4 epochs × 4 minibatches; the last 5 begin at or after step 768."""
    assert train(tmp_path / "a", *PPO, "--steps", "2048", *AWARE, "3", "--quant-delay", "768") == 0
    spec = Bundle.load(tmp_path / "a").spec
    assert spec.provenance["updates"] == 8 * 16
    assert spec.provenance["quantized_updates"] == 5 * 16
    assert spec.quantization is not None
    assert spec.quantization.bits == 3
    assert set(spec.quantization.ranges) == {"input", *spec.network.hidden_names}
    assert all(high > 0 for _, high in spec.quantization.ranges.values())
    assert train(tmp_path / "b", *PPO, "--steps", "2048") == 0
    assert Bundle.load(tmp_path / "b").spec.quantization is None


def test_a_trained_policy_becomes_one_of_two_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "teacher", *PPO, "--steps", "256") == 0
    words = [*DISTILL, *AWARE, "2", "--quant-delay", "256", "--teacher", str(tmp_path / "teacher")]
    begun = [*words, "--set", "start_as_teacher=true"]
    # The rate is 0 in effect: what is written is the teacher's weights, with quantizers.
    assert train(tmp_path / "same", *begun, "--steps", "1024", "--set", "learning_rate=1e-30") == 0
    teacher, same = (Bundle.load(tmp_path / name) for name in ("teacher", "same"))
    for name, value in teacher.weights().items():
        np.testing.assert_allclose(same.weights()[name], value, atol=1e-6)
    assert same.spec.quantization is not None and same.spec.quantization.bits == 2
    assert set(same.spec.quantization.ranges) == {"input", *same.spec.network.hidden_names}
    assert same.spec.provenance["quantized_updates"] > 0
    assert all(0.0 < float(row["active"]) < 1.0 for row in curve(tmp_path / "same") if row["active"])
    assert train(tmp_path / "other", *begun, "--steps", "512", "--policy", "II") in (1, 2)
    printed = capsys.readouterr().err
    assert "requires the teacher" in printed and "--policy" in printed
    assert not (tmp_path / "other").exists()


def test_an_output_path_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("/proc/nowhere/a"), *PPO, "--steps", "256") == 1
    assert capsys.readouterr().err.startswith("error: /proc/nowhere")


def test_a_run_that_ends_before_its_quantizers_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two iterations of 256 steps; none begins after step 300. The float policy is kept."""
    assert train(tmp_path / "a", *PPO, "--steps", "512", *AWARE, "3", "--quant-delay", "300") == 3
    assert "never learned with quantizers" in capsys.readouterr().err
    assert Bundle.load(tmp_path / "a").spec.quantization is None


def test_the_recorded_command_names_no_place_of_this_machine() -> None:
    for places in (["--output-path", "/a b", "--address", "h:1"], ["--output-path=/a", "--address=h:1"]):
        words = ["--task", "cartpole", *places, "--set", "name=x y"]
        assert (
            command.format_provenance_command("train", ["train", *words])
            == "quarl train --task cartpole --set 'name=x y'"
        )


PRINTS_FROM_C = """
import ctypes
from quarl.train.quiet import suppress_output
libc = ctypes.CDLL(None)
libc.puts(b"before")
with suppress_output():
    libc.puts(b"argv[0]=")
print("after")
"""


def test_nothing_printed_from_c_appears_when_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS_FROM_C], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "before\nafter\n"
