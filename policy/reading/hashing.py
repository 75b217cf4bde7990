"""SHA-256, by whichever of Python's two implementations is the smaller to load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def _smallest() -> Callable[..., Any]:
    """OpenSSL's, which hashlib loads, takes 3.5 MB, a quarter of an agent without numpy."""
    if "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # of Python 3.12; of those before
            try:
                return import_module(name).sha256
            except ImportError:
                continue
    return import_module("hashlib").sha256


sha256 = _smallest()
