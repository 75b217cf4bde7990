"""What a device has deployed, parsed from what ``snapshot`` of on_device/session.sh prints."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quarl.device.deploy.records import (
    GOOD,
    MARK_FILE,
    MARKS,
    POLICY_NAME,
    RECORD_FILE,
    RELEASE_NAME,
    Mark,
    Record,
    number_of,
    parse_mark,
    parse_old_record,
    parse_record,
)

ROLLOUT_FILE, ENDED_FILE = "rollout.json", "rollout.ended.json"
"""Beside current: who rolls out here, or did last. To end one is a rename, which needs no room on the disk."""
TRIAL_LINK = "trial"
"""Beside current while that is on trial in a loop: the release to go back to."""
TRUSTED = "trusted"
_CURRENT = re.compile(r"releases/([0-9]{4,8}-[0-9a-z]{1,16})\Z")
_ACCEPTED = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*) ([0-9]{1,15})|([A-Za-z0-9._-]+/[0-9a-z-]+) ([0-9a-f]{64}))\Z")
_FIELDS = ("release", "damage", "created", "by", "precisions", "runtimes", "digest", "signer")


@dataclass
class Item:
    """One path: ``folder``, ``file``, ``link`` (its content is where it leads), ``special file``, or "": nothing."""

    kind: str
    content: str = ""


@dataclass
class Accepted:
    """What a device has accepted: the last serial of each policy, and the sha256 of each release's record."""

    serials: dict[str, int] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    damaged_lines: int = 0

    @classmethod
    def parse(cls, text: str, older: str) -> Accepted:
        """Read the file, and what an older version remembered; a line that cannot be read is left out and counted."""
        accepted, serials = cls(), dict[str, int]()
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError, RecursionError):
            serials = {
                name: serial
                for name, serial in json.loads(older)["serials"].items()
                if type(serial) is int and 0 <= serial < 10**15
            }
        for line in text.splitlines():
            if not (match := _ACCEPTED.match(line)):
                accepted.damaged_lines += bool(line.strip())
            elif match[1]:
                accepted.serials[match[1]] = max(int(match[2]), accepted.serials.get(match[1], 0))
            else:
                accepted.releases[match[3]] = match[4]
        accepted.serials = {**serials, **accepted.serials}
        return accepted

    @property
    def text(self) -> str:
        """The file's content."""
        lines = [f"{name} {value}" for name, value in (*self.serials.items(), *self.releases.items())]
        return "".join(f"{line}\n" for line in lines)


@dataclass
class Policy:
    """One policy's releases, oldest first, and what lies beside them."""

    current: str | None = None
    trial: str | None = None
    """The release to go back to while ``current`` is on trial, or was when that was cut off."""
    releases: list[Record] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    """``trusted``, or why the device does not trust a release; of those that were asked for."""
    rollout: dict[str, Any] | None = None
    misplaced: list[str] = field(default_factory=list)
    running: dict[str, list[int]] = field(default_factory=dict)
    """Processes that work in a release's folder, by release."""
    leftovers: list[str] = field(default_factory=list)
    """Paths that a deployment which died left behind."""

    def is_good(self, record: Record) -> bool:
        """Return whether nothing is known against a release."""
        mark = self.marks.get(record.release)
        return not record.damage and not record.is_old and (mark is None or mark.kind == GOOD)

    def describe(self) -> dict[str, Any]:
        """Return it as ``releases --json`` prints it."""
        releases = []
        for record in self.releases:
            mark = self.marks.get(record.release)
            marks = {kind: mark.reason if mark is not None and mark.kind == kind else "" for kind in MARKS}
            trust = self.verdicts.get(record.release, "")
            values = {key: getattr(record, key) for key in _FIELDS}
            known = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
            releases.append({**known, **marks, "trust": trust, "is_old": record.is_old})
        return {"current": self.current, "releases": releases, "rollout": self.rollout}


@dataclass
class DeviceState:
    """Everything of ~/quarl that a host decides by."""

    facts: dict[str, str]
    items: dict[str, Item]
    policies: dict[str, Policy]
    sha256: dict[str, str]
    """Of what starts loops there, by its path."""

    @property
    def root(self) -> str:
        """~/quarl without links; empty where it is none."""
        return self.facts.get("root", "")

    @property
    def free_bytes(self) -> int:
        """Bytes that an ordinary user may still write."""
        return max(0, int(self.facts.get("free_kib", "0"))) * 1024

    @property
    def free_inodes(self) -> int | None:
        """Files that may still be made; None where the file system does not count them."""
        free = self.facts.get("free_inodes", "")
        return int(free) if free.isdigit() else None

    @property
    def environments(self) -> list[str]:
        """Folders of unpacked wheels."""
        return [path.removeprefix("envs/") for path, item in self.items.items() if item.kind == "wheel"]

    @property
    def unpacked_wheels(self) -> list[str]:
        """The same, and those that are not whole."""
        names = (path.removeprefix("envs/") for path, item in self.items.items() if item.kind in ("wheel", "folder"))
        return [name for name in names if f"envs/{name}" in self.items and not name.endswith(".part")]

    @property
    def accepted_record(self) -> Accepted:
        """What was accepted here."""
        return Accepted.parse(self.content("trust/accepted"), self.content("trust/accepted.json"))

    def content(self, path: str) -> str:
        """Return the content of a file; empty where there is none."""
        item = self.items.get(path)
        return item.content if item is not None and item.kind == "file" else ""

    def lines(self, path: str) -> list[str]:
        """Its lines that hold something."""
        return [line.strip() for line in self.content(path).splitlines() if line.strip()]

    @property
    def trust(self) -> dict[str, Any]:
        """What a host has to know before it signs."""
        anchor = self.facts["anchor"]
        trust: dict[str, Any] = {
            "anchor": anchor,
            "by_root": bool(self.facts["by_root"]),
            "signers": self.lines(f"{anchor}/allowed_signers"),
            "revoked": self.lines(f"{anchor}/revoked"),
            "floor": self.lines(f"{anchor}/floor"),
            "target_class": self.facts["class"],
        }
        if why := self.facts.get("kept"):
            trust["refused"] = why
        return trust

    @property
    def holder(self) -> dict[str, Any]:
        """What the holder of the lock wrote about itself."""
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            data = json.loads(self.content("lock"))
            return {key: value for key, value in data.items() if isinstance(value, str | int)}
        return {}

    def of(self, policy: str) -> Policy:
        """Return a policy's state; an empty one where nothing of it is here."""
        return self.policies.get(policy, Policy())

    @property
    def layout_problems(self) -> list[str]:
        """Sentences on what all policies share and is not what it must be: a link would lead writes out of ~/quarl."""
        problems = [_must_be(self.root, path, self.items, "folder") for path in ("policies", "envs")]
        problems.append(_must_be(self.root, "lock", self.items, "file"))
        return [problem for problem in problems if problem]

    @property
    def problems(self) -> list[str]:
        """The same with what each policy has of its own, and what the next deployment mends."""
        problems = self.layout_problems
        for policy in self.policies.values():
            problems += policy.misplaced
        if damaged := self.accepted_record.damaged_lines:
            problems.append(
                f"{self.root}/trust/accepted has {damaged} lines that cannot be read; the next deployment mends it"
            )
        return list(dict.fromkeys(problems))

    @property
    def leftovers(self) -> list[str]:
        """Paths that a deployment which died left behind."""
        parts = [path for path in self.items if path.startswith("envs/") and path.endswith(".part")]
        return [*parts, *(path for policy in self.policies.values() for path in policy.leftovers)]

    def describe(self) -> dict[str, Any]:
        """Return everything that is deployed, as ``releases --json`` prints it."""
        return {
            "root": self.root,
            "free_bytes": self.free_bytes,
            "environments": sorted(self.environments),
            "locked_by": self.holder if self.facts.get("locked") else None,
            "policies": {name: policy.describe() for name, policy in self.policies.items()},
            "problems": self.problems,
        }


def _must_be(root: str, path: str, items: Mapping[str, Item], wanted: str) -> str:
    kind = items[path].kind if path in items else ""
    kind = "symbolic link" if kind == "link" else kind
    article = "an" if wanted.startswith("i") else "a"
    return "" if kind in ("", wanted) else f"{root}/{path} is a {kind}; it must be {article} {wanted}"


def parse_snapshot(text: str) -> DeviceState:
    """Read what ``snapshot`` printed."""
    facts, items, sha256 = dict[str, str](), dict[str, Item](), dict[str, str]()
    verdicts, running = dict[str, str](), dict[str, dict[str, list[int]]]()
    lines: list[str] = []
    last = Item("")

    for line in text.split("\n"):
        if line.startswith(" "):
            lines.append(line[1:])
        elif line.startswith("#sha256 "):
            digest, _, path = line.removeprefix("#sha256 ").partition("  ")
            sha256[path] = digest
        elif line.startswith("#"):
            key, _, value = line[1:].partition(" ")
            facts[key] = value
        elif line.startswith("="):
            last.content, last, lines = "\n".join(lines), Item(""), []
            kind, _, path = line[1:].partition("\t")
            if kind == "verdict":
                path, _, verdict = path.partition("\t")
                code, _, message = verdict.strip().partition(" ")
                verdicts[path] = TRUSTED if code == "ok" else message.partition(": ")[2] or code
            elif kind == "process":
                pid, policy, release = path.split("\t")
                running.setdefault(policy, {}).setdefault(release, []).append(int(pid))
            else:
                last = items[path] = Item(kind)
    last.content = "\n".join(lines)
    policies = {}
    for path, item in items.items():
        name = path.removeprefix("policies/")
        if path.startswith("policies/") and POLICY_NAME.match(name):
            policies[name] = _parse_policy(facts.get("root", ""), name, item, items, verdicts, running.get(name, {}))
    return DeviceState(facts, items, policies, sha256)


def _parse_policy(
    root: str,
    name: str,
    folder: Item,
    items: Mapping[str, Item],
    verdicts: Mapping[str, str],
    running: dict[str, list[int]],
) -> Policy:
    own, policy = f"policies/{name}", Policy(running=running)
    for path in (own, f"{own}/releases", f"{own}/incoming"):
        policy.misplaced += filter(None, [_must_be(root, path, items, "folder")])
    if folder.kind != "folder":
        return policy
    for path, item in items.items():
        parent, _, release = path.rpartition("/")
        if parent == f"{own}/releases" and RELEASE_NAME.match(release):
            policy.releases.append(_parse_release(name, path, release, item, items))
            if mark := _mark_of(path, items):
                policy.marks[release] = mark
            if path in verdicts:
                policy.verdicts[release] = verdicts[path]
        elif (parent == f"{own}/incoming" and items[parent].kind == "folder") or (
            parent == own and release.startswith(("current.", "trial."))
        ):
            policy.leftovers.append(path)
    policy.releases.sort(key=lambda record: number_of(record.release))
    link, wrong = items.get(f"{own}/current", Item("")), _must_be(root, f"{own}/current", items, "link")
    if link.kind not in ("", "link"):
        policy.misplaced.append(wrong.replace("a link", "a symbolic link to releases/ID"))
    elif link.kind:
        policy.current = _leads_to(own, link, items)
        if policy.current is None:
            leads = link.content[:80]
            policy.misplaced.append(f"{root}/{own}/current leads to {leads!r}, which is no release")
    if (trial := items.get(f"{own}/{TRIAL_LINK}", Item(""))).kind == "link":
        policy.trial = _leads_to(own, trial, items)
    for file in (ENDED_FILE, ROLLOUT_FILE):
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            data = json.loads(items[f"{own}/{file}"].content if f"{own}/{file}" in items else "")
            known = {key: value for key, value in data.items() if isinstance(value, str | int)}
            policy.rollout = {**known, "ended": file == ENDED_FILE}
    return policy


def _leads_to(own: str, link: Item, items: Mapping[str, Item]) -> str | None:
    match = _CURRENT.match(link.content)
    there = match and items.get(f"{own}/releases/{match[1]}", Item("")).kind == "folder"
    return match[1] if match and there else None


def _parse_release(policy: str, path: str, release: str, item: Item, items: Mapping[str, Item]) -> Record:
    if item.kind != "folder":
        kind = "symbolic link" if item.kind == "link" else item.kind
        return Record(release, f"{release} is a {kind}, not a folder")
    for file, parse in ((RECORD_FILE, parse_record), ("release.json", parse_old_record)):
        record = items.get(f"{path}/{file}", Item(""))
        if record.kind == "file":
            return parse(release, policy, record.content)
        if record.kind:
            return Record(release, f"{file} is a {record.kind}")
    return Record(release, "its record is missing")


def _mark_of(path: str, items: Mapping[str, Item]) -> Mark | None:
    mark = items.get(f"{path}/{MARK_FILE}", Item(""))
    return parse_mark(mark.content if mark.kind == "file" else "") if mark.kind else None
