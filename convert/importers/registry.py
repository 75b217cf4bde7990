"""The formats of policies that ``quarl import`` reads: entry points of the group ``quarl.importers``.

Another package adds a format by an entry point that names an :class:`Importer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from quarl.convert.importers.chain import ForeignError, ForeignPolicy

GROUP = "quarl.importers"
ANY = "*"  # an ending: that of any file, of which ``recognises`` decides


def _always(path: Path) -> bool:
    return True


@dataclass(frozen=True)
class Importer:
    """A format of policies.

    Attributes:
        name: what people call it.
        endings: suffixes of its files, in lower case; ``""`` for a folder, ANY for files that are renamed often.
        read: a path and, by keyword, those of the options that were given, to the policy.
        options: of ``quarl import`` that it understands: vecnormalize, output, spec, states.
        recognises: whether a file of such an ending is of this format. Formats that look are asked before others.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[..., ForeignPolicy]
    options: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] = _always


@cache
def importers() -> tuple[Importer, ...]:
    """Return the installed formats, those first that look into a file.

    Raises:
        ForeignError: an entry point cannot be loaded.
    """
    formats: list[Importer] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            formats.append(entry.load())
        except (ImportError, AttributeError) as error:
            raise ForeignError(
                f"the format {entry.name!r} of {entry.value} cannot be loaded: {error}.",
                "Install what it needs, or remove its package.",
            ) from error
    return tuple(sorted(formats, key=lambda each: each.recognises is _always))


def read(path: Path, **options: Any) -> ForeignPolicy:
    """Return the policy in a file or folder.

    Args:
        path: of the file.
        options: of ``quarl import``, None where it was not given: see :class:`Importer`.

    Raises:
        ForeignError: the file is missing, of no known format, or holds what a bundle cannot express; or an option
            means nothing to its format.
    """
    endings_of = {importer.name: [end for end in importer.endings if end not in ("", ANY)] for importer in importers()}
    kinds = ", ".join(f"{'/'.join(endings)} ({name})" for name, endings in endings_of.items())
    if not path.exists():
        raise ForeignError(f"there is no file {path}.", f"Type the path of a file: {kinds}.")
    ending = "" if path.is_dir() else path.suffix.lower()
    for importer in importers():
        if not {ending, ANY}.isdisjoint(importer.endings) and importer.recognises(path):
            given_options = {name: value for name, value in options.items() if value is not None}
            _refuse_unused(importer, given_options)
            return importer.read(path, **given_options)
    raise ForeignError(f"{path} has an unknown format; it must be one of {kinds}.")


def _refuse_unused(importer: Importer, given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in importer.options:
            raise ForeignError(f"--{name} does not apply to {importer.name}.", "Leave it out.")
