"""Lines between the helper and its host: requests in, replies and progress out, and whether the host is still there.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

_received = bytearray()


def say(data: Any) -> None:
    """Write one line to the host."""
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def report(done: int, total: int) -> None:
    """Tell the host how far a long step is."""
    say({"progress": {"done": done, "total": total}})


def host_is_gone() -> bool:
    """Whether the host has hung up; what it sent meanwhile is kept."""
    while select.select([0], [], [], 0)[0]:
        block = os.read(0, 65536)
        if not block:
            return True
        _received.extend(block)
    return False


def requests(silence_s: float) -> Iterator[dict[str, Any]]:
    """The host's requests until it hangs up or says nothing, not even a heartbeat, for ``silence_s`` seconds."""
    while True:
        while b"\n" in _received:
            line, _, rest = bytes(_received).partition(b"\n")
            _received[:] = rest
            if line.strip():
                yield json.loads(line.decode())
        if not select.select([0], [], [], silence_s)[0]:
            return
        block = os.read(0, 65536)
        if not block:
            return
        _received.extend(block)
