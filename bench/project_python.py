"""What ``policy.project_python.begin`` does for modules, for scripts of this folder: any Python finds this file."""

import runpy
from pathlib import Path

_POLICY = Path(__file__).resolve().parent.parent / "policy"


def ensure() -> None:
    """Go on with the project's Python; until the command has loaded, Ctrl-C ends it with one line."""
    runpy.run_path(str(_POLICY / "project_python.py"))["ensure"]()
    runpy.run_path(str(_POLICY / "interruption.py"))["loading"]()
