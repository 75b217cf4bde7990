"""A loop in a process of its own, over the small policy of the agent's tests: in Python, or the program without it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from quarl.device.agent.loop.client import Action, Client, LoopError, request
from quarl.policy.spec import Precision

FALLBACK = 19
PATIENCE_S = 60.0


def until(found: Callable[..., Any], what: str) -> Any:
    """Poll until something is true; its value."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come within {PATIENCE_S:g} s")


class Kind(Enum):
    """Which agent serves."""

    PYTHON = "python"
    STATIC = "static"

    @property
    def exact(self) -> Precision:
        """A precision in which it decides as that one's reference does, to the last observation."""
        return Precision.FP32 if self is Kind.PYTHON else Precision.INT8


def in_python(bundle: Path) -> list[str]:
    """The command of the loop in Python."""
    return [sys.executable, "-m", "quarl.device.agent.loop", f"--bundle={bundle}"]


class LoopProcess:
    """A loop to talk to.

    Args:
        command: its beginning.
        socket: of the loop.
        arguments: the options besides.
        environment: None: this process's.
    """

    def __init__(
        self, command: Sequence[object], socket: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self.socket = socket
        named = () if any(each.startswith("--fallback") for each in arguments) else (f"--fallback={FALLBACK}",)
        self.process = subprocess.Popen(
            [*map(str, command), f"--socket={socket}", *named, *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def connect(self) -> Client:
        """A controller, as soon as the loop listens."""

        def connected() -> Client | None:
            assert self.process.poll() is None, self.process.communicate()
            try:
                return Client.connect(self.socket)
            except LoopError as error:
                if "another controller" in str(error):
                    raise
                return None

        client: Client = until(connected, "the loop's socket")
        return client

    def status(self, **fields: Any) -> dict[str, Any]:
        """What it counted."""
        return request(self.socket, PATIENCE_S, op="loop", **fields)

    def end(self) -> tuple[int, str]:
        """End it by its signal; exit code and log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, log


def next_where(client: Client, holds: Callable[..., bool]) -> Action:  # (action); mypy infers no lambda with a default
    """The first action for which something holds."""

    def found() -> Action | None:
        action = client.receive(PATIENCE_S)
        assert action is not None
        return action if holds(action) else None

    action: Action = until(found, "such an action")
    return action
