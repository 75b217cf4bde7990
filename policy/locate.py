"""Where bundles live: zoo/NAME comes with the repository, artifacts/NAME is what the user made of it (host only)."""

from __future__ import annotations

from pathlib import Path

from policy.bundle import WEIGHTS_FILE, Bundle, copy_bundle
from policy.errors import BundleError

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
    own, shipped = artifacts / name_or_path, zoo / name_or_path
    if own.exists():
        bundle = Bundle.load(own)
        if bundle.manifest.origin != "zoo" or not shipped.exists():
            return bundle
        fresh = Bundle.load(shipped)
        if fresh.manifest.files[WEIGHTS_FILE] == bundle.manifest.files[WEIGHTS_FILE]:
            return bundle
        return copy_bundle(fresh, own, origin="zoo")
    if shipped.exists():
        return copy_bundle(Bundle.load(shipped), own, origin="zoo")
    known = sorted(
        {path.name for root in (zoo, artifacts) if root.exists() for path in root.iterdir() if path.is_dir()}
    )
    listed = ", ".join(name for name in known if not name.startswith(".")) or "none"
    raise BundleError(
        f"there is no policy {name_or_path!r}; known are {listed}.",
        f"Train it: make train POLICY={name_or_path}",
    )
