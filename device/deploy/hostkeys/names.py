"""Names of hosts as known_hosts and certificates have them."""

from __future__ import annotations

import fnmatch


def bare_name(name: str) -> str:
    """``host`` of ``[host]:port``."""
    return name[1:].partition("]")[0] if name.startswith("[") else name


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of known_hosts or of a certificate."""
    # fnmatch reads [..] as a set of characters; in known_hosts brackets are part of "[host]:port".
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))
