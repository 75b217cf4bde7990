"""Commands run by any Python: this hands them over to the project's own. For the host; a device calls none of it.

``python3 -m train`` or ``python3 bench/latency.py`` may be typed with a Python that has none of the project's
packages. Then the command is started again, with the same arguments, by ``.venv/bin/python`` of the checkout; where
there is none, the one command that makes it is printed. The packages whose modules are commands ask for that before
they import anything; nothing but the standard library is imported here, in a syntax that older Pythons read, too.
"""

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("quarl", "numpy", "gymnasium", "paramiko", "rich", "safetensors")
EXTRAS = {
    "tensorflow": "train",
    "tensorboard": "train",
    "keras": "keras",
    "h5py": "keras",
    "matplotlib": "report",
    "scipy": "report",
    "imageio": "video",
    "msgpack": "airsim",
    "ray": "actorq",
}
"""By the module that a command may find missing, the extra of pyproject.toml that brings it."""
EXIT_NO_ENVIRONMENT = 3
_GUARD = "QUARL_PROJECT_PYTHON"


def begin() -> None:
    """What a package whose modules are commands calls before it imports anything. When one of them is typed, by
    whatever Python: go on with the project's; until it has loaded, Ctrl-C ends it with a line."""
    _keep_home_clean()
    if sys.argv[:1] != ["-m"]:  # as argv begins until Python has found the module that is named after it
        return
    ensure()
    from quarl.policy import interruption

    interruption.loading()


def _keep_home_clean() -> None:
    """Give Keras and matplotlib a folder in the cache; by themselves they make one in HOME as soon as they load."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/"), ".cache"), "quarl")
    os.environ.setdefault("KERAS_HOME", str(cache / "keras"))
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))


def ensure(root: Path = ROOT) -> None:
    """Return if this Python has the project installed; else become the project's Python, or say how to make it."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        sys.excepthook = _name_extra
        return
    python = str(root / ".venv" / "bin" / "python")
    typed = getattr(sys, "orig_argv", None)  # since Python 3.10
    if typed and os.access(python, os.X_OK) and os.environ.get(_GUARD) != python:
        os.environ[_GUARD] = python  # an environment that is broken must not start itself for ever
        os.execv(python, [python, *typed[1:]])
    is_checkout = (root / "Makefile").is_file()
    print(
        f"{sys.executable} lacks {', '.join(absent)}: this is not the project's environment.\n"
        f"  next: {f'make -C {shlex.quote(str(root))} setup' if is_checkout else 'pip install quarl'}",
        file=sys.stderr,
    )
    sys.exit(EXIT_NO_ENVIRONMENT)


def install_hint(module: str) -> str:
    """Name a missing module of ``EXTRAS`` and the command that installs it."""
    return f'{module} is not installed. Type: pip install "quarl[{EXTRAS[module]}]"'


def _name_extra(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
    """Print the extra that brings a missing package, in a line; other errors as ever."""
    module = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and module in EXTRAS:
        print(f"error: {install_hint(module)}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
