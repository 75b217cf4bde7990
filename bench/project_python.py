"""Scripts of this folder run from any folder and by any Python: this hands them over to the project's own.

``python bench/latency.py`` may be typed with a Python that has none of the project's packages. Then the
command is started again, with the same arguments, by ``.venv/bin/python`` of the checkout; where there is none,
the one command that makes it is printed. Nothing but the standard library is imported here, and the syntax is
one that older Pythons read, too.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("bench", "policy", "numpy", "rich")
EXIT_NO_ENVIRONMENT = 3
_GUARD = "QUARL_PROJECT_PYTHON"


def ensure(root: Path = ROOT) -> None:
    """Return if this Python has the project installed; else become the project's Python, or say how to make it."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        return
    python = str(root / ".venv" / "bin" / "python")
    if os.access(python, os.X_OK) and os.environ.get(_GUARD) != python:
        os.environ[_GUARD] = python  # an environment that is broken must not start itself for ever
        arguments = list(getattr(sys, "orig_argv", [sys.executable, *sys.argv]))[1:]
        os.execv(python, [python, *arguments])
    message = f"{sys.executable} lacks {', '.join(absent)}: this is not the project's environment."
    print(f"{message}\n  next: make -C {root} setup", file=sys.stderr)
    sys.exit(EXIT_NO_ENVIRONMENT)
