"""Text that came from a device, made fit for a terminal: it may show something, it may not do anything."""

from __future__ import annotations

from typing import Any


def printable(text: str, keep: str = "") -> str:
    """Return the text with every sign that a terminal acts on, or that hides another, written out: ESC becomes
    ``\\x1b``.

    Args:
        text: from a device: a reply, a log line, a name of a file.
        keep: signs that stay as they are, the line break of a message of several lines for example.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else _escape_character(sign) for sign in text)


def _escape_character(sign: str) -> str:
    number = ord(sign)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def printable_reply(value: Any) -> Any:
    """Return a reply with every text in it made printable, line breaks and tabs kept."""
    if isinstance(value, str):
        return printable(value, "\n\t")
    if isinstance(value, dict):
        return {printable(key): printable_reply(item) for key, item in value.items()}
    return [printable_reply(item) for item in value] if isinstance(value, list) else value


def may_act(line: bytes) -> bool:
    """Return whether a line of JSON can hold a text that is not printable; most cannot, and need not be gone
    through."""
    return b"\\" in line or not line.isascii() or b"\x7f" in line
