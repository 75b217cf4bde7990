"""Deployment: upload under a temporary name, verify, try it on the device, and only then switch.

Until the last step the old release serves, untouched. Whatever fails before, from a cut connection to a golden
vector that differs, leaves nothing of the new release behind.
"""

from __future__ import annotations

import dataclasses
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.device import SILENCE_S, Device, archive_of, open_device
from quarl.device.deploy.errors import HostError, TrustError, VerificationError
from quarl.device.deploy.golden import GoldenCheck, Progress, Step, golden_checks
from quarl.device.deploy.payload import Payload, build_payload
from quarl.device.deploy.probe import TargetFacts, probe
from quarl.device.deploy.signing.keys import signing_key
from quarl.device.deploy.signing.provisioning import key_for
from quarl.device.deploy.signing.record import USUAL, Signing, sign_record
from quarl.device.deploy.static_agent.release import static_payload
from quarl.device.deploy.switching import begin, mark_bad, mark_bad_when_refused, still_serving, switch_on
from quarl.device.deploy.wheels import Wheel, WheelSet, fetch, select
from quarl.policy.bundle import Bundle
from quarl.policy.ladder import Kept
from quarl.policy.spec import Precision, RuntimeName

BLOCK = 4096  # bytes; a file takes whole blocks of the device's file system
RESERVE = 8 << 20  # bytes left free: a full disk harms more than us


@dataclass(frozen=True)
class DeployRequest:
    """The deployment that is requested."""

    target: str
    policy: str
    precisions: tuple[Precision, ...]
    runtimes: tuple[RuntimeName, ...]


@dataclass(frozen=True)
class DeployResult:
    """The results of a deployment."""

    request: DeployRequest
    release: str
    previous: str | None
    """The release that served before; the same as ``release`` when nothing had to change."""
    unchanged: bool
    """The device already had exactly this content: nothing was sent."""
    sent_files: int
    sent_bytes: int
    reused_files: int
    """Files copied on the device from an older release instead of being sent."""
    wheels_sent: tuple[str, ...]
    checks: tuple[GoldenCheck, ...]
    removed: tuple[str, ...]
    """Older releases that were pruned."""
    seconds: float
    warnings: tuple[str, ...] = ()
    """Problems after the new release was switched on; it serves all the same."""
    compared_files: int = 0
    """Files of unpacked wheels that the device compared with the hashes recorded when they were unpacked."""
    compared_s: float = 0.0
    """Seconds that this comparison took on the device."""
    kept: tuple[Kept, ...] = ()
    """What each artifact keeps of the policy."""


def deploy(
    connection: Connection,
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtimes: Sequence[RuntimeName] = (RuntimeName.LITERT,),
    *,
    wait_s: float = 0.0,
    progress: Progress | None = None,
    signing: Signing = USUAL,
    without_python: bool = False,
) -> DeployResult:
    """Bring a policy onto a device and switch it on.

    Args:
        connection: to the device.
        bundle: as loaded on the host.
        precisions: which to bring; each must have been converted for ``runtimes``.
        runtimes: what will execute it; their wheels are brought along where they are missing.
        wait_s: how long to wait for another deployment to end.
        progress: told about every step.
        signing: by which key, with which serial.
        without_python: bring the agent that is one program, with the native engine, instead of the one in Python.

    Raises:
        TrustError: the device trusts no key of this host. Nothing was sent.
        BundleError: the bundle is damaged or lacks an artifact. Nothing was sent.
        UnsupportedDeviceError, WheelError: no wheels for this device, or no Python. Nothing was sent.
        DeviceLockedError: another deployment is at work. Nothing was changed.
        DeviceFullError, VerificationError, CheckFailedError, ConnectionLostError: the old release still serves and
            nothing of the new one is left, unless the message says that it is unknown which one serves.
    """
    wheel_set = wheels_for(probe(connection), runtimes, without_python)
    payload = gather_payload(bundle, precisions, runtimes, wheel_set, without_python)
    return install(connection, payload, wheel_set, wait_s=wait_s, progress=progress, signing=signing)


def wheels_for(facts: TargetFacts, runtimes: Sequence[RuntimeName], without_python: bool = False) -> WheelSet:
    """Return the interpreter and the wheels of a device; no wheels for an agent without Python.

    Raises:
        UnsupportedDeviceError, WheelError: as ``deploy``.
    """
    return WheelSet(facts.python, (), facts.machine) if without_python else select(facts, runtimes)


def gather_payload(
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtimes: Sequence[RuntimeName],
    wheel_set: WheelSet,
    without_python: bool = False,
) -> Payload:
    """Return the release for every device that has this interpreter and these wheels.

    Raises:
        BundleError, UnsupportedDeviceError, VerificationError: as ``deploy``.
    """
    if without_python:
        return static_payload(bundle, precisions, wheel_set.machine)
    return build_payload(bundle, precisions, runtimes, wheel_set)


def install(
    connection: Connection,
    payload: Payload,
    wheel_set: WheelSet,
    *,
    wait_s: float = 0.0,
    progress: Progress | None = None,
    wheel_cache: Path | None = None,
    silence_s: int = SILENCE_S,
    signing: Signing = USUAL,
    begun_with: Callable[[Mapping[str, Any]], None] = lambda state: None,
    before_switch: Callable[[str, str | None], None] = lambda release, serving: None,
    rollout: Mapping[str, Any] | None = None,
) -> DeployResult:
    """Bring a gathered release onto a device; ``deploy`` without the gathering. Raises what ``deploy`` raises.

    ``begun_with`` is called with what the device says once it is locked, before anything is sent. ``before_switch`` is
    called with the release that will serve and the one that serves until then. ``rollout`` is written on the device.
    """
    begun = time.monotonic()
    tell = progress if progress is not None else lambda step: None
    wanted_pair = payload.precisions, payload.runtimes
    request = DeployRequest(str(connection.target), payload.policy, *wanted_pair)
    with open_device(connection, wheel_set.python.path, silence_s=silence_s) as session:
        state = begin(session, payload.policy, payload.digest, wait_s)
        serving = state["current"]
        with still_serving(serving):
            begun_with(state)
            if why := state["trust"].get("refused"):
                raise TrustError(f"{connection.name} cannot trust its list of signers: {why}.")
            tell(Step("compare what is there", 0, 0))
            known, comparison = _find_known_release(session, state["same"], signing)
            if known is not None and known == serving and not comparison["doubted"]:
                none = DeployResult(request, known, serving, True, 0, 0, 0, (), (), (), time.monotonic() - begun)
                return dataclasses.replace(none, compared_files=comparison["files"], compared_s=comparison["seconds"])
            sent = _Upload(session, tell)
            if known is None:
                release = f"{state['next_number']:04d}-{payload.digest[:8]}"
                key, trust = key_for(connection, session, state["trust"], signing.key)
                signed = sign_record(payload, wheel_set, key, trust, signing)
                folders = [wheel.folder for wheel in wheel_set.wheels]
                comparison = session.compare_wheels(folders)
                missing = [wheel for wheel in wheel_set.wheels if wheel.folder not in comparison["whole"]]
                wheels = fetch(missing, wheel_cache, lambda wheel: tell(Step(f"download {wheel}", 0, 0)))
                need = estimate_needed_bytes(payload, wheels)
                session.receive(release, signed.text, signed.signature, need)
                sent.send_wheels(wheels)
                sent.send_files(payload)
                checks = golden_checks(connection, payload.policy, f"incoming/{release}", *wanted_pair, tell)
                session.publish()
            else:
                release = known
                with mark_bad_when_refused(session, release):
                    checks = golden_checks(connection, payload.policy, f"releases/{release}", *wanted_pair, tell)
        tell(Step("switch", 0, 0))
        before_switch(release, serving)
        switch_names = payload.policy, release, serving
        previous, warnings = switch_on(connection, session, *switch_names, silence_s, rollout)
        removed: tuple[str, ...] = ()
        if not warnings:  # else the session is over; the next deployment removes them
            removed, warnings = _prune(session, release, previous)
    return DeployResult(
        request=request,
        release=release,
        previous=previous,
        unchanged=False,
        sent_files=sent.files,
        sent_bytes=sent.bytes,
        reused_files=sent.reused,
        wheels_sent=tuple(sent.wheels),
        checks=checks,
        removed=removed,
        seconds=time.monotonic() - begun,
        warnings=warnings,
        compared_files=comparison["files"],
        compared_s=comparison["seconds"],
    )


def _prune(session: Device, serving: str, previous: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove old releases, but not the one that served before; returns those removed, and warnings.

    Past the switch no failure undoes the deployment.
    """
    try:
        done = session.prune(previous)
        in_use = tuple(
            f"Release {name} was not removed: process {', '.join(map(str, processes))} runs from it."
            for name, processes in done["in_use"].items()
        )
        return tuple(done["releases"]), in_use
    except HostError as error:
        # Not the error's next step: it says that what was half done is discarded, and nothing was.
        return (), (
            f"Release {serving} serves, but older releases may not have been removed: {error.message} "
            "The next deployment removes them.",
        )


def _find_known_release(session: Device, same: str | None, signing: Signing) -> tuple[str | None, Mapping[str, Any]]:
    """Return a release on the device that has this very content and is still whole, and what its check found.

    One that has the content no longer is marked, so that nobody goes back to it. One that another key signed than the
    named one is not the same.
    """
    if same is None:
        return None, {}
    try:
        report = session.check(same)
    except TrustError:  # its signer was revoked, or it is not what was accepted: it is signed and sent again
        return None, {}
    except VerificationError as error:
        mark_bad(session, same, f"its files are not those that were deployed: {error.message}")
        return None, {}
    is_whole = not report["missing_environments"]
    if signing.key is not None and signing_key(signing.key).fingerprint != report["signer"]:
        return None, {}
    return (same if is_whole else None), report if is_whole else {}


def _blocks(size: int) -> int:
    return (size + BLOCK) // BLOCK * BLOCK + BLOCK  # its data and its share of folders


def estimate_needed_bytes(payload: Payload, wheels: Mapping[Wheel, Path]) -> int:
    """Return what the deployment will write at most: the release, the unpacked wheels, and one packed wheel at a
    time."""
    need = RESERVE + sum(_blocks(len(file.data)) for file in payload.files)
    for path in wheels.values():
        with zipfile.ZipFile(path) as archive:
            need += sum(_blocks(member.file_size) for member in archive.infolist())
    return need + max((path.stat().st_size for path in wheels.values()), default=0)


class _Upload:
    """An upload into incoming/ID of the device, and a count of it."""

    def __init__(self, session: Device, tell: Progress) -> None:
        self._session, self._tell = session, tell
        self.files = self.bytes = self.reused = 0
        self.wheels: list[str] = []

    def send_wheels(self, wheels: Mapping[Wheel, Path]) -> None:
        """Send and unpack wheels, one after the other."""
        for wheel, path in wheels.items():
            add = self._adder(f"send {wheel}", path.stat().st_size)
            self.bytes += self._session.send(f"{self._session.incoming}/{wheel.file}", path, add)
            self.files += 1
            self.wheels.append(str(wheel))

            def report_unpacking(done: int, total: int, wheel: Wheel = wheel) -> None:
                self._tell(Step(f"unpack {wheel}", done, total))

            self._session.unpack(wheel.file, wheel.folder, report_unpacking)

    def send_files(self, payload: Payload) -> None:
        """Send the files that no release on the device has, and let it compare all of them."""
        reused = set(self._session.reuse())
        missing = [file for file in payload.files if file.path not in reused]
        if missing:
            archive = archive_of({file.path: file.data for file in missing})
            self.bytes += self._session.send_files(archive, self._adder(f"send {payload.policy}", len(archive)))
            self.files += len(missing)
        self.reused = len(reused)

    def _adder(self, name: str, total: int) -> Callable[[int], None]:
        """Return a progress callback for bytes that come in pieces."""
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            self._tell(Step(name, done, total, "B"))

        return add
