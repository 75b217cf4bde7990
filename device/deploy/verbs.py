"""What can be typed for one device: deploy, go back, remove, look, accept its key, fetch its wheels."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.device.deploy.fleet.spreading import on_groups
from quarl.device.deploy.options import HALF_DONE, NOTHING, DeviceOptions, Waiting
from quarl.device.deploy.text import printable

if TYPE_CHECKING:
    from quarl.device.deploy.releases import DeviceReleases

USUAL_PYTHON = "3.11"  # of Raspberry Pi OS 12


@Parameter(name="*")
@dataclass(kw_only=True)
class Deploy(Waiting):
    """A release.

    Attributes:
        policy: name (III) or folder of a bundle
        bits: 8, 16, 32, 7 … 2, mixed, w8, w4, dynamic, or a list: 32,8; auto: what convert --bits auto found
        runtime: litert, tflite-runtime, onnxruntime, native, all
        accept: deploy also what agrees with the policy in less than three quarters of its decisions
        agent: native is one program that needs neither Python nor wheels, with the native engine; one precision
        sign_key: sign with it; default QUARL_SIGN_KEY, or this host's own key
        serial: of the release; default: the time, and above the device's last
        allow_serial: let --serial be lower than the device's last
    """

    policy: str
    bits: str = "8"
    runtime: str = "litert"
    accept: bool = False
    agent: Literal["python", "native"] = "python"
    sign_key: Path | None = None
    serial: int | None = None
    allow_serial: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Rollback(Waiting):
    """An older release.

    Attributes:
        policy: name (III)
        to: release; default: the last good one before the current one
        mark_bad: mark the one that served until now as bad
    """

    policy: str
    to: str | None = None
    mark_bad: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Remove(Waiting):
    """Releases.

    Attributes:
        policy: name (III)
        release: only this one; default: all but the one that serves
        all: the whole policy, with the release that serves
        force: also releases that an agent runs from
    """

    policy: str
    release: str | None = None
    all: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.release is not None and self.all:
            raise ValueError("--release and --all exclude each other")


@Parameter(name="*")
@dataclass(kw_only=True)
class Look(DeviceOptions):
    """What to list.

    Attributes:
        policy: only this one
    """

    policy: str | None = None


@Parameter(name="*")
@dataclass(kw_only=True)
class HostKey(DeviceOptions):
    """A host key.

    Attributes:
        fingerprint: SHA256:…, as read on the device; without it the key is only printed
        replace: in place of a key accepted earlier
    """

    fingerprint: str | None = None
    replace: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Prefetch(DeviceOptions):
    """Wheels.

    Attributes:
        runtime: litert, tflite-runtime, onnxruntime, all; default: those that there are for its Python
        platform: do not ask the device: aarch64, x86_64, armv7l
        python: 3.N, with --platform: its Python; default 3.11
    """

    runtime: str | None = None
    platform: str | None = None
    python: str | None = None


@on_groups
@cli.verb(left=HALF_DONE)
def deploy(options: Deploy) -> tuple[Any, str]:
    """Deploy a policy to a device: it is sent, checked there, and serves only after the check.

    quarl deploy --policy III
    quarl deploy --policy III --bits 32,8 --runtime all --target pi@raspberrypi
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.deploy import deploy as deployed
    from quarl.device.deploy.progress import progress_bars
    from quarl.device.deploy.signing.record import Signing
    from quarl.device.deploy.wheels import parse_runtimes
    from quarl.policy.ladder import AUTO, choose_precisions, read_ladder, require_artifact
    from quarl.policy.locate import working_bundle
    from quarl.policy.spec import RuntimeName, executions

    without_python = options.agent == "native"
    runtimes = (RuntimeName.NATIVE,) if without_python else parse_runtimes(options.runtime)
    choose_precisions(None, options.bits if options.bits != AUTO else "8", ())  # before a bundle is looked for
    bundle = working_bundle(options.policy)
    ladder = read_ladder(bundle)
    precisions = choose_precisions(ladder, options.bits, [runtime.artifact_format for runtime in runtimes])
    kept = tuple(  # before the device is asked anything
        require_artifact(bundle, ladder, precision, runtime.artifact_format, options.accept)
        for precision, runtime in executions(precisions, runtimes)
    )
    with connect(options.target, identity=options.identity) as connection, progress_bars(not options.json) as progress:
        signing = Signing(options.sign_key, options.serial, options.allow_serial)
        result = deployed(
            connection,
            bundle,
            precisions,
            runtimes,
            wait_s=options.wait,
            progress=progress,
            signing=signing,
            without_python=without_python,
        )
        result = replace(result, kept=kept)
        name = connection.name
    _warn(result.warnings)
    compared = f"Compared {result.compared_files} files of its wheels there in {result.compared_s:.1f} s."
    compared = compared if result.compared_files else ""
    if result.unchanged:
        sentence = f"{result.request.policy}: release {result.release} on {name} is this already; nothing was sent. "
        return result, f"{sentence}{compared}".rstrip()
    checked = ", ".join(
        f"{check.precision} in {check.runtime} ({check.vectors} golden vectors, "
        f"{100 * check.action_agreement:.1f} % same actions)"
        for check in result.checks
    )
    return result, (
        f"{result.request.policy}: release {result.release} serves on {name} "
        f"(before: {result.previous or 'none'}). Checked there: {checked}. "
        f"Beside the policy, {'; '.join(map(str, kept))}. "
        f"Sent {result.sent_files} files, {result.sent_bytes / 1e6:.1f} MB, "
        f"reused {result.reused_files} in {result.seconds:.1f} s. {compared}".rstrip()
    )


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)


@on_groups
@cli.verb(left=HALF_DONE)
def rollback(options: Rollback) -> tuple[Any, str]:
    """Switch back to an older release: by default to the last good one before the one that serves.

    A good release is not damaged, not marked bad, and was not rolled back from. It is checked again before it serves.

        quarl rollback --policy III --target pi@raspberrypi
        quarl rollback --policy III --to RELEASE --mark-bad
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.progress import progress_bars
    from quarl.device.deploy.releases import rollback as rolled_back

    with connect(options.target, identity=options.identity) as connection, progress_bars(not options.json) as progress:
        result = rolled_back(
            connection,
            options.policy,
            options.to,
            mark_bad_too=options.mark_bad,
            wait_s=options.wait,
            progress=progress,
        )
        name = connection.name
    _warn(result.warnings)
    before = f"before: {result.previous}"
    if result.marked_bad:
        before += ", marked bad"
    elif result.previous not in (None, result.release):
        before += ", not marked bad; --mark-bad does that"
    return result, f"{result.policy}: release {result.release} serves on {name} again ({before})."


@on_groups
@cli.verb(left=HALF_DONE)
def remove(options: Remove) -> tuple[Any, str]:
    """Remove a policy's releases: all but the one that serves, or one, or with --all the whole policy.

    Unpacked wheels that no release needs any more are removed, too. Everything removed is listed.

        quarl remove --policy III --target pi@raspberrypi
        quarl remove --policy III --all
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.releases import remove_releases

    with connect(options.target, identity=options.identity) as connection:
        result = remove_releases(
            connection,
            options.policy,
            options.release,
            whole=options.all,
            force=options.force,
            wait_s=options.wait,
        )
        name = connection.name
    gone = "; ".join(printable(item) for item in (*result.removed, *result.environments)) or "nothing"
    left = f"Release {result.serving} serves." if result.serving else "None serves."
    return result, f"{result.policy} on {name}: removed {gone}. {left}"


@on_groups
@cli.verb(left=NOTHING)
def releases(options: Look) -> tuple[Any, str]:
    """List what is deployed; * marks the release that serves.

    quarl releases
    quarl releases --policy III --target pi@raspberrypi
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.releases import list_releases

    with connect(options.target, identity=options.identity) as connection:
        report = list_releases(connection)
        return report, _releases_text(report, connection.name, options.policy)


def _releases_text(found: DeviceReleases, name: str, only: str | None) -> str:
    lines = []
    for policy, entry in found.policies.items():
        if only in (None, policy):
            for release in entry.releases:
                mark = "*" if release.name == entry.current else " "
                contents = f"{','.join(release.precisions)} in {','.join(release.runtimes)}"
                line = f"{mark} {policy:<6} {release.name}  "
                line += "" if release.damage else f"{contents}  {release.created} by {release.by}  "
                lines.append(printable(f"{line}{release.why_not}".rstrip()))
    lines += [printable(f"problem: {problem}") for problem in found.problems]
    if found.locked_by is not None:
        who = f"{found.locked_by.get('user')}@{found.locked_by.get('host')}"
        lines.append(printable(f"being deployed to by {who}"))
    return "\n".join(lines) or f"Nothing is deployed on {name}. Type: quarl deploy"


@on_groups
@cli.verb(left=NOTHING)
def status(options: Look) -> tuple[Any, str]:
    """Print the device's system and its serving releases.

    quarl status --target pi@raspberrypi
    quarl status --target @arena --json
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.probe import probe
    from quarl.device.deploy.releases import list_releases

    with connect(options.target, identity=options.identity) as connection:
        facts = probe(connection)
        report = list_releases(connection)
        status = {
            "target": options.target,
            "transport": connection.transport_name,
            "host_key": connection.host_key_fingerprint,
            "facts": facts,
            "deployed": report,
        }
        text = f"{connection.name} over {connection.transport_name}: {facts.summary()}\n"
        return status, text + _releases_text(report, connection.name, options.policy)


@on_groups
@cli.verb(left=NOTHING)
def reach(options: DeviceOptions) -> tuple[Any, str]:
    """Check that the device answers and accepts the login; prints nothing if so.

    quarl reach --target pi@raspberrypi
    quarl reach --target @arena
    """
    from quarl.device.deploy.connection import require_reachable

    require_reachable(options.target, identity=options.identity)
    return {"target": options.target}, ""


@on_groups
@cli.verb(left="known_hosts is whole.")
def accept_host_key(options: HostKey) -> tuple[Any, str]:
    """Print a device's host key, or accept it after a person has compared its fingerprint.

    quarl accept-host-key --target pi@raspberrypi
    quarl accept-host-key --target pi@raspberrypi --fingerprint SHA256:…
    """
    from quarl.device.deploy.errors import ChangedHostKeyError, TargetError, UnknownHostKeyError
    from quarl.device.deploy.handshake import accept_command, open_transport
    from quarl.device.deploy.hostkeys.known_hosts import KnownHosts, Verdict
    from quarl.device.deploy.ssh_config import resolve
    from quarl.device.deploy.target import Target

    target = Target.parse(options.target)
    if target.is_local:
        raise TargetError(
            "The local device's key was recorded when the device was made; there is nothing to accept.",
            "Type a device: --target pi@raspberrypi.",
        )
    endpoint = resolve(target, options.identity)
    known_hosts = KnownHosts.of_user(*endpoint.known_hosts_files)
    with contextlib.ExitStack() as stack:
        _, key = open_transport(endpoint, None, stack)
    if options.fingerprint is None:
        raise UnknownHostKeyError(
            f"{endpoint.host_key_name} presents {key.kind} {key.fingerprint}. Nothing was recorded.",
            "Compare it with the device's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then type: "
            + accept_command(target, key.fingerprint),
        )
    if options.fingerprint != key.fingerprint:
        raise ChangedHostKeyError(
            f"{endpoint.host_key_name} presents {key.fingerprint}, not {options.fingerprint}. Nothing was recorded.",
            "Read the fingerprint again on the device itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )
    finding = known_hosts.check(endpoint.host_key_name, key)
    result = {"host": endpoint.host_key_name, "kind": key.kind, "fingerprint": key.fingerprint}
    if finding.verdict is Verdict.KNOWN:
        return {**result, "recorded": False}, f"{endpoint.host_key_name} {key.fingerprint} was known already."
    if finding.verdict is Verdict.REVOKED or (finding.verdict is Verdict.CHANGED and not options.replace):
        where = "; ".join(f"{entry.file}:{entry.line}" for entry in finding.entries)
        raise ChangedHostKeyError(
            f"Another key of {endpoint.host_key_name} was accepted earlier, or this one is revoked ({where}).",
            "Only if the device was really reinstalled: type the same command with --replace.",
        )
    known_hosts.accept(endpoint.host_key_name, key, replace=options.replace)
    left = known_hosts.check(endpoint.host_key_name, key)
    return {**result, "recorded": True, "file": str(known_hosts.own), "verdict": left.verdict.value}, (
        f"{endpoint.host_key_name} {key.fingerprint} is recorded in {known_hosts.own}."
    )


@on_groups
@cli.verb(left="the wheels that were fetched are kept.")
def prefetch(options: Prefetch) -> tuple[Any, str]:
    """Fetch the wheels that a device will need, so that deploying needs no network but the device's.

    The device reports its platform; with --platform no device is needed.

        quarl prefetch --target pi@raspberrypi
        quarl prefetch --platform aarch64 --python 3.11
    """
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.errors import UnsupportedDeviceError, WheelError
    from quarl.device.deploy.probe import probe
    from quarl.device.deploy.wheels import fetch, parse_runtimes, select, unseen
    from quarl.policy.spec import RuntimeName

    if options.platform is None and options.python is not None:
        raise WheelError(
            f"--python requires --platform, got --python {options.python}: without --platform, {options.target} is "
            "asked for its Python.",
            f"Type --platform aarch64 --python {options.python}",
        )
    if options.platform is None:
        with connect(options.target, identity=options.identity) as connection:
            facts = probe(connection)
    else:
        facts = unseen(options.platform, options.python or USUAL_PYTHON)
    runtimes = parse_runtimes(options.runtime or "all")
    try:
        wheels = select(facts, runtimes).wheels
    except UnsupportedDeviceError:
        if options.runtime is not None:
            raise
        wheels = select(facts, [runtime for runtime in runtimes if runtime is not RuntimeName.TFLITE_RUNTIME]).wheels
    fetched: list[str] = []

    def note(wheel: object) -> None:
        fetched.append(str(wheel))
        if not options.json:
            print(f"downloading {wheel} …", file=sys.stderr, flush=True)

    files = fetch(wheels, progress=note)
    result = {"files": [str(path) for path in files.values()], "downloaded": fetched}
    machine, series = wheels[0].machine, wheels[0].python
    return result, (
        f"{len(files)} wheels for Python {series} on {machine} are in the cache, {len(fetched)} of them new."
    )
