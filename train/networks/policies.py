"""The three policies of the case study: their hidden layers (DESIGN, "The policies of the navigation task")."""

from __future__ import annotations

POLICIES: dict[str, tuple[int, ...]] = {
    "I": (64, 64, 64),
    "II": (256, 256, 256),
    "III": (4096, 512, 1024),
}
