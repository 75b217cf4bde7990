"""The agent on the device, as a context manager: requests in, replies out, and no process left behind.

with AgentSession(connection, "III") as agent:
    agent.request("load", precision="int8")
    print(agent.act(observation), agent.request("latency", runs=1000)["percentiles"])
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import AgentError, HostError, ReleaseError, SessionLimitError
from quarl.device.deploy.records import STARTER
from quarl.device.deploy.remote_process import EndOfOutputError, LineTimeoutError, NoReplyError, RemoteProcess
from quarl.device.deploy.shell import GREETING, VERIFIER, refusal
from quarl.device.deploy.target import check_policy_name

START_TIMEOUT_S = 60.0  # a Pi needs seconds to import numpy from an SD card
REQUEST_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 5.0
_PID = b"quarl-agent-pid "
# When a process started, in ticks after boot: field 22 of its stat, counted after the name, which may hold spaces.
# Process ids are used again; an id together with its start time is not.
_START_TIME = 'sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d " " -f 20'
Progress = Callable[[int, int], None]


def agent_command(folder: str, policy: str, arguments: Sequence[str] = ()) -> str:
    """Return the shell command that starts what will verify a release's folder and become its agent.

    It first says its process id; ``exec`` all the way makes that the agent's own. Then it reads verify.sh.
    Where setpriv exists (util-linux), the kernel kills the agent when the SSH session's process dies, so that a lost
    connection leaves no agent computing.
    """
    words = " ".join(map(shlex.quote, arguments))
    script = (
        f'echo; cd "$HOME" && cd -P {shlex.quote(folder)} && [ -f ./{STARTER} ] || {{ echo missing; exit 66; }}; '
        f'echo "{_PID.decode()}$$ $({_START_TIME.format(pid="$$")}) $(pwd -P)"; tie=""; '
        'if setpriv --pdeathsig KILL true 2>/dev/null; then tie="setpriv --pdeathsig KILL"; fi; '
        f'exec $tie sh -s -- start {shlex.quote(policy)} "$(pwd -P)" {words}'
    )
    return f"exec sh -c {shlex.quote(script)}"


class AgentSession:
    """A running agent. Enter it to start, leave it to end."""

    def __init__(
        self,
        connection: Connection,
        policy: str,
        *,
        release: str | None = None,
        folder: str | None = None,
        threads: int | None = None,
        request_timeout: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Prepare a session.

        Args:
            connection: to the device.
            policy: name of the release's policy.
            release: which; default the one that ``current`` points to when the session starts.
            folder: instead of a release, a folder relative to the device's home (an upload being checked).
            threads: of the inference runtime; default the agent's own.
            request_timeout: seconds without a reply or a progress line after which a request is given up.
        """
        self._connection = connection
        self._policy = check_policy_name(policy)
        where = f"releases/{release}" if release else "current"
        self._folder = folder or f"quarl/policies/{policy}/{where}"
        self._release = release
        self._arguments = [f"--threads={threads}"] if threads is not None else []
        self._timeout = request_timeout
        self._process: RemoteProcess | None = None
        self._pid = 0
        self._started = ""
        self._next_id = 0

    def __enter__(self) -> AgentSession:
        process = self._connection.start(agent_command(self._folder, self._policy, self._arguments))
        self._process = process
        try:
            while True:
                line = process.read_line(START_TIMEOUT_S)
                if line == b"missing":
                    raise ReleaseError(
                        f"{self._connection.name} has no {'release ' + self._release if self._release else 'release'} "
                        f"of policy {self._policy}.",
                        f"quarl deploy --target {self._connection.target} --policy {self._policy}",
                    )
                if line.startswith(_PID):
                    self._remember(line[len(_PID) :].decode(errors="replace"))
                    break
            process.send(VERIFIER.read_bytes())
            self._check_greeting(process.read_line(START_TIMEOUT_S))
        except (EndOfOutputError, LineTimeoutError):
            error = self._build_exit_error("starting")
            self.close()
            raise error from None
        except BaseException:  # an interruption too: nobody will leave the block that was not entered
            process.close()
            self._process = None
            raise
        return self

    def _remember(self, text: str) -> None:
        """Keep the agent's process id and its start time; a device without /proc tells none."""
        pid, _, rest = text.strip().partition(" ")
        started, _, folder = rest.partition(" ")
        if not pid.isdigit() or (started and not started.isdigit()) or not folder.startswith("/"):
            raise AgentError(
                f"The starter on {self._connection.name} must report its process, got {text!r}.",
                "The device's /bin/sh must be a POSIX shell and its /proc that of Linux.",
                agent_code="protocol",
            )
        self._pid, self._started = int(pid), started

    def _check_greeting(self, line: bytes) -> None:
        """See that the release was verified and its agent is started.

        Raises:
            TrustError, VerificationError: it was refused.
        """
        greeting = line.decode(errors="replace")
        if not greeting.startswith(GREETING):
            raise AgentError(
                f"The starter on {self._connection.name} must begin with a greeting, got {line[:200]!r}.",
                "Check that `sh -c true` prints nothing on the device: a login script may write to standard output.",
                agent_code="protocol",
            )
        if greeting != f"{GREETING}ok":
            raise refusal(self._connection.name, greeting.removeprefix(GREETING))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The agent's process id on the device."""
        return self._pid

    def stderr_lines(self, last: int = 20) -> list[str]:
        """Return the last lines of the agent's log."""
        return self._process.stderr_lines(last) if self._process else []

    def request(
        self, op: str, *, timeout: float | None = None, progress: Progress | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Return one request, one reply.

        Args:
            op: hello, load, latency, memory, episodes, act.
            timeout: seconds without a reply or a progress line; default the session's.
            progress: called with (done, total) for each progress line.
            fields: the operation's own.

        Returns:
            The reply. ``hello`` gets ``device.transport`` added: "loopback" or "ssh".

        Raises:
            AgentError: an error reply (its code in ``agent_code``), no reply in time, or the agent died.
            ConnectionLostError: the connection ended.
        """
        if self._process is None:
            raise AgentError("The agent is not running.", "Use the session in a `with` block.", agent_code="closed")
        self._next_id += 1
        limit = self._timeout if timeout is None else timeout
        try:
            reply = self._process.ask({"op": op, **fields, "id": self._next_id}, limit, progress)
        except LineTimeoutError:
            self._kill()
            raise AgentError(
                f"The agent on {self._connection.name} did not answer `{op}` within {limit:g} s and was stopped.",
                "Check the device's load (`uptime`), or allow more time.",
                agent_code="timeout",
            ) from None
        except EndOfOutputError:
            raise self._build_exit_error(f"answering `{op}`") from None
        except NoReplyError as line:
            raise AgentError(
                f"The agent on {self._connection.name} wrote a line that is not a reply: {line.message}.",
                "Deploy again (quarl deploy): the agent on the device is of another version.",
                agent_code="protocol",
            ) from None
        if not reply.get("ok"):
            failure = reply.get("error")
            error = failure if isinstance(failure, dict) else {}
            raise AgentError(
                f"The agent on {self._connection.name} refused `{op}`: {error.get('message', 'no reason given')}",
                str(error.get("next", "")),
                agent_code=str(error.get("code", "")),
            )
        if op == "hello" and isinstance(reply.get("device"), dict):
            reply["device"]["transport"] = self._connection.transport_name
        return reply

    def act(self, observation: ArrayLike) -> Any:
        """Return what the loaded policy does on one raw observation: the action's number, or a list of floats.

        Raises:
            AgentError: nothing is loaded, or the observation is not one of the policy's.
        """
        return self.request("act", observation=np.ravel(observation).tolist(), outputs=False)["action"]

    def _build_exit_error(self, doing: str) -> HostError:
        assert self._process is not None
        status = self._process.wait(STOP_TIMEOUT_S)
        if not self._process.connection_alive:
            return self._connection.build_lost_error(f"the agent was {doing}")
        tail = "\n    ".join(self._process.stderr_lines(12)) or "(it wrote no error)"
        if status is None:
            how = "closed its output"
        elif status == -1:
            how = "was killed by a signal"
        else:
            how = f"ended with status {status}"
        return AgentError(
            f"The agent on {self._connection.name} {how} while {doing}. Its last lines:\n    {tail}",
            "Start it again; if it was killed, `dmesg | tail` on the device shows whether memory ran out.",
            agent_code="died",
            exit_status=status,
        )

    def close(self) -> None:
        """End the agent: bye, then the end of its input, then a signal. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(HostError):
            process.send(b'{"op":"bye"}\n', STOP_TIMEOUT_S)
        process.close_input()
        if process.wait(STOP_TIMEOUT_S) is None:
            self._kill()
            process.wait(STOP_TIMEOUT_S)
        process.close()

    def _kill(self) -> None:
        """End the agent by force, through another channel."""
        if self._pid and self._connection.alive:
            started = _START_TIME.format(pid=self._pid)
            script = f'[ "$({started})" = "{self._started}" ] && kill -KILL {self._pid}'
            command = f"sh -c {shlex.quote(script)}"
            with contextlib.suppress(HostError):
                try:
                    self._connection.run(command, check=False, timeout=STOP_TIMEOUT_S)
                except SessionLimitError:  # beside the agent's and the lock's
                    with self._connection.again() as other:
                        other.run(command, check=False, timeout=STOP_TIMEOUT_S)
