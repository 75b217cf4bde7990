"""What a package is refused for."""

from __future__ import annotations

from quarl.policy.errors import PolicyError


class PackageError(PolicyError):
    """A policy cannot be packed so, or its folder is taken; nothing was written."""
