"""What a rollout has come to on one device.

begun ─> unchanged ──────────────────────┐
      ├> switching ─> switched ─> soak ──┴> proved
      │           │                 ├> failed ─> rolled back | rollback failed
      │           │                 └> replaced (also after it proved itself)
      │           └> unknown
      └> refused | not changed | stopped
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of one device; its value is the word that is shown, and the one in the journal."""

    NOT_BEGUN = "not begun"
    """The rollout ended before it."""
    BEGUN = "begun"
    """It is connected to, compared, sent to."""
    STOPPED = "stopped"
    """It was begun, and the rollout ended before it was changed."""
    NOT_CHANGED = "not changed"
    """Its own affair: out of reach, full, locked, another host key. It serves what it served."""
    REFUSED = "refused"
    """By the release's own agent, or in its trial in the loop; the old one serves."""
    UNCHANGED = "unchanged"
    """It serves this very content already."""
    SWITCHING = "switching"
    """It is told to serve the release now."""
    UNKNOWN = "unknown"
    """The line broke in the switch, and nobody could find out which release serves; the next rollout looks."""
    SWITCHED = "switched"
    """It serves the release; its soak is not over."""
    FAILED = "failed"
    """It fell in its soak, and goes back."""
    ROLLED_BACK = "rolled back"
    """It serves what it served before, or nothing where it served nothing."""
    ROLLBACK_FAILED = "rollback failed"
    """It should, and could not be asked to."""
    REPLACED = "replaced"
    """Somebody switched it to another release meanwhile, which was left."""
    PROVED = "proved"
    """It serves the release, which stood its soak."""


COUNTED = frozenset({State.REFUSED, State.FAILED, State.UNKNOWN})
"""The release failed: they count against ``max_fail``."""
BROUGHT = frozenset({State.SWITCHING, State.SWITCHED, State.FAILED, State.UNKNOWN, State.ROLLBACK_FAILED})
"""A release that serves has come with a rollout, and is not accepted yet."""
CHANGING = BROUGHT | {State.PROVED, State.ROLLED_BACK, State.REPLACED}
"""They say what serves on a device; in the others it serves what it served."""
UNTOUCHED = frozenset({State.NOT_BEGUN, State.NOT_CHANGED, State.STOPPED})
"""The rollout left the device as it was."""
