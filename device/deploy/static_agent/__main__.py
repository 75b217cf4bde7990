"""``python -m device.deploy.static_agent``: a policy and an agent that need nothing on the device, as two files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from quarl.device.engine.building import TARGETS
from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import Parser, as_typed, refused
from quarl.policy.locate import shown, working_bundle
from quarl.policy.places import ARTIFACTS
from quarl.policy.spec import ArtifactFormat, Precision

PROGRAM, PACK = "policy-agent", "policy.pack"
EXAMPLES = """examples:
  python -m device.deploy.static_agent --policy I
  python -m device.deploy.static_agent --policy III --bits 4 --machine armv7l"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="python -m device.deploy.static_agent", description=__doc__, epilog=EXAMPLES)
    add = made.add_argument
    add("--policy", required=True, metavar="NAME", help="I, II, III or a bundle's folder")
    add("--bits", default="8", help="8 (default), 7 … 2, or mixed")
    add("--machine", default="aarch64", choices=list(TARGETS), help="processor of the device, default %(default)s")
    add("--output-path", type=Path, metavar="FOLDER", help="default artifacts/static/NAME-BITS-MACHINE")
    add("--json", action="store_true", help="print one JSON document")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write both files; the exit code is 0, or 1 when something was refused."""
    arguments = parser().parse_args(argv)
    folder: Path | None = arguments.output_path
    try:
        with interruption.interruptible():
            precision = Precision.parse(arguments.bits)
            bundle = working_bundle(arguments.policy)
            folder = folder or ARTIFACTS / "static" / f"{bundle.spec.name}-{precision.value}-{arguments.machine}"
            sizes = written(bundle.path, precision, arguments.machine, folder)
    except (PolicyError, OSError) as error:
        return refused("device.deploy.static_agent", error, folder)
    except KeyboardInterrupt:
        print("device.deploy.static_agent: interrupted; what was written is whole.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    if arguments.json:
        print(json.dumps({"folder": str(folder), "files": sizes}, indent=2))
    else:
        files = ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items())
        print(as_typed(f'{shown(folder)}: {files}. On the device: ./{PROGRAM} {PACK}, then type {{"op": "help"}}'))
    return 0


def written(bundle_path: Path, precision: Precision, machine: str, folder: Path) -> dict[str, int]:
    """Make what is missing, and write agent and pack, each whole or not at all; their sizes in bytes.

    Raises:
        PolicyError: the artifact cannot be made, is not what the weights make, or the agent cannot be compiled.
        OSError: the folder cannot be written.
    """
    from quarl.convert.pipeline import convert_each, missing
    from quarl.device.deploy.static_agent.packing import packed
    from quarl.device.engine import building
    from quarl.policy.bundle import Bundle, write_atomically

    if not ArtifactFormat.NATIVE.holds(precision):
        raise PolicyError(f"the native engine does not execute {precision.value}.", "Type --bits 8, or fewer.")
    convert_each(missing([(Bundle.load(bundle_path), precision, ArtifactFormat.NATIVE)]))
    files = {PROGRAM: building.agent(machine).read_bytes(), PACK: packed(Bundle.load(bundle_path), precision)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(folder / name, data, mode=0o755 if name == PROGRAM else 0o644)
    return {name: len(data) for name, data in files.items()}


if __name__ == "__main__":
    raise SystemExit(main())
