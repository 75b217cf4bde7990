"""The errors of a wrong task, apart so that names can be checked without loading numpy."""

from __future__ import annotations

from quarl.policy.errors import QuarlError


class TaskError(QuarlError, ValueError):
    """A task name, or an option of a task, is not known, does not fit, or needs what is not installed."""

    exit_code = 2


class EnvironmentFaultError(TaskError):
    """An environment raised, or returned what Gymnasium's interface does not allow.

    Attributes:
        environment: its id.
        method: ``reset`` or ``step``.
        episode, step: where it was; step 0 is the reset.
    """

    exit_code = 1
