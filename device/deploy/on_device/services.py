"""A policy's loop as a service on the device: set up, tried for some seconds, taken back when it fails. Under the lock.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from typing import Any

from quarl.device.deploy.on_device.files import (
    HelperError,
    is_file_with,
    read_object,
    remove,
    sync,
    what_is,
    write_bytes,
    write_json,
)
from quarl.device.deploy.on_device.managers import end, loops, manager_of
from quarl.device.deploy.on_device.records import MARK_FILE, TRIAL_LINK, Record, one_line
from quarl.device.deploy.on_device.upkeep import Reply, Request, Upkeep
from quarl.device.deploy.on_device.wire import report

START_S, ANSWER_S, POLL_S = 130.0, 15.0, 0.1
_MOST_SETTINGS, _MOST_REPLY = 65536, 262_144
_KINDS = ("json", "lock", "log", "loop", "notify", "state")
"""What a policy has in services/, by the ends of the names."""


class Services(Upkeep):
    """The releases on this device, and the loop that one policy's current release may serve in."""

    def settings(self) -> dict[str, Any] | None:
        """How the policy is served, or None where it is not."""
        path = self.root / "services" / f"{self.policy}.json"
        return read_object(path, _MOST_SETTINGS) if path.exists() else None

    def serve(self, request: Request) -> Reply:
        """Serve the policy in a loop from now on; what was served before goes on when this fails its trial."""
        if self.current(self.policy) is None:
            raise HelperError("release", f"no release of {self.policy} is deployed, so that none can be served")
        before, services = self.settings(), self.root / "services"
        for folder in (services, self.root / "run"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write_scripts(request)
        try:
            return self._served_with(request["settings"])
        except (HelperError, OSError):
            if before is None:
                with contextlib.suppress(HelperError, OSError):  # serving says what is left
                    self.unserve({})
            else:
                with contextlib.suppress(HelperError, OSError):
                    self._served_with(before)
            raise

    def write_scripts(self, request: Request) -> None:
        """Write what starts loops: launch.py and supervise.py, as this version has them.

        Those that are there go on where the disk takes no others: going back to another release needs no room.
        """
        for name, text in request["scripts"].items():
            path, content = self.root / "services" / name, text.encode()
            if not is_file_with(path, hashlib.sha256(content).hexdigest(), len(content)):
                try:
                    write_bytes(path, content)
                except OSError:
                    if what_is(path) != "file":
                        raise

    def _served_with(self, settings: dict[str, Any]) -> Reply:
        if self.settings() != settings:  # else it needs no room
            write_json(self.root / "services" / f"{self.policy}.json", settings)
        manager = manager_of(self.root.parent, self.policy)
        manager.install(settings)
        manager.restart()
        return {"manager": manager.name, "warnings": manager.warnings(), **self.trial(settings)}

    def unserve(self, request: Request) -> Reply:
        """Stop the loop and forget it. Says whether there was one.

        Raises:
            HelperError: ``service``: it does not end, or is not forgotten.
        """
        services, home = self.root / "services", self.root.parent
        there = (services / f"{self.policy}.json").exists()
        manager_of(home, self.policy).remove()
        end("the loop", lambda: loops(home, self.policy))  # of a supervisor that was killed, or that nobody keeps
        paths = [services / f"{self.policy}.{kind}{part}" for kind in _KINDS for part in ("", ".part")]
        for path in (*paths, self.root / "run" / f"{self.policy}.sock"):
            remove(path)
        if left := [path for path in paths if what_is(path)]:
            raise HelperError(
                "service",
                f"the loop was ended, but {left[0]} cannot be removed, so that it may start again at boot",
                next="Look at the device's disk (`mount`, `dmesg`), then unserve again.",
            )
        return {"was_served": there}

    def serving(self, request: Request) -> Reply:
        """How a policy is served, the state of its loop, and what it counted; needs no lock."""
        self.policy = request["policy"]
        settings = self.settings()
        if settings is None:
            return {"settings": None}
        manager = manager_of(self.root.parent, self.policy)
        state, counted = manager.state(), None
        if state["state"] == "failed":
            state["why"] = f"{state['why']}. {_last_lines(manager.log())}"
        if state["state"] in ("active", "unwatched"):
            try:
                counted = self.ask(False)
            except HelperError as error:  # it hangs, and the watchdog has not seen it yet
                state["why"] = f"{state['why']}. {error}" if state["why"] else str(error)
        return {"settings": settings, "manager": manager.name, **state, "loop": counted}

    def trial(self, settings: dict[str, Any]) -> Reply:
        """Wait until the loop is active, and see for some seconds that it stays so and is punctual.

        Raises:
            HelperError: ``trial``: golden vectors, deadlines or health failed; says which.
        """
        manager = manager_of(self.root.parent, self.policy)
        deadline = time.monotonic() + START_S
        while (state := manager.state())["state"] != "active":
            # By now systemd may have given up on it already, or be about to start it again.
            if state["state"] in ("failed", "stopped", "unwatched") or state["restarts"] or time.monotonic() > deadline:
                raise HelperError(
                    "trial", f"it did not start ({state['why'] or state['state']}). {_last_lines(manager.log())}"
                )
            time.sleep(POLL_S)
        begun, seconds = self.ask(True), float(settings["trial_s"])
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(BrokenPipeError):  # the host is gone: the device judges all the same
                report(round(10 * (seconds - left)), round(10 * seconds))
            time.sleep(min(left, 1.0))
        after, found = manager.state(), self.ask(False)
        counts = found["counts"]
        if after["pid"] != state["pid"] or after["state"] != "active":
            raise HelperError("trial", f"it ended within {seconds:g} s ({after['why']}). {_last_lines(manager.log())}")
        missed = counts["missed_per_million"]
        if missed is not None and missed > settings["most_missed"]:
            raise HelperError(
                "trial",
                f"it missed {missed:.0f} deadlines in a million within {seconds:g} s; {settings['most_missed']:g} are "
                "allowed",
            )
        return {"release": begun["release"], "seconds": seconds, **after, "loop": found}

    def ask(self, reset: bool) -> dict[str, Any]:
        """What the loop counted, asked over its socket.

        Raises:
            HelperError: ``trial``: it does not answer.
        """
        run = os.open(self.root / "run", os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(f"/proc/self/fd/{run}/{self.policy}.sock")
                connection.send(json.dumps({"op": "loop", "reset": reset}).encode())
                reply: dict[str, Any] = json.loads(connection.recv(_MOST_REPLY))
        except (OSError, ValueError) as error:
            raise HelperError("trial", f"the loop does not answer: {error}") from None
        finally:
            os.close(run)
        if not reply.get("ok"):
            raise HelperError("trial", f"the loop refuses: {json.dumps(reply)[:200]}")
        return reply

    def require_artifact(self, record: Record) -> None:
        """Refuse a release that lacks what the loop decides with: it would fail its trial without being bad.

        Raises:
            HelperError: ``service``.
        """
        settings = self.settings()
        for option, there in (("precision", record.precisions), ("runtime", record.runtimes)):
            for argument in settings["arguments"] if settings is not None else ():
                name, is_given, wanted = argument.partition("=")
                if is_given and name == f"--{option}" and wanted not in there:
                    raise HelperError(
                        "service",
                        f"{self.policy} is served with the {option} {wanted}, and the release has {', '.join(there)}",
                        next="Deploy both (quarl deploy --bits …), serve with the other, or unserve first.",
                    )

    def settle(self) -> list[str]:
        """Go back from releases whose trial was cut off: nobody knows whether they would have passed."""
        found = [policy for policy in self.policies() if what_is(self.folder(policy) / TRIAL_LINK) == "symbolic link"]
        for policy in found:
            # A disk that takes nothing keeps nobody from stopping a robot; the link stays for the next time.
            with contextlib.suppress(HelperError, OSError):
                (self.folder(policy) / TRIAL_LINK).replace(self.folder(policy) / "current")
                sync(self.folder(policy))
                if (self.root / "services" / f"{policy}.json").exists():
                    manager_of(self.root.parent, policy).restart()
        return found

    def _end_trial(self) -> None:
        if what_is(link := self.folder(self.policy) / TRIAL_LINK):
            remove(link)
            sync(link.parent)

    def drop(self, request: Request) -> Reply:
        """Remove releases; with the whole policy goes its service, where that is forced."""
        if request.get("whole", False) and self.settings() is not None:
            if not request.get("force", False):
                raise HelperError("in-use", f"{self.policy} is served in a loop (unserve ends it)")
            self.unserve({})
        return super().drop(request)

    def switch(self, request: Request) -> Reply:
        """Switch, and where the policy is served try the new release in its loop; one that fails is switched back."""
        before, settings = self.current(self.policy), self.settings()
        if settings is None:
            return super().switch(request)
        self.require_artifact(self.accepted(self.policy, request["release"]))
        self.write_scripts(request)  # first: they know what a trial is that was cut off
        try:
            if before is not None and before != request["release"]:
                self.point(TRIAL_LINK, before)
            return self._switched(request, before, settings)
        finally:
            self._end_trial()

    def _switched(self, request: Request, before: str | None, settings: dict[str, Any]) -> Reply:
        reply = super().switch(request)
        manager = manager_of(self.root.parent, self.policy)
        try:
            manager.restart()
            return {**reply, "trial": self.trial(settings)}
        except Exception as error:  # whatever it is, the release was not shown to serve
            release = request["release"]
            back = ""
            if before not in (None, release):
                try:
                    try:
                        super().switch({"release": before})
                    except (HelperError, OSError):  # to verify takes memory and processes; a rename takes nothing
                        folder = self.folder(self.policy)
                        (folder / TRIAL_LINK).replace(folder / "current")
                    manager.restart()
                    self.trial({**settings, "trial_s": 0.0})
                    back = f"; {before} serves in the loop again"
                except (HelperError, OSError) as worse:
                    back = f"; going back to {before}: {worse}"
                reason = one_line(f"failed its trial in the loop: {error}")
                with contextlib.suppress(OSError):
                    write_json(self.release_folder(self.policy, release) / MARK_FILE, {"kind": "bad", "reason": reason})
            raise HelperError("trial", f"release {release} failed its trial in the loop: {error}{back}") from None


def _last_lines(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return " / ".join(line for line in lines[-4:] if not line.startswith("INFO"))[:600]
