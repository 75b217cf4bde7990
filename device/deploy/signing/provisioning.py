"""Who may sign what runs on a device: looked at, added, revoked; and the key that a host signs with for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import TrustError
from quarl.device.deploy.fleet.spreading import on_groups
from quarl.device.deploy.options import DeviceOptions
from quarl.device.deploy.signing.keys import SPARE, SigningKey, ensure_key, own_folder, read_public, resolve_signing_key
from quarl.device.deploy.signing.lists import fingerprint_of
from quarl.device.deploy.ssh_config import ssh_config_folder
from quarl.device.deploy.switching import holder


def is_our_own(connection: Connection) -> bool:
    """Return whether this project itself has set the device up here: the local one, a virtual Pi, an embedded
    fleet's."""
    target = connection.target
    return target.is_local or (ssh_config_folder() / f"{target.host}.conf").is_file()


def key_for(
    connection: Connection, session: Device, trust: Mapping[str, Any], path: Path | None
) -> tuple[SigningKey, Mapping[str, Any]]:
    """Return the key to sign with for a device, and whom the device trusts then.

    A device of our own gets a key of its own by itself, so that it takes one command to try it.

    Args:
        connection: to the device.
        session: a shell there.
        trust: what it says of whom it trusts.
        path: of a key that was named.

    Raises:
        TrustError: there is no key, or the device trusts nobody; says what to type.
    """
    signers, revoked = ({fingerprint_of(line) for line in trust[name]} - {""} for name in ("signers", "revoked"))
    if is_our_own(connection) and path is None:
        login = connection.endpoint.identity if connection.target.is_local else None
        key = ensure_key(login.parent if login is not None else own_folder())
        if trust["by_root"] or key.fingerprint in signers | revoked:
            return key, trust
        return key, {**trust, **session.signers([key.public], [], None)}
    provision = f"quarl signers --target {shlex.quote(str(connection.target))}"
    if not signers:
        raise TrustError(
            f"{connection.name} has no signers yet. Nothing was sent.",
            f"Type {provision} --make to let this host's keys sign, or {provision} --add KEY.pub for keys of yours.",
        )
    chosen = resolve_signing_key(path)
    if chosen is None:
        raise TrustError(
            f"This host has no key to sign releases for {connection.name}. Nothing was sent.",
            f"Type {provision} --make to make one, or use one of yours with --sign-key.",
        )
    return chosen, trust


@Parameter(name="*")
@dataclass(kw_only=True)
class Signers(DeviceOptions):
    """Who may sign what runs on a device.

    Attributes:
        add: KEY.pub, let this key sign; may be repeated
        revoke: KEY.pub, its releases are not started any more; may be repeated
        make: make this host's key and a spare one where they are missing; let them sign
        device_class: releases must be signed for this class of devices
        force: also revoke the signer of the serving release
    """

    add: tuple[Path, ...] = ()
    revoke: tuple[Path, ...] = ()
    make: bool = False
    device_class: Annotated[str | None, Parameter(name="--class")] = None
    force: bool = False


@on_groups
@cli.verb(left="the device's lists are whole.")
def signers(options: Signers) -> tuple[Any, str]:
    """List the signers of a device's releases; add or revoke a signer, or set the device's class.

    quarl signers --target pi@raspberrypi --make
    quarl signers --target pi@raspberrypi --add KEY.pub --revoke OLD.pub
    """
    add = [read_public(path) for path in options.add]
    revoke = [read_public(path) for path in options.revoke]
    if options.make:
        add += [ensure_key(own_folder()).public, ensure_key(own_folder(), SPARE).public]
    with connect(options.target, identity=options.identity) as connection:
        with open_device(connection) as session:
            if add or revoke or options.device_class is not None:
                session.take("", holder(""), 0.0)
            before = session.signers((), (), None)
            gone = {fingerprint_of(line) for line in revoke}
            still = [
                f"{policy} {record['release']}"
                for policy, record in before["serving"].items()
                if record["signer"] in gone
            ]
            if still and not options.force:
                raise TrustError(
                    f"{', '.join(still)} on {connection.name} is signed by a key that you revoke, and would no "
                    "longer start. Nothing was changed.",
                    "First deploy it again, signed by another key (--sign-key), or add --force.",
                )
            done = session.signers(add, revoke, options.device_class)
        name = connection.name
    return done, _text(done, name, options.make)


def root_floor(done: Mapping[str, Any]) -> list[str]:
    """Return the lines of /etc/quarl/floor that keep releases older than those that serve from being started.

    Returns:
        ``POLICY SERIAL`` each; nothing where root has them already.
    """
    pairs = (line.split() for line in done["floor"])
    known = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    wanted = {
        **known,
        **{policy: max(record["serial"], known.get(policy, 0)) for policy, record in done["serving"].items()},
    }
    return [f"{policy} {serial}" for policy, serial in sorted(wanted.items())] if wanted != known else []


def _text(done: Mapping[str, Any], name: str, made: bool) -> str:
    lines = [f"{name} is of the class {done['target_class']} and runs what these sign ({done['anchor']}):"]
    lines += [f"  {fingerprint_of(line)}" for line in done["signers"]] or ["  nobody yet: --make, or --add KEY.pub"]
    lines += [f"  revoked: {fingerprint_of(line)}" for line in done["revoked"]]
    lines += [
        f"  {policy}: release {record['release']} serves, signed by {record['signer'] or 'nobody'}"
        for policy, record in done["serving"].items()
    ]
    if done["by_root"] and (floor := root_floor(done)):
        lines.append("Older releases, rightly signed, start here as well until root forbids it. On the device, type:")
        lines.append(f"  printf '%s\\n' {' '.join(shlex.quote(line) for line in floor)} | sudo tee /etc/quarl/floor")
    if made:
        spare = own_folder() / SPARE
        lines.append(f"The spare key is {spare}: move it to a place that is not this host, and keep it for the day you")
        lines.append("revoke the other (docs/security.md).")
    return "\n".join(lines)
