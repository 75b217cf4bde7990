"""The error of a wrong task, apart so that names can be checked without loading numpy."""

from __future__ import annotations

from quarl.policy.errors import QuarlError


class TaskError(QuarlError, ValueError):
    """A task name, or an option of a task, is not known, does not fit, or needs what is not installed."""

    exit_code = 2
