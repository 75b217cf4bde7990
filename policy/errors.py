"""Errors that say what was received, what is allowed and what to do next; as JSON, too."""

from __future__ import annotations

import re
from typing import Any

LONGEST_MESSAGE = 2000
"""Characters: what a message quotes may come from a file of megabytes."""


class QuarlError(Exception):
    """Base of all errors that are raised on purpose.

    Attributes:
        code: what went wrong, the same in every version: the one it is made with, else that of its class, which is
            the class's name in snake_case without Error unless the class says another.
        message: what was received and what is allowed.
        next_step: what to type or change to get further.
        values: what the message is about, by name; each is an attribute of the error, too.
    """

    code: str = "error"
    exit_code = 1
    """Of a command that it ends; 2 is wrong usage."""
    separator = " "
    """Between the message and the next step."""

    def __init_subclass__(cls) -> None:
        """Give the class its code."""
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, next_step: str = "", *, code: str = "", **values: Any) -> None:
        super().__init__(f"{message}{self.separator}{next_step}" if next_step else message)
        self.code = code or type(self).code
        self.message, self.next_step, self.values = message, next_step, values
        vars(self).update(values)

    def to_json(self) -> dict[str, Any]:
        """Return the error as a program reads it."""
        document: dict[str, Any] = {"code": self.code, "message": self.message, "next": self.next_step}
        return {**document, "values": self.values} if self.values else document


class PolicyError(QuarlError, ValueError):
    """Base of the errors of the contract."""

    def __init__(self, message: str, next_step: str = "", **values: Any) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]}…"
        super().__init__(message, next_step, **values)


class SpecError(PolicyError):
    """A PolicySpec is invalid, or does not match what a consumer feeds it."""


class BundleError(PolicyError):
    """A bundle is missing, truncated, tampered with or of a future version."""


class UnknownPolicyError(BundleError):
    """There is no policy of that name.

    Attributes:
        name: as it was typed.
        known: names that there are.
    """


class QuantizationError(PolicyError):
    """A tensor or a bit width cannot be quantized."""
