"""constants.h: the numbers and names that both agents use, printed for the one in C from those of the one in Python."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from enum import Enum
from fractions import Fraction
from types import ModuleType

from quarl.device import engine
from quarl.device.agent import conditions, fingerprint, measure, operations, protocol, server
from quarl.device.agent.loop import frames, options
from quarl.policy.spec import Precision, RuntimeName

NUMBERS: tuple[tuple[ModuleType, str], ...] = (
    (protocol, "PROTOCOL_VERSION MAX_DEPTH MAX_ID"),
    (operations, "MAX_ROWS MAX_RUNS MAX_THREADS"),
    (measure, "INTERVAL_CONFIDENCE MAX_SAMPLES CHUNK_NS REWARM_RUNS TIMER_PAIRS"),
    (server, "PROGRESS_INTERVAL_NS"),
    (frames, "MAGIC CONTINUOUS"),
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
}
"""Lists of names. C gets each as an enum, as an array of strings that ends with 0, and as one string."""
POWERS = range(-292, 325)
"""Exponents of ten that the digits of a double need."""
_literal = json.dumps
_C_TYPES = dict(zip("BHIQiq", ("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int32_t", "int64_t"), strict=True))


def header() -> str:
    """Return the text of constants.h, which the sources in ``device/engine/agent`` include."""
    lines = ["#pragma once", "#include <stdint.h>", f'#define ENGINE_VERSION "{engine.VERSION}"']
    lines += [f"#define {name} {getattr(module, name)}" for module, names in NUMBERS for name in names.split()]
    lines += [f'#define CODE_{code.name} "{code.value}"' for code in protocol.ErrorCode]
    lines += [f"#define {flag.name} {flag.value}" for flag in frames.Flag]
    lines += [f"#define KIND_{kind.name} {kind.value}" for kind in frames.Kind]
    for title, names in NAMES.items():
        members = [f"{title}_{re.sub('[^A-Z0-9]', '_', name.upper())}" for name in names]
        lines += [f"enum {{ {', '.join(members)}, {title}_COUNT }};"]
        lines += [f"static const char *const {title}_NAMES[] = {{ {', '.join(map(_literal, names))}, 0 }};"]
        lines += [f"#define {title}_TEXT {_literal(', '.join(names))}"]
    shares = [
        (name, round(share * 1e6), measure.compute_required_runs(share)) for name, share in measure.PERCENTILES.items()
    ]
    lines += _table("PERCENTILES", "const char *name; int millionths, needed;", shares)
    counted = [flag for flag in frames.Flag if flag not in (frames.Flag.MISSED, frames.Flag.START)]
    lines += _table("COUNTED", "const char *name; int bit;", [(str(flag.name).lower(), int(flag)) for flag in counted])
    lines += _table("ARM_PARTS", "const char *code, *name;", fingerprint.ARM_PARTS.items())
    return "\n".join([*lines, *_powers_of_ten(), *_operations(), *_loop_options(), *_frames(), ""])


def _table(name: str, members: str, rows: Iterable[tuple[str | int, ...]]) -> list[str]:
    text = ", ".join(f"{{{', '.join(map(_literal, row))}}}" for row in rows)
    return [f"static const struct {{ {members} }} {name}[] = {{ {text} }};"]


def _powers_of_ten() -> list[str]:
    """10^k in 128 bits, the first of them set, rounded up: what the shortest digits of a double are found with."""
    rows = []
    for power in POWERS:
        exponent = (power * 1741647) >> 19  # floor(log2(10^power))
        scaled = Fraction(10) ** power * Fraction(2) ** (127 - exponent)
        high, low = divmod(math.ceil(scaled), 2**64)
        rows.append(f"{{{high:#x}u, {low:#x}u}}")
    table = f"static const uint64_t POWERS_OF_TEN[][2] = {{ {', '.join(rows)} }};"
    return [f"#define LEAST_POWER ({POWERS.start})", table]


def _operations() -> list[str]:
    """Return each operation with its fields, and their defaults that are integers."""
    entries, lines = [], []
    for name, operation in operations.OPERATIONS.items():
        entries.append(f"X({', '.join([name, *map(_literal, operation.fields), '0'])})")
        for field in fields(operation.request):
            if field.default_factory is not MISSING and type(default := field.default_factory()) is int:
                lines.append(f"#define {name.upper()}_{field.name.upper()} {default}")
    return [f"#define EACH_OPERATION(X) {' '.join(entries)}", *lines]


def _loop_options() -> list[str]:
    """Return the ranges of a loop's options, their defaults, and what help says of them."""
    defaults = vars(options.LoopOptions())
    typed = {name: name.replace("_", "-") for name in defaults}
    ranges = " ".join(
        f'X({name}, "{typed[name]}", {low:.9g}, {high:.9g}, {int(isinstance(low, int))})'
        for name, (low, high) in options.RANGES.items()
    )
    own = ", ".join(f".{name} = {defaults[name]}" for name in options.RANGES if defaults[name] is not None)
    text = ""
    for name, help_text in re.findall(r"^ +(\w+): (.+)$", options.LoopOptions.__doc__ or "", re.MULTILINE):
        choices = [choice.value for choice in type(defaults[name])] if isinstance(defaults[name], Enum) else []
        text += f"  --{typed[name]}{'=' if choices else ''}{'|'.join(choices)}: {help_text}\n"
    return [
        f"#define EACH_LOOP_RANGE(X) {ranges}",
        f"#define LOOP_DEFAULTS {own}",
        f"#define LOOP_TEXT {_literal(text)}",
    ]


def _frames() -> list[str]:
    def members(codes: str, names: list[str]) -> str:
        return " ".join(f"{_C_TYPES[code]} {name};" for code, name in zip(codes.lstrip("<"), names, strict=True))

    head = members(frames.HEADER.format, ["magic", *(field.name for field in fields(frames.Header))])
    body = members(frames.BODY.format, [field.name for field in fields(frames.Description)])
    packed = [f"struct header {{ {head} }};", f"struct description {{ struct header head; {body} }};"]
    return ["#pragma pack(push, 1)", *packed, "#pragma pack(pop)"]
