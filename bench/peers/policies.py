"""Committed policies that programs are timed on, and how much an answer about them rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quarl.bench import command_line

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle


def amounts(document: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """Return the turns of each contestant."""
    return {(row["policy"], row["precision"], row["runtime"]): len(row["turns_ns"]) for row in document["rows"]}


def load_committed(name: str) -> Bundle:
    """Return a bundle that comes with the repository.

    Raises:
        UsageError: there is none of that name.
    """
    from quarl.policy.bundle import Bundle
    from quarl.policy.places import ZOO

    folders = {path.parent.name: path.parent for path in ZOO.glob("**/policy.json")}
    if name not in folders:
        raise command_line.UsageError(f"there is no committed policy {name!r}; there are {', '.join(sorted(folders))}.")
    return Bundle.load(folders[name])
