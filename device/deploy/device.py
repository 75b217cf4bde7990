"""What a host does on a device, under the device's lock: one way, with Python on it and without.

The host decides, by what :mod:`state` has read; the device verifies, by on_device/verify.sh alone, and does what
on_device/session.sh has functions for.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl.device.deploy import loops
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import (
    DeviceFullError,
    DeviceLockedError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    VerificationError,
)
from quarl.device.deploy.records import GOOD, MARK_FILE, PROGRAM, STARTER, Record, number_of, parse_record
from quarl.device.deploy.remote_process import ISOLATED
from quarl.device.deploy.shell import LONG_TIMEOUT_S, SILENCE_S, VERIFIER, DeviceShell, Progress, quote_words, refusal
from quarl.device.deploy.signing.lists import change_lists, lists_text
from quarl.device.deploy.state import ENDED_FILE, ROLLOUT_FILE, TRIAL_LINK, Accepted

KEEP_RELEASES = 3
LOCK_POLL_S = 0.5
MOST_NUMBER = 9_000_000
"""Of a release; a folder with a higher one was not made here."""
_WHEELS = VERIFIER.with_name("wheels.py")


class Device(DeviceShell):
    """The releases on a device, and this host's hold on them."""

    def __init__(self, connection: Connection, python: str = "", silence_s: int = SILENCE_S) -> None:
        """Start a shell there; see :class:`DeviceShell`."""
        super().__init__(connection, python, silence_s)
        self.record = Record("", "no record was received")
        self.incoming, self._text = "", ""
        """incoming/ID below ~/quarl, once :meth:`receive` has opened it."""
        self._compared: dict[str, Mapping[str, Any]] = {}

    def show(self) -> dict[str, Any]:
        """Return everything that is deployed; needs no lock."""
        return self.read(verdicts=True).describe()

    def begin(self, policy: str, digest: str | None, by: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Take the lock, remove what a deployment that died left, return what is here.

        Raises:
            DeviceLockedError: another deployment is at work.
            RemoteCommandError: something else is in the place of a folder of ours.
        """
        self.take(policy, by, wait_s)
        self.name = policy
        state = self.read()
        if wrong := [*state.layout_problems, *(reason for reason in self.policy.misplaced if "must be" in reason)]:
            raise self._build_misplaced_error(wrong)
        if swept := state.leftovers:
            self.run(f"erase {quote_words(swept)}")
        self._settle()
        releases = self.policy.releases
        used_numbers = {number_of(record.release) for record in releases}
        known = [
            name.removeprefix(f"{policy}/") for name in state.accepted_record.releases if name.startswith(f"{policy}/")
        ]
        known += [record.release for record in releases if record.is_old and not record.damage]
        number = 1 + max([number_of(name) for name in known if number_of(name) < MOST_NUMBER] or [0])
        while number in used_numbers:
            number += 1
        same = [
            record.release for record in releases if record.digest and record.digest == digest and not record.is_old
        ]
        return {
            "next_number": number,
            **self.policy.describe(),
            "same": same[-1] if same else None,
            "swept": swept,
            "free_bytes": state.free_bytes,
            "trust": {**state.trust, "serial": state.accepted_record.serials.get(policy, 0)},
        }

    def take(self, policy: str, by: Mapping[str, Any], wait_s: float) -> None:
        """Take the lock; raises as :meth:`begin`."""
        deadline = time.monotonic() + wait_s
        holder = json.dumps({**by, "device_pid": self.pid, "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        name = shlex.quote(policy)
        while not (answer := self.run(f"policy={name}; take_lock {shlex.quote(holder)}")).startswith("taken"):
            if answer.startswith("wrong"):
                raise self._build_misplaced_error([answer.removeprefix("wrong ")])
            if answer.startswith("hindered"):
                raise self.build_command_error(answer.removeprefix("hindered "))
            if answer.startswith("unsupported"):
                raise refusal(self.connection.name, answer)
            if time.monotonic() >= deadline:
                raise self._build_locked_error(answer.partition("\n")[2])
            time.sleep(LOCK_POLL_S)
        self.watch()

    def discard(self) -> None:
        """Remove what was received and not published, and give the lock back."""
        self.run("finish")
        self.incoming = ""

    def _build_misplaced_error(self, wrong: Iterable[str]) -> HostError:
        return RemoteCommandError(
            f"{self.connection.name} has files that no deployment wrote: {'; '.join(wrong)}. Nothing was changed.",
            "Look at them on the device; if none of them is needed, remove them there with `rm`, then try again.",
        )

    def _build_locked_error(self, text: str) -> HostError:
        holder: Any = {}
        with contextlib.suppress(ValueError):
            holder = json.loads(text)
        holder = holder if isinstance(holder, dict) else {}
        who = f"{holder.get('user', 'somebody')}@{holder.get('host', 'unknown')} (pid {holder.get('pid', '?')})"
        return DeviceLockedError(
            f"{who} is already deploying to {self.connection.name}: policy {holder.get('policy', '?')}, since "
            f"{holder.get('since', '?')}. Nothing was changed.",
            "Wait until that deployment ends, or add --wait 120.",
        )

    def _settle(self) -> None:
        """Go back from releases whose trial was cut off: nobody knows whether they would have passed."""
        for name, policy in self.state.policies.items():
            if policy.trial is not None:
                # A disk that takes nothing keeps nobody from stopping a robot; the link stays for the next time.
                with contextlib.suppress(HostError):
                    self.run(f"move policies/{name}/{TRIAL_LINK} policies/{name}/current")
                    policy.current, policy.trial = policy.trial, None
                    if manager := loops.manager_of(self, name):
                        manager.restart()

    def receive(self, release: str, record: str, signature: str, need_bytes: int) -> None:
        """Have the device verify a signed record, and open incoming/ID with the folders of what it names.

        Raises:
            DeviceFullError: the release does not fit on its disk; no file was written.
            TrustError: it does not trust the record; no file of the release was written.
        """
        if self.state.free_bytes < need_bytes:
            raise DeviceFullError(
                f"The disk of {self.connection.name} is full: {need_bytes / 1e6:.1f} MB are needed, "
                f"{self.state.free_bytes / 1e6:.1f} MB are free. Nothing was written.",
                "Make room on the device (`df -h ~`, `du -sh ~/*`), then run the same command again.",
            )
        self.record, self._text = parse_record(release, self.name, record), record
        if settings := loops.settings_of(self.state, self.name, self.connection.name):
            loops.require_artifact(self, settings, self.record)
        folders = sorted({str(Path(name).parent) for name in self.record.files} - {"."})
        self._judge(self.run(f"receive {quote_words([release, record, signature, *folders])}", check=False))
        self.incoming = f"policies/{self.name}/incoming/{release}"

    def reuse(self) -> list[str]:
        """Copy files that an older release there already has, and return them; the host need not send those."""
        known = {
            digest
            for policy in self.state.policies.values()
            for record in policy.releases
            for digest in record.files.values()
        }
        words = [word for name, digest in self.record.files.items() if digest in known for word in (digest, name)]
        return self.run(f"reuse {quote_words(words)}", timeout=LONG_TIMEOUT_S).splitlines() if words else []

    def send_files(self, archive: bytes, progress: Callable[[int], None]) -> int:
        """Send files into incoming/ID, as :func:`archive_of` them, and return its bytes; raises as :meth:`run`."""
        self._stream(f"tar -xf - -C {shlex.quote(self.incoming)}", archive, progress)
        return len(archive)

    def unpack(self, wheel: str, folder: str, progress: Progress) -> None:
        """Verify a wheel that was sent, by the signed record, and unpack it.

        Raises:
            VerificationError: it is not the one that was sent.
        """
        words = ["unpack", f"{self.incoming}/{wheel}", self.record.wheels[folder], folder]
        if self._run_wheels(words, progress).get("damaged"):
            raise VerificationError(
                f"{wheel} was damaged on the way to {self.connection.name} and removed.",
                "Run the command again; if it fails again, test the device's disk and memory.",
            )
        self._compared.pop(folder, None)

    def _run_wheels(self, words: Sequence[str], progress: Progress) -> Mapping[str, Any]:
        command = f"{shlex.quote(self.python)} {ISOLATED} -c {shlex.quote(_WHEELS.read_text())} {quote_words(words)}"
        output = self.run(command, timeout=LONG_TIMEOUT_S, progress=progress)
        try:
            result: Mapping[str, Any] = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise self.build_command_error(output) from None
        return result

    def compare_wheels(self, folders: Sequence[str], progress: Progress = lambda done, total: None) -> dict[str, Any]:
        """Compare unpacked wheels, file by file, with what was recorded when they were unpacked."""
        waiting, seconds, files = [name for name in folders if name not in self._compared], 0.0, 0
        if waiting:
            result = self._run_wheels(["compare", *waiting], progress)
            self._compared.update(result["folders"])
            seconds, files = result["seconds"], sum(report["files"] for report in result["folders"].values())
        compared = {name: self._compared[name] for name in folders}
        return {
            "whole": [name for name, report in compared.items() if not report["wrong"]],
            "damaged": {name: report["wrong"] for name, report in compared.items() if report["wrong"]},
            "files": files,
            "seconds": seconds,
        }

    def publish(self) -> str:
        """Turn incoming/ID into releases/ID: from now on it is complete and accepted, but not yet current."""
        release = self.record.release
        self.verify(f"incoming/{release}")  # its agent has run meanwhile
        accepted = self.state.accepted_record
        accepted.serials[self.name] = self.record.serial
        accepted.releases[f"{self.name}/{release}"] = hashlib.sha256(self._text.encode()).hexdigest()
        self._write_accepted(accepted)
        self.run("publish")
        self.policy.releases.append(self.record)
        return release

    def _write_accepted(self, accepted: Accepted) -> None:
        self.run(f"mkdir -p trust && put trust/accepted {shlex.quote(accepted.text)}")
        self.state.items["trust/accepted"].kind = "file"
        self.state.items["trust/accepted"].content = accepted.text

    def check(self, release: str) -> dict[str, Any]:
        """Compare a release that is there already, and the wheels it needs, with what was recorded of them.

        Raises:
            ReleaseError: no release has that name.
            TrustError, VerificationError, …: as :func:`refusal`.
        """
        record = self.find(release)
        self.verify(f"releases/{release}")
        wheels = self.compare_wheels(record.environments)
        mark = self.policy.marks.get(release)
        return {
            "precisions": record.precisions,
            "runtimes": record.runtimes,
            "signer": record.signer,
            "missing_environments": [f"envs/{name}: {', '.join(why)}" for name, why in wheels["damaged"].items()],
            "doubted": mark is not None and mark.kind != GOOD,
            "files": wheels["files"],
            "seconds": wheels["seconds"],
        }

    def switch(self, release: str, rollout: Mapping[str, Any] | None, progress: Progress) -> str | None:
        """Point ``current`` at a release and return what served before; where it is served, it is tried in its loop.

        The release has passed its check, so that a mark from earlier no longer holds; it is verified once more.

        Raises:
            ServiceError: it failed its trial; what served before serves.
            HostError: as :meth:`verify` and :meth:`run`.
        """
        record = self.find(release)
        self.verify(f"releases/{release}")
        before, manager = self.policy.current, loops.manager_of(self, self.name)
        loops.write_launcher(self, is_needed=manager is not None)
        mark = self.policy.marks.get(release)
        if mark is not None and mark.kind != GOOD:
            self.run(f"erase policies/{self.name}/releases/{release}/{MARK_FILE}")
        if rollout:
            self._write_rollout(rollout)
        if manager is None:
            self.point("current", release)
        else:
            loops.on_trial(self, manager, record, progress)
        return before

    def _write_rollout(self, rollout: Mapping[str, Any]) -> None:
        """Say whose rollout switches the policy; where the disk takes no more, say at least that no other's does."""
        folder = f"policies/{self.name}"
        try:
            self.put(f"{folder}/{ROLLOUT_FILE}", json.dumps(rollout))
        except DeviceFullError:
            self.run(f"move {folder}/{ROLLOUT_FILE} {folder}/{ENDED_FILE}", check=False)

    def end_rollout(self, rollout: str) -> None:
        """Say that a rollout has ended, unless another came in its place."""
        known = self.policy.rollout
        if known is not None and not known["ended"] and known.get("rollout") == rollout:
            folder = f"policies/{self.name}"
            self.run(f"move {folder}/{ROLLOUT_FILE} {folder}/{ENDED_FILE}")

    def prune(self, previous: str | None) -> dict[str, Any]:
        """Remove older releases, and wheels that no release needs.

        What stays: the newest, the current one and ``previous``; the newest good one but the current one, the newest
        good one before it and the newest that somebody went back to, so that there is something to go back to; and
        whatever a process runs from.
        """
        self.read()
        policy = self.policy
        names, current = [record.release for record in policy.releases], policy.current
        good = [record.release for record in policy.releases if policy.is_good(record)]
        before = [name for name in good if current is None or number_of(name) < number_of(current)]
        others = [name for name in good if name != current]
        chosen = [name for name in good if name in policy.marks]  # a good one has no other mark
        names_to_keep = {*names[-KEEP_RELEASES:], current, previous, *before[-1:], *others[-1:], *chosen[-1:]}
        gone = [name for name in names if name not in names_to_keep and name not in policy.running]
        self._remove(gone)
        in_use = {name: pids for name, pids in policy.running.items() if name in names and name not in names_to_keep}
        return {"releases": gone, "environments": self._drop_environments(), "in_use": in_use}

    def _remove(self, releases: Sequence[str]) -> None:
        """Remove releases and forget them. The serial stays: they do not come back by being sent again."""
        if not releases:
            return
        self.run(
            f"erase {quote_words(f'policies/{self.name}/releases/{name}' for name in releases)}", timeout=LONG_TIMEOUT_S
        )
        accepted = self.state.accepted_record
        names = {f"{self.name}/{release}" for release in releases} & accepted.releases.keys()
        for name in names:
            del accepted.releases[name]
        if names:
            self._write_accepted(accepted)
        self.policy.releases = [record for record in self.policy.releases if record.release not in releases]

    def _drop_environments(self) -> list[str]:
        """Remove the unpacked wheels that no release needs."""
        needed: set[str] = set()
        for policy in self.state.policies.values():
            for record in policy.releases:
                if record.damage and (record.release in policy.running or record.release == policy.current):
                    return []  # it works, and nobody knows what it needs
                needed.update(record.environments)
        unused = sorted(name for name in self.state.unpacked_wheels if name not in needed)
        if unused:
            self.run(f"erase {quote_words(f'envs/{name}' for name in unused)}", timeout=LONG_TIMEOUT_S)
        return unused

    def drop(self, release: str | None, *, whole: bool, withdraw: bool, force: bool) -> dict[str, Any]:
        """Remove one release, or all but the current one, or with ``whole`` all of the policy and its service.

        The current one is removed by ``whole``, or where it is the one to ``withdraw``.

        Raises:
            ReleaseError: there is no such policy or release, it serves, or an agent runs from it. Nothing was removed.
        """
        if f"policies/{self.name}" not in self.state.items:
            there = ", ".join(name for name in self.state.policies if name != self.name)
            raise ReleaseError(
                f"{self.connection.name} has no policy {self.name}; it has {there}.",
                f"List them: quarl releases --target {self.connection.target}",
            )
        policy = self.policy
        names = [record.release for record in policy.releases]
        if release is not None and release not in names:
            self.find(release)
        withdrawn = release is not None and release == policy.current
        if withdrawn and not withdraw:
            raise ReleaseError(
                f"Release {release} of {self.name} is serving on {self.connection.name}. Nothing was removed.",
                "Switch to another release first (quarl rollback), or remove the whole policy with --all.",
            )
        gone = [release] if release is not None else [name for name in names if whole or name != policy.current]
        busy = {name: pids for name, pids in policy.running.items() if name in gone}
        served = whole and loops.manager_of(self, self.name) is not None
        if (busy or served) and not force:
            processes = "; ".join(f"{name} (process {', '.join(map(str, pids))})" for name, pids in busy.items())
            reason = (
                f"{self.name} is served in a loop (unserve ends it)" if served else f"an agent runs from {processes}"
            )
            raise ReleaseError(
                f"On {self.connection.name}, {reason}. Nothing was removed.", "Stop it first, or add --force."
            )
        if served:
            loops.unserve(self)
        if whole or withdrawn:
            self.run(f"erase policies/{self.name}/current")  # first: it must never lead to half a release
            policy.current = None
        self._remove(gone)
        if whole or (withdrawn and not policy.releases):
            self.run(f"erase policies/{self.name}")
            policy.releases = []
        return {"releases": gone, "current": policy.current, "environments": self._drop_environments()}

    def signers(self, add: Sequence[str], revoke: Sequence[str], device_class: str | None) -> dict[str, Any]:
        """Let keys sign, revoke others, name the device's class; who may sign now, and who signed what serves.

        Raises:
            TrustError: others can write the lists, they are root's, or nobody could sign any more.
        """
        state = self.read()
        if add or revoke or device_class is not None:
            for name, lines in change_lists(self.connection.name, state.trust, add, revoke, device_class).items():
                self.run(f"mkdir -p trust && put trust/{name} {shlex.quote(lists_text(lines))}")
            state = self.read()
        if why := state.trust.get("refused"):
            raise TrustError(f"{self.connection.name} cannot trust its list of signers: {why}.")
        serving = {
            name: {"release": record.release, "signer": record.signer, "serial": record.serial}
            for name, policy in state.policies.items()
            for record in policy.releases
            if record.release == policy.current
        }
        return {**state.trust, "serving": serving}


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return a release's files, by their paths in it, as a tar."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), int(time.time())
            entry.mode = 0o700 if name in (STARTER, PROGRAM) else 0o600
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


@contextlib.contextmanager
def open_device(connection: Connection, python: str = "", *, silence_s: int = SILENCE_S) -> Iterator[Device]:
    """Open a shell on the device for the length of the block; see :class:`Device`."""
    session = Device(connection, python, silence_s)
    try:
        yield session
    finally:
        session.close()
