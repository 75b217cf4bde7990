"""No measured number stands in prose that no command writes: it would go stale, and nobody would notice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quarl.bench.tables import ROOT, pages

UNITS = (
    "%|points?|µs|ms|ns|s|seconds?|minutes?|h|hours?|CPU-s|CPU-seconds?|CPU-hours?|MB|GB|KB|MiB|GiB|kB|×|times|"
    "steps/s|instructions|games|episodes"
)
NUMBER = r"[−+-]?\d[\d,.]*\d|[−+-]?\d"
MEASURED = re.compile(rf"(?<![\w.,·^])(?:{NUMBER})(?:\s| )?(?:{UNITS})(?![\w/])|\[(?:{NUMBER}), (?:{NUMBER})\]")
SET = {
    "docs/fleet.md": {"10 s", "25%"},
    "docs/import.md": {"20 ms"},
    "docs/quantization.md": {"1 %", "95 %"},
    "docs/running.md": {"256 MB", "3 s"},
    "docs/case-study.md": {"0.25 s", "30 ×", "35 ×", "84 ×"},
    "docs/raspberry-pi.md": {"32 KB", "512 KB", "1 GiB"},
    "docs/recommend.md": {"95 %"},
}
"""What is set or specified, not measured: periods, sizes that are bought, levels of confidence."""
QUOTED = ("paper", "original", "arguments there")
"""Words of a line that quotes another's figure."""


ANSWERED = "docs/findings.md"
"""Its rows left the repository; each section names the commit that has them."""


def prose(text: str) -> str:
    """A page without what commands write between markers, and without code but for its comments."""
    text = re.sub(r"<!-- (\w+):(\S+) -->.*?<!-- /\1:\2 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    parts = re.split(r"\n\s*\n", text)
    return "\n\n".join(re.sub("(?m)^.*?(# |$)", "", part) if part.startswith("    ") else part for part in parts)


def measured(text: str) -> list[str]:
    """Numbers of a page's prose that look measured, and are nobody else's."""
    lines = prose(text).splitlines()
    answer = ((" ".join(lines[max(0, k - 1) : k + 1]), line) for k, line in enumerate(lines))
    return [
        found.group(0) for around, line in answer if not any(word in around for word in QUOTED)
        for found in MEASURED.finditer(line)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [path for path in pages() if path != ROOT / ANSWERED],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_measured_number_is_written_by_a_command(path: Path) -> None:
    allowed = SET.get(path.relative_to(ROOT).as_posix(), set())
    found = set(measured(path.read_text(encoding="utf-8")))
    assert found <= allowed, "measure it, and let a command write it between markers; or, if it is set, list it here"
    assert allowed <= found, "what is no longer there leaves the list"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 1,513 CPU-seconds and 0.75 GB.", ["1,513 CPU-seconds", "0.75 GB"]),
        ("Return −140.5 [−156.2, −124.8], 13 points less.", ["[−156.2, −124.8]", "13 points"]),
        ("int8 is 4.33× as fast, in 27.5 µs.", ["4.33×", "27.5 µs"]),
        ("The paper has 60 % there.", []),
        ("Held for 40 steps, `0.5 s`, seed 7, 64 units.", []),
        ("    quarl train --minutes 3\n\n<!-- table:a -->\n| 3 s |\n<!-- /table:a -->", []),
        ("    make demo   # about 4 minutes", ["4 minutes"]),
        ("10. An item,\n    with 13 % in it.", ["13 %"]),
    ],
)
def test_what_looks_measured(text: str, found: list[str]) -> None:
    assert measured(text) == found
