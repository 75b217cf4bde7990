"""Lines of a device that are no replies: refused by name, never a traceback."""

import json

import pytest

from quarl.device.deploy.errors import (
    DeviceFullError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    UnsupportedDeviceError,
    VerificationError,
)
from quarl.device.deploy.records import Mark
from quarl.device.deploy.remote_process import NoReplyError, RemoteProcess
from quarl.device.deploy.shell import refusal
from quarl.device.deploy.state import parse_snapshot


class Said(RemoteProcess):
    """A process that says one line."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def send(self, data: bytes, timeout: float = 60.0) -> None:
        pass

    def read_line(self, timeout: float) -> bytes:
        return self._line


@pytest.mark.parametrize("line", [
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
])  # fmt: skip
def test_a_line_that_is_no_reply(line: bytes) -> None:
    with pytest.raises(NoReplyError):
        Said(line).ask({"op": "show"}, 1.0, lambda done, total: None)


def test_progress_and_then_a_reply() -> None:
    assert Said(b'{"ok":true}').ask({"op": "show"}, 1.0) == {"ok": True}


@pytest.mark.parametrize(("verdict", "kind"), [
    ("trust release 1 of P: it is not signed", TrustError),
    ("damaged release 1 of P: it has no record", VerificationError),
    ("old release 1 of P: deploy it again", ReleaseError),
    ("no-space release 1 of P: no room", DeviceFullError),
    ("unsupported release 1 of P: no ssh-keygen", UnsupportedDeviceError),
    *((verdict, RemoteCommandError) for verdict in ("hindered it is", "hindered", "what", "", "\x1b[2J x")),
])  # fmt: skip
def test_a_verdict_of_any_form_is_an_error_with_a_sentence(verdict: str, kind: type[HostError]) -> None:
    error = refusal("pi", verdict)
    assert type(error) is kind and "pi" in error.message and "\x1b" not in str(error) and error.next_step


@pytest.mark.parametrize("text", [
    "", "nonsense", "#", "=", "=file", "=file\tpolicies/P", "=folder\tpolicies/P\n=link\tpolicies/P/current\n ../..",
    " x",
])  # fmt: skip
def test_a_snapshot_of_any_form_is_a_state(text: str) -> None:
    state = parse_snapshot(text)
    assert (
        state.environments == [] and state.free_bytes == 0 and all(not each.current for each in state.policies.values())
    )


def test_a_snapshot() -> None:
    """A verdict, which stands behind a release's files, takes nothing of them."""
    mark = json.dumps({"kind": "left", "reason": "why"})
    text = "\n".join(
        [
            *("#root /home/pi/quarl", "#free_kib 12", "#free_inodes -", "=folder\tpolicies/P", "=folder\tpolicies/Q"),
            *("=link\tpolicies/P/current", " releases/0001-a", "=folder\tpolicies/P/incoming"),
            *("=folder\tpolicies/P/incoming/0002-b", "=folder\tpolicies/P/releases/0001-a"),
            *("=file\tpolicies/P/releases/0001-a/release", " serial x", "=file\tpolicies/P/releases/0001-a/mark.json"),
            *(f" {mark}", "=verdict\tpolicies/P/releases/0001-a\t trust release 0001-a of P: it is not signed"),
            *("=link\tpolicies/Q/incoming", " /home/pi", "=file\tpolicies/Q/incoming/precious"),
            *("=process\t42\tP\t0001-a", "#sha256 00  services/launch.sh"),
        ]
    )
    state = parse_snapshot(text)
    policy = state.policies["P"]
    assert (state.free_bytes, state.free_inodes, state.sha256) == (12288, None, {"services/launch.sh": "00"})
    assert policy.current == "0001-a" and policy.running == {"0001-a": [42]}
    assert policy.marks["0001-a"] == Mark("left", "why") and policy.verdicts == {"0001-a": "it is not signed"}
    assert state.leftovers == ["policies/P/incoming/0002-b"], "nothing behind a link"
    assert state.layout_problems == [] and len(state.problems) == 1
