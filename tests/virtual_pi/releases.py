"""What serves on the virtual Pi, and the end of its power."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.releases import list_releases
from quarl.device.virtual_pi import running
from quarl.policy.spec import Precision

OLD = (Precision.INT8,)
NEW = (Precision.INT8, Precision.FP32)


def serving(connection: Connection) -> dict[str, Any]:
    """What the current release's agent says after it verified every golden vector in int8."""
    with AgentSession(connection, "I") as agent:
        return agent.request("load", precision=Precision.INT8.value)


def state(connection: Connection) -> tuple[str | None, list[str], str]:
    """(current release, all releases, what lies in incoming/ and unfinished links)."""
    found = list_releases(connection).policies["I"]
    rest = connection.run("cd quarl/policies/I; ls incoming 2>/dev/null; ls -d current.* 2>/dev/null; true").stdout
    return found.current, [release.name for release in found.releases], rest.strip()


def cut_power(name: str) -> None:
    """End a machine as a pulled plug does: at once, with whatever is in flight lost."""
    machine = running.find(name)
    if machine is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.pid, signal.SIGKILL)
        running._wait_for_end(machine, 5.0)
    running._forget(name)
