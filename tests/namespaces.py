"""A namespace of its own for a test's command; where none may be had, the test is left out."""

from __future__ import annotations

from typing import Literal

import pytest

from quarl.device.deploy.local_fleet.namespaces import own_namespace


def own(kind: Literal["mount", "net"]) -> list[str]:
    """The words in front of a command that give it one."""
    words, why = own_namespace(kind)
    if why:
        pytest.skip(f"a {kind} namespace needs root or user namespaces; here it ends with: {why}")
    return words
