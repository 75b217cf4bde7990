"""The agent's protocol: one JSON object a line, one request one reply, on stdin and stdout. stderr is the log.

Start ``python -m device.agent --bundle PATH`` and type ``{"op": "help"}``. End of input or SIGTERM ends it (exit 0).
A line is UTF-8 without a byte order mark; one of spaces, tabs and carriage returns alone is ignored, and the last line
needs no newline. A request may carry an ``"id"`` (a string or an integer of at most 200 characters), which its reply
repeats. While a long request runs, lines ``{"progress": {"op", "done", "total"}}`` may precede its reply.
Every reply is one of

    {"ok": true, "op": …, …}
    {"ok": false, "op": …|null, "error": {"code", "message", "next"}}            code: one of ErrorCode's values

Times are integers in nanoseconds (``_ns``), sizes integers in bytes (``_bytes``, and all of "memory"); null is
"unknown here", never a guess. Keys of the replies (→ marks an object described further down):

hello     protocol, agent {version, pid, ready_ns (process start to first request read)}, device → DEVICE,
          runtimes {name: version of each installed one}, preferred_runtime, simulator (bool: can fly episodes),
          bundle {path, policy, observation_size, output_size, discrete, control_period_s, environment,
          precisions [..], artifacts [{file, precision, format, bytes}]} or null, with bundle_error {code, message,
          next}; loaded → LOADED or null
load      loaded → LOADED, golden {vectors, max_error, max_error_steps, tolerance, action_agreement (with this
          precision's numpy reference), fp32_agreement (with the float policy)},
          memory → MEMORY, cold {import_ns (0 if this process had the runtime), verify_ns (hashes), build_ns,
          first_ns (first inference of the fresh interpreter, before any golden vector; the file is in the page
          cache), golden_ns, total_ns}
latency   loaded → LOADED, path, warmup, runs, cold_first_ns, load_ns, STATISTICS →, samples_ns (sorted; at most 2000,
          evenly spaced order statistics with minimum and maximum), timer {overhead_ns, resolution_ns, clock;
          not subtracted}, before → CONDITIONS, after → CONDITIONS, context_switches {voluntary, involuntary},
          page_faults {minor, major}, valid, invalid_reasons [..], notes [..]
memory    loaded → LOADED, memory → MEMORY, artifact_bytes, runs
episodes  loaded → LOADED, preset, settings (the overrides asked for), task (12 hex digits: two replies with the
          same ones flew the same task; the command latency is not in them), episodes, seed, batch,
          success {count, rate, interval [low, high], confidence}, causes {cause: count},
          mean and mean_of_successes {flight_time_s, distance_m, energy_j, return; null when there is none},
          success_bits (base64 of numpy.packbits of the successes by episode id, big-endian bits), decisions,
          decision_ns {STATISTICS → of the first 200,000 of them, amid the simulation}, wall_s, throttled_before,
          throttled_after, valid, invalid_reasons
act       action (or actions), outputs (unless asked not to: logits, or the continuous action), inference_ns (a number,
          or one for each row), request_ns (parsed line to ready reply)
          with "period": of this period's values and of what the agent remembers of those before (policy/history.py);
          else, of a recurrent policy: state (or states), the last elements of the next observation
bye       decisions (inferences served in this process)
help      protocol, ops {name: {does, fields {name: text}, example}}

LOADED       policy, file, precision, format, scheme, execution, bytes, sha256, runtime, runtime_version, threads
STATISTICS   percentiles {"p50": ns, …: only those that the run count supports}, percentiles_withheld {"p99.9": why},
             p50_interval [low, high] (distribution-free, 95 %) or null, mean, std, min, max   (all ns)
MEMORY       baseline (agent alone), before_load (runtime imported), after_load, now, running_peak (peak resident size
             while the last ``memory`` request ran; null before one), lifetime_peak, anonymous, file_backed, swap (now),
             peak_reset (bool: running_peak excludes loading), clean (bool: nothing else was loaded before in this
             process)
CONDITIONS   mhz_now, mhz_firmware, governor, temperature_c, throttled → THROTTLED or null, load_1min
THROTTLED    raw, now [..], occurred [..] of "under-voltage", "frequency-capped", "throttled", "soft-temperature-limit"
DEVICE       model, machine, cores, cpu_model, mhz_nominal, memory_total_bytes, kernel, os, python, glibc,
             emulated (bool|null), virtualised (bool|null), evidence [what the last two rest on], and CONDITIONS
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from quarl.policy.errors import PolicyError

PROTOCOL_VERSION = 1
# A row of an 84×84 depth image is about 150 kB of JSON; 64 such rows and some air.
MAX_LINE_BYTES = 16 * 2**20

MAX_VALUES = 1_900_000
"""Values a line may hold, an object, list or word counted several times: some 32 bytes each, once they are read."""
MAX_WIDE_BYTES = 2**16
"""Bytes of a line that is not ASCII: one wide character makes four bytes of each."""
MAX_DEPTH = 16
"""Lists and objects within each other; a request needs three."""
MAX_ID = 200
"""Characters of a request's id: of a string with its escapes resolved, or of an integer's digits and sign."""
BLANKS = b" \t\r\n"
"""What JSON takes as blank; a line of these alone is ignored."""
_WEIGHTS = {b",": 1, b":": 3, b"[": 3, b"{": 6, b'"': 2}

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class ErrorCode(Enum):
    """What kind of error a reply carries; programs switch on it, people read the message."""

    BAD_JSON = "bad_json"
    LINE_TOO_LONG = "line_too_long"
    BAD_REQUEST = "bad_request"
    UNKNOWN_OP = "unknown_op"
    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    BAD_FIELD = "bad_field"
    BAD_OBSERVATION = "bad_observation"
    NOT_LOADED = "not_loaded"
    BUNDLE = "bundle"
    SPEC = "spec"
    GOLDEN = "golden"
    RUNTIME = "runtime"
    NOT_FINITE = "not_finite"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class AgentError(PolicyError):
    """A request that is refused: the reply's code, message and next step.

    Attributes:
        code: the value of an :class:`ErrorCode`.
    """

    def __init__(self, code: ErrorCode, message: str, next_step: str = "") -> None:
        super().__init__(message, next_step)
        self.code = code.value


def bad_field(name: str, value: object, allowed: str) -> AgentError:
    """Return the error for a field whose value is not allowed."""
    return AgentError(
        ErrorCode.BAD_FIELD, f"{name!r} is {short(value)}; allowed is {allowed}.", 'Type {"op": "help"} for examples.'
    )


def short(value: object) -> str:
    """Return a received value, cut to what fits in a message."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def parse_json(line: bytes) -> dict[str, Any]:
    """Return one line as a JSON object.

    Raises:
        AgentError: BAD_JSON or BAD_REQUEST, saying where it breaks; LINE_TOO_LONG of more values than are held.
    """
    if len(line) > MAX_WIDE_BYTES and not line.isascii():
        raise AgentError(
            ErrorCode.LINE_TOO_LONG,
            f"the line has {len(line):,} bytes and non-ASCII characters; of such lines {MAX_WIDE_BYTES:,} are read.",
            "Send numbers, and words in ASCII.",
        )
    values = sum(weight * line.count(sign) for sign, weight in _WEIGHTS.items())
    if values > MAX_VALUES:
        raise AgentError(
            ErrorCode.LINE_TOO_LONG,
            f"the line holds about {values:,} values; {MAX_VALUES:,} are allowed.",
            "Send fewer observations in one request.",
        )
    reason = ""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        # A NUL is refused wherever it stands: the decoder stops here, unless something before is wrong.
        text, reason = line[: error.start].decode() + "\0", str(error)
    try:
        data = _decode(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        if _exceeds_depth(text[: error.pos]):  # it is read from the left: the first fault is the one that is reported
            raise _too_deep() from None
        raise AgentError(
            ErrorCode.BAD_JSON,
            f"the line is not valid JSON ({reason or error}): {short(line[:60].decode('utf-8', 'replace'))}.",
            'Type one JSON object a line, for example {"op": "help"}',
        ) from None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _exceeds_depth(text):
        raise _too_deep()
    if not isinstance(data, dict):
        raise AgentError(
            ErrorCode.BAD_REQUEST,
            f"the line is {_kind(data)}; a request is a JSON object.",
            'Type one with an "op", for example {"op": "help"}',
        )
    return data


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer of more digits than int() reads: too large for everything, but valid
        return json.loads(text, parse_int=lambda digits: (int if len(digits) <= MAX_ID else float)(digits))


def _kind(data: object) -> str:
    return f"a list of {len(data)}" if isinstance(data, list) else short(data)


def _exceeds_depth(text: str) -> bool:
    """Return whether lists and objects are nested too deeply; ``text`` is JSON, or the valid beginning of it."""
    outside = "".join(text.replace(r"\\", "").replace(r"\"", "").split('"')[::2])  # of strings
    depth = 0
    for bracket in re.findall(r"[][{}]", outside):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _too_deep() -> AgentError:
    return AgentError(
        ErrorCode.BAD_REQUEST,
        f"the line's lists and objects are nested more than {MAX_DEPTH} deep.",
        'Type {"op": "help"} for examples.',
    )


def request_id(data: Mapping[str, Any]) -> str | int | None:
    """Return the request's id, to be repeated in its reply.

    Raises:
        AgentError: it is neither a string nor an integer, or has more than MAX_ID characters.
    """
    value = data.get("id")
    if value is not None and (type(value) not in (str, int) or len(str(value)) > MAX_ID):
        raise bad_field("id", value, f"a string or an integer of at most {MAX_ID} characters")
    return value


def encode(reply: Mapping[str, Any]) -> bytes:
    """Return a reply as one line of strict JSON (NaN and infinity would be a defect of the agent and raise
    ValueError)."""
    return _encode(reply).encode() + b"\n"
