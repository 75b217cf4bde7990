"""What a message tells the reader to type, as it works in the reader's own shell (host only).

Messages name commands as the documentation does: ``python -m train``, ``python bench/latency.py``. Debian has no
``python``, and an environment need not be activated; so whatever prints a message to a person prints it through
:func:`as_typed`, and a command line is read by a :class:`Parser`.
"""

from __future__ import annotations

import argparse
import errno
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from quarl.policy.places import CODE, IN_CHECKOUT

FULL_DISK = "The disk is full: make room (df -h shows where), then type the same command again."
_COMMAND = re.compile(
    r"(?<![\w./-])python (?:-m (?P<module>airlearning_envs|bench|convert|device|train)\b"
    r"|(?P<script>(?:bench|examples)/\w+\.py))"
)


def as_typed(text: str) -> str:
    """The text with each of the project's commands as it works in this shell and this folder.

    ``python`` stays where it is the Python that runs this; else it becomes ``.venv/bin/python``, with a longer path
    from another folder. So does the path of a script. Of an installed package, modules are those of ``quarl``.
    """
    return _COMMAND.sub(_typed_here, text)


def _typed_here(command: re.Match[str]) -> str:
    script, module = command["script"], command["module"]
    if IN_CHECKOUT:
        return f"{_python()} {_from_here(CODE / script) if script else f'-m {module}'}"
    return f"{_python()} -m quarl.{module or script.removesuffix('.py').replace('/', '.')}"


def make_room(error: OSError, otherwise: str = "") -> str:
    """What to do where an error means that the disk is full, and where it means something else."""
    return FULL_DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


def refused(program: str, error: Exception, where: object) -> int:
    """Say why a command ends, on standard error; returns its exit status, 1.

    Args:
        program: its name.
        error: what refused it, in words of its own, or an OSError.
        where: what could not be written, where an OSError names no file.
    """
    if isinstance(error, OSError):
        place = error.filename or where
        print(f"{program}: {place} cannot be written: {error.strerror}. {make_room(error)}", file=sys.stderr)
    else:
        print(as_typed(f"{program}: {error}"), file=sys.stderr)
    return 1


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a parser's description and examples, as they are typed here."""

    def format_help(self) -> str:
        """The help or the usage."""
        return as_typed(super().format_help())


class Parser(argparse.ArgumentParser):
    """Refuses with what was received, what is allowed and where examples are, instead of with every option there is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)

    def error(self, message: str) -> NoReturn:
        """Print the message; the exit status is 2."""
        self.exit(2, as_typed(f"error: {message}\n  next: {self.prog} --help\n"))


def _python() -> str:
    found, running = shutil.which("python"), Path(sys.executable)
    if found is not None and Path(found).parent == running.parent:
        return "python"
    beside = running.with_name("python")
    return _from_here(beside if beside.exists() else running)


def _from_here(path: Path) -> str:
    """The path as one types it in the current folder: relative where that is shorter and leads there."""
    try:
        return shlex.quote(str(path.relative_to(Path.cwd())))
    except (OSError, ValueError):  # elsewhere, or in a folder that is gone
        return shlex.quote(str(path))
