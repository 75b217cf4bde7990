"""``quarl static-agent``: a policy and an agent that need nothing on the device, as two files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.device.engine.building import TARGETS
from quarl.policy.locate import shorten_path, working_bundle
from quarl.policy.places import ARTIFACTS
from quarl.policy.spec import ArtifactFormat, Precision

PROGRAM, PACK = "policy-agent", "policy.pack"


@Parameter(name="*")
@dataclass(kw_only=True)
class StaticAgent:
    """Two files.

    Attributes:
        policy: I, II, III or a bundle's folder
        bits: 32, 16, 8, 7 … 2, mixed, w8, w4 or dynamic
        machine: processor of the device
        output_path: folder; default artifacts/static/NAME-BITS-MACHINE
        json: print one JSON document
    """

    policy: str
    bits: str = "8"
    machine: Annotated[str, Parameter(choices=list(TARGETS))] = "aarch64"
    output_path: Path | None = None
    json: bool = False


@cli.verb(left="what was written is whole.")
def static_agent(options: StaticAgent) -> tuple[Any, str]:
    """Write a policy and an agent that need nothing on the device, as two files.

    quarl static-agent --policy I
    quarl static-agent --policy III --bits 4 --machine armv7l
    """
    precision, bundle = Precision.parse(options.bits), working_bundle(options.policy)
    name = f"{bundle.spec.name}-{precision.value}-{options.machine}"
    folder = options.output_path or ARTIFACTS / "static" / name
    sizes = write_agent_and_pack(bundle.path, precision, options.machine, folder)
    files = ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items())
    message = f'{shorten_path(folder)}: {files}. On the device: ./{PROGRAM} {PACK}, then type {{"op": "help"}}'
    return {"folder": str(folder), "files": sizes}, message


def write_agent_and_pack(bundle_path: Path, precision: Precision, machine: str, folder: Path) -> dict[str, int]:
    """Make what is missing, and write agent and pack, each whole or not at all; their sizes in bytes.

    Raises:
        PolicyError: the artifact cannot be made, or the agent cannot be compiled.
        OSError: the folder cannot be written.
    """
    from quarl.convert.pipeline import convert_each, missing
    from quarl.device.agent import building
    from quarl.device.deploy.static_agent.packing import pack_artifact
    from quarl.policy.bundle import Bundle
    from quarl.policy.files import write_atomically

    convert_each(missing([(Bundle.load(bundle_path), precision, ArtifactFormat.NATIVE)]))
    files = {PROGRAM: building.agent(machine).read_bytes(), PACK: pack_artifact(Bundle.load(bundle_path), precision)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(folder / name, data, mode=0o755 if name == PROGRAM else 0o644)
    return {name: len(data) for name, data in files.items()}


main = cli.of("static-agent")

if __name__ == "__main__":
    raise SystemExit(main())
