"""Errors of the contract: each says what was received, what is allowed and what to do next."""

from __future__ import annotations

LONGEST_MESSAGE = 2000
"""Characters: what a message quotes may come from a file of megabytes."""


class PolicyError(ValueError):
    """Base of all errors that the contract raises.

    Attributes:
        next_step: what the user can type or change to get further; part of the message.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]}…"
        super().__init__(f"{message} {next_step}".strip())
        self.next_step = next_step


class SpecError(PolicyError):
    """A PolicySpec is invalid, or does not match what a consumer feeds it."""


class BundleError(PolicyError):
    """A bundle is missing, truncated, tampered with or of a future version."""


class QuantizationError(PolicyError):
    """A tensor or a bit width cannot be quantized."""
