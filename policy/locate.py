"""Where bundles live (host only): artifacts/NAME is what the user made; with the repository come zoo/NAME, the case
study's policies, and zoo/benchmark/NAME, those of the benchmark cells (cartpole-dqn, pong-ppo, …)."""

from __future__ import annotations

from pathlib import Path

from policy.bundle import Bundle, copy_bundle, locked
from policy.errors import BundleError
from policy.manifest import MANIFEST_FILE

PROJECT_ROOT = Path(__file__).resolve().parent.parent
ZOO, ARTIFACTS = PROJECT_ROOT / "zoo", PROJECT_ROOT / "artifacts"
BENCHMARK = "benchmark"


def working_bundle(name_or_path: str, artifacts: Path = ARTIFACTS, zoo: Path = ZOO) -> Bundle:
    """The bundle that a command works on, verified.

    A name (``III``, ``cartpole-dqn``) means artifacts/NAME, copied there from zoo/NAME or zoo/benchmark/NAME when it is
    not there yet or when the copy is of an older zoo. A path means that folder.

    Raises:
        BundleError: neither exists; says which names do.
    """
    if "/" in name_or_path or name_or_path in (".", ".."):
        return Bundle.load(Path(name_or_path))
    with locked(artifacts):  # two commands at once must not both copy
        return _named(name_or_path, artifacts, zoo)


def _named(name: str, artifacts: Path, zoo: Path) -> Bundle:
    own, shipped = artifacts / name, shipped_folder(name, zoo)
    if own.exists():
        bundle = Bundle.load(own)
        if bundle.manifest.origin != "zoo" or shipped is None:
            return bundle
        fresh = Bundle.load(shipped)
        # Not the weights alone: the normaliser, the calibration and the golden vectors decide what artifacts compute.
        if fresh.manifest.files.items() <= bundle.manifest.files.items():
            return bundle
        return copy_bundle(fresh, own, origin="zoo")
    if shipped is not None:
        return copy_bundle(Bundle.load(shipped), own, origin="zoo")
    known = {
        path.parent.name for root in (zoo, zoo / BENCHMARK, artifacts) for path in root.glob(f"[!.]*/{MANIFEST_FILE}")
    }
    raise BundleError(
        f"there is no policy {name!r}; known are {', '.join(sorted(known)) or 'none'}.",
        f"Train one of that name: python -m train --policy I --output-path artifacts/{name}",
    )


def shipped_folder(name: str, zoo: Path = ZOO) -> Path | None:
    """Where the repository has the bundle of that name; None where it has none."""
    places = (zoo / name, zoo / BENCHMARK / name)
    return next((place for place in places if place.exists() and place != zoo / BENCHMARK), None)
