"""A release's record: everything that is signed of a release, in one text."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.device.deploy.errors import TrustError
from quarl.device.deploy.payload import Payload
from quarl.device.deploy.records import format_record
from quarl.device.deploy.signing.keys import SigningKey
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
        """Return the serial after ``highest``, and the one that it lowers, if it does.

        Raises:
            TrustError: the chosen one is not higher, and that was not allowed.
        """
        if self.serial is None:
            return max(int(time.time()), highest + 1), None
        if self.serial <= highest and not self.allow_serial:
            raise TrustError(
                f"--serial must be above {highest}, the highest that this device has accepted, got {self.serial}. "
                "Nothing was sent.",
                "Leave --serial out; to start over at a lower one, add --allow-serial.",
            )
        return self.serial, highest if self.serial <= highest else None


USUAL = Signing()
"""By this host's own key, with a serial of the clock's."""


def sign_record(
    payload: Payload, wheel_set: WheelSet, key: SigningKey, trust: Mapping[str, Any], signing: Signing
) -> SignedRecord:
    """Sign everything that is known of a release.

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
    values: dict[str, str | int] = {
        "policy": payload.policy,
        "serial": number,
        "class": trust["target_class"],
        "signer": key.fingerprint,
        "digest": payload.digest,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "by": f"{user_name()}@{socket.gethostname()}",
        "precisions": " ".join(precision.value for precision in payload.precisions),
        "runtimes": " ".join(runtime.value for runtime in payload.runtimes),
        "weights": payload.weights,
        "commit": code_version(),
    }
    if lowers is not None:
        values["lowers"] = lowers
    text = format_record(values, {wheel.folder: wheel.sha256 for wheel in wheel_set.wheels}, payload.hashes)
    return SignedRecord(text, key.sign(text.encode()).decode())
