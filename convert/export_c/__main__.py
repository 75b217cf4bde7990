"""``quarl export-c``: a policy as a folder of C, for a flight controller or a microcontroller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from quarl import cli
from quarl.policy.locate import shorten_path, working_bundle
from quarl.policy.places import ARTIFACTS
from quarl.policy.spec import Precision

if TYPE_CHECKING:
    from quarl.convert.export_c.writing import Export


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Export a policy.

    Attributes:
        policy: I, II, III or a bundle's folder
        bits: 8, 7 … 2, or mixed
        output_path: to write, not there yet; default artifacts/c/NAME-BITS
        accept: also write artifacts whose agreement with the policy is below the threshold
        json: print one JSON document
    """

    policy: Annotated[str, Parameter(metavar="NAME")]
    bits: str = "8"
    output_path: Annotated[Path | None, Parameter(metavar="FOLDER")] = None
    accept: bool = False
    json: bool = False


@cli.verb(left="no folder was written.")
def run(options: Options) -> tuple[dict[str, object], str]:
    """Write a policy as a folder of C, for a flight controller or a microcontroller.

    quarl export-c --policy III --bits 4
    quarl export-c --policy I --bits 8 --output-path ~/flight-controller/policy
    """
    from quarl.convert.export_c.writing import export, refuse_taken

    precision = Precision.parse(options.bits)
    bundle = working_bundle(options.policy)
    folder = options.output_path or ARTIFACTS / "c" / f"{bundle.spec.name}-{precision.value}"
    refuse_taken(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = export(bundle, folder, precision, accept=options.accept)
    return as_json(done), words_of(done)


def as_json(done: Export) -> dict[str, object]:
    """Return what was written, as JSON values."""
    return {**vars(done), "precision": done.precision.value, "folder": str(done.folder)}


def words_of(done: Export) -> str:
    """Return what was written, and what to type next."""
    note = " (the artifact was made for it)" if done.made else ""
    sizes = f"{done.artifact_bytes:,} bytes of constant data, {done.memory_bytes:,} bytes of RAM"
    folder = shorten_path(done.folder)
    return (
        f"{folder}: {done.policy} in {done.precision.value}{note}, {sizes}. "
        f"Its golden test passed here: {done.golden_rows} observations, to the bit.\n"
        f"Next: make -C {folder} test, or test-cortex-m4; {folder}/README.md says how to use it."
    )


main = cli.of("export-c")

if __name__ == "__main__":
    raise SystemExit(main())
