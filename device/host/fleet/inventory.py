"""fleet.toml: which devices there are, in which groups, and how each is served.

[groups.arena]
targets = ["pi@arena-[01-12]", "pi@192.168.1.40:2222"]
runtime = "litert"                   # or agent = "native"; bits = "8"; identity = "~/.ssh/arena"
labels = { hall = "3" }

[devices."pi@arena-07"]              # what is different on one of them
runtime = "native"
labels = { camera = "left" }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from device.host.errors import HostError, TargetError
from device.host.target import Target

FLEET_FILE = "fleet.toml"
GROUP_SIGN = "@"
"""A TARGET that begins with it is a group: ``@arena``; ``@all`` is every device."""
ALL = "all"
SETTINGS = ("runtime", "agent", "bits", "identity")
_RANGE = re.compile(r"\[(\d+)-(\d+)\]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_MOST_DEVICES = 10_000
_NEXT = "docs/fleet.md has an example of each line."


class FleetFileError(HostError):
    """fleet.toml is missing, cannot be read, or has no such group or device."""


@dataclass(frozen=True)
class Member:
    """A device of a fleet, and how it is served.

    Attributes:
        target: as TARGET names it; a device's name wherever it is shown.
        runtime, agent, bits: as the options of ``deploy``; None: as they are by default.
        identity: private key to offer first.
        labels: what it is chosen by beside its groups.
        groups: that it belongs to.
    """

    target: str
    runtime: str | None = None
    agent: str | None = None
    bits: str | None = None
    identity: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """The devices of a fleet.toml, in its order, each once."""

    file: Path
    members: tuple[Member, ...]
    groups: tuple[str, ...]

    @classmethod
    def load(cls, file: Path) -> Fleet:
        """Read a fleet.toml.

        Raises:
            FleetFileError: it is missing or cannot be read; says what was found where, and what is allowed.
        """
        try:
            text = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FleetFileError(
                f"There is no {file}.",
                f'Write one, or name it with --fleet FILE. Two lines are enough: [groups.{ALL}] and targets = ["pi@'
                'raspberrypi"].',
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FleetFileError(f"{file} cannot be read: {error}.", _NEXT) from None
        reader = _Reader(file)
        return cls(file, *reader.members(text))

    def selected(
        self, group: str = ALL, labels: Mapping[str, str] | None = None, only: Sequence[str] = ()
    ) -> tuple[Member, ...]:
        """The devices of a group that have all these labels; with ``only`` those of them that are named.

        Raises:
            FleetFileError: there is no such group or device, or none is left.
        """
        if group != ALL and group not in self.groups:
            raise FleetFileError(
                f"{self.file} has no group {group!r}; it has {', '.join(self.groups) or 'none'}.",
                f"Name one of them, or leave --group out, which is {ALL}.",
            )
        wanted = dict(labels or {})
        found = [each for each in self.members if group == ALL or group in each.groups]
        if unknown := sorted(set(only) - {each.target for each in found}):
            raise FleetFileError(
                f"{self.file} has no device {unknown[0]!r} in {group}; it has {_some(each.target for each in found)}.",
                "Name one as it stands there, its range written out.",
            )
        found = [each for each in found if wanted.items() <= each.labels.items() and (not only or each.target in only)]
        if not found:
            has = _some(sorted({f"{name}={value}" for each in self.members for name, value in each.labels.items()}))
            shown = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise FleetFileError(
                f"No device of {self.file} is in {group}{f' with {shown}' if shown else ''}; labels are {has}.", _NEXT
            )
        return tuple(found)


class _Reader:
    """Reads one file; each refusal names it and the place in it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def refused(self, what: str) -> FleetFileError:
        return FleetFileError(f"{self.file}: {what}.", _NEXT)

    def members(self, text: Mapping[str, Any]) -> tuple[tuple[Member, ...], tuple[str, ...]]:
        if unknown := sorted(text.keys() - {"groups", "devices"}):
            raise self.refused(f"[{unknown[0]}] is not known; allowed are [groups.NAME] and [devices.TARGET]")
        groups = self.table(text.get("groups", {}), "groups")
        if not groups:
            raise self.refused(f'it has no group; the smallest one is [groups.{ALL}] with targets = ["pi@raspberrypi"]')
        members: dict[str, Member] = {}
        for name, entry in groups.items():
            if not _NAME.match(name):
                raise self.refused(f"a group is called {name!r}; allowed are letters, digits, '.', '_' and '-'")
            entry = self.table(entry, f"groups.{name}")
            targets = entry.get("targets")
            if not isinstance(targets, list) or not targets:
                raise self.refused(f"[groups.{name}] has the targets {targets!r}; it needs a list of at least one")
            settings = self.settings(
                {key: value for key, value in entry.items() if key != "targets"}, f"groups.{name}", " and targets"
            )
            for target in self.expanded(targets, name):
                known = members.get(target, Member(target))
                labels = {**known.labels, **settings.get("labels", {})}
                members[target] = replace(_set(known, {**settings, "labels": labels}), groups=(*known.groups, name))
        for target, entry in self.table(text.get("devices", {}), "devices").items():
            if target not in members:
                raise self.refused(f"[devices.{target!r}] is in no group; it has {_some(members)}")
            settings = self.settings(self.table(entry, f"devices.{target!r}"), f"devices.{target!r}")
            labels = {**members[target].labels, **settings.get("labels", {})}
            members[target] = _set(members[target], {**settings, "labels": labels})
        return tuple(members.values()), tuple(groups)

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.refused(f"{where} is {value!r}; it must be a table, [{where}]")
        return value

    def settings(self, entry: Mapping[str, Any], where: str, more: str = "") -> dict[str, Any]:
        """The settings of a table, checked as far as this file goes; what their values mean, ``deploy`` checks."""
        found: dict[str, Any] = {}
        for name, value in entry.items():
            if name == "labels":
                labels = self.table(value, f"{where}.labels")
                found["labels"] = {str(key): str(each) for key, each in labels.items()}
            elif name not in SETTINGS:
                raise self.refused(f"[{where}] has {name!r}; allowed are {', '.join((*SETTINGS, 'labels'))}{more}")
            elif not isinstance(value, str) and not (name == "bits" and type(value) is int):
                raise self.refused(f"[{where}] has {name} = {value!r}; it must be a text in quotes")
            else:
                found[name] = Path(str(value)).expanduser() if name == "identity" else str(value)
        return found

    def expanded(self, targets: Sequence[Any], group: str) -> list[str]:
        """Every target with its range written out, and read as TARGET is."""
        found: list[str] = []
        for target in targets:
            if not isinstance(target, str):
                raise self.refused(f"[groups.{group}] has the target {target!r}; it must be a text in quotes")
            found += self.range(target, group)
        for name in found:
            try:
                if Target.parse(name).host.startswith(GROUP_SIGN):
                    raise self.refused(f"[groups.{group}] has the target {name!r}, which is a group")
            except TargetError as error:
                raise self.refused(f"[groups.{group}]: {error.message.rstrip('.')}") from None
        return found

    def range(self, target: str, group: str) -> list[str]:
        found = _RANGE.search(target)
        if found is None:
            return [target]
        first, last = found[1], found[2]
        if int(first) > int(last) or int(last) - int(first) >= _MOST_DEVICES:
            raise self.refused(
                f"[groups.{group}] has the range {found[0]}; it must rise, by less than {_MOST_DEVICES:,}"
            )
        numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        written = [target[: found.start()] + number + target[found.end() :] for number in numbers]
        return [each for one in written for each in self.range(one, group)]


def _set(member: Member, settings: Mapping[str, Any]) -> Member:
    """A device with settings of a later table, where one of runtime and agent decides about both."""
    both = {"runtime": None, "agent": None} if settings.keys() & {"runtime", "agent"} else {}
    return replace(member, **{**both, **settings})


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "") or "none"
