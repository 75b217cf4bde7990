"""The service: everything is verified and prepared first, then the loop turns until it is ended."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from quarl.device.agent.loop import connections, real_time
from quarl.device.agent.loop.connections import Connections
from quarl.device.agent.loop.deciding import Decider
from quarl.device.agent.loop.frames import HEADER, VALUE_BYTES, Description, release_number
from quarl.device.agent.loop.notifying import Notifier
from quarl.device.agent.loop.options import LoopOptions
from quarl.device.agent.loop.pacing import Loop, Timing
from quarl.device.agent.operations import Hello, Load, parse_request
from quarl.device.agent.protocol import AgentError, ErrorCode, bad_field, encode, parse_json, request_id
from quarl.device.agent.server import Agent, error_reply
from quarl.policy.errors import PolicyError, SpecError
from quarl.policy.spec import PolicySpec, Precision, RuntimeName

PASSED_ON = ("help", "hello", "act")
"""Operations of the agent that are answered amid the loop, `act` of one observation: none of them takes longer than a
decision or two. What `hello` says was looked up before the loop turned: files and versions may take longer than a
period."""
REQUEST_BYTES, BYTES_PER_VALUE = 512, 32
"""Most bytes of a request to the loop: a base, and an addition for each value of one observation. A longer one is
refused unread: to parse 65 kB takes longer than a period, too."""
LARGEST_FRAME = 200_000
"""Bytes: a packet fits into a socket's usual buffer, 212,992 bytes with the kernel's own share."""
STALE_PERIODS = 2.5
"""Age in periods from which an observation is stale, where nothing else is named: one that came just after a tick is
a period old at the next, and one more may be lost."""
HOLD_PERIODS = 5
"""Time in periods for which an action is held at most, where nothing else is named."""
EXIT_REFUSED = 1
"""The policy cannot be served as it is: starting it again will not help."""
EXIT_MISSED = 75
"""A deadline was missed and ``--on-miss stop`` was given."""


def timing_of(options: LoopOptions, spec: PolicySpec) -> Timing:
    """Return when what is due in a loop over a policy; what an option leaves out is the policy's own."""
    period_ns = round(1e9 / options.rate) if options.rate is not None else round(1e9 * spec.control_period_s)
    return Timing(
        period_ns=period_ns,
        deadline_ns=period_ns if options.deadline_ms is None else round(1e6 * options.deadline_ms),
        stale_ns=round(STALE_PERIODS * period_ns) if options.stale_ms is None else round(1e6 * options.stale_ms),
        hold_ns=HOLD_PERIODS * period_ns if options.hold_for_ms is None else round(1e6 * options.hold_for_ms),
        spin_ns=1000 * options.spin_us,
        pace=options.pace,
        on_miss=options.on_miss,
    )


class Service:
    """One policy served in one loop.

    Args:
        bundle: its folder.
        socket: path of the socket.
        options: of the loop.
        manifest: sha256 that the bundle's manifest must have; empty: any.
        precision, runtime: which artifact, executed by what; None: the preferred runtime.

    Raises:
        PolicyError: the bundle, the artifact, its golden vectors, the fallback or the socket is not right.
    """

    def __init__(
        self,
        bundle: Path,
        socket: Path,
        options: LoopOptions,
        manifest: str = "",
        precision: Precision = Precision.INT8,
        runtime: RuntimeName | None = None,
    ) -> None:
        self._socket = socket
        self._agent = Agent(bundle, options.threads, manifest=manifest)
        self._agent.load(Load(precision, runtime, options.threads))
        serving = self._agent.serving
        spec = serving.bundle.spec
        self._timing = timing_of(options, spec)
        releases = bundle.resolve().parent
        self._release = releases.name if releases.parent.name == "releases" else ""
        self._hello = self._agent.answer(Hello())
        self._longest = REQUEST_BYTES + BYTES_PER_VALUE * spec.observation_size
        number = release_number(self._release)
        decider = Decider(serving, spec.fallback_or(options.fallback), number, self._timing.stale_ns)
        _require_that_frames_fit(spec)
        description = Description(
            self._timing.period_ns, spec.observation_size, spec.output_size, decider.brought_size, int(spec.is_discrete)
        )
        self.listener = connections.bind(socket)
        self._connections = Connections(self.listener, decider, description, number)
        self._notifier = Notifier()
        self.loop = Loop(self._timing, decider, self._connections, self._notifier, self.answer)
        for turn in range(2):  # the first call of everything that a turn needs is slow
            decider.decide(turn)
            decider.finish(0, 0)
        self._granted = real_time.prepare(options.priority, options.core)

    def granted(self) -> list[real_time.Granted]:
        """What was requested of the kernel, and whether it holds."""
        return self._granted

    def run(self) -> str:
        """Turn until a signal comes or a deadline ends it. Returns why it ended; empty after a signal."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        signal.set_wakeup_fd(self._connections.wake_up.fileno())
        self._notifier.ready(self.title())
        try:
            self.loop.run()
        finally:
            signal.set_wakeup_fd(-1)
            self._notifier.stopping(self.loop.ended)
            self._connections.close()
            self._socket.unlink(missing_ok=True)
        return "" if self.loop.ended == _SIGNAL else self.loop.ended

    def title(self) -> str:
        """One line: what serves, how often."""
        serving, timing = self._agent.serving, self._timing
        return (
            f"{serving.bundle.spec.name} {self._release or '(no release)'} {serving.entry.precision.value} in "
            f"{serving.runtime.value}, {1e9 / timing.period_ns:g} decisions a second, {self._socket}"
        )

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.loop.ended = _SIGNAL

    def answer(self, line: bytes) -> bytes:
        """Answer one JSON request."""
        name: str | None = None
        try:
            if len(line) > self._longest:
                allowed = f"at most {self._longest} bytes, one observation, are"
                raise _too_much(f"a request of {len(line)} bytes", allowed)
            request = parse_json(line)
            name = request.get("op") if isinstance(request.get("op"), str) else None
            if name == "loop":
                reset = request.get("reset", False)
                if not isinstance(reset, bool):
                    raise bad_field("reset", reset, "true or false")
                return encode({"ok": True, "op": "loop", **self.status(reset)})
            if name == "hello":
                parse_request(request)
                identity = {"id": request_id(request)} if "id" in request else {}
                return encode({"ok": True, "op": name, **identity, **self._hello})
            rows = request.get("observations")
            if name == "act" and isinstance(rows, list) and len(rows) > 1:
                raise _too_much(f"act with {len(rows)} observations", "one observation is")
            if name in PASSED_ON:
                return self._agent.handle(line)
            raise AgentError(
                ErrorCode.UNKNOWN_OP,
                f"op {json.dumps(name)} is not answered within a loop; {', '.join(('loop', *PASSED_ON))} are.",
                'Type {"op": "loop"} for what was counted.',
            )
        except PolicyError as error:
            return encode({"ok": False, "op": name and name[:60], "error": error_reply(error)})

    def status(self, reset: bool = False) -> dict[str, Any]:
        """What serves, how, and how punctual it was; ``reset`` begins the counts anew afterwards."""
        found = {
            "release": self._release,
            "loaded": self._agent.serving.to_dict(),
            "timing": {key: _plain(value) for key, value in asdict(self._timing).items()},
            "granted": [asdict(each) for each in self._granted],
            "what_grants_it": "" if all(each.granted for each in self._granted) else real_time.what_grants_it(),
            "controller": self._connections.controller is not None,
            "unread": self._connections.unread,
            "malformed": self._connections.malformed,
            "missed_ever": self.loop.punctuality.missed_ever,
            "counts": self.loop.punctuality.to_dict(),
        }
        if reset:
            self.loop.punctuality.reset()
        return found


_SIGNAL = "a signal"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _too_much(received: str, allowed: str) -> AgentError:
    return AgentError(
        ErrorCode.UNAVAILABLE,
        f"{received} is not answered within a loop, which a batch would keep from its deadlines; {allowed}.",
        "Send one observation a request, or batches to the agent: run-agent.",
    )


def _require_that_frames_fit(spec: PolicySpec) -> None:
    largest = HEADER.size + VALUE_BYTES * max(spec.observation_size, spec.output_size)
    if largest > LARGEST_FRAME:
        raise SpecError(
            f"policy {spec.name!r} has frames of {largest} bytes; a packet may have {LARGEST_FRAME}.",
            "Use the agent's JSON lines: run-agent.",
        )
