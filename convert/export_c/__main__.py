"""``python -m convert.export_c``: a policy as a folder of C, for a flight controller or a microcontroller."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import Parser, as_typed, refused
from quarl.policy.locate import shown, working_bundle
from quarl.policy.places import ARTIFACTS
from quarl.policy.spec import Precision

if TYPE_CHECKING:
    from quarl.convert.export_c.writing import Export

EXAMPLES = """examples:
  python -m convert.export_c --policy III --bits 4
  python -m convert.export_c --policy I --bits 8 --output-path ~/flight-controller/policy"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="python -m convert.export_c", description=__doc__, epilog=EXAMPLES)
    add = made.add_argument
    add("--policy", required=True, metavar="NAME", help="I, II, III or a bundle's folder")
    add("--bits", default="8", help="8 (default), 7 … 2, or mixed")
    add("--output-path", type=Path, metavar="FOLDER", help="to write, not there yet; default artifacts/c/NAME-BITS")
    add("--accept", action="store_true", help="also make what acts too differently from the policy")
    add("--json", action="store_true", help="print one JSON document")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Export; the exit code is 0, or 1 when something was refused (and then no folder was written)."""
    arguments = parser().parse_args(argv)
    from quarl.convert.export_c.writing import export, refuse_taken

    folder: Path | None = arguments.output_path
    try:
        with interruption.interruptible():
            precision = Precision.parse(arguments.bits)
            bundle = working_bundle(arguments.policy)
            folder = folder or ARTIFACTS / "c" / f"{bundle.spec.name}-{precision.value}"
            refuse_taken(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            done = export(bundle, folder, precision, accept=arguments.accept)
    except (PolicyError, OSError) as error:
        return refused("convert.export_c", error, folder)
    except KeyboardInterrupt:
        print("convert.export_c: interrupted; no folder was written.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    print(json.dumps(as_json(done), indent=2) if arguments.json else as_typed(words_of(done)))
    return 0


def as_json(done: Export) -> dict[str, object]:
    """What was written, as JSON values."""
    return {**vars(done), "precision": done.precision.value, "folder": str(done.folder)}


def words_of(done: Export) -> str:
    """What was written, and what to type next."""
    made = " (the artifact was made for it)" if done.made else ""
    sizes = f"{done.artifact_bytes:,} bytes of constant data, {done.memory_bytes:,} bytes of RAM"
    folder = shown(done.folder)
    return (
        f"{folder}: {done.policy} in {done.precision.value}{made}, {sizes}. "
        f"Its golden test passed here: {done.golden_rows} observations, to the bit.\n"
        f"Next: make -C {folder} test, or test-cortex-m4; {folder}/README.md says how to use it."
    )


if __name__ == "__main__":
    raise SystemExit(main())
