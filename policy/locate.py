"""Where bundles live: zoo/NAME comes with the repository, artifacts/NAME is what the user made of it (host only)."""

from __future__ import annotations

from pathlib import Path

from policy.bundle import Bundle, copy_bundle, locked
from policy.errors import BundleError
from policy.manifest import MANIFEST_FILE

PROJECT_ROOT = Path(__file__).resolve().parent.parent
ZOO, ARTIFACTS = PROJECT_ROOT / "zoo", PROJECT_ROOT / "artifacts"


def working_bundle(name_or_path: str, artifacts: Path = ARTIFACTS, zoo: Path = ZOO) -> Bundle:
    """The bundle that a command works on, verified.

    A name (``III``) means artifacts/NAME, copied there from zoo/NAME when it is not there yet or when the copy is of
    an older zoo. A path means that folder.

    Raises:
        BundleError: neither exists; says which names do.
    """
    if "/" in name_or_path or name_or_path in (".", ".."):
        return Bundle.load(Path(name_or_path))
    with locked(artifacts):  # two commands at once must not both copy
        return _named(name_or_path, artifacts, zoo)


def _named(name: str, artifacts: Path, zoo: Path) -> Bundle:
    own, shipped = artifacts / name, zoo / name
    if own.exists():
        bundle = Bundle.load(own)
        if bundle.manifest.origin != "zoo" or not shipped.exists():
            return bundle
        fresh = Bundle.load(shipped)
        # Not the weights alone: the normaliser, the calibration and the golden vectors decide what artifacts compute.
        if fresh.manifest.files.items() <= bundle.manifest.files.items():
            return bundle
        return copy_bundle(fresh, own, origin="zoo")
    if shipped.exists():
        return copy_bundle(Bundle.load(shipped), own, origin="zoo")
    known = {path.parent.name for root in (zoo, artifacts) for path in root.glob(f"[!.]*/{MANIFEST_FILE}")}
    raise BundleError(
        f"there is no policy {name!r}; known are {', '.join(sorted(known)) or 'none'}.",
        f"Train one of that name: python -m train --policy I --output-path artifacts/{name}",
    )
