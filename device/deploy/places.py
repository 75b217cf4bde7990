"""Where this room keeps things on the host."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from quarl import device

FOLDER_NAME = "quarl"


def project_root() -> Path:
    """The checkout this package was installed from (editable), the parent of ``device/``."""
    return Path(device.__file__).resolve().parent.parent


def user_name() -> str:
    """Who runs this command; a container's user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


def state_folder() -> Path:
    """Folder for what must survive but is not the project's: accepted host keys. XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / FOLDER_NAME


def cache_folder() -> Path:
    """Folder for what can be fetched again: wheels. XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / FOLDER_NAME


def local_device_folder() -> Path:
    """The folder of ``TARGET=local``: QUARL_LOCAL_DEVICE, or ``artifacts/local-device`` of the checkout."""
    chosen = os.environ.get("QUARL_LOCAL_DEVICE")
    return Path(chosen).resolve() if chosen else project_root() / "artifacts" / "local-device"
