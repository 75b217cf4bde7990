"""The three policies of the case study: their hidden layers."""

from __future__ import annotations

POLICIES: dict[str, tuple[int, ...]] = {
    "I": (64, 64, 64),
    "II": (256, 256, 256),
    "III": (4096, 512, 1024),
}
