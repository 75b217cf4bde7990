"""From a policy's name to a folder: the missing artifacts are made, all are compared with the weights, then written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import Path

from quarl.convert.package.errors import PackageError
from quarl.convert.package.hub import hub_files
from quarl.convert.package.leapp_folder import leapp_files
from quarl.convert.pipeline import Converted, convert_each, missing, possible
from quarl.convert.rebuild import check_artifact
from quarl.policy.bundle import Bundle
from quarl.policy.files import write_folder
from quarl.policy.json_values import abbreviate, is_file_name
from quarl.policy.locate import shorten_path
from quarl.policy.spec import ArtifactFormat, Precision


class PackageFormat(Enum):
    """The reader that a folder is written for."""

    HUB = "hub"
    LEAPP = "leapp"


@dataclass(frozen=True)
class Package:
    """A folder that was written.

    Attributes:
        policy: its name.
        format: what it is for.
        folder: where it is.
        precisions: of the artifacts in it.
        files: size in bytes by name.
        made: the artifacts that the bundle did not have before.
    """

    policy: str
    format: PackageFormat
    folder: Path
    precisions: tuple[Precision, ...]
    files: Mapping[str, int]
    made: tuple[Converted, ...]


def pack(
    bundle: Bundle,
    folder: Path,
    package_format: PackageFormat,
    precisions: Sequence[Precision],
    *,
    accept: bool = False,
) -> Package:
    """Write the folder, whole or not at all; artifacts that the bundle does not have are added to it first.

    Args:
        bundle: as loaded.
        folder: must not be there yet.
        package_format: what the folder is for.
        precisions: of the artifacts; a LEAPP folder holds one.
        accept: make an artifact also if its agreement with the policy is below the threshold.

    Raises:
        PackageError: the folder is there, or there are too many precisions.
        ParityError, AcceptanceError: an artifact cannot be made.
        BundleError: an artifact is not what the weights make.
        OSError: the folder cannot be written.
    """
    if package_format is PackageFormat.LEAPP and len(precisions) != 1:
        precision_list = ", ".join(choice.value for choice in precisions)
        raise PackageError(
            f"--precision must be a single one for a LEAPP folder, got {len(precisions)}: {precision_list}.",
            f"Type, for example: --precision {precisions[0].value}",
        )
    name = folder.resolve().name
    if not is_file_name(name):
        raise PackageError(
            f"--output-path must end in a printable name of at most 255 bytes, got {abbreviate(name)}.",
            f"Type, for example: --output-path {bundle.spec.name}",
        )
    refuse_taken(folder)
    formats = list(ArtifactFormat) if package_format is PackageFormat.HUB else [ArtifactFormat.ONNX]
    jobs = possible(product([bundle], precisions, formats))
    conversions = convert_each(missing(jobs), accept=accept)
    bundle = Bundle.load(bundle.path)
    for _, precision, artifact_format in jobs:
        check_artifact(bundle, bundle.artifact(precision, artifact_format))
    if package_format is PackageFormat.HUB:
        files = hub_files(bundle, precisions, name)
    else:
        files = leapp_files(bundle, bundle.artifact(precisions[0], ArtifactFormat.ONNX))
    try:
        write_folder(folder, files)
    except FileExistsError:
        refuse_taken(folder)
        raise
    sizes = {name: len(data) for name, data in sorted(files.items())}
    return Package(bundle.spec.name, package_format, folder, tuple(precisions), sizes, tuple(conversions))


def refuse_taken(folder: Path) -> None:
    """Raise PackageError where there is something of that name."""
    if folder.exists() or folder.is_symlink():
        raise PackageError(
            f"{shorten_path(folder)} exists already; a package is written to a new folder. Nothing was written.",
            "Type another --output-path, or remove the folder.",
        )
