"""A home and a temporary folder of the tests' own: what libraries write there is deleted, the user's stay clean.

The cache stays the user's: it holds what the tests deploy and boot, which is fetched before they begin.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "QUARL_TESTS_FOLDER"
WATCHED = (".", ".config", ".local", ".local/share", ".local/state", ".local/state/quarl")
"""Folders of the user's home in which nothing new may appear."""


def entries(home: Path) -> set[Path]:
    """Return what lies in the watched folders of a home."""
    folders = [home / name for name in WATCHED]
    return {path for folder in folders if folder.is_dir() for path in folder.iterdir()}


def move() -> set[Path]:
    """Set HOME and TMPDIR for this process and those that it starts, and return the entries of the user's home.

    The processes of pytest-xdist inherit the variables; there nothing is done, and the set is empty.
    """
    if VARIABLE in os.environ:
        return set()
    home, temporary = Path.home(), tempfile.gettempdir()
    before = entries(home)
    folder = Path(tempfile.mkdtemp(prefix="q"))  # short: a Unix socket's path has 107 characters
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "home").mkdir()
    (folder / "t").mkdir()
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        os.environ.pop(name, None)
    if (home / ".gitconfig").exists():
        os.environ.setdefault("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    os.environ.setdefault("XDG_CACHE_HOME", str(home / ".cache"))
    os.environ |= {
        VARIABLE: str(folder),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "t"),
        "RAY_TMPDIR": str(folder / "t"),
        "PYTEST_DEBUG_TEMPROOT": temporary,  # a failed test's files stay
    }
    tempfile.tempdir = None  # pytest has asked for it already
    return before
