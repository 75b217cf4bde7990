"""The three policies of the case study: their hidden layers (DESIGN, "The policies of the navigation task")."""

from __future__ import annotations

POLICIES: dict[str, tuple[int, ...]] = {
    "I": (64, 64, 64),
    "II": (256, 256, 256),
    "III": (4096, 512, 1024),
}


def hidden_layers(policy: str) -> tuple[int, ...]:
    """Widths of the hidden layers of a policy.

    Raises:
        ValueError: there is no such policy; says which there are.
    """
    try:
        return POLICIES[policy]
    except KeyError:
        raise ValueError(f"there is no policy {policy!r}; choose --policy {', '.join(POLICIES)}.") from None
