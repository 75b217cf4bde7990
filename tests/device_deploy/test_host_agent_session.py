"""Talking to an agent, and what happens when it does not behave. With a stand-in agent, on both servers."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import AgentError, ConnectionLostError, ReleaseError, VerificationError
from tests.device_deploy.devices import Line, Site, TestDevice, eventually, runs


@pytest.fixture
def policy(site: Site) -> str:
    """A deployed stand-in."""
    site.install("served", refuse="latency")
    return site.name


def test_requests_and_replies(connection: Connection, policy: str) -> None:
    with AgentSession(connection, policy) as agent:
        hello = agent.request("hello")
        assert hello["text"] == "served"
        assert hello["device"] == {"model": "stand-in", "transport": "loopback"}
        assert hello["pid"] == agent.pid, "the process we would kill is the agent itself"
        seen: list[tuple[int, int]] = []
        agent.request("count", progress=lambda done, total: seen.append((done, total)))
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert runs(agent.pid)
    assert not runs(agent.pid), "no process is left"


@pytest.mark.parametrize("tells_start_times", [True, False])
def test_an_agent_that_ignores_the_end_is_killed(
    connection: Connection, policy: str, monkeypatch: pytest.MonkeyPatch, tells_start_times: bool
) -> None:
    """Without /proc, or where it is closed, the agent serves all the same, and is ended when it has to be."""
    if not tells_start_times:
        monkeypatch.setattr("quarl.device.deploy.agent_session._START_TIME", "true")
    monkeypatch.setattr("quarl.device.deploy.agent_session.STOP_TIMEOUT_S", 0.3)
    with AgentSession(connection, policy) as agent:
        assert agent.request("hello")["pid"] == agent.pid
        with pytest.raises(AgentError, match="did not answer"):
            agent.request("ignore-the-end", timeout=0.2)
        assert eventually(lambda: not runs(agent.pid))


@pytest.mark.parametrize("numbers", ["", "many", "12 a-while-ago", "12 34 56"])
def test_a_starter_that_names_no_process_is_ended(
    connection: Connection, policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, numbers: str
) -> None:
    file = tmp_path / "pid"
    command = f"echo $$ >{file}; echo 'quarl-agent-pid {numbers}'; exec cat"
    monkeypatch.setattr("quarl.device.deploy.agent_session.agent_command", lambda *words: command)
    session = AgentSession(connection, policy)
    with pytest.raises(AgentError, match="report its process") as caught, session:
        pass
    assert caught.value.agent_code == "protocol"
    assert session._process is None
    assert eventually(lambda: not runs(int(file.read_text()))), "its input has ended with the channel"


@pytest.mark.parametrize(("request_", "message", "code"), [
    ({"op": "latency"}, "`latency`: vector 3", "golden"),
    ({"op": "nonsense"}, "Segmentation fault", "protocol"),
    ({"op": "die"}, "(?s)ended with status 7.*giving up now", "died"),
    ({"op": "sleep", "seconds": 30, "timeout": 0.3}, r"did not answer `sleep` within 0\.3 s", "timeout"),
])  # fmt: skip
def test_failed_request(connection: Connection, policy: str, request_: dict[str, Any], message: str, code: str) -> None:
    with AgentSession(connection, policy) as agent:
        with pytest.raises(AgentError, match=message) as caught:
            agent.request(**request_)
        assert caught.value.agent_code == code
        assert caught.value.exit_status == (7 if code == "died" else None)
        if code == "golden":
            assert caught.value.next_step == "Convert again."
            assert agent.request("hello")["ok"], "an error reply ends nothing"
        if code == "timeout":
            assert eventually(lambda: not runs(agent.pid))


def test_an_agent_killed_while_serving(connection: Connection, policy: str) -> None:
    with AgentSession(connection, policy) as agent:
        agent.request("hello")
        os.kill(agent.pid, signal.SIGKILL)
        with pytest.raises(AgentError, match="killed by a signal") as caught:
            agent.request("sleep", seconds=30)
        assert "stand-in agent is up" in caught.value.message
        assert "dmesg" in caught.value.next_step
    with AgentSession(connection, policy) as agent:
        assert agent.request("hello")["text"] == "served", "the release serves again"


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_connection_breaks_and_the_agent_goes_with_it(device: TestDevice, policy: str, is_busy: bool) -> None:
    """One that is busy neither reads its input nor writes: only the kernel, or the server, can end it."""
    with Line(device.host, device.port) as line, device.connect(line.port) as connection:
        agent = AgentSession(connection, policy).__enter__()
        agent.request("hello")
        assert runs(agent.pid) and agent._process is not None
        if is_busy:
            agent._process.send(b'{"op": "ignore-the-end"}\n')
            time.sleep(0.3)
        line.cut()
        if not is_busy:
            with pytest.raises(ConnectionLostError):
                agent.request("hello")
            agent.close()
        assert eventually(lambda: not runs(agent.pid))
        agent.close()


def test_a_release_by_name_and_what_is_not_there(site: Site) -> None:
    with pytest.raises(ReleaseError, match="no release of policy nowhere") as caught:
        AgentSession(site.connection, "nowhere").__enter__()
    assert "deploy --target" in caught.value.next_step
    first, _ = site.bring("first", "second")
    with AgentSession(site.connection, site.name, release=first) as agent:
        assert agent.request("hello")["text"] == "first"
    with pytest.raises(ReleaseError, match="no release 0042-x"):
        AgentSession(site.connection, site.name, release="0042-x").__enter__()


@pytest.mark.parametrize("policy_name", ["../../etc", "", "a b", "-x", "a;reboot", "x" * 65])
def test_a_name_that_is_no_folder_is_refused(connection: Connection, policy_name: str) -> None:
    with pytest.raises(VerificationError, match="policy's name must"):
        AgentSession(connection, policy_name)


def test_nan_is_not_sent(connection: Connection, policy: str) -> None:
    with AgentSession(connection, policy) as agent:
        with pytest.raises(ValueError, match="Out of range float"):
            agent.request("act", observation=[float("nan")])
        assert agent.request("hello")["ok"]
