"""A bundle as a hub takes it: its files, the chosen artifacts, a model card. The folder is itself a bundle.

The card is not in the manifest: on a hub people edit it, and the bundle is none the worse for it.
"""

from __future__ import annotations

from collections.abc import Collection

from quarl.convert.package.card import CARD_FILE, card
from quarl.policy.bundle import Bundle
from quarl.policy.reading import MANIFEST_FILE, Manifest
from quarl.policy.spec import Precision


def filter_manifest(bundle: Bundle, precisions: Collection[Precision]) -> Manifest:
    """Return the manifest of the bundle with the artifacts of these precisions alone."""
    artifacts = bundle.manifest.artifacts
    chosen = {name: entry for name, entry in artifacts.items() if entry.precision in precisions}
    left = {entry.golden_file for entry in artifacts.values()} - {entry.golden_file for entry in chosen.values()}
    files = {name: record for name, record in bundle.manifest.files.items() if name not in (*left, CARD_FILE)}
    return Manifest(bundle.manifest.policy, files, chosen)


def hub_files(bundle: Bundle, precisions: Collection[Precision], folder: str) -> dict[str, bytes]:
    """Return the files of the folder by name, each as the bundle's manifest says.

    Args:
        bundle: has the artifacts.
        precisions: of the artifacts that are packed.
        folder: its name in the card's commands.

    Raises:
        BundleError: a file is missing or another one.
    """
    manifest = filter_manifest(bundle, precisions)
    parameters = sum(array.size for array in bundle.weights().values())
    text = card(bundle.spec, manifest, parameters, len(bundle.golden().observations), folder)
    return {
        **{name: bundle.data(name) for name in manifest.records()},
        MANIFEST_FILE: manifest.to_json().encode(),
        CARD_FILE: text.encode(),
    }
