"""ActorQ as a user types it, on a real Ray: processes are killed, runs are interrupted, machines are joined.

Every command runs in a session of its own, by which what it leaves behind is found: Ray runs beside it do not count.
"""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarl.policy.bundle import Bundle
from quarl.train import evaluate
from quarl.train.actorq import __main__ as command
from quarl.train.runs.logs import read_rows
from quarl.train.runs.request import TRAINING_FOLDER, UNFINISHED
from tests.refusals import refused
from tests.train.actorq.live_runs import LIMIT_S, Command, descendants, processes, title, waited

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; type make actorq"
)

no_space = pytest.mark.skipif(" " in sys.executable, reason="Ray reaches no cluster from a path with a space")
FEW = ["--evaluate-every", "500", "--evaluate-episodes", "2", "--final-episodes", "5"]
CARTPOLE = ["--task", "cartpole", "--method", "dqn", "--n-actors", "2", "--set", "learning_starts=200", *FEW]
STEADY = ["--step-delays-s", "0.004", "0.004"]  # at most 500 steps/s, so that nothing ends before it is interrupted


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    commands: list[Command] = []

    def start(*options: str) -> Command:
        commands.append(Command(tmp_path, *options))
        return commands[-1]

    yield start
    for each in commands:
        each.end()


def assert_only_ours(printed: str) -> None:
    """Whatever Ray has to say stays in its own log files."""
    beginnings = ("2 actors in ", "step ", "final: ", "64,64 dqn: ", "/", "Resumed at ", "Stopping: ", "Going on ")
    strange = [line for line in printed.splitlines() if not line.startswith((*beginnings, "interrupted;"))]
    assert strange == []


def test_a_run_gives_an_ordinary_bundle(started: Callable[..., Command], capfd: pytest.CaptureFixture[str]) -> None:
    run = started(*CARTPOLE, "--steps", "2000", "--seed", "3")
    assert run.ended() == 0, run.printed
    assert_only_ours(run.printed)
    bundle = Bundle.load(run.output)
    origin, reported = bundle.spec.provenance, run.reported
    # As in quarl train: the policy is called like the folder that was typed.
    named = [bundle.spec.name, *(origin[each] for each in ("task", "algorithm", "seed"))]
    assert named == ["bundle", "CartPole-v1", "dqn", 3]
    assert bundle.spec.network.hidden == (64, 64)
    assert 2000 <= origin["steps"] < 2000 + 2 * 16 + 6  # both actors may send once more
    assert reported["deaths"] == [] and reported["staleness"]["refused"] == 0
    assert reported["parameters"]["versions_put"] >= 2 and reported["parameters"]["bytes_served"] > 0
    # int8: 4·64 + 64·64 + 64·2 = 4,480 weights in a byte each and the model around them; fp32 would be 17,920
    assert 4480 < reported["parameters"]["bytes_each"] < 12_000
    assert set(reported["breakdown"]["microseconds_per_step"]) >= {
        "step", "inference", "pull", "deserialize", "load", "insert",
    }  # fmt: skip
    rows = read_rows((run.output / "learning_curve.csv").read_text())
    assert [float(row["actor_staleness"]) >= 0 for row in rows if row["actor_staleness"]]  # of rows with new steps
    assert float(rows[-1]["updates"]) > 0

    convert = subprocess.run(
        [sys.executable, "-m", "quarl.convert", "--policy", str(run.output), "--bits", "8", "--accept"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert convert.returncode == 0, convert.stderr
    assert {"int8.tflite", "int8.onnx"} <= {path.name for path in run.output.iterdir()}
    assert evaluate.main(["--input-path", str(run.output), "--episodes", "2"]) == 0
    assert "return" in capfd.readouterr().out


def test_actors_act_through_the_native_engine(started: Callable[..., Command]) -> None:
    run = started(*CARTPOLE, "--steps", "1500", "--runtime", "native")
    assert run.ended() == 0, run.printed
    assert_only_ours(run.printed)
    reported = run.reported
    assert reported["deaths"] == [] and reported["settings"]["runtime"] == "native"
    assert reported["parameters"]["bytes_served"] > 0
    assert reported["breakdown"]["renewals"] >= 2
    # 4·64 + 64·64 weights in a byte each, and the head's 64·2 in a chunk of 16 bytes a row
    assert 4 * 64 + 64 * 64 + 16 * 64 < reported["parameters"]["bytes_each"] < 12_000


@pytest.mark.slow
def test_processes_that_die_are_replaced_and_the_losses_told(started: Callable[..., Command]) -> None:
    run = started(*CARTPOLE, *STEADY, "--steps", "9000")
    run.until_step(1000)  # a second or more of acting, with checkpoints
    run.kill("ActorProcess")
    run.until("died and was replaced")
    waited(lambda: len(run.named("ActorProcess")) == 2, "the actor's replacement")
    run.until_step(2500)
    run.kill("LearnerProcess")
    run.until("the learner died after ")
    run.until_step(4500)
    run.kill("ReplayProcess")
    run.until("died and was restarted")
    run.until_step(6500)
    run.kill("ParameterProcess")
    run.until("the parameter server died and was restarted")
    assert run.ended() == 0, run.printed
    assert_only_ours(run.printed)
    deaths = run.reported["deaths"]
    assert deaths[0]["who"].startswith("actor ")
    assert [each["who"] for each in deaths[1:]] == ["the learner", "replay 0", "the parameter server"]
    learner, replay = deaths[1:3]
    assert 0 < learner["resumed_at"] <= learner["updates"]
    assert f"after {learner['updates']:,} updates" in run.printed and f"{learner['resumed_at']:,}. " in run.printed
    assert learner["replay_rows"] > 1000 and f"keeps its {learner['replay_rows']:,} transitions" in run.printed
    assert replay["replay_rows"] > learner["replay_rows"]
    assert f"its {replay['replay_rows']:,} transitions are lost" in run.printed
    origin = Bundle.load(run.output).spec.provenance
    assert origin["updates"] > learner["updates"]
    assert origin["steps"] >= 9000  # a replay that started over goes on counting
    assert sorted(each["life"] for each in run.reported["actors"])[-1] == 1  # the replacement acted
    # Actors renew from a server that started over, whatever they had from the one before.
    assert run.reported["parameters"]["bytes_served"] > 0
    assert run.reported["mismatch"]["staleness_updates"] < 2000


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(started: Callable[..., Command]) -> None:
    options = [*CARTPOLE, *STEADY, "--steps", "6000"]
    run = started(*options)
    run.until_step(1500)
    run.interrupt()
    assert run.ended() == 130, run.printed
    assert_only_ours(run.printed)
    assert not run.output.exists()
    before = Bundle.load(run.output.parent / TRAINING_FOLDER / run.output.name / UNFINISHED).spec.provenance
    assert 1500 <= before["steps"] < 6000

    run = started(*options)
    run.until("greedy")
    assert f"Going on with the run that was interrupted at step {before['steps']:,}" in run.printed
    assert f"Resumed at step {before['steps']:,}. The replay's" in run.printed and "lost" in run.printed
    run.interrupt()
    run.until("Stopping: ")
    run.interrupt()
    assert run.ended() == 130, run.printed

    run = started(*options, "--resume")
    assert run.ended() == 0, run.printed
    assert_only_ours(run.printed)
    after = Bundle.load(run.output).spec.provenance
    assert after["steps"] >= 6000 and after["updates"] > before["updates"]
    # What the earlier parts did is told with the rest.
    reported, parts = run.reported, before["actorq"]
    # (The second part was ended at once: it counts as far as its last checkpoint goes, if it wrote one.)
    assert {0, 2000} <= {each["life"] for each in reported["actors"]} <= {0, 1000, 2000}
    acted = sum(each["steps"] for each in reported["actors"])
    assert abs(acted - after["steps"]) < 400  # in each part, what the two actors had not sent
    for name, seconds in parts["cpu_s"].items():
        assert reported["cpu_s"][name] > seconds
    for name in ("versions_put", "bytes_served"):
        assert reported["parameters"][name] > parts["parameters"][name]


@pytest.mark.slow
def test_a_slow_actor_holds_nobody_back_and_is_never_too_far_behind(started: Callable[..., Command]) -> None:
    longest = 300
    run = started(
        *CARTPOLE, "--steps", "3000", "--step-delays-s", "0.05", "0", "--max-staleness", str(longest),
        "--publish-every", "8", "--set", "updates=8", "--actor-update-period", "500",
    )  # fmt: skip
    assert run.ended() == 0, run.printed
    reported = run.reported
    steps = {each["actor"]: each["steps"] for each in reported["actors"]}
    assert steps[1] > 5 * steps[0]
    assert reported["staleness"]["largest_updates"] <= longest
    # Versions come every 8 updates, looks every 500 steps: most versions are never asked for, so never quantized.
    parameters = reported["parameters"]
    assert parameters["versions_put"] > 20
    assert parameters["versions_skipped"] > 0
    # All others were built, but for one that was being built when the run ended, and the newest, not yet asked for.
    left = parameters["versions_put"] - parameters["versions_built"] - parameters["versions_skipped"]
    assert 0 <= left <= 2


@pytest.mark.slow
def test_d4pg_with_priorities_two_shards_and_fewer_bits_on_the_way(started: Callable[..., Command]) -> None:
    pytest.importorskip("dm_control", reason="dm_control is not installed; type make suites")
    run = started(
        "--task", "dm_control,cartpole_balance", "--method", "d4pg", "--model", "32,32", "--n-actors", "2",
        "--replay-shards", "2", "--priority-exponent", "0.6", "--quantize", "16", "--quantize-communication", "8",
        "--batch-size", "32", "--samples-per-insert", "4", "--steps", "1500", "--set", "learning_starts=300",
        "--evaluate-every", "1500", "--evaluate-episodes", "2", "--final-episodes", "2",
    )  # fmt: skip
    assert run.ended() == 0, run.printed
    reported = run.reported
    assert "2 actors in fp16 and a learner start" in run.printed
    assert Bundle.load(run.output).spec.provenance["updates"] > 0
    assert reported["parameters"]["bytes_served"] > 0
    # 5·32 + 32·32 + 32·1 weights in a byte each, and their scales and biases: less than half of fp16's
    assert reported["parameters"]["bytes_each"] < 2 * (5 * 32 + 32 * 32 + 32)


@pytest.mark.slow
@no_space
def test_actors_on_two_nodes(started: Callable[..., Command]) -> None:
    from ray.cluster_utils import Cluster

    nodes = {"num_cpus": 2, "object_store_memory": 1 << 27, "include_dashboard": False}
    there = Cluster(initialize_head=True, head_node_args=nodes)
    try:
        there.add_node(num_cpus=2, object_store_memory=1 << 27)
        raylets = [each.all_processes["raylet"][0].process.pid for each in there.list_all_nodes()]
        run = started(*CARTPOLE, *STEADY, "--steps", "3000", "--address", there.address)

        def actors(raylet: int) -> list[int]:
            return [each for each in descendants(raylet) if title(each).startswith("ray::ActorProcess")]

        run.until("greedy")
        assert [len(actors(raylet)) for raylet in raylets] == [1, 1]
        assert run.ended() == 0, run.printed
        assert_only_ours(run.printed)
        # The cluster is not the run's own: it stays, and what the run started on it is gone.
        waited(lambda: not any(actors(raylet) for raylet in raylets), "actors on the cluster")
        small = started(*CARTPOLE, "--steps", "3000", "--n-actors", "9", "--address", there.address)
        assert small.ended() == 2
        assert "4 free CPUs" in small.printed and "--n-actors 3" in small.printed
    finally:
        there.shutdown()


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a cluster that ``ray start`` made, in a home with a token."""
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("7" * 64)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["start", "--head", "--block", f"--port={port}", "--include-dashboard=false", "--num-cpus=4"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    cluster = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", *words], **quiet)  # type: ignore[call-overload]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        there = descendants(cluster.pid)
        cluster.terminate()
        cluster.wait(LIMIT_S)
        for each in there & processes().keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


@pytest.mark.slow
@no_space
def test_a_cluster_that_wants_a_token(
    head: str, started: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listening() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", int(head.rpartition(":")[2]))) == 0

    waited(listening, "ray start")
    options = [*CARTPOLE, "--steps", "600", "--address", head]
    run = started(*options)
    assert run.ended() == 0, run.printed
    assert "2 actors in int8 and a learner start" in run.printed
    monkeypatch.setenv("HOME", str(tmp_path))  # without a token
    refused = started(*options)
    assert refused.ended() == 2
    assert "requires a token" in refused.printed and head in refused.printed
    assert len(refused.printed.splitlines()) == 1


WRONG = {
    "nobody at the address": (["--address", "127.0.0.1:1"], "no Ray cluster answers at --address 127.0.0.1:1"),
    "not an address": (["--address", "127.0.0.1"], "HOST:PORT or auto"),
    "images": (["--task", "breakout", "--method", "dqn"], "Train it with quarl train"),
    "training in 8 bits": (["--precision", "8"], "--precision"),
    "too fresh": (["--max-staleness", "3", "--set", "updates=8"], "Type --max-staleness 16 or more"),
    "too many shards": (["--replay-shards", "3"], "--replay-shards"),
    "never learns": (["--steps", "200"], "before learning begins"),
    "not distributed": (["--method", "a2c"], "Type --method d4pg or --method dqn"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, expected = WRONG[name]
    if name == "images":
        pytest.importorskip("ale_py", reason="atari is not installed; type make suites")
    try:
        assert command.main([*CARTPOLE, *options, "--output-path", str(tmp_path / "bundle")]) == 2
    except SystemExit as error:
        assert error.code == 2
    printed = capfd.readouterr()
    lines = [line for line in (printed.out + printed.err).splitlines() if line.strip()]
    assert len(lines) <= 2 and lines[0].startswith("error: ") and expected in lines[0], lines
    assert list(tmp_path.iterdir()) == []


def test_a_port_of_something_else_is_refused_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from quarl.train.actorq import address as addresses

    monkeypatch.setattr(addresses, "ANSWER_WITHIN_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert command.main([*CARTPOLE, "--address", address, "--output-path", str(tmp_path / "bundle")]) == 2
    assert f"no Ray cluster answers at --address {address} (something listens" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from quarl.train.actorq import address

    monkeypatch.setattr(sys, "executable", "/home/ann/my project/.venv/bin/python")
    address.refuse_unreachable(None)
    with refused(address.ClusterError, "path_with_space"):
        address.refuse_unreachable("auto")
