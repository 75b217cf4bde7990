"""constants.h: the numbers and names that both agents use, printed for the one in C from those of the one in Python."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from enum import Enum
from types import ModuleType

from quarl.device import engine
from quarl.device.agent import conditions, measure, operations, protocol, server
from quarl.device.agent.loop import connections, frames, histogram, notifying, options, punctuality, service
from quarl.policy.spec import Precision, RuntimeName

NUMBERS: tuple[tuple[ModuleType, str], ...] = (
    (protocol, "PROTOCOL_VERSION MAX_DEPTH MAX_ID"),
    (operations, "MAX_ROWS MAX_RUNS MAX_THREADS"),
    (measure, "INTERVAL_CONFIDENCE MAX_SAMPLES CHUNK_NS REWARM_RUNS TIMER_PAIRS"),
    (server, "PROGRESS_INTERVAL_NS"),
    (frames, "MAGIC CONTINUOUS"),
    (histogram, "SUB_BITS BUCKETS LARGEST_DURATION"),
    (connections, "MOST_CONNECTIONS MOST_PACKETS MOST_OF_OTHERS MOST_REQUESTS JSON_ROOM"),
    (notifying, "USUAL_HEARTBEAT_NS"),
    (service, "LARGEST_FRAME REQUEST_BYTES BYTES_PER_VALUE STALE_PERIODS HOLD_PERIODS EXIT_REFUSED EXIT_MISSED"),
)
"""Constants of the agent's modules, which have the same names in C."""
NAMES = {
    "PRECISION": [each.value for each in Precision],
    "RUNTIME": [each.value for each in RuntimeName],
    "OPERATION": operations.OPERATIONS,
    "PATH": [each.value for each in operations.TimedPath],
    "THROTTLE": conditions.THROTTLE_FLAGS,
    "PACE": [each.value for each in options.Pace],
    "ON_MISS": [each.value for each in options.OnMiss],
    "TIME": punctuality.TIMES,
    "LOOP_OPERATION": ("loop", *service.PASSED_ON),
}
"""Lists of names. C gets each as an enum, as an array of strings that ends with 0, and as one string."""
_C_TYPES = dict(zip("BHIQiq", ("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int32_t", "int64_t"), strict=True))


def header() -> str:
    """Return the text of constants.h, which the sources in ``device/engine/agent`` include."""
    lines = [f"#define {name} {getattr(module, name)}" for module, names in NUMBERS for name in names.split()]
    lines += [f'#define CODE_{code.name} "{code.value}"' for code in protocol.ErrorCode]
    lines += [f'#define ENGINE_VERSION "{engine.VERSION}"']
    for title, names in NAMES.items():
        members = [f"{title}_{re.sub('[^A-Z0-9]', '_', name.upper())}" for name in names]
        lines += [f"enum {{ {', '.join(members)}, {title}_COUNT }};"]
        lines += [f"static const char *const {title}_NAMES[] = {{ {', '.join(map(_quoted, names))}, 0 }};"]
        lines += [f"#define {title}_TEXT {_quoted(', '.join(names))}"]
    lines += [f"enum {{ {', '.join(f'{flag.name} = {flag.value}' for flag in frames.Flag)} }};"]
    lines += [f"enum {{ {', '.join(f'KIND_{kind.name} = {kind.value}' for kind in frames.Kind)} }};"]
    counted = ", ".join(f"{{{_quoted(name)}, {bit}}}" for name, bit in punctuality.COUNTED.items())
    lines += [f"static const struct {{ const char *name; unsigned bit; }} COUNTED[] = {{ {counted} }};"]
    shares = ", ".join(
        f"{{{_quoted(name)}, {round(share * 1e6)}, {measure.required_runs(share)}}}"
        for name, share in measure.PERCENTILES.items()
    )
    lines += [f"static const struct {{ const char *name; int millionths, needed; }} PERCENTILES[] = {{ {shares} }};"]
    return "\n".join(["#pragma once", "#include <stdint.h>", *lines, *_operations(), *_loop_options(), *_frames(), ""])


def _operations() -> list[str]:
    """Each operation with its fields, and their defaults that are integers."""
    each, lines = [], []
    for name, operation in operations.OPERATIONS.items():
        each.append(f"X({', '.join([name, *map(_quoted, operation.fields), '0'])})")
        for field in fields(operation.request):
            if field.default_factory is not MISSING and type(default := field.default_factory()) is int:
                lines.append(f"#define {name.upper()}_{field.name.upper()} {default}")
    return [f"#define EACH_OPERATION(X) {' '.join(each)}", *lines]


def _loop_options() -> list[str]:
    """The ranges of a loop's options, their defaults, and what help says of them."""
    defaults = vars(options.LoopOptions())
    typed = {name: name.replace("_", "-") for name in defaults}
    ranges = [
        f"X({name}, {_quoted(typed[name])}, {low:.9g}, {high:.9g}, {int(isinstance(low, int))})"
        for name, (low, high) in options.RANGES.items()
    ]
    own = [f".{name} = {defaults[name]}" for name in options.RANGES if defaults[name] is not None]
    text = ""
    for name, what in re.findall(r"^ +(\w+): (.+)$", options.LoopOptions.__doc__ or "", re.MULTILINE):
        choices = [each.value for each in type(defaults[name])] if isinstance(defaults[name], Enum) else []
        text += _quoted(f"  --{typed[name]}={'|'.join(choices)}: {what}\\n")
    return [
        f"#define EACH_LOOP_RANGE(X) {' '.join(ranges)}",
        f"#define LOOP_DEFAULTS {', '.join(own)}",
        f"#define LOOP_TEXT {text}",
    ]


def _frames() -> list[str]:
    def members(codes: str, names: list[str]) -> str:
        return " ".join(f"{_C_TYPES[code]} {name};" for code, name in zip(codes.lstrip("<"), names, strict=True))

    head = members(frames.HEADER.format, ["magic", *(field.name for field in fields(frames.Header))])
    body = members(frames.BODY.format, [field.name for field in fields(frames.Description)])
    return [
        "#pragma pack(push, 1)",
        f"struct header {{ {head} }};",
        f"struct description {{ struct header head; {body} }};",
        "#pragma pack(pop)",
    ]


def _quoted(text: str) -> str:
    return f'"{text}"'
