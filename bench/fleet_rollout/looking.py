"""What a device's own files say, and whether what a rollout told of the device fits them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.fleet_rollout.arena import Arena

SETTLED_S = 120.0
"""How long devices have to remove what a host that was killed left half sent."""
PAUSE_S = 1.0
NEW, BEFORE = "new", "before"
FITS: Mapping[str, tuple[str, ...]] = {
    "proved": (NEW,),
    "switched": (NEW,),
    "unchanged": (NEW,),
    "refused": (BEFORE,),
    "not changed": (BEFORE,),
    "rolled back": (BEFORE,),
    "stopped": (BEFORE,),
    "not begun": (BEFORE,),
    "begun": (BEFORE, NEW),  # told last by a rollout that was killed
    "switching": (BEFORE, NEW),
    "failed": (BEFORE, NEW),  # on its way back
    "unknown": (BEFORE, NEW),
    "rollback failed": (BEFORE, NEW),
}
"""What a device may serve of which this state was told last: the new release, or what it served before."""


@dataclass(frozen=True)
class Seen:
    """The files of one device.

    Attributes:
        release: that the link names; None: there is none.
        precision: of that release.
        half: what is half done: files of a deployment, a link to nothing, a file of the release that is not as its
            record has it.
        trace: is another one after anything was done on the device.
    """

    release: str | None
    precision: str | None
    half: tuple[str, ...]
    trace: tuple[object, ...]


def look(folder: Path) -> Seen:
    """Read the folder of a policy on a device."""
    half = [path.name for pattern in ("incoming/*", "current.*") for path in sorted(folder.glob(pattern))]
    releases = tuple(sorted(path.name for path in folder.glob("releases/*")))
    link = folder / "current"
    if not link.is_symlink():
        return Seen(None, None, tuple(half), releases)
    at, name = link.lstat(), link.readlink().name
    trace = (name, at.st_ino, at.st_mtime_ns, *releases)
    release = folder / "releases" / name
    try:
        record = json.loads((release / "release.json").read_bytes())
        precision = str(record["precisions"][0])
        half += [file for file, sha256 in record["files"].items() if _sha256(release / file) != sha256]
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Seen(name, None, (*half, f"{name}: {error!r}"), trace)
    return Seen(name, precision, tuple(half), trace)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def settled(arena: Arena) -> tuple[dict[str, Seen], float]:
    """Every device's files once nothing is half done and nothing changes any more, or as they are when that lasts too
    long; and the seconds that it took."""
    begun = time.monotonic()
    before: dict[str, Seen] = {}
    while True:
        at = time.monotonic() - begun
        seen = {name: look(arena.folder(name)) for name in arena.fleet.names}
        if at > SETTLED_S or (seen == before and not any(each.half for each in seen.values())):
            return seen, at
        before = seen
        time.sleep(PAUSE_S)


def untrue(states: Mapping[str, str], precision: str, before: Mapping[str, Seen], now: Mapping[str, Seen]) -> list[str]:
    """A sentence for each device of which something was told that its files do not say."""
    found = []
    for name, state in states.items():
        seen, allowed = now[name], FITS.get(state, ())
        fits = (NEW in allowed and seen.precision == precision) or (
            BEFORE in allowed and seen.release == before[name].release
        )
        if not fits:
            found.append(f"{name} is told to be {state} and serves {seen.release}; before: {before[name].release}")
    return found
