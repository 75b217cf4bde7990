"""A release whose agent is one program without Python: no wheels are sent, and nothing is imported on the device."""

from __future__ import annotations

from collections.abc import Sequence

from quarl.device.agent import building
from quarl.device.deploy.errors import UnsupportedDeviceError, VerificationError
from quarl.device.deploy.payload import Payload, PayloadFile
from quarl.device.deploy.records import PACK, PROGRAM, STARTER
from quarl.device.deploy.static_agent.packing import pack_artifact
from quarl.device.deploy.target import check_policy_name
from quarl.policy.bundle import Bundle
from quarl.policy.reading import WEIGHTS_FILE
from quarl.policy.spec import Precision, RuntimeName

STARTER_TEXT = f"""#!/bin/sh
# Starts the agent of this release, a program without Python: one JSON object a line. Try {{"op": "help"}}.
# Or, run-agent loop --help: in a loop.
here=$(CDPATH= cd -P -- "$(dirname -- "$0")" && pwd -P) || exit 1
cd -- "$here" || exit 1
if [ "$1" = loop ]; then
  releases=${{here%/*}} release=
  [ "${{releases##*/}}" != releases ] || release=${{here##*/}}
  shift
  set -- loop --release="$release" "$@"
  # Started again, it proves less; a deployment's check, which is no loop, all.
  [ -z "$release" ] || set -- --passed="${{releases%/*}}/golden-passed" "$@"
fi
exec "${{QUARL_AGENT:-$here/{PROGRAM}}}" "${{QUARL_PACK:-$here/{PACK}}}" "$@"
"""


def static_payload(bundle: Bundle, precisions: Sequence[Precision], machine: str) -> Payload:
    """Gather a release with the static agent.

    Args:
        bundle: as loaded on the host.
        precisions: one, which has been converted for the native engine.
        machine: the device's processor.

    Raises:
        VerificationError: there are several precisions; a pack holds one.
        UnsupportedDeviceError: the agent is not built for this processor.
        BundleError, BuildError: the artifact is missing; there is no compiler.
    """
    if len(precisions) != 1:
        named = ",".join(precision.bits_argument for precision in precisions)
        raise VerificationError(
            f"--bits must be one precision for the agent without Python, got {named}. Nothing was sent.",
            f"Type --bits {precisions[0].bits_argument}",
        )
    if machine not in building.TARGETS:
        raise UnsupportedDeviceError(
            f"The agent without Python is built for {', '.join(building.TARGETS)}, not for {machine}.",
            "Leave --agent out to deploy the agent in Python.",
        )
    files = (
        PayloadFile(STARTER, STARTER_TEXT.encode()),
        PayloadFile(PROGRAM, building.agent(machine).read_bytes()),
        PayloadFile(PACK, pack_artifact(bundle, precisions[0])),
    )
    weights = bundle.manifest.files[WEIGHTS_FILE].sha256
    return Payload(check_policy_name(bundle.spec.name), files, (), tuple(precisions), (RuntimeName.NATIVE,), weights)
