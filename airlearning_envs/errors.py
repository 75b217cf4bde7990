"""Errors of the navigation task."""

from __future__ import annotations

from quarl.policy.errors import QuarlError


class SettingsError(QuarlError, ValueError):
    """A setting, an action or a name is not one the task knows; the message says which, and what is allowed."""

    exit_code = 2
