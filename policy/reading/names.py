"""One rule for names: what a policy may be called, and what any other text of a bundle may hold.

A policy's name becomes a folder on the host and on the device, a part of commands that are typed, and a part of paths
on pages: nothing in it may leave the folder, begin an option or move a terminal's cursor. Names of fields, actions and
units are only shown: they may be any printable text.
"""

from __future__ import annotations

import re

LONGEST_NAME = 200
"""Characters of the name of an observation field, an action, a unit or an environment."""
LONGEST_FILE_NAME = 255
"""Bytes of a file's name: NAME_MAX of Linux's file systems."""
POLICY_NAMES_ALLOWED = "1 to 64 letters (A to Z), digits, '.', '_' and '-', the first a letter or a digit"
_POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_policy_name(name: str) -> bool:
    """Whether a policy may be called that: :data:`POLICY_NAMES_ALLOWED`."""
    return _POLICY_NAME.fullmatch(name) is not None


def is_text(text: str, longest: int = LONGEST_NAME) -> bool:
    """Whether it is printable, at most ``longest`` characters: no control sign, no line break, no lone surrogate."""
    return len(text) <= longest and text.isprintable()


def is_file_name(name: str) -> bool:
    """Whether a file of a bundle may be called that: it stays in its folder, and every file system takes it."""
    # Printable text has no lone surrogate, so that it can be encoded.
    if not name or name in (".", "..") or not is_text(name, LONGEST_FILE_NAME):
        return False
    return "/" not in name and "\\" not in name and len(name.encode()) <= LONGEST_FILE_NAME
