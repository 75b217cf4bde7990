"""Lines of a device that are no replies: refused by name, never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.helper_session import helper_error
from quarl.device.deploy.remote_process import NoReplyError, RemoteProcess


class Said(RemoteProcess):
    """A process that says one line."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def send(self, data: bytes, timeout: float = 60.0) -> None:
        pass

    def read_line(self, timeout: float) -> bytes:
        return self._line


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[1]",
        b"null",
        b'{"progress":1}',
        b'{"progress":{}}',
        b'{"progress":{"done":"x","total":1}}',
        b'{"progress":{"done":1e999,"total":1}}',
        b'{"progress":{"done":null,"total":1}}',
        b'{"a":' + b"[" * 600 + b'"\\u001b"' + b"]" * 600 + b"}",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_reply(line: bytes) -> None:
    with pytest.raises(NoReplyError):
        Said(line).ask({"op": "show"}, 1.0, lambda done, total: None)


def test_progress_and_then_a_reply() -> None:
    assert Said(b'{"ok":true}').ask({"op": "show"}, 1.0) == {"ok": True}


@pytest.mark.parametrize(
    "error",
    [
        [], "x", None, 3, {}, {"code": "locked", "holder": [1]}, {"code": "locked"}, {"code": ["locked"]},
        {"code": "no-space", "free_bytes": "x"}, {"code": "no-space"}, {"message": {"a": 1}},
    ],
)  # fmt: skip
def test_an_error_of_any_form_is_an_error_with_a_sentence(error: Any) -> None:
    message = helper_error("pi", json.loads(json.dumps(error)))
    assert isinstance(message, HostError) and "pi" in message.message
