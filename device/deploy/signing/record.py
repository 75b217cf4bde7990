"""A release's record, release.json: everything that is signed of a release, in one canonical text."""

from __future__ import annotations

import datetime
import json
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import TrustError
from quarl.device.deploy.on_device.files import HelperError
from quarl.device.deploy.on_device.signatures import REVOKED_FILE, SIGNERS_FILE, check_signature
from quarl.device.deploy.payload import Payload
from quarl.device.deploy.signing import sshsig
from quarl.device.deploy.signing.keys import SigningKey, has_ssh_keygen
from quarl.device.deploy.target import user_name
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.locate import code_version


@dataclass(frozen=True)
class SignedRecord:
    """A record and its signature, as they are sent and as they lie on the device."""

    text: str
    signature: str


@dataclass(frozen=True)
class Signing:
    """How a release is signed.

    Attributes:
        key: file of a key; None: this host's own.
        serial: of the release; None: the time in seconds, and at least one more than the device has accepted. Serials
            rise, so that no older release can be sent again.
        allow_serial: let ``serial`` be lower than that; it is said in what is signed, for this device's last alone.
    """

    key: Path | None = None
    serial: int | None = None
    allow_serial: bool = False

    def serial_after(self, highest: int) -> tuple[int, int | None]:
        """The serial after ``highest``, and the one that it lowers, if it does.

        Raises:
            TrustError: the chosen one is not higher, and that was not allowed.
        """
        if self.serial is None:
            return max(int(time.time()), highest + 1), None
        if self.serial <= highest and not self.allow_serial:
            raise TrustError(
                f"Serial {self.serial} is not above {highest}, which this device has accepted. Nothing was sent.",
                "Leave --serial out, or, to begin anew at a lower one, add --allow-serial.",
            )
        return self.serial, highest if self.serial <= highest else None


USUAL = Signing()
"""By this host's own key, with a serial of the clock's."""


def signed_record(
    payload: Payload, wheel_set: WheelSet, key: SigningKey, trust: Mapping[str, Any], signing: Signing
) -> SignedRecord:
    """Everything that is known of a release, signed.

    Args:
        payload: its files.
        wheel_set: the wheels that it needs.
        key: signs it.
        trust: what the device says of whom it trusts.
        signing: its serial.

    Raises:
        TrustError: the key signs nothing, or the serial is too low.
    """
    number, lowers = signing.serial_after(trust["serial"])
    record = {
        "policy": payload.policy,
        "digest": payload.digest,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "by": f"{user_name()}@{socket.gethostname()}",
        "precisions": [precision.value for precision in payload.precisions],
        "runtimes": [runtime.value for runtime in payload.runtimes],
        "environments": list(payload.environments),
        "wheels": {wheel.folder: wheel.sha256 for wheel in wheel_set.wheels},
        "files": payload.hashes,
        "sizes": payload.sizes,
        "signer": key.fingerprint,
        "serial": number,
        "target_class": trust["target_class"],
        "weights": payload.weights,
        "commit": code_version(),
    }
    if lowers is not None:
        record["lowers"] = lowers
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return SignedRecord(text, key.sign(text.encode()).decode())


def check_as_device(connection: Connection, signed: SignedRecord, trust: Mapping[str, Any]) -> None:
    """See before anything is sent that the device will trust a record, by the lists that it has.

    Raises:
        TrustError: it will not; says why and what to type.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, key in ((SIGNERS_FILE, "signers"), (REVOKED_FILE, "revoked")):
            (folder / file).write_text("".join(f"{line}\n" for line in trust[key]))
        try:
            tool = ("ssh-keygen",) if has_ssh_keygen() else (sys.executable, "-m", sshsig.__name__)
            check_signature(signed.text.encode(), signed.signature.encode(), folder, tool)
        except HelperError as error:
            raise TrustError(
                f"{connection.name} would not trust this release: {error}. Nothing was sent.",
                f"quarl signers --target {connection.target} shows who may sign there and adds "
                "others; --sign-key KEY signs with another key.",
            ) from None
