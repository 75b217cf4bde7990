"""What the parts of a contract have to be: limits, names, and the error that says what is not so."""

from __future__ import annotations

from enum import Enum

from quarl.policy.errors import SpecError
from quarl.policy.json_values import shortened
from quarl.policy.reading.names import LONGEST_NAME, is_text

# The graphs compute in float32: what is larger than this is infinite there, and what is smaller has no reciprocal.
LARGEST_FLOAT32, SMALLEST_DIVISOR, LARGEST_DIVISOR = 3.4028235e38, 1.2e-38, 8.0e37

# What no policy comes near: a document that claims more would only be worked on for long, or fill the memory.
LARGEST_SIDE = 2**24
"""Elements of an observation, a layer, a kernel's side or a stride."""
MOST_OUTPUTS = 65_536
MOST_LAYERS, MOST_SIDES = 1000, 8


def require(condition: bool, message: str, next_step: str = "") -> None:
    """Raise SpecError(message) unless the condition holds."""
    if not condition:
        raise SpecError(message, next_step)


def require_name(name: str, what: str) -> None:
    """Raise SpecError unless it is printable text of at most LONGEST_NAME characters."""
    require(
        is_text(name),
        f"{what} is {shortened(name)}; allowed are {LONGEST_NAME} printable characters, no control signs.",
    )


def require_names(names: tuple[str, ...], count: int, what: str) -> None:
    """Raise SpecError unless there are no names, or ``count`` printable ones."""
    require(len(names) in (0, count), f"{what} has {len(names)} names for {count} elements.")
    for name in names:
        require_name(name, f"the name of an element of {what}")


def require_member(kind: type[Enum], value: object, what: str) -> None:
    """Raise SpecError unless ``value`` is a member of the enum: its text is not."""
    allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    require(isinstance(value, kind), f"{what} is {shortened(value)}; allowed are {allowed}.")


def require_few_outputs(count: int) -> None:
    """Raise SpecError for a head of more than MOST_OUTPUTS outputs."""
    require(count <= MOST_OUTPUTS, f"the head has {count} outputs; allowed are {MOST_OUTPUTS}.")
