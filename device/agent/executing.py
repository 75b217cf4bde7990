"""What a loaded artifact is to the agent, whichever runtime executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.policy.spec import RuntimeName

Input = Any
"""An observation as an executor takes it: made by its ``input``."""

Row = Any
"""float32 (A,) with ``tolist`` and ``tobytes``: of numpy, or an ``array("f")``."""


class Executor(Protocol):
    """A loaded artifact."""

    def input(self, values: Sequence[float]) -> Input:
        """Return a raw observation (N,) as the runtime takes it: of a float32 ``memoryview`` a view, of others a
        copy."""

    def is_finite(self, observation: Input) -> bool:
        """Return whether an input holds neither NaN nor infinity."""

    def decide(self, observation: Input) -> Any:
        """Return one decision, with as little around the runtime as possible.

        Args:
            observation: of :meth:`input`, or float32 (1, N) of numpy, C-contiguous.

        Returns:
            The choice of the policy's head: an index, a list of one a component, or a row of float32 (A,).
        """

    def outputs(self) -> Row:
        """Return the outputs (A,) of the last decision: logits, or the continuous action. A copy."""

    def state(self) -> Row:
        """Return what the recurrent layers remember of the last decision, (S,), the last elements of the next
        observation; of a policy without them nothing. A copy."""


def choice_values(choice: Any) -> Any:
    """Return a choice as JSON has it: an index, or a list."""
    return choice if isinstance(choice, (int, list)) else choice.tolist()


def results(executor: Executor) -> list[float]:
    """Return all that the last decision made: its outputs, and behind them the next state."""
    values: list[float] = executor.outputs().tolist() + executor.state().tolist()
    return values


def runtime_error(name: RuntimeName, error: Exception) -> AgentError:
    """RUNTIME: the runtime refuses an artifact, in its own words."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return AgentError(
        ErrorCode.RUNTIME,
        f"{name.value} cannot execute this artifact: {first_line}",
        "Convert it again, or load another runtime or precision.",
    )
