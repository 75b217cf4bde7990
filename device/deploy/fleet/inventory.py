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

import bisect
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quarl.device.deploy.errors import HostError, TargetError
from quarl.device.deploy.target import Target, with_home

FLEET_FILE = "fleet.toml"
GROUP_SIGN = "@"
"""A TARGET that begins with it is a group: ``@arena``; ``@all`` is every device."""
ALL = "all"
SETTINGS = ("runtime", "agent", "bits", "identity")
_RANGE = re.compile(r"\[([0-9]+)-([0-9]+)\]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_MOST_DEVICES = 10_000
"""In one file, ranges written out; a device counts in each of its groups."""
_MOST_SHOWN = 400
"""Signs of a refusal's reason: what stands in a file may be long."""
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
        text = ""
        try:
            text = file.read_text(encoding="utf-8")
            reader = _Reader(file, text.splitlines())
            return cls(file, *reader.members(tomllib.loads(text)))
        except FileNotFoundError:
            raise FleetFileError(
                f"There is no {file}.",
                f"Write one, or type --fleet FILE. Two lines are enough: [groups.{ALL}] and targets = "
                '["pi@raspberrypi"].',
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FleetFileError(f"{file} cannot be read: {str(error)[:_MOST_SHOWN]}.", _NEXT) from None
        except (RecursionError, ValueError) as error:  # tables and lists within one another, a number of 5,000 digits
            kind = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
            raise FleetFileError(
                f"{file}, line {_failing_line(text.splitlines(), type(error))}: {kind}; the file must hold "
                "[groups.NAME] and [devices.TARGET] with strings, lists of strings and labels.",
                _NEXT,
            ) from None

    def select_members(
        self, group: str = ALL, labels: Mapping[str, str] | None = None, only: Sequence[str] = ()
    ) -> tuple[Member, ...]:
        """Return the devices of a group that have all these labels; with ``only`` those of them that are named.

        Raises:
            FleetFileError: there is no such group or device, or none is left.
        """
        if group != ALL and group not in self.groups:
            raise FleetFileError(
                f"{self.file} has no group {group!r}; it has {', '.join(self.groups) or 'none'}.",
                f"Type one of them, or leave --group out for {ALL}.",
            )
        wanted = dict(labels or {})
        members = [member for member in self.members if group == ALL or group in member.groups]
        if unknown := sorted(set(only) - {member.target for member in members}):
            raise FleetFileError(
                f"{self.file} has no device {unknown[0]!r} in {group}; it has "
                f"{_some(member.target for member in members)}.",
                "Type a device as the file names it, with its range expanded.",
            )
        members = [
            member
            for member in members
            if wanted.items() <= member.labels.items() and (not only or member.target in only)
        ]
        if not members:
            has = _some(sorted({f"{name}={value}" for member in self.members for name, value in member.labels.items()}))
            labels_text = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise FleetFileError(
                f"No device of {self.file} is in {group}{labels_text and f' with {labels_text}'}; the labels are "
                f"{has}.",
                _NEXT,
            )
        return tuple(members)


class _Reader:
    """Reads one file; each refusal names it and the place in it."""

    def __init__(self, file: Path, lines: Sequence[str]) -> None:
        self.file, self._lines, self._named = file, lines, 0

    def build_file_error(self, what: str, *where: str) -> FleetFileError:
        """Return the refusal of what stands at a place: under a heading, ``groups.arena``, the first line with some
        words."""
        excerpt = what if len(what) <= _MOST_SHOWN else f"{what[: _MOST_SHOWN // 2]} … {what[-_MOST_SHOWN // 2 :]}"
        return FleetFileError(f"{self.file}, line {self._line_of(where)}: {excerpt}.", _NEXT)

    def _line_of(self, where: Sequence[str]) -> int:
        lines, at = [line.partition("#")[0] for line in self._lines], 0
        for heading in where[:1]:
            bare = (re.sub(r"[\s'\"]", "", line) for line in lines)
            wanted = "".join(heading.split())
            at = next(
                (number for number, line in enumerate(bare) if line.startswith((f"[{wanted}]", f"[{wanted}."))), 0
            )
        for word in where[1:]:
            at = next((number for number in range(at, len(lines)) if word in lines[number]), at)
        return at + 1

    def members(self, text: Mapping[str, Any]) -> tuple[tuple[Member, ...], tuple[str, ...]]:
        if unknown := sorted(text.keys() - {"groups", "devices"}):
            raise self.build_file_error(
                f"[{unknown[0]}] is not known; allowed are [groups.NAME] and [devices.TARGET]", unknown[0]
            )
        groups = self.table(text.get("groups", {}), "groups")
        if not groups:
            raise self.build_file_error(
                f'the file has no group; the smallest one is [groups.{ALL}] with targets = ["pi@raspberrypi"]'
            )
        members: dict[str, Member] = {}
        for name, entry in groups.items():
            if not _NAME.match(name):
                raise self.build_file_error(
                    f"a group's name must consist of letters, digits, '.', '_' and '-', got {name!r}", f"groups.{name}"
                )
            entry = self.table(entry, f"groups.{name}")
            targets = entry.get("targets")
            if not isinstance(targets, list) or not targets:
                raise self.build_file_error(
                    f"targets of [groups.{name}] must be a list of at least one, got {targets!r}",
                    f"groups.{name}",
                    "targets",
                )
            settings = self.settings(
                {key: value for key, value in entry.items() if key != "targets"}, f"groups.{name}", " and targets"
            )
            for target in self.expand_targets(targets, name):
                known = members.get(target, Member(target))
                labels = {**known.labels, **settings.get("labels", {})}
                members[target] = replace(_set(known, {**settings, "labels": labels}), groups=(*known.groups, name))
        for target, entry in self.table(text.get("devices", {}), "devices").items():
            if target not in members:
                raise self.build_file_error(
                    f"[devices.{target!r}] must be in a group; the groups have {_some(members)}", f"devices.{target}"
                )
            settings = self.settings(self.table(entry, f"devices.{target}"), f"devices.{target}")
            labels = {**members[target].labels, **settings.get("labels", {})}
            members[target] = _set(members[target], {**settings, "labels": labels})
        return tuple(members.values()), tuple(groups)

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.build_file_error(f"{where} must be a table, [{where}], got {value!r}", where)
        return value

    def settings(self, entry: Mapping[str, Any], where: str, more: str = "") -> dict[str, Any]:
        """Return the settings of a table, checked as far as this file goes; what their values mean, ``deploy``
        checks."""
        settings: dict[str, Any] = {}
        for name, value in entry.items():
            if name == "labels":
                labels = self.table(value, f"{where}.labels")
                if wrong := [key for key, label in labels.items() if not isinstance(label, str | int | float)]:
                    raise self.build_file_error(
                        f"label {wrong[0]} of [{where}] must be a string in quotes, got {labels[wrong[0]]!r}",
                        where,
                        wrong[0],
                    )
                settings["labels"] = {key: str(label) for key, label in labels.items()}
            elif name not in SETTINGS:
                raise self.build_file_error(
                    f"[{where}] has {name!r}; allowed are {', '.join((*SETTINGS, 'labels'))}{more}", where, name
                )
            elif not isinstance(value, str) and not (name == "bits" and type(value) is int):
                raise self.build_file_error(
                    f"{name} of [{where}] must be a string in quotes, got {value!r}", where, name
                )
            elif not str(value).isprintable():
                raise self.build_file_error(
                    f"{name} of [{where}] must be a string on one line, got {value!r}", where, name
                )
            else:
                try:
                    settings[name] = with_home(Path(str(value))) if name == "identity" else str(value)
                except TargetError as error:
                    raise self.build_file_error(
                        f"[{where}] has {name} = {error.message.rstrip('.')}", where, name
                    ) from None
        return settings

    def expand_targets(self, targets: Sequence[Any], group: str) -> list[str]:
        """Return every target with its range written out, and read as TARGET is."""
        names: list[str] = []
        where = f"groups.{group}"
        for target in targets:
            if not isinstance(target, str):
                raise self.build_file_error(f"targets of [{where}] must be strings in quotes, got {target!r}", where)
            for name in self.range(target, where):
                try:
                    Target.parse(name)
                except TargetError as error:
                    raise self.build_file_error(f"[{where}]: {error.message.rstrip('.')}", where, target) from None
                names.append(name)
        return names

    def range(self, target: str, where: str) -> Iterator[str]:
        """Yield a target with each of its ranges written out; how many there will be is known before."""
        ranges, count = list(_RANGE.finditer(target)), 1
        for match in ranges:
            first, last = (int(match[end]) if len(match[end]) < 10 else _MOST_DEVICES for end in (1, 2))
            if first > last or last - first >= _MOST_DEVICES or max(map(len, match.groups())) >= 10:
                raise self.build_file_error(
                    f"ranges of [{where}] must rise, by less than {_MOST_DEVICES:,}, got {match[0]}", where, target
                )
            count *= last - first + 1
            if self._named + count > _MOST_DEVICES:
                raise self.build_file_error(
                    f"all groups together must name at most {_MOST_DEVICES:,} devices; the target {target!r} of "
                    f"[{where}] exceeds that",
                    where,
                    target,
                )
        self._named += count
        numbers = [
            [str(number).zfill(len(match[1])) for number in range(int(match[1]), int(match[2]) + 1)] for match in ranges
        ]
        before, *others = _RANGE.split(target)[::3]  # what stands around the ranges
        for chosen in itertools.product(*numbers):
            yield before + "".join(map(str.__add__, chosen, others))


def _failing_line(lines: Sequence[str], kind: type[Exception]) -> int:
    """Return the first line with which reading a file fails so."""

    def fails(count: int) -> bool:
        try:
            tomllib.loads("\n".join(lines[:count]))
        except (RecursionError, ValueError) as error:
            return type(error) is kind
        return False

    return bisect.bisect_left(range(len(lines)), True, key=fails)


def _set(member: Member, settings: Mapping[str, Any]) -> Member:
    """Return a device with settings of a later table, where one of runtime and agent decides about both."""
    both = {"runtime": None, "agent": None} if settings.keys() & {"runtime", "agent"} else {}
    return replace(member, **{**both, **settings})


def _some(names: Iterable[str]) -> str:
    items = list(names)
    return ", ".join(items[:6]) + (f" and {len(items) - 6} more" if len(items) > 6 else "") or "none"
