"""Loops that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.device_agent.loop.loops import LoopProcess


@pytest.fixture
def start_loop(tmp_path: Path) -> Iterator[Callable[..., LoopProcess]]:
    """Starts loops that are ended after the test."""
    with ExitStack() as stack:
        count = 0

        def start(bundle: Path, *arguments: str, environment: dict[str, str] | None = None) -> LoopProcess:
            nonlocal count
            count += 1
            made = LoopProcess(bundle, tmp_path / f"loop{count}.sock", *arguments, environment=environment)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield start
