"""A policy as a service on a device without systemd: kept running, tried, taken back. Agent and runtime are real."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from quarl.device.agent.loop.client import Client
from quarl.device.agent.loop.frames import Flag
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import HostError, ServiceError
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.state import TRIAL_LINK
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision
from tests.device_agent.loop.loops import next_where
from tests.device_deploy.devices import TestDevice, as_test_device, eventually, good_reply, holders, run_verb, runs

FALLBACK, PATIENCE_S = 19, 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> Iterator[TestDevice]:
    """The local device with int8 of the policy on it."""
    root = tmp_path_factory.mktemp("a-device-whose-home-has-a-path-that-is-longer-than-the-address-of-a-socket-may-be")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUARL_LOCAL_DEVICE", str(root))
        with running_local_device(root) as local:
            device = as_test_device(local)
            with device.connect() as connection:
                deploy(connection, bundle, [Precision.INT8])
            yield device
            run("unserve")


run, answer = partial(run_verb, "tiny"), partial(good_reply, "tiny")


def serve(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    usual = ("--rate=20", "--priority=0", "--trial=0.5", "--most-missed=1e6", "--stale-ms=5000")
    return answer(capsys, "serve", *usual, f"--fallback={FALLBACK}")


def test_a_served_policy_is_restarted_when_killed_hung_or_too_large(
    home: TestDevice, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    done = serve(capsys)
    assert (done["state"], done["manager"], done["restarts"]) == ("active", "supervisor", 0)
    assert done["release"] == done["loop"]["release"] == home.releases("tiny")[-1]
    assert done["loop"]["counts"]["decided_ns"]["count"] > 0  # tried without a controller
    socket = home.home / "quarl" / "run" / "tiny.sock"
    with Client.connect(socket) as client:
        client.send(bundle.golden().observations[0])
        action = next_where(client, lambda each: not each.flags & Flag.FALLBACK)
        assert (action.sequence, action.index in range(25)) == (1, True)

    kept = home.home / "quarl" / "services" / "tiny.state"
    for count, number in ((1, signal.SIGKILL), (2, signal.SIGSTOP)):
        pid = answer(capsys, "serving")["pid"]
        os.kill(pid, number)

        def again(before: int = pid, wanted: int = count) -> bool:
            """At least so often: on a busy machine the loop may fall silent by itself, too."""
            state = json.loads(kept.read_text())
            return state["state"] == "active" and state["pid"] != before and state["restarts"] >= wanted

        assert eventually(again, PATIENCE_S), kept.read_text()
        assert not runs(pid)

    assert run("serve", "--rate", "20", "--fallback", "19", "--priority", "0", "--memory-max", "5") == 1
    assert "resident" in capsys.readouterr().err
    before = answer(capsys, "serving")
    assert (before["state"], before["settings"]["memory_bytes"]) == ("active", 256 << 20)  # what was served goes on
    capsys.readouterr()
    assert run("serving") == 0
    assert "20 decisions a second by clock" in capsys.readouterr().out

    (supervisor,) = holders(kept.with_name("tiny.lock"))
    os.kill(supervisor, signal.SIGKILL)  # the loop, which nobody watches any more, ends with it
    assert eventually(lambda: not runs(before["pid"]), PATIENCE_S)
    assert answer(capsys, "serving")["state"] == "stopped"


def test_a_release_that_fails_in_the_loop_is_switched_back_by_the_device(
    home: TestDevice, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(capsys)
    before = home.releases("tiny")[-1]
    with home.connect() as connection:
        with pytest.raises(ServiceError, match="served with the precision int8"):
            deploy(connection, bundle, [Precision.FP32])
        found = list_releases(connection).policies["tiny"]
        assert (found.current, found.releases[-1].name) == (before, before)  # nothing was sent, nothing is bad
        settings = home.home / "quarl" / "services" / "tiny.settings"
        # So that only the loop knows which artifact that is.
        settings.write_text(settings.read_text().replace("--precision=int8", "--precision\nargument int8"))
        # Its golden vectors are right, but it has not what the loop is to decide with.
        with pytest.raises(ServiceError, match=f"failed its trial in the loop.*{before} serves in the loop again"):
            deploy(connection, bundle, [Precision.FP32])
        found = list_releases(connection).policies["tiny"]
    assert found.current == before
    (failed,) = [each for each in found.releases if each.name != before and each.bad]
    assert "failed its trial" in failed.bad
    status = answer(capsys, "serving")
    assert (status["state"], status["loop"]["release"]) == ("active", before)

    with home.connect() as connection:
        good = deploy(connection, bundle, [Precision.INT8, Precision.FP32])
    assert answer(capsys, "serving")["loop"]["release"] == good.release  # the loop went over with it


def test_a_release_whose_trial_was_cut_off_is_gone_back_from(
    home: TestDevice, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    with home.connect() as connection:
        before = deploy(connection, bundle, [Precision.INT8, Precision.FP32]).release
    serve(capsys)
    settings, folder = home.home / "quarl" / "services" / "tiny.settings", home.policy_folder("tiny")
    settings.write_text(settings.read_text().replace("trial_s 0.5", "trial_s 600.0"))

    def serves() -> str:
        return (folder / "current").readlink().name

    trial, lock = folder / TRIAL_LINK, home.home / "quarl" / "lock"
    cut: list[int] = []

    def kill() -> None:
        if eventually(lambda: trial.is_symlink() and serves() != before, PATIENCE_S):
            cut.extend(holders(lock))
            for pid in cut:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with home.connect() as connection, pytest.raises(HostError):
        deploy(connection, bundle, [Precision.INT8])
    killer.join()
    assert cut and serves() == before and not trial.is_symlink()

    def active() -> bool:
        """It is started again by the host's next look at the device, which may not have ended yet."""
        status = answer(capsys, "serving")
        return status["state"] == "active" and (status["loop"] or {}).get("release") == before

    assert eventually(active, PATIENCE_S)


def test_a_loop_of_a_damaged_release_runs_on_but_does_not_restart(
    home: TestDevice, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = serve(capsys)["pid"]
    code = home.policy_folder("tiny") / "current" / "lib" / "quarl.zip"
    whole = code.read_bytes()
    code.write_bytes(whole + b"#")
    assert answer(capsys, "serving")["pid"] == pid, "what runs was verified"
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: answer(capsys, "serving")["state"] == "failed", PATIENCE_S)
    assert "lib/quarl.zip" in answer(capsys, "serving")["why"] or "its program" in answer(capsys, "serving")["why"]
    assert run("serve", "--rate", "20", "--fallback", "19") == 1
    assert "lib/quarl.zip" in capsys.readouterr().err
    with home.connect() as connection:  # what the message says: deploy it again
        deploy(connection, bundle, [Precision.INT8, Precision.FP32])
    assert answer(capsys, "unserve")["was_served"]
    assert serve(capsys)["state"] == "active"


def test_a_served_policy_is_removed_only_by_force_and_its_service_with_it(
    home: TestDevice, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = serve(capsys)["pid"]
    assert run("remove", "--all") == 1
    assert "is served in a loop" in capsys.readouterr().err
    assert answer(capsys, "serving")["pid"] == pid
    answer(capsys, "remove", "--all", "--force")
    assert not runs(pid)
    assert not list((home.home / "quarl" / "services").glob("tiny.*"))
    with home.connect() as connection:
        deploy(connection, bundle, [Precision.INT8])  # for the tests behind


def test_what_cannot_be_served_leaves_nothing(home: TestDevice, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "unserve")
    services = home.home / "quarl" / "services"
    for arguments, why in (
        (["--rate", "20"], "declares no fallback action"),
        (["--rate", "20", "--fallback", "99"], "got (99.0,)"),
        (["--bits", "4"], "int4 in litert"),
        (["--enable", "--fallback", "19"], "home folder"),
        (["--deadline-ms", "0.01", "--fallback", "19", "--trial", "0.5"], "deadlines in a million"),
    ):
        assert run("serve", "--priority", "0", *arguments) == 1
        assert why in capsys.readouterr().err
        assert not list(services.glob("tiny.*"))
    assert run("serving") == 1
    assert "is not served" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("serve", "--rate", "0")
    assert "allowed are 0.01 … 2000" in capsys.readouterr().err
    assert answer(capsys, "unserve")["was_served"] is False
