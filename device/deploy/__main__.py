"""``python -m device.deploy``: deploy a policy to a device over SSH, serve it, go back, look, remove."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quarl.device.deploy.connection import connect, require_reachable
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import ChangedHostKeyError, TargetError, UnknownHostKeyError, WheelError
from quarl.device.deploy.fleet.command import add_verbs as add_fleet
from quarl.device.deploy.fleet.payloads import parse_bits
from quarl.device.deploy.fleet.spreading import on_groups
from quarl.device.deploy.handshake import accept_command, fetch_host_key
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts, Verdict
from quarl.device.deploy.probe import probe
from quarl.device.deploy.progress import progress_bars
from quarl.device.deploy.releases import DeviceReleases, list_releases, remove_releases, rollback
from quarl.device.deploy.serving import add_verbs
from quarl.device.deploy.signing.provisioning import add_verb as add_signers
from quarl.device.deploy.signing.record import Signing
from quarl.device.deploy.target import Target, resolve
from quarl.device.deploy.text import printable
from quarl.device.deploy.verbs import Verbs, run_verb
from quarl.device.deploy.wheels import fetch, parse_runtimes, select, select_unseen
from quarl.policy.hints import Parser
from quarl.policy.locate import working_bundle
from quarl.policy.spec import RuntimeName, executions

INTERRUPTED = (
    "what was half done on the device is discarded; `python -m device.deploy releases` shows which release serves."
)
USUAL_PYTHON = "3.11"  # of Raspberry Pi OS 12


def run_deploy(options: argparse.Namespace) -> tuple[Any, str]:
    """Deploy one policy."""
    without_python = options.agent == "native"
    precisions = parse_bits(options.bits)
    runtimes = (RuntimeName.NATIVE,) if without_python else parse_runtimes(options.runtime)
    bundle = working_bundle(options.policy)
    for precision, runtime in executions(precisions, runtimes):  # before the device is asked anything
        bundle.artifact(precision, runtime.artifact_format)
    with connect(options.target, identity=options.identity) as connection, progress_bars(not options.json) as progress:
        signing = Signing(options.sign_key, options.serial, options.allow_serial)
        result = deploy(
            connection,
            bundle,
            precisions,
            runtimes,
            wait_s=options.wait,
            progress=progress,
            signing=signing,
            without_python=without_python,
        )
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
        f"Sent {result.sent_files} files, {result.sent_bytes / 1e6:.1f} MB, "
        f"reused {result.reused_files} in {result.seconds:.1f} s. {compared}".rstrip()
    )


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)


def run_rollback(options: argparse.Namespace) -> tuple[Any, str]:
    """Switch back to an older release: by itself to the last good one before the one that serves.

    Good is what is not damaged, not marked bad, and was not rolled back from. It is checked again before it serves.
    """
    with connect(options.target, identity=options.identity) as connection, progress_bars(not options.json) as progress:
        result = rollback(
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


def run_remove(options: argparse.Namespace) -> tuple[Any, str]:
    """Remove a policy's releases from the device: all but the one that serves, or one, or with --all the whole policy.

    Unpacked wheels that no release needs any more go too. What was removed is listed.
    """
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
    gone = "; ".join(printable(each) for each in (*result.removed, *result.environments)) or "nothing"
    left = f"Release {result.serving} serves." if result.serving else "None serves."
    return result, f"{result.policy} on {name}: removed {gone}. {left}"


def run_releases(options: argparse.Namespace) -> tuple[Any, str]:
    """List what is deployed."""
    with connect(options.target, identity=options.identity) as connection:
        found = list_releases(connection)
        return found, _releases_text(found, connection.name, options.policy)


def _releases_text(found: DeviceReleases, name: str, only: str | None) -> str:
    lines = []
    for policy, entry in found.policies.items():
        if only in (None, policy):
            for release in entry.releases:
                mark = "*" if release.name == entry.current else " "
                what = f"{','.join(release.precisions)} in {','.join(release.runtimes)}"
                line = f"{mark} {policy:<6} {release.name}  "
                line += "" if release.damage else f"{what}  {release.created} by {release.by}  "
                lines.append(printable(f"{line}{release.why_not}".rstrip()))
    lines += [printable(f"problem: {problem}") for problem in found.problems]
    if found.locked_by is not None:
        who = f"{found.locked_by.get('user')}@{found.locked_by.get('host')}"
        lines.append(printable(f"being deployed to by {who}"))
    return "\n".join(lines) or f"Nothing is deployed on {name}. Type: make deploy"


def run_status(options: argparse.Namespace) -> tuple[Any, str]:
    """Say what the device is and what serves on it."""
    with connect(options.target, identity=options.identity) as connection:
        facts = probe(connection)
        found = list_releases(connection)
        status = {
            "target": options.target,
            "transport": connection.transport_name,
            "host_key": connection.host_key_fingerprint,
            "facts": facts,
            "deployed": found,
        }
        text = f"{connection.name} over {connection.transport_name}: {facts.summary()}\n"
        return status, text + _releases_text(found, connection.name, options.policy)


def run_reach(options: argparse.Namespace) -> tuple[Any, str]:
    """See that the device answers and lets us in; nothing is printed when it does, and no local device is started."""
    require_reachable(options.target, identity=options.identity)
    return {"target": options.target}, ""


def run_accept_host_key(options: argparse.Namespace) -> tuple[Any, str]:
    """Record the host key whose fingerprint was compared by a person."""
    target = Target.parse(options.target)
    if target.is_local:
        raise TargetError(
            "The local device's key was recorded when it was made; there is nothing to accept.",
            "Name a device: --target pi@raspberrypi.",
        )
    endpoint, known_hosts = resolve(target, options.identity), KnownHosts.of_user()
    key = fetch_host_key(target, endpoint, known_hosts)
    if options.fingerprint is None:
        raise UnknownHostKeyError(
            f"{endpoint.host_key_name} shows {key.kind} {key.fingerprint}. Nothing was recorded.",
            "Compare it with the device's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then type: "
            + accept_command(target, key.fingerprint),
        )
    if options.fingerprint != key.fingerprint:
        raise ChangedHostKeyError(
            f"{endpoint.host_key_name} shows {key.fingerprint}, not {options.fingerprint}. Nothing was recorded.",
            "Read the fingerprint again on the device itself.",
        )
    finding = known_hosts.check(endpoint.host_key_name, key)
    result = {"host": endpoint.host_key_name, "kind": key.kind, "fingerprint": key.fingerprint}
    if finding.verdict is Verdict.KNOWN:
        return {**result, "recorded": False}, f"{endpoint.host_key_name} {key.fingerprint} was known already."
    if finding.verdict is Verdict.REVOKED or (finding.verdict is Verdict.CHANGED and not options.replace):
        where = "; ".join(f"{entry.file}:{entry.line}" for entry in finding.entries)
        raise ChangedHostKeyError(
            f"Another key of {endpoint.host_key_name} was accepted earlier, or this one is revoked ({where}).",
            "Only if the device was really set up anew: the same command with --replace.",
        )
    known_hosts.accept(endpoint.host_key_name, key, replace=options.replace)
    left = known_hosts.check(endpoint.host_key_name, key)
    return {**result, "recorded": True, "file": str(known_hosts.own), "verdict": left.verdict.value}, (
        f"{endpoint.host_key_name} {key.fingerprint} is recorded in {known_hosts.own}."
    )


def run_prefetch(options: argparse.Namespace) -> tuple[Any, str]:
    """Fetch the wheels that a device will need, so that deploying needs no network but the device's.

    The device is asked what it is, or, with --platform, need not be there.
    """
    runtimes = parse_runtimes(options.runtime)
    if options.platform is not None:
        wheels = select_unseen(options.platform, options.python or USUAL_PYTHON, runtimes)
    elif options.python is not None:
        raise WheelError(
            f"--python {options.python} is for a device that is not asked; without --platform {options.target} is.",
            f"--platform aarch64 --python {options.python}",
        )
    else:
        with connect(options.target, identity=options.identity) as connection:
            wheels = select(probe(connection), runtimes).wheels
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


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = Parser(prog="python -m device.deploy", description=__doc__)
    common = Parser(add_help=False)
    common.add_argument(
        "--target", default="local", help="local (default), user@host, user@host:port, or @group of fleet.toml"
    )
    common.add_argument("--identity", type=Path, help="private key to offer first")
    verb = Verbs(top, common, wrapped=on_groups)
    deploying = verb("deploy", run_deploy)
    deploying.add_argument("--policy", required=True, help="name (III) or folder of a bundle")
    deploying.add_argument("--bits", default="8", help="8 (default), 16, 32, 7 … 2, mixed, or a list: 32,8")
    deploying.add_argument(
        "--runtime", default="litert", help="litert (default), tflite-runtime, onnxruntime, native, all"
    )
    add = deploying.add_argument
    add(
        "--agent",
        choices=["python", "native"],
        default="python",
        help="native: one program that needs neither Python nor wheels, with the native engine; one precision",
    )
    add("--sign-key", type=Path, metavar="KEY", help="sign with it; default QUARL_SIGN_KEY, or this host's own key")
    add("--serial", type=int, metavar="N", help="of the release; default: the time, and above the device's last")
    add("--allow-serial", action="store_true", help="let --serial be lower than the device's last")
    back = verb("rollback", run_rollback)
    back.add_argument("--policy", required=True, help="name (III)")
    back.add_argument("--to", metavar="RELEASE", help="default: the last good one before the current one")
    back.add_argument("--mark-bad", action="store_true", help="mark the one that served until now as bad")
    removing = verb("remove", run_remove)
    removing.add_argument("--policy", required=True, help="name (III)")
    which = removing.add_mutually_exclusive_group()
    which.add_argument("--release", metavar="RELEASE", help="only this one; default: all but the one that serves")
    which.add_argument("--all", action="store_true", help="the whole policy, with the release that serves")
    removing.add_argument("--force", action="store_true", help="also what an agent runs from")
    for added in (deploying, back, removing):
        added.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait for another deployment to end")
    add_verbs(verb)
    add_signers(verb)
    add_fleet(verb)
    for name, run in (("releases", run_releases), ("status", run_status)):
        looking = verb(name, run)
        looking.add_argument("--policy", help="only this one")
        looking.set_defaults(left="nothing was changed.")
    verb("reach", run_reach).set_defaults(left="nothing was changed.")
    accepting = verb("accept-host-key", run_accept_host_key)
    accepting.set_defaults(left="known_hosts is whole.")
    accepting.add_argument("--fingerprint", metavar="SHA256:…", help="as read on the device; without it, only shown")
    accepting.add_argument("--replace", action="store_true", help="in place of a key accepted earlier")
    prefetching = verb("prefetch", run_prefetch)
    prefetching.set_defaults(left="the wheels that were fetched are kept.")
    prefetching.add_argument("--runtime", default="all", help="all (default), litert, tflite-runtime, onnxruntime")
    prefetching.add_argument("--platform", metavar="MACHINE", help="do not ask the device: aarch64, x86_64, armv7l")
    prefetching.add_argument("--python", metavar="3.N", help=f"with --platform: its Python, default {USUAL_PYTHON}")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 when it failed (the message says what to do), 2 for wrong usage, 130 interrupted."""
    return run_verb(parser(), argv, INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
