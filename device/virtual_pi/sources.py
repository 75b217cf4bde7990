"""Where Debian packages come from: wherever this machine's own apt gets them, so that no mirror is named here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

APT = Path("/etc/apt")


def _is_accepted_suite(suite: str, wanted: str) -> bool:
    return suite in (wanted, f"{wanted}-updates", f"{wanted}-security")


def parse_list(text: str, wanted: str) -> list[str]:
    """The one-line sources of a suite, its updates and its security fixes, reduced to component main."""
    sources = []
    for line in text.splitlines():
        entry = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line.split("#")[0].strip())
        if entry and _is_accepted_suite(entry[3], wanted) and "main" in entry[4].split():
            signed = [option for option in (entry[1] or "").split() if option.startswith("signed-by=")]
            sources.append(one_line(entry[2], entry[3], signed))
    return sources


def parse_deb822(text: str, wanted: str) -> list[str]:
    """The same from a .sources file (stanzas of ``Key: value``)."""
    sources = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = {key.lower(): value.strip() for key, value in re.findall(r"(?m)^([\w-]+):[ \t]*(.*)$", stanza)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        if "main" not in fields.get("components", "").split():
            continue
        key = fields.get("signed-by", "")
        signed = [f"signed-by={key}"] if key.startswith("/") else []
        for address in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                if _is_accepted_suite(suite, wanted):
                    sources.append(one_line(address, suite, signed))
    return sources


def one_line(address: str, suite: str, options: Iterable[str]) -> str:
    """A line of sources.list."""
    chosen = " ".join(options)
    return f"deb {f'[{chosen}] ' if chosen else ''}{address} {suite} main"


def own_sources(wanted: str, apt: Path = APT) -> list[str]:
    """This machine's sources of a suite; empty on another system (mmdebstrap then knows Debian's own)."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    sources: list[str] = []
    for file in files:
        if file.is_file() and file.suffix in (".list", ".sources"):
            text = file.read_text(encoding="utf-8", errors="replace")
            sources += parse_deb822(text, wanted) if file.suffix == ".sources" else parse_list(text, wanted)
    # Without the suite itself, updates alone are no system.
    return list(dict.fromkeys(sources)) if any(f" {wanted} main" in line for line in sources) else []
