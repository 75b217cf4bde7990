"""Where code, bundles, results and what is kept between commands lie (host only).

In a checkout, artifacts/ and results/ are the checkout's. Installed, they are the current folder's, and nothing is
written beside the code. What can be fetched again and what must survive are in the user's XDG folders.
"""

from __future__ import annotations

import os
from pathlib import Path

CODE = Path(__file__).resolve().parent.parent
"""The checkout, or the installed package."""
IN_CHECKOUT = (CODE / "quarl" / "__init__.py").is_file()
IMPORTED_FROM = CODE if IN_CHECKOUT else CODE.parent
"""The folder that holds the package ``quarl``."""
PROJECT_ROOT = CODE if IN_CHECKOUT else Path.cwd()
"""The folder that is worked in."""
ARTIFACTS, RESULTS = PROJECT_ROOT / "artifacts", PROJECT_ROOT / "results"
ZOO = CODE / "zoo"
"""The bundles that come with the code."""
FOLDER_NAME = "quarl"


def state_folder() -> Path:
    """Return the folder for what must survive but is not the project's, such as accepted host keys (XDG base
    directories)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / FOLDER_NAME


def cache_folder() -> Path:
    """Return the folder for what can be made or fetched again, such as wheels (XDG base directories)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / FOLDER_NAME


def local_device_folder() -> Path:
    """Return the folder of ``TARGET=local``: QUARL_LOCAL_DEVICE, or artifacts/local-device."""
    chosen = os.environ.get("QUARL_LOCAL_DEVICE")
    return Path(chosen).resolve() if chosen else ARTIFACTS / "local-device"
